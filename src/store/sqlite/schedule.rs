//! What the leader reads: waiting intents, changes, and the attempts that earlier terms left open.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::connection::read_now;
use super::read::{optional, parsed};
use super::targets::{self, Lanes};
use crate::domain::contract::Contract;
use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::schedule::{Lane, LanePage, LanePosition, LoadedPage, Waiting};
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::{Backlog, ChangeCursor, OpenAttempt, Refresh, RefreshRequest, ScheduleSnapshot};

/// Open attempts of earlier terms. The query goes contract by contract, because the index then finds open attempts without
/// reading waiting intents.
pub(super) const OPEN_ATTEMPTS: &str = "
    SELECT i.intent_seq, i.intent_id, c.snapshot, i.attempt_count, i.open_lease_epoch, i.open_started_at,
        max(i.created_at, coalesce(o.not_before, 0)), o.gateway_key
    FROM submission_contracts c CROSS JOIN submission_intents i ON i.contract_id = c.contract_id
        LEFT JOIN submission_intent_options o USING (intent_seq)
    WHERE i.status = 'pending' AND i.next_attempt_at IS NULL AND i.open_lease_epoch < ?1
    ORDER BY i.open_lease_epoch, i.intent_seq LIMIT ?2";

/// Reads the attempts that terms before `epoch` left open.
pub(super) fn open_attempts_before(
    connection: &Connection,
    epoch: i64,
    limit: usize,
) -> Result<Vec<OpenAttempt>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(OPEN_ATTEMPTS)?;
    let mut rows = statement.query(params![epoch, as_limit(limit)])?;
    let mut open = Vec::new();
    while let Some(row) = rows.next()? {
        match open_attempt_of(row) {
            Ok(attempt) => open.push(attempt),
            Err(error) => log::error!("open_attempt_unreadable intent_seq={:?} error={error:?}", row.get::<_, i64>(0)),
        }
    }
    Ok(open)
}

fn open_attempt_of(row: &Row<'_>) -> Result<OpenAttempt, rusqlite::Error> {
    Ok(OpenAttempt {
        seq: IntentSeq(row.get(0)?),
        intent_id: parsed(row, 1, |text| IntentId::parse(text).ok())?,
        contract: Arc::new(parsed(row, 2, |text| serde_json::from_str::<Contract>(text).ok())?),
        attempt_number: row.get(3)?,
        lease_epoch: row.get(4)?,
        started_at: Timestamp::from_micros(row.get(5)?),
        begins_at: Timestamp::from_micros(row.get(6)?),
        idempotency_key: optional(row, 7, |text| IntentId::parse(text).ok())?,
        trace: None,
        job: None,
    })
}

/// Reads the first page of every lane.
pub(super) fn snapshot(
    connection: &mut Connection,
    clock: &WallClock,
    page_limit: usize,
) -> Result<ScheduleSnapshot, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    // Every later transaction has a later timestamp than the last one that this snapshot can see. Changes at that timestamp
    // may be reported again, which is harmless.
    let last_at = snapshot.query_row("SELECT last_at FROM submission_clock", [], |row| row.get(0))?;
    let cursor = ChangeCursor { last_modified_at: Timestamp::from_micros(last_at), intent_id: String::new() };
    let contracts: Vec<i64> = snapshot
        .prepare_cached("SELECT contract_id FROM submission_contracts")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut lanes_by_contract = Lanes::new(&snapshot);
    let mut lanes = Vec::new();
    for contract in contracts {
        let page = LanePage { lane: lanes_by_contract.of(contract)?, from: LanePosition::START, limit: page_limit };
        let loaded = load(&snapshot, page)?;
        if !loaded.waiting.is_empty() {
            lanes.push(loaded);
        }
    }
    Ok(ScheduleSnapshot { now, cursor, lanes, paused: targets::paused(&snapshot)? })
}

