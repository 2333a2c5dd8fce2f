//! A batch of writes in one transaction: submissions, begun and finished attempts together.
//!
//! A bad item fails alone: a batch that has one is done again with each item in a savepoint. Not
//! at first, because a savepoint copies every page that its item touches. The leader's part is done
//! only if its term holds the lease, looked up in this same transaction.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use tokio::time::Instant;

use super::connection::{begin, store_error};
use super::numbers::Numbers;
use super::read::{self, parsed};
use super::schedule::as_limit;
use super::tally::Tally;
use super::targets::{self, Lanes};
use super::{inbox, jobs, leases, messages, webhooks};
use crate::domain::contract::{Contract, ContractSnapshot};
use crate::domain::intent::{ExhaustedReason, Intent, IntentId, IntentSeq, State, TargetName};
use crate::domain::policy;
use crate::domain::schedule::{Lane, Waiting};
use crate::domain::time::Timestamp;
use crate::platform::clock::{WallClock, monotonic};
use crate::store::columns::StateColumns;
use crate::store::{
    BatchResults, FencedError, FencedResults, FencedWrites, FinishAttempt, FinishResult, NewIntent, OpenAttempt,
    PostponeAttempt, StartOnInsert, StartResult, StartedOnInsert, StoreError, Submitted, WriteBatch,
};

/// Contracts that are known to be in the database, so that a submission need not look.
#[derive(Default)]
pub struct ContractCache {
    /// A contract's number is that of its lane.
    lanes: HashMap<Arc<str>, Arc<Lane>>,
    by_id: HashMap<i64, Arc<Contract>>,
}

pub fn commit(
    connection: &mut Connection,
    contracts: &mut ContractCache,
    clock: &WallClock,
    batch: &WriteBatch,
) -> Result<BatchResults, rusqlite::Error> {
    let result = try_commit(connection, contracts, clock, batch, Items::Together);
    let Err(error) = result else { return result };
    // What was rolled back may include contracts; their numbers must not be used again.
    *contracts = ContractCache::default();
    if matches!(store_error(&error), StoreError::Unavailable(_)) {
        return Err(error);
    }
    let result = try_commit(connection, contracts, clock, batch, Items::Apart);
    if result.is_err() {
        *contracts = ContractCache::default();
    }
    result
}

/// How the items of a batch stand in their transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Items {
    /// A bad one is an error of the whole.
    Together,
    /// Each in a savepoint: a bad one fails alone.
    Apart,
}

fn try_commit(
    connection: &mut Connection,
    contracts: &mut ContractCache,
    clock: &WallClock,
    batch: &WriteBatch,
    items: Items,
) -> Result<BatchResults, rusqlite::Error> {
    let (transaction, now) = begin(connection, clock)?;
    let mut submits = Vec::with_capacity(batch.submits.len());
    let mut numbers = Numbers::load(&transaction)?;
    let mut started = Vec::new();
    let start_on_insert = match &batch.start_on_insert {
        Some(start_on_insert) if leases::holds(&transaction, &start_on_insert.term, now)? => Some(start_on_insert),
        _ => None,
    };
    let paused = if batch.may_start() { targets::paused(&transaction)? } else { BTreeSet::new() };
    for (number, new) in batch.submits.iter().enumerate() {
        if is_late(batch.submit_deadlines.get(number)) {
            submits.push(Err(late()));
            continue;
        }
        let result = items.run(&transaction, |tx| {
            submit(
                tx,
                contracts,
                &mut numbers,
                new,
                now,
                start_on_insert.filter(|_| !paused.contains(&new.contract.contract.target)),
            )
        })?;
        let result = result.map(|(submitted, started_on_insert)| {
            started.extend(started_on_insert);
            submitted
        });
        if result.is_err() {
            // A contract that was made for it is undone with it.
            contracts.lanes.clear();
        }
        submits.push(result);
    }
    let mut received = Vec::with_capacity(batch.received.len());
    for (number, new) in batch.received.iter().enumerate() {
        if is_late(batch.received_deadlines.get(number)) {
            received.push(Err(late()));
            continue;
        }
        received.push(items.run(&transaction, |tx| inbox::receive(tx, new, now))?);
    }
    let fenced = match &batch.fenced {
        None => Ok(FencedResults::default()),
        Some(writes) if leases::holds(&transaction, &writes.term, now)? => {
            Ok(fenced(&transaction, contracts, writes, &paused, now, items)?)
        }
        Some(_) => Err(FencedError::TermOver),
    };
    transaction.commit()?;
    Ok(BatchResults { submits, received, started, fenced })
}

