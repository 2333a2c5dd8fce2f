//! Failed intents by target and cause, and the conditions of lists that no index supports.

use std::collections::HashMap;

use super::MINUTE_MICROS;
use crate::domain::failure::{Ending, cause_of_failure};
use crate::domain::intent::{Intent, IntentId, TargetName};
use crate::domain::redrive::FailedStatus;
use crate::domain::time::Timestamp;

/// Into how many slices of equal length the period of a report is divided, to show the trend.
pub const TREND_SLICES: usize = 12;
/// How many of the newest failures of each status are examined to find an example of each group.
pub(super) const SAMPLED: usize = 400;
/// How many groups a report lists at most, the largest first.
const MOST_GROUPS: usize = 200;

/// Which failures to report.
#[derive(Clone, Debug, Default)]
pub struct FailureQuery {
    /// How many minutes back. Counts are kept for [`KEPT_MINUTES`](super::KEPT_MINUTES).
    pub minutes: i64,
    /// Only failures of this target.
    pub target: Option<TargetName>,
}

impl FailureQuery {
    /// The first minute of the period at the time `now`, counted from 1970. The period ends with the current minute.
    pub(super) fn first_minute(&self, now: Timestamp) -> i64 {
        super::minute_of(now) - self.minutes.max(1) + 1
    }

    /// How many minutes a slice of the trend has.
    pub(super) fn slice_minutes(&self) -> i64 {
        let slices = i64::try_from(TREND_SLICES).unwrap_or(i64::MAX);
        (self.minutes.max(1) + slices - 1) / slices
    }
}

/// The failures of a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureReport {
    pub now: Timestamp,
    /// The beginning of the period.
    pub since: Timestamp,
    /// The groups with the most failures, the largest first.
    pub groups: Vec<FailureGroup>,
    /// How many further groups there are.
    pub more_groups: usize,
}

/// The failures of one target with one status and one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureGroup {
    pub target: TargetName,
    pub status: FailedStatus,
    /// See [`cause_of_failure`]. Empty for intents that ended while they waited under an older version.
    pub cause: String,
    pub intents: u64,
    /// The minute of the first failure in the period, as its beginning.
    pub first: Timestamp,
    /// The minute of the last failure, as its beginning.
    pub last: Timestamp,
    /// How many failed in each slice of the period, the oldest slice first.
    pub trend: [u64; TREND_SLICES],
    /// A recent intent of the group, if it is among the newest failures.
    pub sample: Option<IntentId>,
}

/// Failures of one group in one slice of the period.
pub(super) struct Counted<'a, K> {
    pub target: K,
    pub status: FailedStatus,
    pub cause: &'a str,
    pub slice: i64,
    pub first_minute: i64,
    pub last_minute: i64,
    pub intents: u64,
}

struct Sum {
    intents: u64,
    first: i64,
    last: i64,
    trend: [u64; TREND_SLICES],
}

/// Adds up failures into groups. `K` is how a store names targets while it counts.
pub(super) struct FailureCounter<K> {
    groups: HashMap<(K, FailedStatus), HashMap<String, Sum>>,
}

impl<K: std::hash::Hash + Eq> FailureCounter<K> {
    pub(super) fn new() -> Self {
        Self { groups: HashMap::new() }
    }

    pub(super) fn add(&mut self, counted: Counted<'_, K>) {
        let Counted { target, status, cause, slice, first_minute, last_minute, intents } = counted;
        let causes = self.groups.entry((target, status)).or_default();
        if !causes.contains_key(cause) {
            let sum = Sum { intents: 0, first: first_minute, last: last_minute, trend: [0; TREND_SLICES] };
            causes.insert(cause.to_owned(), sum);
        }
        let Some(sum) = causes.get_mut(cause) else { return };
        sum.intents += intents;
        sum.first = sum.first.min(first_minute);
        sum.last = sum.last.max(last_minute);
        if let Some(count) = usize::try_from(slice).ok().and_then(|slice| sum.trend.get_mut(slice)) {
            *count += intents;
        }
    }

