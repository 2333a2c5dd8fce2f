//! Checks the promises from outside: against what gateways, receivers and clients saw, and against the rows of the
//! store.
//!
//! This file checks every call when it is made. [`super::rows`] checks every change of an intent when it is committed,
//! and [`super::end`] checks everything once more at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::OptionalExtension;

use super::rows::{Changes, Row};
use super::world::World;
use super::{cancels, jobs, redrives};
use crate::domain::contract::{Contract, Policy};
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::lease::Term;
use crate::domain::outcome::Outcome;
use crate::store::OpenAttempt;

/// What the service promises. A violation names the promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    AnsweredIntentExists,
    OneIdOneIntent,
    AttemptNumberOnce,
    OneShotOnce,
    CallWasRecorded,
    NoCallAfterDeadline,
    NoCallAfterTerm,
    NoStartWhilePaused,
    PayloadUnchanged,
    OneLeaseAtATime,
    WritesAreFenced,
    TerminalForEver,
    LegalChange,
    AcceptedInTime,
    RetryBeforeDeadline,
    NumbersWithoutGaps,
    HistoryComplete,
    NoNeedlessInterruption,
    EventForEveryEnd,
    EventDelivered,
    EverythingEnds,
    BoundedMemory,
    BoundedCalls,
    NoPanic,
    CancelIsFinal,
    NotBeforeKept,
    RedriveKeepsRules,
    RedrivenOnce,
    RedriveComplete,
    KeyOfFirstIntent,
    OneKeyOneJob,
    OneKeyOneMessage,
    OneContact,
    FeedComplete,
}

/// What gateways, receivers and clients saw, and the intents in the store.
#[derive(Default)]
pub(super) struct Ledgers {
    /// Calls that reached a gateway, by the number of the intent and of the attempt.
    pub(super) calls: BTreeMap<(i64, u32), Call>,
    /// How many calls are in progress, by epoch and gateway.
    pub(super) under_way: BTreeMap<(i64, String), usize>,
    /// Events that a receiver confirmed, by the id of the intent.
    pub(super) delivered: BTreeSet<String>,
    /// Intents that the service confirmed to clients, by number.
    pub(super) answered: BTreeMap<i64, Answered>,
    /// How often the service told a client that it created an intent, by id.
    pub(super) created: BTreeMap<String, usize>,
    /// Cancels that the service confirmed, by the number of the intent.
    pub(super) cancelled: BTreeMap<i64, cancels::Confirmed>,
    /// Redrives that were planned, by id.
    pub(super) redrives: BTreeMap<String, redrives::Planned>,
    /// Jobs that the service confirmed, by key.
    pub(super) jobs: BTreeMap<usize, jobs::Confirmed>,
    pub(super) inbox: InboxLedger,
    /// Intents as the last commit left them.
    pub(super) changes: Changes,
}

/// Inbox submissions that the service confirmed.
#[derive(Default)]
pub(super) struct InboxLedger {
    pub(super) received: BTreeSet<String>,
    /// The ids of submissions with an idempotency key.
    pub(super) by_key: BTreeMap<usize, InboxSubmissionId>,
}

/// A call that reached a gateway.
pub(super) struct Call {
    /// The outcome that the instance got, and the store's time at that moment.
    pub(super) outcome: Option<(Outcome, i64)>,
}

/// Counts a call as in progress until it is dropped.
pub(super) struct CallUnderWay {
    world: Arc<World>,
    key: (i64, String),
}

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        if let Some(calls) = self.world.state().ledgers.under_way.get_mut(&self.key) {
            *calls -= 1;
        }
    }
}

/// What a client was told about an intent.
pub(super) struct Answered {
    pub(super) id: String,
    pub(super) target: String,
    pub(super) payload: String,
    /// The terminal status in the answer, if it had one.
    pub(super) ended: Option<&'static str>,
}

impl World {
    /// Counts a check, and records a violation unless `kept`.
    pub(super) fn check(&self, promise: Promise, kept: bool, how: impl FnOnce() -> String) {
        let broken = {
            let mut state = self.state();
            *state.checked.entry(promise).or_default() += 1;
            !kept && state.violation.is_none()
        };
        if broken {
            let how = how();
            self.log(format_args!("VIOLATION {promise:?}: {how}"));
            self.state().violation = Some((promise, how));
        }
    }

