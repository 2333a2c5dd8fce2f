//! Collects what the attempts of a term want to say, so that it leaves the thread together.
//!
//! Every attempt is a task of its own, and many end in the same turn of the loop. One message for
//! all of them costs one wake-up of the store's thread and one of this one, instead of two each.

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

pub struct WriteBatcher {
    store: StoreClient,
    term: Term,
    waiting: RefCell<PendingWrites>,
}

#[derive(Default)]
struct PendingWrites {
    starts: Vec<(Waiting, Answer<StartResult>)>,
    finishes: Vec<(Arc<FinishAttempt>, Answer<FinishResult>)>,
    postpones: Vec<(PostponeAttempt, Answer<FinishResult>)>,
    /// They will be sent when the tasks that are ready now have had their turn.
    leaving: bool,
}

impl WriteBatcher {
    pub fn new(store: StoreClient, term: Term) -> Rc<Self> {
        Rc::new(Self { store, term, waiting: RefCell::default() })
    }

    pub async fn begin(self: &Rc<Self>, waiting: Waiting) -> FencedResult<StartResult> {
        let (answer, answered) = oneshot::channel();
        self.post(|pending| pending.starts.push((waiting, answer)));
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    pub async fn finish(self: &Rc<Self>, finish: Arc<FinishAttempt>) -> FencedResult<FinishResult> {
        let (answer, answered) = oneshot::channel();
        self.post(|pending| pending.finishes.push((finish, answer)));
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    pub async fn postpone(self: &Rc<Self>, postpone: PostponeAttempt) -> FencedResult<FinishResult> {
        let (answer, answered) = oneshot::channel();
        self.post(|pending| pending.postpones.push((postpone, answer)));
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    fn post(self: &Rc<Self>, write: impl FnOnce(&mut PendingWrites)) {
        let mut pending = self.waiting.borrow_mut();
        write(&mut pending);
        if !std::mem::replace(&mut pending.leaving, true) {
            actix::spawn(Rc::clone(self).send());
        }
    }

    async fn send(self: Rc<Self>) {
        let PendingWrites { starts, finishes, postpones, .. } = self.waiting.take();
        let (starts, begin_answers): (Vec<_>, Vec<_>) = starts.into_iter().unzip();
        let (finishes, finish_answers): (Vec<_>, Vec<_>) = finishes.into_iter().unzip();
        let (postpones, postpone_answers): (Vec<_>, Vec<_>) = postpones.into_iter().unzip();
        let writes = FencedWrites { starts, finishes, postpones, ..FencedWrites::new(&self.term) };
        match self.store.fenced(writes).await {
            Ok(done) => {
                deliver(begin_answers, done.starts);
                deliver(finish_answers, done.finishes);
                deliver(postpone_answers, done.postpones);
            }
            Err(error) => {
                begin_answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone()))));
                let finishes = finish_answers.into_iter().chain(postpone_answers);
                finishes.for_each(|answer| drop(answer.send(Err(error.clone()))));
            }
        }
    }
}

fn deliver<T>(answers: Vec<Answer<T>>, results: Vec<Result<T, StoreError>>) {
    for (answer, result) in answers.into_iter().zip(results) {
        let _attempt_may_be_gone = answer.send(result.map_err(FencedError::Store));
    }
}

fn lost() -> FencedError {
    FencedError::Store(StoreError::Unavailable("the answer was lost".to_owned()))
}
