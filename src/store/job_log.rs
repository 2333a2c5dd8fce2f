//! Writes log lines about jobs whose facts are not in memory: attempts that an earlier term left open, and jobs that expired.
//!
//! The facts are read from the store one job at a time, so that a thousand jobs that end together need only one connection.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{JobLookup, Store};
use crate::domain::job::SubmissionId;

/// Lines that may wait, each of some hundred bytes. It is more than one sweep of deadlines expires. A further line is written
/// with the job's id alone.
const MAX_WAITING: usize = 4096;

struct Line {
    event: String,
    id: SubmissionId,
}

/// The log of jobs. It starts its task with the first line.
pub(super) struct JobLog {
    store: Arc<dyn Store>,
    /// `None` until the first line.
    lines: Option<mpsc::Sender<Line>>,
}

impl JobLog {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, lines: None }
    }

    /// Writes a line about this job once its facts are read.
    pub(super) fn write(&mut self, event: String, id: SubmissionId) {
        let store = &self.store;
        let lines = self.lines.get_or_insert_with(|| start(Arc::clone(store)));
        if let Err(error) = lines.try_send(Line { event, id }) {
            let (mpsc::error::TrySendError::Full(line) | mpsc::error::TrySendError::Closed(line)) = error;
            write_without_facts(&line);
        }
    }
}

/// Starts the task that writes lines. It ends when the last sender is gone and all lines are written.
fn start(store: Arc<dyn Store>) -> mpsc::Sender<Line> {
    let (sender, mut lines) = mpsc::channel::<Line>(MAX_WAITING);
    actix::spawn(async move {
        while let Some(line) = lines.recv().await {
            match store.find_job(JobLookup::Id(line.id)).await {
                Ok(Some(found)) => log::info!("{} {}", line.event, found.job.tags()),
                _ => write_without_facts(&line),
            }
        }
    });
    sender
}

fn write_without_facts(line: &Line) {
    log::info!("{} submission_id=\"{}\"", line.event, line.id);
}
