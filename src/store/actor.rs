//! `StoreActor`: owns the store and commits in groups.
//!
//! State: the writes that wait for the next transaction, and whether one is being committed.
//! Receives `Submit`, `Fenced` and `StoreCall`; sends `IntentsWaiting` and `AttemptsStarted` to the children
//! of a term. Everything that waits when a commit ends goes into the next one: no timer, so a
//! lonely write is as fast as can be and a thousand cost one commit. Each caller hears only after
//! its own batch is durable.
//!
//! When it dies, callers that wait are told that the store is unavailable, and a new one is
//! started over the same store. A batch being committed then still commits; clients may repeat
//! it, and a leader that cannot tell resigns.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, WrapFuture};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::health::WriteHealth;
use super::job_log::JobLog;
use super::{
    BatchResults, FencedResults, FencedWrites, FinishAttempt, FinishResult, NewInboxSubmission, NewIntent, Received,
    StartOnInsert, StartResult, StartedOnInsert, Store, StoreError, StoreFuture, Submitted, WriteBatch,
};
use crate::domain::intent::Intent;
use crate::domain::job::SubmissionId;
use crate::domain::lease::Term;
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

pub type Reply<T> = oneshot::Sender<T>;

/// Why a write of the leader did not take effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FencedError {
    #[error("the term is over")]
    TermOver,
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub type FencedResult<T> = Result<T, FencedError>;

#[derive(Message)]
#[rtype(result = "()")]
pub struct Submit {
    pub new: NewIntent,
    pub reply: Reply<Result<Submitted, StoreError>>,
    /// When the caller gives up; if the write is not begun by then, it is not made at all.
    pub give_up_at: Instant,
}

/// Something that came in for the inbox.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Receive {
    pub new: NewInboxSubmission,
    pub reply: Reply<Result<Received, StoreError>>,
    /// When the caller gives up; if the write is not begun by then, it is not made at all.
    pub give_up_at: Instant,
}

/// Writes that are done only if their term holds the lease; answered together.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Fenced {
    pub writes: FencedWrites,
    pub reply: Reply<FencedResult<FencedResults>>,
    /// How long the store may try. The caller waits for the answer in any case.
    pub give_up_at: Instant,
}

type Question = Box<dyn FnOnce(Result<&dyn Store, StoreError>, Option<ReadPermit>, Arc<Metrics>) + Send>;

/// Any other call of the store; not batched.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StoreCall {
    question: Question,
    kind: CallKind,
}

/// Which limit a call of the store is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// One of the few calls of the leader; not limited.
    Leader,
    /// Counted against [`MAX_READS`].
    Needed,
    /// Counted against [`MAX_OPTIONAL_READS`]. A refusal is no failure of the store.
    Optional,
}

impl StoreCall {
    pub fn new<T: Send + 'static>(
        kind: CallKind,
        reply: Reply<Result<T, StoreError>>,
        call: impl FnOnce(&dyn Store) -> StoreFuture<T> + Send + 'static,
    ) -> Self {
        let question: Question = Box::new(move |store, permit, metrics| {
            let answer = store.map(call);
            let mut reply = reply;
            actix::spawn(async move {
                let answer = match answer {
                    // What has not begun when the caller gives up is not begun any more.
                    Ok(answer) => tokio::select! {
                        answer = answer => answer,
                        () = reply.closed() => return,
                    },
                    Err(refused) => Err(refused),
                };
                drop(permit);
                let refused = kind == CallKind::Optional && matches!(answer, Err(StoreError::Overloaded));
                if let Some(error) = answer.as_ref().err().filter(|_| !refused) {
                    metrics.store_failed(error.kind());
                }
                let _caller_may_be_gone = reply.send(answer);
            });
        });
        Self { question, kind }
    }
}

struct ReadPermit(Arc<AtomicUsize>);

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Intents have begun to wait. Carries no data: whoever cares looks at the store.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct IntentsWaiting;

/// First attempts of new intents were written down together with them, and are now to be made.
#[derive(Message)]
#[rtype(result = "()")]
pub struct AttemptsStarted(pub Vec<StartedOnInsert>);

