//! The engine of one instance: the store actor, the leader and, while this instance leads, the actors of its term.
//!
//! [`Engine::start`] is the only place that starts the store actor and the leader and assigns actors to threads. The
//! service and the tests start the same engine.

mod audit_retention;
pub mod event_feed;
pub mod executor;
mod inbox;
pub mod instance_report;
pub mod leader;
mod lease_trust;
pub mod messages;
mod one_at_a_time;
mod redrive;
mod retention;
mod scheduler;
pub mod webhooks;

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use crate::engine::event_feed::EventFeed;
use crate::engine::leader::{EngineDeps, LeaderActor, LeaderDeps, LeaderSettings, LeadershipBoard, StopLeading};
use crate::platform::actor_thread::ActorThread;
use crate::platform::supervision::Supervised;
use crate::store::Store;
use crate::store::actor::{StoreActor, StoreDeps};
use crate::store::client::StoreClient;
use crate::store::health::WriteHealth;
use crate::store::watchers::IntentWatchers;
use crate::store::{InFlight, TermSubscription};
use crate::telemetry::metrics::Metrics;

/// The threads on which the actors run.
pub struct Threads {
    store: ActorThread,
    leader: ActorThread,
    executor: ActorThread,
    webhooks: ActorThread,
}

impl Threads {
    /// One thread for each group of actors, as in the service.
    pub fn own() -> Self {
        let thread = ActorThread::start_own;
        Self { store: thread(), leader: thread(), executor: thread(), webhooks: thread() }
    }

    /// All actors on the current thread, where a test can pause the clock.
    #[cfg(test)]
    pub fn shared() -> Self {
        let thread = ActorThread::caller;
        Self { store: thread(), leader: thread(), executor: thread(), webhooks: thread() }
    }
}

/// The running actors of one instance, and what others need to use them.
pub struct Engine {
    pub store: StoreClient,
    pub watchers: IntentWatchers,
    pub events: EventFeed,
    pub metrics: Arc<Metrics>,
    pub board: LeadershipBoard,
    leader: Supervised<LeaderActor>,
}

impl Engine {
    /// Starts the store actor and the leader.
    pub fn start(
        store: Arc<dyn Store>,
        settings: LeaderSettings,
        engine: EngineDeps,
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
            intents_ended: Arc::new(Notify::new()),
            health: WriteHealth::default(),
        };
        let watchers = deps.watchers.clone();
        let store_actor = {
            let (deps, thread) = (deps.clone(), threads.store);
            Supervised::start("store", move |alive| {
                let deps = deps.clone();
                thread.start(move |_| StoreActor::new(deps, alive))
            })
        };
        let client = StoreClient::new(store_actor, deps);
        actix::spawn(client.clone().watch_clock());
        let events = EventFeed::new(client.clone());
        actix::spawn(events.clone().run());
        let board = LeadershipBoard::new(Arc::clone(&settings.holder_id));
        let deps = LeaderDeps {
            store: client.clone(),
            metrics: Arc::clone(&metrics),
            board: board.clone(),
            in_flight: InFlight::new(Arc::clone(&metrics)),
            engine,
            scheduler_thread: threads.leader.clone(),
            executor_thread: threads.executor,
            webhook_thread: threads.webhooks,
            settings,
        };
        let leader = Supervised::start("leader", move |alive| {
            let deps = deps.clone();
            threads.leader.start(move |_| LeaderActor::new(deps, alive))
        });
        Self { store: client, watchers, events, metrics, board, leader }
    }

    /// Stops leading in an orderly way: starts no new attempt, records those in flight, and releases the lease.
    pub async fn stop_leading(&self) {
        let (done, stopped) = oneshot::channel();
        self.leader.address().do_send(StopLeading { done });
        let _an_error_means_that_the_leader_died = stopped.await;
    }

    #[cfg(test)]
    pub fn leader(&self) -> actix::Addr<LeaderActor> {
        self.leader.address()
    }
}

#[cfg(test)]
mod tests;
