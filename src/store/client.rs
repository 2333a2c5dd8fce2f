//! `StoreClient`: typed calls of the store, which become messages to `StoreActor`.
//!
//! The calls of the contract are generated in [`super::contract`]; this file has batched writes, readiness and the ways in
//! which calls are sent. No call waits for room in a queue: the actor answers `Overloaded` when its queues are full, and a
//! dead actor is `Unavailable`. A call that a client waits for is `Unavailable` once the store's budget of time is used up,
//! in the queue or in the store. The leader's own calls are bounded by the store, and by how long the leader trusts its
//! lease.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::prelude::SendError;
use actix::{Addr, Handler, Message};
use tokio::sync::{Mutex, Notify, Semaphore, oneshot};
use tokio::time::Instant;

use super::actor::{StoreActor, StoreDeps};
use super::health::WriteHealth;
use super::messages::{CallKind, Fenced, Receive, Reply, StoreCall, Submit, SubmitAll};
use super::{
    FencedError, FencedResult, FencedResults, FencedWrites, NewInboxSubmission, NewIntent, PROBE_BUDGET, Received,
    Store, StoreError, StoreFailure, StoreFuture, StoredIntent, Submitted, TermSubscriber, TermSubscription,
};
use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::lease::Term;
use crate::platform::clock::monotonic;
use crate::platform::supervision::Supervised;

/// How many writes that clients or operators request may run at the same time. Each is a transaction of its own, and
/// the leader's writes must not wait for many of them.
const MAX_OWN_WRITES: usize = 4;

/// How often the store's clock is compared with its host's.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// From here on a store's clock counts as ahead. Smaller corrections of a host's clock are common and harmless.
const NOTABLY_AHEAD: Duration = Duration::from_secs(5);

/// The handle through which everything except the store actor calls the store. Clones share everything.
#[derive(Clone)]
pub struct StoreClient {
    actor: Supervised<StoreActor>,
    subscription: TermSubscription,
    pending_webhooks: Arc<Notify>,
    inbox_filled: Arc<Notify>,
    redrives_changed: Arc<Notify>,
    intents_ended: Arc<Notify>,
    shared: Arc<Shared>,
}

/// What all clones of a client share.
struct Shared {
    health: WriteHealth,
    /// Held while a probe runs, so that one runs at a time.
    probe: Mutex<()>,
    /// Microseconds that the store's clock is ahead of its host's.
    clock_ahead: AtomicU64,
    /// How long a client's request may take.
    budget: Duration,
    own_writes: Semaphore,
    long_write: Semaphore,
}

/// Which actor of this instance has something to do after a write.
pub(super) enum Wake {
    Scheduler,
    Webhooks,
    Inbox,
    Redrives,
}

impl StoreClient {
    pub fn new(actor: Supervised<StoreActor>, deps: StoreDeps) -> Self {
        let StoreDeps { store, subscription, pending_webhooks, inbox_filled, intents_ended, health, .. } = deps;
        let redrives_changed = Arc::default();
        let shared = Shared {
            health,
            probe: Mutex::new(()),
            clock_ahead: AtomicU64::new(0),
            budget: store.budget(),
            own_writes: Semaphore::new(MAX_OWN_WRITES),
            long_write: Semaphore::new(1),
        };
        let shared = Arc::new(shared);
        Self { actor, subscription, pending_webhooks, inbox_filled, redrives_changed, intents_ended, shared }
    }

    /// Stores an intent; resolves when it is durable.
    pub async fn submit(&self, new: NewIntent) -> Result<Submitted, StoreError> {
        let give_up_at = self.give_up_at();
        self.within(give_up_at, self.call(|reply| Submit { new, reply, give_up_at })).await?
    }

