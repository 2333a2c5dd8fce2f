//! Migrates the schema on SQL Server. Several instances may try at the same time; the one that locks row 0 of
//! `submission_schema_versions` does it.

use super::database::{Batch, Database, Value};
use super::rows;
use crate::store::StoreError;

/// All migrations in order. Each is one batch and can safely be run again.
pub(super) const MIGRATIONS: [&str; 16] = [
    include_str!("../../../schema/sqlserver/0001_spine.sql"),
    include_str!("../../../schema/sqlserver/0002_webhooks.sql"),
    include_str!("../../../schema/sqlserver/0003_minutes.sql"),
    include_str!("../../../schema/sqlserver/0004_messages.sql"),
    include_str!("../../../schema/sqlserver/0005_jobs.sql"),
    include_str!("../../../schema/sqlserver/0006_inbox.sql"),
    include_str!("../../../schema/sqlserver/0007_targets.sql"),
    include_str!("../../../schema/sqlserver/0009_inbox_forms.sql"),
    include_str!("../../../schema/sqlserver/0010_fence.sql"),
    include_str!("../../../schema/sqlserver/0011_options.sql"),
    include_str!("../../../schema/sqlserver/0012_redrives.sql"),
    include_str!("../../../schema/sqlserver/0013_pause_reasons.sql"),
    include_str!("../../../schema/sqlserver/0014_events.sql"),
    include_str!("../../../schema/sqlserver/0015_audit.sql"),
    include_str!("../../../schema/sqlserver/0016_fleet.sql"),
    include_str!("../../../schema/sqlserver/0017_terms.sql"),
];

pub(super) const VERSION: &str = "
IF OBJECT_ID('submission_schema_versions') IS NULL SELECT CAST(0 AS BIGINT) AS version;
ELSE EXECUTE sp_executesql N'SELECT CAST(COALESCE(MAX(version), 0) AS BIGINT) AS version FROM submission_schema_versions';";

/// Creates the table of schema versions, with a row 0 that serves as a lock.
pub(super) const MAKE_VERSIONS: &str = "
IF OBJECT_ID('submission_schema_versions') IS NULL
BEGIN
    BEGIN TRANSACTION;
    CREATE TABLE submission_schema_versions (
        version    INT          NOT NULL CONSTRAINT submission_schema_versions_pk PRIMARY KEY,
        applied_at DATETIME2(6) NOT NULL
    );
    INSERT INTO submission_schema_versions (version, applied_at) VALUES (0, SYSUTCDATETIME());
    COMMIT TRANSACTION;
END;";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SchemaState {
    Current,
    /// This many migrations are pending.
    Behind(usize),
    /// A newer version of this program made the schema; it has this version number.
    Newer(usize),
}

pub(super) async fn state(database: &Database) -> Result<SchemaState, StoreError> {
    let results = database.run(Batch::new(VERSION, Vec::new())).await?;
    let row = results.iter().flatten().next();
    let row = row.ok_or_else(|| StoreError::unavailable("the server did not return the schema version"))?;
    let version = usize::try_from(rows::need::<i64>(row, "version")?).unwrap_or(usize::MAX);
    Ok(match MIGRATIONS.len() {
        known if version > known => SchemaState::Newer(version),
        known if version < known => SchemaState::Behind(known - version),
        _ => SchemaState::Current,
    })
}

/// Runs the pending migrations on `patient`, whose timeouts are long enough for them. Returns how many were run.
pub(super) async fn run(database: &Database, patient: &Database) -> Result<usize, StoreError> {
    make_versions(database).await?;
    let mut ran = 0;
    while let SchemaState::Behind(missing) = state(database).await? {
        let number = MIGRATIONS.len() - missing;
        let version = Value::Number(i64::try_from(number + 1).unwrap_or(i64::MAX));
        let results = patient.run(Batch::new(migration(number), vec![version])).await?;
        let row = results.iter().flatten().next();
        let applied = row.map(|row| rows::need::<i64>(row, "applied")).transpose()?.unwrap_or(0);
        ran += usize::try_from(applied).unwrap_or(0);
    }
    Ok(ran)
}

/// Creates the table of schema versions. If several instances do so at the same time, all but one get the error that
/// the table exists, and try again.
async fn make_versions(database: &Database) -> Result<(), StoreError> {
    const TRIES: usize = 5;
    let mut result = Ok(());
    for _ in 0..TRIES {
        result = database.run(Batch::new(MAKE_VERSIONS, Vec::new())).await.map(drop);
        if !matches!(result, Err(StoreError::Unexpected(_))) {
            break;
        }
    }
    result
}

/// Builds the batch of one migration, in one transaction. It has no effect if another instance has run the migration.
pub(super) fn migration(number: usize) -> String {
    let script = MIGRATIONS.get(number).copied().unwrap_or_default();
    format!(
        "DECLARE @applied BIGINT = 0;
BEGIN TRANSACTION;
UPDATE submission_schema_versions SET applied_at = DATEADD(MICROSECOND, 1, applied_at) WHERE version = 0;
IF NOT EXISTS (SELECT 1 FROM submission_schema_versions WHERE version = @P1) SET @applied = 1;
{script}
INSERT INTO submission_schema_versions (version, applied_at) SELECT @P1, SYSUTCDATETIME() WHERE @applied = 1;
COMMIT TRANSACTION;
SELECT @applied AS applied;"
    )
}
