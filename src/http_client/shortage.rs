//! Calls that failed because this machine or process is short of something: counted, and logged at most once a second.

use std::cell::Cell;
use std::time::Duration;

use prometheus::IntCounter;
use tokio::time::Instant;

use crate::platform::clock::monotonic;

/// Under a shortage every call fails; a line for each would fill the disk too.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A call was not made because this machine or process is short of descriptors, ports or memory. Nothing was
/// sent: it says nothing about the other side and is no attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LocalResourceError(pub String);

pub struct ShortageReport {
    kind: &'static str,
    counter: IntCounter,
    logged: Cell<Option<Instant>>,
}

impl ShortageReport {
    pub fn new(kind: &'static str, counter: IntCounter) -> Self {
        Self { kind, counter, logged: Cell::new(None) }
    }

    pub fn shortage(&self, what: &str) {
        self.counter.inc();
        let now = monotonic();
        if self.logged.get().is_none_or(|logged| now >= logged + LOG_INTERVAL) {
            self.logged.set(Some(now));
            let kind = self.kind;
            log::error!(
                "local_resource_error kind={kind} error={what:?} next=\"calls are postponed until it is over\""
            );
        }
    }
}
