//! Copies the write-ahead log into the file beside the writer, so that commits need not wait for it.
//!
//! On a large store a checkpoint writes pages all over the file. Done by whoever commits, which is
//! what SQLite does by itself, it holds up all the others. The log can only begin anew when all of
//! it is copied, so now and then commits do wait: for the little that came while the rest was copied.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};

use rusqlite::Connection;
use tokio::sync::Mutex;

use super::Writer;
use super::connection::{self, OpenError};

/// Pages in the log from which on it is to begin anew: 32 MiB.
const LONG_LOG: i64 = 8 * 1024;
/// Pages in the log at which the writer copies what is left itself, if nobody else could: 128 MiB.
pub const WRITERS_CHECKPOINT: i64 = 32 * 1024;
/// Commits between two runs: at sixty pages each about fifteen thousand pages.
const COMMITS: u32 = 256;
/// A commit with so many bytes of payload more counts as one more: about sixty pages.
const COMMIT_BYTES: usize = 256 * 1024;
/// Bytes of a page, as SQLite makes files by default.
const PAGE_BYTES: usize = 4096;
/// How often the rest is copied and synced before commits wait: less comes meanwhile each time.
const CHASES: usize = 3;

pub struct Checkpointer {
    connection: std::sync::Mutex<Connection>,
    writer: Arc<Mutex<Writer>>,
    /// The database file once more, for syncing. Never closed: that would end all locks that SQLite
    /// has on the file in this process.
    file: &'static File,
    running: AtomicBool,
    commits: AtomicU32,
}

impl Checkpointer {
    pub fn open(path: &Path, writer: Arc<Mutex<Writer>>) -> Result<Arc<Self>, OpenError> {
        let connection = std::sync::Mutex::new(connection::open_existing(path)?);
        let file =
            File::open(path).map_err(|error| OpenError::new(path, error.to_string(), "make the file readable"))?;
        let file: &'static File = Box::leak(Box::new(file));
        Ok(Arc::new(Self { connection, writer, file, running: AtomicBool::new(false), commits: AtomicU32::new(0) }))
    }

    /// Takes note of a commit with so many bytes of payload.
    pub fn committed(self: &Arc<Self>, payload: usize) {
        self.add(1 + u32::try_from(payload / COMMIT_BYTES).unwrap_or(COMMITS));
    }

    /// Takes note of a transaction that wrote so many pages.
    pub fn wrote(self: &Arc<Self>, pages: usize) {
        self.add(u32::try_from(pages * PAGE_BYTES / COMMIT_BYTES).unwrap_or(COMMITS));
    }

    /// Now and then starts a run, unless one is under way.
    fn add(self: &Arc<Self>, weight: u32) {
        let commits = self.commits.fetch_add(weight, Ordering::Relaxed) + weight;
        if commits >= COMMITS && !self.running.swap(true, Ordering::SeqCst) {
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
        for _ in 0..CHASES {
            if let Err(error) = self.file.sync_data() {
                log::warn!("sync_failed error={error:?}");
            }
            copy(&connection)?;
        }
        // Nobody in this process commits now, so all of it can be copied; the next one to commit
        // finds nothing in the log that is still needed, and begins it anew.
        let _no_commits = self.writer.blocking_lock();
        copy(&connection).map(drop)
    }
}

/// Copies what it can without waiting for anybody: what readers still need is left for the next
/// time. How many pages the log has.
fn copy(connection: &Connection) -> Result<i64, rusqlite::Error> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))
}
