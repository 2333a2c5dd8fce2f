//! The clocks. Clippy forbids reading a clock anywhere else.
//!
//! There are three: [`monotonic`] for durations and for trust in the lease, [`WallClock`], which is the time of the SQLite
//! store, and [`StoreTime`], an estimate of the store's time that is derived from the monotonic clock. Decisions use the
//! store's time, so the wall clock of an instance that uses a SQL Server does not matter.
#![expect(clippy::disallowed_methods, reason = "this is the one module that may read a clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::domain::time::Timestamp;
use crate::platform::mutated;

/// Reads the monotonic clock. In tests with a paused runtime this is virtual time.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The wall clock, from which the SQLite store takes its time. Tests replace it with a function.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl WallClock {
    /// The clock of the operating system.
    pub fn system() -> Self {
        Self(Arc::new(|| {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            Timestamp::from_micros(0) + since_epoch
        }))
    }

    /// A clock that returns what `read` returns, for tests.
    #[cfg(test)]
    pub fn from_fn(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

/// An estimate of the store's current time: the monotonic clock plus an offset that every response of the store corrects.
#[derive(Clone)]
pub struct StoreTime {
    origin: Instant,
    offset_micros: Arc<AtomicI64>,
}

impl StoreTime {
    /// An estimate without any information, until [`Self::observe`] is called.
    pub fn unset() -> Self {
        Self { origin: monotonic(), offset_micros: Arc::new(AtomicI64::new(0)) }
    }

    /// Corrects the estimate with a response of the store, which read its clock as `now` at some moment between
    /// `requested` and this call. That moment is not known, so the response gives a range of possible offsets. An offset
    /// within the range stays as it is; others move to its upper end. So the estimate does not lag behind the store, and is
    /// ahead of it by at most as long as the fastest response took: no attempt starts after its deadline, and no
    /// acceptance counts that came later.
    pub fn observe(&self, requested: Instant, now: Timestamp) {
        let since_origin = |moment: Instant| {
            i64::try_from(moment.saturating_duration_since(self.origin).as_micros()).unwrap_or(i64::MAX)
        };
        let least = now.micros().saturating_sub(since_origin(monotonic()));
        let most = now.micros().saturating_sub(since_origin(requested));
        let known = self.offset_micros.load(Ordering::Relaxed);
        let offset = if (least..=most).contains(&known) { known } else { most };
        let offset = if mutated!(StoreTimeLags) { known.max(least).min(most) } else { offset };
        self.offset_micros.store(offset, Ordering::Relaxed);
    }

    /// The estimated time of the store.
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
        let requested = monotonic();
        tokio::time::advance(Duration::from_millis(10)).await;
        time.observe(requested, Timestamp::from_micros(1_000_000));
        assert_eq!(time.now(), Timestamp::from_micros(1_010_000), "the store may have read its clock at once");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(time.now(), Timestamp::from_micros(2_010_000));
        let requested = monotonic();
        tokio::time::advance(Duration::from_secs(14)).await;
        time.observe(requested, Timestamp::from_micros(16_000_000));
        assert_eq!(
            time.now(),
            Timestamp::from_micros(16_010_000),
            "an estimate within the range of a slow response stays"
        );
        time.observe(monotonic(), Timestamp::from_micros(10_000_000));
        assert_eq!(time.now(), Timestamp::from_micros(10_000_000), "a fast response corrects the estimate");
        let requested = monotonic();
        tokio::time::advance(Duration::from_secs(2)).await;
        time.observe(requested, Timestamp::from_micros(13_000_000));
        assert_eq!(time.now(), Timestamp::from_micros(15_000_000), "the estimate never lags behind the store");
    }
}
