//! How long this instance may assume that it holds the lease.
//!
//! The leader extends the trust with each renewal. Everything that must stop when the trust ends shares it and checks it.
//! It is measured with the monotonic clock, so a change of the wall clock cannot extend it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::platform::clock::monotonic;

/// The trust in the lease of one term. Clones share it.
#[derive(Clone)]
pub struct LeaseTrust {
    origin: Instant,
    /// Nanoseconds after `origin`; zero once the trust is revoked.
    until: Arc<AtomicU64>,
}

/// How much trust is left.
#[derive(Debug, PartialEq, Eq)]
pub enum RemainingTrust {
    For(Duration),
    RanOut,
    Revoked,
}

impl LeaseTrust {
    /// Trusts the lease for `duration` after `requested_at`. The trust counts from the request and not from the answer,
    /// because the store may have granted the lease right after the request.
    pub fn from(requested_at: Instant, duration: Duration) -> Self {
        Self { origin: requested_at, until: Arc::new(AtomicU64::new(nanos(duration))) }
    }

    /// Extends the trust after a renewal that was requested at `requested_at`. It has no effect after a revocation.
    pub fn extend(&self, requested_at: Instant, duration: Duration) {
        let until = nanos(requested_at.duration_since(self.origin) + duration);
        let _revoked_stays_revoked =
            self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| (old != 0).then_some(until.max(old)));
    }

    /// Ends the trust for good. A later renewal cannot restore it.
    pub fn revoke(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// Whether this instance may still act as the leader.
    pub fn holds(&self) -> bool {
        matches!(self.remaining(), RemainingTrust::For(_))
    }

    /// Returns how much trust is left.
    pub fn remaining(&self) -> RemainingTrust {
        let (now, until) = (nanos(monotonic().duration_since(self.origin)), self.until.load(Ordering::SeqCst));
        match until.checked_sub(now) {
            _ if until == 0 => RemainingTrust::Revoked,
            None | Some(0) => RemainingTrust::RanOut,
            Some(remaining) => RemainingTrust::For(Duration::from_nanos(remaining)),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_renewal_does_not_extend_the_trust_and_a_revocation_is_final() {
        let second = Duration::from_secs(1);
        let trust = LeaseTrust::from(monotonic(), 12 * second);
        tokio::time::advance(11 * second).await;
        assert!(trust.holds());
        tokio::time::advance(second).await;
        assert_eq!(trust.remaining(), RemainingTrust::RanOut, "the trust ends at this moment");

        let trust = LeaseTrust::from(monotonic(), 12 * second);
        let requested_at = monotonic();
        tokio::time::advance(10 * second).await;
        trust.extend(requested_at, 12 * second);
        tokio::time::advance(2 * second).await;
        assert!(!trust.holds(), "the answer took ten seconds, which count");

        trust.extend(monotonic(), 12 * second);
        assert_eq!(trust.remaining(), RemainingTrust::For(12 * second));
        trust.revoke();
        trust.extend(monotonic(), 12 * second);
        assert_eq!(trust.remaining(), RemainingTrust::Revoked);
    }
}
