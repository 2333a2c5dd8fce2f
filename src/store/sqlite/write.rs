//! Commits a batch of writes in one transaction.
//!
//! An invalid item must fail alone. The batch is first tried without savepoints, because a savepoint copies every page that
//! its item changes. If an item fails, the batch is rolled back and made again with each item in a savepoint. The leader's
//! part is made only if its term holds the lease, which is checked in the same transaction.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};
use tokio::time::Instant;

use super::connection::{begin_transaction, is_about_the_file, store_error};
use super::numbers::Numbers;
use super::read::{self, parsed};
use super::targets::{self, Lanes};
use super::{attempts, audit, inbox, jobs, leases, options, webhooks};
use crate::domain::contract::{Contract, ContractSnapshot};
use crate::domain::intent::{Intent, IntentSeq, State};
use crate::domain::policy;
use crate::domain::schedule::Lane;
use crate::domain::time::Timestamp;
use crate::platform::clock::{WallClock, monotonic};
use crate::platform::mutated;
use crate::store::{
    BatchResults, FencedError, FencedResults, MAX_AHEAD, NewIntent, OpenAttempt, StartOnInsert, StartedOnInsert,
    StoreError, StoredIntent, Submitted, WriteBatch,
};

/// Contracts that are known to be in the database, so that an insert need not look them up.
#[derive(Default)]
pub(super) struct ContractCache {
    /// By the JSON of the contract. The number of a contract is the number of its lane.
    lanes: HashMap<Arc<str>, Arc<Lane>>,
    by_id: HashMap<i64, Arc<Contract>>,
}

/// Commits a batch. An item that is invalid fails alone.
pub(super) fn commit(
    connection: &mut Connection,
    contracts: &mut ContractCache,
    clock: &WallClock,
    batch: &WriteBatch,
) -> Result<BatchResults, rusqlite::Error> {
    let result = try_commit(connection, contracts, clock, batch, Items::Together);
    let Err(error) = result else { return result };
    // The rollback may have removed contracts, so their numbers must not be used any more.
    *contracts = ContractCache::default();
    if is_about_the_file(&error) {
        return Err(error);
    }
    let result = try_commit(connection, contracts, clock, batch, Items::InSavepoints);
    if result.is_err() {
        *contracts = ContractCache::default();
    }
    result
}

/// How the items of a batch are written in their transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Items {
    /// Without savepoints. An invalid item fails the whole transaction.
    Together,
    /// Each in a savepoint. An invalid item fails alone.
    InSavepoints,
}

fn try_commit(
    connection: &mut Connection,
    contracts: &mut ContractCache,
    clock: &WallClock,
    batch: &WriteBatch,
    items: Items,
) -> Result<BatchResults, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    #[cfg(test)]
    super::inline::begin();
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
                start_on_insert
                    .filter(|_| mutated!(InsertWhilePaused) || !paused.contains(&new.contract.contract.target)),
            )
        })?;
        let result = result.map(|(submitted, started_on_insert)| {
            started.extend(started_on_insert);
            submitted
        });
        if result.is_err() {
            // A contract that was inserted with this intent was rolled back with it.
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
            Ok(attempts::write_fenced(&transaction, contracts, writes, &paused, now, items)?)
        }
        Some(_) => Err(FencedError::TermOver),
    };
    #[cfg(not(test))]
    transaction.commit()?;
    #[cfg(test)]
    super::inline::commit(transaction, batch)?;
    Ok(BatchResults { submits, received, started, fenced })
}

/// Whether the caller of an item has stopped waiting meanwhile.
fn is_late(give_up_at: Option<&Instant>) -> bool {
    give_up_at.is_some_and(|moment| monotonic() >= *moment)
}

fn late() -> StoreError {
    StoreError::unavailable("the database was locked for too long")
}

impl Items {
    /// Writes one item. The outer error means that the whole transaction must be rolled back.
    pub(super) fn run<T>(
        self,
        transaction: &Transaction<'_>,
        item: impl FnOnce(&Transaction<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<Result<T, StoreError>, rusqlite::Error> {
        #[cfg(test)]
        let item = |transaction: &Transaction<'_>| super::inline::item().and_then(|()| item(transaction));
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
                Ok(Err(store_error(error)))
            }
        }
    }
}

