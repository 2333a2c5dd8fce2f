//! What the log says of a job besides what it says of any intent: whose it is, and in which trace.

use crate::core::job::JobCommand;
use crate::store::{FinishAttempt, OpenAttempt};

pub struct JobTags(JobCommand);

impl JobTags {
    /// `None` if the attempt is not one of a job.
    pub fn of(attempt: &OpenAttempt, payload: &[u8]) -> Option<Self> {
        attempt.intent_id.submission_id()?;
        JobCommand::of_forwarded(payload).map(Self)
    }

    pub fn log(&self, finish: &FinishAttempt) {
        let Self(command) = self;
        let attempt = &finish.attempt;
        let submission_id = attempt.intent_id.submission_id().map(|id| id.to_string()).unwrap_or_default();
        log::info!(
            "job_attempt_finished trace_id={} tenant_id={:?} workspace_id={:?} job_id={:?} submission_id={submission_id:?} \
             management_node_id={:?} idempotency_key={:?} attempt={} outcome={} decision={:?}",
            attempt.trace.map(|trace| trace.trace_id()).unwrap_or_default(),
            command.tenant_id,
            command.workspace_id,
            command.job_id,
            command.management_node_id,
            command.idempotency_key,
            attempt.attempt_number,
            finish.outcome.kind(),
            finish.decision
        );
    }
}
