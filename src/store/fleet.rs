//! What the instances of a fleet report about themselves, and the activity of the fleet by minute. For the console; nothing
//! else depends on it.

use std::time::Duration;

use super::EndedInMinute;
use crate::domain::schedule::GatewayId;
use crate::domain::time::Timestamp;

/// Rows of instances that were not seen for this long are deleted. Until then the console shows that they are missing.
pub const FORGET_INSTANCES_AFTER: Duration = Duration::from_secs(60 * 60);
/// From how many of the intents that ended last the times to the end are computed.
pub const TIMED_INTENTS: usize = 1000;

/// What an instance reports about itself every few seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceReport {
    /// Random, made when the process starts.
    pub instance_id: String,
    pub holder_id: String,
    pub version: String,
    /// How many new intents it has stored since it started.
    pub submitted: u64,
    /// Set while it leads.
    pub leading: Option<LeaderReport>,
}

/// What the leader reports besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderReport {
    /// Intents that wait for an attempt.
    pub waiting: u64,
    /// Gateways that are not called before a moment, because they asked for it with `Retry-After`.
    pub holds: Vec<(GatewayId, Timestamp)>,
}

/// An instance that runs, or did so until a short time ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub holder_id: String,
    pub version: String,
    /// When it reported for the first time.
    pub started_at: Timestamp,
    /// When it reported for the last time.
    pub seen_at: Timestamp,
}

/// A gateway that is not called before a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayHold {
    pub gateway: String,
    pub until: Timestamp,
}

/// New and waiting intents in one minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetMinute {
    /// Minutes since 1970.
    pub minute: i64,
    pub submitted: u64,
    /// How many intents waited at the end of the minute; `None` if there was no leader.
    pub waiting: Option<u64>,
}

/// How long recent intents took from the moment they could start to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeToTerminal {
    /// How many intents: at most [`TIMED_INTENTS`].
    pub intents: usize,
    /// When the first of them ended.
    pub since: Timestamp,
    pub p50: Duration,
    pub p95: Duration,
    pub p99: Duration,
}

impl TimeToTerminal {
    /// Computes the percentiles of intents, given as the beginning and the end of each.
    pub(super) fn of(intents: &[(Timestamp, Timestamp)]) -> Option<Self> {
        let since = intents.iter().map(|(_, ended)| *ended).min()?;
        let mut took: Vec<_> = intents.iter().map(|(began, ended)| ended.since(*began)).collect();
        took.sort_unstable();
        // The nearest rank: the smallest duration that is not exceeded by this share of the intents.
        let percentile = |percent: usize| {
            let rank = (took.len() * percent).div_ceil(100);
            took.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Some(Self { intents: took.len(), since, p50: percentile(50), p95: percentile(95), p99: percentile(99) })
    }
}

/// The activity of the fleet in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    pub now: Timestamp,
    /// Instances by their holder ids.
    pub instances: Vec<Instance>,
    /// Gateways on hold at this moment.
    pub holds: Vec<GatewayHold>,
    /// The minutes of the period that have counts.
    pub minutes: Vec<FleetMinute>,
    /// How many intents ended with each status, for each minute in which any did.
    pub ended: Vec<EndedInMinute>,
    /// `None` if no intent has ended.
    pub time_to_terminal: Option<TimeToTerminal>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_durations_of_intents() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let intents: Vec<_> = (1..=100).map(|number| (at(1000), at(1000 + number))).collect();
        let times = TimeToTerminal::of(&intents).unwrap();
        let seconds = [times.p50, times.p95, times.p99].map(|duration| duration.as_secs());
        assert_eq!((seconds, times.since, times.intents), ([50, 95, 99], at(1001), 100));
        let one = TimeToTerminal::of(&intents[6..7]).unwrap();
        assert_eq!((one.p50, one.p99), (Duration::from_secs(7), Duration::from_secs(7)));
        assert_eq!(TimeToTerminal::of(&[]), None);
    }
}
