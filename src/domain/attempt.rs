//! One attempt to send an intent to its gateway: while it is open, when it is finished, and as an audit row.

use std::sync::Arc;

use super::contract::Contract;
use super::intent::{ExhaustedReason, IntentId, IntentSeq};
use super::job::JobFacts;
use super::outcome::Outcome;
use super::policy::Decision;
use super::time::Timestamp;
use super::trace::TraceContext;

/// An attempt whose start is stored and whose outcome is not stored yet.
#[derive(Clone, Debug)]
pub struct OpenAttempt {
    pub seq: IntentSeq,
    pub intent_id: IntentId,
    pub contract: Arc<Contract>,
    /// From when the contract of the intent counts: see [`Intent::begins_at`](super::intent::Intent::begins_at).
    pub begins_at: Timestamp,
    pub attempt_number: u32,
    pub lease_epoch: i64,
    pub started_at: Timestamp,
    /// The `Idempotency-Key` of the gateway call, if it is not the id of the intent: the id of the first intent of a chain of
    /// redrives.
    pub idempotency_key: Option<IntentId>,
    /// The trace context of the intent; `None` for attempts that an earlier term left open.
    pub trace: Option<TraceContext>,
    /// If the intent is a job: its names, for log lines. Stores leave it empty; the executor reads it from the payload.
    pub job: Option<Arc<JobFacts>>,
}

/// The outcome of an open attempt, and the decision about its intent.
#[derive(Clone, Debug)]
pub struct FinishAttempt {
    pub attempt: OpenAttempt,
    pub finished_at: Timestamp,
    pub outcome: Outcome,
    pub decision: Decision,
}

impl FinishAttempt {
    /// Whether policy lets the intent wait for another attempt.
    pub fn retries(&self) -> bool {
        matches!(self.decision, Decision::RetryAt(_))
    }

    /// The same attempt of an intent that was to be cancelled after it: the intent ends in place of a retry.
    pub fn cancelled(&self) -> Self {
        Self { decision: Decision::Exhaust(ExhaustedReason::Cancelled), ..self.clone() }
    }
}

/// Undoes the start of an open attempt that was never sent. The intent waits again until `due`, and its next attempt gets
/// the same number. There is no audit row.
#[derive(Clone, Copy, Debug)]
pub struct PostponeAttempt {
    pub seq: IntentSeq,
    pub attempt_number: u32,
    pub due: Timestamp,
}

/// A finished attempt, as the audit table stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub attempt_number: u32,
    /// The epoch of the term that started it.
    pub lease_epoch: i64,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub outcome: Outcome,
}