    /// Stores several intents, in as few commits as possible; resolves when all are durable or have failed. Each has a result of
    /// its own. If the queue cannot take all of them, none is stored and the error is `Overloaded`.
    pub async fn submit_all(&self, new: Vec<NewIntent>) -> Result<Vec<Result<Submitted, StoreError>>, StoreError> {
        let give_up_at = self.give_up_at();
        let (mut submits, mut answers) = (Vec::with_capacity(new.len()), Vec::with_capacity(new.len()));
        for new in new {
            let (reply, answer) = oneshot::channel();
            submits.push(Submit { new, reply, give_up_at });
            answers.push(answer);
        }
        self.within(give_up_at, self.call(|reply| SubmitAll { submits, reply })).await??;
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            let answer = async { answer.await.map_err(|_| StoreError::unavailable("the store restarted")) };
            results.push(self.within(give_up_at, answer).await.and_then(|result| result));
        }
        Ok(results)
    }

    /// Stores an inbox submission; resolves when it is durable.
    pub async fn receive(&self, new: NewInboxSubmission) -> Result<Received, StoreError> {
        let give_up_at = self.give_up_at();
        self.within(give_up_at, self.call(|reply| Receive { new, reply, give_up_at })).await?
    }

    /// Makes writes of the leader in one transaction, if their term holds the lease.
    pub async fn fenced(&self, writes: FencedWrites) -> FencedResult<FencedResults> {
        let give_up_at = self.give_up_at();
        self.call(|reply| Fenced { writes, reply, give_up_at }).await.map_err(FencedError::Store)?
    }

    /// Exhausts up to `limit` waiting intents whose deadline has passed, and returns them.
    pub async fn expire_overdue(&self, term: &Term, limit: usize) -> FencedResult<Vec<IntentSeq>> {
        let done = self.fenced(FencedWrites { expire: Some(limit), ..FencedWrites::new(term) }).await?;
        Ok(done.ended.iter().map(|intent| intent.seq).collect())
    }

    /// Finds an intent for a caller that can do without an answer: `Overloaded` if the store has others to answer.
    pub async fn find_if_idle(&self, id: IntentId) -> Result<Option<StoredIntent>, StoreError> {
        self.call(|reply| StoreCall::new(CallKind::Optional, reply, move |store| store.find(id))).await?.answer
    }

    /// Resolves when webhook events may have become pending since the last time.
    pub async fn pending_webhooks(&self) {
        self.pending_webhooks.notified().await;
    }

    /// Resolves when inbox submissions may have become due since the last time.
    pub async fn inbox_filled(&self) {
        self.inbox_filled.notified().await;
    }

    /// Resolves when redrives may have been started or resumed since the last time.
    pub async fn redrives_changed(&self) {
        self.redrives_changed.notified().await;
    }

    /// Resolves when this instance may have ended intents since the last time. One task can wait for it.
    pub async fn intents_ended(&self) {
        self.intents_ended.notified().await;
    }

    /// From now on notifies the actors of this term of new intents, in place of any others.
    pub fn subscribe_term(&self, subscriber: TermSubscriber) {
        self.subscription.subscribe(subscriber);
    }

    /// Stops notifying the actors of this term.
    pub fn unsubscribe_term(&self, term: &Term) {
        self.subscription.unsubscribe(term);
    }

    /// Checks whether this instance can write: by its recent commits, or by a probe if those are too old.
    pub async fn can_write(&self) -> Result<(), StoreError> {
        if self.shared.health.wants_probe().is_some() {
            let _one_probe_at_a_time = self.shared.probe.lock().await;
            if let Some(bytes) = self.shared.health.wants_probe() {
                let result = self.within(monotonic() + PROBE_BUDGET, self.probe(bytes)).await;
                self.shared.health.probed(result);
            }
        }
        self.shared.health.verdict().map_err(StoreError::unavailable)
    }

    /// Returns how far the store's clock is ahead of its host's, as of the last comparison; `None` below [`NOTABLY_AHEAD`].
    pub fn clock_ahead(&self) -> Option<Duration> {
        let ahead = Duration::from_micros(self.shared.clock_ahead.load(Ordering::Relaxed));
        (ahead >= NOTABLY_AHEAD).then_some(ahead)
    }

    /// Compares the store's clock with its host's once a minute, and logs when it is ahead. Never returns.
    pub async fn watch_clock(self) {
        loop {
            // A store that does not answer is noticed elsewhere.
            if let Ok(state) = self.lease_state().await {
                let micros = u64::try_from(state.clock_ahead.as_micros()).unwrap_or(u64::MAX);
                self.shared.clock_ahead.store(micros, Ordering::Relaxed);
                if let Some(ahead) = self.clock_ahead() {
                    let next = "check the clock of the database's host; if no instance leads, run 'submission-manager lease reset'";
                    log::warn!("store_clock_ahead by_seconds={} next={next:?}", ahead.as_secs());
                }
            }
            tokio::time::sleep(CLOCK_INTERVAL).await;
        }
    }

    /// Makes a look-up that a client waits for.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> StoreFuture<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.within(self.give_up_at(), self.call(|reply| StoreCall::new(CallKind::Needed, reply, call))).await?.answer
    }

    /// Makes a write that a client or an operator requested, unless too many of them run already.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> StoreFuture<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _running = self.shared.own_writes.try_acquire().map_err(|_| StoreError::Overloaded)?;
        self.read(call).await
    }

    /// Makes a write that an operator requests and that may take long, unless another one runs.
    pub(super) async fn long_write<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> StoreFuture<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _running = self.shared.long_write.try_acquire().map_err(|_| StoreError::Overloaded)?;
        self.call(|reply| StoreCall::new(CallKind::Needed, reply, call)).await?.answer
    }

    /// Makes a call of the leader, which waits for it as long as the store takes.
    pub(super) async fn leader_call<T: Send + 'static, E: StoreFailure>(
        &self,
        call: impl FnOnce(&dyn Store) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send>> + Send + 'static,
    ) -> Result<T, E> {
        self.call(|reply| StoreCall::new(CallKind::Leader, reply, call)).await?.answer
    }

    /// Wakes the actor that has something to do after a write.
    pub(super) fn wake(&self, actor: Wake) {
        match actor {
            Wake::Scheduler => self.subscription.announce(),
            Wake::Webhooks => {
                self.pending_webhooks.notify_one();
                self.intents_ended.notify_one();
            }
            Wake::Inbox => self.inbox_filled.notify_one(),
            Wake::Redrives => self.redrives_changed.notify_one(),
        }
    }

    #[cfg(test)]
    pub fn actor(&self) -> Addr<StoreActor> {
        self.actor.address()
    }

    /// When a call that is made now gives up.
    fn give_up_at(&self) -> Instant {
        monotonic() + self.shared.budget
    }

    /// Waits for a call until `give_up_at`. Dropping the call tells the actor that its caller does not wait any more.
    async fn within<T>(
        &self,
        give_up_at: Instant,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let late = |_| Err(StoreError::unavailable("it did not answer in time"));
        tokio::time::timeout_at(give_up_at, call).await.unwrap_or_else(late)
    }

    /// Sends a message to the actor and waits for its answer.
    async fn call<M, T>(&self, message: impl FnOnce(Reply<T>) -> M) -> Result<T, StoreError>
    where
        M: Message<Result = ()> + Send + 'static,
        StoreActor: Handler<M>,
        actix::Context<StoreActor>: ToEnvelope<StoreActor, M>,
    {
        let (reply, answer) = oneshot::channel();
        let address: Addr<StoreActor> = self.actor.address();
        match address.try_send(message(reply)) {
            Ok(()) => answer.await.map_err(|_| StoreError::unavailable("the store restarted")),
            Err(SendError::Full(_)) => Err(StoreError::Overloaded),
            Err(SendError::Closed(_)) => Err(StoreError::unavailable("the store is starting")),
        }
    }
}
