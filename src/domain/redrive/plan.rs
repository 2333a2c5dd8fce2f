//! Which intents a redrive has: the filter, the exclusions, and the set in the order in which its intents are redriven.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::intent::{IntentId, IntentSeq, Status, TargetName};
use crate::domain::time::Timestamp;

/// How many ids a filter can name.
pub const MAX_INTENT_IDS: usize = 1000;
/// How many intents a plan can have. A plan holds about 24 bytes of each in memory while it is made.
pub const MAX_PLANNED: usize = 1_000_000;
/// How many ids of the set a plan shows.
const SAMPLE: usize = 10;

/// The intents that an operator chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveFilter {
    /// These intents, if they have failed. At most [`MAX_INTENT_IDS`].
    Ids(Vec<IntentId>),
    /// All failed intents that match.
    Matching(Conditions),
}

/// Conditions that a failed intent has to meet. Those that are absent are met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Empty means both.
    pub statuses: Vec<FailedStatus>,
    pub target: Option<TargetName>,
    /// The `rejectedReason` or `exhaustedReason`.
    pub reason: Option<String>,
    /// The cause: see [`cause_of_failure`](crate::domain::failure::cause_of_failure).
    pub cause: Option<String>,
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
    pub completed_after: Option<Timestamp>,
    pub completed_before: Option<Timestamp>,
}

impl Conditions {
    /// Whether intents with this status can match.
    pub fn wants(&self, status: FailedStatus) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&status)
    }
}

/// A status of intents that can be redriven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailedStatus {
    Rejected,
    Exhausted,
}

impl FailedStatus {
    pub const ALL: [Self; 2] = [Self::Rejected, Self::Exhausted];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => Status::Rejected.as_str(),
            Self::Exhausted => Status::Exhausted.as_str(),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// Why a failed intent that matches the filter is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// Another intent repeats it already.
    AlreadyRedriven,
    /// The registry has no contract for its target, so there is nothing to send it under.
    TargetNotInRegistry,
    /// Its last attempt was interrupted or timed out, so the gateway may have accepted it.
    OutcomeUnknown,
}

/// All exclusions, in the order in which they are checked. An intent counts under the first that applies.
pub const EXCLUSIONS: [Exclusion; 3] =
    [Exclusion::AlreadyRedriven, Exclusion::TargetNotInRegistry, Exclusion::OutcomeUnknown];

impl Exclusion {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AlreadyRedriven => "already_redriven",
            Self::TargetNotInRegistry => "target_not_in_registry",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }
}

/// A failed intent that matches the filter.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub seq: IntentSeq,
    pub target: &'a TargetName,
    pub status: FailedStatus,
    pub reason: &'a str,
    pub completed_at: Timestamp,
    /// Whether another intent repeats it already.
    pub redriven: bool,
}

/// The plan has more than [`MAX_PLANNED`] intents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Makes a plan of the candidates that it is given, in any order.
pub struct Planner {
    registered: Arc<BTreeSet<TargetName>>,
    include_unknown: bool,
    max: usize,
    items: Vec<(Timestamp, IntentSeq, u32)>,
    targets: Vec<TargetName>,
    numbers: HashMap<TargetName, u32>,
    groups: BTreeMap<(u32, FailedStatus), HashMap<String, u64>>,
    excluded: BTreeMap<Exclusion, u64>,
}

impl Planner {
    /// `registered` has the targets of the registry in force.
    pub fn new(registered: Arc<BTreeSet<TargetName>>, include_unknown: bool) -> Self {
        Self {
            registered,
            include_unknown,
            max: MAX_PLANNED,
            items: Vec::new(),
            targets: Vec::new(),
            numbers: HashMap::new(),
            groups: BTreeMap::new(),
            excluded: EXCLUSIONS.map(|reason| (reason, 0)).into(),
        }
    }

