//! `ExecutorActor`: makes the attempts of one term.
//!
//! State: its term and what is needed for a call. It receives `RunAttempts` from the scheduler, `FillSlots` when slots were
//! released, and `AttemptsStarted` from the store actor (attempts that were started on insert). It sends `TermFailed` to the
//! leader when a write is refused or in doubt. Each attempt is a task of its own: start (recorded as open), call, finish
//! (recorded). Attempts in flight outlive the actor and record themselves while their term lasts; `InFlight` counts them. When
//! the actor dies, the leader ends the term.

mod call_limiter;
mod rate_limiter;
mod write_batcher;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Context, Handler, Recipient};
use bytes::Bytes;

use crate::config::registry::CurrentRegistry;
use crate::domain::lease::Term;
use crate::domain::limits::AttemptTimeout;
use crate::domain::outcome::{Contact, Outcome};
use crate::domain::policy;
use crate::domain::schedule::{Call, LONGEST_HOLD, Limits, Waiting};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::engine::leader::Heartbeat;
use crate::engine::lease_trust::LeaseTrust;
use crate::engine::messages::{DueAttempt, FillSlots, RunAttempts, TermFailed};
use crate::gateway::Gateway;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::mutated;
use crate::platform::supervision::Alive;
use crate::store::client::StoreClient;
use crate::store::messages::AttemptsStarted;
use crate::store::{
    AttemptEnd, FencedWrites, FinishAttempt, FinishResult, JobFacts, OpenAttempt, PostponeAttempt, SlotGuard,
    StartResult, StartedOnInsert, StoreError,
};
use crate::store::{FencedError, FencedResult};
use crate::telemetry::spans::{Attribute, Kind, Span, Tracer};

use self::call_limiter::CallLimiter;
use self::rate_limiter::{RateLimiter, TooFarAhead};
use self::write_batcher::WriteBatcher;

/// After this pause the scheduler tries again to start an intent that the store refused to start.
const UNEXPECTED_PAUSE: Duration = Duration::from_secs(30);
/// After this pause an attempt is made again for which this machine had no file descriptor, port or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);

/// What the executor of a term needs.
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
    /// How long an attempt may take, unless its target has a timeout of its own.
    pub attempt_timeout: Duration,
}

/// What all attempts of a term share.
struct Attempts {
    deps: ExecutorDeps,
    writes: Rc<WriteBatcher>,
    call_limiter: CallLimiter,
    rate_limiter: RateLimiter,
}

/// Makes the attempts of one term.
pub struct ExecutorActor {
    attempts: Rc<Attempts>,
    _alive: Alive,
}

impl ExecutorActor {
    pub fn new(deps: ExecutorDeps, alive: Alive) -> Self {
        let writes = WriteBatcher::new(deps.store.clone(), deps.term.clone());
        let call_limiter = CallLimiter::new(deps.limits);
        let rate_limiter = RateLimiter::default();
        Self { attempts: Rc::new(Attempts { deps, writes, call_limiter, rate_limiter }), _alive: alive }
    }
}

impl Actor for ExecutorActor {
    type Context = Context<Self>;
}

impl Handler<RunAttempts> for ExecutorActor {
    type Result = ();

    fn handle(&mut self, RunAttempts { due }: RunAttempts, _: &mut Self::Context) {
        run_all(&self.attempts, due);
    }
}

impl Handler<FillSlots> for ExecutorActor {
    type Result = ();

    fn handle(&mut self, FillSlots { source }: FillSlots, _: &mut Self::Context) {
        run_all(&self.attempts, source.next());
    }
}

/// Starts and makes attempts, each in a task of its own.
fn run_all(attempts: &Rc<Attempts>, due: Vec<DueAttempt>) {
    for DueAttempt { waiting, slot, in_flight } in due {
        let attempts = Rc::clone(attempts);
        actix::spawn(async move {
            let _until_recorded = in_flight;
            let watch = PanicWatch::new(&attempts);
            attempts.run(waiting, slot).await;
            watch.finished();
        });
    }
}

impl Handler<AttemptsStarted> for ExecutorActor {
    type Result = ();

    fn handle(&mut self, AttemptsStarted(started): AttemptsStarted, _: &mut Self::Context) {
        for StartedOnInsert { attempt, payload, slot, in_flight } in started {
            let attempts = Rc::clone(&self.attempts);
            actix::spawn(async move {
                let _until_recorded = in_flight;
                let watch = PanicWatch::new(&attempts);
                attempts.make(attempt, payload, slot).await;
                watch.finished();
            });
        }
    }
}

