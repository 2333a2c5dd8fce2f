//! The lease as an operator sees it, and how far the store's clock is ahead of its host's.

use std::time::Duration;

use crate::domain::time::Timestamp;

/// The last lease, and the clocks that it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// The last lease that was acquired; `None` if there never was one.
    pub lease: Option<LeaseRow>,
    /// The store's time, which decides whether the lease has expired.
    pub now: Timestamp,
    /// How far the store's time is ahead of the clock of the database's host. It is zero unless that clock was set back.
    pub clock_ahead: Duration,
}

/// How many terms a store remembers with their holders. Even if the lease changed hands every minute, that is two months; the
/// rows take less than 10 MB.
pub(super) const KEPT_TERMS: i64 = 100_000;

/// A lease as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    pub holder_id: String,
    pub epoch: i64,
    pub renewed_at: Timestamp,
    pub expires_at: Timestamp,
}
