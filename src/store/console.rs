//! Answers to the queries of the console: one intent in full, the overview, and the health of targets.

use std::collections::BTreeMap;
use std::time::Duration;

use super::History;
use crate::domain::contract::Contract;
use crate::domain::intent::{IntentId, Status, TargetName};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;

/// One intent with everything that the console shows about it.
#[derive(Clone, Debug)]
pub struct IntentDetail {
    pub now: Timestamp,
    pub history: History,
    pub contract: Contract,
    /// Set while the intent waits for an attempt.
    pub next_attempt_at: Option<Timestamp>,
    /// When the attempt in flight started, if there is one.
    pub open_since: Option<Timestamp>,
    /// When its target was paused, if it is paused.
    pub paused_at: Option<Timestamp>,
    /// The trace of the request that submitted it, if the request had one.
    pub trace: Option<TraceContext>,
    /// The holder ids of the instances that made its attempts, by the epoch of the term. Terms of versions that did not record
    /// them are missing.
    pub holders: BTreeMap<i64, String>,
}

/// The counts and charts of the console's overview.
#[derive(Clone, Debug)]
pub struct Overview {
    pub now: Timestamp,
    /// The last lease; `None` if there never was one.
    pub leader: Option<LeaderRow>,
    /// Intents that wait for an attempt.
    pub waiting: u64,
    /// Intents whose attempt is in flight.
    pub in_flight: u64,
    /// The oldest intent that has not ended, and when it was submitted.
    pub oldest_pending: Option<(IntentId, Timestamp)>,
    /// Pending webhook events.
    pub webhooks: u64,
    /// How long the oldest of them has been pending.
    pub oldest_webhook: Option<Duration>,
    /// The earliest due time of an intent that waits and whose target is not paused.
    pub first_due: Option<(TargetName, Timestamp)>,
    /// The results of every target that was used in the last [`RECENT_MINUTES`], without what waits.
    pub recent: Vec<TargetHealth>,
    /// Why attempts of the last [`RECENT_MINUTES`] were not accepted, the most frequent first.
    pub failing: Vec<Failing>,
}

/// How many minutes count as recent.
pub const RECENT_MINUTES: i64 = 10;
/// How many kinds of failure an overview lists at most.
pub const MOST_FAILING: usize = 20;
/// For how many minutes the counts of attempts are kept: a day and an hour.
pub const KEPT_MINUTES: i64 = 25 * 60;
/// Microseconds of a minute.
pub const MINUTE_MICROS: i64 = 60_000_000;

/// Returns the number of minutes from 1970 to this moment.
pub fn minute_of(moment: Timestamp) -> i64 {
    moment.micros().div_euclid(MINUTE_MICROS)
}

/// How many intents ended with one status in one minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedInMinute {
    /// Minutes since 1970.
    pub minute: i64,
    pub status: Status,
    pub intents: u64,
}

/// How many attempts of a target failed for one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    pub target: TargetName,
    /// `rejected` or `error`.
    pub outcome: String,
    pub cause: String,
    pub attempts: u64,
}

/// The results of a target in the last [`RECENT_MINUTES`], and how many of its intents wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHealth {
    pub target: TargetName,
    pub waiting: u64,
    pub accepted: u64,
    pub rejected: u64,
    pub errors: u64,
    /// The average duration of its attempts.
    pub mean: Option<Duration>,
}

impl TargetHealth {
    /// Starts with no attempts.
    pub fn of(target: TargetName) -> Self {
        Self { target, waiting: 0, accepted: 0, rejected: 0, errors: 0, mean: None }
    }

    /// Adds attempts with the same outcome, which took `micros` together.
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

/// The lease as it is stored.
#[derive(Clone, Debug)]
pub struct LeaderRow {
    pub holder_id: String,
    pub epoch: i64,
    pub acquired_at: Timestamp,
    pub expires_at: Timestamp,
}
