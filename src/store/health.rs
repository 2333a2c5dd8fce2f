//! Whether this instance can write to its store, for readiness checks.
//!
//! A store that answers reads may still refuse every write: its disk is full, another process keeps it locked, its file
//! is damaged. So readiness needs a write that succeeded a moment ago: a commit of this instance or, when it has none to make, a
//! probe. One failure does not make an instance unready, and one success makes it ready again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::platform::clock::monotonic;

/// A write that succeeded this recently makes a probe unnecessary: readiness checks come every second or two.
const FRESH: Duration = Duration::from_secs(2);
/// For so long after the last success a single failure is forgiven.
const GRACE: Duration = Duration::from_secs(5);
/// Failures in a row that are not forgiven.
const TOO_MANY: u32 = 2;
/// For so long after commits have failed, a probe that succeeds does not count: it is smaller than a commit and may fit
/// where no commit does.
const HOLD: Duration = Duration::from_secs(10);
/// How long the answer of a probe is passed on to others who ask.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that a probe writes.
const SMALL_PROBE: usize = 512;
/// Bytes that a probe writes after a failure: as much as a few dozen intents, so that it needs space on the disk.
const LARGE_PROBE: usize = 64 * 1024;

/// Shared by the actor that commits and by whoever asks.
#[derive(Clone)]
pub struct WriteHealth(Arc<Mutex<State>>);

struct State {
    last_success: Option<Instant>,
    /// Since the last success.
    failures: u32,
    last_failed_commit: Option<Instant>,
    last_probe: Option<Instant>,
    last_error: String,
}

impl Default for WriteHealth {
    /// Nothing is known until the first write: a store on another machine may never have been reached.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            last_success: None,
            failures: 0,
            last_failed_commit: None,
            last_probe: None,
            last_error: String::new(),
        })))
    }
}

impl WriteHealth {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn committed(&self) {
        let mut state = self.state();
        (state.last_success, state.failures, state.last_failed_commit) = (Some(monotonic()), 0, None);
    }

    pub fn commit_failed(&self, error: &str) {
        let mut state = self.state();
        state.last_failed_commit = Some(monotonic());
        state.fail(error);
    }

    /// How many bytes a probe should write now; `None` if what is known is recent enough.
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

    pub fn probed(&self, result: Result<(), String>) {
        let (mut state, now) = (self.state(), monotonic());
        state.last_probe = Some(now);
        let held = |failed: Instant| now.duration_since(failed) < HOLD && state.failures >= TOO_MANY;
        match result {
            Ok(()) if state.last_failed_commit.is_some_and(held) => {}
            Ok(()) => (state.last_success, state.failures, state.last_failed_commit) = (Some(now), 0, None),
            Err(error) => state.fail(&error),
        }
    }

    /// Whether writes succeed, as far as is known; otherwise what the last failure was.
    pub fn verdict(&self) -> Result<(), String> {
        let state = self.state();
        let is_recent = |success: Instant| monotonic().duration_since(success) < GRACE;
        let forgiven = state.last_success.is_some_and(is_recent) && state.failures < TOO_MANY;
        if state.failures == 0 || forgiven { Ok(()) } else { Err(state.last_error.clone()) }
    }
}

impl State {
    fn fail(&mut self, error: &str) {
        self.failures = self.failures.saturating_add(1);
        error.clone_into(&mut self.last_error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Result<(), String> {
        Err("locked".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_is_forgiven_two_are_not_and_one_success_heals() {
        let health = WriteHealth::default();
        health.committed();
        assert_eq!((health.wants_probe(), health.verdict()), (None, Ok(())));
        tokio::time::advance(FRESH).await;
        assert_eq!(health.wants_probe(), Some(SMALL_PROBE));
        health.probed(failed());
        assert_eq!(health.verdict(), Ok(()), "one failure is forgiven");
        assert_eq!(health.wants_probe(), None, "not one probe for every question");
        tokio::time::advance(PROBE_INTERVAL).await;
        assert_eq!(health.wants_probe(), Some(LARGE_PROBE));
        health.probed(failed());
        assert_eq!(health.verdict(), failed());
        tokio::time::advance(PROBE_INTERVAL).await;
        health.probed(Ok(()));
        assert_eq!((health.wants_probe(), health.verdict()), (None, Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_long_after_the_last_success_is_not_forgiven() {
        let health = WriteHealth::default();
        health.committed();
        tokio::time::advance(GRACE).await;
        health.probed(failed());
        assert_eq!(health.verdict(), failed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_does_not_hide_that_commits_fail() {
        let health = WriteHealth::default();
        health.committed();
        health.commit_failed("full");
        health.commit_failed("full");
        tokio::time::advance(PROBE_INTERVAL).await;
        health.probed(Ok(()));
        assert_eq!(health.verdict(), Err("full".to_owned()));
        health.committed();
        assert_eq!(health.verdict(), Ok(()), "a commit does");
        health.commit_failed("full");
        health.commit_failed("full");
        tokio::time::advance(HOLD).await;
        health.probed(Ok(()));
        assert_eq!(health.verdict(), Ok(()), "so does a probe when none was made for a while");
    }
}
