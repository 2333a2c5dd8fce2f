//! Whether this instance can write to its store, for readiness checks.
//!
//! A store that answers reads may still refuse every write: its disk is full, another process keeps it locked, its file
//! is damaged. Readiness therefore needs a recent write that succeeded: a commit of this instance or, if there
//! was none, a probe. One failure does not make an instance unready, and one success makes it ready again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::StoreError;
use crate::platform::clock::monotonic;

/// A write that succeeded this recently makes a probe unnecessary: readiness checks come every second or two.
const FRESH: Duration = Duration::from_secs(2);
/// For this long after the last success a single failure does not count.
const GRACE: Duration = Duration::from_secs(5);
/// From this many failures in a row on, they count.
const TOO_MANY: u32 = 2;
/// For this long after commits have failed, a probe that succeeds does not count. It is smaller than a commit and may fit on a
/// disk where no commit does.
const HOLD: Duration = Duration::from_secs(10);
/// How long the result of a probe is used for further checks.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that a probe writes.
const SMALL_PROBE: usize = 512;
/// Bytes that a probe writes after a failure: as many as a few dozen intents, so that it needs space on the disk.
const LARGE_PROBE: usize = 64 * 1024;

/// What this instance knows about its recent writes. The store actor and the store client share it.
#[derive(Clone)]
pub struct WriteHealth(Arc<Mutex<State>>);

struct State {
    last_success: Option<Instant>,
    /// Failures since the last success.
    failures: u32,
    last_failed_commit: Option<Instant>,
    last_probe: Option<Instant>,
    last_error: Option<StoreError>,
}

impl Default for WriteHealth {
    /// Knows of no write yet. The first check makes a probe, because a store on another machine may not be reachable.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            last_success: None,
            failures: 0,
            last_failed_commit: None,
            last_probe: None,
            last_error: None,
        })))
    }
}

impl WriteHealth {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A commit succeeded.
    pub fn committed(&self) {
        let mut state = self.state();
        (state.last_success, state.failures, state.last_failed_commit) = (Some(monotonic()), 0, None);
    }

    /// A commit failed.
    pub fn commit_failed(&self, error: &StoreError) {
        let mut state = self.state();
        state.last_failed_commit = Some(monotonic());
        state.fail(error);
    }

    /// Returns how many bytes a probe should write now; `None` if no probe is needed.
    pub fn wants_probe(&self) -> Option<usize> {
        let (state, now) = (self.state(), monotonic());
        let is_recent = |moment: Instant, age| now.duration_since(moment) < age;
        if state.failures == 0 && state.last_success.is_some_and(|success| is_recent(success, FRESH)) {
            return None;
        }
        if state.last_probe.is_some_and(|probe| is_recent(probe, PROBE_INTERVAL)) {
            return None;
        }
        Some(if state.failures == 0 { SMALL_PROBE } else { LARGE_PROBE })
    }

    /// A probe ended.
    pub fn probed(&self, result: Result<(), StoreError>) {
        let (mut state, now) = (self.state(), monotonic());
        state.last_probe = Some(now);
        let held = |failed: Instant| now.duration_since(failed) < HOLD && state.failures >= TOO_MANY;
        match result {
            Ok(()) if state.last_failed_commit.is_some_and(held) => {}
            Ok(()) => (state.last_success, state.failures, state.last_failed_commit) = (Some(now), 0, None),
            Err(error) => state.fail(&error),
        }
    }

    /// Returns whether writes succeed, as far as is known; otherwise the last error.
    pub fn verdict(&self) -> Result<(), StoreError> {
        let state = self.state();
        let is_recent = |success: Instant| monotonic().duration_since(success) < GRACE;
        let ignored = state.last_success.is_some_and(is_recent) && state.failures < TOO_MANY;
        if state.failures == 0 || ignored { Ok(()) } else { state.last_error.clone().map_or(Ok(()), Err) }
    }
}

impl State {
    fn fail(&mut self, error: &StoreError) {
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some(error.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Result<(), StoreError> {
        Err(StoreError::unavailable("locked"))
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_does_not_count_two_do_and_one_success_resets_them() {
        let health = WriteHealth::default();
        health.committed();
        assert_eq!((health.wants_probe(), health.verdict()), (None, Ok(())));
        tokio::time::advance(FRESH).await;
        assert_eq!(health.wants_probe(), Some(SMALL_PROBE));
        health.probed(failed());
        assert_eq!(health.verdict(), Ok(()), "one failure does not count");
        assert_eq!(health.wants_probe(), None, "the result of a probe is used for a while");
        tokio::time::advance(PROBE_INTERVAL).await;
        assert_eq!(health.wants_probe(), Some(LARGE_PROBE));
        health.probed(failed());
        assert_eq!(health.verdict(), failed());
        tokio::time::advance(PROBE_INTERVAL).await;
        health.probed(Ok(()));
        assert_eq!((health.wants_probe(), health.verdict()), (None, Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_long_after_the_last_success_counts() {
        let health = WriteHealth::default();
        health.committed();
        tokio::time::advance(GRACE).await;
        health.probed(failed());
        assert_eq!(health.verdict(), failed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_does_not_hide_that_commits_fail() {
        let health = WriteHealth::default();
        let full = StoreError::unavailable("full");
        health.committed();
        health.commit_failed(&full);
        health.commit_failed(&full);
        tokio::time::advance(PROBE_INTERVAL).await;
        health.probed(Ok(()));
        assert_eq!(health.verdict(), Err(full.clone()));
        health.committed();
        assert_eq!(health.verdict(), Ok(()), "a commit counts");
        health.commit_failed(&full);
        health.commit_failed(&full);
        tokio::time::advance(HOLD).await;
        health.probed(Ok(()));
        assert_eq!(health.verdict(), Ok(()), "a probe counts when no commit has failed for a while");
    }
}
