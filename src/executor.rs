//! `ExecutorActor`: makes the attempts of one term.
//!
//! State: its term and what is needed for a call. Receives `RunAttempt` from the scheduler, tells
//! it `AttemptOver` when the slot is free again, and the leader `TermFailed` when a write is
//! refused or in doubt. Each attempt is a task of its own: begin (written down), call, finish
//! (recorded). Attempts under way outlive the actor and record themselves while their term lasts;
//! [`InFlight`] counts them. When the actor dies, the leader ends the term.

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
use crate::core::policy::{self, Decision};
use crate::core::schedule::Waiting;
use crate::core::time::Timestamp;
use crate::gateway::Gateway;
use crate::leader::{Heartbeat, TermFailed};
use crate::metrics::Metrics;
use crate::store::actor::{FencedError, FencedResult};
use crate::store::client::StoreClient;
use crate::store::{Begun, FinishAttempt, OpenAttempt, StoreError};
use crate::supervise::Alive;
use crate::trust::Trust;

/// Begin and make the next attempt of an intent.
#[derive(Message)]
#[rtype(result = "()")]
pub struct RunAttempt {
    pub waiting: Waiting,
    pub report_to: Recipient<AttemptOver>,
    /// Counts from here on, so that no attempt can hide in a mailbox.
    pub count: InFlightCount,
}

/// An attempt given to the executor is over, whatever came of it.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub struct AttemptOver {
    pub waiting: Waiting,
    pub next: Next,
}

/// What the scheduler should know about an intent whose attempt is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// It was not begun: it is due only then, and otherwise as it was.
    NotBefore(Timestamp),
    /// It waits for another attempt; the store knows when.
    Retry,
}

/// What all attempts of a term share.
pub struct Attempts {
    pub term: Term,
    pub trust: Trust,
    pub store: StoreClient,
    pub store_time: StoreTime,
    pub gateway: Rc<dyn Gateway>,
    pub leader: Recipient<TermFailed>,
}

pub struct ExecutorActor {
    attempts: Rc<Attempts>,
    _alive: Alive,
}

impl ExecutorActor {
    pub fn new(attempts: Attempts, alive: Alive) -> Self {
        Self { attempts: Rc::new(attempts), _alive: alive }
    }
}

impl Actor for ExecutorActor {
    type Context = Context<Self>;
}

impl Handler<RunAttempt> for ExecutorActor {
    type Result = ();

    fn handle(&mut self, RunAttempt { waiting, report_to, count }: RunAttempt, _: &mut Self::Context) {
        let attempts = Rc::clone(&self.attempts);
        let slot = Slot {
            over: AttemptOver { waiting, next: Next::Nothing },
            report_to,
            finished: false,
            leader: attempts.leader.clone(),
            term: attempts.term.clone(),
            _count: count,
        };
        actix::spawn(async move {
            let next = attempts.run(waiting).await;
            slot.end(next);
        });
    }
}

impl Attempts {
    /// One attempt from begin to finish.
    async fn run(&self, waiting: Waiting) -> Next {
        if !self.trust.holds() {
            // The schedule has let go of the intent, so this term must not go on as if nothing was.
            self.fail_term("begin", &FencedError::TermOver);
            return Next::Nothing;
        }
        let asked = monotonic();
        match self.store.begin(&self.term, waiting).await {
            Ok(Begun::Started { attempt, payload, .. }) => return self.make(attempt, payload).await,
            Ok(Begun::NotDue { due, now }) => {
                self.store_time.observe(asked, now);
                return Next::NotBefore(due);
            }
            Ok(Begun::Ended(_) | Begun::Stale) => {}
            Err(FencedError::Store(StoreError::Unexpected(what))) => {
                // This intent alone cannot be begun; nothing was written, the others go on.
                log::error!("attempt_not_begun intent_seq={} store_error={what:?}", waiting.seq.0);
            }
            Err(error) => self.fail_term("begin", &error),
        }
        Next::Nothing
    }

    async fn make(&self, attempt: OpenAttempt, payload: Bytes) -> Next {
        if !self.trust.holds() {
            // Written down but never sent, because the answer came too late. The next term closes it.
            self.fail_term("begin", &FencedError::TermOver);
            return Next::Nothing;
        }
        let outcome = self.gateway.attempt(&attempt, payload).await;
        let finished_at = self.store_time.now().max(attempt.started_at);
        let finish = Arc::new(decided(attempt, outcome, finished_at));
        self.record(Arc::clone(&finish)).await;
        if matches!(finish.decision, Decision::RetryAt(_)) { Next::Retry } else { Next::Nothing }
    }

    /// Records an outcome. The call was made, so its result is worth some patience: as long as
    /// the term may last, a store that fails is asked again, which it can be without harm.
    async fn record(&self, finish: Arc<FinishAttempt>) {
        const PAUSE: Duration = Duration::from_millis(250);
        const TRIES: u32 = 60; // 15 s of pauses: the default duration of a lease
        let attempt = &finish.attempt;
        for _ in 0..TRIES {
            match self.store.finish(&self.term, Arc::clone(&finish)).await {
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

    fn fail_term(&self, during: &str, error: &FencedError) {
        self.leader.do_send(TermFailed::new(&self.term, during, error));
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
            store.finish(term, Arc::new(decided(attempt, Outcome::interrupted(), finished_at)))
        });
        progress.beat();
        let mut closed_now = 0;
        for result in futures_util::future::join_all(finishes).await {
            match result {
                Ok(_) => closed_now += 1,
                // That one alone cannot be closed; the store has said so in the log. Others go on.
                Err(FencedError::Store(StoreError::Unexpected(_))) => {}
                Err(error) => return Err(error),
            }
        }
        if closed_now == 0 {
            return Ok(closed);
        }
        closed += closed_now;
    }
}

/// Held by a running attempt. However the attempt ends, the scheduler gets its slot back; if it
/// ended by a panic, nobody knows what it did, so the term ends too.
struct Slot {
    over: AttemptOver,
    report_to: Recipient<AttemptOver>,
    finished: bool,
    leader: Recipient<TermFailed>,
    term: Term,
    _count: InFlightCount,
}

impl Slot {
    /// The attempt ran to its end; without this it died.
    fn end(mut self, next: Next) {
        self.over.next = next;
        self.finished = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.finished {
            self.leader.do_send(TermFailed::in_doubt(&self.term, "an attempt died"));
        }
        self.report_to.do_send(self.over);
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
