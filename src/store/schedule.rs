//! What the leader reads to schedule attempts: a first snapshot, then changes since a cursor.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::domain::intent::TargetName;
use crate::domain::schedule::{LanePage, LoadedPage, Waiting};
use crate::domain::time::Timestamp;

/// How far the leader has seen the changes of the store; opaque outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCursor {
    pub last_modified_at: Timestamp,
    pub intent_id: String,
}

#[derive(Clone, Debug)]
pub struct ScheduleSnapshot {
    pub now: Timestamp,
    /// Changes after this moment are reported by [`Store::refresh_schedule`].
    pub cursor: ChangeCursor,
    pub lanes: Vec<LoadedPage>,
    /// Targets that nothing may begin for.
    pub paused: BTreeSet<TargetName>,
}

#[derive(Clone, Debug)]
pub struct RefreshRequest {
    pub cursor: ChangeCursor,
    /// At most this many changes in one answer.
    pub limit: usize,
    pub pages: Vec<LanePage>,
}

#[derive(Clone, Debug)]
pub struct Refresh {
    pub now: Timestamp,
    pub cursor: ChangeCursor,
    /// Every intent that began to wait after the request's cursor, up to the limit.
    pub changed: Vec<Waiting>,
    /// The limit was reached: ask again at once.
    pub more: bool,
    pub pages: Vec<LoadedPage>,
    /// Some waiting intent is past its deadline.
    pub overdue: bool,
    /// Targets that nothing may begin for.
    pub paused: BTreeSet<TargetName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Intents that wait for an attempt.
    pub waiting: u64,
    /// Webhook events that are owed.
    pub webhooks: u64,
    /// How long the oldest of those has been owed.
    pub oldest_webhook: Option<Duration>,
}
