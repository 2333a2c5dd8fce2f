//! `ExecutorActor`: makes the attempts of one term.
//!
//! State: its term and what is needed for a call. Receives `RunAttempts` from the scheduler and
//! `AttemptsBegun` from the store (written down already); gives slots back through [`Dispatch`], which
//! says what is due next, and tells the leader `TermFailed` when a write is refused or in doubt. Each attempt
//! is a task of its own: begin (written down), call, finish (recorded). Attempts under way outlive the actor and record themselves while their term lasts;
//! [`InFlight`] counts them. When the actor dies, the leader ends the term.

mod calls;
mod outbox;
mod turns;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix::{Actor, Context, Handler, Message, Recipient};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::clock::{StoreTime, monotonic};
use crate::core::lease::Term;
use crate::core::outcome::Outcome;
use crate::core::policy;
use crate::core::schedule::{Call, LONGEST_HOLD, Limits, Waiting};
use crate::core::time::Timestamp;
use crate::core::trace::TraceContext;
use crate::gateway::Gateway;
use crate::leader::{Heartbeat, TermFailed};
use crate::metrics::Metrics;
use crate::registry::CurrentRegistry;
use crate::spans::{Attribute, Kind, Span, Tracer};
use crate::store::actor::{AttemptsBegun, FencedError, FencedResult};
use crate::store::client::StoreClient;
use crate::store::{self, Begun, BegunAtOnce, FencedWrites, FinishAttempt, JobFacts, OpenAttempt, StoreError};
use crate::supervise::Alive;
use crate::trust::Trust;

use self::calls::Calls;
use self::outbox::Outbox;
use self::turns::Turns;

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
    /// It was not begun, and need not be.
    NotBegun,
    /// It was not begun: it is due only then, and otherwise as it was.
    NotBefore(Timestamp),
    /// It was not begun: its target is paused.
    Paused,
}

pub struct ExecutorParts {
    pub term: Term,
    pub trust: Trust,
    pub store: StoreClient,
    pub store_time: StoreTime,
    pub gateway: Rc<dyn Gateway>,
    pub registry: CurrentRegistry,
    pub tracer: Tracer,
    pub leader: Recipient<TermFailed>,
    pub limits: Limits,
}

/// What all attempts of a term share.
struct Attempts {
    parts: ExecutorParts,
    outbox: Rc<Outbox>,
    calls: Calls,
    turns: Turns,
    over: RefCell<Vec<AttemptOver>>,
}

pub struct ExecutorActor {
    attempts: Rc<Attempts>,
    _alive: Alive,
}

impl ExecutorActor {
    pub fn new(parts: ExecutorParts, alive: Alive) -> Self {
        let outbox = Outbox::new(parts.store.clone(), parts.term.clone());
        let calls = Calls::new(parts.limits);
        let (turns, over) = (Turns::default(), RefCell::default());
        Self { attempts: Rc::new(Attempts { parts, outbox, calls, turns, over }), _alive: alive }
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

impl Handler<AttemptsBegun> for ExecutorActor {
    type Result = ();

    fn handle(&mut self, AttemptsBegun(begun): AttemptsBegun, _: &mut Self::Context) {
        for BegunAtOnce { attempt, payload, permit } in begun {
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
        if !self.parts.trust.holds() {
            // The schedule has let go of the intent, so this term must not go on as if nothing was.
            self.fail_term("begin", &FencedError::TermOver);
            return slot.over(Over::NotBegun);
        }
        let (asked, seq) = (monotonic(), waiting.seq);
        match self.outbox.begin(waiting).await {
            Ok(Begun::Started { attempt, payload, .. }) => return self.make(attempt, payload, slot).await,
            Ok(Begun::NotDue { due, now }) => {
                self.parts.store_time.observe(asked, now);
                return slot.over(Over::NotBefore(due));
            }
            Ok(Begun::Paused) => return slot.over(Over::Paused),
            Ok(Begun::Ended(_) | Begun::Stale) => {}
            Err(FencedError::Store(StoreError::Unexpected(what))) => {
                // This intent alone cannot be begun; nothing was written, the others go on.
                log::error!("attempt_not_begun intent_seq={} store_error={what:?}", seq.0);
            }
            Err(error) => self.fail_term("begin", &error),
        }
        slot.over(Over::NotBegun);
    }

    async fn make(&self, mut attempt: OpenAttempt, payload: Bytes, slot: Slot) {
        attempt.job = JobFacts::of_payload(&attempt.intent_id, &payload).map(Arc::new);
        let calling = self.calls.enter(&attempt.contract.gateway_url).await;
        // Last, so that nothing can hold it up after its turn.
        let target = &attempt.contract.target;
        let next_turn = match self.parts.registry.get().limits(target).rate {
            Some(rate) => Some(self.turns.wait(target, rate).await),
            None => None,
        };
        let next_turn = next_turn.map(|span| self.parts.store_time.now() + span);
        if !self.parts.trust.holds() {
            // Written down but never sent, because the answer came too late. The next term closes it.
            self.fail_term("begin", &FencedError::TermOver);
            return slot.over(Over::NotBegun);
        }
        let called = monotonic();
        let parent = attempt.trace;
        let span = parent.and_then(|trace| self.parts.tracer.begin(trace));
        attempt.trace = span.or(parent);
        let outcome = self.parts.gateway.attempt(&attempt, payload).await;
        drop(calling);
        let took = monotonic().duration_since(called);
        let finished_at = self.parts.store_time.now().max(attempt.started_at);
        if let (Some(parent), Some(context)) = (parent, span) {
            self.parts.tracer.record(span_of(&attempt, &outcome, parent, context, finished_at));
        }
        let hold_until = outcome.retry_after().map(|span| finished_at + span.min(LONGEST_HOLD));
        if let Some(until) = hold_until {
            log::warn!("gateway_on_hold gateway={} until={until}", attempt.contract.gateway_url);
        }
        let recording = self.record(Arc::new(decided(attempt, outcome, finished_at)));
        // The gateway is done with it; writing that down takes no slot.
        slot.over(Over::Called(Call { took, next_turn, hold_until }));
        recording.await;
    }

    /// Records an outcome. The call was made, so its result is worth some patience: as long as
    /// the term may last, a store that fails is asked again, which it can be without harm.
    async fn record(&self, finish: Arc<FinishAttempt>) {
        const PAUSE: Duration = Duration::from_millis(250);
        const TRIES: u32 = 60; // 15 s of pauses: the default duration of a lease
        let attempt = &finish.attempt;
        for _ in 0..TRIES {
            match self.outbox.finish(Arc::clone(&finish)).await {
                Ok(_) => {
                    log::debug!(
                        "attempt_finished intent_id={:?} attempt={} outcome={} decision={:?}",
                        attempt.intent_id,
                        attempt.attempt_number,
                        finish.outcome.kind(),
                        finish.decision
                    );
                    return;
                }
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
        self.parts.leader.do_send(TermFailed::new(&self.parts.term, during, error));
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
            let ExecutorParts { leader, term, .. } = &self.attempts.parts;
            leader.do_send(TermFailed::in_doubt(term, "an attempt died"));
        }
        let how = self.how.unwrap_or(Over::NotBegun);
        if let (Some(mut place), Over::Called(call)) = (self.place.take(), how) {
            place.called(call);
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
crate::supervise::crash_on_request!(ExecutorActor);
