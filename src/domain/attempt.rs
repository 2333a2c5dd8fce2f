//! One attempt to deliver an intent: while it is open, when it is finished, and as the audit log keeps it.

use std::sync::Arc;

use super::contract::Contract;
use super::intent::{IntentId, IntentSeq};
use super::job::JobFacts;
use super::outcome::Outcome;
use super::policy::Decision;
use super::time::Timestamp;
use super::trace::TraceContext;

/// An attempt that was written down as begun and not yet as finished.
#[derive(Clone, Debug)]
pub struct OpenAttempt {
    pub seq: IntentSeq,
    pub intent_id: IntentId,
    pub contract: Arc<Contract>,
    pub created_at: Timestamp,
    pub attempt_number: u32,
    pub lease_epoch: i64,
    pub started_at: Timestamp,
    /// Not known of attempts that an earlier term left open.
    pub trace: Option<TraceContext>,
    /// Of a job, for the log. Stores leave it empty; the executor reads it from the payload.
    pub job: Option<Arc<JobFacts>>,
}

/// How an open attempt ended and what that makes of its intent.
#[derive(Clone, Debug)]
pub struct FinishAttempt {
    pub attempt: OpenAttempt,
    pub finished_at: Timestamp,
    pub outcome: Outcome,
    pub decision: Decision,
}

/// Takes an open attempt back that was never sent: the intent waits again until `due`, and the attempt's number is the
/// next one once more. It leaves no audit row.
#[derive(Clone, Copy, Debug)]
pub struct PostponeAttempt {
    pub seq: IntentSeq,
    pub attempt_number: u32,
    pub due: Timestamp,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub attempt_number: u32,
    /// The term that began it.
    pub lease_epoch: i64,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub outcome: Outcome,
}
