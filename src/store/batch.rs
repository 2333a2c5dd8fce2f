//! Batched writes: what the store actor collects into one transaction, and what the store answers for each item.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    FencedResult, NewInboxSubmission, NewJob, Received, RedriveLink, StartOnInsert, StartedOnInsert, StoreError,
};
use crate::domain::attempt::{FinishAttempt, OpenAttempt, PostponeAttempt};
use crate::domain::contract::ContractSnapshot;
use crate::domain::intent::{Intent, IntentId, Payload, TargetName};
use crate::domain::lease::Term;
use crate::domain::schedule::Waiting;
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::platform::mutated;

/// Writes that are made in one transaction.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub struct WriteBatch {
    pub submits: Vec<NewIntent>,
    /// New inbox submissions.
    pub received: Vec<NewInboxSubmission>,
    /// If given, the store may start new intents in the transaction that inserts them; see [`StartOnInsert`].
    pub start_on_insert: Option<StartOnInsert>,
    pub fenced: Option<FencedWrites>,
    /// When the caller of each of `submits` stops waiting; empty if no caller does. An item that is not written by then
    /// must not be written any more, because its client has got an error.
    pub submit_deadlines: Vec<Instant>,
    /// The same for each of `received`.
    pub received_deadlines: Vec<Instant>,
    /// When the last of all callers stops waiting.
    pub give_up_at: Option<Instant>,
}

/// Writes of the leader, which take effect only if its term holds the lease.
#[cfg_attr(test, derive(Clone))]
pub struct FencedWrites {
    pub term: Term,
    pub starts: Vec<Waiting>,
    pub finishes: Vec<Arc<FinishAttempt>>,
    pub postpones: Vec<PostponeAttempt>,
    /// Exhaust up to this many waiting intents whose deadline has passed.
    pub expire: Option<usize>,
}

impl WriteBatch {
    pub fn len(&self) -> usize {
        self.submits.len() + self.received.len() + self.fenced.as_ref().map_or(0, FencedWrites::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the batch can start an attempt.
    pub(super) fn may_start(&self) -> bool {
        (self.start_on_insert.is_some() && !self.submits.is_empty())
            || self.fenced.as_ref().is_some_and(|writes| !writes.starts.is_empty())
    }
}

impl FencedWrites {
    pub fn new(term: &Term) -> Self {
        Self { term: term.clone(), starts: Vec::new(), finishes: Vec::new(), postpones: Vec::new(), expire: None }
    }

    pub fn len(&self) -> usize {
        self.starts.len() + self.finishes.len() + self.postpones.len() + usize::from(self.expire.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the writes of another caller of the same term.
    pub fn append(&mut self, other: Self) {
        self.starts.extend(other.starts);
        self.finishes.extend(other.finishes);
        self.postpones.extend(other.postpones);
        self.expire = self.expire.max(other.expire);
    }
}

/// What a store answers to a [`WriteBatch`], in the order of its items.
pub struct BatchResults {
    pub submits: Vec<Result<Submitted, StoreError>>,
    pub received: Vec<Result<Received, StoreError>>,
    /// The submits whose first attempt was started in this transaction.
    pub started: Vec<StartedOnInsert>,
    /// Empty if the batch had no fenced writes; an error if their term was over, and then none of them took effect.
    pub fenced: FencedResult<FencedResults>,
}

/// What a store answers to [`FencedWrites`], in the order of their items.
#[derive(Default)]
pub struct FencedResults {
    pub starts: Vec<Result<StartResult, StoreError>>,
    pub finishes: Vec<Result<FinishResult, StoreError>>,
    pub postpones: Vec<Result<FinishResult, StoreError>>,
    /// Intents that ended without an attempt: their deadline had passed, or they were to be cancelled.
    pub ended: Vec<Intent>,
}

/// An intent to be stored.
#[derive(Clone, Debug)]
pub struct NewIntent {
    pub id: IntentId,
    pub contract: Arc<ContractSnapshot>,
    pub payload: Payload,
    /// When the first attempt is due. A moment in the past means now.
    pub not_before: Option<Timestamp>,
    /// Set if the intent repeats another one.
    pub redrive: Option<RedriveLink>,
    /// The trace context of the submission, if the gateway is to get it.
    pub trace: Option<TraceContext>,
    /// Set for a job. If a job with the same key exists, no intent is created, and the existing one is returned even if
    /// its content differs.
    pub job: Option<NewJob>,
}

/// The result of storing a [`NewIntent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    Created(Intent),
    /// The intent exists with the same target, payload and `notBefore`.
    Existing(Intent),
    Conflict(Conflict),
    /// Nothing was stored: `notBefore` is more than [`MAX_AHEAD`] in the future.
    TooFarAhead,
    /// Nothing was stored: another intent repeats the same one already.
    AlreadyRedriven,
}

/// The latest `notBefore` is this long after the submission.
pub const MAX_AHEAD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The intent exists with another target, payload or `notBefore`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub existing: Intent,
    pub target_differs: bool,
    pub payload_differs: bool,
    pub not_before_differs: bool,
}

/// A stored intent with what idempotency compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredIntent {
    pub intent: Intent,
    pub payload_sha256: [u8; 32],
}

impl StoredIntent {
    /// Compares a further submission of this intent's id.
    pub fn resubmitted(self, target: &TargetName, payload: &Payload, not_before: Option<Timestamp>) -> Submitted {
        let target_differs = self.intent.target != *target;
        let payload_differs = !mutated!(PayloadNotCompared) && self.payload_sha256 != *payload.sha256();
        let not_before_differs = self.intent.not_before != not_before;
        if target_differs || payload_differs || not_before_differs {
            let existing = self.intent;
            Submitted::Conflict(Conflict { existing, target_differs, payload_differs, not_before_differs })
        } else {
            Submitted::Existing(self.intent)
        }
    }
}

/// The result of starting an attempt.
#[derive(Clone, Debug)]
pub enum StartResult {
    /// The attempt is recorded as open; the caller must now make it.
    Started { attempt: OpenAttempt, payload: Bytes, due: Timestamp },
    /// The intent is due only at this moment, by the store's clock.
    NotDue { due: Timestamp, now: Timestamp },
    /// Its target is paused; the intent keeps waiting.
    Paused,
    /// Policy allows no further attempt; the intent was ended instead.
    Ended(Intent),
    /// The intent does not wait at this attempt count any more; nothing was done.
    Stale,
}

/// The result of finishing or postponing an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishResult {
    Recorded,
    /// As [`Self::Recorded`]. Policy would have let the intent wait for another attempt, but it was to be cancelled after this
    /// one, so it ended.
    RecordedAndCancelled,
    /// The attempt was not open, because it was recorded before; nothing was done.
    NotOpen,
}
