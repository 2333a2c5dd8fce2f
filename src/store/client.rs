//! The store as everyone else sees it: typed calls that become messages to `StoreActor`.
//!
//! No call waits for a place: the actor answers `Overloaded` when its queues are full (its mailbox
//! never is, it only hands over to those), and a dead actor is `Unavailable`.

use std::sync::Arc;
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::prelude::SendError;
use actix::{Addr, Handler, Message};
use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::actor::{Arrivals, Ask, Fenced, FencedError, FencedResult, Reply, StoreActor, Submit, Watcher};
use super::{
    Backlog, Build, Detail, DueWebhooks, FencedReceipt, FencedWrites, FinishTry, Found, FoundJob, History, IntentPage,
    JobLookup, JobPage, JobQuery, ListQuery, NewIntent, OpenAttempt, OpenTry, Overview, Purged, Redelivery, Refresh,
    RefreshRequest, Store, StoreError, StoreFuture, Submitted, TargetHealth, WebhookLook,
};
use crate::core::contract::GatewayUrl;
use crate::core::intent::{IntentId, IntentSeq};
use crate::core::lease::{Lease, Term};
use crate::supervise::Supervised;

/// Webhooks that are being asked for again at once.
const MAX_REDELIVERIES: usize = 4;

#[derive(Clone)]
pub struct StoreClient {
    actor: Supervised<StoreActor>,
    arrivals: Arrivals,
    webhooks_owed: Arc<Notify>,
    redeliveries: Arc<Semaphore>,
}

impl StoreClient {
    pub fn new(actor: Supervised<StoreActor>, arrivals: Arrivals, webhooks_owed: Arc<Notify>) -> Self {
        Self { actor, arrivals, webhooks_owed, redeliveries: Arc::new(Semaphore::new(MAX_REDELIVERIES)) }
    }

    pub async fn submit(&self, new: NewIntent) -> Result<Submitted, StoreError> {
        self.call(|reply| Submit { new, reply }).await?
    }

    /// Writes of a leader, done together, if their term holds the lease.
    pub async fn fenced(&self, writes: FencedWrites) -> FencedResult<FencedReceipt> {
        self.call(|reply| Fenced { writes, reply }).await.map_err(FencedError::Store)?
    }

    /// Exhausts up to `limit` waiting intents that are past their deadline; how many there were.
    pub async fn expire_overdue(&self, term: &Term, limit: usize) -> FencedResult<usize> {
        let done = self.fenced(FencedWrites { expire: Some(limit), ..FencedWrites::new(term) }).await?;
        Ok(done.expired.len())
    }

    pub async fn purge(&self, term: &Term, older_than: Duration, limit: usize) -> Result<Purged, StoreError> {
        let term = term.clone();
        self.leader_call(move |store| store.purge(term, older_than, limit)).await
    }

    pub async fn acquire_lease(
        &self,
        name: Arc<str>,
        holder: Arc<str>,
        duration: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        self.leader_call(move |store| store.acquire_lease(name, holder, duration)).await
    }

    pub async fn renew_lease(&self, term: Term, duration: Duration) -> Result<Option<Lease>, StoreError> {
        self.leader_call(move |store| store.renew_lease(term, duration)).await
    }

    pub async fn release_lease(&self, term: Term) -> Result<(), StoreError> {
        self.leader_call(move |store| store.release_lease(term)).await
    }

    pub async fn open_attempts_before(&self, epoch: i64, limit: usize) -> Result<Vec<OpenAttempt>, StoreError> {
        self.leader_call(move |store| store.open_attempts_before(epoch, limit)).await
    }

    pub async fn build_schedule(&self, page_limit: usize) -> Result<Build, StoreError> {
        self.leader_call(move |store| store.build_schedule(page_limit)).await
    }