    /// Reads the row of an intent.
    fn row(&self, seq: i64) -> Option<Row> {
        self.store.inspect(|connection| Row::read(connection, seq))
    }

    /// Checks a call when it reaches a gateway.
    pub(super) fn check_call(self: &Arc<Self>, attempt: &OpenAttempt, payload: &Bytes) -> CallUnderWay {
        let (seq, number) = (attempt.seq.0, attempt.attempt_number);
        let name = format!("{:?} attempt {number}", attempt.intent_id);
        let (fresh, only) = {
            let mut state = self.state();
            let only = state.ledgers.calls.range((seq, 0)..(seq + 1, 0)).next().is_none();
            (state.ledgers.calls.insert((seq, number), Call { outcome: None }).is_none(), only)
        };
        self.check_call_after_cancel(seq, number);
        self.check_key(attempt);
        self.check(Promise::AttemptNumberOnce, fresh, || format!("{name} reached the gateway twice"));
        let one_shot = matches!(attempt.contract.policy, Policy::OneShot);
        self.check(Promise::OneShotOnce, only || !one_shot, || format!("{name} is one_shot and was sent again"));
        let (row, now) = (self.row(seq), self.store.now());
        let recorded =
            |row: &Row| self.clock_jumped() || (row.attempts == number && row.open == Some(attempt.lease_epoch));
        self.check(Promise::CallWasRecorded, row.as_ref().is_some_and(recorded), || {
            format!("{name} was sent, and is not recorded as open: {row:?}")
        });
        let deadline = row.as_ref().and_then(|row| row.deadline);
        self.check(Promise::NoCallAfterDeadline, self.clock_jumped() || deadline.is_none_or(|end| now < end), || {
            format!("{name} was sent at {now}, at or after its deadline {deadline:?}")
        });
        let lease = self.lease();
        let holds = lease.is_some_and(|(epoch, expires_at)| epoch == attempt.lease_epoch && expires_at > now);
        self.check(Promise::NoCallAfterTerm, self.clock_jumped() || holds, || {
            format!("{name} was sent at {now} under epoch {}, and the lease is {lease:?}", attempt.lease_epoch)
        });
        let stored = self.store.inspect(|connection| {
            let sql = "SELECT payload FROM submission_payloads WHERE intent_seq = ?1";
            connection.prepare_cached(sql)?.query_row([seq], |row| row.get::<_, Vec<u8>>(0)).optional()
        });
        self.check(Promise::PayloadUnchanged, stored.unwrap().as_deref() == Some(payload), || {
            format!("{name} was sent with another payload: {payload:?}")
        });
        self.enter_call(attempt)
    }

    /// Counts a call as in progress, and checks the limits of calls.
    fn enter_call(self: &Arc<Self>, attempt: &OpenAttempt) -> CallUnderWay {
        let key = (attempt.lease_epoch, attempt.contract.gateway_url.to_string());
        let (of_gateway, of_term) = {
            let mut state = self.state();
            let under_way = &mut state.ledgers.under_way;
            let of_gateway = under_way.entry(key.clone()).or_default();
            *of_gateway += 1;
            let of_gateway = *of_gateway;
            let of_term = under_way.iter().filter(|((epoch, _), _)| *epoch == attempt.lease_epoch);
            (of_gateway, of_term.map(|(_, calls)| calls).sum::<usize>())
        };
        let limits = self.plan.limits;
        let kept = of_gateway <= limits.in_flight_per_gateway && of_term <= limits.in_flight;
        self.check(Promise::BoundedCalls, kept, || format!("{of_gateway} calls at a gateway, {of_term} in all"));
        CallUnderWay { world: Arc::clone(self), key }
    }

    /// Records the outcome that an instance got from a call.
    pub(super) fn record_answer(&self, attempt: &OpenAttempt, outcome: &Outcome) {
        let now = self.store.now();
        self.log(format_args!("{:?} attempt {} got {}", attempt.intent_id, attempt.attempt_number, outcome.kind()));
        let mut state = self.state();
        if let Some(call) = state.ledgers.calls.get_mut(&(attempt.seq.0, attempt.attempt_number)) {
            call.outcome = Some((outcome.clone(), now));
        }
    }

