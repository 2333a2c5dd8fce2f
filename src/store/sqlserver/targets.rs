//! Targets on SQL Server, and whether they are paused.

use std::collections::BTreeSet;

use tiberius::Row;

use super::audit::{VARIABLES, append};
use super::console::sum;
use super::counts::THIS_MINUTE;
use super::database::{Batch, Database};
use super::read::{all as read_all, need_first, set};
use super::rows;
use super::script::Values;
use super::statements::TICK;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::TargetName;
use crate::domain::pause::PauseReason;
use crate::store::{MOST_CONTRACTS, SeenContract, StoreError, StoredTarget, TargetActivity, TargetMinute, TargetPause};

/// Returns the paused targets. Every refresh of the schedule reads them.
pub(super) const PAUSED: &str = "
SELECT submission_target FROM submission_target_pauses;";

pub(super) fn all_batch() -> Batch {
    Batch::new(
        "
SELECT p.submission_target, p.paused_at, p.paused_by, p.reason FROM submission_target_pauses AS p
UNION ALL
SELECT DISTINCT c.submission_target, CAST(NULL AS DATETIME2(6)), CAST(NULL AS NVARCHAR(400)), CAST(NULL AS NVARCHAR(1000))
FROM submission_contracts AS c
WHERE NOT EXISTS (SELECT 1 FROM submission_target_pauses AS p WHERE p.submission_target = c.submission_target)
ORDER BY submission_target;",
        Vec::new(),
    )
}

/// Builds the query for what a target did in the last minutes, what waits for it, and the contracts that its intents had.
pub(super) fn activity_batch(target: &TargetName, minutes: i64) -> Batch {
    let mut values = Values::default();
    let (target, minutes) = (values.text(target.as_str()), values.number(minutes));
    values.batch(format!(
        "
SELECT COUNT_BIG(i.next_attempt_at) AS waiting, MIN(i.next_attempt_at) AS first_due, SYSUTCDATETIME() AS now_at
FROM submission_contracts AS c JOIN submission_intents AS i ON i.contract_id = c.contract_id
WHERE c.submission_target = {target} AND i.next_attempt_at IS NOT NULL;
SELECT m.minute, m.outcome, CAST(SUM(m.attempts) AS BIGINT) AS attempts, CAST(SUM(m.micros) AS BIGINT) AS micros
FROM submission_minutes AS m JOIN submission_contracts AS c ON c.contract_id = m.contract_id
WHERE c.submission_target = {target} AND m.minute > {THIS_MINUTE} - {minutes}
GROUP BY m.minute, m.outcome ORDER BY m.minute, m.outcome;
SELECT TOP ({MOST_CONTRACTS}) c.snapshot, u.first_used_at, (SELECT COUNT_BIG(*) FROM submission_intents AS i
    WHERE i.contract_id = c.contract_id AND i.next_attempt_at IS NOT NULL) AS waiting
FROM submission_contracts AS c LEFT JOIN submission_contract_uses AS u ON u.contract_id = c.contract_id
WHERE c.submission_target = {target} ORDER BY c.contract_id DESC;"
    ))
}

pub(super) async fn activity(
    database: &Database,
    target: TargetName,
    minutes: i64,
) -> Result<TargetActivity, StoreError> {
    let results = database.run(activity_batch(&target, minutes)).await?;
    let waits = need_first(&results)?;
    Ok(TargetActivity {
        now: rows::need_moment(waits, "now_at")?,
        waiting: sum(waits, "waiting")?,
        first_due: rows::moment(waits, "first_due")?,
        minutes: read_all(set(&results, 1), |row| {
            Ok(TargetMinute {
                minute: rows::need(row, "minute")?,
                outcome: rows::need::<&str>(row, "outcome")?.to_owned(),
                attempts: sum(row, "attempts")?,
                micros: sum(row, "micros")?,
            })
        })?,
        contracts: read_all(set(&results, 2), |row| {
            Ok(SeenContract {
                contract: rows::contract(row)?,
                first_used_at: rows::moment(row, "first_used_at")?,
                waiting: sum(row, "waiting")?,
            })
        })?,
    })
}

/// Builds the batch that pauses a target. It locks the clock's row, as starts do, so every start is either before the
/// pause or sees it.
pub(super) fn pause_batch(target: &TargetName, reason: Option<&PauseReason>, by: &Actor) -> Batch {
    let mut values = Values::default();
    let entry = append(&mut values, &NewAuditEntry::pause_target(by, target, reason));
    let target = values.text(target.as_str());
    // Blank for none: there are no parameters that are NULL.
    let (by, reason) = (values.text(by.label()), values.text(reason.map_or("", PauseReason::as_str)));
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @since DATETIME2(6), @by NVARCHAR(400), @reason NVARCHAR(1000), @paused BIGINT, {VARIABLES};
BEGIN TRANSACTION;{TICK}
INSERT INTO submission_target_pauses (submission_target, paused_at, paused_by, reason)
SELECT {target}, @now, {by}, NULLIF({reason}, N'') WHERE NOT EXISTS (SELECT 1 FROM submission_target_pauses WHERE submission_target = {target});
SET @paused = @@ROWCOUNT;
IF @paused > 0
BEGIN{entry}
END;
SELECT @since = paused_at, @by = paused_by, @reason = reason
FROM submission_target_pauses WHERE submission_target = {target};
COMMIT TRANSACTION;
SELECT @since AS paused_at, @by AS paused_by, @reason AS reason;"
    ))
}

pub(super) fn resume_batch(target: &TargetName, by: &Actor) -> Batch {
    let mut values = Values::default();
    let entry = append(&mut values, &NewAuditEntry::resume_target(by, target));
    let target = values.text(target.as_str());
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @resumed BIGINT, {VARIABLES};
BEGIN TRANSACTION;{TICK}
DELETE FROM submission_target_pauses WHERE submission_target = {target};
SET @resumed = @@ROWCOUNT;
IF @resumed > 0
BEGIN{entry}
END;
COMMIT TRANSACTION;"
    ))
}

pub(super) async fn all(database: &Database) -> Result<Vec<StoredTarget>, StoreError> {
    let results = database.run(all_batch()).await?;
    read_all(set(&results, 0), |row| Ok(StoredTarget { name: name(row)?, pause: pause_of(row)? }))
}

pub(super) async fn pause(
    database: &Database,
    target: TargetName,
    reason: Option<PauseReason>,
    by: Actor,
) -> Result<TargetPause, StoreError> {
    let results = database.run(pause_batch(&target, reason.as_ref(), &by)).await?;
    pause_of(need_first(&results)?)?.ok_or_else(|| StoreError::unavailable("the server did not return the pause"))
}

fn pause_of(row: &Row) -> Result<Option<TargetPause>, StoreError> {
    let Some(at) = rows::moment(row, "paused_at")? else { return Ok(None) };
    Ok(Some(TargetPause { at, by: rows::text(row, "paused_by")?, reason: rows::text(row, "reason")? }))
}

pub(super) async fn resume(database: &Database, target: &TargetName, by: &Actor) -> Result<(), StoreError> {
    database.run(resume_batch(target, by)).await.map(drop)
}

/// Reads the result of [`PAUSED`].
pub(super) fn paused(rows: &[Row]) -> Result<BTreeSet<TargetName>, StoreError> {
    rows.iter().map(name).collect()
}

fn name(row: &Row) -> Result<TargetName, StoreError> {
    rows::parsed(row, "submission_target", |text| TargetName::parse(text).ok())
}
