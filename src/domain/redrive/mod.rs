//! Redrives: failed intents that are sent again, each as a new intent that names the old one.
//!
//! A redrive is planned first, which fixes the set of intents and sends nothing. This file has its states and what changes
//! them, [`plan`] decides which intents belong to the set, and [`ids`] derives the ids of the new intents.

mod ids;
mod plan;

use std::num::NonZeroU32;
use std::time::Duration;

pub use self::ids::redriven_id;
pub use self::plan::{
    Candidate, Conditions, EXCLUSIONS, Exclusion, FailedStatus, MAX_INTENT_IDS, MAX_PLANNED, PlanSummary, PlannedItem,
    PlannedSet, Planner, RedriveFilter, RedriveGroup, TooMany,
};
use super::uuid_id::uuid_id;

uuid_id! {
    /// `redriveId`: the id of a redrive.
    RedriveId
}

/// A plan that is not started within this time is gone.
pub const PLAN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The state of a redrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedriveState {
    /// The set of intents is fixed, and nothing is sent.
    Planned,
    /// The leader creates the new intents.
    Running,
    /// No new intents are created until the redrive is resumed.
    Paused,
    /// Every intent of the set was redriven or skipped.
    Completed,
    /// No further intents are created. Those that were created before stay.
    Cancelled,
}

impl RedriveState {
    pub const ALL: [Self; 5] = [Self::Planned, Self::Running, Self::Paused, Self::Completed, Self::Cancelled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether the redrive has ended for good.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled)
    }
}

/// How many intents a redrive creates in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedriveRate(NonZeroU32);

impl RedriveRate {
    /// Above this rate a redrive would be limited by the gateways and not by its rate.
    pub const MAX: u32 = 1000;
    pub const DEFAULT: Self = Self(NonZeroU32::new(10).expect("10 is not 0"));

    /// Accepts 1 to [`Self::MAX`].
    pub fn new(per_second: u32) -> Option<Self> {
        NonZeroU32::new(per_second).filter(|rate| rate.get() <= Self::MAX).map(Self)
    }

    pub fn per_second(self) -> u32 {
        self.0.get()
    }

    /// How long `intents` take at this rate.
    pub fn duration_of(self, intents: usize) -> Duration {
        Duration::from_micros(1_000_000) * u32::try_from(intents).unwrap_or(u32::MAX) / self.0.get()
    }
}

/// What an operator does with a redrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedriveChange {
    Start { rate: RedriveRate },
    Pause,
    Resume,
    Cancel,
}

/// Why a redrive was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The change does not apply to this state.
    WrongState(RedriveState),
    /// The plan has no intents, so there is nothing to start.
    EmptyPlan,
}

impl RedriveChange {
    /// The change as a verb in the infinitive, as the API names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }

    /// Returns the state after this change of a redrive with `count` intents.
    pub fn apply(self, state: RedriveState, count: u64) -> Result<RedriveState, Refusal> {
        use RedriveState::{Cancelled, Paused, Planned, Running};
        match (self, state) {
            (Self::Start { .. }, Planned) if count == 0 => Err(Refusal::EmptyPlan),
            (Self::Start { .. }, Planned) | (Self::Resume, Paused) => Ok(Running),
            (Self::Pause, Running) => Ok(Paused),
            (Self::Cancel, Planned | Running | Paused) => Ok(Cancelled),
            _ => Err(Refusal::WrongState(state)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_apply_to_some_states_only() {
        use RedriveChange::{Cancel, Pause, Resume};
        use RedriveState::{Cancelled, Completed, Paused, Planned, Running};
        let start = RedriveChange::Start { rate: RedriveRate::DEFAULT };
        let allowed = [
            (start, Planned, Running),
            (Pause, Running, Paused),
            (Resume, Paused, Running),
            (Cancel, Planned, Cancelled),
            (Cancel, Running, Cancelled),
            (Cancel, Paused, Cancelled),
        ];
        for change in [start, Pause, Resume, Cancel] {
            for state in [Planned, Running, Paused, Completed, Cancelled] {
                let to = allowed.iter().find(|(allowed, from, _)| *allowed == change && *from == state);
                let expected = to.map(|(_, _, to)| *to).ok_or(Refusal::WrongState(state));
                assert_eq!(change.apply(state, 1), expected, "{change:?} {state:?}");
            }
        }
        assert_eq!(start.apply(Planned, 0), Err(Refusal::EmptyPlan));
        assert_eq!(start.apply(Running, 0), Err(Refusal::WrongState(Running)));
        assert_eq!(Cancel.apply(Planned, 0), Ok(Cancelled));
    }

    #[test]
    fn names_of_states_are_read_as_they_are_written() {
        for state in RedriveState::ALL {
            assert_eq!(RedriveState::parse(state.as_str()), Some(state));
        }
        assert_eq!(RedriveState::parse("planning"), None);
    }

    #[test]
    fn rates_are_bounded_and_space_intents() {
        for (per_second, valid) in [(0, false), (1, true), (1000, true), (1001, false), (u32::MAX, false)] {
            assert_eq!(RedriveRate::new(per_second).is_some(), valid, "{per_second}");
        }
        assert_eq!(RedriveRate::DEFAULT.per_second(), 10);
        assert_eq!(RedriveRate::DEFAULT.duration_of(3), Duration::from_millis(300));
        assert_eq!(RedriveRate::new(1000).unwrap().duration_of(1), Duration::from_millis(1));
    }
}
