//! `StoreActor`: owns the store and commits writes in batches.
//!
//! State: the writes that wait for the next transaction, and whether one is being committed.
//!
//! Messages that it receives:
//! - `Submit` (a new intent), `SubmitAll` (several) and `Receive` (a new inbox submission), from request handlers through the store client.
//! - `Fenced` (writes of the leader), from the executor, the scheduler and the preparation of a term.
//! - `StoreCall` (any other call), from everyone. It is not batched.
//!
//! Messages that it sends: `IntentsWaiting` and `AttemptsInDoubt` to the scheduler and `AttemptsStarted` to the executor,
//! if this instance leads. It also wakes the webhook and inbox actors, the event feed and the requests that watch an intent.
//!
//! All writes that wait when a commit ends go into the next one, up to the limits in [`batching`]. There is no timer, so a
//! single write is not delayed, and a thousand writes need few commits. Each caller gets its answer only after its own
//! batch is durable.
//!
//! When the actor dies, waiting callers get the error `Unavailable`, and a new actor is started over the same
//! store. The batch that is being committed then still commits. Clients may repeat their request; a leader that cannot tell
//! what was committed resigns.

mod batching;
mod replies;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Recipient, WrapFuture};
use tokio::sync::Notify;

use super::health::WriteHealth;
use super::job_log::JobLog;
use super::messages::{AttemptsInDoubt, CallKind, Fenced, ReadGuard, Receive, StoreCall, Submit, SubmitAll};
use super::{Store, StoreError, TermSubscription};
use crate::platform::clock::monotonic;
use crate::platform::mutated;
use crate::platform::supervision::Alive;
use crate::store::watchers::IntentWatchers;
use crate::telemetry::metrics::Metrics;

/// New intents that may wait for a commit, and inbox submissions that may: about as many as a fast disk commits in a second.
pub const MAX_WAITING_SUBMITS: usize = 8192;
/// Payload bytes that may wait for a commit: 256 payloads of the default maximum.
pub const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;
/// Reads in flight or waiting for a connection.
pub const MAX_READS: usize = 1024;
/// Of those, reads that their callers can do without. They get half, so that any number of them leaves room for others.
pub const MAX_OPTIONAL_READS: usize = MAX_READS / 2;

/// Reports attempts that a batch may have started on insert, unless they are known and the executor has got them.
///
/// Dropping it without [`InDoubtGuard::resolve`] sends [`AttemptsInDoubt`] to the scheduler. So the report is also sent
/// when the commit fails or this actor dies.
struct InDoubtGuard(Option<Recipient<AttemptsInDoubt>>);

impl InDoubtGuard {
    fn resolve(mut self) {
        self.0 = None;
    }
}

impl Drop for InDoubtGuard {
    fn drop(&mut self) {
        if let Some(scheduler) = self.0.take()
            && !mutated!(NoDoubtReported)
        {
            scheduler.do_send(AttemptsInDoubt);
        }
    }
}

/// What the store actor shares with others. It outlives a restart of the actor.
#[derive(Clone)]
pub struct StoreDeps {
    pub store: Arc<dyn Store>,
    pub metrics: Arc<Metrics>,
    pub watchers: IntentWatchers,
    pub subscription: TermSubscription,
    /// Notified when webhook events may have become pending.
    pub pending_webhooks: Arc<Notify>,
    /// Notified when inbox submissions may have become due.
    pub inbox_filled: Arc<Notify>,
    /// Notified when intents may have ended.
    pub intents_ended: Arc<Notify>,
    /// Gets the result of every commit.
    pub health: WriteHealth,
}

/// Owns the store and commits writes in batches.
pub struct StoreActor {
    deps: StoreDeps,
    submits: VecDeque<Submit>,
    received: VecDeque<Receive>,
    /// Payload bytes in `submits` and `received` together.
    waiting_bytes: usize,
    fenced: VecDeque<Fenced>,
    committing: bool,
    /// Reads in flight.
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

