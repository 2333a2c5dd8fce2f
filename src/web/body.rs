//! Reads request bodies within limits: each body has a maximum size and a timeout, and all bodies together share one
//! memory budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::web::{Bytes, Payload};
use bytes::BytesMut;
use futures_util::StreamExt;

use super::error::ApiError;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory for bodies that are being read or handled at the same time, over all connections. Bytes are counted as they
/// arrive, so clients that send slowly take little of it.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// The memory that all request bodies of this instance share. Clones count against the same budget.
#[derive(Clone, Default)]
pub struct BodyBudget(Arc<AtomicUsize>);

impl BodyBudget {
    /// Reads a whole body. Fails if it has more than `limit` bytes, takes longer than ten seconds or exceeds the
    /// memory budget. Keep the reservation for as long as the body is in memory.
    pub async fn read(&self, payload: Payload, limit: usize) -> Result<(Bytes, BodyReservation), ApiError> {
        let read = tokio::time::timeout(BODY_TIMEOUT, self.collect(payload, limit)).await;
        read.unwrap_or(Err(ApiError::RequestTimeout))
    }

    async fn collect(&self, mut payload: Payload, limit: usize) -> Result<(Bytes, BodyReservation), ApiError> {
        let mut reserved = BodyReservation { budget: self.clone(), bytes: 0 };
        // Most bodies arrive as one chunk, which is used without copying it.
        let mut first = Bytes::new();
        let mut all = BytesMut::new();
        while let Some(chunk) = payload.next().await {
            let chunk = chunk.map_err(|_| ApiError::BrokenBody)?;
            reserved.grow(chunk.len())?;
            if reserved.bytes > limit {
                return Err(ApiError::PayloadTooLarge { what: "request body", limit });
            }
            if first.is_empty() && all.is_empty() {
                first = chunk;
            } else {
                if all.is_empty() {
                    all.extend_from_slice(&first);
                }
                all.extend_from_slice(&chunk);
            }
        }
        Ok((if all.is_empty() { first } else { all.freeze() }, reserved))
    }
}

/// The part of the [`BodyBudget`] that one body uses. Dropping it returns the memory to the budget.
pub struct BodyReservation {
    budget: BodyBudget,
    bytes: usize,
}

impl BodyReservation {
    /// Reserves `by` more bytes. Fails with `Overloaded` if the budget is used up.
    fn grow(&mut self, by: usize) -> Result<(), ApiError> {
        self.bytes += by;
        if self.budget.0.fetch_add(by, Ordering::Relaxed) + by > MAX_BYTES {
            return Err(ApiError::Overloaded);
        }
        Ok(())
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_reservation_returns_its_memory_to_the_shared_budget() {
        let budget = BodyBudget::default();
        let reservation = || BodyReservation { budget: budget.clone(), bytes: 0 };
        let (mut large, mut small) = (reservation(), reservation());
        assert!(large.grow(MAX_BYTES).is_ok());
        assert!(matches!(small.grow(1), Err(ApiError::Overloaded)));
        drop((large, small));
        assert!(reservation().grow(MAX_BYTES).is_ok());
        assert_eq!(budget.0.load(Ordering::Relaxed), 0);
    }
}
