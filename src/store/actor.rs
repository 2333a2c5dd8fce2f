//! `StoreActor`: owns the store and commits in groups.
//!
//! State: the writes that wait for the next transaction, and whether one is being committed. It receives `Submit` and
//! `Receive` from HTTP handlers, `Fenced` from the actors of a term, and `StoreCall` from everyone. It sends `IntentsWaiting`,
//! `AttemptsStarted` and `AttemptsInDoubt` to the actors of a term, and notifies the webhook and inbox actors.
//!
//! Everything that waits when a commit ends goes into the next one. There is no timer, so a single write is not delayed, and
//! a thousand writes cost one commit. Each caller gets its answer only after its own batch is durable.
//!
//! When it dies, waiting callers are told that the store is unavailable, and a new actor is started over the same store. A
//! batch that is being committed then still commits. Clients may repeat their request; a leader that cannot tell what was
//! committed resigns.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Recipient, WrapFuture};
use tokio::sync::Notify;

use super::health::WriteHealth;
use super::job_log::JobLog;
use super::messages::{
    AttemptsInDoubt, AttemptsStarted, CallKind, Fenced, ReadGuard, Receive, Reply, StoreCall, Submit,
};
use super::{
    BatchResults, FencedError, FencedResult, FencedResults, FinishAttempt, FinishResult, Received, StartResult, Store,
    StoreError, Submitted, TermSubscriber, TermSubscription, WriteBatch,
};
use crate::domain::intent::Intent;
use crate::domain::job::SubmissionId;
use crate::domain::policy::Decision;
use crate::platform::clock::monotonic;
use crate::platform::supervision::Alive;
use crate::store::watchers::IntentWatchers;
use crate::telemetry::metrics::Metrics;

/// Submissions that may wait for a commit: about a second's worth of the fastest disk.
pub const MAX_WAITING_SUBMITS: usize = 8192;
/// Bytes of payload that may wait: 256 payloads of the default maximum.
pub const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;
/// Writes of one kind in one transaction: past this, larger batches gain nothing.
const MAX_BATCH: usize = 512;
/// Bytes of payload in one transaction: what a server takes in well below its timeout.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Besides those, bytes for the inbox: neither can keep the other waiting.
const MAX_RECEIVED_BATCH_BYTES: usize = 2 * 1024 * 1024;
/// Reads under way or waiting for a connection.
pub const MAX_READS: usize = 1024;
/// Of those, reads that their callers can do without: half, so that any number of waiting clients leaves room for others.
pub const MAX_OPTIONAL_READS: usize = MAX_READS / 2;

/// Says [`AttemptsInDoubt`] unless what was begun in a batch is known and handed on, whatever
/// becomes of the commit, of its answer and of this actor.
struct Doubt(Option<Recipient<AttemptsInDoubt>>);

impl Doubt {
    fn resolve(mut self) {
        self.0 = None;
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        if let Some(watcher) = self.0.take() {
            watcher.do_send(AttemptsInDoubt);
        }
    }
}

/// What a store actor shares with others; outlives a restart of it.
#[derive(Clone)]
pub struct StoreDeps {
    pub store: Arc<dyn Store>,
    pub metrics: Arc<Metrics>,
    pub watchers: IntentWatchers,
    pub subscription: TermSubscription,
    /// Told when an intent with a webhook may have ended.
    pub pending_webhooks: Arc<Notify>,
    /// Told when something came into the inbox.
    pub inbox_filled: Arc<Notify>,
    /// Told how commits end.
    pub health: WriteHealth,
}

pub struct StoreActor {
    deps: StoreDeps,
    submits: VecDeque<Submit>,
    received: VecDeque<Receive>,
    /// Bytes of payload in both.
    waiting_bytes: usize,
    fenced: VecDeque<Fenced>,
    committing: bool,
    reads: Arc<AtomicUsize>,
    job_log: JobLog,
    _alive: Alive,
}

impl StoreActor {
    pub fn new(deps: StoreDeps, alive: Alive) -> Self {
        Self {
            job_log: JobLog::new(Arc::clone(&deps.store)),
            deps,
            submits: VecDeque::new(),
            received: VecDeque::new(),
            waiting_bytes: 0,
            fenced: VecDeque::new(),
            committing: false,
            reads: Arc::new(AtomicUsize::new(0)),
            _alive: alive,
        }
    }

