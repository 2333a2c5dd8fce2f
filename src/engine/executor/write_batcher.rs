//! `WriteBatcher`: sends the writes of a term's attempts to the store actor together.
//!
//! Every attempt is a task of its own, and many of them write in the same iteration of the executor's event loop. One message
//! for all of them wakes the store's thread and this one once, instead of once for each attempt.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::domain::lease::Term;
use crate::domain::schedule::Waiting;
use crate::store::client::StoreClient;
use crate::store::{FencedError, FencedResult};
use crate::store::{FencedWrites, FinishAttempt, FinishResult, PostponeAttempt, StartResult, StoreError};

type Answer<T> = oneshot::Sender<FencedResult<T>>;

/// Collects the writes of one term.
pub(super) struct WriteBatcher {
    store: StoreClient,
    term: Term,
    pending: RefCell<PendingWrites>,
}

#[derive(Default)]
struct PendingWrites {
    starts: Vec<(Waiting, Answer<StartResult>)>,
    finishes: Vec<(Arc<FinishAttempt>, Answer<FinishResult>)>,
    postpones: Vec<(PostponeAttempt, Answer<FinishResult>)>,
    /// A task that sends them is spawned. It runs after the tasks that are ready now.
    sending: bool,
}

impl WriteBatcher {
    pub(super) fn new(store: StoreClient, term: Term) -> Rc<Self> {
        Rc::new(Self { store, term, pending: RefCell::default() })
    }

    /// Records that the next attempt of a waiting intent starts.
    pub(super) async fn start(self: &Rc<Self>, waiting: Waiting) -> FencedResult<StartResult> {
        let (answer, answered) = oneshot::channel();
        self.add(|pending| pending.starts.push((waiting, answer)));
        answered.await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Records the outcome of an attempt.
    pub(super) async fn finish(self: &Rc<Self>, finish: Arc<FinishAttempt>) -> FencedResult<FinishResult> {
        let (answer, answered) = oneshot::channel();
        self.add(|pending| pending.finishes.push((finish, answer)));
        answered.await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Records that an open attempt was not made, and that its intent waits again.
    pub(super) async fn postpone(self: &Rc<Self>, postpone: PostponeAttempt) -> FencedResult<FinishResult> {
        let (answer, answered) = oneshot::channel();
        self.add(|pending| pending.postpones.push((postpone, answer)));
        answered.await.unwrap_or_else(|_| Err(no_answer()))
    }

    fn add(self: &Rc<Self>, write: impl FnOnce(&mut PendingWrites)) {
        let mut pending = self.pending.borrow_mut();
        write(&mut pending);
        if !std::mem::replace(&mut pending.sending, true) {
            actix::spawn(Rc::clone(self).send());
        }
    }

    async fn send(self: Rc<Self>) {
        let PendingWrites { starts, finishes, postpones, .. } = self.pending.take();
        let (starts, start_answers): (Vec<_>, Vec<_>) = starts.into_iter().unzip();
        let (finishes, finish_answers): (Vec<_>, Vec<_>) = finishes.into_iter().unzip();
        let (postpones, postpone_answers): (Vec<_>, Vec<_>) = postpones.into_iter().unzip();
        let writes = FencedWrites { starts, finishes, postpones, ..FencedWrites::new(&self.term) };
        match self.store.fenced(writes).await {
            Ok(done) => {
                deliver(start_answers, done.starts);
                deliver(finish_answers, done.finishes);
                deliver(postpone_answers, done.postpones);
            }
            Err(error) => {
                start_answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone()))));
                let others = finish_answers.into_iter().chain(postpone_answers);
                others.for_each(|answer| drop(answer.send(Err(error.clone()))));
            }
        }
    }
}

fn deliver<T>(answers: Vec<Answer<T>>, results: Vec<Result<T, StoreError>>) {
    for (answer, result) in answers.into_iter().zip(results) {
        let _attempt_may_be_gone = answer.send(result.map_err(FencedError::Store));
    }
}

fn no_answer() -> FencedError {
    FencedError::Store(StoreError::unavailable("the store actor did not answer"))
}
