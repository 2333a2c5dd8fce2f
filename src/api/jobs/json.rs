//! The JSON types of jobs. The OpenAPI document is generated from them, so the doc comments on types and fields are what API
//! users read.

use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

use crate::domain::time::Timestamp;
use crate::store::{Attempt, Job};

/// The response to an accepted job.
#[derive(Serialize, ToSchema)]
#[schema(as = JobAccepted)]
pub struct AcceptedJson<'a> {
    /// The tenant's own id of the job.
    #[schema(example = "job-1001")]
    pub job_id: &'a str,
    /// The service's id of the job; opaque.
    #[schema(example = "f47ac10b-58cc-4372-a567-0e02b2c3d479")]
    pub submission_id: String,
    /// The id of the management node that executes the job.
    #[schema(example = "node-a")]
    pub execution_owner: &'a str,
    #[schema(value_type = String, format = DateTime)]
    pub accepted_at: Timestamp,
    /// The trace that the job was submitted in.
    #[schema(example = "4bf92f3577b34da6a3ce929d0e0e4736")]
    pub trace_id: String,
}

impl<'a> From<&'a Job> for AcceptedJson<'a> {
    fn from(job: &'a Job) -> Self {
        Self {
            job_id: &job.facts.job_id,
            submission_id: job.id.to_string(),
            execution_owner: &job.facts.management_node_id,
            accepted_at: job.intent.created_at,
            trace_id: trace_id(job),
        }
    }
}

/// The id of the trace that a job was submitted in.
fn trace_id(job: &Job) -> String {
    job.trace.map(|trace| trace.trace_id()).unwrap_or_default()
}

/// A job.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub struct JobJson<'a> {
    #[serde(flatten)]
    pub accepted: AcceptedJson<'a>,
    pub tenant_id: &'a str,
    pub workspace_id: &'a str,
    pub idempotency_key: &'a str,
    #[schema(value_type = crate::domain::intent_json::StatusName)]
    pub status: &'static str,
    /// When the job got its final status; absent while it is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub completed_at: Option<Timestamp>,
    /// The node's reason, if the job was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_reason: Option<&'a str>,
    /// Which rule of the node's contract ended the job, or `cancelled`, if it was exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::domain::intent_json::ExhaustedReasonName>)]
    pub exhausted_reason: Option<&'static str>,
}

impl<'a> From<&'a Job> for JobJson<'a> {
    fn from(job: &'a Job) -> Self {
        let state = &job.intent.state;
        Self {
            accepted: job.into(),
            tenant_id: &job.facts.tenant_id,
            workspace_id: &job.facts.workspace_id,
            idempotency_key: &job.facts.idempotency_key,
            status: state.status().as_str(),
            completed_at: state.completed_at(),
            rejected_reason: state.rejected_reason(),
            exhausted_reason: state.exhausted_reason().map(|reason| reason.as_str()),
        }
    }
}

/// A job that is cancelled, or will be after its attempt.
#[derive(Serialize, ToSchema)]
#[schema(as = CancelledJob)]
pub struct CancelledJobJson<'a> {
    #[serde(flatten)]
    pub job: JobJson<'a>,
    /// `false` if no attempt of the job was ever started, so that its node cannot have received it.
    pub may_have_been_sent: bool,
}

/// One attempt to send a job to its node.
#[derive(Serialize, ToSchema)]
#[schema(as = JobAttempt)]
pub struct JobAttemptJson<'a> {
    #[schema(minimum = 1)]
    pub attempt_number: u32,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub finished_at: Timestamp,
    /// `accepted` or `rejected`; null if the attempt ended with an error.
    #[schema(required = true)]
    pub outcome_status: Option<&'static str>,
    /// The node's reason for a rejection.
    #[schema(required = true)]
    pub outcome_reason: Option<&'a str>,
    /// Why the attempt has no outcome, such as a timeout or an unexpected response.
    #[schema(required = true)]
    pub error: Option<&'a str>,
    /// The node's own id for the job, if it returned one.
    #[schema(required = true)]
    pub gateway_message_id: Option<&'a str>,
}

impl<'a> From<&'a Attempt> for JobAttemptJson<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        Self {
            attempt_number: attempt.attempt_number,
            started_at: attempt.started_at,
            finished_at: attempt.finished_at,
            outcome_status: attempt.outcome.status(),
            outcome_reason: attempt.outcome.reason(),
            error: attempt.outcome.error_text(),
            gateway_message_id: attempt.outcome.gateway_message_id(),
        }
    }
}

/// A job with its attempts in order.
#[derive(Serialize, ToSchema)]
#[schema(as = JobHistory)]
pub struct JobHistoryJson<'a> {
    pub job: JobJson<'a>,
    pub attempts: Vec<JobAttemptJson<'a>>,
    /// The trace of this request.
    pub trace_id: String,
}

/// A page of jobs.
#[derive(Serialize, ToSchema)]
#[schema(as = JobList)]
pub struct JobListJson<'a> {
    pub jobs: Vec<JobJson<'a>>,
    /// Pass this as `cursor` to get the next page; null on the last page.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
    /// The trace of this request.
    pub trace_id: String,
}

/// The body of every error response of the jobs API.
#[derive(ToSchema)]
#[schema(as = JobErrorAnswer)]
pub struct JobErrorJson {
    pub error: crate::api::json::ErrorBody,
    /// The trace of this request.
    pub trace_id: String,
}

/// The error responses that every call of the jobs API can get.
#[derive(IntoResponses)]
pub enum CommonJobErrors {
    /// Missing or invalid bearer token
    #[response(status = 401)]
    Unauthorized(JobErrorJson),
    /// The token does not have the scope, or does not cover the tenant and workspace
    #[response(status = 403)]
    Forbidden(JobErrorJson),
    /// The service is overloaded, the store is unavailable, or the node of a new job is draining or not responding; try again
    #[response(status = 503)]
    Unavailable(JobErrorJson),
}
