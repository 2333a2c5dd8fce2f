//! Opens connections to the file, with error messages that say what to do, and keeps the store's clock.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use super::PREPARED_STATEMENTS;
use super::checkpoint::WRITERS_CHECKPOINT;
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::StoreError;

/// How long a call waits for another process that is writing, before it gives up with 503.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the file cannot be used as a store, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} as the store: {what}; {remedy}", path.display())]
pub struct OpenError {
    pub path: PathBuf,
    pub what: String,
    pub remedy: &'static str,
}

impl OpenError {
    pub fn new(path: &Path, what: impl Into<String>, remedy: &'static str) -> Self {
        Self { path: path.to_owned(), what: what.into(), remedy }
    }

    /// Adds the remedy for an error of SQLite.
    pub fn from_sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let remedy = match error.sqlite_error_code() {
            Some(ErrorCode::CannotOpen) => "check that its directory exists and that this user may write to it",
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => "make the file and its directory writable",
            Some(ErrorCode::NotADatabase) => "it is not a SQLite file: set SM_STORE to another file",
            Some(ErrorCode::DatabaseCorrupt) => "the file is damaged: restore it from a backup or move it away",
            Some(ErrorCode::DiskFull) => "free some disk space and start again",
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another process keeps it locked: stop that process or try again"
            }
            Some(ErrorCode::SystemIoFailure) => "check its disk, and that temporary files can be written (TMPDIR)",
            _ => "check the file and its disk",
        };
        Self::new(path, error.to_string(), remedy)
    }
}

/// Creates the directory of the file. It creates no further parent directories: if several are missing, the path is probably
/// mistyped, or a disk is not mounted.
pub(super) fn make_directory(path: &Path) -> Result<(), OpenError> {
    let directory = directory_of(path);
    match std::fs::create_dir(directory) {
        Err(error) if !directory.is_dir() => Err(OpenError::new(
            path,
            format!("cannot create its directory {} ({error})", directory.display()),
            NO_DIRECTORY,
        )),
        _ => Ok(()),
    }
}

/// Returns the directory of the file.
pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The remedy for a directory that does not exist.
pub(super) const NO_DIRECTORY: &str = "create that directory (mkdir -p), or set SM_STORE to another path";

/// Opens the file for writing; creates it if `create`.
pub(super) fn open_writer(path: &Path, create: bool) -> Result<Connection, OpenError> {
    if create && !directory_of(path).is_dir() {
        let what = format!("there is no directory {}", directory_of(path).display());
        return Err(OpenError::new(path, what, NO_DIRECTORY));
    }
    let create = if create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
    Connection::open_with_flags(path, flags)
        .and_then(|connection| configure(&connection).map(|()| connection))
        .map_err(|error| OpenError::from_sqlite(path, &error))
}

/// Sets what all connections have in common.
fn configure(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Query plans must not depend on parameter values. Otherwise SQLite prepares statements again when the values change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS.map_or(0, std::num::NonZeroUsize::get));
    Ok(())
}

/// Opens a database in memory.
#[cfg(test)]
pub(super) fn in_memory() -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open_in_memory()?;
    configure(&connection).map(|()| connection)
}

/// Opens a file that was migrated, for durable writes.
pub(super) fn open_existing(path: &Path) -> Result<Connection, OpenError> {
    if !path.exists() {
        return Err(OpenError::new(path, "there is no such file", "run 'submission-manager migrate' first"));
    }
    let connection = open_writer(path, false)?;
    set_durable(&connection, true)
        .and_then(|()| connection.pragma_update(None, "cache_size", -CACHE_KIB))
        .and_then(|()| connection.pragma_update(None, "wal_autocheckpoint", WRITERS_CHECKPOINT))
        .map_err(|error| OpenError::from_sqlite(path, &error))?;
    Ok(connection)
}

/// Opens the file for reading only.
pub(super) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let connection = open_writer(path, false)?;
    connection.pragma_update(None, "query_only", true).map_err(|error| OpenError::from_sqlite(path, &error))?;
    Ok(connection)
}

/// Sets whether commits are synced to disk before they are answered. Commits that are not synced are still atomic and in
/// order.
pub(super) fn set_durable(connection: &Connection, durable: bool) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "synchronous", if durable { "FULL" } else { "NORMAL" })
}

/// The page cache of the writer. It holds the inner pages of every index of tens of millions of intents. SQLite allocates
/// it only as needed.
const CACHE_KIB: i64 = 64 * 1024;

/// Converts an error of SQLite. Errors of the file or the disk mean that the store is unavailable; others concern one item.
pub(super) fn store_error(error: rusqlite::Error) -> StoreError {
    match is_about_the_file(&error) {
        true => StoreError::unavailable(error),
        false => StoreError::unexpected(error),
    }
}

/// Whether an error of SQLite is about the file or the disk, and not about one item.
pub(super) fn is_about_the_file(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::OutOfMemory
                | ErrorCode::FileLockingProtocolFailed,
        )
    )
}

/// From here on the store's clock is slowed down and compared with the host's in `submission_clock_pace`.
const PACED_FROM: Duration = Duration::from_secs(1);

/// The store's time while the store's clock is ahead of the host's. `?1` is the host's time.
///
/// The store's clock never goes back. When the host's clock is set back, the store's clock continues at three quarters of the
/// speed until the host's has caught up. Leases still expire and retries still become due, only a little later.
/// `submission_clock_pace` holds both times as of a transaction. It counts only if that transaction is still the last one.
macro_rules! paced {
    () => {
        "coalesce((SELECT iif(p.store_at = last_at AND p.host_at < ?1, last_at + (?1 - p.host_at) * 3 / 4, 0)
            FROM submission_clock_pace p), 0)"
    };
}

const TICK: &str =
    concat!("UPDATE submission_clock SET last_at = max(?1, last_at + 1, ", paced!(), ") RETURNING last_at");
const READ_CLOCK: &str = concat!("SELECT max(?1, last_at, ", paced!(), ") FROM submission_clock");

/// Whether the store's clock is ahead of the host's and has to be slowed down.
pub(super) fn is_ahead(store: Timestamp, host: Timestamp) -> bool {
    store.since(host) > PACED_FROM
}

/// Starts a write transaction and advances the store's clock. Other writers wait until the transaction ends.
pub(super) fn begin_transaction<'c>(
    connection: &'c mut Connection,
    clock: &WallClock,
) -> Result<(Transaction<'c>, Timestamp), rusqlite::Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let host = clock.now();
    let now =
        transaction.prepare_cached(TICK)?.query_row([host.micros()], |row| row.get(0).map(Timestamp::from_micros))?;
    if is_ahead(now, host) {
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO submission_clock_pace (only_row, store_at, host_at) VALUES (1, ?1, ?2)",
            )?
            .execute([now.micros(), host.micros()])?;
    }
    Ok((transaction, now))
}

/// Returns the store's time for a reader. It is never before a transaction that the reader can see.
pub(super) fn read_now(connection: &Connection, clock: &WallClock) -> Result<Timestamp, rusqlite::Error> {
    connection
        .prepare_cached(READ_CLOCK)?
        .query_row([clock.now().micros()], |row| row.get(0).map(Timestamp::from_micros))
}
