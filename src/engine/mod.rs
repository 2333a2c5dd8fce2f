//! The actors of one instance, wired together: store, leader and, while it leads, its children.
//!
//! The only place where actors are made and placed on threads. HTTP, the command line and the
//! tests all start the same engine.

pub mod executor;
mod inbox;
pub mod leader;
mod lease_trust;
pub mod messages;
mod one_at_a_time;
mod retention;
mod scheduler;
pub mod webhooks;

use std::sync::Arc;

use actix::{Actor, Arbiter, ArbiterHandle};
use tokio::sync::{Notify, oneshot};

use crate::engine::leader::{EngineDeps, LeaderActor, LeaderDeps, LeaderSettings, LeadershipBoard, StopLeading};
use crate::platform::supervision::Supervised;
use crate::store::Store;
use crate::store::actor::{StoreActor, StoreDeps};
use crate::store::client::StoreClient;
use crate::store::health::WriteHealth;
use crate::store::watchers::IntentWatchers;
use crate::store::{InFlight, TermSubscription};
use crate::telemetry::metrics::Metrics;

/// Where the actors run.
pub struct Threads {
    store: ArbiterHandle,
    leader: ArbiterHandle,
    executor: ArbiterHandle,
    webhooks: ArbiterHandle,
}

impl Threads {
    /// A thread for each, as the service runs.
    pub fn own() -> Self {
        let thread = || Arbiter::new().handle();
        Self { store: thread(), leader: thread(), executor: thread(), webhooks: thread() }
    }

    /// All on the current thread, where a test can stop the clock.
    #[cfg(test)]
    pub fn shared() -> Self {
        let thread = Arbiter::current;
        Self { store: thread(), leader: thread(), executor: thread(), webhooks: thread() }
    }
}

pub struct Engine {
    pub store: StoreClient,
    pub watchers: IntentWatchers,
    pub metrics: Arc<Metrics>,
    pub board: LeadershipBoard,
    leader: Supervised<LeaderActor>,
}

impl Engine {
    pub fn start(
        store: Arc<dyn Store>,
        settings: LeaderSettings,
        outside: EngineDeps,
        metrics: Arc<Metrics>,
        threads: Threads,
    ) -> Self {
        let deps = StoreDeps {
            store,
            metrics: Arc::clone(&metrics),
            watchers: IntentWatchers::default(),
            subscription: TermSubscription::default(),
            pending_webhooks: Arc::new(Notify::new()),
            inbox_filled: Arc::new(Notify::new()),
            health: WriteHealth::default(),
        };
        let watchers = deps.watchers.clone();
        let store_actor = {
            let (deps, thread) = (deps.clone(), threads.store);
            Supervised::start("store", move |alive| {
                let deps = deps.clone();
                StoreActor::start_in_arbiter(&thread, move |_| StoreActor::new(deps, alive))
            })
        };
        let client = StoreClient::new(store_actor, deps);
        actix::spawn(client.clone().watch_clock());
        let board = LeadershipBoard::new(Arc::clone(&settings.holder_id));
        let deps = LeaderDeps {
            store: client.clone(),
            metrics: Arc::clone(&metrics),
            board: board.clone(),
            in_flight: InFlight::new(Arc::clone(&metrics)),
            outside,
            scheduler_arbiter: threads.leader.clone(),
            executor_arbiter: threads.executor,
            webhook_arbiter: threads.webhooks,
            settings,
        };
        let leader = Supervised::start("leader", move |alive| {
            let deps = deps.clone();
            LeaderActor::start_in_arbiter(&threads.leader, move |_| LeaderActor::new(deps, alive))
        });
        Self { store: client, watchers, metrics, board, leader }
    }

    /// Orderly: no new attempt, those under way are recorded, the lease is given back.
    pub async fn stop_leading(&self) {
        let (done, stopped) = oneshot::channel();
        self.leader.address().do_send(StopLeading { done });
        let _an_error_means_that_it_died = stopped.await;
    }

    #[cfg(test)]
    pub fn leader(&self) -> actix::Addr<LeaderActor> {
        self.leader.address()
    }
}

#[cfg(test)]
mod tests;
