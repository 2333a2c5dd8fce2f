//! Limits how many calls of gateways are in flight, in all and for each gateway.
//!
//! The schedule starts some attempts before a slot for their call is free. This limiter keeps the limits of calls exact. The
//! schedule reserves a part of all calls for gateways that have few calls in flight; the limiter keeps the same part free, so
//! that attempts that were started early for busy gateways cannot use it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::contract::GatewayUrl;
use crate::domain::schedule::Limits;

/// The limits of one term.
pub(super) struct CallLimiter {
    shared: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    /// One semaphore for each gateway that was called in this term. Their number is bounded by what registries have named.
    gateways: RefCell<HashMap<GatewayUrl, Arc<Semaphore>>>,
    limits: Limits,
}

/// A call that counts against the limits until this is dropped.
pub(super) struct OngoingCall {
    _gateway: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl CallLimiter {
    pub(super) fn new(limits: Limits) -> Self {
        let shared = Arc::new(Semaphore::new(limits.in_flight - limits.reserve()));
        let reserve = Arc::new(Semaphore::new(limits.reserve()));
        Self { shared, reserve, gateways: RefCell::default(), limits }
    }

    /// Waits until a call of this gateway may be made. It waits for the gateway's own limit first, so that a call that waits
    /// for one gateway does not count against the limit of all.
    pub(super) async fn enter(&self, url: &GatewayUrl) -> OngoingCall {
        let semaphore = self.gateway(url);
        // The semaphores are never closed, so `acquire_owned` does not fail.
        let gateway = Arc::clone(&semaphore).acquire_owned().await.ok();
        let under_way = self.limits.in_flight_per_gateway - semaphore.available_permits();
        let shared = Arc::clone(&self.shared);
        let all = match Arc::clone(&shared).try_acquire_owned() {
            Ok(free) => Some(free),
            Err(_) if under_way <= self.limits.few() => tokio::select! {
                biased;
                free = shared.acquire_owned() => free.ok(),
                reserved = Arc::clone(&self.reserve).acquire_owned() => reserved.ok(),
            },
            Err(_) => shared.acquire_owned().await.ok(),
        };
        OngoingCall { _gateway: gateway, _all: all }
    }

    fn gateway(&self, url: &GatewayUrl) -> Arc<Semaphore> {
        let mut gateways = self.gateways.borrow_mut();
        match gateways.get(url) {
            Some(gateway) => Arc::clone(gateway),
            None => {
                let gateway = Arc::new(Semaphore::new(self.limits.in_flight_per_gateway));
                gateways.insert(url.clone(), Arc::clone(&gateway));
                gateway
            }
        }
    }
}
