//! Which waiting writes go into the next transaction, and who waits for each of them.
//!
//! A batch has at most [`MAX_BATCH`] new intents (fewer if the store asks for that), as many inbox submissions, and writes of
//! the leader. The leader's writes come in messages that are taken as a whole: further messages are taken until there are 2 × [`MAX_BATCH`] of these
//! writes, so the last message may exceed that number. A batch can therefore hold more than 4,096 writes.

use std::sync::Arc;

use super::super::messages::{Fenced, Receive, Reply, Submit};
use super::super::{
    FencedError, FencedResult, FencedResults, FinishAttempt, Received, StoreError, Submitted, WriteBatch,
};
use super::StoreActor;

/// New intents in one transaction, and inbox submissions in one transaction. The number bounds how long a transaction takes
/// and how many callers a failed one affects. It is an estimate and not the result of a measurement; a batch submission of a
/// thousand intents fits into it.
const MAX_BATCH: usize = 1024;
/// Payload bytes of new intents in one transaction, so that a slow server can store them well before its timeout.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Payload bytes of inbox submissions in one transaction. They have a limit of their own, so that neither intents nor inbox
/// submissions delay the other.
const MAX_RECEIVED_BATCH_BYTES: usize = 2 * 1024 * 1024;

/// Who waits for the items of a batch, in the order of its items.
#[derive(Default)]
pub(super) struct Callers {
    pub submits: Vec<Reply<Result<Submitted, StoreError>>>,
    pub received: Vec<Reply<Result<Received, StoreError>>>,
    pub fenced: Vec<FencedCaller>,
}

/// Who waits for a part of the leader's writes, and how large that part is.
pub(super) struct FencedCaller {
    pub reply: Reply<FencedResult<FencedResults>>,
    pub starts: usize,
    pub finishes: Vec<Arc<FinishAttempt>>,
    pub postpones: usize,
}

impl Callers {
    /// Answers all callers of a batch that failed as a whole.
    pub(super) fn fail(self, error: &StoreError) {
        self.submits.into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
        self.received.into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
        let fenced = || FencedError::Store(error.clone());
        self.fenced.into_iter().for_each(|caller| drop(caller.reply.send(Err(fenced()))));
    }
}

impl StoreActor {
    /// Takes the next batch from the queues. Writes whose callers have stopped waiting are dropped. All leader writes of a
    /// batch belong to one term.
    pub(super) fn take_batch(&mut self) -> (WriteBatch, Callers) {
        let mut batch = WriteBatch::default();
        let mut callers = Callers::default();
        let taken_bytes = self.take_received(&mut batch, &mut callers) + self.take_submits(&mut batch, &mut callers);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(taken_bytes);
        self.take_fenced(&mut batch, &mut callers);
        (batch, callers)
    }

    /// Takes inbox submissions; returns their payload bytes, including those of dropped ones.
    fn take_received(&mut self, batch: &mut WriteBatch, callers: &mut Callers) -> usize {
        let (mut bytes, mut dropped_bytes) = (0, 0);
        while let Some(Receive { new, reply, give_up_at }) =
            self.received.pop_front_if(|_| batch.received.len() < MAX_BATCH && bytes < MAX_RECEIVED_BATCH_BYTES)
        {
            if reply.is_closed() {
                dropped_bytes += new.payload.len();
                continue;
            }
            bytes += new.payload.len();
            batch.received.push(new);
            batch.received_deadlines.push(give_up_at);
            batch.give_up_at = batch.give_up_at.max(Some(give_up_at));
            callers.received.push(reply);
        }
        bytes + dropped_bytes
    }

    /// Takes new intents; returns their payload bytes, including those of dropped ones.
    fn take_submits(&mut self, batch: &mut WriteBatch, callers: &mut Callers) -> usize {
        let (mut bytes, mut dropped_bytes) = (0, 0);
        let max_submits = MAX_BATCH.min(self.deps.store.max_submits());
        while let Some(Submit { new, reply, give_up_at }) =
            self.submits.pop_front_if(|_| batch.submits.len() < max_submits && bytes < MAX_BATCH_BYTES)
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
        bytes + dropped_bytes
    }

    /// Takes writes of the leader.
    fn take_fenced(&mut self, batch: &mut WriteBatch, callers: &mut Callers) {
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
    }
}
