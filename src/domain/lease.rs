//! The arithmetic of leadership: what a term is and how long its holder may trust it.
//!
//! The database decides who holds the lease. This module says how much less than that the holder
//! itself believes: from the *start* of its last successful renewal, by a clock that never jumps,
//! minus a margin. So a slow success never stretches a lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::time::Timestamp;

/// One holding of the lease. Every write of a leader carries it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub lease_name: Arc<str>,
    pub holder_id: Arc<str>,
    pub epoch: i64,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "holder_id={} lease_epoch={}", self.holder_id, self.epoch)
    }
}

/// The lease as the database answered an acquire or a renew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub term: Term,
    pub expires_at: Timestamp,
    /// Store time at which that was decided.
    pub now: Timestamp,
}

/// How long a lease lasts, and how often it is renewed and sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    duration: Duration,
    renew_interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a lease of {duration:?} is trusted for {trusted:?} (a fifth is kept as margin), and two renewals every \
     {renew:?} do not fit into that: make the renew interval at most {most:?} or the lease longer"
)]
pub struct UnsafeTiming {
    duration: Duration,
    trusted: Duration,
    renew: Duration,
    most: Duration,
}

impl LeaseTiming {
    /// Refuses timings under which one slow renewal would already cost the leadership.
    pub fn new(duration: Duration, renew_interval: Duration) -> Result<Self, UnsafeTiming> {
        let timing = Self { duration, renew_interval };
        let trusted = timing.trusted_duration();
        if renew_interval.is_zero() || renew_interval.saturating_mul(2) > trusted {
            return Err(UnsafeTiming { duration, trusted, renew: renew_interval, most: trusted / 2 });
        }
        Ok(timing)
    }

    pub fn duration(self) -> Duration {
        self.duration
    }

    pub fn renew_interval(self) -> Duration {
        self.renew_interval
    }

    /// How long after the start of a successful renewal the holder trusts the lease: four fifths.
    ///
    /// The fifth kept back covers what the fence in the database cannot: a request to a gateway
    /// that was decided on just before the end and leaves just after it.
    pub fn trusted_duration(self) -> Duration {
        self.duration - self.duration / 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_leave_room_for_a_second_renewal() {
        let seconds = Duration::from_secs;
        let timing = LeaseTiming::new(seconds(15), seconds(5)).unwrap();
        assert_eq!(timing.trusted_duration(), seconds(12));
        assert!(LeaseTiming::new(seconds(15), seconds(6)).is_ok());
        let refused = LeaseTiming::new(seconds(15), seconds(7)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "a lease of 15s is trusted for 12s (a fifth is kept as margin), and two renewals every 7s do not fit \
             into that: make the renew interval at most 6s or the lease longer"
        );
        assert!(LeaseTiming::new(seconds(15), seconds(0)).is_err());
        assert!(LeaseTiming::new(seconds(0), seconds(1)).is_err());
    }
}
