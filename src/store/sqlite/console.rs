//! Queries of the console: one intent in full, the overview, and the health of targets.

use std::collections::BTreeMap;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::connection::read_now;
use super::read::{self, parsed};
use super::schedule::as_limit;
use super::{jobs, leases};
use crate::domain::intent::{IntentId, Status, TargetName};
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::{
    EndedInMinute, Failing, IntentDetail, LeaderRow, MOST_FAILING, Overview, RECENT_MINUTES, TargetHealth, minute_of,
};

/// Reads one intent with everything that the console shows about it.
pub(super) fn detail(
    connection: &mut Connection,
    clock: &WallClock,
    id: &IntentId,
) -> Result<Option<IntentDetail>, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let Some(history) = read::history_in(&snapshot, id)? else { return Ok(None) };
    let holders = leases::holders_of(&snapshot, history.intent.seq)?;
    let mut statement = snapshot.prepare_cached(
        "SELECT c.snapshot, i.next_attempt_at, i.open_started_at, p.paused_at, t.traceparent
         FROM submission_intents i JOIN submission_contracts c USING (contract_id)
             LEFT JOIN submission_target_pauses p USING (submission_target)
             LEFT JOIN submission_traces t USING (intent_seq) WHERE i.intent_seq = ?1",
    )?;
    statement.query_row([history.intent.seq.0], |row| {
        let moment = |column| row.get::<_, Option<i64>>(column).map(|micros| micros.map(Timestamp::from_micros));
        Ok(Some(IntentDetail {
            now,
            contract: parsed(row, 0, |text| serde_json::from_str(text).ok())?,
            next_attempt_at: moment(1)?,
            open_since: moment(2)?,
            paused_at: moment(3)?,
            trace: jobs::trace_of(row, 4)?,
            holders,
            history,
        }))
    })
}

/// Reads the payload of an intent.
pub(super) fn payload(connection: &Connection, id: &IntentId) -> Result<Option<Bytes>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT payload FROM submission_payloads JOIN submission_intents USING (intent_seq) WHERE intent_id = ?1",
        )?
        .query_row([id.as_str()], |row| row.get::<_, Vec<u8>>(0).map(Bytes::from))
        .optional()
}

/// Reads the counts and charts of the overview.
pub(super) fn overview(connection: &mut Connection, clock: &WallClock) -> Result<Overview, rusqlite::Error> {
    let backlog = super::schedule::backlog(connection, clock)?;
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let leader = snapshot
        .prepare_cached(
            "SELECT holder_id, lease_epoch, acquired_at, expires_at FROM submission_manager_leases
             ORDER BY lease_epoch DESC LIMIT 1",
        )?
        .query_row([], |row| {
            Ok(LeaderRow {
                holder_id: row.get(0)?,
                epoch: row.get(1)?,
                acquired_at: Timestamp::from_micros(row.get(2)?),
                expires_at: Timestamp::from_micros(row.get(3)?),
            })
        })
        .optional()?;
    // This reads all pending intents, but only in their index.
    let (in_flight, intent, job): (i64, Option<i64>, Option<i64>) = snapshot
        .prepare_cached(
            // Numbers of intents count upwards, those of jobs downwards.
            "SELECT count(*) FILTER (WHERE next_attempt_at IS NULL), min(intent_seq) FILTER (WHERE intent_seq >= 0),
                 max(intent_seq) FILTER (WHERE intent_seq < 0)
             FROM submission_intents INDEXED BY submission_intents_pending WHERE status = 'pending'",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let oldest_pending = snapshot
        .prepare_cached(
            "SELECT intent_id, created_at FROM submission_intents WHERE intent_seq IN (?1, ?2) ORDER BY created_at LIMIT 1",
        )?
        .query_row([intent, job], |row| {
            Ok((parsed(row, 0, |text| IntentId::parse(text).ok())?, Timestamp::from_micros(row.get(1)?)))
        })
        .optional()?;
    Ok(Overview {
        now,
        leader,
        waiting: backlog.all_waiting(),
        in_flight: in_flight.unsigned_abs(),
        oldest_pending,
        webhooks: backlog.webhooks,
        oldest_webhook: backlog.oldest_webhook,
        first_due: first_due(&snapshot)?,
        recent: recent(&snapshot, now)?.into_values().collect(),
        failing: failing(&snapshot, now)?,
    })
}

/// Returns the earliest due time of an intent that waits and whose target is not paused. The index of pending intents has them
/// by contract and due time.
fn first_due(connection: &Connection) -> Result<Option<(TargetName, Timestamp)>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT c.submission_target, (SELECT min(i.next_attempt_at)
                 FROM submission_intents i INDEXED BY submission_intents_pending
                 WHERE i.contract_id = c.contract_id AND i.status = 'pending') AS due
             FROM submission_contracts c
             WHERE due IS NOT NULL AND c.submission_target NOT IN (SELECT submission_target FROM submission_target_pauses)
             ORDER BY due LIMIT 1",
        )?
        .query_row([], |row| {
            Ok((parsed(row, 0, |text| TargetName::parse(text).ok())?, Timestamp::from_micros(row.get(1)?)))
        })
        .optional()
}

