//! `POST /v1/jobs/{submission_id}/cancel`: end a job that waits for an attempt.

use actix_web::{HttpRequest, HttpResponse, web};

use super::json::{CancelledJobJson, CommonJobErrors, JobErrorJson, JobJson};
use super::queries::{no_such_job, own_job};
use super::{JobError, with_trace};
use crate::api::cancel::{Cancelled, after_attempt, cancel};
use crate::domain::client::Scope;
use crate::domain::intent::IntentId;
use crate::store::Job;
use crate::web::WebDeps;
use crate::web::actor::actor_of;
use crate::web::error::ApiError;
use crate::web::trace::of_request_or_new;

/// Cancel a job
///
/// Ends a job that waits for an attempt: its status becomes `exhausted` with the reason `cancelled`. Cancelling it again
/// returns the same response. If an attempt is in progress, the call fails, unless `afterAttempt=true` is given: then the
/// attempt finishes and its outcome counts, so an accepted job stays accepted, and no further attempt starts.
#[utoipa::path(post, path = "/v1/jobs/{submission_id}/cancel", tag = "jobs", operation_id = "cancelJob",
    security(("bearer" = ["jobs:submit"])),
    params(
        ("submission_id" = String, Path, description = "The `submission_id` of the job"),
        ("afterAttempt" = Option<bool>, Query, description = "If an attempt is in progress, cancel the job after it"),
    ),
    responses(
        (status = 200, body = CancelledJobJson, description = "The job is cancelled"),
        (status = 202, body = CancelledJobJson, description = "An attempt is in progress; no further attempt starts after it"),
        (status = 400, body = JobErrorJson, description = "A parameter is invalid"),
        (status = 404, body = JobErrorJson, description = "No such job, or it belongs to another tenant or workspace; or jobs are not enabled"),
        (status = 409, body = JobErrorJson, description = "An attempt is in progress (`attempt_in_progress`), or the job has ended for another reason (`already_terminal`)"),
        CommonJobErrors,
    ))]
pub(crate) async fn cancel_job(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, JobError> {
    with_trace(of_request_or_new(&request), cancel_own(&request, &deps, &path).await)
}

async fn cancel_own(request: &HttpRequest, deps: &WebDeps, id: &str) -> Result<HttpResponse, ApiError> {
    let job = own_job(request, deps, id, Scope::JobsSubmit).await?;
    let after_attempt = after_attempt(request.query_string())?;
    let by = actor_of(request)?;
    let cancellation = cancel(deps, IntentId::of_job(job.id), after_attempt, by).await?;
    let cancelled = Cancelled::of(cancellation)?.ok_or_else(|| no_such_job(id))?;
    let intent = cancelled.intent().clone();
    let may_have_been_sent = intent.attempt_count > 0;
    let job = Job { intent, ..job };
    Ok(cancelled.status().json(CancelledJobJson { job: JobJson::from(&job), may_have_been_sent }))
}
