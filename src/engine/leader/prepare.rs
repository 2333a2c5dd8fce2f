//! What a new term does before it starts attempts.

use std::time::Duration;

use tokio::time::Instant;

use super::progress::Heartbeat;
use crate::domain::lease::{Lease, Term};
use crate::engine::executor::{Closed, close_interrupted};
use crate::engine::messages::TermFailed;
use crate::platform::clock::{StoreTime, monotonic};
use crate::store::FencedError;
use crate::store::ScheduleSnapshot;
use crate::store::client::StoreClient;

/// Waiting intents that are loaded of each lane at first. The scheduler loads further pages while it has room. With a
/// thousand lanes the first pages still fit into a few dozen MiB.
const FIRST_PAGE: usize = 256;

/// A prepared term that still held the lease afterwards.
pub(super) struct Prepared {
    /// When the renewal after the preparation was requested.
    pub requested_at: Instant,
    pub lease: Lease,
    pub snapshot: ScheduleSnapshot,
    /// How many interrupted attempts were closed.
    pub closed: Closed,
}

/// Closes the attempts that earlier terms left open, reads the schedule, and renews the lease to check that the term still
/// holds it.
pub(super) async fn prepare(
    store: &StoreClient,
    term: &Term,
    store_time: &StoreTime,
    duration: Duration,
    progress: &Heartbeat,
) -> Result<Prepared, TermFailed> {
    let failed = |during: &str, error: FencedError| TermFailed::new(term, during, &error);
    let closed = close_interrupted(store, term, store_time, progress)
        .await
        .map_err(|error| failed("close interrupted attempts", error))?;
    let snapshot = store.schedule_snapshot(FIRST_PAGE).await.map_err(|error| failed("read schedule", error.into()))?;
    progress.beat();
    let requested_at = monotonic();
    match store.renew_lease(term.clone(), duration).await {
        Ok(lease) => Ok(Prepared { requested_at, lease, snapshot, closed }),
        Err(error) => Err(failed("renew", error)),
    }
}
