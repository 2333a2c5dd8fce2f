//! Copies the write-ahead log into the database file in the background, so that commits do not have to wait for it.
//!
//! A checkpoint of a large store writes pages all over the file. By default SQLite makes it as part of a commit, and all other
//! commits wait. The log can be reset only when all of it is copied. So commits still wait from time to time, but only for the
//! pages that were added while the rest was copied.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};

use rusqlite::Connection;
use tokio::sync::Mutex;

use super::Writer;
use super::connection::{self, OpenError};

/// From this many pages on the log is to be reset: 32 MiB.
const LONG_LOG: i64 = 8 * 1024;
/// At this many pages the writer makes a checkpoint itself, in case the background task cannot: 128 MiB.
pub(super) const WRITERS_CHECKPOINT: i64 = 32 * 1024;
/// Commits between two checkpoints. With about sixty pages each, they write fifteen thousand pages.
const COMMITS_PER_RUN: u32 = 256;
/// Every this many payload bytes of a commit count as one more commit: about sixty pages.
const COMMIT_BYTES: usize = 256 * 1024;
/// The default page size of SQLite.
const PAGE_BYTES: usize = 4096;
/// How often the rest of the log is copied and synced before commits have to wait. Each time less is left.
const ROUNDS: usize = 3;

/// Makes checkpoints in the background.
pub(super) struct Checkpointer {
    connection: std::sync::Mutex<Connection>,
    writer: Arc<Mutex<Writer>>,
    /// The database file, opened once more for syncing. It is never closed, because closing it would release all locks that
    /// SQLite holds on the file in this process.
    file: &'static File,
    running: AtomicBool,
    commits: AtomicU32,
}

impl Checkpointer {
    /// Opens a connection of its own for checkpoints.
    pub(super) fn open(path: &Path, writer: Arc<Mutex<Writer>>) -> Result<Arc<Self>, OpenError> {
        let connection = std::sync::Mutex::new(connection::open_existing(path)?);
        let file =
            File::open(path).map_err(|error| OpenError::new(path, error.to_string(), "make the file readable"))?;
        let file: &'static File = Box::leak(Box::new(file));
        Ok(Arc::new(Self { connection, writer, file, running: AtomicBool::new(false), commits: AtomicU32::new(0) }))
    }

    /// One that never makes a checkpoint, for a database in memory.
    #[cfg(test)]
    pub(super) fn never(writer: Arc<Mutex<Writer>>) -> Arc<Self> {
        let connection = std::sync::Mutex::new(connection::in_memory().unwrap());
        let file: &'static File = Box::leak(Box::new(File::open("/dev/null").unwrap()));
        Arc::new(Self { connection, writer, file, running: AtomicBool::new(true), commits: AtomicU32::new(0) })
    }

    /// Counts a commit with this many payload bytes.
    pub(super) fn committed(self: &Arc<Self>, payload: usize) {
        self.add(1 + u32::try_from(payload / COMMIT_BYTES).unwrap_or(COMMITS_PER_RUN));
    }

    /// Counts a transaction that wrote this many pages.
    pub(super) fn wrote(self: &Arc<Self>, pages: usize) {
        self.add(u32::try_from(pages * PAGE_BYTES / COMMIT_BYTES).unwrap_or(COMMITS_PER_RUN));
    }

    /// Adds to the count of commits, and starts a checkpoint when there are enough, unless one is running.
    fn add(self: &Arc<Self>, weight: u32) {
        let commits = self.commits.fetch_add(weight, Ordering::Relaxed) + weight;
        if commits >= COMMITS_PER_RUN && !self.running.swap(true, Ordering::SeqCst) {
            self.commits.store(0, Ordering::Relaxed);
            let checkpointer = Arc::clone(self);
            tokio::task::spawn_blocking(move || {
                if let Err(error) = checkpointer.run() {
                    log::warn!("checkpoint_failed store_error={error:?}");
                }
                checkpointer.running.store(false, Ordering::SeqCst);
            });
        }
    }

    fn run(&self) -> Result<(), rusqlite::Error> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if copy(&connection)? < LONG_LOG {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            if let Err(error) = self.file.sync_data() {
                log::warn!("sync_failed error={error:?}");
            }
            copy(&connection)?;
        }
        // This process makes no commit now, so all of the log can be copied. The next commit finds a log of which nothing is
        // needed any more, and resets it.
        let _no_commits = self.writer.blocking_lock();
        copy(&connection).map(drop)
    }
}

/// Copies as much of the log as possible without waiting. Pages that readers still need are left for the next time. Returns
/// how many pages the log has.
fn copy(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))
}
