//! `ExecutorActor`: makes the attempts of one term.
//!
//! State: its term and what is needed for a call. Receives `RunAttempts` from the scheduler and
//! `AttemptsStarted` from the store (written down already); gives slots back through [`Dispatch`], which
//! says what is due next, and tells the leader `TermFailed` when a write is refused or in doubt. Each attempt
//! is a task of its own: begin (written down), call, finish (recorded). Attempts under way outlive the actor and record themselves while their term lasts;
//! [`InFlight`] counts them. When the actor dies, the leader ends the term.

mod calls;
mod rate_limiter;
mod write_batcher;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix::{Actor, Context, Handler, Message, Recipient};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::config::registry::CurrentRegistry;
use crate::domain::lease::Term;
use crate::domain::limits::AttemptTimeout;
use crate::domain::outcome::{Contact, Outcome};
use crate::domain::policy;
use crate::domain::schedule::{Call, Ended, LONGEST_HOLD, Limits, Waiting};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::engine::leader::{Heartbeat, TermFailed};
use crate::engine::lease_trust::LeaseTrust;
use crate::gateway::Gateway;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::supervision::Alive;
use crate::store::actor::{AttemptsStarted, FencedError, FencedResult};
use crate::store::client::StoreClient;
use crate::store::{
    self, FencedWrites, FinishAttempt, FinishResult, JobFacts, OpenAttempt, PostponeAttempt, StartResult,
    StartedOnInsert, StoreError,
};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::{Attribute, Kind, Span, Tracer};

use self::calls::Calls;
use self::rate_limiter::{RateLimiter, TooFarAhead};
use self::write_batcher::WriteBatcher;

/// When an intent is tried again that the store could not start for a reason of its own.
const UNEXPECTED_PAUSE: Duration = Duration::from_secs(30);
/// Before an attempt is made that this machine had no descriptor, port or memory for.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);

/// Begin and make the next attempts of these intents.
#[derive(Message)]
#[rtype(result = "()")]
pub struct RunAttempts {
    /// Each counts from here on, so that no attempt can hide in a mailbox.
    pub due: Vec<(Waiting, InFlightCount)>,
    pub dispatch: Arc<dyn Dispatch>,
}

/// Where free slots are given back, and what is due next comes from.
pub trait Dispatch: Send + Sync {
    /// These attempts take no slot any more; the ones that may now be begun.
    fn next(&self, over: Vec<AttemptOver>) -> Vec<(Waiting, InFlightCount)>;
}

/// An attempt given to the executor takes no slot any more, whatever came of it.
#[derive(Debug)]
pub struct AttemptOver {
    pub waiting: Waiting,
    pub how: Over,
}

#[derive(Clone, Copy, Debug)]
pub enum Over {
    /// The gateway was called.
    Called(Call),
    /// It was begun, and given back to the store without a call. `next_turn` is when the next call of its target may
    /// leave, if that is why.
    Postponed { next_turn: Option<Timestamp> },
    /// It was not begun, and need not be.
    NotBegun,
    /// It was not begun: it is due only then, and otherwise as it was.
    NotBefore(Timestamp),
    /// It was not begun: its target is paused.
    Paused,
}

impl Over {
    /// What that means for the slots of the schedule.
    pub fn ended(self) -> Ended {
        match self {
            Self::Called(call) => Ended::Called(call),
            Self::Postponed { next_turn } => Ended::NotCalled { next_turn },
            Self::NotBegun | Self::NotBefore(_) | Self::Paused => Ended::NOT_CALLED,
        }
    }
}

pub struct ExecutorDeps {
    pub term: Term,
    pub trust: LeaseTrust,
    pub store: StoreClient,
    pub store_time: StoreTime,
    pub gateway: Rc<dyn Gateway>,
    pub registry: CurrentRegistry,
    pub tracer: Tracer,
    pub leader: Recipient<TermFailed>,
    pub limits: Limits,
    /// How long an attempt may take, unless its target says otherwise.
    pub attempt_timeout: Duration,
}

/// What all attempts of a term share.
struct Attempts {
    deps: ExecutorDeps,
    writes: Rc<WriteBatcher>,
    calls: Calls,
    rate_limiter: RateLimiter,
    over: RefCell<Vec<AttemptOver>>,
}

pub struct ExecutorActor {
    attempts: Rc<Attempts>,
    _alive: Alive,
}

impl ExecutorActor {
    pub fn new(deps: ExecutorDeps, alive: Alive) -> Self {
        let writes = WriteBatcher::new(deps.store.clone(), deps.term.clone());
        let calls = Calls::new(deps.limits);
        let (rate_limiter, over) = (RateLimiter::default(), RefCell::default());
        Self { attempts: Rc::new(Attempts { deps, writes, calls, rate_limiter, over }), _alive: alive }
    }
}