    /// Ends the report. `name` returns the name of a target; groups of targets without one are left out. `failed` has the
    /// newest failures with their causes.
    pub(super) fn report(
        self,
        query: &FailureQuery,
        now: Timestamp,
        name: impl Fn(&K) -> Option<TargetName>,
        failed: &[(Intent, String)],
    ) -> FailureReport {
        let start_of = |minute: i64| Timestamp::from_micros(minute.saturating_mul(MINUTE_MICROS));
        // Contracts of a target share its groups.
        let mut groups: HashMap<(TargetName, FailedStatus, String), Sum> = HashMap::new();
        for ((target, status), causes) in self.groups {
            let Some(target) = name(&target) else { continue };
            for (cause, sum) in causes {
                let Some(other) = groups.get_mut(&(target.clone(), status, cause.clone())) else {
                    groups.insert((target.clone(), status, cause), sum);
                    continue;
                };
                other.intents += sum.intents;
                other.first = other.first.min(sum.first);
                other.last = other.last.max(sum.last);
                other.trend.iter_mut().zip(sum.trend).for_each(|(count, more)| *count += more);
            }
        }
        let group = |((target, status, cause), sum): ((TargetName, FailedStatus, String), Sum)| FailureGroup {
            sample: failed.iter().find_map(|(intent, own)| {
                let same =
                    intent.target == target && intent.state.status().as_str() == status.as_str() && *own == cause;
                same.then(|| intent.id.clone())
            }),
            target,
            status,
            cause,
            intents: sum.intents,
            first: start_of(sum.first),
            last: start_of(sum.last),
            trend: sum.trend,
        };
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups
            .sort_by(|(key, sum), (other_key, other)| other.intents.cmp(&sum.intents).then_with(|| key.cmp(other_key)));
        let more_groups = groups.len().saturating_sub(MOST_GROUPS);
        groups.truncate(MOST_GROUPS);
        FailureReport {
            now,
            since: start_of(query.first_minute(now)),
            groups: groups.into_iter().map(group).collect(),
            more_groups,
        }
    }
}

/// Conditions of a list that no index supports. Each page examines a bounded number of intents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examined {
    /// Only failed intents with this cause: see [`cause_of_failure`].
    pub cause: Option<String>,
    /// Only intents with at least this many attempts.
    pub min_attempts: Option<u32>,
    /// Only intents that ended at or after this moment.
    pub ended_since: Option<Timestamp>,
    /// Only intents that ended before this moment.
    pub ended_before: Option<Timestamp>,
}

impl Examined {
    /// Whether all intents meet the conditions.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether an intent meets the conditions. `ending` is called only if it matters.
    pub(super) fn admits<E>(
        &self,
        intent: &Intent,
        ending: impl FnOnce() -> Result<Option<Ending>, E>,
    ) -> Result<bool, E> {
        let ended = intent.state.completed_at();
        let too_early = self.ended_since.is_some_and(|since| ended.is_none_or(|at| at < since));
        let too_late = self.ended_before.is_some_and(|before| ended.is_none_or(|at| at >= before));
        let too_few = self.min_attempts.is_some_and(|min| intent.attempt_count < min);
        if too_early || too_late || too_few {
            return Ok(false);
        }
        let Some(cause) = &self.cause else { return Ok(true) };
        let ending = if intent.state.exhausted_reason().is_some() { ending()? } else { None };
        Ok(cause_of_failure(&intent.state, ending.as_ref()).as_ref() == Some(cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_group_are_added_up_over_contracts_and_slices() {
        let query = FailureQuery { minutes: 60, target: None };
        let now = Timestamp::from_micros(100 * MINUTE_MICROS + 1);
        assert_eq!((query.first_minute(now), query.slice_minutes()), (41, 5));
        let mut counter = FailureCounter::new();
        let mut add = |target, cause, slice, minute, intents| {
            let status = FailedStatus::Exhausted;
            counter.add(Counted { target, status, cause, slice, first_minute: minute, last_minute: minute, intents });
        };
        add(1, "gateway answered HTTP 500", 0, 41, 2);
        add(2, "gateway answered HTTP 500", 11, 100, 3);
        add(1, "deadline_exceeded", 3, 57, 1);
        add(9, "of a contract without a name", 3, 57, 1);
        let name = |contract: &i32| (*contract < 9).then(|| TargetName::parse("sms").unwrap());
        let report = counter.report(&query, now, name, &[]);
        let shown: Vec<_> = report.groups.iter().map(|group| (group.cause.as_str(), group.intents)).collect();
        assert_eq!(shown, [("gateway answered HTTP 500", 5), ("deadline_exceeded", 1)]);
        let group = &report.groups[0];
        assert_eq!((group.trend[0], group.trend[11]), (2, 3));
        let minute = |number: i64| Timestamp::from_micros(number * MINUTE_MICROS);
        assert_eq!((group.first, group.last, report.since), (minute(41), minute(100), minute(41)));
    }
}
