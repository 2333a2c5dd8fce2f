//! Whether a term makes progress. A leader whose term does not must not keep the lease from other instances.
//!
//! Two things can be stuck although no actor has died: the work on the schedule (preparing it, and then refreshing it from the
//! store) and the executor's thread. Each has a heartbeat, and the leader checks both before it renews the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::platform::actor_thread::ActorThread;
use crate::platform::clock::monotonic;

/// When something last made progress. Clones share it.
#[derive(Clone)]
pub struct Heartbeat {
    origin: Instant,
    last_nanos: Arc<AtomicU64>,
}

impl Heartbeat {
    /// Starts with a beat now.
    pub fn start() -> Self {
        Self { origin: monotonic(), last_nanos: Arc::default() }
    }

    /// Records progress now.
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
pub(super) struct Progress {
    pub schedule: Heartbeat,
    schedule_limit: Duration,
    executor: Heartbeat,
    executor_limit: Duration,
    executor_thread: ActorThread,
}

impl Progress {
    /// The executor's thread counts as stuck when it has not responded for as long as a lease is trusted. The schedule is
    /// only refreshed once per `refresh_interval`, so it has that much longer.
    pub(super) fn new(executor_thread: ActorThread, trusted: Duration, refresh_interval: Duration) -> Self {
        let (schedule, executor) = (Heartbeat::start(), Heartbeat::start());
        let schedule_limit = trusted + refresh_interval;
        Self { schedule, schedule_limit, executor, executor_limit: trusted, executor_thread }
    }

    /// Requests the next heartbeat of the executor's thread.
    pub(super) fn ping_executor(&self) {
        let executor = self.executor.clone();
        let _a_dead_thread_does_not_beat = self.executor_thread.spawn(async move { executor.beat() });
    }

    /// Returns what is stuck and for how long, if anything is. The schedule is not checked while a term is drained, because it
    /// is not refreshed then.
    pub(super) fn stuck(&self, draining: bool) -> Option<String> {
        let silent = |actor: &str, age: Duration| format!("the {actor} has made no progress for {age:?}");
        let (schedule, executor) = (self.schedule.age(), self.executor.age());
        if executor > self.executor_limit {
            Some(silent("executor", executor))
        } else if schedule > self.schedule_limit && !draining {
            Some(silent("scheduler", schedule))
        } else {
            None
        }
    }
}

/// Resolves with true once the thread runs a new task, and with false if the thread is dead. It does not resolve while the
/// thread is stuck.
pub(super) async fn responds(thread: &ActorThread) -> bool {
    let (answer, answered) = oneshot::channel();
    thread.spawn(async move {
        let _nobody_waits_any_more = answer.send(());
    }) && answered.await.is_ok()
}
