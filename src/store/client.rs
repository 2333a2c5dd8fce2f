//! The store as everyone else sees it: typed calls that become messages to `StoreActor`.
//!
//! No call waits for a place: the actor answers `Overloaded` when its queues are full (its mailbox
//! never is, it only hands over to those), and a dead actor is `Unavailable`. Calls that clients wait for are `Unavailable` once
//! the store's budget is used up, wherever the time went. The leader's own calls are bounded by the store, and by how long the
//! leader trusts its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::prelude::SendError;
use actix::{Addr, Handler, Message};
use bytes::Bytes;
use tokio::sync::{Mutex, Notify, Semaphore, oneshot};
use tokio::time::Instant;

use super::actor::{
    CallKind, Fenced, FencedError, FencedResult, Receive, Reply, StoreActor, StoreCall, StoreDeps, Submit,
    TermSubscriber, TermSubscription,
};
use super::health::WriteHealth;
use super::{
    Backlog, Contact, DueInbox, DueWebhooks, DueWebhooksQuery, FencedResults, FencedWrites, FinishWebhookTry, FoundJob,
    History, InboxPage, InboxQuery, InboxSubmission, IntentDetail, IntentPage, JobLookup, JobPage, JobQuery, ListQuery,
    Message as InboxMessage, NewInboxSubmission, NewIntent, OpenAttempt, OpenWebhookTry, Overview, PROBE_BUDGET,
    ProcessedInboxSubmission, PurgeRequest, Purged, Received, Redelivery, Refresh, RefreshRequest, Reprocess,
    ScheduleSnapshot, Store, StoreError, StoreFuture, StoredIntent, StoredTarget, Submitted, TargetHealth,
};
use crate::domain::contract::GatewayUrl;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::{IntentId, IntentSeq, TargetName};
use crate::domain::lease::{Lease, Term};
use crate::domain::time::Timestamp;
use crate::platform::clock::monotonic;
use crate::platform::supervision::Supervised;

/// Webhooks and submissions of the inbox that are being asked for again at once, and targets being paused.
const MAX_REPETITIONS: usize = 4;

/// How often the store's clock is compared with its host's.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// Corrections of a clock by less than this are ordinary, and are made up for in seconds.
const NOTABLY_AHEAD: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct StoreClient {
    actor: Supervised<StoreActor>,
    arrivals: TermSubscription,
    pending_webhooks: Arc<Notify>,
    inbox_filled: Arc<Notify>,
    shared: Arc<Shared>,
}

/// What all clones have in common.
struct Shared {
    health: WriteHealth,
    /// Held by whoever makes a probe: one at a time.
    probe: Mutex<()>,
    /// Microseconds that the store's clock is ahead of its host's.
    clock_ahead: AtomicU64,
    /// How long a client's request may take here.
    budget: Duration,
    /// For what people ask for, one thing at a time.
    repetitions: Semaphore,
}

impl StoreClient {
    pub fn new(actor: Supervised<StoreActor>, deps: StoreDeps) -> Self {
        let StoreDeps { store, arrivals, pending_webhooks, inbox_filled, health, .. } = deps;
        let shared = Shared {
            health,
            probe: Mutex::new(()),
            clock_ahead: AtomicU64::new(0),
            budget: store.budget(),
            repetitions: Semaphore::new(MAX_REPETITIONS),
        };
        Self { actor, arrivals, pending_webhooks, inbox_filled, shared: Arc::new(shared) }
    }

    /// When a call that is made now gives up.
    fn give_up_at(&self) -> Instant {
        monotonic() + self.shared.budget
    }

    /// Keeps something for the inbox.
    pub async fn receive(&self, new: NewInboxSubmission) -> Result<Received, StoreError> {
        let give_up_at = self.give_up_at();
        self.within(give_up_at, self.call(|reply| Receive { new, reply, give_up_at })).await?
    }

    pub async fn submit(&self, new: NewIntent) -> Result<Submitted, StoreError> {
        let give_up_at = self.give_up_at();
        self.within(give_up_at, self.call(|reply| Submit { new, reply, give_up_at })).await?
    }