    pub async fn refresh_schedule(&self, request: RefreshRequest) -> Result<Refresh, StoreError> {
        self.leader_call(move |store| store.refresh_schedule(request)).await
    }

    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.leader_call(|store| store.backlog()).await
    }

    pub async fn due_webhooks(&self, look: WebhookLook) -> Result<DueWebhooks, StoreError> {
        self.leader_call(move |store| store.due_webhooks(look)).await
    }

    pub async fn begin_webhooks(&self, term: &Term, events: Vec<IntentSeq>) -> FencedResult<Vec<OpenTry>> {
        let term = term.clone();
        let begun = self.leader_call(move |store| store.begin_webhooks(term, events)).await?;
        begun.ok_or(FencedError::TermOver)
    }

    pub async fn finish_webhooks(&self, term: &Term, finished: Vec<Arc<FinishTry>>) -> FencedResult<()> {
        let term = term.clone();
        let held = self.leader_call(move |store| store.finish_webhooks(term, finished)).await?;
        if held { Ok(()) } else { Err(FencedError::TermOver) }
    }

    pub async fn close_webhooks(&self, term: &Term, under_way: Vec<IntentSeq>) -> FencedResult<usize> {
        let term = term.clone();
        let closed = self.leader_call(move |store| store.close_webhooks(term, under_way)).await?;
        closed.ok_or(FencedError::TermOver)
    }

    /// A few at a time: each is a transaction of its own, and the leader's writes must not wait for many.
    pub async fn redeliver_webhook(&self, id: IntentId) -> Result<Redelivery, StoreError> {
        let _place = self.redeliveries.try_acquire().map_err(|_| StoreError::Overloaded)?;
        let done = self.read(move |store| store.redeliver_webhook(id)).await?;
        self.webhooks_owed.notify_one();
        Ok(done)
    }

    /// Resolves when events may have come to be owed since the last time.
    pub async fn webhooks_owed(&self) {
        self.webhooks_owed.notified().await;
    }

    pub async fn find(&self, id: IntentId) -> Result<Option<Found>, StoreError> {
        self.read(move |store| store.find(id)).await
    }

    pub async fn history(&self, id: IntentId) -> Result<Option<History>, StoreError> {
        self.read(move |store| store.history(id)).await
    }

    pub async fn list(&self, query: ListQuery) -> Result<IntentPage, StoreError> {
        self.read(move |store| store.list(query)).await
    }

    pub async fn detail(&self, id: IntentId) -> Result<Option<Detail>, StoreError> {
        self.read(move |store| store.detail(id)).await
    }

    pub async fn payload(&self, id: IntentId) -> Result<Option<Bytes>, StoreError> {
        self.read(move |store| store.payload(id)).await
    }

    pub async fn overview(&self) -> Result<Overview, StoreError> {
        self.read(|store| store.overview()).await
    }

    pub async fn target_health(&self) -> Result<Vec<TargetHealth>, StoreError> {
        self.read(|store| store.target_health()).await
    }

    pub async fn find_job(&self, by: JobLookup) -> Result<Option<FoundJob>, StoreError> {
        self.read(move |store| store.find_job(by)).await
    }

    pub async fn list_jobs(&self, query: JobQuery) -> Result<JobPage, StoreError> {
        self.read(move |store| store.list_jobs(query)).await
    }

    pub async fn admits_jobs(&self, gateway: GatewayUrl) -> Result<bool, StoreError> {
        self.read(move |store| store.admits_jobs(gateway)).await
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        self.read(|store| store.ping()).await
    }

    /// Tells `watcher` of new intents from now on, and nobody else.
    pub fn watch_arrivals(&self, watcher: Watcher) {
        self.arrivals.watch(watcher);
    }

    /// Tells the children of `term` no more.
    pub fn unwatch_arrivals(&self, term: &Term) {
        self.arrivals.unwatch(term);
    }

    #[cfg(test)]
    pub fn actor(&self) -> Addr<StoreActor> {
        self.actor.address()
    }

    async fn read<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> StoreFuture<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call(|reply| Ask::new(true, reply, call)).await?
    }

    async fn leader_call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> StoreFuture<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call(|reply| Ask::new(false, reply, call)).await?
    }

    async fn call<M, T>(&self, message: impl FnOnce(Reply<T>) -> M) -> Result<T, StoreError>
    where
        M: Message<Result = ()> + Send + 'static,
        StoreActor: Handler<M>,
        actix::Context<StoreActor>: ToEnvelope<StoreActor, M>,
    {
        let (reply, answer) = oneshot::channel();
        let address: Addr<StoreActor> = self.actor.address();
        match address.try_send(message(reply)) {
            Ok(()) => answer.await.map_err(|_| StoreError::Unavailable("the store restarted".to_owned())),
            Err(SendError::Full(_)) => Err(StoreError::Overloaded),
            Err(SendError::Closed(_)) => Err(StoreError::Unavailable("the store is starting".to_owned())),
        }
    }
}
