//! Who leads, as this instance knows it: written by the leader, read by readiness and pages.

use std::sync::{Arc, PoisonError, RwLock};

use crate::domain::lease::Lease;

/// Who leads, as far as this instance knows: for readiness and pages.
#[derive(Clone)]
pub struct LeadershipBoard {
    pub holder_id: Arc<str>,
    lease: Arc<RwLock<Option<Lease>>>,
}

impl LeadershipBoard {
    pub fn new(holder_id: Arc<str>) -> Self {
        Self { holder_id, lease: Arc::default() }
    }

    /// The lease of this instance, if it has one.
    pub fn lease(&self) -> Option<Lease> {
        self.lease.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn show(&self, lease: Option<Lease>) {
        *self.lease.write().unwrap_or_else(PoisonError::into_inner) = lease;
    }
}
