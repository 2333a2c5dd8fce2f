//! How many calls are under way at once, in all and per gateway: exact, whatever was begun ahead.
//!
//! The part of all calls that the schedule reserves for gateways with few calls under way is kept free for them here
//! too, so that attempts that busy gateways were given ahead of their call cannot take it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::contract::GatewayUrl;
use crate::domain::schedule::Limits;

pub struct Calls {
    shared: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    /// One for each gateway that was ever called in this term: as many as registries have named.
    gateways: RefCell<HashMap<GatewayUrl, Arc<Semaphore>>>,
    limits: Limits,
}

/// A call under way; over when dropped.
pub struct Calling {
    _gateway: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl Calls {
    pub fn new(limits: Limits) -> Self {
        let shared = Arc::new(Semaphore::new(limits.in_flight - limits.reserve()));
        let reserve = Arc::new(Semaphore::new(limits.reserve()));
        Self { shared, reserve, gateways: RefCell::default(), limits }
    }

    /// Waits until there is room, first at the gateway: who waits there takes no room from others.
    pub async fn enter(&self, url: &GatewayUrl) -> Calling {
        let gateway = self.gateway(url);
        // Semaphores that nobody closes always give a permit in the end.
        let permit = Arc::clone(&gateway).acquire_owned().await.ok();
        let under_way = self.limits.in_flight_per_gateway - gateway.available_permits();
        let shared = Arc::clone(&self.shared);
        let all = match Arc::clone(&shared).try_acquire_owned() {
            Ok(free) => Some(free),
            Err(_) if under_way <= self.limits.few() => tokio::select! {
                free = shared.acquire_owned() => free.ok(),
                reserved = Arc::clone(&self.reserve).acquire_owned() => reserved.ok(),
            },
            Err(_) => shared.acquire_owned().await.ok(),
        };
        Calling { _gateway: permit, _all: all }
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
