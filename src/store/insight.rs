//! What operators are told: one intent in full, how things stand, how targets are doing.

use std::time::Duration;

use super::History;
use crate::domain::contract::Contract;
use crate::domain::intent::{IntentId, Status, TargetName};
use crate::domain::time::Timestamp;

/// A history with what it was done under and what comes next.
#[derive(Clone, Debug)]
pub struct IntentDetail {
    pub now: Timestamp,
    pub history: History,
    pub contract: Contract,
    /// Set while it waits for an attempt.
    pub next_attempt_at: Option<Timestamp>,
    /// Set while an attempt is under way: when that began.
    pub open_since: Option<Timestamp>,
    /// Set while its target is paused: since when.
    pub paused_at: Option<Timestamp>,
}

/// How things stand.
#[derive(Clone, Debug)]
pub struct Overview {
    pub now: Timestamp,
    /// Who leads, or was the last to; none if nobody ever has.
    pub leader: Option<LeaderRow>,
    pub waiting: u64,
    pub in_flight: u64,
    /// The one that was submitted first among those that have not ended.
    pub oldest_pending: Option<(IntentId, Timestamp)>,
    pub webhooks: u64,
    pub oldest_webhook: Option<Duration>,
    /// How many intents ended in which way, in each minute of the last [`CHART_MINUTES`] in which any did.
    pub ended: Vec<EndedInMinute>,
    pub paused: Vec<TargetName>,
    /// What attempts did not lead to acceptance in the last [`RECENT_MINUTES`], the most frequent first.
    pub failing: Vec<Failing>,
}

/// How far back the charts go.
pub const CHART_MINUTES: i64 = 60;
/// What is recent.
pub const RECENT_MINUTES: i64 = 10;
/// How many kinds of failure an overview names.
pub const MOST_FAILING: usize = 20;
/// For how many minutes it is kept what became of attempts: a day and an hour.
pub const KEPT_MINUTES: i64 = 25 * 60;
pub const MINUTE_MICROS: i64 = 60_000_000;

/// The minute that a moment is in, since 1970.
pub fn minute_of(moment: Timestamp) -> i64 {
    moment.micros().div_euclid(MINUTE_MICROS)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedInMinute {
    /// Since 1970.
    pub minute: i64,
    pub status: Status,
    pub intents: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    pub target: TargetName,
    /// `rejected` or `error`.
    pub outcome: String,
    pub cause: String,
    pub attempts: u64,
}

/// A target in the last [`RECENT_MINUTES`], and what waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHealth {
    pub target: TargetName,
    pub waiting: u64,
    pub accepted: u64,
    pub rejected: u64,
    pub errors: u64,
    /// How long attempts took on average.
    pub mean: Option<Duration>,
}

impl TargetHealth {
    pub fn of(target: TargetName) -> Self {
        Self { target, waiting: 0, accepted: 0, rejected: 0, errors: 0, mean: None }
    }

    /// Adds attempts that ended alike, and took so long together.
    pub fn add(&mut self, outcome: &str, attempts: u64, micros: u64) {
        let before = self.accepted + self.rejected + self.errors;
        match outcome {
            "accepted" => self.accepted += attempts,
            "rejected" => self.rejected += attempts,
            "error" => self.errors += attempts,
            _ => return,
        }
        let earlier = self.mean.map_or(0, |mean| u64::try_from(mean.as_micros()).unwrap_or(0).saturating_mul(before));
        let all = before + attempts;
        self.mean = (earlier + micros).checked_div(all).map(Duration::from_micros);
    }
}

/// The lease as it stands in the store.
#[derive(Clone, Debug)]
pub struct LeaderRow {
    pub holder_id: String,
    pub epoch: i64,
    pub acquired_at: Timestamp,
    pub expires_at: Timestamp,
}
