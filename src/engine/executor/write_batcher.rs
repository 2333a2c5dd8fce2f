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
use crate::store::actor::{FencedError, FencedResult};
use crate::store::client::StoreClient;
use crate::store::{Begun, FencedWrites, FinishAttempt, Finished, PostponeAttempt, StoreError};

type Answer<T> = oneshot::Sender<FencedResult<T>>;

pub struct Outbox {
    store: StoreClient,
    term: Term,
    waiting: RefCell<Letters>,
}

#[derive(Default)]
struct Letters {
    begins: Vec<(Waiting, Answer<Begun>)>,
    finishes: Vec<(Arc<FinishAttempt>, Answer<Finished>)>,
    postpones: Vec<(PostponeAttempt, Answer<Finished>)>,
    /// They will be sent when the tasks that are ready now have had their turn.
    leaving: bool,
}

impl Outbox {
    pub fn new(store: StoreClient, term: Term) -> Rc<Self> {
        Rc::new(Self { store, term, waiting: RefCell::default() })
    }

    pub async fn begin(self: &Rc<Self>, waiting: Waiting) -> FencedResult<Begun> {
        let (answer, answered) = oneshot::channel();
        self.post(|letters| letters.begins.push((waiting, answer)));
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    pub async fn finish(self: &Rc<Self>, finish: Arc<FinishAttempt>) -> FencedResult<Finished> {
        let (answer, answered) = oneshot::channel();
        self.post(|letters| letters.finishes.push((finish, answer)));
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    pub async fn postpone(self: &Rc<Self>, postpone: PostponeAttempt) -> FencedResult<Finished> {
        let (answer, answered) = oneshot::channel();
        self.post(|letters| letters.postpones.push((postpone, answer)));
        answered.await.unwrap_or_else(|_| Err(lost()))
    }

    fn post(self: &Rc<Self>, write: impl FnOnce(&mut Letters)) {
        let mut letters = self.waiting.borrow_mut();
        write(&mut letters);
        if !std::mem::replace(&mut letters.leaving, true) {
            actix::spawn(Rc::clone(self).send());
        }
    }

    async fn send(self: Rc<Self>) {
        let Letters { begins, finishes, postpones, .. } = self.waiting.take();
        let (begins, begin_answers): (Vec<_>, Vec<_>) = begins.into_iter().unzip();
        let (finishes, finish_answers): (Vec<_>, Vec<_>) = finishes.into_iter().unzip();
        let (postpones, postpone_answers): (Vec<_>, Vec<_>) = postpones.into_iter().unzip();
        let writes = FencedWrites { begins, finishes, postpones, ..FencedWrites::new(&self.term) };
        match self.store.fenced(writes).await {
            Ok(done) => {
                deliver(begin_answers, done.begins);
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
