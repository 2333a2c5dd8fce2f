//! Commits a batch of writes in one round trip: one transaction of set-based statements over lists.
//!
//! If the server refuses a batch because of its content, the items are committed one by one, so that an invalid item
//! fails alone. That happens only if the batch has had no effect. Once the server has begun to answer, the transaction
//! is committed, and every error means that the store is unavailable and the results of the batch are unknown.

use tiberius::Row;

use super::attempts::{self, NotAllowed, Starts};
use super::contracts::Contracts;
use super::database::{Batch, Database, ResultSets};
use super::inbox;
use super::rows;
use super::script::Script;
use super::submit::{Submits, has_several_audit_entries};
use crate::domain::intent::Intent;
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::errors::Described;
use crate::store::{
    BatchResults, FencedError, FencedResult, FencedResults, FencedWrites, StartOnInsert, StartResult, StoreError,
    WriteBatch,
};

/// The parts of the store that a commit needs.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub database: &'a Database,
    pub contracts: &'a Contracts,
    pub time: &'a StoreTime,
}

impl Writer<'_> {
    pub(super) async fn commit(self, batch: WriteBatch) -> Result<BatchResults, StoreError> {
        if has_several_audit_entries(&batch.submits) {
            return self.one_by_one(batch).await;
        }
        match self.try_commit(&batch).await {
            Err(StoreError::Unexpected(what)) => {
                log::warn!("batch_split store_error={what:?}");
                self.one_by_one(batch).await
            }
            result => result,
        }
    }

    /// Commits every item in a transaction of its own.
    async fn one_by_one(self, batch: WriteBatch) -> Result<BatchResults, StoreError> {
        let WriteBatch { submits, received, start_on_insert, fenced, .. } = batch;
        let mut all = nothing();
        for new in submits {
            let start_on_insert = start_on_insert.clone();
            match self.try_commit(&WriteBatch { submits: vec![new], start_on_insert, ..WriteBatch::default() }).await {
                Ok(results) => {
                    all.submits.extend(results.submits);
                    all.started.extend(results.started);
                }
                Err(error) => all.submits.push(Err(error)),
            }
        }
        for new in received {
            match self.try_commit(&WriteBatch { received: vec![new], ..WriteBatch::default() }).await {
                Ok(results) => all.received.extend(results.received),
                Err(error) => all.received.push(Err(error)),
            }
        }
        if let Some(writes) = fenced {
            all.fenced = self.fenced_one_by_one(writes).await;
            if let Err(FencedError::Store(error)) = all.fenced {
                return Err(error);
            }
        }
        Ok(all)
    }

    async fn fenced_one_by_one(self, writes: FencedWrites) -> FencedResult<FencedResults> {
        let FencedWrites { term, starts, finishes, postpones, expire } = writes;
        let none = || FencedWrites::new(&term);
        let mut items = Vec::new();
        items.extend(starts.into_iter().map(|begin| FencedWrites { starts: vec![begin], ..none() }));
        items.extend(finishes.into_iter().map(|finish| FencedWrites { finishes: vec![finish], ..none() }));
        items.extend(postpones.into_iter().map(|postpone| FencedWrites { postpones: vec![postpone], ..none() }));
        items.extend(expire.map(|limit| FencedWrites { expire: Some(limit), ..none() }));
        let mut all = FencedResults::default();
        for item in items {
            let (starts, finishes, expires) = (item.starts.len(), item.finishes.len(), item.expire.is_some());
            match self.try_commit(&WriteBatch { fenced: Some(item), ..WriteBatch::default() }).await {
                Ok(BatchResults { fenced: Ok(done), .. }) => {
                    all.starts.extend(done.starts);
                    all.finishes.extend(done.finishes);
                    all.postpones.extend(done.postpones);
                    all.ended.extend(done.ended);
                }
                Ok(BatchResults { fenced: Err(error), .. }) => return Err(error),
                Err(error) if expires => return Err(error.into()),
                Err(error) if starts > 0 => all.starts.push(Err(error)),
                Err(error) if finishes > 0 => all.finishes.push(Err(error)),
                Err(error) => all.postpones.push(Err(error)),
            }
        }
        Ok(all)
    }

    /// Commits the batch in one transaction. An error other than `Unavailable` means that nothing was changed.
    async fn try_commit(self, batch: &WriteBatch) -> Result<BatchResults, StoreError> {
        let Self { database, contracts, time } = self;
        let mut submits = Submits::prepare(database, contracts, &batch.submits).await?;
        let waiting = batch.fenced.as_ref().map(|writes| writes.starts.as_slice()).unwrap_or_default();
        let starts = Starts::prepare(database, contracts, waiting).await?;
        if let Some(StartOnInsert { slots, .. }) = starts_under(batch) {
            submits.take_slots(&**slots, time.now());
        }
        let script = write_batch(batch, &submits, &starts);
        let asked = monotonic();
        let results = database.run(script).await?;
        // From here on the transaction is committed.
        let (results, not_allowed) = read_batch(batch, submits, &starts, results, |now| time.observe(asked, now))
            .map_err(|error| StoreError::unavailable(Described::new("the answer to a batch cannot be read", error)))?;
        Ok(match &batch.fenced {
            Some(writes) if !not_allowed.is_empty() => self.end_not_allowed(writes, results, &not_allowed).await,
            _ => results,
        })
    }

    /// Exhausts intents that should have been started but to which policy allows no further attempt. If that fails,
    /// only these intents get the error, because the rest of the batch is committed.
    async fn end_not_allowed(
        self,
        writes: &FencedWrites,
        mut results: BatchResults,
        intents: &[NotAllowed],
    ) -> BatchResults {
        let Ok(fenced) = &mut results.fenced else { return results };
        let ended = self.try_end(&writes.term, intents).await;
        for (waiting, answer) in writes.starts.iter().zip(&mut fenced.starts) {
            if !matches!(answer, Ok(StartResult::Stale)) || !intents.iter().any(|intent| intent.seq == waiting.seq) {
                continue;
            }
            match &ended {
                Ok(ended) => {
                    if let Some(intent) = ended.iter().find(|intent| intent.seq == waiting.seq) {
                        *answer = Ok(StartResult::Ended(intent.clone()));
                    }
                }
                Err(error) => *answer = Err(error.clone()),
            }
        }
        results
    }

    async fn try_end(self, term: &Term, intents: &[NotAllowed]) -> Result<Vec<Intent>, StoreError> {
        let mut results = Results::new(self.database.run(end_batch(term, intents)).await?)?;
        attempts::read_intents(&results.next()?)
    }
}

