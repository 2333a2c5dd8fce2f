//! The lease: what a term is, and how long the holder trusts its lease without asking the store.
//!
//! The store decides who holds the lease and until when. The holder itself trusts the lease for a shorter time: it counts
//! four fifths of the duration from the *start* of its last successful renewal, by the monotonic clock. A renewal that takes
//! long therefore never makes the holder trust the lease for longer than the store grants it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::time::Timestamp;

/// One holding of the lease. Every write of a leader names its term, and the store rejects it if the term has ended.
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

/// The lease that the store granted when it was acquired or renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub term: Term,
    pub expires_at: Timestamp,
    /// The store's time when it granted the lease.
    pub now: Timestamp,
}

/// The duration of a lease and the interval of its renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    duration: Duration,
    renew_interval: Duration,
}

/// The renewal interval is too long for the duration of the lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the holder trusts a lease of {duration:?} for {trusted:?} (four fifths of it), and two renewal intervals of \
     {renew:?} do not fit into that; make the renewal interval at most {most:?}, or the lease longer"
)]
pub struct UnsafeTiming {
    duration: Duration,
    trusted: Duration,
    renew: Duration,
    most: Duration,
}

impl LeaseTiming {
    /// Fails if a single slow renewal could make the leader lose its lease: two renewal intervals must fit into the
    /// duration for which the lease is trusted.
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

    /// How long the holder trusts the lease after the start of a successful renewal: four fifths of its duration.
    ///
    /// The store rejects writes of a term that has ended, but cannot stop a request to a gateway. The remaining fifth is the
    /// margin for a request that the holder decides to send just before its trust ends and that leaves a little later.
    pub fn trusted_duration(self) -> Duration {
        self.duration - self.duration / 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_renewals_must_fit_into_the_trusted_duration() {
        let seconds = Duration::from_secs;
        let timing = LeaseTiming::new(seconds(15), seconds(5)).unwrap();
        assert_eq!(timing.trusted_duration(), seconds(12));
        assert!(LeaseTiming::new(seconds(15), seconds(6)).is_ok());
        let refused = LeaseTiming::new(seconds(15), seconds(7)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the holder trusts a lease of 15s for 12s (four fifths of it), and two renewal intervals of 7s do not fit \
             into that; make the renewal interval at most 6s, or the lease longer"
        );
        assert!(LeaseTiming::new(seconds(15), seconds(0)).is_err());
        assert!(LeaseTiming::new(seconds(0), seconds(1)).is_err());
    }
}
