//! The limits of one target, in addition to those of the service: attempts in flight, attempts per second, and the timeout
//! of an attempt.
//!
//! Limits are not part of a contract and are not stored with intents, so the current limits apply to all waiting intents.

use std::num::NonZeroU32;
use std::time::Duration;

/// The limits of one target. `None` means that the target has no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetLimits {
    pub max_in_flight: Option<NonZeroU32>,
    pub rate: Option<Rate>,
    /// From connecting to the last byte of the response. `None` means the timeout of the service.
    pub attempt_timeout: Option<AttemptTimeout>,
}

/// The timeout of an attempt, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptTimeout(u32);

impl AttemptTimeout {
    pub const SHORTEST: u32 = 1;
    /// The longest that a gateway is known to wait for its provider is 60 s, and this is twice as much. More would do harm:
    /// a call that hangs uses a slot for the whole timeout, and stopping the service may have to wait for it.
    pub const LONGEST: u32 = 120;

    /// `None` if the number is not from [`Self::SHORTEST`] to [`Self::LONGEST`].
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

/// A maximum rate of calls. Calls are evenly spaced, so that no interval of a second contains more than the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(Duration);

impl Rate {
    /// One call in 100 seconds.
    pub const SLOWEST: f64 = 0.01;
    /// More calls per second than one executor makes.
    pub const FASTEST: f64 = 10_000.0;

    /// `None` if the number is not from [`Self::SLOWEST`] to [`Self::FASTEST`].
    pub fn per_second(number: f64) -> Option<Self> {
        (Self::SLOWEST..=Self::FASTEST).contains(&number).then(|| Self(Duration::from_secs_f64(1.0 / number)))
    }

    /// The time from one call to the next.
    pub fn interval(self) -> Duration {
        self.0
    }

    pub fn as_per_second(self) -> f64 {
        // An interval has nanoseconds, so rounding gives back the number that was configured.
        (1e6 / self.0.as_secs_f64()).round() / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_gives_back_the_number_it_was_made_from() {
        for number in [0.01, 0.5, 1.0, 3.0, 7.5, 30.0, 333.0, 10_000.0] {
            assert_eq!(Rate::per_second(number).unwrap().as_per_second(), number);
        }
        assert_eq!(Rate::per_second(4.0).unwrap().interval(), Duration::from_millis(250));
        for number in [0.0, -1.0, 0.009, 10_001.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Rate::per_second(number), None);
        }
    }
}
