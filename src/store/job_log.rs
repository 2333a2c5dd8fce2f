//! Log lines about jobs whose facts are not at hand: attempts that an earlier term left open, and jobs that expired.
//!
//! Their facts are looked up one at a time, so that a thousand jobs which end together take no more than one connection.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{JobLookup, Store};
use crate::domain::job::SubmissionId;

/// Lines that may wait, each some hundred bytes: what a sweep of deadlines expires at once. One more is written without
/// the job's facts, with its id alone.
const MAX_WAITING: usize = 4096;

struct Line {
    event: String,
    id: SubmissionId,
}

pub struct JobLog {
    store: Arc<dyn Store>,
    /// None until the first line.
    lines: Option<mpsc::Sender<Line>>,
}

impl JobLog {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, lines: None }
    }

    /// Writes a line about this job, soon.
    pub fn write(&mut self, event: String, id: SubmissionId) {
        let store = &self.store;
        let lines = self.lines.get_or_insert_with(|| start(Arc::clone(store)));
        if let Err(error) = lines.try_send(Line { event, id }) {
            let (mpsc::error::TrySendError::Full(line) | mpsc::error::TrySendError::Closed(line)) = error;
            write_without_facts(&line);
        }
    }
}

/// Ends when the last sender is gone and all lines are written.
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
