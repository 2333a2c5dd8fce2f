//! `POST /v1/jobs`: accepts a job, once for each idempotency key.

use actix_web::{HttpRequest, HttpResponse, web};

use super::command;
use super::json::{AcceptedJson, CommonJobErrors, JobErrorJson};
use super::{JobError, require_enabled, with_trace};
use crate::config::registry::Registry;
use crate::domain::client::{ApiClient, Scope};
use crate::domain::intent::{IntentId, Payload};
use crate::domain::job::{JobCommand, SubmissionId};
use crate::domain::node::{ManagementNode, NodeState};
use crate::domain::trace::TraceContext;
use crate::platform::mutated;
use crate::store::{Job, JobFacts, JobLookup, NewIntent, NewJob, Submitted};
use crate::web::auth;
use crate::web::error::ApiError;
use crate::web::trace::of_request_or_new;
use crate::web::{WebDeps, id_bytes};

/// The maximum size of a command, which has only names and one URI.
const MAX_COMMAND_BYTES: usize = 64 * 1024;

/// Submit a job for a management node
///
/// Responds as soon as the job is stored durably. The first attempt to send it to its node starts as soon as the limits of
/// attempts in progress allow. Submitting the same command with the same key again is safe and returns the first
/// response; only `requested_by.session_id` may differ.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", operation_id = "submitJob",
    security(("bearer" = ["jobs:submit"])),
    params(("traceparent" = Option<String>, Header, description = "W3C trace context; forwarded to the node")),
    request_body = JobCommand,
    responses(
        (status = 202, body = AcceptedJson, description = "The job was accepted, by this request or an earlier one"),
        (status = 400, body = JobErrorJson, description = "The command is invalid; the message names every error"),
        CommonJobErrors,
        (status = 404, body = JobErrorJson, description = "No such node, or the tenant may not use it; or jobs are not enabled"),
        (status = 408, body = JobErrorJson, description = "The request body did not arrive in time"),
        (status = 409, body = JobErrorJson, description = "The key was already used for a different command"),
        (status = 413, body = JobErrorJson, description = "The command is too large"),
        (status = 422, body = JobErrorJson, description = "The node does not allow the job; the message names every violated rule"),
    ))]
