//! Opening the file, and saying plainly what is wrong with it when that fails.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use super::PREPARED;
use super::checkpoint::WRITERS_CHECKPOINT;
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::StoreError;

/// How long a call waits for another process that is writing, before it gives up with 503.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

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

    pub fn from_sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let remedy = match error.sqlite_error_code() {
            Some(ErrorCode::CannotOpen) => "check that its directory exists and may be written by this user",
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => "make the file and its directory writable",
            Some(ErrorCode::NotADatabase) => "it is not a SQLite file: name another one with SM_STORE",
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

/// Makes the directory that the file is to be in. Only that one: where several are missing, the path is mistyped, or a
/// disk is not mounted.
pub fn make_directory(path: &Path) -> Result<(), OpenError> {
    let directory = directory_of(path);
    match std::fs::create_dir(directory) {
        Err(error) if !directory.is_dir() => Err(OpenError::new(
            path,
            format!("cannot make its directory {} ({error})", directory.display()),
            NO_DIRECTORY,
        )),
        _ => Ok(()),
    }
}

/// The directory that the file is in, or is to be in.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

pub const NO_DIRECTORY: &str = "create that directory (mkdir -p), or name another one with SM_STORE";

/// Opens the file for writing; creates it if `create`.
pub fn open_writer(path: &Path, create: bool) -> Result<Connection, OpenError> {
    if create && !directory_of(path).is_dir() {
        let what = format!("there is no directory {}", directory_of(path).display());
        return Err(OpenError::new(path, what, NO_DIRECTORY));
    }
    let create = if create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
    let connection = Connection::open_with_flags(path, flags)
        .and_then(|connection| {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            // Plans do not depend on values; otherwise statements are prepared anew when those change.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            Ok(connection)
        })
        .map_err(|error| OpenError::from_sqlite(path, &error))?;
    connection.set_prepared_statement_cache_capacity(PREPARED.map_or(0, std::num::NonZeroUsize::get));
    Ok(connection)
}

/// Opens a file that `migrate` has made, for durable writes.
pub fn open_existing(path: &Path) -> Result<Connection, OpenError> {
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

pub fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let connection = open_writer(path, false)?;
    connection.pragma_update(None, "query_only", true).map_err(|error| OpenError::from_sqlite(path, &error))?;
    Ok(connection)
}

/// Whether commits are synced to disk before they are answered. Those that are not are still atomic and in order.
pub fn set_durable(connection: &Connection, durable: bool) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "synchronous", if durable { "FULL" } else { "NORMAL" })
}

/// Memory for the writer's pages: enough for the inner pages of every index over tens of millions
/// of intents. Taken only as it is needed.
const CACHE_KIB: i64 = 64 * 1024;

pub fn store_error(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
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
        ) => StoreError::Unavailable(error.to_string()),
        _ => StoreError::Unexpected(error.to_string()),
    }
}

/// How far the store's clock may be ahead of the host's before that is written down.
const PACED_FROM: Duration = Duration::from_secs(1);

/// The store's clock never goes back. When the host's is set back, because it was wrong before or is now, the store's
/// goes on from where it was at three quarters of the speed until the host's has caught up: leases expire and retries become due, a
/// little later. `submission_clock_pace` says what both showed at the last transaction; it counts only if that
/// transaction is still the last one. `?1` is the host's time.
macro_rules! paced {
    () => {
        "coalesce((SELECT iif(p.store_at = last_at AND p.host_at < ?1, last_at + (?1 - p.host_at) * 3 / 4, 0)
            FROM submission_clock_pace p), 0)"
    };
}

const TICK: &str =
    concat!("UPDATE submission_clock SET last_at = max(?1, last_at + 1, ", paced!(), ") RETURNING last_at");
const READ_CLOCK: &str = concat!("SELECT max(?1, last_at, ", paced!(), ") FROM submission_clock");

/// Whether the store's clock has to be paced.
pub fn is_ahead(store: Timestamp, host: Timestamp) -> bool {
    store.since(host) > PACED_FROM
}

/// Begins a transaction that is the only one writing, and moves the store's clock on.
pub fn begin<'c>(
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

/// The store's time for a reader: never behind a transaction that it can see.
pub fn read_now(connection: &Connection, clock: &WallClock) -> Result<Timestamp, rusqlite::Error> {
    connection
        .prepare_cached(READ_CLOCK)?
        .query_row([clock.now().micros()], |row| row.get(0).map(Timestamp::from_micros))
}
