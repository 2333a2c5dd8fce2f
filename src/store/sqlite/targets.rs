//! Targets and whether they are paused, and the lanes of the schedule.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, Row, params};

use super::audit;
use super::connection::{begin_transaction, read_now};
use super::read::parsed;
use super::schedule::as_limit;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::TargetName;
use crate::domain::pause::PauseReason;
use crate::domain::schedule::{GatewayId, Lane, LaneId};
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::{MOST_CONTRACTS, SeenContract, StoredTarget, TargetActivity, TargetMinute, TargetPause, minute_of};

/// Returns the targets of which no attempt may start, as of this transaction.
pub(super) fn paused(connection: &Connection) -> Result<BTreeSet<TargetName>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT submission_target FROM submission_target_pauses")?
        .query_map([], |row| parsed(row, 0, |text| TargetName::parse(text).ok()))?
        .collect()
}

/// Reads what a target did in the last minutes, what waits for it, and the contracts that its intents had.
pub(super) fn activity(
    connection: &mut Connection,
    clock: &WallClock,
    target: &TargetName,
    minutes: i64,
) -> Result<TargetActivity, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let (waiting, first_due): (i64, Option<i64>) = snapshot
        .prepare_cached(
            "SELECT count(next_attempt_at), min(next_attempt_at)
             FROM submission_intents INDEXED BY submission_intents_pending WHERE status = 'pending'
                 AND contract_id IN (SELECT contract_id FROM submission_contracts WHERE submission_target = ?1)",
        )?
        .query_row([target.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let counts = snapshot
        .prepare_cached(
            "SELECT minute, outcome, sum(attempts), sum(micros) FROM submission_minutes
             WHERE minute > ?2 AND contract_id IN (SELECT contract_id FROM submission_contracts WHERE submission_target = ?1)
             GROUP BY 1, 2 ORDER BY 1, 2",
        )?
        .query_map(params![target.as_str(), minute_of(now) - minutes], |row| {
            Ok(TargetMinute {
                minute: row.get(0)?,
                outcome: row.get(1)?,
                attempts: row.get::<_, i64>(2)?.unsigned_abs(),
                micros: row.get::<_, i64>(3)?.unsigned_abs(),
            })
        })?
        .collect::<Result<_, _>>()?;
    let contracts = snapshot
        .prepare_cached(
            "SELECT c.snapshot, u.first_used_at, (SELECT count(i.next_attempt_at)
                 FROM submission_intents i INDEXED BY submission_intents_pending
                 WHERE i.contract_id = c.contract_id AND i.status = 'pending')
             FROM submission_contracts c LEFT JOIN submission_contract_uses u USING (contract_id)
             WHERE c.submission_target = ?1 ORDER BY c.contract_id DESC LIMIT ?2",
        )?
        .query_map(params![target.as_str(), as_limit(MOST_CONTRACTS)], |row| {
            Ok(SeenContract {
                contract: parsed(row, 0, |text| serde_json::from_str(text).ok())?,
                first_used_at: row.get::<_, Option<i64>>(1)?.map(Timestamp::from_micros),
                waiting: row.get::<_, i64>(2)?.unsigned_abs(),
            })
        })?
        .collect::<Result<_, _>>()?;
    Ok(TargetActivity {
        now,
        waiting: waiting.unsigned_abs(),
        first_due: first_due.map(Timestamp::from_micros),
        minutes: counts,
        contracts,
    })
}

/// Pauses a target, and returns since when it is paused.
pub(super) fn pause(
    connection: &mut Connection,
    clock: &WallClock,
    target: &TargetName,
    reason: Option<&PauseReason>,
    by: &Actor,
) -> Result<TargetPause, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let paused = transaction.execute(
        "INSERT OR IGNORE INTO submission_target_pauses (submission_target, paused_at) VALUES (?1, ?2)",
        params![target.as_str(), now.micros()],
    )?;
    if paused > 0 {
        transaction.execute(
            "INSERT OR REPLACE INTO submission_target_pause_notes (submission_target, paused_at, paused_by, reason)
             VALUES (?1, ?2, ?3, ?4)",
            params![target.as_str(), now.micros(), by.label(), reason.map(PauseReason::as_str)],
        )?;
        audit::append(&transaction, &NewAuditEntry::pause_target(by, target, reason), now)?;
    }
    let pause = transaction.query_row(
        "SELECT paused_at, paused_by, reason FROM submission_target_pauses
         LEFT JOIN submission_target_pause_notes USING (submission_target, paused_at) WHERE submission_target = ?1",
        [target.as_str()],
        |row| pause_of(row, 0),
    )?;
    transaction.commit()?;
    pause.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// Resumes a target.
pub(super) fn resume(
    connection: &mut Connection,
    clock: &WallClock,
    target: &TargetName,
    by: &Actor,
) -> Result<(), rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let resumed = transaction
        .prepare_cached("DELETE FROM submission_target_pauses WHERE submission_target = ?1")?
        .execute([target.as_str()])?;
    transaction
        .prepare_cached("DELETE FROM submission_target_pause_notes WHERE submission_target = ?1")?
        .execute([target.as_str()])?;
    if resumed > 0 {
        audit::append(&transaction, &NewAuditEntry::resume_target(by, target), now)?;
    }
    transaction.commit()
}

/// Reads a pause from three columns; `None` if the first one is NULL.
fn pause_of(row: &Row<'_>, first: usize) -> Result<Option<TargetPause>, rusqlite::Error> {
    let Some(at) = row.get::<_, Option<i64>>(first)? else { return Ok(None) };
    let (by, reason) = (row.get(first + 1)?, row.get(first + 2)?);
    Ok(Some(TargetPause { at: Timestamp::from_micros(at), by, reason }))
}

/// Returns every target that has a contract or is paused.
pub(super) fn all(connection: &Connection) -> Result<Vec<StoredTarget>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT submission_target, paused_at, paused_by, reason FROM submission_target_pauses
                 LEFT JOIN submission_target_pause_notes USING (submission_target, paused_at)
             UNION ALL SELECT DISTINCT submission_target, NULL, NULL, NULL FROM submission_contracts
                 WHERE submission_target NOT IN (SELECT submission_target FROM submission_target_pauses)
             ORDER BY 1",
        )?
        .query_map([], |row| {
            Ok(StoredTarget { name: parsed(row, 0, |text| TargetName::parse(text).ok())?, pause: pause_of(row, 1)? })
        })?
        .collect()
}

/// Looks up the lanes of contracts, each of them once.
pub(super) struct Lanes<'a> {
    connection: &'a Connection,
    known: HashMap<i64, Arc<Lane>>,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(connection: &'a Connection) -> Self {
        Self { connection, known: HashMap::new() }
    }

    /// Returns the lane of a contract.
    pub(super) fn of(&mut self, contract_id: i64) -> Result<Arc<Lane>, rusqlite::Error> {
        if let Some(lane) = self.known.get(&contract_id) {
            return Ok(Arc::clone(lane));
        }
        let lane = self
            .connection
            .prepare_cached("SELECT gateway_id, submission_target FROM submission_contracts WHERE contract_id = ?1")?
            .query_row([contract_id], |row| {
                let (id, gateway) = (LaneId(contract_id), GatewayId(row.get(0)?));
                Ok(Arc::new(Lane { id, gateway, target: parsed(row, 1, |text| TargetName::parse(text).ok())? }))
            })?;
        self.known.insert(contract_id, Arc::clone(&lane));
        Ok(lane)
    }
}
