//! What a copy needs of a store. Each store implements it in its own dialect.

use std::sync::Arc;
use std::time::Duration;

use super::tables::{Row, Table};
use crate::domain::time::Timestamp;
use crate::store::StoreFuture;

/// The lease name under which a copy holds the lease of both stores. While it does, no instance leads: a store has one
/// leader, even if instances are configured with different lease names.
pub(in crate::store) const LEASE_NAME: &str = "submission-manager-copy";

/// Rows that are read or written at a time.
pub(in crate::store) const BATCH_ROWS: usize = 1000;
/// Rows are read until they have this many bytes together, so that a batch is small in memory. A row that is larger is read
/// alone.
pub(in crate::store) const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// The last lease of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct LastLease {
    pub name: String,
    pub holder: String,
    /// Whether it has not expired.
    pub held: bool,
}

/// Until when a copy holds the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum HoldUntil {
    /// It releases the lease.
    Now,
    /// For this long, unless it renews it.
    After(Duration),
    /// Until somebody resets the lease.
    Forever,
}

impl HoldUntil {
    pub(in crate::store) fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::After(duration) => now + duration,
            Self::Forever => Timestamp::LATEST,
        }
    }
}

/// What a store knows besides its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Counters {
    /// The store's clock. It must never go back.
    pub clock: Timestamp,
    /// The highest number that an intent ever had, and the lowest number of a job. Numbers are not used again, also if
    /// their intents were deleted.
    pub highest: i64,
    pub lowest: i64,
}

/// A store as the source or the target of a copy. Its schema is current.
pub(in crate::store) trait CopySide: Send + Sync {
    /// The last lease, which decides whether an instance uses the store.
    fn last_lease(&self) -> StoreFuture<Option<LastLease>>;

    /// Acquires the lease for a copy, with an epoch that is higher than all before it and at least `epoch`. Takes it from
    /// another copy, but not from an instance: then it returns `None`. Returns its epoch.
    fn take_lease(&self, holder: Arc<str>, epoch: i64, until: HoldUntil) -> StoreFuture<Option<i64>>;

    /// Changes until when this holder has the lease. Returns whether it still had it.
    fn hold_lease(&self, holder: Arc<str>, until: HoldUntil) -> StoreFuture<bool>;

    fn count(&self, table: &'static Table) -> StoreFuture<u64>;

    /// The key of the row at this place in the order of keys, counted from 0.
    fn key_at(&self, table: &'static Table, place: u64) -> StoreFuture<Option<Row>>;

    /// Reads the rows that follow a key, in the order of keys: up to [`BATCH_ROWS`] with about [`BATCH_BYTES`] bytes.
    fn read(&self, table: &'static Table, after: Option<Row>) -> StoreFuture<Vec<Row>>;

    /// Inserts rows in one transaction, if this holder has the lease. Returns whether it had it. The row of a table that
    /// has exactly one is replaced.
    fn write(&self, holder: Arc<str>, table: &'static Table, rows: Arc<Vec<Row>>) -> StoreFuture<bool>;

    fn counters(&self) -> StoreFuture<Counters>;

    /// Advances the counters to these, if they are behind.
    fn advance_counters(&self, counters: Counters) -> StoreFuture<()>;
}