impl Actor for ExecutorActor {
    type Context = Context<Self>;
}

impl Handler<RunAttempts> for ExecutorActor {
    type Result = ();

    fn handle(&mut self, RunAttempts { due, dispatch }: RunAttempts, _: &mut Self::Context) {
        run_all(&self.attempts, due, &dispatch);
    }
}

/// Begins and makes attempts, each in a task of its own.
fn run_all(attempts: &Rc<Attempts>, due: Vec<(Waiting, InFlightCount)>, dispatch: &Arc<dyn Dispatch>) {
    for (waiting, count) in due {
        let attempts = Rc::clone(attempts);
        let slot = Slot::new(&attempts, None, Some((Arc::clone(dispatch), waiting.clone())));
        actix::spawn(async move {
            let _until_recorded = count;
            attempts.run(waiting, slot).await;
        });
    }
}

impl Handler<AttemptsStarted> for ExecutorActor {
    type Result = ();

    fn handle(&mut self, AttemptsStarted(begun): AttemptsStarted, _: &mut Self::Context) {
        for StartedOnInsert { attempt, payload, permit } in begun {
            let attempts = Rc::clone(&self.attempts);
            let slot = Slot::new(&attempts, Some(permit.slot), None);
            actix::spawn(async move {
                let _until_recorded = permit.under_way;
                attempts.make(attempt, payload, slot).await;
            });
        }
    }
}

impl Attempts {
    /// One attempt from begin to finish.
    async fn run(&self, waiting: Waiting, slot: Slot) {
        if !self.deps.trust.holds() {
            self.doubt_term("an attempt was handed out after the lease was no longer trusted");
            return slot.over(Over::NotBegun);
        }
        let (asked, seq) = (monotonic(), waiting.seq);
        match self.writes.begin(waiting).await {
            Ok(StartResult::Started { attempt, payload, .. }) => return self.make(attempt, payload, slot).await,
            Ok(StartResult::NotDue { due, now }) => {
                self.deps.store_time.observe(asked, now);
                return slot.over(Over::NotBefore(due));
            }
            Ok(StartResult::Paused) => return slot.over(Over::Paused),
            Ok(StartResult::Ended(_) | StartResult::Stale) => {}
            Err(FencedError::Store(StoreError::Unexpected(what))) => {
                // This intent alone cannot be started; nothing was written, and the others go on.
                let again_at = self.deps.store_time.now() + UNEXPECTED_PAUSE;
                log::error!("attempt_not_begun intent_seq={} again_at={again_at} store_error={what:?}", seq.0);
                return slot.over(Over::NotBefore(again_at));
            }
            Err(error) => self.fail_term("begin", &error),
        }
        slot.over(Over::NotBegun);
    }

    /// Calls the gateway for an attempt that is written down, and records what came of it. What may no longer be
    /// sent when the call could leave is given back or finished without a call.
    async fn make(&self, mut attempt: OpenAttempt, payload: Bytes, slot: Slot) {
        attempt.job = JobFacts::of_payload(&attempt.intent_id, &payload).map(Arc::new);
        let target = &attempt.contract.target;
        // First, because nothing else may be held while an attempt waits for its turn.
        let turn = match self.deps.registry.get().limits(target).rate {
            None => None,
            Some(rate) => match self.rate_limiter.approach(target, rate).await {
                Ok(turn) => Some(turn),
                Err(TooFarAhead(wait)) => {
                    let due = self.deps.store_time.now() + wait;
                    return self.postpone(attempt, due, Some(due), slot).await;
                }
            },
        };
        let calling = self.calls.enter(&attempt.contract.gateway_url).await;
        if let Some(turn) = &turn {
            turn.comes().await;
        }
        let now = self.deps.store_time.now();
        if !self.deps.trust.holds() {
            self.doubt_term("an attempt was started and could not be made while the lease was trusted");
            return self.postpone(attempt, now, None, slot).await;
        }
        if policy::deadline(&attempt.contract, attempt.created_at).is_some_and(|deadline| now >= deadline) {
            let outcome = Outcome::not_sent("the deadline passed before the call could leave");
            let recording = self.record(Arc::new(decided(attempt, outcome, now)));
            slot.over(Over::Postponed { next_turn: None });
            return recording.await;
        }
        let next_turn = turn.map(|turn| now + turn.leave());
        let called = monotonic();
        let parent = attempt.trace;
        let span = parent.and_then(|trace| self.deps.tracer.begin(trace));
        attempt.trace = span.or(parent);
        let timeout = self.deps.registry.get().limits(&attempt.contract.target).attempt_timeout;
        let timeout = timeout.map_or(self.deps.attempt_timeout, AttemptTimeout::as_duration);
        let attempted = self.deps.gateway.attempt(&attempt, payload, timeout).await;
        drop(calling);
        let Ok(outcome) = attempted else {
            // Nothing was sent, and the gateway is not at fault.
            let due = self.deps.store_time.now() + SHORTAGE_PAUSE;
            return self.postpone(attempt, due, next_turn, slot).await;
        };
        let took = monotonic().duration_since(called);
        let finished_at = self.deps.store_time.now().max(attempt.started_at);
        if let (Some(parent), Some(context)) = (parent, span) {
            self.deps.tracer.record(span_of(&attempt, &outcome, parent, context, finished_at));
        }
        let hold_until = outcome.retry_after().map(|span| finished_at + span.min(LONGEST_HOLD));
        if let Some(until) = hold_until {
            log::warn!("gateway_on_hold gateway={} until={until}", attempt.contract.gateway_url);
        }
        let answered = outcome.contact() == Contact::Answered;
        let recording = self.record(Arc::new(decided(attempt, outcome, finished_at)));
        // The gateway is done with it; writing that down takes no slot.
        slot.over(Over::Called(Call { took, answered, next_turn, hold_until }));
        recording.await;
    }