impl Attempts {
    /// Starts an attempt and makes it.
    async fn run(&self, waiting: Waiting, slot: SlotGuard) {
        if !self.deps.trust.holds() {
            self.doubt_term("an attempt was due when the lease was no longer trusted");
            return slot.release(AttemptEnd::NotStarted);
        }
        let (requested_at, seq) = (monotonic(), waiting.seq);
        match self.writes.start(waiting).await {
            Ok(StartResult::Started { attempt, payload, .. }) => return self.make(attempt, payload, slot).await,
            Ok(StartResult::NotDue { due, now }) => {
                self.deps.store_time.observe(requested_at, now);
                return slot.release(AttemptEnd::NotBefore(due));
            }
            Ok(StartResult::Paused) => return slot.release(AttemptEnd::Paused),
            Ok(StartResult::Ended(_) | StartResult::Stale) => {}
            Err(FencedError::Store(StoreError::Unexpected(what))) => {
                // The store refused this intent alone and wrote nothing for it. Other intents are not affected.
                let again_at = self.deps.store_time.now() + UNEXPECTED_PAUSE;
                log::error!("attempt_not_begun intent_seq={} again_at={again_at} store_error={what:?}", seq.0);
                return slot.release(AttemptEnd::HeldBack(again_at));
            }
            Err(error) => self.fail_term("start", &error),
        }
        slot.release(AttemptEnd::NotStarted);
    }

    /// Calls the gateway for an attempt that is recorded as open, and records the outcome. If the attempt must not be sent any
    /// more when its call could be made, it is postponed or finished without a call.
    async fn make(&self, mut attempt: OpenAttempt, payload: Bytes, slot: SlotGuard) {
        attempt.job = JobFacts::of_payload(&attempt.intent_id, &payload).map(Arc::new);
        let target = &attempt.contract.target;
        // The rate limiter comes first: an attempt that waits for it must not count as a call.
        let reservation = match self.deps.registry.get().limits(target).rate {
            None => None,
            Some(rate) => match self.rate_limiter.reserve(target, rate).await {
                Ok(reservation) => Some(reservation),
                Err(TooFarAhead(wait)) => {
                    let due = self.deps.store_time.now() + wait;
                    return self.postpone(attempt, due, Some(due), slot).await;
                }
            },
        };
        let ongoing_call = self.call_limiter.enter(&attempt.contract.gateway_url).await;
        if let Some(reservation) = &reservation {
            reservation.wait().await;
        }
        let now = self.deps.store_time.now();
        if !self.deps.trust.holds() && !mutated!(NoTrustBeforeCall) {
            self.doubt_term("the lease was no longer trusted when a started attempt could be made");
            return self.postpone(attempt, now, None, slot).await;
        }
        if policy::deadline(&attempt.contract, attempt.begins_at).is_some_and(|deadline| now >= deadline)
            && !mutated!(NoDeadlineBeforeCall)
        {
            let outcome = Outcome::not_sent("the deadline passed before the request was sent");
            let recording = self.record(Arc::new(decided(attempt, outcome, now)));
            slot.release(AttemptEnd::Postponed { next_call: None });
            return recording.await;
        }
        let next_call = reservation.map(|reservation| now + reservation.leave());
        let called = monotonic();
        let parent = attempt.trace;
        let span = parent.and_then(|trace| self.deps.tracer.begin(trace));
        attempt.trace = span.or(parent);
        let timeout = self.deps.registry.get().limits(&attempt.contract.target).attempt_timeout;
        let timeout = timeout.map_or(self.deps.attempt_timeout, AttemptTimeout::as_duration);
        #[cfg(test)]
        let again = payload.clone();
        let attempted = self.deps.gateway.attempt(&attempt, payload, timeout).await;
        #[cfg(test)]
        let attempted = match attempted {
            Ok(outcome) if mutated!(CallRepeated) && outcome.contact() == Contact::Unknown => {
                self.deps.gateway.attempt(&attempt, again, timeout).await
            }
            other => other,
        };
        drop(ongoing_call);
        let Ok(outcome) = attempted else {
            // Nothing was sent, because this machine lacks a resource.
            let due = self.deps.store_time.now() + SHORTAGE_PAUSE;
            return self.postpone(attempt, due, next_call, slot).await;
        };
        let took = monotonic().duration_since(called);
        let finished_at = self.deps.store_time.now().max(attempt.started_at);
        if let (Some(parent), Some(context)) = (parent, span) {
            self.deps.tracer.record(span_of(&attempt, &outcome, parent, context, finished_at));
        }
        let hold_until = outcome.retry_after().map(|pause| finished_at + pause.min(LONGEST_HOLD));
        if let Some(until) = hold_until {
            log::warn!("gateway_on_hold gateway={} until={until}", attempt.contract.gateway_url);
        }
        let answered = outcome.contact() == Contact::Answered;
        let recording = self.record(Arc::new(decided(attempt, outcome, finished_at)));
        // The call is complete. Recording its outcome needs no slot.
        slot.release(AttemptEnd::Called(Call { took, answered, next_turn: next_call, hold_until }));
        recording.await;
    }

