//! Copies the write-ahead log into the file beside the writer, so that commits need not wait for it.
//!
//! On a large store a checkpoint writes pages all over the file. Done by whoever commits, which is
//! what SQLite does by itself, it holds up all the others. The writer still does it when the log
//! has grown past [`CHECKPOINT_PAGES`]; little is left to copy then, and the log begins anew.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

use super::connection::{self, OpenError};

/// Pages in the log at which the writer copies what is left: 64 MiB.
pub const CHECKPOINT_PAGES: i64 = 16 * 1024;
/// Commits between two runs: at thirty pages each about a thousand pages.
const COMMITS: u32 = 32;

pub struct Checkpointer {
    connection: Mutex<Connection>,
    running: AtomicBool,
    commits: AtomicU32,
}

impl Checkpointer {
    pub fn open(path: &Path) -> Result<Arc<Self>, OpenError> {
        let connection = Mutex::new(connection::open_existing(path)?);
        Ok(Arc::new(Self { connection, running: AtomicBool::new(false), commits: AtomicU32::new(0) }))
    }

    /// Takes note of a commit; now and then starts a run, unless one is under way.
    pub fn committed(self: &Arc<Self>) {
        let commits = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
        if commits >= COMMITS && !self.running.swap(true, Ordering::SeqCst) {
            self.commits.store(0, Ordering::Relaxed);
            let checkpointer = Arc::clone(self);
            tokio::task::spawn_blocking(move || checkpointer.run());
        }
    }

    fn run(&self) {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        // Waits for nobody: what readers and the writer still need is left for the next run.
        if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            log::warn!("checkpoint_failed store_error={error:?}");
        }
        self.running.store(false, Ordering::SeqCst);
    }
}