/// Reads what changed since a cursor, and further pages of lanes.
pub(super) fn refresh(
    connection: &mut Connection,
    clock: &WallClock,
    request: RefreshRequest,
) -> Result<Refresh, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let mut cursor = request.cursor;
    let mut changed = Vec::new();
    {
        let mut statement = snapshot.prepare_cached(
            "SELECT intent_seq, contract_id, next_attempt_at, attempt_count, last_modified_at, intent_id
             FROM submission_intents
             WHERE next_attempt_at IS NOT NULL AND (last_modified_at, intent_id) > (?1, ?2)
             ORDER BY last_modified_at, intent_id LIMIT ?3",
        )?;
        let mut rows =
            statement.query(params![cursor.last_modified_at.micros(), cursor.intent_id, as_limit(request.limit)])?;
        let mut lanes = Lanes::new(&snapshot);
        while let Some(row) = rows.next()? {
            changed.push(waiting_of(row, lanes.of(row.get(1)?)?)?);
            cursor.last_modified_at = Timestamp::from_micros(row.get(4)?);
            cursor.intent_id = row.get(5)?;
        }
    }
    let pages = request.pages.into_iter().map(|page| load(&snapshot, page)).collect::<Result<_, _>>()?;
    let overdue = snapshot
        .prepare_cached(
            "SELECT 1 FROM submission_intents
             WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL AND deadline_at <= ?1 LIMIT 1",
        )?
        .query_row([now.micros()], |_| Ok(()))
        .optional()?
        .is_some();
    let more = changed.len() >= request.limit;
    Ok(Refresh { now, cursor, changed, more, pages, overdue, paused: targets::paused(&snapshot)? })
}

/// Waiting intents by contract. The index of pending intents has them in this order, so nothing else is read.
pub(super) const WAITING: &str = "
    SELECT contract_id, count(*) FROM submission_intents
    WHERE status = 'pending' AND next_attempt_at IS NOT NULL GROUP BY contract_id";

/// Counts waiting intents and pending webhook events.
pub(super) fn backlog(connection: &mut Connection, clock: &WallClock) -> Result<Backlog, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let mut lanes = Lanes::new(&snapshot);
    let waiting = snapshot
        .prepare_cached(WAITING)?
        .query_and_then([], |row| {
            let lane = lanes.of(row.get(0)?)?;
            Ok((lane.target.clone(), row.get::<_, i64>(1)?.unsigned_abs()))
        })?
        .collect::<Result<_, rusqlite::Error>>()?;
    let (webhooks, oldest): (i64, Option<i64>) = snapshot
        .prepare_cached("SELECT count(*), min(owed_since) FROM submission_webhook_events WHERE status = 'pending'")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Backlog {
        waiting,
        webhooks: webhooks.unsigned_abs(),
        oldest_webhook: oldest.map(|since| now.since(Timestamp::from_micros(since))),
    })
}

fn load(connection: &Connection, page: LanePage) -> Result<LoadedPage, rusqlite::Error> {
    let waiting = connection
        .prepare_cached(
            "SELECT intent_seq, contract_id, next_attempt_at, attempt_count FROM submission_intents
             WHERE contract_id = ?1 AND status = 'pending' AND (next_attempt_at, intent_seq) >= (?2, ?3)
             ORDER BY next_attempt_at, intent_seq LIMIT ?4",
        )?
        .query_map(params![page.lane.id.0, page.from.due.micros(), page.from.seq.0, as_limit(page.limit)], |row| {
            waiting_of(row, Arc::clone(&page.lane))
        })?
        .collect::<Result<_, _>>()?;
    Ok(LoadedPage { page, waiting })
}

fn waiting_of(row: &Row<'_>, lane: Arc<Lane>) -> Result<Waiting, rusqlite::Error> {
    Ok(Waiting {
        seq: IntentSeq(row.get(0)?),
        lane,
        due: Timestamp::from_micros(row.get(2)?),
        attempt_count: row.get(3)?,
    })
}

/// Converts a limit to a value for SQL.
pub(super) fn as_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