/// First attempts may have been written down that nobody will make: only a new term can tell.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct AttemptsInDoubt;

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

/// Who cares for new intents: the children of a term.
#[derive(Clone)]
pub struct TermSubscriber {
    pub doubt: Recipient<AttemptsInDoubt>,
    pub arrivals: Recipient<IntentsWaiting>,
    pub start_on_insert: StartOnInsert,
    pub begun: Recipient<AttemptsStarted>,
}

/// Who is to be told of new intents; outlives a restart of the actor.
#[derive(Clone, Default)]
pub struct TermSubscription(Arc<RwLock<Option<TermSubscriber>>>);

impl TermSubscription {
    /// Tells `watcher` from now on, in place of whoever was told before.
    pub fn watch(&self, watcher: TermSubscriber) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(watcher);
    }

    /// Tells the children of `term` no more; those of another one are not concerned.
    pub fn unwatch(&self, term: &Term) {
        let mut watcher = self.0.write().unwrap_or_else(PoisonError::into_inner);
        watcher.take_if(|watcher| watcher.start_on_insert.term == *term);
    }

    /// Something may be to be done: whoever leads here looks at the store.
    pub fn announce(&self) {
        if let Some(watcher) = self.watcher() {
            // A full mailbox holds a wake-up already.
            let _one_is_enough = watcher.arrivals.try_send(IntentsWaiting);
        }
    }

    fn watcher(&self) -> Option<TermSubscriber> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a store actor shares with others; outlives a restart of it.
#[derive(Clone)]
pub struct StoreDeps {
    pub store: Arc<dyn Store>,
    pub metrics: Arc<Metrics>,
    pub watchers: IntentWatchers,
    pub arrivals: TermSubscription,
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
        let watcher = self.deps.arrivals.watcher();
        batch.start_on_insert = watcher.as_ref().map(|watcher| watcher.start_on_insert.clone());
        let watched = watcher.as_ref().filter(|_| !batch.submits.is_empty());
        let doubt = Doubt(watched.map(|watcher| watcher.doubt.clone()));
        let (started, writes) = (monotonic(), batch.len());
        let commit = self.deps.store.commit(batch).into_actor(self).map(move |result, actor, ctx| {
            actor.committing = false;
            actor.deps.metrics.batch_committed(writes, monotonic().duration_since(started));
            match result {
                Ok(results) => {
                    actor.deps.health.committed();
                    actor.answer(callers, results, watcher.as_ref());
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

    fn answer(&mut self, callers: Callers, results: BatchResults, watcher: Option<&TermSubscriber>) {
        // Attempts first: whoever waits for an answer has it a moment later all the same.
        results.begun.iter().for_each(|_| self.deps.metrics.attempt_started(Duration::ZERO));
        if let Some(watcher) = watcher.filter(|_| !results.begun.is_empty()) {
            // Past the mailbox's bound: the places for attempts are the bound.
            watcher.begun.do_send(AttemptsStarted(results.begun));
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
            Some(done) => waits |= self.answer_fenced(callers.fenced, done),
            None => callers.fenced.into_iter().for_each(|caller| drop(caller.reply.send(Err(FencedError::TermOver)))),
        }
        if waits {
            self.deps.arrivals.announce();
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
            starts.iter().for_each(|begun| self.note_begun(begun));
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

    fn note_begun(&mut self, begun: &Result<StartResult, StoreError>) {
        match begun {
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

    fn handle(&mut self, ask: StoreCall, _: &mut Self::Context) {
        let most = match ask.kind {
            CallKind::Leader => None,
            CallKind::Needed => Some(MAX_READS),
            CallKind::Optional => Some(MAX_OPTIONAL_READS),
        };
        let full = most.is_some_and(|most| self.reads.load(Ordering::Relaxed) >= most);
        // One that is refused takes no room from others.
        let permit = most.filter(|_| !full).map(|_| {
            self.reads.fetch_add(1, Ordering::Relaxed);
            ReadPermit(Arc::clone(&self.reads))
        });
        let store = if full { Err(StoreError::Overloaded) } else { Ok(self.deps.store.as_ref()) };
        (ask.question)(store, permit, Arc::clone(&self.deps.metrics));
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(StoreActor);
