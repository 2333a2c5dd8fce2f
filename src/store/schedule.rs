//! What the leader reads to schedule attempts: a first snapshot, then changes since a cursor.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::domain::intent::TargetName;
use crate::domain::schedule::{LanePage, LoadedPage, Waiting};
use crate::domain::time::Timestamp;

/// Up to where the leader has read the changes of the store. Only stores look into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCursor {
    pub last_modified_at: Timestamp,
    pub intent_id: String,
}

/// What a new term starts its schedule from.
#[derive(Clone, Debug)]
pub struct ScheduleSnapshot {
    pub now: Timestamp,
    /// Where the first [`RefreshRequest`] continues.
    pub cursor: ChangeCursor,
    /// The first page of every lane.
    pub lanes: Vec<LoadedPage>,
    /// Targets of which no attempt may start.
    pub paused: BTreeSet<TargetName>,
}

/// Asks for changes since the last refresh, and for further pages of lanes.
#[derive(Clone, Debug)]
pub struct RefreshRequest {
    pub cursor: ChangeCursor,
    /// How many changes to return at most.
    pub limit: usize,
    pub pages: Vec<LanePage>,
}

/// The answer to a [`RefreshRequest`], as of one moment.
#[derive(Clone, Debug)]
pub struct Refresh {
    pub now: Timestamp,
    pub cursor: ChangeCursor,
    /// The intents that started to wait after the request's cursor, up to the limit.
    pub changed: Vec<Waiting>,
    /// Whether the limit was reached. The caller should then refresh again without a pause.
    pub more: bool,
    pub pages: Vec<LoadedPage>,
    /// Whether a waiting intent is past its deadline.
    pub overdue: bool,
    /// Targets of which no attempt may start.
    pub paused: BTreeSet<TargetName>,
}

/// How much waits in the whole store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Intents that wait for an attempt, by target. A target with none may be missing; one with several contracts may be
    /// there several times.
    pub waiting: Vec<(TargetName, u64)>,
    /// Pending webhook events.
    pub webhooks: u64,
    /// How long the oldest of them has been pending.
    pub oldest_webhook: Option<Duration>,
}

impl Backlog {
    /// The number of intents that wait for an attempt, over all targets.
    pub fn all_waiting(&self) -> u64 {
        self.waiting.iter().map(|(_, count)| count).sum()
    }
}