    /// Returns an attempt that was not sent. Its number is free again, and the intent waits until `due`. `next_call` is
    /// when the rate limit allows the next call of its target, if that is known.
    async fn postpone(&self, attempt: OpenAttempt, due: Timestamp, next_call: Option<Timestamp>, slot: SlotGuard) {
        let postpone = PostponeAttempt { seq: attempt.seq, attempt_number: attempt.attempt_number, due };
        // The slot is released first: the schedule must have removed the intent before it reads it as waiting again.
        slot.release(AttemptEnd::Postponed { next_call });
        self.persist(&attempt, || self.writes.postpone(postpone)).await;
    }

    /// Records the outcome of an attempt.
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

    /// Writes the result of an attempt; returns whether it was written. Nothing but this task knows the outcome, so a failed
    /// write is repeated for about as long as the term may last. Repeating it is harmless.
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
        // The next term closes the attempt as interrupted.
        log::error!("attempt_not_recorded intent_id={:?} attempt={}", attempt.intent_id, attempt.attempt_number);
        false
    }

    fn fail_term(&self, during: &str, error: &FencedError) {
        self.deps.leader.do_send(TermFailed::new(&self.deps.term, during, error));
    }

    /// Reports the term as in doubt. The leader then drains it, and keeps renewing the lease meanwhile, so that the
    /// outcomes of attempts in flight can be recorded.
    fn doubt_term(&self, why: &str) {
        self.deps.leader.do_send(TermFailed::in_doubt(&self.deps.term, why));
    }
}

/// Makes the trace span of an attempt, in the trace of its intent.
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

/// Finishes an open attempt: applies the policy to its outcome.
pub fn decided(attempt: OpenAttempt, outcome: Outcome, finished_at: Timestamp) -> FinishAttempt {
    let decision = policy::decide(&attempt.contract, attempt.begins_at, attempt.attempt_number, &outcome, finished_at);
    #[cfg(test)]
    let decision = mutated_decision(decision, &outcome, finished_at);
    FinishAttempt { attempt, finished_at, outcome, decision }
}

/// Deliberate bugs in decisions.
#[cfg(test)]
fn mutated_decision(decision: policy::Decision, outcome: &Outcome, finished_at: Timestamp) -> policy::Decision {
    use crate::domain::intent::ExhaustedReason::DeadlineExceeded;
    match (&decision, outcome) {
        (policy::Decision::Exhaust(DeadlineExceeded), Outcome::Accepted { .. }) if mutated!(LateAcceptance) => {
            policy::Decision::Accept
        }
        (policy::Decision::Exhaust(DeadlineExceeded), Outcome::Error { .. }) if mutated!(RetryPastDeadline) => {
            policy::Decision::RetryAt(finished_at + Duration::from_secs(5))
        }
        _ => decision,
    }
}

/// How many attempts of earlier terms were closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    pub closed: usize,
    /// The store refused to close at least this many. Each of them failed alone.
    pub refused: usize,
}

/// Closes the attempts that earlier terms left open, as interrupted. The policy decides whether they are repeated.
pub async fn close_interrupted(
    store: &StoreClient,
    term: &Term,
    store_time: &StoreTime,
    progress: &Heartbeat,
) -> FencedResult<Closed> {
    const PAGE: usize = 256;
    let mut closed = 0;
    if mutated!(NothingClosed) {
        return Ok(Closed { closed, refused: 0 });
    }
    loop {
        let open = store.open_attempts_before(term.epoch, PAGE).await?;
        let refused = open.len();
        if open.is_empty() {
            return Ok(Closed { closed, refused });
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
        // An attempt that cannot be closed fails alone, and the store actor has logged it.
        let closed_now = done.finishes.iter().filter(|finished| finished.is_ok()).count();
        if closed_now == 0 {
            return Ok(Closed { closed, refused });
        }
        closed += closed_now;
    }
}

/// Reports the term as in doubt when an attempt panics, because it is then unknown what the attempt has done.
///
/// Dropping it without [`PanicWatch::finished`] sends the report.
struct PanicWatch {
    attempts: Rc<Attempts>,
    finished: bool,
}

impl PanicWatch {
    fn new(attempts: &Rc<Attempts>) -> Self {
        Self { attempts: Rc::clone(attempts), finished: false }
    }

    fn finished(mut self) {
        self.finished = true;
    }
}

impl Drop for PanicWatch {
    fn drop(&mut self) {
        if !self.finished {
            self.attempts.doubt_term("an attempt panicked");
        }
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(ExecutorActor);
