//! The lease as an operator sees it, and how far the store's clock is ahead of its host's.

use std::time::Duration;

use crate::domain::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// The last lease that was taken; none if there never was one.
    pub lease: Option<LeaseRow>,
    /// The time that leases are compared with.
    pub now: Timestamp,
    /// How far stored times are ahead of the clock of the database's host. Zero unless that clock was set back.
    pub clock_ahead: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    pub holder_id: String,
    pub epoch: i64,
    pub renewed_at: Timestamp,
    pub expires_at: Timestamp,
}