pub(crate) async fn submit(
    request: HttpRequest,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, JobError> {
    let trace = of_request_or_new(&request);
    let accepted = accept(&request, payload, &deps, trace).await;
    deps.metrics.job_answered(match &accepted {
        Ok(Accepted { replayed: false, .. }) => "accepted",
        Ok(Accepted { replayed: true, .. }) => "replayed",
        Err(error) => error.code(),
    });
    with_trace(trace, accepted.map(|Accepted { job, .. }| HttpResponse::Accepted().json(AcceptedJson::from(&job))))
}

/// An accepted job.
pub(crate) struct Accepted {
    pub(crate) job: Job,
    /// Whether an earlier request with the same key was accepted, and this one only gets its response.
    pub(crate) replayed: bool,
}

async fn accept(
    request: &HttpRequest,
    payload: web::Payload,
    deps: &WebDeps,
    trace: TraceContext,
) -> Result<Accepted, ApiError> {
    let registry = deps.registry.get();
    require_enabled(&registry)?;
    let client = auth::caller(request, &registry)?;
    let (body, _reservation) = deps.bodies.read(payload, MAX_COMMAND_BYTES).await?;
    let command = command::parse(&body)?;
    let result = accept_command(deps, &registry, &client, &command, trace).await;
    log_result(&client.id, &command, trace, &result);
    result
}

/// Looks for an earlier job with the same key before anything else: it is returned even if its node was removed or would
/// refuse the job now. It looks again only if another request with the same key may have been accepted in the meantime.
pub(crate) async fn accept_command(
    deps: &WebDeps,
    registry: &Registry,
    client: &ApiClient,
    command: &JobCommand,
    trace: TraceContext,
) -> Result<Accepted, ApiError> {
    auth::require_scope(client, Scope::JobsSubmit)?;
    if !client.acts_for(&command.tenant_id, &command.workspace_id) {
        return Err(ApiError::not_for_that_tenant());
    }
    let node = registry.node(&command.management_node_id).filter(|node| node.is_open_to(&command.tenant_id));
    if let Some(earlier) = find_earlier(deps, command, node.is_some()).await? {
        return Ok(earlier);
    }
    let node = node.ok_or(ApiError::ManagementNodeNotFound)?;
    match submit_new(deps, command, &node, trace).await? {
        NewJobResult::Accepted(job) => Ok(Accepted { job: *job, replayed: false }),
        NewJobResult::Overtaken(error) => find_earlier(deps, command, true).await?.ok_or(error),
    }
}

/// The job that was accepted earlier with this key, if there is one. Fails with a conflict if its command differs.
async fn find_earlier(deps: &WebDeps, command: &JobCommand, node_is_known: bool) -> Result<Option<Accepted>, ApiError> {
    let Some(found) = deps.store.find_job(JobLookup::Key(command.key())).await? else { return Ok(None) };
    let earlier = JobCommand::of_forwarded(&found.payload).ok_or(ApiError::Internal)?;
    let fields = earlier.differences(command);
    match (fields.is_empty(), node_is_known) {
        (true, _) => Ok(Some(Accepted { job: found.job, replayed: true })),
        (false, false) => Err(ApiError::ManagementNodeNotFound),
        (false, true) => {
            let Job { id, intent, .. } = found.job;
            Err(ApiError::JobConflict { id, fields, status: intent.state.status() })
        }
    }
}

/// The result of submitting a job for which no earlier one was found.
enum NewJobResult {
    Accepted(Box<Job>),
    /// Another request with the same key was accepted in the meantime, or may have been. The error is the response if
    /// that job turns out not to exist.
    Overtaken(ApiError),
}

async fn submit_new(
    deps: &WebDeps,
    command: &JobCommand,
    node: &ManagementNode,
    trace: TraceContext,
) -> Result<NewJobResult, ApiError> {
    let breaches = node.breaches(command);
    if !breaches.is_empty() {
        return Err(ApiError::PolicyRejected(breaches));
    }
    let gateway = node.contract.contract.gateway_url.clone();
    if node.state == NodeState::Draining {
        return Err(ApiError::ExecutionUnavailable("is draining and accepts no new jobs"));
    }
    if !deps.store.admits_jobs(gateway).await? {
        // The one job that probes the node may have the same key.
        return Ok(NewJobResult::Overtaken(ApiError::ExecutionUnavailable("is not responding")));
    }
    let id = SubmissionId::from_random(id_bytes()?);
    let forwarded = command.forwarded(id).map_err(|error| {
        log::error!("job_not_forwardable error={error}");
        ApiError::Internal
    })?;
    let facts = JobFacts::from(command);
    let new = NewIntent {
        id: IntentId::of_job(id),
        contract: std::sync::Arc::clone(&node.contract),
        payload: Payload::new(forwarded.into()),
        not_before: None,
        redrive: None,
        trace: Some(trace),
        job: Some(NewJob { id, key: command.key(), facts: facts.clone() }),
    };
    match deps.store.submit(new).await? {
        Submitted::Created(intent) => {
            Ok(NewJobResult::Accepted(Box::new(Job { id, facts, trace: Some(trace), intent })))
        }
        Submitted::Existing(intent) if mutated!(JobGetsSecondId) => {
            Ok(NewJobResult::Accepted(Box::new(Job { id, facts, trace: Some(trace), intent })))
        }
        Submitted::Existing(_) => Ok(NewJobResult::Overtaken(ApiError::StoreUnavailable)),
        Submitted::Conflict(_) | Submitted::TooFarAhead | Submitted::AlreadyRedriven => Err(ApiError::Internal),
    }
}

/// Logs one line for every valid command, accepted or refused. The line of a conflict has the id of the earlier job.
fn log_result(client_id: &str, command: &JobCommand, trace: TraceContext, result: &Result<Accepted, ApiError>) {
    let tags = |id| JobFacts::from(command).tags(Some(trace), id);
    match result {
        Ok(Accepted { job, replayed: false }) => {
            log::info!("job_accepted {} client_id={client_id:?}", tags(Some(job.id)));
        }
        Ok(Accepted { job, replayed: true }) => {
            log::info!("job_replayed {} client_id={client_id:?}", tags(Some(job.id)));
        }
        Err(error) => {
            let id = if let ApiError::JobConflict { id, .. } = error { Some(*id) } else { None };
            log::info!("job_refused {} client_id={client_id:?} code={}", tags(id), error.code());
        }
    }
}