    /// Counts the candidate as excluded, or adds it to the set. `is_unknown` returns whether the gateway may have accepted it
    /// in its last attempt; it is called only if that matters.
    pub fn add<E>(
        &mut self,
        candidate: Candidate<'_>,
        is_unknown: impl FnOnce() -> Result<bool, E>,
    ) -> Result<Result<(), TooMany>, E> {
        let exclusion = if candidate.redriven {
            Some(Exclusion::AlreadyRedriven)
        } else if !self.registered.contains(candidate.target) {
            Some(Exclusion::TargetNotInRegistry)
        } else if !self.include_unknown && is_unknown()? {
            Some(Exclusion::OutcomeUnknown)
        } else {
            None
        };
        if let Some(exclusion) = exclusion {
            *self.excluded.entry(exclusion).or_default() += 1;
            return Ok(Ok(()));
        }
        if self.items.len() >= self.max {
            return Ok(Err(TooMany));
        }
        let number = self.number_of(candidate.target);
        self.items.push((candidate.completed_at, candidate.seq, number));
        let reasons = self.groups.entry((number, candidate.status)).or_default();
        match reasons.get_mut(candidate.reason) {
            Some(count) => *count += 1,
            None => drop(reasons.insert(candidate.reason.to_owned(), 1)),
        }
        Ok(Ok(()))
    }

    fn number_of(&mut self, target: &TargetName) -> u32 {
        if let Some(number) = self.numbers.get(target) {
            return *number;
        }
        let number = u32::try_from(self.targets.len()).unwrap_or(u32::MAX);
        self.targets.push(target.clone());
        self.numbers.insert(target.clone(), number);
        number
    }

    /// Ends the plan: the set in order of completion, and its groups, the largest first.
    pub fn finish(mut self) -> PlannedSet {
        self.items.sort_unstable();
        let targets = &self.targets;
        let named = |((number, status), reasons): ((u32, FailedStatus), HashMap<String, u64>)| {
            let target = targets.get(number as usize).map_or("", TargetName::as_str);
            let group = move |(reason, count)| RedriveGroup {
                submission_target: target.to_owned(),
                status: status.as_str().to_owned(),
                reason,
                count,
            };
            reasons.into_iter().map(group)
        };
        let mut groups: Vec<_> = self.groups.into_iter().flat_map(named).collect();
        groups.sort_unstable_by(|one, other| other.count.cmp(&one.count).then_with(|| one.cmp(other)));
        let item = |(_, seq, target): (Timestamp, IntentSeq, u32)| PlannedItem { seq, target };
        PlannedSet {
            items: self.items.into_iter().map(item).collect(),
            groups,
            targets: self.targets.iter().map(ToString::to_string).collect(),
            excluded: self.excluded.into_iter().map(|(reason, count)| (reason.as_str().to_owned(), count)).collect(),
        }
    }
}

/// The fixed set of a plan.
#[derive(Debug, PartialEq, Eq)]
pub struct PlannedSet {
    /// In the order in which they are redriven.
    pub items: Vec<PlannedItem>,
    pub groups: Vec<RedriveGroup>,
    /// The targets of the items, by their numbers.
    pub targets: Vec<String>,
    pub excluded: BTreeMap<String, u64>,
}

impl PlannedSet {
    /// The first intents of the set, of which a plan shows the ids.
    pub fn sample(&self) -> impl Iterator<Item = IntentSeq> {
        self.items.iter().take(SAMPLE).map(|item| item.seq)
    }

    /// What is kept of the plan besides its items.
    pub fn summary(&self, sample: Vec<String>) -> PlanSummary {
        let (targets, groups) = (self.targets.clone(), self.groups.clone());
        PlanSummary { targets, groups, excluded: self.excluded.clone(), sample }
    }
}

/// An intent of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedItem {
    pub seq: IntentSeq,
    /// The number of its target in the plan.
    pub target: u32,
}