/// Returns the permission to start new intents in this batch. There is none if the batch has writes of another term,
/// because a batch has only one fence.
fn starts_under(batch: &WriteBatch) -> Option<&StartOnInsert> {
    let same_term = |start_on_insert: &&StartOnInsert| {
        batch.fenced.as_ref().is_none_or(|writes| writes.term == start_on_insert.term)
    };
    batch.start_on_insert.as_ref().filter(|_| !batch.submits.is_empty()).filter(same_term)
}

/// Builds the SQL batch that makes all writes of `batch`.
pub(super) fn write_batch(batch: &WriteBatch, submits: &Submits<'_>, starts: &Starts<'_>) -> Batch {
    let mut script = Script::default();
    let on_insert = starts_under(batch).filter(|_| submits.may_start());
    let term =
        batch.fenced.as_ref().map(|writes| &writes.term).or(on_insert.map(|start_on_insert| &start_on_insert.term));
    let epoch = term.map(|term| script.fence(term));
    if !batch.submits.is_empty() {
        submits.write(&mut script, epoch.as_deref());
    }
    if !batch.received.is_empty() {
        inbox::write_received(&mut script, &batch.received);
    }
    if let (Some(writes), Some(epoch)) = (&batch.fenced, &epoch) {
        if !starts.is_empty() {
            starts.write(&mut script, epoch);
        }
        if !writes.finishes.is_empty() {
            attempts::write_finishes(&mut script, &writes.finishes);
        }
        if !writes.postpones.is_empty() {
            attempts::write_postpones(&mut script, &writes.postpones);
        }
        if let Some(limit) = writes.expire {
            attempts::write_expire(&mut script, limit);
        }
    }
    script.batch()
}

