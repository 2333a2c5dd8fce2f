//! Runs a redrive: creates new intents that repeat those of the plan, a few in each step.
//!
//! The transaction that creates a new intent also deletes its item of the plan. So a step that is repeated, because its
//! answer was lost or because another leader took over, continues after the last committed step.

use rusqlite::{OptionalExtension, Transaction, params};

use super::super::connection::begin_transaction;
use super::super::numbers::Numbers;
use super::super::read::parsed;
use super::super::schedule::as_limit;
use super::super::write::{ContractCache, lane_of};
use super::super::{Writer, leases, options};
use super::count;
use crate::domain::contract::ContractSnapshot;
use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::lease::Term;
use crate::domain::policy;
use crate::domain::redrive::{RedriveId, redriven_id};
use crate::domain::schedule::Lane;
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::platform::mutated;
use crate::store::redrive::Rooms;
use crate::store::{RedriveLink, RedriveWork, RedriveWorked};

/// The result of a step, and the size of the payloads that it copied.
pub(in crate::store::sqlite) struct Step {
    pub worked: RedriveWorked,
    pub payload_bytes: usize,
}

const NOTHING: Step = Step { worked: RedriveWorked::NOTHING, payload_bytes: 0 };

/// Makes one step of a redrive. Returns `None` if the term is over.
pub(in crate::store::sqlite) fn run(
    writer: &mut Writer,
    clock: &WallClock,
    term: &Term,
    work: &RedriveWork,
) -> Result<Option<Step>, rusqlite::Error> {
    let (transaction, now) = begin_transaction(&mut writer.connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    let sql = match mutated!(RedriveWhilePaused) {
        false => "SELECT created_count FROM submission_redrives WHERE redrive_seq = ?1 AND state = 'running'",
        true => "SELECT created_count FROM submission_redrives WHERE redrive_seq = ?1",
    };
    let running: Option<u64> =
        transaction.prepare_cached(sql)?.query_row([work.seq.0], |row| count(row, 0)).optional()?;
    let Some(created) = running else {
        return Ok(Some(NOTHING));
    };
    // Not the writer's cache: without a commit, contracts that this step inserts do not exist, and their numbers are used
    // again for others.
    let mut contracts = ContractCache::default();
    let mut lanes = Vec::with_capacity(work.contracts.len());
    for contract in &work.contracts {
        let lane = contract.as_deref().map(|contract| lane_of(&transaction, &mut contracts, contract));
        lanes.push(lane.transpose()?);
    }
    let mut rooms = Rooms::new(lanes.iter().map(Option::as_deref), &*work.admission);
    let mut items = items(&transaction, work, &rooms)?;
    items.retain(|item| rooms.take(item.target));
    if items.is_empty() && !rooms.all_admitted() {
        return Ok(Some(NOTHING));
    }
    let mut numbers = Numbers::load(&transaction)?;
    let (mut now_created, mut payload_bytes) = (0, 0);
    for item in &items {
        let contract = work.contracts.get(item.target).and_then(Option::as_deref);
        let lane = lanes.get(item.target).and_then(Option::as_deref);
        if let (Some(contract), Some(lane)) = (contract, lane)
            && let Some(bytes) = create(&transaction, &mut numbers, work.id, item.seq, contract, lane, now)?
        {
            now_created += 1;
            payload_bytes += bytes;
        }
        transaction
            .prepare_cached(
                "DELETE FROM submission_redrive_items WHERE redrive_seq = ?1 AND target_number = ?2 AND position = ?3",
            )?
            .execute(params![work.seq.0, as_limit(item.target), item.position])?;
    }
    let now_skipped = items.len() - now_created;
    let completed = record(&transaction, work, now_created, now_skipped, now)?;
    transaction.commit()?;
    let created = Some(created + u64::try_from(now_created).unwrap_or(0));
    Ok(Some(Step { worked: RedriveWorked { now_created, now_skipped, created, completed }, payload_bytes }))
}

/// An intent of the plan that is still to be redriven.
struct Item {
    /// The number of its target in the plan.
    target: usize,
    position: i64,
    seq: IntentSeq,
}

/// Reads the next items of all targets for which intents may be created now, in the order of the plan.
fn items(transaction: &Transaction<'_>, work: &RedriveWork, rooms: &Rooms) -> Result<Vec<Item>, rusqlite::Error> {
    let mut next = transaction.prepare_cached(NEXT)?;
    let mut items = Vec::new();
    for (target, room) in rooms.admitted() {
        let rows = next.query_map(params![work.seq.0, as_limit(target), as_limit(work.limit.min(room))], |row| {
            Ok(Item { target, position: row.get(0)?, seq: IntentSeq(row.get(1)?) })
        })?;
        for row in rows {
            items.push(row?);
        }
    }
    items.sort_unstable_by_key(|item| item.position);
    items.truncate(work.limit);
    Ok(items)
}

/// The next items of one target.
pub(in crate::store::sqlite) const NEXT: &str = "
    SELECT position, intent_seq FROM submission_redrive_items WHERE redrive_seq = ?1 AND target_number = ?2
    ORDER BY position LIMIT ?3";

/// Creates the new intent that repeats an old one, and returns the size of its payload. Returns `None` if the old one
/// was deleted or redriven meanwhile, or if another intent has the new id.
fn create(
    transaction: &Transaction<'_>,
    numbers: &mut Numbers,
    redrive: RedriveId,
    old: IntentSeq,
    contract: &ContractSnapshot,
    lane: &Lane,
    now: Timestamp,
) -> Result<Option<usize>, rusqlite::Error> {
    let found = transaction
        .prepare_cached(
            "SELECT i.intent_id, coalesce((SELECT o.gateway_key FROM submission_intent_options o
                 WHERE o.intent_seq = i.intent_seq), i.intent_id)
             FROM submission_intents i WHERE i.intent_seq = ?1",
        )?
        .query_row([old.0], |row| {
            let id = |column| parsed(row, column, |text| IntentId::parse(text).ok());
            Ok(RedriveLink { of: id(0)?, redrive: Some(redrive), gateway_key: id(1)?, audit: None })
        })
        .optional()?;
    let Some(link) = found else { return Ok(None) };
    let link = if mutated!(RedriveKeyChanged) { RedriveLink { gateway_key: link.of.clone(), ..link } } else { link };
    if options::redriven_as(transaction, &link.of)?.is_some() {
        return Ok(None);
    }
    let deadline = policy::deadline(&contract.contract, now);
    let seq = IntentSeq(numbers.next());
    let id = redriven_id(&link.of, &redrive.to_string());
    let inserted = transaction
        .prepare_cached(
            "INSERT INTO submission_intents (intent_seq, intent_id, contract_id, gateway_id, payload_sha256, status,
                 attempt_count, next_attempt_at, deadline_at, created_at, last_modified_at)
             SELECT ?1, ?2, ?3, ?4, i.payload_sha256, 'pending', 0, ?5, ?6, ?5, ?5
             FROM submission_intents i WHERE i.intent_seq = ?7
             ON CONFLICT (intent_id) DO NOTHING",
        )?
        .execute(params![
            seq.0,
            id.as_str(),
            lane.id.0,
            lane.gateway.0,
            now.micros(),
            deadline.map(Timestamp::micros),
            old.0
        ])?;
    if inserted == 0 {
        return Ok(None);
    }
    transaction
        .prepare_cached(
            "INSERT INTO submission_payloads (intent_seq, payload)
             SELECT ?1, payload FROM submission_payloads WHERE intent_seq = ?2",
        )?
        .execute([seq.0, old.0])?;
    options::insert_link(transaction, seq, None, Some(&link))?;
    let size = transaction
        .prepare_cached("SELECT octet_length(payload) FROM submission_payloads WHERE intent_seq = ?1")?
        .query_row([seq.0], |row| count(row, 0))?;
    Ok(Some(usize::try_from(size).unwrap_or(usize::MAX)))
}

/// Adds a step to the progress of the redrive, and completes the redrive if no item is left. Returns whether it
/// completed it.
fn record(
    transaction: &Transaction<'_>,
    work: &RedriveWork,
    created: usize,
    skipped: usize,
    now: Timestamp,
) -> Result<bool, rusqlite::Error> {
    let left = transaction
        .prepare_cached("SELECT 1 FROM submission_redrive_items WHERE redrive_seq = ?1 LIMIT 1")?
        .exists([work.seq.0])?;
    if created + skipped > 0 || !left {
        transaction
            .prepare_cached(
                "UPDATE submission_redrives SET created_count = created_count + ?2, skipped_count = skipped_count + ?3,
                     state = iif(?4, state, 'completed'), ended_at = iif(?4, ended_at, ?5)
                 WHERE redrive_seq = ?1",
            )?
            .execute(params![work.seq.0, as_limit(created), as_limit(skipped), left, now.micros()])?;
    }
    Ok(!left)
}
