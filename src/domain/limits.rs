//! Bounds that the registry may put on one target, besides those of the service: how many attempts are under way
//! at once, how many begin in a second, and how long each may take.
//!
//! They are not part of a contract: nothing that becomes of an intent depends on them, so those in force now apply
//! to all that waits, whenever it came.

use std::num::NonZeroU32;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetLimits {
    pub max_in_flight: Option<NonZeroU32>,
    pub rate: Option<Rate>,
    /// From connecting to the last byte of the answer; that of the service if there is none.
    pub attempt_timeout: Option<AttemptTimeout>,
}

/// How long an attempt may take, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptTimeout(u32);

impl AttemptTimeout {
    pub const SHORTEST: u32 = 1;
    /// Longer than any gateway is known to wait for its provider (60 s), with room; a hung call holds a slot for
    /// that long, and an orderly stop may have to wait for it.
    pub const LONGEST: u32 = 120;

    pub fn from_secs(seconds: u32) -> Option<Self> {
        (Self::SHORTEST..=Self::LONGEST).contains(&seconds).then_some(Self(seconds))
    }

    pub const fn as_secs(self) -> u32 {
        self.0
    }

    pub const fn as_duration(self) -> Duration {
        Duration::from_secs(self.0 as u64)
    }
}

/// How often something may begin: evenly spaced, so that no second ever sees more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(Duration);

impl Rate {
    /// Once in 100 seconds.
    pub const SLOWEST: f64 = 0.01;
    /// As many as one executor has ever made.
    pub const FASTEST: f64 = 10_000.0;

    pub fn per_second(number: f64) -> Option<Self> {
        (Self::SLOWEST..=Self::FASTEST).contains(&number).then(|| Self(Duration::from_secs_f64(1.0 / number)))
    }

    /// From one to the next.
    pub fn interval(self) -> Duration {
        self.0
    }

    pub fn as_per_second(self) -> f64 {
        // Back to what was written: an interval has no more than nine digits.
        (1e6 / self.0.as_secs_f64()).round() / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_was_written() {
        for number in [0.01, 0.5, 1.0, 3.0, 7.5, 30.0, 333.0, 10_000.0] {
            assert_eq!(Rate::per_second(number).unwrap().as_per_second(), number);
        }
        assert_eq!(Rate::per_second(4.0).unwrap().interval(), Duration::from_millis(250));
        for number in [0.0, -1.0, 0.009, 10_001.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Rate::per_second(number), None);
        }
    }
}