    /// Starts the next commit, unless one is running or nothing waits.
    fn commit_next(&mut self, ctx: &mut Context<Self>) {
        if self.committing || (self.submits.is_empty() && self.received.is_empty() && self.fenced.is_empty()) {
            return;
        }
        let (mut batch, callers) = self.take_batch();
        self.show_queue();
        if batch.is_empty() {
            return; // All callers had stopped waiting.
        }
        self.committing = true;
        let subscriber = self.deps.subscription.subscriber();
        batch.start_on_insert = subscriber.as_ref().map(|subscriber| subscriber.start_on_insert.clone());
        let may_start = subscriber.as_ref().filter(|_| !batch.submits.is_empty());
        let in_doubt = InDoubtGuard(may_start.map(|subscriber| subscriber.in_doubt.clone()));
        let (started, writes) = (monotonic(), batch.len());
        let commit = self.deps.store.commit(batch).into_actor(self).map(move |result, actor, ctx| {
            actor.committing = false;
            actor.deps.metrics.batch_committed(writes, monotonic().duration_since(started));
            match result {
                Ok(results) => {
                    actor.deps.health.committed();
                    actor.answer(callers, results, subscriber.as_ref());
                    in_doubt.resolve();
                }
                Err(error) => {
                    log::error!("commit_failed writes={writes} store_error={error:?}");
                    actor.deps.health.commit_failed(&error);
                    actor.deps.metrics.store_failed(error.kind());
                    callers.fail(&error);
                }
            }
            actor.commit_next(ctx);
        });
        ctx.spawn(commit);
    }

    /// Whether a queue that has `waiting` items cannot take another one with `bytes` of payload.
    fn is_full(&self, waiting: usize, bytes: usize) -> bool {
        let full = waiting >= MAX_WAITING_SUBMITS || self.waiting_bytes + bytes > MAX_WAITING_BYTES;
        if full {
            self.deps.metrics.store_failed(StoreError::Overloaded.kind());
        }
        full
    }

    /// Reports the number of waiting writes to the metrics.
    fn show_queue(&self) {
        let fenced: usize = self.fenced.iter().map(|fenced| fenced.writes.len()).sum();
        let waiting = self.submits.len() + self.received.len() + fenced;
        self.deps.metrics.store_queue.set(i64::try_from(waiting).unwrap_or(i64::MAX));
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

impl Handler<SubmitAll> for StoreActor {
    type Result = ();

    fn handle(&mut self, SubmitAll { submits, reply }: SubmitAll, ctx: &mut Self::Context) {
        let bytes = submits.iter().map(|submit| submit.new.payload.bytes().len()).sum();
        let full = self.is_full(self.submits.len() + submits.len().saturating_sub(1), bytes);
        let _caller_may_be_gone = reply.send(if full { Err(StoreError::Overloaded) } else { Ok(()) });
        if full {
            return;
        }
        self.waiting_bytes += bytes;
        self.submits.extend(submits);
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

    /// The queue has no limit of its own, because the number of attempts in flight is limited.
    fn handle(&mut self, fenced: Fenced, ctx: &mut Self::Context) {
        self.fenced.push_back(fenced);
        self.show_queue();
        self.commit_next(ctx);
    }
}

impl Handler<StoreCall> for StoreActor {
    type Result = ();

    fn handle(&mut self, call: StoreCall, _: &mut Self::Context) {
        let limit = match call.kind {
            CallKind::Leader => None,
            CallKind::Needed => Some(MAX_READS),
            CallKind::Optional => Some(MAX_OPTIONAL_READS),
        };
        let full = limit.is_some_and(|limit| self.reads.load(Ordering::Relaxed) >= limit);
        // A refused call does not count against the limit.
        let guard = limit.filter(|_| !full).map(|_| ReadGuard::new(&self.reads));
        let store = if full { Err(StoreError::Overloaded) } else { Ok(self.deps.store.as_ref()) };
        (call.run)(store, guard, Arc::clone(&self.deps.metrics));
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(StoreActor);
