//! Whether this instance leads, and which gateways it does not call: written by the leader, read by readiness checks, the
//! console and the report of the instance.

use std::sync::{Arc, PoisonError, RwLock};

use crate::domain::lease::Lease;
use crate::domain::schedule::GatewayId;
use crate::domain::time::Timestamp;

/// The lease that this instance holds, if it leads. Clones share it.
#[derive(Clone)]
pub struct LeadershipBoard {
    pub holder_id: Arc<str>,
    lease: Arc<RwLock<Option<Lease>>>,
    holds: Arc<RwLock<Vec<(GatewayId, Timestamp)>>>,
}

impl LeadershipBoard {
    pub fn new(holder_id: Arc<str>) -> Self {
        Self { holder_id, lease: Arc::default(), holds: Arc::default() }
    }

    /// Returns the lease of this instance, if it holds one.
    pub fn lease(&self) -> Option<Lease> {
        self.lease.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the lease.
    pub(super) fn set(&self, lease: Option<Lease>) {
        if lease.is_none() {
            self.set_holds(Vec::new());
        }
        *self.lease.write().unwrap_or_else(PoisonError::into_inner) = lease;
    }

    /// Returns the gateways that are on hold, as of the last attempt that was started or put off.
    pub fn holds(&self) -> Vec<(GatewayId, Timestamp)> {
        self.holds.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the gateways that are on hold.
    pub(in crate::engine) fn set_holds(&self, holds: Vec<(GatewayId, Timestamp)>) {
        *self.holds.write().unwrap_or_else(PoisonError::into_inner) = holds;
    }
}