/// What a plan shows of its set. Stored as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// The targets of the set, by their numbers.
    pub targets: Vec<String>,
    pub groups: Vec<RedriveGroup>,
    pub excluded: BTreeMap<String, u64>,
    pub sample: Vec<String>,
}

/// How many intents of a plan share target, status and reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RedriveGroup {
    pub submission_target: String,
    pub status: String,
    pub reason: String,
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn target(name: &str) -> TargetName {
        TargetName::parse(name).unwrap()
    }

    fn planner(include_unknown: bool) -> Planner {
        Planner::new(Arc::new([target("a"), target("b")].into()), include_unknown)
    }

    /// Adds an intent that completed at `at`.
    fn add(planner: &mut Planner, at: i64, name: &str, reason: &str, redriven: bool, unknown: bool) -> bool {
        let candidate = Candidate {
            seq: IntentSeq(100 - at),
            target: &target(name),
            status: FailedStatus::Exhausted,
            reason,
            completed_at: Timestamp::from_micros(at),
            redriven,
        };
        planner.add(candidate, || Ok::<_, Infallible>(unknown)).unwrap().is_ok()
    }

    #[test]
    fn an_intent_counts_under_the_first_exclusion_that_applies() {
        for (include_unknown, name, redriven, unknown, expected) in [
            (false, "a", false, false, None),
            (false, "a", true, true, Some("already_redriven")),
            (false, "gone", true, true, Some("already_redriven")),
            (false, "gone", false, true, Some("target_not_in_registry")),
            (false, "a", false, true, Some("outcome_unknown")),
            (true, "a", false, true, None),
            (true, "gone", false, false, Some("target_not_in_registry")),
        ] {
            let mut planner = planner(include_unknown);
            assert!(add(&mut planner, 1, name, "one_shot", redriven, unknown));
            let set = planner.finish();
            let counted: Vec<_> = set.excluded.iter().filter(|(_, count)| **count > 0).collect();
            assert_eq!(counted.first().map(|(reason, _)| reason.as_str()), expected);
            assert_eq!(set.items.len(), usize::from(expected.is_none()));
            assert_eq!(set.excluded.len(), 3, "a reason that excludes nothing is shown too");
        }
    }

    #[test]
    fn the_set_is_in_order_of_completion_and_groups_are_by_size() {
        let mut planner = planner(false);
        for (at, name, reason) in [(5, "a", "x"), (3, "b", "y"), (4, "a", "x"), (1, "b", "x"), (2, "a", "y")] {
            add(&mut planner, at, name, reason, false, false);
        }
        let set = planner.finish();
        assert_eq!(set.targets, ["a", "b"]);
        let items: Vec<_> = set.items.iter().map(|item| (item.seq.0, item.target)).collect();
        assert_eq!(items, [(99, 1), (98, 0), (97, 1), (96, 0), (95, 0)]);
        let groups =
            set.groups.iter().map(|group| (group.submission_target.as_str(), group.reason.as_str(), group.count));
        let groups: Vec<_> = groups.collect();
        assert_eq!(groups, [("a", "x", 2), ("a", "y", 1), ("b", "x", 1), ("b", "y", 1)]);
        assert_eq!(set.sample().next(), Some(IntentSeq(99)));
        let summary = set.summary(vec!["i".to_owned()]);
        let json = serde_json::to_string(&summary).unwrap();
        assert_eq!(serde_json::from_str::<PlanSummary>(&json).unwrap(), summary);
        assert!(json.contains(r#"{"submissionTarget":"a","status":"exhausted","reason":"x","count":2}"#), "{json}");
    }

    #[test]
    fn a_plan_is_bounded() {
        let mut planner = Planner { max: 2, ..planner(false) };
        assert!(add(&mut planner, 1, "a", "x", false, false));
        assert!(add(&mut planner, 2, "a", "x", false, false));
        assert!(add(&mut planner, 3, "a", "x", true, false), "one that is excluded does not count");
        assert!(!add(&mut planner, 3, "a", "x", false, false));
    }
}
