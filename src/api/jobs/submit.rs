//! `POST /v1/jobs`: take a job, once per key.

use actix_web::{HttpRequest, HttpResponse, web};

use super::command;
use super::json::{AcceptedJson, JobErrorJson, JobRefused};
use super::{JobError, closed, within};
use crate::config::registry::Registry;
use crate::domain::client::{ApiClient, Scope};
use crate::domain::intent::{IntentId, Payload};
use crate::domain::job::{JobCommand, SubmissionId};
use crate::domain::node::{ManagementNode, NodeState};
use crate::domain::trace::TraceContext;
use crate::store::{FoundJob, Job, JobFacts, JobLookup, NewIntent, NewJob, Submitted};
use crate::web::WebDeps;
use crate::web::auth;
use crate::web::body;
use crate::web::error::ApiError;
use crate::web::trace::given_or_new;

/// A command is names and one URI.
const MAX_COMMAND_BYTES: usize = 64 * 1024;

/// Submit a job for a management node
///
/// Answers as soon as the job is durable; it is handed to its node at once. The same command with the
/// same key is safe to repeat and gets the first answer; only `requested_by.session_id` may differ.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", operation_id = "submitJob",
    security(("bearer" = ["jobs:submit"])),
    params(("traceparent" = Option<String>, Header, description = "W3C trace context; passed on to the node")),
    request_body = JobCommand,
    responses(
        (status = 202, body = AcceptedJson, description = "The job was taken, now or before"),
        (status = 400, body = JobErrorJson, description = "The command is not right; every fault is named"),
        JobRefused,
        (status = 404, body = JobErrorJson, description = "No such node, or none that this tenant may use; or jobs are not enabled"),
        (status = 408, body = JobErrorJson, description = "The body did not arrive in time"),
        (status = 409, body = JobErrorJson, description = "The key was used for another command"),
        (status = 413, body = JobErrorJson, description = "The command is too large"),
        (status = 422, body = JobErrorJson, description = "The node's rules do not allow it; each that is broken is named"),
    ))]
pub async fn submit(
    request: HttpRequest,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, JobError> {
    let trace = given_or_new(&request);
    let taken = take(&request, payload, &deps, trace).await;
    deps.metrics.job_answered(match &taken {
        Ok((_, Taken::Now)) => "accepted",
        Ok((_, Taken::Before)) => "replayed",
        Err(error) => error.code(),
    });
    within(trace, taken.map(|(job, _)| HttpResponse::Accepted().json(AcceptedJson::from(&job))))
}

enum Taken {
    Now,
    Before,
}

async fn take(
    request: &HttpRequest,
    payload: web::Payload,
    deps: &WebDeps,
    trace: TraceContext,
) -> Result<(Job, Taken), ApiError> {
    let registry = deps.registry.get();
    if !registry.takes_jobs() {
        return Err(closed());
    }
    let client = auth::caller(request, &registry)?;
    let (body, _room) = body::read(payload, MAX_COMMAND_BYTES).await?;
    let command = command::parse(&body)?;
    let result = take_command(deps, &registry, &client, &command, trace).await;
    log_answer(&client.id, &command, trace, &result);
    result
}

async fn take_command(
    deps: &WebDeps,
    registry: &Registry,
    client: &ApiClient,
    command: &JobCommand,
    trace: TraceContext,
) -> Result<(Job, Taken), ApiError> {
    auth::in_scope(client, Scope::JobsSubmit)?;
    if !client.acts_for(&command.tenant_id, &command.workspace_id) {
        return Err(ApiError::not_for_that_tenant());
    }
    let node = registry.node(&command.management_node_id).filter(|node| node.is_open_to(&command.tenant_id));
    match deps.store.find_job(JobLookup::Key(command.key())).await? {
        Some(found) => replayed(command, found, node.is_some()),
        None => submit_new(deps, command, node.as_deref(), trace).await,
    }
}

/// The first answer again, if the command asks for the same.
fn replayed(command: &JobCommand, found: FoundJob, node_is_known: bool) -> Result<(Job, Taken), ApiError> {
    let before = JobCommand::of_forwarded(&found.payload).ok_or(ApiError::Internal)?;
    let fields = before.differences(command);
    match (fields.is_empty(), node_is_known) {
        (true, _) => Ok((found.job, Taken::Before)),
        (false, false) => Err(ApiError::ManagementNodeNotFound),
        (false, true) => {
            let Job { id, intent, .. } = found.job;
            Err(ApiError::JobConflict { id, fields, status: intent.state.status() })
        }
    }
}

async fn submit_new(
    deps: &WebDeps,
    command: &JobCommand,
    node: Option<&ManagementNode>,
    trace: TraceContext,
) -> Result<(Job, Taken), ApiError> {
    let node = node.ok_or(ApiError::ManagementNodeNotFound)?;
    let breaches = node.breaches(command);
    if !breaches.is_empty() {
        return Err(ApiError::PolicyRejected(breaches));
    }
    let gateway = node.contract.contract.gateway_url.clone();
    if node.state == NodeState::Draining {
        return Err(ApiError::ExecutionUnavailable("is draining and takes no new jobs"));
    }
    if !deps.store.admits_jobs(gateway).await? {
        // Whoever tries it now may be somebody with the same key.
        return match deps.store.find_job(JobLookup::Key(command.key())).await? {
            Some(found) => replayed(command, found, true),
            None => Err(ApiError::ExecutionUnavailable("does not answer")),
        };
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| {
        log::error!("no_random_numbers error={error}");
        ApiError::Internal
    })?;
    let id = SubmissionId::from_random(random);
    let forwarded = command.forwarded(id).map_err(|error| {
        log::error!("job_not_forwardable error={error}");
        ApiError::Internal
    })?;
    let facts = JobFacts::from(command);
    let new = NewIntent {
        id: IntentId::of_job(id),
        contract: std::sync::Arc::clone(&node.contract),
        payload: Payload::new(forwarded.into()),
        trace: Some(trace),
        job: Some(NewJob { id, key: command.key(), facts: facts.clone() }),
    };
    match deps.store.submit(new).await? {
        Submitted::Created(intent) => Ok((Job { id, facts, trace: Some(trace), intent }, Taken::Now)),
        // Somebody was faster with the same key.
        Submitted::Existing(_) => match deps.store.find_job(JobLookup::Key(command.key())).await? {
            Some(found) => replayed(command, found, true),
            None => Err(ApiError::StoreUnavailable),
        },
        Submitted::Conflict(_) => Err(ApiError::Internal),
    }
}

/// One line for every command that was understood, whatever was answered. Of a refused one the id is that of the job which
/// has its key, if there is one.
fn log_answer(client_id: &str, command: &JobCommand, trace: TraceContext, result: &Result<(Job, Taken), ApiError>) {
    let tags = |id| JobFacts::from(command).tags(Some(trace), id);
    match result {
        Ok((job, Taken::Now)) => log::info!("job_accepted {} client_id={client_id:?}", tags(Some(job.id))),
        Ok((job, Taken::Before)) => log::info!("job_replayed {} client_id={client_id:?}", tags(Some(job.id))),
        Err(error) => {
            let id = if let ApiError::JobConflict { id, .. } = error { Some(*id) } else { None };
            log::info!("job_refused {} client_id={client_id:?} code={}", tags(id), error.code());
        }
    }
}