/// Whether whoever waits for an item has given up while others held the lock.
fn is_late(give_up_at: Option<&Instant>) -> bool {
    give_up_at.is_some_and(|moment| monotonic() >= *moment)
}

fn late() -> StoreError {
    StoreError::Unavailable("the lock came too late".to_owned())
}

fn fenced(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    writes: &FencedWrites,
    paused: &BTreeSet<TargetName>,
    now: Timestamp,
    items: Items,
) -> Result<FencedResults, rusqlite::Error> {
    let mut tally = Tally::default();
    let mut starts = Vec::with_capacity(writes.starts.len());
    for waiting in &writes.starts {
        let begun =
            |tx: &Transaction<'_>| begin_attempt(tx, contracts, writes.term.epoch, waiting, paused, now, &mut tally);
        starts.push(items.run(transaction, begun)?);
    }
    let mut finishes = Vec::with_capacity(writes.finishes.len());
    for finish in &writes.finishes {
        finishes.push(items.run(transaction, |tx| finish_attempt(tx, finish, now, &mut tally))?);
    }
    let mut postpones = Vec::with_capacity(writes.postpones.len());
    for postpone in &writes.postpones {
        postpones.push(items.run(transaction, |tx| postpone_attempt(tx, postpone, now))?);
    }
    let expired = match writes.expire {
        Some(limit) => expire_overdue(transaction, limit, now, items, &mut tally)?,
        None => Vec::new(),
    };
    tally.write(transaction, now)?;
    Ok(FencedResults { starts, finishes, postpones, expired })
}

