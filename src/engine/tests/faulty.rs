//! A store for tests that can be told to fail, refuse or delay a call by its name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use crate::domain::contract::GatewayUrl;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::{IntentId, IntentSeq, TargetName};
use crate::domain::lease::{Lease, Term};
use crate::domain::time::Timestamp;
use crate::store::{
    Backlog, BatchResults, Contact, DueInbox, DueWebhooks, DueWebhooksQuery, FinishWebhookTry, FoundJob, History,
    InboxPage, InboxQuery, InboxSubmission, IntentDetail, IntentPage, JobLookup, JobPage, JobQuery, LeaseState,
    ListQuery, Message, OpenAttempt, OpenWebhookTry, Overview, ProcessedInboxSubmission, PurgeRequest, Purged,
    Redelivery, Refresh, RefreshRequest, Reprocess, ScheduleSnapshot, Store, StoreError, StoreFuture, StoredIntent,
    StoredTarget, TargetHealth, WriteBatch,
};

#[derive(Clone, Copy)]
pub enum Fault {
    /// The call fails without having had an effect.
    Fail,
    /// The call has its effect, and is answered with an error.
    FailAfter,
    /// The call has its effect, and its answer takes so long.
    SlowAnswer(Duration),
}

/// What is to go wrong: for each call, its next times.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<HashMap<&'static str, Vec<Fault>>>>);

impl Faults {
    pub fn add(&self, call: &'static str, times: usize, fault: Fault) {
        self.0.lock().unwrap().entry(call).or_default().extend(std::iter::repeat_n(fault, times));
    }

    pub fn left(&self, call: &'static str) -> usize {
        self.0.lock().unwrap().get(call).map_or(0, Vec::len)
    }

    pub fn clear(&self, call: &'static str) {
        self.0.lock().unwrap().remove(call);
    }

    fn take(&self, call: &'static str) -> Option<Fault> {
        self.0.lock().unwrap().get_mut(call)?.pop()
    }
}

pub struct Faulty {
    pub inner: Arc<dyn Store>,
    pub faults: Faults,
}

impl Faulty {
    fn with<T: Send + 'static>(
        &self,
        call: &'static str,
        run: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        match self.faults.take(call) {
            None => run(&*self.inner),
            Some(Fault::Fail) => Box::pin(async { Err(StoreError::Unavailable("told to fail".to_owned())) }),
            Some(Fault::FailAfter) => {
                let running = run(&*self.inner);
                Box::pin(async move {
                    running.await?;
                    Err(StoreError::Unavailable("told to fail afterwards".to_owned()))
                })
            }
            Some(Fault::SlowAnswer(span)) => {
                let running = run(&*self.inner);
                Box::pin(async move {
                    let answer = running.await;
                    tokio::time::timeout(span, std::future::pending::<()>()).await.unwrap_err();
                    answer
                })
            }
        }
    }
}

impl Store for Faulty {
    fn commit(&self, mut batch: WriteBatch) -> StoreFuture<BatchResults> {
        let starts = batch.fenced.as_mut().map(|writes| &mut writes.starts).filter(|starts| !starts.is_empty());
        if let Some(starts) = starts
            && self.faults.take("begin alone").is_some()
        {
            let refused = std::mem::take(starts).len();
            let rest = self.inner.commit(batch);
            return Box::pin(async move {
                let mut receipt = rest.await?;
                if let Some(fenced) = &mut receipt.fenced {
                    let refusal = || Err(StoreError::Unexpected("told to refuse".to_owned()));
                    fenced.starts = (0..refused).map(|_| refusal()).collect();
                }
                Ok(receipt)
            });
        }
        let call = match &batch.fenced {
            Some(writes) if !writes.finishes.is_empty() => "finish",
            Some(writes) if !writes.starts.is_empty() => "begin",
            _ => "submit",
        };
        self.with(call, |store| store.commit(batch))
    }

    fn acquire_lease(&self, name: Arc<str>, holder: Arc<str>, duration: Duration) -> StoreFuture<Option<Lease>> {
        self.with("acquire", |store| store.acquire_lease(name, holder, duration))
    }

    fn renew_lease(&self, term: Term, duration: Duration) -> StoreFuture<Option<Lease>> {
        self.with("renew", |store| store.renew_lease(term, duration))
    }

    fn release_lease(&self, term: Term) -> StoreFuture<()> {
        self.with("release", |store| store.release_lease(term))
    }

    fn lease_state(&self) -> StoreFuture<LeaseState> {
        self.inner.lease_state()
    }

    fn reset_lease(&self, epoch: i64, renewed_at: Timestamp) -> StoreFuture<bool> {
        self.inner.reset_lease(epoch, renewed_at)
    }