    /// Starts the next commit, unless one is under way or nothing waits.
    fn commit_next(&mut self, ctx: &mut Context<Self>) {
        if self.committing || (self.submits.is_empty() && self.received.is_empty() && self.fenced.is_empty()) {
            return;
        }
        let (mut batch, callers) = self.take_batch();
        self.show_queue();
        if batch.is_empty() {
            return; // All of them had given up.
        }
        self.committing = true;
        let subscriber = self.deps.subscription.subscriber();
        batch.start_on_insert = subscriber.as_ref().map(|subscriber| subscriber.start_on_insert.clone());
        let may_start = subscriber.as_ref().filter(|_| !batch.submits.is_empty());
        let doubt = Doubt(may_start.map(|subscriber| subscriber.in_doubt.clone()));
        let (started, writes) = (monotonic(), batch.len());
        let commit = self.deps.store.commit(batch).into_actor(self).map(move |result, actor, ctx| {
            actor.committing = false;
            actor.deps.metrics.batch_committed(writes, monotonic().duration_since(started));
            match result {
                Ok(results) => {
                    actor.deps.health.committed();
                    actor.answer(callers, results, subscriber.as_ref());
                    doubt.resolve();
                }
                Err(error) => {
                    log::error!("commit_failed writes={writes} store_error={error:?}");
                    actor.deps.health.commit_failed(&error.to_string());
                    actor.deps.metrics.store_failed(error.kind());
                    callers.refuse(&error);
                }
            }
            actor.commit_next(ctx);
        });
        ctx.spawn(commit);
    }

    /// Whether a queue of so many has no place for so many bytes more.
    fn is_full(&self, waiting: usize, bytes: usize) -> bool {
        let full = waiting >= MAX_WAITING_SUBMITS || self.waiting_bytes + bytes > MAX_WAITING_BYTES;
        if full {
            self.deps.metrics.store_failed(StoreError::Overloaded.kind());
        }
        full
    }

