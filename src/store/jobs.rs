//! What a store keeps of a job besides its intent, and how jobs are looked up.

use bytes::Bytes;

use crate::domain::intent::{Intent, Status};
use crate::domain::job::{JobFacts, JobKey, SubmissionId};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;

/// What makes a new intent a job.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub id: SubmissionId,
    pub key: JobKey,
    pub facts: JobFacts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: SubmissionId,
    pub facts: JobFacts,
    /// The trace that it was submitted under.
    pub trace: Option<TraceContext>,
    pub intent: Intent,
}

impl Job {
    /// What every line of the log about a job says.
    pub fn tags(&self) -> String {
        self.facts.tags(self.trace, Some(self.id))
    }
}

#[derive(Clone, Copy, Debug)]
pub enum JobLookup {
    Key(JobKey),
    Id(SubmissionId),
}

/// A job with what was forwarded for it.
#[derive(Clone, Debug)]
pub struct FoundJob {
    pub job: Job,
    pub payload: Bytes,
}

/// Which jobs to list; newest first.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    pub tenant: Option<String>,
    /// Only of these; all if there is none.
    pub workspaces: Option<Vec<String>>,
    pub job_id: Option<String>,
    pub status: Option<Status>,
    pub limit: usize,
    /// Continue behind this one, as a page before said.
    pub behind: Option<JobCursor>,
}

/// Where a page of jobs ended. Says nothing that its tenant does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobCursor {
    pub accepted_at: Timestamp,
    pub id: SubmissionId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPage {
    pub jobs: Vec<Job>,
    /// Where the next page starts, if there is one.
    pub next: Option<JobCursor>,
}

impl JobPage {
    /// A page of what was found, which may be one more than asked for.
    pub(super) fn of(limit: usize, mut jobs: Vec<Job>) -> Self {
        let more = jobs.len() > limit;
        jobs.truncate(limit);
        let next = jobs.last().filter(|_| more).map(|job| JobCursor { accepted_at: job.intent.created_at, id: job.id });
        Self { jobs, next }
    }
}
