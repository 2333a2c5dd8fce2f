//! Jobs as the store keeps them besides their intents, and queries for jobs.

use bytes::Bytes;

use crate::domain::intent::{Intent, Status};
use crate::domain::job::{JobFacts, JobKey, SubmissionId};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;

/// What is stored for a job in addition to its intent.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub id: SubmissionId,
    pub key: JobKey,
    pub facts: JobFacts,
}

/// A stored job with its intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: SubmissionId,
    pub facts: JobFacts,
    /// The trace context of its submission.
    pub trace: Option<TraceContext>,
    pub intent: Intent,
}

impl Job {
    /// Returns the fields of every log line about a job.
    pub fn tags(&self) -> String {
        self.facts.tags(self.trace, Some(self.id))
    }
}

/// By what a job is looked up.
#[derive(Clone, Copy, Debug)]
pub enum JobLookup {
    Key(JobKey),
    Id(SubmissionId),
}

/// A job with the payload that is sent to its node.
#[derive(Clone, Debug)]
pub struct FoundJob {
    pub job: Job,
    pub payload: Bytes,
}

/// Which jobs to list. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    pub tenant: Option<String>,
    /// Only jobs of these workspaces; all if `None`.
    pub workspaces: Option<Vec<String>>,
    pub job_id: Option<String>,
    pub status: Option<Status>,
    pub limit: usize,
    /// Continue after this job: the `next` of the page before.
    pub after: Option<JobCursor>,
}

/// The last job of a page. A cursor goes to clients, so it has nothing that the tenant does not know already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobCursor {
    pub accepted_at: Timestamp,
    pub id: SubmissionId,
}

/// One page of a list of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPage {
    pub jobs: Vec<Job>,
    /// Set if there is a next page.
    pub next: Option<JobCursor>,
}

impl JobPage {
    /// Makes a page of the jobs that were found. Stores read one more than `limit`, to know whether there is a next page.
    pub(super) fn of(limit: usize, mut jobs: Vec<Job>) -> Self {
        let more = jobs.len() > limit;
        jobs.truncate(limit);
        let next = jobs.last().filter(|_| more).map(|job| JobCursor { accepted_at: job.intent.created_at, id: job.id });
        Self { jobs, next }
    }
}