    /// All that waits, up to the bound, but for what nobody waits for any more; of the leader's writes those of one
    /// term.
    fn take_batch(&mut self) -> (WriteBatch, Callers) {
        let mut batch = WriteBatch::default();
        let mut callers = Callers::default();
        let (mut received_bytes, mut dropped_bytes) = (0, 0);
        while let Some(Receive { new, reply, give_up_at }) = self
            .received
            .pop_front_if(|_| batch.received.len() < MAX_BATCH && received_bytes < MAX_RECEIVED_BATCH_BYTES)
        {
            if reply.is_closed() {
                dropped_bytes += new.payload.len();
                continue;
            }
            received_bytes += new.payload.len();
            batch.received.push(new);
            batch.received_deadlines.push(give_up_at);
            batch.give_up_at = batch.give_up_at.max(Some(give_up_at));
            callers.received.push(reply);
        }
        let mut bytes = 0;
        while let Some(Submit { new, reply, give_up_at }) =
            self.submits.pop_front_if(|_| batch.submits.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES)
        {
            if reply.is_closed() {
                dropped_bytes += new.payload.bytes().len();
                continue;
            }
            bytes += new.payload.bytes().len();
            batch.submits.push(new);
            batch.submit_deadlines.push(give_up_at);
            batch.give_up_at = batch.give_up_at.max(Some(give_up_at));
            callers.submits.push(reply);
        }
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes + received_bytes + dropped_bytes);
        let mut taken = 0;
        while let Some(Fenced { writes, reply, give_up_at }) = self.fenced.pop_front_if(|next| {
            let same_term = batch.fenced.as_ref().is_none_or(|writes| writes.term == next.writes.term);
            same_term && taken < 2 * MAX_BATCH
        }) {
            taken += writes.len();
            batch.give_up_at = batch.give_up_at.max(Some(give_up_at));
            callers.fenced.push(FencedCaller {
                reply,
                starts: writes.starts.len(),
                finishes: writes.finishes.clone(),
                postpones: writes.postpones.len(),
            });
            match &mut batch.fenced {
                None => batch.fenced = Some(writes),
                Some(together) => together.append(writes),
            }
        }
        (batch, callers)
    }

    fn answer(&mut self, callers: Callers, results: BatchResults, subscriber: Option<&TermSubscriber>) {
        // Attempts first: a client that waits for its answer hardly notices.
        results.started.iter().for_each(|_| self.deps.metrics.attempt_started(Duration::ZERO));
        if let Some(subscriber) = subscriber.filter(|_| !results.started.is_empty()) {
            // `do_send` ignores the bound of the mailbox; the number of slots bounds it.
            subscriber.started.do_send(AttemptsStarted(results.started));
        }
        let mut waits = false;
        for (reply, result) in callers.submits.into_iter().zip(results.submits) {
            match &result {
                Ok(Submitted::Created(intent)) => {
                    waits |= !intent.attempt_open;
                    self.deps.metrics.intents_created.inc();
                }
                Ok(Submitted::Existing(_)) => self.deps.metrics.idempotent_hits.inc(),
                Ok(Submitted::Conflict(_)) => self.deps.metrics.idempotency_conflicts.inc(),
                Err(error) => self.failed_alone(error),
            }
            let _caller_may_be_gone = reply.send(result);
        }
        if !callers.received.is_empty() {
            self.deps.inbox_filled.notify_one();
        }
        for (reply, result) in callers.received.into_iter().zip(results.received) {
            match &result {
                Ok(Received::Created(_)) => self.deps.metrics.inbox_received(),
                Ok(_) => {}
                Err(error) => self.failed_alone(error),
            }
            let _caller_may_be_gone = reply.send(result);
        }
        match results.fenced {
            Ok(done) => waits |= self.answer_fenced(callers.fenced, done),
            Err(error) => callers.fenced.into_iter().for_each(|caller| drop(caller.reply.send(Err(error.clone())))),
        }
        if waits {
            self.deps.subscription.announce();
        }
    }

    /// Gives everyone their part. Whether an intent waits for another attempt.
    fn answer_fenced(&mut self, callers: Vec<FencedCaller>, done: FencedResults) -> bool {
        let mut waits = false;
        let (mut starts, mut finishes) = (done.starts.into_iter(), done.finishes.into_iter());
        let mut postpones = done.postpones.into_iter();
        let mut expired = done.expired;
        expired.iter().for_each(|intent| self.expired(intent));
        for caller in callers {
            let starts: Vec<_> = starts.by_ref().take(caller.starts).collect();
            starts.iter().for_each(|started| self.note_started(started));
            let mine: Vec<_> = finishes.by_ref().take(caller.finishes.len()).collect();
            for (finish, result) in caller.finishes.iter().zip(&mine) {
                self.note_finished(finish, result);
                waits |= matches!((result, &finish.decision), (Ok(FinishResult::Recorded), Decision::RetryAt(_)));
            }
            let postpones: Vec<_> = postpones.by_ref().take(caller.postpones).collect();
            for result in &postpones {
                waits |= matches!(result, Ok(FinishResult::Recorded));
                if let Err(error) = result {
                    self.failed_alone(error);
                }
            }
            let expired = std::mem::take(&mut expired);
            let results = FencedResults { starts, finishes: mine, postpones, expired };
            let _caller_may_be_gone = caller.reply.send(Ok(results));
        }
        waits
    }

    fn note_started(&mut self, started: &Result<StartResult, StoreError>) {
        match started {
            Ok(StartResult::Started { attempt, due, .. }) => {
                self.deps.metrics.attempt_started(attempt.started_at.since(*due))
            }
            Ok(StartResult::Ended(intent)) => self.expired(intent),
            Ok(StartResult::NotDue { .. } | StartResult::Paused | StartResult::Stale) => {}
            Err(error) => self.failed_alone(error),
        }
    }

    fn note_finished(&mut self, finish: &FinishAttempt, result: &Result<FinishResult, StoreError>) {
        match result {
            Ok(FinishResult::Recorded) => {
                self.deps.metrics.attempt_finished(finish);
                self.deps.watchers.publish(&finish.attempt.intent_id);
                if let Some(id) = finish.attempt.intent_id.submission_id() {
                    self.log_job(finish, id);
                }
                let ended = !matches!(finish.decision, Decision::RetryAt(_));
                if ended && finish.attempt.contract.webhook.is_some() {
                    self.deps.pending_webhooks.notify_one();
                }
            }
            Ok(FinishResult::NotOpen) => {}
            Err(error) => self.failed_alone(error),
        }
    }

    fn expired(&mut self, intent: &Intent) {
        log::debug!("intent_expired intent_id={:?}", intent.id);
        if let Some(id) = intent.id.submission_id() {
            self.job_log.write("job_expired".to_owned(), id);
        }
        self.deps.metrics.intent_expired(intent);
        self.deps.watchers.publish(&intent.id);
        self.deps.pending_webhooks.notify_one();
    }

    /// Says what came of an attempt of a job, with all that is to be said of one.
    fn log_job(&mut self, finish: &FinishAttempt, id: SubmissionId) {
        let FinishAttempt { attempt, outcome, decision, .. } = finish;
        let (number, kind) = (attempt.attempt_number, outcome.kind());
        let event = format!("job_attempt_finished attempt={number} outcome={kind} decision={decision:?}");
        match &attempt.job {
            Some(facts) => log::info!("{event} {}", facts.tags(attempt.trace, Some(id))),
            None => self.job_log.write(event, id),
        }
    }

    fn failed_alone(&self, error: &StoreError) {
        log::error!("write_failed store_error={error:?}");
        self.deps.metrics.store_failed(error.kind());
    }

    fn show_queue(&self) {
        let fenced: usize = self.fenced.iter().map(|fenced| fenced.writes.len()).sum();
        let waiting = self.submits.len() + self.received.len() + fenced;
        self.deps.metrics.store_queue.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }
}

