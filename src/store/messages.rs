//! The messages of the store actor: what it receives, and what it sends to the actors of a term.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix::Message;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{
    FencedResult, FencedResults, FencedWrites, NewInboxSubmission, NewIntent, Received, StartedOnInsert, Store,
    StoreError, StoreFailure, Submitted,
};
use crate::telemetry::metrics::Metrics;

/// Where the answer to a message goes.
pub type Reply<T> = oneshot::Sender<T>;

/// Stores a new intent, with the next commit.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Submit {
    pub new: NewIntent,
    pub reply: Reply<Result<Submitted, StoreError>>,
    /// When the caller stops waiting. A write that has not started by then is not made at all.
    pub give_up_at: Instant,
}

/// Stores several intents, with the next commit. They are taken into the queue together or not at all.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SubmitAll {
    pub submits: Vec<Submit>,
    /// Gets `Overloaded` if the queue cannot take all of them.
    pub reply: Reply<Result<(), StoreError>>,
}

/// Stores an inbox submission, with the next commit.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Receive {
    pub new: NewInboxSubmission,
    pub reply: Reply<Result<Received, StoreError>>,
    /// When the caller stops waiting. A write that has not started by then is not made at all.
    pub give_up_at: Instant,
}

/// Makes writes of the leader with the next commit, if their term holds the lease.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Fenced {
    pub writes: FencedWrites,
    pub reply: Reply<FencedResult<FencedResults>>,
    /// How long the store may try. The caller waits for the answer in any case.
    pub give_up_at: Instant,
}

type RunCall = Box<dyn FnOnce(Result<&dyn Store, StoreError>, Option<ReadGuard>, Arc<Metrics>) + Send>;

/// Any other call of the store. It is not batched and runs in a task of its own.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StoreCall {
    pub(super) run: RunCall,
    pub(super) kind: CallKind,
}

/// Which limit a [`StoreCall`] is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// One of the few calls of the leader; not limited.
    Leader,
    /// Counted against [`MAX_READS`](super::actor::MAX_READS).
    Needed,
    /// Counted against [`MAX_OPTIONAL_READS`](super::actor::MAX_OPTIONAL_READS). A refusal is no failure of the store.
    Optional,
}

impl StoreCall {
    pub fn new<T: Send + 'static, E: StoreFailure>(
        kind: CallKind,
        reply: Reply<CallAnswer<T, E>>,
        call: impl FnOnce(&dyn Store) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send>> + Send + 'static,
    ) -> Self {
        let run: RunCall = Box::new(move |store, guard, metrics| {
            let answer = store.map(call);
            let mut reply = reply;
            actix::spawn(async move {
                let answer = match answer {
                    // A call that has not started when its caller stops waiting is not started any more.
                    Ok(answer) => tokio::select! {
                        biased;
                        () = reply.closed() => return,
                        answer = answer => answer,
                    },
                    Err(refused) => Err(E::from(refused)),
                };
                let error = answer.as_ref().err().and_then(StoreFailure::store_error);
                let refused =
                    |error: &StoreError| kind == CallKind::Optional && matches!(error, StoreError::Overloaded);
                if let Some(error) = error.filter(|error| !refused(error)) {
                    metrics.store_failed(error.kind());
                }
                let _caller_may_be_gone = reply.send(CallAnswer { answer, _guard: guard });
            });
        });
        Self { run, kind }
    }
}

/// The answer to a [`StoreCall`]. It counts as a read until its caller takes it, because until then its rows are in
/// memory.
pub struct CallAnswer<T, E> {
    pub answer: Result<T, E>,
    _guard: Option<ReadGuard>,
}

/// Counts one read in flight until it is dropped.
pub(super) struct ReadGuard(Arc<AtomicUsize>);

impl ReadGuard {
    pub(super) fn new(reads: &Arc<AtomicUsize>) -> Self {
        reads.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(reads))
    }
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Intents have started to wait. It carries no data: the scheduler reads the changes from the store.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct IntentsWaiting;

/// First attempts of new intents were recorded together with them, and the executor must now make them.
#[derive(Message)]
#[rtype(result = "()")]
pub struct AttemptsStarted(pub Vec<StartedOnInsert>);

/// First attempts may have been recorded as started without reaching the executor. Only a new term can find and close
/// them.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct AttemptsInDoubt;
