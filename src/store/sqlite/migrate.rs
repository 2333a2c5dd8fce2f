//! Migrates the schema of a SQLite file. Several processes may try at the same time; one of them does it.
//!
//! `user_version` is the number of migrations that were run. Their text is not compared, so comments in them may change.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::connection::{self, OpenError};

/// All migrations in order. Pending ones run in one transaction, which also sets the new version.
pub(super) const MIGRATIONS: [&str; 17] = [
    include_str!("../../../schema/sqlite/0001_spine.sql"),
    include_str!("../../../schema/sqlite/0002_fewer_indexes.sql"),
    include_str!("../../../schema/sqlite/0003_webhooks.sql"),
    include_str!("../../../schema/sqlite/0004_minutes.sql"),
    include_str!("../../../schema/sqlite/0005_messages.sql"),
    include_str!("../../../schema/sqlite/0006_jobs.sql"),
    include_str!("../../../schema/sqlite/0007_inbox.sql"),
    include_str!("../../../schema/sqlite/0008_targets.sql"),
    include_str!("../../../schema/sqlite/0009_upkeep.sql"),
    include_str!("../../../schema/sqlite/0010_inbox_forms.sql"),
    include_str!("../../../schema/sqlite/0011_options.sql"),
    include_str!("../../../schema/sqlite/0012_redrives.sql"),
    include_str!("../../../schema/sqlite/0013_pause_reasons.sql"),
    include_str!("../../../schema/sqlite/0014_events.sql"),
    include_str!("../../../schema/sqlite/0015_audit.sql"),
    include_str!("../../../schema/sqlite/0016_fleet.sql"),
    include_str!("../../../schema/sqlite/0017_terms.sql"),
];

/// The application id of our files ("SMGR"). A database of another program is never changed.
const APPLICATION_ID: i32 = 0x534d_4752;

const NEWER: &str = "a newer version of this program created it: use that version";
const FOREIGN: &str = "it belongs to another program: set SM_STORE to another file";

/// Creates the file if it does not exist and runs pending migrations. Returns their number.
pub(super) fn run(path: &Path) -> Result<usize, OpenError> {
    let sqlite = |error: rusqlite::Error| OpenError::from_sqlite(path, &error);
    let mut connection = connection::open_writer(path, true)?;
    check_owner(&connection, path)?;
    set_wal(&connection).and_then(|()| connection::set_durable(&connection, true)).map_err(sqlite)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite)?;
    check_owner(&transaction, path)?;
    let version = version(&transaction).map_err(sqlite)?;
    let pending = MIGRATIONS.get(version..).ok_or_else(|| {
        OpenError::new(
            path,
            format!("its schema has version {version}, this program supports {}", MIGRATIONS.len()),
            NEWER,
        )
    })?;
    if !pending.is_empty() {
        apply(&transaction, pending).map_err(sqlite)?;
    }
    transaction.commit().map_err(sqlite)?;
    Ok(pending.len())
}

/// Runs all migrations on an empty database.
#[cfg(test)]
pub(super) fn apply_all(connection: &Connection) -> Result<(), rusqlite::Error> {
    apply(connection, &MIGRATIONS)
}

fn apply(transaction: &Connection, pending: &[&str]) -> Result<(), rusqlite::Error> {
    for migration in pending {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX))
}

/// Refuses a file whose schema has another version than this program needs.
pub(super) fn require_current(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let sqlite = |error: rusqlite::Error| OpenError::from_sqlite(path, &error);
    check_owner(connection, path)?;
    let version = version(connection).map_err(sqlite)?;
    let what = || format!("its schema has version {version}, this program needs {}", MIGRATIONS.len());
    match version.cmp(&MIGRATIONS.len()) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(OpenError::new(path, what(), "run 'submission-manager migrate' first")),
        std::cmp::Ordering::Greater => Err(OpenError::new(path, what(), NEWER)),
    }
}

fn version(connection: &Connection) -> Result<usize, rusqlite::Error> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}

/// Accepts an empty file, or one with our application id.
pub(super) fn check_owner(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    // One statement, so that another process cannot finish its migration between two reads.
    const OWNER: &str =
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_schema)";
    let owner: Result<(i32, i64), _> = connection.query_row(OWNER, [], |row| Ok((row.get(0)?, row.get(1)?)));
    match owner.map_err(|error| OpenError::from_sqlite(path, &error))? {
        (APPLICATION_ID, _) | (0, 0) => Ok(()),
        (_, objects) => {
            Err(OpenError::new(path, format!("it has {objects} tables or indexes of another program"), FOREIGN))
        }
    }
}

/// Switches to WAL mode. That needs exclusive access for a moment, and SQLite does not wait for it by itself.
fn set_wal(connection: &Connection) -> Result<(), rusqlite::Error> {
    const TRIES: u32 = 50;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
    let mut tries = 0;
    loop {
        tries += 1;
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if tries < TRIES
                    && matches!(
                        error.sqlite_error_code(),
                        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
                    ) =>
            {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}
