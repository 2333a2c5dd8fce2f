//! How many calls are under way at once, in all and per gateway: exact, whatever was begun ahead.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::core::contract::GatewayUrl;
use crate::core::schedule::Limits;

pub struct Calls {
    all: Arc<Semaphore>,
    /// One for each gateway that was ever called in this term: as many as registries have named.
    gateways: RefCell<HashMap<GatewayUrl, Arc<Semaphore>>>,
    per_gateway: usize,
}

/// A call under way; over when dropped.
pub struct Calling {
    _gateway: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl Calls {
    pub fn new(limits: Limits) -> Self {
        let all = Arc::new(Semaphore::new(limits.in_flight));
        Self { all, gateways: RefCell::default(), per_gateway: limits.in_flight_per_gateway }
    }

    /// Waits until there is room, first at the gateway: who waits there takes no room from others.
    pub async fn enter(&self, url: &GatewayUrl) -> Calling {
        let gateway = {
            let mut gateways = self.gateways.borrow_mut();
            match gateways.get(url) {
                Some(gateway) => Arc::clone(gateway),
                None => {
                    let gateway = Arc::new(Semaphore::new(self.per_gateway));
                    gateways.insert(url.clone(), Arc::clone(&gateway));
                    gateway
                }
            }
        };
        // Semaphores that nobody closes always give a permit in the end.
        let gateway = gateway.acquire_owned().await.ok();
        Calling { _gateway: gateway, _all: Arc::clone(&self.all).acquire_owned().await.ok() }
    }
}