    /// Checks an event when it reaches a receiver.
    pub(super) fn check_event(&self, event: &str, intent: &str, status: &str) {
        // Retention may have deleted the intent since: an instance that was frozen may deliver its event once more.
        let ended = {
            let state = self.state();
            state.ledgers.changes.rows.values().any(|row| row.id == intent && row.status == status)
        };
        self.check(Promise::EventForEveryEnd, status != "pending" && ended, || {
            format!("{event} says that {intent:?} is {status}, which it never was")
        });
    }

    /// Records that a receiver answered.
    pub(super) fn record_delivery(&self, intent: &str, status: u16) {
        if (200..300).contains(&status) {
            self.state().ledgers.delivered.insert(intent.to_owned());
        }
    }

    /// Checks that a write of this term took effect while the term held the lease.
    pub(super) fn check_fence(&self, term: &Term) {
        let sql = "SELECT 1 FROM submission_manager_leases JOIN submission_clock WHERE lease_epoch = ?1 AND expires_at > last_at";
        let holds = self.store.inspect(|connection| connection.prepare_cached(sql)?.exists([term.epoch])).unwrap();
        self.check(Promise::WritesAreFenced, holds, || {
            let (lease, now) = (self.lease(), self.last_commit());
            format!("a write of epoch {} took effect at {now}, and the lease is {lease:?}", term.epoch)
        });
    }

    /// Remembers the state that a call of the store may change.
    pub(super) fn before_call(&self, call: &'static str) {
        if call == "acquire_lease" {
            let lease = self.lease();
            self.state().ledgers.changes.lease = lease;
        }
    }

    /// Checks the changes that a call of the store has made.
    pub(super) fn after_call(&self, call: &'static str) {
        match call {
            "commit" | "submit" | "cancel" => self.check_changes(),
            "work_redrive" => {
                self.check_changes();
                self.check_progress();
            }
            "plan_redrive" => self.check_plans(),
            "acquire_lease" => self.check_lease(),
            _ => {}
        }
    }

    fn check_lease(&self) {
        let before = self.state().ledgers.changes.lease;
        let (Some((before, free_at)), Some((epoch, _))) = (before, self.lease()) else { return };
        let kept = epoch == before || (epoch == before + 1 && free_at <= self.last_commit());
        self.check(Promise::OneLeaseAtATime, kept, || {
            let now = self.last_commit();
            format!("epoch {epoch} began at {now}, and epoch {before} lasted until {free_at}")
        });
    }

    /// The epoch and the end of the lease.
    pub(super) fn lease(&self) -> Option<(i64, i64)> {
        self.store
            .inspect(|connection| {
                let sql = "SELECT lease_epoch, expires_at FROM submission_manager_leases";
                connection.prepare_cached(sql)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .unwrap()
    }

    /// The instance that holds the lease.
    pub(super) fn leader(&self) -> Option<usize> {
        let sql = "SELECT holder_id FROM submission_manager_leases";
        let holder: String = self.store.inspect(|connection| {
            connection.prepare_cached(sql).unwrap().query_row([], |row| row.get(0)).optional().unwrap()
        })?;
        holder.strip_prefix('i')?.split('.').next()?.parse().ok()
    }

    /// The time of the last transaction.
    pub(super) fn last_commit(&self) -> i64 {
        self.store
            .inspect(|connection| {
                let sql = "SELECT last_at FROM submission_clock";
                connection.prepare_cached(sql)?.query_row([], |row| row.get(0))
            })
            .unwrap()
    }

    /// The contract of an intent.
    pub(super) fn contract(&self, id: i64) -> Arc<Contract> {
        if let Some(known) = self.state().ledgers.changes.contracts.get(&id) {
            return Arc::clone(known);
        }
        let json: String = self.store.inspect(|connection| {
            let sql = "SELECT snapshot FROM submission_contracts WHERE contract_id = ?1";
            connection.prepare_cached(sql).unwrap().query_row([id], |row| row.get(0)).unwrap()
        });
        let contract: Arc<Contract> = Arc::new(serde_json::from_str(&json).unwrap());
        self.state().ledgers.changes.contracts.insert(id, Arc::clone(&contract));
        contract
    }

    /// Whether the store's clock jumped during this run. Its time then does not show how long a term or a deadline
    /// lasts.
    pub(super) fn clock_jumped(&self) -> bool {
        self.state().injected.contains_key(&super::faults::Fault::ClockJump)
    }
}
