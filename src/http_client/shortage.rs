//! Counts calls that failed because this machine ran out of a resource, and logs them at most once a second.

use std::cell::Cell;
use std::time::Duration;

use prometheus::IntCounter;
use tokio::time::Instant;

use super::one_line;
use crate::platform::clock::monotonic;
use crate::platform::errors::BoxError;

/// During a shortage every call fails, and a log line for each could fill the disk.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A call was not made because this machine ran out of file descriptors, ports or memory. Nothing was sent, so this does not
/// count as an attempt. The text says what ran out and what to do.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct LocalResourceError(pub BoxError);

/// Reports the shortages that one client meets.
pub(super) struct ShortageReport {
    kind: &'static str,
    counter: IntCounter,
    logged: Cell<Option<Instant>>,
}

impl ShortageReport {
    pub(super) fn new(kind: &'static str, counter: IntCounter) -> Self {
        Self { kind, counter, logged: Cell::new(None) }
    }

    /// Counts one call that failed because of a shortage.
    pub(super) fn shortage(&self, error: &LocalResourceError) {
        self.counter.inc();
        let now = monotonic();
        if self.logged.get().is_none_or(|logged| now >= logged + LOG_INTERVAL) {
            self.logged.set(Some(now));
            let (kind, error) = (self.kind, one_line(error));
            log::error!(
                "local_resource_error kind={kind} error={error:?} next=\"calls are postponed until the shortage ends\""
            );
        }
    }
}