impl Items {
    /// Runs one item. The outer error means that the whole transaction is to be given up.
    pub fn run<T>(
        self,
        transaction: &Transaction<'_>,
        item: impl FnOnce(&Transaction<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<Result<T, StoreError>, rusqlite::Error> {
        if self == Self::Together {
            return item(transaction).map(Ok);
        }
        transaction.prepare_cached("SAVEPOINT item")?.execute([])?;
        let result = item(transaction);
        match result {
            Ok(done) => {
                transaction.prepare_cached("RELEASE item")?.execute([])?;
                Ok(Ok(done))
            }
            Err(error) if transaction.is_autocommit() => Err(error),
            Err(error) => {
                transaction.execute_batch("ROLLBACK TO item; RELEASE item")?;
                Ok(Err(store_error(&error)))
            }
        }
    }
}

fn submit(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    numbers: &mut Numbers,
    new: &NewIntent,
    now: Timestamp,
    start_on_insert: Option<&StartOnInsert>,
) -> Result<(Submitted, Option<StartedOnInsert>), rusqlite::Error> {
    if let Some(job) = &new.job
        && let Some(existing) = jobs::by_key(transaction, &job.key)?
    {
        return Ok((Submitted::Existing(existing), None));
    }
    let contract = &new.contract.contract;
    let lane = lane_of(transaction, contracts, &new.contract)?;
    let deadline = policy::deadline(contract, now);
    let taken = start_on_insert.and_then(|start_on_insert| {
        let guards = start_on_insert.slots.take(&lane, now)?;
        Some((guards, start_on_insert.term.epoch))
    });
    let epoch = taken.as_ref().map(|(_, epoch)| *epoch);
    let number = if new.job.is_some() { numbers.next_of_job() } else { numbers.next() };
    let inserted = transaction
        .prepare_cached(
            "INSERT INTO submission_intents (intent_seq, intent_id, contract_id, gateway_id, payload_sha256, status,
                 attempt_count, next_attempt_at, open_lease_epoch, open_started_at, deadline_at, created_at,
                 last_modified_at)
             VALUES (?8, ?1, ?2, ?3, ?4, 'pending', ?7 IS NOT NULL, iif(?7 IS NULL, ?5, NULL), ?7,
                 iif(?7 IS NULL, NULL, ?5), ?6, ?5, ?5)
             ON CONFLICT (intent_id) DO NOTHING",
        )?
        .execute(params![
            new.id.as_str(),
            lane.id.0,
            lane.gateway.0,
            new.payload.sha256(),
            now.micros(),
            deadline.map(Timestamp::micros),
            epoch,
            number
        ])?;
    if inserted == 0 {
        let found = read::find(transaction, &new.id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        return Ok((found.resubmitted(&contract.target, &new.payload), None));
    }
    let seq = IntentSeq(transaction.last_insert_rowid());
    transaction
        .prepare_cached("INSERT INTO submission_payloads (intent_seq, payload) VALUES (?1, ?2)")?
        .execute(params![seq.0, new.payload.bytes().as_ref()])?;
    if let Some(job) = &new.job {
        jobs::keep(transaction, seq, job, now)?;
    }
    if let Some(trace) = new.trace {
        jobs::keep_trace(transaction, seq, trace)?;
    }
    let intent = Intent {
        seq,
        id: new.id.clone(),
        target: contract.target.clone(),
        created_at: now,
        state: State::Pending,
        attempt_count: u32::from(epoch.is_some()),
        attempt_open: epoch.is_some(),
    };
    let started = taken.map(|((slot, in_flight), lease_epoch)| {
        let attempt = OpenAttempt {
            seq,
            intent_id: new.id.clone(),
            contract: Arc::clone(contract),
            created_at: now,
            attempt_number: 1,
            lease_epoch,
            started_at: now,
            trace: new.trace,
            job: None,
        };
        StartedOnInsert { attempt, payload: new.payload.bytes().clone(), slot, in_flight }
    });
    Ok((Submitted::Created(intent), started))
}

/// The lane of a contract, which is made if it is new.
fn lane_of(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    snapshot: &ContractSnapshot,
) -> Result<Arc<Lane>, rusqlite::Error> {
    if let Some(lane) = contracts.lanes.get(&snapshot.json) {
        return Ok(Arc::clone(lane));
    }
    let url = snapshot.contract.gateway_url.as_str();
    transaction.execute("INSERT OR IGNORE INTO submission_gateways (gateway_url) VALUES (?1)", [url])?;
    transaction.execute(
        "INSERT OR IGNORE INTO submission_contracts (gateway_id, submission_target, snapshot)
         SELECT gateway_id, ?2, ?3 FROM submission_gateways WHERE gateway_url = ?1",
        params![url, snapshot.contract.target.as_str(), snapshot.json],
    )?;
    let contract_id = transaction.query_row(
        "SELECT contract_id FROM submission_contracts WHERE snapshot = ?1",
        [&snapshot.json],
        |row| row.get(0),
    )?;
    if let Some(webhook) = &snapshot.contract.webhook {
        webhooks::keep_receiver(transaction, contract_id, webhook)?;
    }
    let lane = Lanes::new(transaction).of(contract_id)?;
    contracts.lanes.insert(Arc::clone(&snapshot.json), Arc::clone(&lane));
    Ok(lane)
}

pub fn contract_by_id(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    contract_id: i64,
) -> Result<Arc<Contract>, rusqlite::Error> {
    if let Some(contract) = contracts.by_id.get(&contract_id) {
        return Ok(Arc::clone(contract));
    }
    let contract: Contract = transaction.query_row(
        "SELECT snapshot FROM submission_contracts WHERE contract_id = ?1",
        [contract_id],
        |row| parsed(row, 0, |text| serde_json::from_str(text).ok()),
    )?;
    let contract = Arc::new(contract);
    contracts.by_id.insert(contract_id, Arc::clone(&contract));
    Ok(contract)
}

fn begin_attempt(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    epoch: i64,
    waiting: &Waiting,
    paused: &BTreeSet<TargetName>,
    now: Timestamp,
    tally: &mut Tally,
) -> Result<StartResult, rusqlite::Error> {
    let row = transaction
        .prepare_cached(
            "SELECT intent_id, contract_id, created_at, next_attempt_at, payload, traceparent
             FROM submission_intents JOIN submission_payloads USING (intent_seq)
                 LEFT JOIN submission_traces USING (intent_seq)
             WHERE intent_seq = ?1 AND attempt_count = ?2 AND next_attempt_at IS NOT NULL",
        )?
        .query_row(params![waiting.seq.0, waiting.attempt_count], |row| {
            Ok((
                parsed(row, 0, |text| IntentId::parse(text).ok())?,
                row.get::<_, i64>(1)?,
                Timestamp::from_micros(row.get(2)?),
                Timestamp::from_micros(row.get(3)?),
                Bytes::from(row.get::<_, Vec<u8>>(4)?),
                jobs::trace_of(row, 5)?,
            ))
        })
        .optional()?;
    let Some((intent_id, contract_id, created_at, due, payload, trace)) = row else { return Ok(StartResult::Stale) };
    if due > now {
        return Ok(StartResult::NotDue { due, now });
    }
    let contract = contract_by_id(transaction, contracts, contract_id)?;
    if let Err(reason) = policy::may_start(&contract, created_at, waiting.attempt_count, now) {
        return exhaust(transaction, waiting.seq, reason, now, tally).map(StartResult::Ended);
    }
    if paused.contains(&contract.target) {
        return Ok(StartResult::Paused);
    }
    transaction
        .prepare_cached(
            "UPDATE submission_intents SET attempt_count = attempt_count + 1, next_attempt_at = NULL,
                 open_lease_epoch = ?2, open_started_at = ?3, last_modified_at = ?3 WHERE intent_seq = ?1",
        )?
        .execute(params![waiting.seq.0, epoch, now.micros()])?;
    let attempt = OpenAttempt {
        seq: waiting.seq,
        intent_id,
        contract,
        created_at,
        attempt_number: waiting.attempt_count + 1,
        lease_epoch: epoch,
        started_at: now,
        trace,
        job: None,
    };
    Ok(StartResult::Started { attempt, payload, due })
}

fn finish_attempt(
    transaction: &Transaction<'_>,
    finish: &FinishAttempt,
    now: Timestamp,
    tally: &mut Tally,
) -> Result<FinishResult, rusqlite::Error> {
    let FinishAttempt { attempt, finished_at, outcome, .. } = finish;
    let state = StateColumns::from(finish);
    let updated = transaction
        .prepare_cached(
            "UPDATE submission_intents SET status = ?3, next_attempt_at = ?4, completed_at = ?5, rejected_reason = ?6,
                 exhausted_reason = ?7, open_lease_epoch = NULL, open_started_at = NULL, last_modified_at = ?8
             WHERE intent_seq = ?1 AND attempt_count = ?2 AND open_lease_epoch IS NOT NULL",
        )?
        .execute(params![
            attempt.seq.0,
            attempt.attempt_number,
            state.status,
            state.next_attempt_at.map(Timestamp::micros),
            state.completed_at.map(Timestamp::micros),
            state.rejected_reason,
            state.exhausted_reason,
            now.micros()
        ])?;
    if updated == 0 {
        return Ok(FinishResult::NotOpen);
    }
    transaction
        .prepare_cached(
            "INSERT INTO submission_attempts (intent_seq, attempt_number, lease_epoch, started_at, finished_at,
                 outcome_status, outcome_reason, error, gateway_message_id)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            attempt.seq.0,
            attempt.attempt_number,
            attempt.lease_epoch,
            attempt.started_at.micros(),
            finished_at.micros(),
            outcome.status(),
            outcome.reason(),
            outcome.error_text(),
            outcome.gateway_message_id()
        ])?;
    if let Some(id) = outcome.searchable_message_id().filter(|_| !attempt.intent_id.is_reserved()) {
        messages::keep(transaction, id, attempt.seq)?;
    }
    if state.completed_at.is_some() && attempt.contract.webhook.is_some() {
        webhooks::owe(transaction, attempt.seq, now)?;
    }
    jobs::count_reach(transaction, finish, now)?;
    tally.attempt(transaction, finish)?;
    Ok(FinishResult::Recorded)
}

