//! Responses that go on for as long as the client wants, and the limit of their number.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use crate::platform::descriptors::ConnectionLimits;
use crate::telemetry::metrics::Metrics;

/// How many streams may be open. Clones share the number.
#[derive(Clone)]
pub struct StreamSlots {
    free: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl StreamSlots {
    /// Streams get half of the connections that one address may have, so that a proxy through which all clients connect has
    /// connections left for their other requests.
    pub fn new(limits: ConnectionLimits, metrics: Arc<Metrics>) -> Self {
        let most = (limits.total.min(limits.per_address) / 2).clamp(1, Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(most)), metrics }
    }

    /// Takes a slot for one stream. Fails with `Overloaded` if all are taken.
    pub fn take(&self) -> Result<StreamSlot, ApiError> {
        let slot = Arc::clone(&self.free).try_acquire_owned().map_err(|_| ApiError::Overloaded)?;
        self.metrics.event_streams.inc();
        Ok(StreamSlot { metrics: Arc::clone(&self.metrics), _slot: slot })
    }
}

/// Permission for one stream. Dropping it makes room for another one.
pub struct StreamSlot {
    metrics: Arc<Metrics>,
    _slot: OwnedSemaphorePermit,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.metrics.event_streams.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_leave_half_of_the_connections_of_an_address() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let slots = StreamSlots::new(ConnectionLimits { total: 100, per_address: 5 }, Arc::clone(&metrics));
        let (first, _second) = (slots.take().unwrap(), slots.take().unwrap());
        assert!(matches!(slots.take(), Err(ApiError::Overloaded)));
        assert_eq!(metrics.event_streams.get(), 2);
        drop(first);
        assert!(slots.take().is_ok());
    }
}