/// Builds the SQL batch that exhausts intents to which policy allows no further attempt.
pub(super) fn end_batch(term: &Term, intents: &[NotAllowed]) -> Batch {
    let mut script = Script::default();
    script.fence(term);
    attempts::write_not_allowed(&mut script, intents);
    script.batch()
}

/// Reads the results of [`write_batch`].
fn read_batch(
    batch: &WriteBatch,
    submits: Submits<'_>,
    starts: &Starts<'_>,
    results: ResultSets,
    observe: impl FnOnce(Timestamp),
) -> Result<(BatchResults, Vec<NotAllowed>), StoreError> {
    let mut results = Results::new(results)?;
    let now = results.now;
    observe(now);
    let mut done = nothing();
    if !batch.submits.is_empty() {
        let term = starts_under(batch).map(|start_on_insert| &start_on_insert.term);
        submits.read(|| results.next(), now, term, &mut done)?;
    }
    if !batch.received.is_empty() {
        done.received = inbox::received(&batch.received, &results.next()?)?;
    }
    let Some(writes) = &batch.fenced else { return Ok((done, Vec::new())) };
    if !results.held {
        done.fenced = Err(FencedError::TermOver);
        return Ok((done, Vec::new()));
    }
    let rows = if starts.is_empty() { Vec::new() } else { results.next()? };
    let mut not_allowed = Vec::new();
    let starts = starts.read(&rows, now, &mut not_allowed)?;
    let mut fenced = FencedResults { starts, ..FencedResults::default() };
    if !writes.finishes.is_empty() {
        let seqs = writes.finishes.iter().map(|finish| finish.attempt.seq);
        fenced.finishes = attempts::read_recorded(seqs, &results.next()?)?;
    }
    if !writes.postpones.is_empty() {
        let seqs = writes.postpones.iter().map(|postpone| postpone.seq);
        fenced.postpones = attempts::read_recorded(seqs, &results.next()?)?;
        fenced.ended = attempts::read_intents(&results.next()?)?;
    }
    if writes.expire.is_some() {
        fenced.ended.extend(attempts::read_intents(&results.next()?)?);
    }
    done.fenced = Ok(fenced);
    Ok((done, not_allowed))
}

/// The results of an empty batch.
fn nothing() -> BatchResults {
    BatchResults {
        submits: Vec::new(),
        received: Vec::new(),
        started: Vec::new(),
        fenced: Ok(FencedResults::default()),
    }
}

/// The result sets of a batch of writes, taken in order.
struct Results {
    now: Timestamp,
    held: bool,
    sets: std::vec::IntoIter<Vec<Row>>,
}

impl Results {
    fn new(results: ResultSets) -> Result<Self, StoreError> {
        let mut sets = results.into_iter();
        let first = sets.next().ok_or_else(|| lost("time"))?;
        let row = first.first().ok_or_else(|| lost("time"))?;
        Ok(Self { now: rows::need_moment(row, "now_at")?, held: rows::need::<i64>(row, "held")? == 1, sets })
    }

    fn next(&mut self) -> Result<Vec<Row>, StoreError> {
        self.sets.next().ok_or_else(|| lost("result"))
    }
}

fn lost(what: &str) -> StoreError {
    StoreError::unavailable(format!("the server did not return the {what} of a batch"))
}
