//! The only place that reads a clock.
//!
//! Two kinds: the wall clock, which the embedded store uses as the database's time, and a
//! monotonic one for spans and trust. [`StoreTime`] joins them: it knows how far the monotonic
//! clock is from the store's time, so that a host with a wrong wall clock changes nothing.
#![expect(clippy::disallowed_methods, reason = "this is the one module that may ask for the time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::domain::time::Timestamp;

/// A moment of the monotonic clock. Under a paused test runtime, a moment of virtual time.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Where the embedded store takes its time from.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl WallClock {
    pub fn system() -> Self {
        Self(Arc::new(|| {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            Timestamp::from_micros(0) + since_epoch
        }))
    }

    /// A clock that shows what `read` says; tests step it or follow virtual time.
    #[cfg(test)]
    pub fn from_fn(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

/// The store's time as this process knows it: the monotonic clock plus an offset that every
/// answer of the store corrects.
#[derive(Clone)]
pub struct StoreTime {
    origin: Instant,
    offset_micros: Arc<AtomicI64>,
}

impl StoreTime {
    pub fn unset() -> Self {
        Self { origin: monotonic(), offset_micros: Arc::new(AtomicI64::new(0)) }
    }

    /// Takes note that the store said `now` somewhere between `asked` and this moment. What is
    /// known stays if it fits into that; so a slow answer, which says little, changes little.
    pub fn observe(&self, asked: Instant, now: Timestamp) {
        let here = |moment: Instant| {
            i64::try_from(moment.saturating_duration_since(self.origin).as_micros()).unwrap_or(i64::MAX)
        };
        let (least, most) = (now.micros().saturating_sub(here(monotonic())), now.micros().saturating_sub(here(asked)));
        let known = self.offset_micros.load(Ordering::Relaxed);
        self.offset_micros.store(known.max(least).min(most), Ordering::Relaxed);
    }

    pub fn now(&self) -> Timestamp {
        let offset = Timestamp::from_micros(self.offset_micros.load(Ordering::Relaxed));
        offset + monotonic().duration_since(self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn store_time_follows_the_store_and_not_the_host() {
        let time = StoreTime::unset();
        let asked = monotonic();
        tokio::time::advance(Duration::from_millis(10)).await;
        time.observe(asked, Timestamp::from_micros(1_000_000));
        assert_eq!(time.now(), Timestamp::from_micros(1_000_000));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(time.now(), Timestamp::from_micros(2_000_000));
        let asked = monotonic();
        tokio::time::advance(Duration::from_secs(14)).await;
        time.observe(asked, Timestamp::from_micros(16_000_000));
        assert_eq!(time.now(), Timestamp::from_micros(16_000_000), "what a slow answer allows is not changed");
        time.observe(monotonic(), Timestamp::from_micros(10_000_000));
        assert_eq!(time.now(), Timestamp::from_micros(10_000_000), "a quick answer corrects");
    }
}
