//! Targets that the store knows, because they have a contract or are paused.

use crate::domain::contract::Contract;
use crate::domain::intent::TargetName;
use crate::domain::time::Timestamp;

/// A target and whether it is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTarget {
    pub name: TargetName,
    /// Set while the target is paused, that is, while no attempt of it starts.
    pub pause: Option<TargetPause>,
}

/// Since when a target is paused, by whom and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPause {
    pub at: Timestamp,
    /// The label of the actor; `None` if an older version paused the target.
    pub by: Option<String>,
    pub reason: Option<String>,
}

/// What a target did in a period, and what waits for it now.
#[derive(Clone, Debug)]
pub struct TargetActivity {
    pub now: Timestamp,
    /// Intents that wait for an attempt.
    pub waiting: u64,
    /// The earliest due time of one of them.
    pub first_due: Option<Timestamp>,
    /// The attempts of each minute of the period in which there were any.
    pub minutes: Vec<TargetMinute>,
    /// The contracts that its intents had, the newest first: at most [`MOST_CONTRACTS`].
    pub contracts: Vec<SeenContract>,
}

/// How many contracts of a target are shown.
pub const MOST_CONTRACTS: usize = 20;

/// The attempts of a target with one outcome in one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetMinute {
    /// Minutes since 1970.
    pub minute: i64,
    /// `accepted`, `rejected` or `error`; `none` for intents that ended without an attempt.
    pub outcome: String,
    pub attempts: u64,
    /// Their total duration in microseconds.
    pub micros: u64,
}

/// A contract that intents of a target had.
#[derive(Clone, Debug)]
pub struct SeenContract {
    pub contract: Contract,
    /// When it was first used; `None` if that was under an older version.
    pub first_used_at: Option<Timestamp>,
    /// Intents under this contract that wait for an attempt.
    pub waiting: u64,
}
