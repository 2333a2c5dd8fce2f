//! Reading a request body within a limit of size and time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::web::{Bytes, Payload};

use super::error::ApiError;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Bodies being read or handled at once, over all connections: what bounds their memory. At the
/// default payload limit that is 256 MiB at the very worst.
const MAX_BODIES: usize = 1024;
static BODIES: AtomicUsize = AtomicUsize::new(0);

/// A place among those whose bodies are in memory; given back when dropped.
pub struct Place(());

impl Place {
    /// `Overloaded` if all places are taken.
    pub fn take() -> Result<Self, ApiError> {
        let place = Self(());
        if BODIES.fetch_add(1, Ordering::Relaxed) >= MAX_BODIES {
            return Err(ApiError::Overloaded);
        }
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        BODIES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The whole body, if it has at most `limit` bytes and arrives in time.
pub async fn read(payload: Payload, limit: usize) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_TIMEOUT, payload.to_bytes_limited(limit)).await {
        Ok(Ok(Ok(bytes))) => Ok(bytes),
        Ok(Ok(Err(error))) => Err(ApiError::InvalidRequest(format!("the body could not be read: {error}"))),
        Ok(Err(_over_limit)) => Err(ApiError::PayloadTooLarge { what: "request body", limit }),
        Err(_timeout) => Err(ApiError::RequestTimeout),
    }
}