/// Who waits for a batch, in the order of its items.
#[derive(Default)]
struct Callers {
    submits: Vec<Reply<Result<Submitted, StoreError>>>,
    received: Vec<Reply<Result<Received, StoreError>>>,
    fenced: Vec<FencedCaller>,
}

/// Who waits for a part of the leader's writes, and how large that part is.
struct FencedCaller {
    reply: Reply<FencedResult<FencedResults>>,
    starts: usize,
    finishes: Vec<Arc<FinishAttempt>>,
    postpones: usize,
}

impl Callers {
    fn refuse(self, error: &StoreError) {
        self.submits.into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
        self.received.into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
        let fenced = || FencedError::Store(error.clone());
        self.fenced.into_iter().for_each(|caller| drop(caller.reply.send(Err(fenced()))));
    }
}

impl Actor for StoreActor {
    type Context = Context<Self>;
}

impl Handler<Submit> for StoreActor {
    type Result = ();

    fn handle(&mut self, submit: Submit, ctx: &mut Self::Context) {
        let bytes = submit.new.payload.bytes().len();
        if self.is_full(self.submits.len(), bytes) {
            let _caller_may_be_gone = submit.reply.send(Err(StoreError::Overloaded));
            return;
        }
        self.waiting_bytes += bytes;
        self.submits.push_back(submit);
        self.show_queue();
        self.commit_next(ctx);
    }
}

impl Handler<Receive> for StoreActor {
    type Result = ();

    fn handle(&mut self, receive: Receive, ctx: &mut Self::Context) {
        let bytes = receive.new.payload.len();
        if self.is_full(self.received.len(), bytes) {
            let _caller_may_be_gone = receive.reply.send(Err(StoreError::Overloaded));
            return;
        }
        self.waiting_bytes += bytes;
        self.received.push_back(receive);
        self.show_queue();
        self.commit_next(ctx);
    }
}

impl Handler<Fenced> for StoreActor {
    type Result = ();

    /// Not bounded here: the executor has a bounded number of attempts in flight.
    fn handle(&mut self, fenced: Fenced, ctx: &mut Self::Context) {
        self.fenced.push_back(fenced);
        self.show_queue();
        self.commit_next(ctx);
    }
}

impl Handler<StoreCall> for StoreActor {
    type Result = ();

    fn handle(&mut self, call: StoreCall, _: &mut Self::Context) {
        let most = match call.kind {
            CallKind::Leader => None,
            CallKind::Needed => Some(MAX_READS),
            CallKind::Optional => Some(MAX_OPTIONAL_READS),
        };
        let full = most.is_some_and(|most| self.reads.load(Ordering::Relaxed) >= most);
        // A refused call takes no room from others.
        let guard = most.filter(|_| !full).map(|_| ReadGuard::new(&self.reads));
        let store = if full { Err(StoreError::Overloaded) } else { Ok(self.deps.store.as_ref()) };
        (call.run)(store, guard, Arc::clone(&self.deps.metrics));
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(StoreActor);