    /// Writes of a leader, done together, if their term holds the lease.
    pub async fn fenced(&self, writes: FencedWrites) -> FencedResult<FencedResults> {
        let give_up_at = self.give_up_at();
        self.call(|reply| Fenced { writes, reply, give_up_at }).await.map_err(FencedError::Store)?
    }

    /// Exhausts up to `limit` waiting intents that are past their deadline; which these were.
    pub async fn expire_overdue(&self, term: &Term, limit: usize) -> FencedResult<Vec<IntentSeq>> {
        let done = self.fenced(FencedWrites { expire: Some(limit), ..FencedWrites::new(term) }).await?;
        Ok(done.expired.iter().map(|intent| intent.seq).collect())
    }

    pub async fn purge(&self, term: &Term, request: PurgeRequest) -> Result<Purged, StoreError> {
        let term = term.clone();
        self.leader_call(move |store| store.purge(term, request)).await
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

    pub async fn schedule_snapshot(&self, page_limit: usize) -> Result<ScheduleSnapshot, StoreError> {
        self.leader_call(move |store| store.schedule_snapshot(page_limit)).await
    }

    pub async fn refresh_schedule(&self, request: RefreshRequest) -> Result<Refresh, StoreError> {
        self.leader_call(move |store| store.refresh_schedule(request)).await
    }

    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.leader_call(|store| store.backlog()).await
    }

    pub async fn due_webhooks(&self, look: DueWebhooksQuery) -> Result<DueWebhooks, StoreError> {
        self.leader_call(move |store| store.due_webhooks(look)).await
    }

    pub async fn start_webhooks(&self, term: &Term, events: Vec<IntentSeq>) -> FencedResult<Vec<OpenWebhookTry>> {
        let term = term.clone();
        let begun = self.leader_call(move |store| store.start_webhooks(term, events)).await?;
        begun.ok_or(FencedError::TermOver)
    }

    pub async fn finish_webhooks(&self, term: &Term, finished: Vec<Arc<FinishWebhookTry>>) -> FencedResult<()> {
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
        let _place = self.shared.repetitions.try_acquire().map_err(|_| StoreError::Overloaded)?;
        let done = self.read(move |store| store.redeliver_webhook(id)).await?;
        self.pending_webhooks.notify_one();
        Ok(done)
    }

    /// Resolves when events may have come to be owed since the last time.
    pub async fn pending_webhooks(&self) {
        self.pending_webhooks.notified().await;
    }

    pub async fn find(&self, id: IntentId) -> Result<Option<StoredIntent>, StoreError> {
        self.read(move |store| store.find(id)).await
    }

    /// The same for who can do without an answer: `Overloaded` if the store has others to answer.
    pub async fn find_if_idle(&self, id: IntentId) -> Result<Option<StoredIntent>, StoreError> {
        self.call(|reply| StoreCall::new(CallKind::Optional, reply, move |store| store.find(id))).await?
    }

    pub async fn history(&self, id: IntentId) -> Result<Option<History>, StoreError> {
        self.read(move |store| store.history(id)).await
    }

    pub async fn list(&self, query: ListQuery) -> Result<IntentPage, StoreError> {
        self.read(move |store| store.list(query)).await
    }

