//! Makes a backup: a consistent, verified copy of a store in use. The target file appears only when the copy is complete.
//!
//! The copy is made page by page within one read transaction, so it shows one moment. Without that transaction SQLite would
//! start the copy again whenever another process commits. While the copy runs, the write-ahead log cannot be reset and
//! grows with every commit.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use tempfile::NamedTempFile;

use super::connection::{self, OpenError};
use super::integrity::errors_of;
use super::migrate;

/// Pages that are copied between two reports of progress: 4 MiB.
const PAGES_PER_STEP: i32 = 1024;

/// Why a backup failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("{} exists already; name a file that does not exist, because a backup never replaces a file", .0.display())]
    Exists(PathBuf),
    #[error("cannot write {}: {source}; name a file in a directory that exists, is writable and has free space", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot copy the store: {0}; check both disks and try again")]
    Copy(#[from] rusqlite::Error),
    #[error("another process has locked the store; try again")]
    Locked,
    #[error("the copy was deleted, because it is damaged: {0}; run 'submission-manager check' on the store")]
    Damaged(String),
}

/// What is in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    pub bytes: u64,
    /// Rows by table.
    pub rows: BTreeMap<String, i64>,
}

/// How far a backup has come.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    Copied { pages: u64, of: u64 },
    Verifying,
}

/// Copies the store to a new file.
pub fn run(store: &Path, target: &Path, mut progress: impl FnMut(Progress)) -> Result<Contents, BackupError> {
    if target.exists() {
        return Err(BackupError::Exists(target.to_owned()));
    }
    let failed = |source| BackupError::Write { path: target.to_owned(), source };
    let directory = match target.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    if !store.exists() {
        return Err(OpenError::new(store, "there is no such file", "name the store with --store or SM_STORE").into());
    }
    let mut source = connection::open_reader(store)?;
    migrate::check_owner(&source, store)?;
    let copy = NamedTempFile::with_prefix_in(".submission-manager-backup-", directory).map_err(failed)?;
    let snapshot = source.transaction()?;
    let rows = count_rows(&snapshot)?;
    copy_pages(&snapshot, copy.path(), &mut progress)?;
    drop(snapshot);
    progress(Progress::Verifying);
    verify(copy.path(), &rows)?;
    copy.as_file().sync_all().map_err(failed)?;
    let bytes = copy.as_file().metadata().map_err(failed)?.len();
    copy.persist_noclobber(target).map_err(|error| match error.error.kind() {
        std::io::ErrorKind::AlreadyExists => BackupError::Exists(target.to_owned()),
        _ => failed(error.error),
    })?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    Ok(Contents { bytes, rows })
}

fn copy_pages(snapshot: &Connection, to: &Path, progress: &mut impl FnMut(Progress)) -> Result<(), BackupError> {
    let mut copy = Connection::open(to)?;
    // The copy needs no journal, because an incomplete copy is deleted.
    copy.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")?;
    let backup = Backup::new(snapshot, &mut copy)?;
    loop {
        let step = backup.step(PAGES_PER_STEP)?;
        let now = backup.progress();
        let pages = |count: i32| u64::try_from(count).unwrap_or(0);
        progress(Progress::Copied { pages: pages(now.pagecount - now.remaining), of: pages(now.pagecount) });
        match step {
            StepResult::Done => return Ok(()),
            StepResult::More => {}
            _ => return Err(BackupError::Locked),
        }
    }
}

fn verify(copy: &Path, expected: &BTreeMap<String, i64>) -> Result<(), BackupError> {
    let connection = Connection::open(copy)?;
    let errors = errors_of(&connection, "PRAGMA integrity_check(3)")?;
    if !errors.is_empty() {
        return Err(BackupError::Damaged(errors.join("; ")));
    }
    for (table, count) in count_rows(&connection)? {
        let expected = expected.get(&table).copied().unwrap_or_default();
        if count != expected {
            return Err(BackupError::Damaged(format!("{table} has {count} rows instead of {expected}")));
        }
    }
    Ok(())
}

/// Counts the rows of every table.
fn count_rows(connection: &Connection) -> Result<BTreeMap<String, i64>, rusqlite::Error> {
    let tables: Vec<String> = connection
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let count = |table: String| {
        let rows = connection.query_row(&format!("SELECT count(*) FROM \"{table}\""), [], |row| row.get(0))?;
        Ok((table, rows))
    };
    tables.into_iter().map(count).collect()
}
