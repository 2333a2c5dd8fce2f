//! Queries of the console on SQL Server: one intent in full, the overview, and the health of targets.

use std::collections::BTreeMap;

use bytes::Bytes;
use tiberius::Row;

use super::counts::THIS_MINUTE;
use super::database::{Batch, Database};
use super::read::{all, first, need_first, set};
use super::script::Values;
use super::{read, rows, statements};
use crate::domain::intent::{IntentId, TargetName};
use crate::store::{
    Failing, IntentDetail, LeaderRow, MOST_FAILING, Overview, RECENT_MINUTES, StoreError, TargetHealth,
};

/// Builds the query for everything about an intent: the five result sets of its history, then one with its contract and
/// what it waits for, and one with the holders of the terms of its attempts.
pub(super) fn detail_batch(id: &IntentId) -> Batch {
    let mut values = Values::default();
    let id = values.text(id.as_str());
    values.batch(format!(
        "{}
SELECT c.snapshot, i.next_attempt_at, i.open_started_at, p.paused_at, t.traceparent, SYSUTCDATETIME() AS now_at
FROM submission_intents AS i JOIN submission_contracts AS c ON c.contract_id = i.contract_id
LEFT JOIN submission_target_pauses AS p ON p.submission_target = c.submission_target
LEFT JOIN submission_traces AS t ON t.intent_seq = i.intent_seq WHERE i.intent_id = {id};
SELECT t.lease_epoch, t.holder_id FROM submission_terms AS t WHERE t.lease_epoch IN (SELECT a.lease_epoch
    FROM submission_attempts AS a JOIN submission_intents AS i ON i.intent_seq = a.intent_seq WHERE i.intent_id = {id});",
        statements::history_sql(&id)
    ))
}

pub(super) fn payload_batch(id: &IntentId) -> Batch {
    let mut values = Values::default();
    let id = values.text(id.as_str());
    values.batch(format!("SELECT payload FROM submission_intents WHERE intent_id = {id};"))
}

pub(super) fn overview_batch() -> Batch {
    let sql = format!(
        "
SELECT TOP (1) holder_id, lease_epoch, acquired_at, expires_at FROM submission_manager_leases ORDER BY lease_epoch DESC;
SELECT COUNT_BIG(*) AS in_flight, SYSUTCDATETIME() AS now_at FROM submission_intents WHERE open_lease_epoch IS NOT NULL;
SELECT TOP (1) intent_id, created_at FROM submission_intents WHERE status = 'pending' ORDER BY intent_seq;
SELECT TOP (1) c.submission_target, w.due FROM (SELECT contract_id, MIN(next_attempt_at) AS due FROM submission_intents
    WHERE next_attempt_at IS NOT NULL GROUP BY contract_id) AS w
JOIN submission_contracts AS c ON c.contract_id = w.contract_id
WHERE NOT EXISTS (SELECT 1 FROM submission_target_pauses AS p WHERE p.submission_target = c.submission_target)
ORDER BY w.due;
SELECT TOP ({MOST_FAILING}) c.submission_target, m.outcome, m.cause, CAST(SUM(m.attempts) AS BIGINT) AS attempts
FROM submission_minutes AS m JOIN submission_contracts AS c ON c.contract_id = m.contract_id
WHERE m.minute > {THIS_MINUTE} - {RECENT_MINUTES} AND m.outcome IN ('rejected', 'error')
GROUP BY c.submission_target, m.outcome, m.cause
ORDER BY SUM(m.attempts) DESC, c.submission_target, m.outcome, m.cause;{}",
        recent_sql()
    );
    Batch::new(sql, Vec::new())
}

pub(super) fn health_batch() -> Batch {
    let sql = format!(
        "
SELECT c.submission_target, COUNT_BIG(*) AS waiting FROM submission_intents AS i
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE i.next_attempt_at IS NOT NULL GROUP BY c.submission_target;{}",
        recent_sql()
    );
    Batch::new(sql, Vec::new())
}

/// The results of every target in the last minutes.
fn recent_sql() -> String {
    format!(
        "
SELECT c.submission_target, m.outcome, CAST(SUM(m.attempts) AS BIGINT) AS attempts, CAST(SUM(m.micros) AS BIGINT) AS micros
FROM submission_minutes AS m JOIN submission_contracts AS c ON c.contract_id = m.contract_id
WHERE m.minute > {THIS_MINUTE} - {RECENT_MINUTES} GROUP BY c.submission_target, m.outcome;"
    )
}