/// Counts the intents that ended with each status in each minute from `first` on.
pub(super) fn ended(connection: &Connection, first: i64) -> Result<Vec<EndedInMinute>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT minute, status, sum(attempts) FROM submission_minutes
             WHERE minute >= ?1 AND status <> 'pending' GROUP BY 1, 2 ORDER BY 1, 2",
        )?
        .query_map([first], |row| {
            Ok(EndedInMinute {
                minute: row.get(0)?,
                status: parsed(row, 1, Status::parse)?,
                intents: row.get::<_, i64>(2)?.unsigned_abs(),
            })
        })?
        .collect()
}

/// Counts recent failed attempts by target and cause.
fn failing(connection: &Connection, now: Timestamp) -> Result<Vec<Failing>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT c.submission_target, m.outcome, m.cause, sum(m.attempts)
             FROM submission_minutes m JOIN submission_contracts c USING (contract_id)
             WHERE m.minute > ?1 AND m.outcome IN ('rejected', 'error')
             GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT ?2",
        )?
        .query_map(params![minute_of(now) - RECENT_MINUTES, as_limit(MOST_FAILING)], |row| {
            Ok(Failing {
                target: parsed(row, 0, |text| TargetName::parse(text).ok())?,
                outcome: row.get(1)?,
                cause: row.get(2)?,
                attempts: row.get::<_, i64>(3)?.unsigned_abs(),
            })
        })?
        .collect()
}

/// Reads the recent results of every target.
pub(super) fn target_health(
    connection: &mut Connection,
    clock: &WallClock,
) -> Result<Vec<TargetHealth>, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let mut all = recent(&snapshot, now)?;
    let mut waiting = snapshot.prepare_cached(
        "SELECT c.submission_target, count(*)
         FROM submission_intents i JOIN submission_contracts c USING (contract_id)
         WHERE i.status = 'pending' AND i.next_attempt_at IS NOT NULL GROUP BY 1",
    )?;
    let mut rows = waiting.query([])?;
    while let Some(row) = rows.next()? {
        let target = parsed(row, 0, |text| TargetName::parse(text).ok())?;
        let health = all.entry(target.clone()).or_insert_with(|| TargetHealth::of(target));
        health.waiting = row.get::<_, i64>(1)?.unsigned_abs();
    }
    Ok(all.into_values().collect())
}

/// Reads the results of every target in the last [`RECENT_MINUTES`].
fn recent(connection: &Connection, now: Timestamp) -> Result<BTreeMap<TargetName, TargetHealth>, rusqlite::Error> {
    let mut all: BTreeMap<TargetName, TargetHealth> = BTreeMap::new();
    let mut recent = connection.prepare_cached(
        "SELECT c.submission_target, m.outcome, sum(m.attempts), sum(m.micros)
         FROM submission_minutes m JOIN submission_contracts c USING (contract_id) WHERE m.minute > ?1 GROUP BY 1, 2",
    )?;
    let mut rows = recent.query([minute_of(now) - RECENT_MINUTES])?;
    while let Some(row) = rows.next()? {
        let target = parsed(row, 0, |text| TargetName::parse(text).ok())?;
        let health = all.entry(target.clone()).or_insert_with(|| TargetHealth::of(target));
        let outcome: String = row.get(1)?;
        health.add(&outcome, row.get::<_, i64>(2)?.unsigned_abs(), row.get::<_, i64>(3)?.unsigned_abs());
    }
    Ok(all)
}