    pub async fn detail(&self, id: IntentId) -> Result<Option<IntentDetail>, StoreError> {
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

    pub async fn targets(&self) -> Result<Vec<StoredTarget>, StoreError> {
        self.read(|store| store.targets()).await
    }

    /// A few at a time: each is a transaction of its own.
    pub async fn pause_target(&self, target: TargetName) -> Result<Timestamp, StoreError> {
        let _place = self.shared.repetitions.try_acquire().map_err(|_| StoreError::Overloaded)?;
        self.read(move |store| store.pause_target(target)).await
    }

    /// Likewise.
    pub async fn resume_target(&self, target: TargetName) -> Result<(), StoreError> {
        let _place = self.shared.repetitions.try_acquire().map_err(|_| StoreError::Overloaded)?;
        self.read(move |store| store.resume_target(target)).await?;
        self.arrivals.announce();
        Ok(())
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

    pub async fn due_inbox(&self, limit: usize) -> Result<DueInbox, StoreError> {
        self.leader_call(move |store| store.due_inbox(limit)).await
    }

    pub async fn process_inbox(
        &self,
        term: &Term,
        processed: Vec<ProcessedInboxSubmission>,
    ) -> FencedResult<Vec<Result<(), StoreError>>> {
        let term = term.clone();
        let done = self.leader_call(move |store| store.process_inbox(term, processed)).await?;
        done.ok_or(FencedError::TermOver)
    }

    /// A few at a time: each is a transaction of its own.
    pub async fn reprocess(&self, which: Reprocess) -> Result<usize, StoreError> {
        let _place = self.shared.repetitions.try_acquire().map_err(|_| StoreError::Overloaded)?;
        let changed = self.read(move |store| store.reprocess(which)).await?;
        self.inbox_filled.notify_one();
        Ok(changed)
    }

    /// Resolves when something may have come into the inbox since the last time.
    pub async fn inbox_filled(&self) {
        self.inbox_filled.notified().await;
    }

    pub async fn find_submission(&self, id: InboxSubmissionId) -> Result<Option<(InboxSubmission, Bytes)>, StoreError> {
        self.read(move |store| store.find_submission(id)).await
    }

    pub async fn list_submissions(&self, query: InboxQuery) -> Result<InboxPage<InboxSubmission>, StoreError> {
        self.read(move |store| store.list_submissions(query)).await
    }

    pub async fn list_contacts(&self, query: InboxQuery) -> Result<InboxPage<Contact>, StoreError> {
        self.read(move |store| store.list_contacts(query)).await
    }

    pub async fn list_messages(&self, query: InboxQuery) -> Result<InboxPage<InboxMessage>, StoreError> {
        self.read(move |store| store.list_messages(query)).await
    }

    /// Whether this instance can write, by its last commits or by a probe that is made now if those say nothing.
    pub async fn can_write(&self) -> Result<(), StoreError> {
        if self.shared.health.wants_probe().is_some() {
            let _one_at_a_time = self.shared.probe.lock().await;
            if let Some(bytes) = self.shared.health.wants_probe() {
                let probe = self.leader_call(move |store| store.probe(bytes));
                let result = self.within(monotonic() + PROBE_BUDGET, probe).await;
                self.shared.health.probed(result.map_err(|error| error.to_string()));
            }
        }
        self.shared.health.verdict().map_err(StoreError::Unavailable)
    }

    /// How far the store's clock is ahead of its host's, as of the last look; `None` if it is not, or hardly.
    pub fn clock_ahead(&self) -> Option<Duration> {
        let ahead = Duration::from_micros(self.shared.clock_ahead.load(Ordering::Relaxed));
        (ahead >= NOTABLY_AHEAD).then_some(ahead)
    }

    /// Looks at the store's clock once a minute, for ever, and says so when it is ahead.
    pub async fn watch_clock(self) {
        loop {
            // A store that does not answer is noticed by others.
            if let Ok(state) = self.leader_call(|store| store.lease_state()).await {
                let micros = u64::try_from(state.clock_ahead.as_micros()).unwrap_or(u64::MAX);
                self.shared.clock_ahead.store(micros, Ordering::Relaxed);
                if let Some(ahead) = self.clock_ahead() {
                    let next =
                        "check the clock of the database's host; if nobody leads, run 'submission-manager lease reset'";
                    log::warn!("store_clock_ahead by_seconds={} next={next:?}", ahead.as_secs());
                }
            }
            tokio::time::sleep(CLOCK_INTERVAL).await;
        }
    }

    /// Tells `watcher` of new intents from now on, and nobody else.
    pub fn subscribe_term(&self, watcher: TermSubscriber) {
        self.arrivals.watch(watcher);
    }

    /// Tells the children of `term` no more.
    pub fn unsubscribe_term(&self, term: &Term) {
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
        self.within(self.give_up_at(), self.call(|reply| StoreCall::new(CallKind::Needed, reply, call))).await?
    }

    async fn leader_call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> StoreFuture<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call(|reply| StoreCall::new(CallKind::Leader, reply, call)).await?
    }

    /// What a call answers, unless it takes too long. Dropping it lets the actor know that nobody waits any more.
    async fn within<T>(
        &self,
        give_up_at: Instant,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let late = |_| Err(StoreError::Unavailable("it did not answer in time".to_owned()));
        tokio::time::timeout_at(give_up_at, call).await.unwrap_or_else(late)
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