/// Adds the rows of [`recent_sql`].
fn add_recent(targets: &mut BTreeMap<TargetName, TargetHealth>, rows: &[Row]) -> Result<(), StoreError> {
    for row in rows {
        let target = target_of(row)?;
        let health = targets.entry(target.clone()).or_insert_with(|| TargetHealth::of(target));
        health.add(rows::need(row, "outcome")?, sum(row, "attempts")?, sum(row, "micros")?);
    }
    Ok(())
}

pub(super) async fn detail(database: &Database, id: IntentId) -> Result<Option<IntentDetail>, StoreError> {
    let results = database.run(detail_batch(&id)).await?;
    let (Some(history), Some(row)) = (read::history_of(&results)?, set(&results, 5).first()) else {
        return Ok(None);
    };
    Ok(Some(IntentDetail {
        now: rows::need_moment(row, "now_at")?,
        history,
        contract: rows::contract(row)?,
        next_attempt_at: rows::moment(row, "next_attempt_at")?,
        paused_at: rows::moment(row, "paused_at")?,
        trace: rows::trace(row)?,
        open_since: rows::moment(row, "open_started_at")?,
        holders: all(set(&results, 6), |row| {
            Ok((rows::need(row, "lease_epoch")?, rows::need::<&str>(row, "holder_id")?.to_owned()))
        })?
        .into_iter()
        .collect(),
    }))
}

pub(super) async fn payload(database: &Database, id: IntentId) -> Result<Option<Bytes>, StoreError> {
    let results = database.run(payload_batch(&id)).await?;
    first(&results).map(|row| Ok(rows::bytes(row, "payload")?.unwrap_or_default())).transpose()
}

pub(super) async fn overview(database: &Database) -> Result<Overview, StoreError> {
    let backlog = read::backlog(database).await?;
    let results = database.run(overview_batch()).await?;
    let leader = set(&results, 0).first().map(|row| {
        Ok::<_, StoreError>(LeaderRow {
            holder_id: rows::need::<&str>(row, "holder_id")?.to_owned(),
            epoch: rows::need(row, "lease_epoch")?,
            acquired_at: rows::need_moment(row, "acquired_at")?,
            expires_at: rows::need_moment(row, "expires_at")?,
        })
    });
    let counted = need_first(results.get(1..).unwrap_or_default())?;
    let oldest_pending = set(&results, 2).first().map(|row| {
        let id = rows::parsed(row, "intent_id", |text| IntentId::parse(text).ok())?;
        Ok::<_, StoreError>((id, rows::need_moment(row, "created_at")?))
    });
    let first_due =
        set(&results, 3).first().map(|row| Ok::<_, StoreError>((target_of(row)?, rows::need_moment(row, "due")?)));
    let mut recent = BTreeMap::new();
    add_recent(&mut recent, set(&results, 5))?;
    Ok(Overview {
        now: rows::need_moment(counted, "now_at")?,
        leader: leader.transpose()?,
        waiting: backlog.all_waiting(),
        in_flight: rows::need::<i64>(counted, "in_flight")?.unsigned_abs(),
        oldest_pending: oldest_pending.transpose()?,
        webhooks: backlog.webhooks,
        oldest_webhook: backlog.oldest_webhook,
        first_due: first_due.transpose()?,
        recent: recent.into_values().collect(),
        failing: all(set(&results, 4), |row| {
            Ok(Failing {
                target: target_of(row)?,
                outcome: rows::need::<&str>(row, "outcome")?.to_owned(),
                cause: rows::need::<&str>(row, "cause")?.to_owned(),
                attempts: sum(row, "attempts")?,
            })
        })?,
    })
}

pub(super) async fn target_health(database: &Database) -> Result<Vec<TargetHealth>, StoreError> {
    let results = database.run(health_batch()).await?;
    let mut targets: BTreeMap<TargetName, TargetHealth> = BTreeMap::new();
    for row in set(&results, 0) {
        let target = target_of(row)?;
        let health = targets.entry(target.clone()).or_insert_with(|| TargetHealth::of(target));
        health.waiting = rows::need::<i64>(row, "waiting")?.unsigned_abs();
    }
    add_recent(&mut targets, set(&results, 1))?;
    Ok(targets.into_values().collect())
}

fn target_of(row: &Row) -> Result<TargetName, StoreError> {
    rows::parsed(row, "submission_target", |text| TargetName::parse(text).ok())
}

pub(super) fn sum(row: &Row, column: &'static str) -> Result<u64, StoreError> {
    rows::need::<i64>(row, column).map(i64::unsigned_abs)
}