    fn open_attempts_before(&self, epoch: i64, limit: usize) -> StoreFuture<Vec<OpenAttempt>> {
        self.with("open", |store| store.open_attempts_before(epoch, limit))
    }

    fn schedule_snapshot(&self, page_limit: usize) -> StoreFuture<ScheduleSnapshot> {
        self.with("build", |store| store.schedule_snapshot(page_limit))
    }

    fn refresh_schedule(&self, request: RefreshRequest) -> StoreFuture<Refresh> {
        self.with("refresh", |store| store.refresh_schedule(request))
    }

    fn backlog(&self) -> StoreFuture<Backlog> {
        self.inner.backlog()
    }

    fn purge(&self, term: Term, request: PurgeRequest) -> StoreFuture<Purged> {
        self.inner.purge(term, request)
    }

    fn due_webhooks(&self, look: DueWebhooksQuery) -> StoreFuture<DueWebhooks> {
        self.with("due webhooks", |store| store.due_webhooks(look))
    }

    fn start_webhooks(&self, term: Term, events: Vec<IntentSeq>) -> StoreFuture<Option<Vec<OpenWebhookTry>>> {
        self.with("begin webhooks", |store| store.start_webhooks(term, events))
    }

    fn finish_webhooks(&self, term: Term, finished: Vec<Arc<FinishWebhookTry>>) -> StoreFuture<bool> {
        self.with("finish webhooks", |store| store.finish_webhooks(term, finished))
    }

    fn close_webhooks(&self, term: Term, under_way: Vec<IntentSeq>) -> StoreFuture<Option<usize>> {
        self.with("close webhooks", |store| store.close_webhooks(term, under_way))
    }

    fn redeliver_webhook(&self, id: IntentId) -> StoreFuture<Redelivery> {
        self.with("redeliver", |store| store.redeliver_webhook(id))
    }

    fn find(&self, id: IntentId) -> StoreFuture<Option<StoredIntent>> {
        self.with("find", |store| store.find(id))
    }

    fn history(&self, id: IntentId) -> StoreFuture<Option<History>> {
        self.inner.history(id)
    }

    fn list(&self, query: ListQuery) -> StoreFuture<IntentPage> {
        self.inner.list(query)
    }

    fn detail(&self, id: IntentId) -> StoreFuture<Option<IntentDetail>> {
        self.inner.detail(id)
    }

    fn payload(&self, id: IntentId) -> StoreFuture<Option<Bytes>> {
        self.inner.payload(id)
    }

    fn overview(&self) -> StoreFuture<Overview> {
        self.inner.overview()
    }

    fn target_health(&self) -> StoreFuture<Vec<TargetHealth>> {
        self.inner.target_health()
    }

    fn targets(&self) -> StoreFuture<Vec<StoredTarget>> {
        self.inner.targets()
    }

    fn pause_target(&self, target: TargetName) -> StoreFuture<Timestamp> {
        self.inner.pause_target(target)
    }

    fn resume_target(&self, target: TargetName) -> StoreFuture<()> {
        self.inner.resume_target(target)
    }

    fn find_job(&self, by: JobLookup) -> StoreFuture<Option<FoundJob>> {
        self.with("find job", |store| store.find_job(by))
    }

    fn list_jobs(&self, query: JobQuery) -> StoreFuture<JobPage> {
        self.inner.list_jobs(query)
    }

    fn admits_jobs(&self, gateway: GatewayUrl) -> StoreFuture<bool> {
        self.inner.admits_jobs(gateway)
    }

    fn due_inbox(&self, limit: usize) -> StoreFuture<DueInbox> {
        self.inner.due_inbox(limit)
    }

    fn process_inbox(
        &self,
        term: Term,
        processed: Vec<ProcessedInboxSubmission>,
    ) -> StoreFuture<Option<Vec<Result<(), StoreError>>>> {
        self.with("inbox", |store| store.process_inbox(term, processed))
    }

    fn reprocess(&self, which: Reprocess) -> StoreFuture<usize> {
        self.inner.reprocess(which)
    }

    fn find_submission(&self, id: InboxSubmissionId) -> StoreFuture<Option<(InboxSubmission, Bytes)>> {
        self.inner.find_submission(id)
    }

    fn list_submissions(&self, query: InboxQuery) -> StoreFuture<InboxPage<InboxSubmission>> {
        self.inner.list_submissions(query)
    }

    fn list_contacts(&self, query: InboxQuery) -> StoreFuture<InboxPage<Contact>> {
        self.inner.list_contacts(query)
    }

    fn list_messages(&self, query: InboxQuery) -> StoreFuture<InboxPage<Message>> {
        self.inner.list_messages(query)
    }

    fn probe(&self, bytes: usize) -> StoreFuture<()> {
        self.with("probe", |store| store.probe(bytes))
    }

    fn budget(&self) -> Duration {
        self.inner.budget()
    }
}