/// Inserts a new intent, and starts it if a slot is free; see [`crate::store::StartOnInsert`].
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
    let found = |found: StoredIntent| found.resubmitted(&contract.target, &new.payload, new.not_before);
    if new.not_before.is_some_and(|moment| moment > now + MAX_AHEAD) {
        return Ok((read::find(transaction, &new.id)?.map_or(Submitted::TooFarAhead, found), None));
    }
    if let Some(link) = &new.redrive
        && options::redriven_as(transaction, &link.of)?.is_some_and(|id| id != new.id)
    {
        return Ok((Submitted::AlreadyRedriven, None));
    }
    let lane = lane_of(transaction, contracts, &new.contract)?;
    let due = new.not_before.filter(|_| !mutated!(NotBeforeIgnored)).map_or(now, |moment| moment.max(now));
    let deadline = policy::deadline(contract, if mutated!(DeadlineFromSubmission) { now } else { due });
    // The scheduler starts an intent that has a notBefore, even if that time has passed.
    let taken = start_on_insert.filter(|_| new.not_before.is_none()).and_then(|start_on_insert| {
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
             VALUES (?8, ?1, ?2, ?3, ?4, 'pending', ?7 IS NOT NULL, iif(?7 IS NULL, ?9, NULL), ?7,
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
            number,
            due.micros()
        ])?;
    if inserted == 0 {
        return Ok((found(read::find(transaction, &new.id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?), None));
    }
    let seq = IntentSeq(transaction.last_insert_rowid());
    transaction
        .prepare_cached("INSERT INTO submission_payloads (intent_seq, payload) VALUES (?1, ?2)")?
        .execute(params![seq.0, new.payload.bytes().as_ref()])?;
    options::insert(transaction, seq, new)?;
    if let Some(entry) = new.redrive.as_ref().and_then(|link| link.audit.as_ref()) {
        audit::append(transaction, entry, now)?;
    }
    if let Some(job) = &new.job {
        jobs::insert(transaction, seq, job, now)?;
    }
    if let Some(trace) = new.trace {
        jobs::insert_trace(transaction, seq, trace)?;
    }
    let intent = Intent {
        seq,
        id: new.id.clone(),
        target: contract.target.clone(),
        created_at: now,
        not_before: new.not_before,
        redrive_of: new.redrive.as_ref().map(|link| link.of.clone()),
        state: State::Pending,
        attempt_count: u32::from(epoch.is_some()),
        attempt_open: epoch.is_some(),
    };
    let started = taken.map(|((slot, in_flight), lease_epoch)| {
        let attempt = OpenAttempt {
            seq,
            intent_id: new.id.clone(),
            contract: Arc::clone(contract),
            begins_at: now,
            attempt_number: 1,
            lease_epoch,
            started_at: now,
            idempotency_key: new.redrive.as_ref().map(|link| link.gateway_key.clone()),
            trace: new.trace,
            job: None,
        };
        StartedOnInsert { attempt, payload: new.payload.bytes().clone(), slot, in_flight }
    });
    Ok((Submitted::Created(intent), started))
}

/// Returns the lane of a contract, and inserts the contract if it is new.
pub(super) fn lane_of(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    snapshot: &ContractSnapshot,
) -> Result<Arc<Lane>, rusqlite::Error> {
    if let Some(lane) = contracts.lanes.get(&snapshot.json) {
        return Ok(Arc::clone(lane));
    }
    let url = snapshot.contract.gateway_url.as_str();
    transaction
        .prepare_cached("INSERT OR IGNORE INTO submission_gateways (gateway_url) VALUES (?1)")?
        .execute([url])?;
    let inserted = transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO submission_contracts (gateway_id, submission_target, snapshot)
             SELECT gateway_id, ?2, ?3 FROM submission_gateways WHERE gateway_url = ?1",
        )?
        .execute(params![url, snapshot.contract.target.as_str(), snapshot.json])?;
    let contract_id: i64 = transaction
        .prepare_cached("SELECT contract_id FROM submission_contracts WHERE snapshot = ?1")?
        .query_row([&snapshot.json], |row| row.get(0))?;
    if inserted > 0 {
        transaction
            .prepare_cached(
                "INSERT INTO submission_contract_uses (contract_id, first_used_at)
                 SELECT ?1, last_at FROM submission_clock",
            )?
            .execute([contract_id])?;
    }
    if let Some(webhook) = &snapshot.contract.webhook {
        webhooks::insert_receiver(transaction, contract_id, webhook)?;
    }
    let lane = Lanes::new(transaction).of(contract_id)?;
    contracts.lanes.insert(Arc::clone(&snapshot.json), Arc::clone(&lane));
    Ok(lane)
}

/// Reads a contract.
pub(super) fn contract_by_id(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    contract_id: i64,
) -> Result<Arc<Contract>, rusqlite::Error> {
    if let Some(contract) = contracts.by_id.get(&contract_id) {
        return Ok(Arc::clone(contract));
    }
    let contract: Contract = transaction
        .prepare_cached("SELECT snapshot FROM submission_contracts WHERE contract_id = ?1")?
        .query_row([contract_id], |row| parsed(row, 0, |text| serde_json::from_str(text).ok()))?;
    let contract = Arc::new(contract);
    contracts.by_id.insert(contract_id, Arc::clone(&contract));
    Ok(contract)
}
