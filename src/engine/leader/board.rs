//! Whether this instance leads: written by the leader, read by readiness checks and the console.

use std::sync::{Arc, PoisonError, RwLock};

use crate::domain::lease::Lease;

/// The lease that this instance holds, if it leads. Clones share it.
#[derive(Clone)]
pub struct LeadershipBoard {
    pub holder_id: Arc<str>,
    lease: Arc<RwLock<Option<Lease>>>,
}

impl LeadershipBoard {
    pub fn new(holder_id: Arc<str>) -> Self {
        Self { holder_id, lease: Arc::default() }
    }

    /// Returns the lease of this instance, if it holds one.
    pub fn lease(&self) -> Option<Lease> {
        self.lease.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the lease.
    pub(super) fn set(&self, lease: Option<Lease>) {
        *self.lease.write().unwrap_or_else(PoisonError::into_inner) = lease;
    }
}