    /// Gives an attempt back that was not sent: its number was not used, and the intent waits again until `due`.
    async fn postpone(&self, attempt: OpenAttempt, due: Timestamp, next_turn: Option<Timestamp>, slot: Slot) {
        let postpone = PostponeAttempt { seq: attempt.seq, attempt_number: attempt.attempt_number, due };
        // First, so that the schedule has let go of the intent when it sees it wait again.
        slot.over(Over::Postponed { next_turn });
        self.persist(&attempt, || self.writes.postpone(postpone)).await;
    }

    async fn record(&self, finish: Arc<FinishAttempt>) {
        let recorded = self.persist(&finish.attempt, || self.writes.finish(Arc::clone(&finish))).await;
        if recorded {
            log::debug!(
                "attempt_finished intent_id={:?} attempt={} outcome={} decision={:?}",
                finish.attempt.intent_id,
                finish.attempt.attempt_number,
                finish.outcome.kind(),
                finish.decision
            );
        }
    }

    /// Writes down what became of an attempt. A failed write is repeated, which does no harm, for as long as the term may
    /// last: the call was made, and its outcome is known nowhere else.
    async fn persist<F: Future<Output = FencedResult<FinishResult>>>(
        &self,
        attempt: &OpenAttempt,
        write: impl Fn() -> F,
    ) -> bool {
        const PAUSE: Duration = Duration::from_millis(250);
        const TRIES: u32 = 60; // 15 s of pauses: the default duration of a lease
        for _ in 0..TRIES {
            match write().await {
                Ok(_) => return true,
                Err(error) => {
                    self.fail_term("finish", &error);
                    if !matches!(error, FencedError::Store(StoreError::Unavailable(_) | StoreError::Overloaded)) {
                        break;
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        // The next term closes it as interrupted.
        log::error!("attempt_not_recorded intent_id={:?} attempt={}", attempt.intent_id, attempt.attempt_number);
        false
    }

    /// Gives a slot back and begins what may come next, once for all that end in this turn of the
    /// loop. What waits for a slot then need not wait for the scheduler too.
    fn take_next(self: &Rc<Self>, over: AttemptOver, dispatch: Arc<dyn Dispatch>) {
        self.over.borrow_mut().push(over);
        if self.over.borrow().len() == 1 {
            let attempts = Rc::clone(self);
            actix::spawn(async move {
                let due = dispatch.next(attempts.over.take());
                run_all(&attempts, due, &dispatch);
            });
        }
    }

    fn fail_term(&self, during: &str, error: &FencedError) {
        self.deps.leader.do_send(TermFailed::new(&self.deps.term, during, error));
    }

    /// The term must not go on as if nothing had happened; but it is for the leader to say that it is lost. While it is
    /// being drained the leader goes on renewing, so that attempts under way can be recorded.
    fn doubt_term(&self, why: &str) {
        self.deps.leader.do_send(TermFailed::in_doubt(&self.deps.term, why));
    }
}

/// An attempt as a span of its submission's trace.
fn span_of(
    attempt: &OpenAttempt,
    outcome: &Outcome,
    parent: TraceContext,
    context: TraceContext,
    ended: Timestamp,
) -> Span {
    let contract = &attempt.contract;
    Span {
        name: format!("POST {}", contract.gateway_type.path()),
        kind: Kind::Client,
        context,
        parent: Some(parent),
        started: attempt.started_at,
        ended,
        error: outcome.error_text().map(str::to_owned),
        attributes: vec![
            ("submission.intent_id", Attribute::Text(attempt.intent_id.to_string())),
            ("submission.target", Attribute::Text(contract.target.to_string())),
            ("submission.attempt", Attribute::Number(attempt.attempt_number.into())),
            ("submission.outcome", Attribute::Text(outcome.kind().to_owned())),
            ("url.full", Attribute::Text(format!("{}{}", contract.gateway_url, contract.gateway_type.path()))),
        ],
    }
}

/// An open attempt with its outcome and what policy makes of it.
pub fn decided(attempt: OpenAttempt, outcome: Outcome, finished_at: Timestamp) -> FinishAttempt {
    let decision = policy::decide(&attempt.contract, attempt.created_at, attempt.attempt_number, &outcome, finished_at);
    FinishAttempt { attempt, finished_at, outcome, decision }
}

/// Closes what earlier terms left open: outcome unknown, policy decides.
pub async fn close_interrupted(
    store: &StoreClient,
    term: &Term,
    store_time: &StoreTime,
    progress: &Heartbeat,
) -> FencedResult<usize> {
    const PAGE: usize = 256;
    let mut closed = 0;
    loop {
        let open = store.open_attempts_before(term.epoch, PAGE).await?;
        if open.is_empty() {
            return Ok(closed);
        }
        let finishes = open.into_iter().map(|attempt| {
            let finished_at = store_time.now().max(attempt.started_at);
            log::warn!(
                "attempt_interrupted intent_id={:?} attempt={} lease_epoch={}",
                attempt.intent_id,
                attempt.attempt_number,
                attempt.lease_epoch
            );
            Arc::new(decided(attempt, Outcome::interrupted(), finished_at))
        });
        let done = store.fenced(FencedWrites { finishes: finishes.collect(), ..FencedWrites::new(term) }).await?;
        progress.beat();
        // One that cannot be closed fails alone, and the store has said so in the log.
        let closed_now = done.finishes.iter().filter(|finished| finished.is_ok()).count();
        if closed_now == 0 {
            return Ok(closed);
        }
        closed += closed_now;
    }
}

/// A place among the attempts in flight, held until the gateway has answered. However that ends,
/// the place is free again and the scheduler told; if it ended by a panic, nobody knows what the
/// attempt did, so the term ends too.
struct Slot {
    attempts: Rc<Attempts>,
    place: Option<Box<dyn store::Slot>>,
    /// Where it is given back, if the scheduler gave it out.
    dispatch: Option<(Arc<dyn Dispatch>, Waiting)>,
    /// How the attempt came to its end; without that it died.
    how: Option<Over>,
}

impl Slot {
    fn new(
        attempts: &Rc<Attempts>,
        place: Option<Box<dyn store::Slot>>,
        dispatch: Option<(Arc<dyn Dispatch>, Waiting)>,
    ) -> Self {
        Self { attempts: Rc::clone(attempts), place, dispatch, how: None }
    }

    fn over(mut self, how: Over) {
        self.how = Some(how);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.how.is_none() {
            let ExecutorDeps { leader, term, .. } = &self.attempts.deps;
            leader.do_send(TermFailed::in_doubt(term, "an attempt died"));
        }
        let how = self.how.unwrap_or(Over::NotBegun);
        if let Some(mut place) = self.place.take() {
            place.ended(how.ended());
        }
        if let Some((dispatch, waiting)) = self.dispatch.take() {
            self.attempts.take_next(AttemptOver { waiting, how }, dispatch);
        }
    }
}

/// Attempts under way in this process, over all terms.
#[derive(Clone)]
pub struct InFlight {
    count: Arc<AtomicUsize>,
    idle: Arc<Notify>,
    metrics: Arc<Metrics>,
}

impl InFlight {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { count: Arc::default(), idle: Arc::default(), metrics }
    }

    pub fn enter(&self) -> InFlightCount {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.metrics.inflight_attempts.inc();
        InFlightCount(self.clone())
    }

    /// Resolves when no attempt is under way.
    pub async fn idle(&self) {
        loop {
            let changed = self.idle.notified();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// One attempt under way, until it is dropped.
pub struct InFlightCount(InFlight);

impl Drop for InFlightCount {
    fn drop(&mut self) {
        self.0.metrics.inflight_attempts.dec();
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(ExecutorActor);