fn postpone_attempt(
    transaction: &Transaction<'_>,
    postpone: &PostponeAttempt,
    now: Timestamp,
) -> Result<FinishResult, rusqlite::Error> {
    let updated = transaction
        .prepare_cached(
            "UPDATE submission_intents SET attempt_count = attempt_count - 1, next_attempt_at = ?3,
                 open_lease_epoch = NULL, open_started_at = NULL, last_modified_at = ?4
             WHERE intent_seq = ?1 AND attempt_count = ?2 AND open_lease_epoch IS NOT NULL",
        )?
        .execute(params![postpone.seq.0, postpone.attempt_number, postpone.due.micros(), now.micros()])?;
    Ok(if updated == 0 { FinishResult::NotOpen } else { FinishResult::Recorded })
}

fn expire_overdue(
    transaction: &Transaction<'_>,
    limit: usize,
    now: Timestamp,
    items: Items,
    tally: &mut Tally,
) -> Result<Vec<Intent>, rusqlite::Error> {
    let overdue: Vec<i64> = transaction
        .prepare_cached(
            "SELECT intent_seq FROM submission_intents
             WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL AND deadline_at <= ?1
             ORDER BY deadline_at LIMIT ?2",
        )?
        .query_map(params![now.micros(), as_limit(limit)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut expired = Vec::with_capacity(overdue.len());
    for seq in overdue {
        let reason = ExhaustedReason::DeadlineExceeded;
        match items.run(transaction, |tx| exhaust(tx, IntentSeq(seq), reason, now, tally))? {
            Ok(intent) => expired.push(intent),
            Err(error) => log::error!("intent_not_expired intent_seq={seq} store_error={error:?}"),
        }
    }
    Ok(expired)
}

/// Ends a waiting intent without an attempt.
fn exhaust(
    transaction: &Transaction<'_>,
    seq: IntentSeq,
    reason: ExhaustedReason,
    now: Timestamp,
    tally: &mut Tally,
) -> Result<Intent, rusqlite::Error> {
    transaction
        .prepare_cached(
            "UPDATE submission_intents SET status = 'exhausted', exhausted_reason = ?2, completed_at = ?3,
                 next_attempt_at = NULL, last_modified_at = ?3
             WHERE intent_seq = ?1 AND next_attempt_at IS NOT NULL",
        )?
        .execute(params![seq.0, reason.as_str(), now.micros()])?;
    webhooks::owe(transaction, seq, now)?;
    let sql =
        format!("SELECT {}, i.contract_id FROM {} WHERE i.intent_seq = ?1", read::INTENT_COLUMNS, read::INTENT_TABLES);
    let (intent, contract_id) = transaction
        .prepare_cached(&sql)?
        .query_row([seq.0], |row| Ok((read::intent_of(row)?, row.get::<_, i64>(10)?)))?;
    tally.ended(contract_id, &intent, now);
    Ok(intent)
}
