//! Targets on SQL Server: which there are, and which are paused.

use std::collections::BTreeSet;

use tiberius::Row;

use super::database::{Database, Value};
use super::read::{all as read_all, need_first, run, set};
use super::rows;
use super::statements::TICK;
use crate::domain::intent::TargetName;
use crate::domain::time::Timestamp;
use crate::store::{StoreError, StoredTarget};

/// Read by every look of the schedule.
pub const PAUSED: &str = "
SELECT submission_target FROM submission_target_pauses;";

pub const ALL: &str = "
SELECT p.submission_target, p.paused_at FROM submission_target_pauses AS p
UNION ALL
SELECT DISTINCT c.submission_target, CAST(NULL AS DATETIME2(6)) FROM submission_contracts AS c
WHERE NOT EXISTS (SELECT 1 FROM submission_target_pauses AS p WHERE p.submission_target = c.submission_target)
ORDER BY submission_target;";

/// Holds the clock as begins do, so that each of them is either before this or sees it.
pub fn pause_statement() -> String {
    format!(
        "DECLARE @now DATETIME2(6), @since DATETIME2(6);
BEGIN TRANSACTION;{TICK}
INSERT INTO submission_target_pauses (submission_target, paused_at)
SELECT @P1, @now WHERE NOT EXISTS (SELECT 1 FROM submission_target_pauses WHERE submission_target = @P1);
SELECT @since = paused_at FROM submission_target_pauses WHERE submission_target = @P1;
COMMIT TRANSACTION;
SELECT @since AS paused_at;"
    )
}

pub const RESUME: &str = "DELETE FROM submission_target_pauses WHERE submission_target = @P1;";

pub async fn all(database: &Database) -> Result<Vec<StoredTarget>, StoreError> {
    let results = run(database, ALL, Vec::new()).await?;
    read_all(set(&results, 0), |row| Ok(StoredTarget { name: name(row)?, paused_at: rows::moment(row, "paused_at")? }))
}

pub async fn pause(database: &Database, target: TargetName) -> Result<Timestamp, StoreError> {
    let results = run(database, pause_statement(), vec![Value::Text(target.to_string())]).await?;
    rows::need_moment(need_first(&results)?, "paused_at")
}

pub async fn resume(database: &Database, target: TargetName) -> Result<(), StoreError> {
    run(database, RESUME, vec![Value::Text(target.to_string())]).await.map(drop)
}

/// What [`PAUSED`] says.
pub fn paused(rows: &[Row]) -> Result<BTreeSet<TargetName>, StoreError> {
    rows.iter().map(name).collect()
}

fn name(row: &Row) -> Result<TargetName, StoreError> {
    rows::parsed(row, "submission_target", |text| TargetName::parse(text).ok())
}
