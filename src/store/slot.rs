//! Slots for calls of gateways, and the count of attempts in flight.
//!
//! An attempt holds a [`SlotGuard`] until the gateway has answered, and an [`InFlightGuard`] until its outcome is recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::domain::schedule::{Call, Ended};
use crate::domain::time::Timestamp;
use crate::telemetry::metrics::Metrics;

/// Permission to make one more call at a gateway, taken from the schedule.
///
/// Dropping it without [`SlotGuard::release`] releases the slot as [`AttemptEnd::NotStarted`], so a slot cannot get lost when
/// an attempt panics or a transaction is rolled back.
pub struct SlotGuard {
    on_release: Option<Box<dyn FnOnce(AttemptEnd) + Send>>,
}

impl SlotGuard {
    /// Makes a guard that calls `on_release` once, when it is released or dropped.
    pub fn new(on_release: impl FnOnce(AttemptEnd) + Send + 'static) -> Self {
        Self { on_release: Some(Box::new(on_release)) }
    }

    /// Releases the slot and tells the schedule how the attempt ended.
    pub fn release(mut self, end: AttemptEnd) {
        if let Some(on_release) = self.on_release.take() {
            on_release(end);
        }
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if let Some(on_release) = self.on_release.take() {
            on_release(AttemptEnd::NotStarted);
        }
    }
}

/// How an attempt ended that held a slot.
#[derive(Clone, Copy, Debug)]
pub enum AttemptEnd {
    /// The gateway was called.
    Called(Call),
    /// The attempt was started and postponed without a call. `next_call` is when the rate limit of its target allows
    /// the next call, if that is the reason.
    Postponed { next_call: Option<Timestamp> },
    /// The attempt was not started, and need not be.
    NotStarted,
    /// The attempt was not started, because the intent is due only then.
    NotBefore(Timestamp),
    /// The attempt could not be started, for a reason of this intent alone; it is tried again then.
    HeldBack(Timestamp),
    /// The attempt was not started, because its target is paused.
    Paused,
}

impl AttemptEnd {
    /// What this means for the slots of the schedule.
    pub fn for_schedule(self) -> Ended {
        match self {
            Self::Called(call) => Ended::Called(call),
            Self::Postponed { next_call } => Ended::NotCalled { next_turn: next_call },
            Self::NotStarted | Self::NotBefore(_) | Self::HeldBack(_) | Self::Paused => Ended::NOT_CALLED,
        }
    }
}

/// The attempts in flight in this process, over all terms.
#[derive(Clone)]
pub struct InFlight {
    count: Arc<AtomicUsize>,
    idle: Arc<Notify>,
    metrics: Arc<Metrics>,
}

impl InFlight {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { count: Arc::default(), idle: Arc::default(), metrics }
    }

    /// Counts one more attempt until the guard is dropped.
    pub fn enter(&self) -> InFlightGuard {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.metrics.inflight_attempts.inc();
        InFlightGuard(self.clone())
    }

    /// Resolves when no attempt is in flight.
    pub async fn idle(&self) {
        loop {
            let changed = self.idle.notified();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// One attempt in flight. Dropping it lowers the count and wakes callers that wait until none is in flight.
pub struct InFlightGuard(InFlight);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.metrics.inflight_attempts.dec();
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
