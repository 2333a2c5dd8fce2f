//! Reading a request body within limits of size and time, and all bodies within one of memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::web::{Bytes, Payload};
use bytes::BytesMut;
use futures_util::StreamExt;

use super::error::ApiError;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of bodies that are being read or handled at once, over all connections. Counted as they come, so that
/// those who send slowly take little from others.
const MAX_BYTES: usize = 256 * 1024 * 1024;
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Room in memory for a body; given back when dropped.
#[derive(Default)]
pub struct Room(usize);

impl Room {
    /// `Overloaded` if there is none left.
    fn grow(&mut self, by: usize) -> Result<(), ApiError> {
        self.0 += by;
        if BYTES.fetch_add(by, Ordering::Relaxed) + by > MAX_BYTES {
            return Err(ApiError::Overloaded);
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The whole body, if it has at most `limit` bytes and arrives in time; and the room that it takes, to be kept as
/// long as the body is.
pub async fn read(payload: Payload, limit: usize) -> Result<(Bytes, Room), ApiError> {
    tokio::time::timeout(BODY_TIMEOUT, collect(payload, limit)).await.unwrap_or(Err(ApiError::RequestTimeout))
}

async fn collect(mut payload: Payload, limit: usize) -> Result<(Bytes, Room), ApiError> {
    let mut room = Room::default();
    // Most come in one piece, which need not be copied.
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(piece) = payload.next().await {
        let piece = piece.map_err(|_| ApiError::BrokenBody)?;
        room.grow(piece.len())?;
        if room.0 > limit {
            return Err(ApiError::PayloadTooLarge { what: "request body", limit });
        }
        if first.is_empty() && all.is_empty() {
            first = piece;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&piece);
        }
    }
    Ok((if all.is_empty() { first } else { all.freeze() }, room))
}
