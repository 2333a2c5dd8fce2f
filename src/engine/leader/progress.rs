//! Whether a term gets anything done: a leader that does not must not keep the lease from others.
//!
//! Two things can be stuck without anybody having died: the work on the schedule (preparing it,
//! then looking at the store again and again) and the executor's thread. Each has a heartbeat;
//! the leader looks at both before it renews.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::ArbiterHandle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::platform::clock::monotonic;

/// The moment of the last sign of life. Clones share it.
#[derive(Clone)]
pub struct Heartbeat {
    origin: Instant,
    last_nanos: Arc<AtomicU64>,
}

impl Heartbeat {
    /// Begins with a beat.
    pub fn start() -> Self {
        Self { origin: monotonic(), last_nanos: Arc::default() }
    }

    pub fn beat(&self) {
        let nanos = monotonic().duration_since(self.origin).as_nanos();
        self.last_nanos.store(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn age(&self) -> Duration {
        let last = Duration::from_nanos(self.last_nanos.load(Ordering::Relaxed));
        monotonic().duration_since(self.origin).saturating_sub(last)
    }
}

/// The heartbeats of one term.
pub struct Progress {
    pub work: Heartbeat,
    work_limit: Duration,
    thread: Heartbeat,
    thread_limit: Duration,
    executor: ArbiterHandle,
}

impl Progress {
    /// A part is stuck when it was silent for as long as a lease is trusted; the schedule is looked
    /// at only every so often, which comes on top.
    pub fn new(executor: ArbiterHandle, trusted: Duration, refresh_interval: Duration) -> Self {
        let (work, thread) = (Heartbeat::start(), Heartbeat::start());
        Self { work, work_limit: trusted + refresh_interval, thread, thread_limit: trusted, executor }
    }

    /// Asks the executor's thread for its next heartbeat.
    pub fn ask(&self) {
        let thread = self.thread.clone();
        let _a_dead_thread_does_not_beat = self.executor.spawn(async move { thread.beat() });
    }

    /// Which part is stuck, if one is. There is no work on the schedule while a term is drained.
    pub fn stuck(&self, draining: bool) -> Option<String> {
        let silent = |part: &str, age: Duration| format!("the {part} has made no progress for {age:?}");
        let (work, thread) = (self.work.age(), self.thread.age());
        if thread > self.thread_limit {
            Some(silent("executor", thread))
        } else if work > self.work_limit && !draining {
            Some(silent("scheduler", work))
        } else {
            None
        }
    }
}

/// Resolves once the thread runs what it is given: never while it is stuck.
pub async fn responds(thread: &ArbiterHandle) -> bool {
    let (answer, answered) = oneshot::channel();
    thread.spawn(async move {
        let _nobody_waits_any_more = answer.send(());
    }) && answered.await.is_ok()
}
