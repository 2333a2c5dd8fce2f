//! What a new term does before it executes anything.

use std::time::Duration;

use tokio::time::Instant;

use super::progress::Heartbeat;
use crate::domain::lease::{Lease, Term};
use crate::engine::executor::close_interrupted;
use crate::engine::messages::TermFailed;
use crate::platform::clock::{StoreTime, monotonic};
use crate::store::FencedError;
use crate::store::ScheduleSnapshot;
use crate::store::client::StoreClient;

/// What is loaded of each contract at first; more is asked for while there is room. With a thousand contracts that
/// still fits into a few dozen MiB.
const FIRST_PAGE: usize = 256;

/// A term that was still held after everything was ready for it.
pub struct Prepared {
    pub asked: Instant,
    pub lease: Lease,
    pub snapshot: ScheduleSnapshot,
    pub closed: usize,
}

/// Closes what was left open, builds the schedule, and checks that the term is still held.
pub async fn prepare(
    store: &StoreClient,
    term: &Term,
    store_time: &StoreTime,
    duration: Duration,
    work: &Heartbeat,
) -> Result<Prepared, TermFailed> {
    let failed = |during: &str, error: FencedError| TermFailed::new(term, during, &error);
    let closed =
        close_interrupted(store, term, store_time, work).await.map_err(|error| failed("close interrupted", error))?;
    let snapshot = store.schedule_snapshot(FIRST_PAGE).await.map_err(|error| failed("build", error.into()))?;
    work.beat();
    let asked = monotonic();
    match store.renew_lease(term.clone(), duration).await {
        Ok(lease) => Ok(Prepared { asked, lease, snapshot, closed }),
        Err(error) => Err(failed("check", error)),
    }
}
