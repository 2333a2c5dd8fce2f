//! How long this instance believes that it leads: shared between the leader, which extends it,
//! and everything that must stop when it ends. By the monotonic clock, so nothing can stretch it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::platform::clock::monotonic;

#[derive(Clone)]
pub struct LeaseTrust {
    origin: Instant,
    /// Nanoseconds after `origin`; zero once it is revoked.
    until: Arc<AtomicU64>,
}

/// What is left of it.
#[derive(Debug, PartialEq, Eq)]
pub enum RemainingTrust {
    For(Duration),
    RanOut,
    Revoked,
}

impl LeaseTrust {
    /// Trust for `span` from `asked` on: the moment at which the lease was asked for, not the one
    /// at which the answer came.
    pub fn from(asked: Instant, span: Duration) -> Self {
        let trust = Self { origin: asked, until: Arc::new(AtomicU64::new(u64::MAX)) };
        trust.until.store(nanos(span), Ordering::SeqCst);
        trust
    }

    /// A renewal asked for at `asked` succeeded. Has no effect after a revocation.
    pub fn extend(&self, asked: Instant, span: Duration) {
        let until = nanos(asked.duration_since(self.origin) + span);
        let _revoked_stays_revoked =
            self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| (old != 0).then_some(until.max(old)));
    }

    /// For good: a later success cannot bring it back.
    pub fn revoke(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    pub fn holds(&self) -> bool {
        matches!(self.left(), RemainingTrust::For(_))
    }

    pub fn left(&self) -> RemainingTrust {
        let (now, until) = (nanos(monotonic().duration_since(self.origin)), self.until.load(Ordering::SeqCst));
        match until.checked_sub(now) {
            _ if until == 0 => RemainingTrust::Revoked,
            None | Some(0) => RemainingTrust::RanOut,
            Some(left) => RemainingTrust::For(Duration::from_nanos(left)),
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_success_does_not_stretch_it_and_a_revocation_is_final() {
        let second = Duration::from_secs(1);
        let trust = LeaseTrust::from(monotonic(), 12 * second);
        tokio::time::advance(11 * second).await;
        assert!(trust.holds());
        tokio::time::advance(second).await;
        assert_eq!(trust.left(), RemainingTrust::RanOut, "the end is not inside");

        let trust = LeaseTrust::from(monotonic(), 12 * second);
        let asked = monotonic();
        tokio::time::advance(10 * second).await;
        trust.extend(asked, 12 * second);
        tokio::time::advance(2 * second).await;
        assert!(!trust.holds(), "the answer took ten seconds and bought nothing");

        trust.extend(monotonic(), 12 * second);
        assert_eq!(trust.left(), RemainingTrust::For(12 * second));
        trust.revoke();
        trust.extend(monotonic(), 12 * second);
        assert_eq!(trust.left(), RemainingTrust::Revoked);
    }
}
