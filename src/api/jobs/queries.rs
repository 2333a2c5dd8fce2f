//! `GET /v1/jobs…`: get and list jobs. Only callers that act for a job's tenant and workspace see it.

use actix_web::{HttpRequest, HttpResponse, web};

use super::json::{CommonJobErrors, JobErrorJson, JobHistoryJson, JobJson, JobListJson};
use super::{JobError, require_enabled, with_trace};
use crate::api::intents::{cursor_time, page_limit};
use crate::domain::client::{ApiClient, Scope, Workspaces};
use crate::domain::intent::{IntentId, Status, checked_name};
use crate::domain::job::SubmissionId;
use crate::store::{Attempt, Job, JobCursor, JobLookup, JobPage, JobQuery};
use crate::web::error::ApiError;
use crate::web::query::Query;
use crate::web::trace::of_request_or_new;
use crate::web::{WebDeps, auth};

/// Get a job
#[utoipa::path(get, path = "/v1/jobs/{submission_id}", tag = "jobs", operation_id = "getJob",
    security(("bearer" = ["jobs:read"])),
    params(("submission_id" = String, Path, description = "The `submission_id` of the job")),
    responses(
        (status = 200, body = JobJson, description = "The job"),
        (status = 404, body = JobErrorJson, description = "No such job, or it belongs to another tenant or workspace; or jobs are not enabled"),
        CommonJobErrors,
    ))]
pub(crate) async fn get(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, JobError> {
    let job = own_job(&request, &deps, &path, Scope::JobsRead).await;
    with_trace(of_request_or_new(&request), job.map(|job| HttpResponse::Ok().json(JobJson::from(&job))))
}

/// Get a job with all its attempts
#[utoipa::path(get, path = "/v1/jobs/{submission_id}/history", tag = "jobs", operation_id = "getJobHistory",
    security(("bearer" = ["jobs:read"])),
    params(("submission_id" = String, Path, description = "The `submission_id` of the job")),
    responses(
        (status = 200, body = JobHistoryJson, description = "The job and its attempts in order"),
        (status = 404, body = JobErrorJson, description = "No such job, or it belongs to another tenant or workspace; or jobs are not enabled"),
        CommonJobErrors,
    ))]
pub(crate) async fn history(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, JobError> {
    let trace = of_request_or_new(&request);
    let found = own_history(&request, &deps, &path).await;
    let response = found.map(|(job, attempts)| {
        HttpResponse::Ok().json(JobHistoryJson {
            job: (&job).into(),
            attempts: attempts.iter().map(Into::into).collect(),
            trace_id: trace.trace_id(),
        })
    });
    with_trace(trace, response)
}

async fn own_history(request: &HttpRequest, deps: &WebDeps, id: &str) -> Result<(Job, Vec<Attempt>), ApiError> {
    let job = own_job(request, deps, id, Scope::JobsRead).await?;
    let history = deps.store.history(IntentId::of_job(job.id)).await?.ok_or_else(|| no_such_job(id))?;
    Ok((Job { intent: history.intent, ..job }, history.attempts))
}

/// The job with this id, if the caller acts for its tenant and workspace. A job of another tenant and one that does not
/// exist take the same store read and get the same 404, so a caller cannot tell them apart.
pub(super) async fn own_job(request: &HttpRequest, deps: &WebDeps, id: &str, scope: Scope) -> Result<Job, ApiError> {
    let registry = deps.registry.get();
    require_enabled(&registry)?;
    let client = auth::caller(request, &registry)?;
    auth::require_scope(&client, scope)?;
    let lookup = JobLookup::Id(SubmissionId::parse(id).ok_or_else(|| no_such_job(id))?);
    let found = deps.store.find_job(lookup).await?;
    let own = found.filter(|found| client.acts_for(&found.job.facts.tenant_id, &found.job.facts.workspace_id));
    own.map(|found| found.job).ok_or_else(|| no_such_job(id))
}

pub(super) fn no_such_job(id: &str) -> ApiError {
    ApiError::NotFound(format!("no such job: {id:?}"))
}

/// List the jobs of a tenant, newest first
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", operation_id = "listJobs",
    security(("bearer" = ["jobs:read"])),
    params(
        ("tenant_id" = String, Query, description = "The tenant"),
        ("workspace_id" = Option<String>, Query, description = "Only jobs of this workspace; by default all workspaces that the token covers"),
        ("job_id" = Option<String>, Query, description = "Only jobs with this `job_id`"),
        ("status" = Option<crate::domain::intent_json::StatusName>, Query, description = "Only jobs with this status"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 50 by default; values above 200 count as 200"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses(
        (status = 200, body = JobListJson, description = "A page of jobs"),
        (status = 400, body = JobErrorJson, description = "A parameter is invalid"),
        (status = 404, body = JobErrorJson, description = "Jobs are not enabled: SM_NODES or SM_API_CLIENTS is not set"),
        CommonJobErrors,
    ))]
pub(crate) async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, JobError> {
    let trace = of_request_or_new(&request);
    let page = own_jobs(&request, &deps).await;
    let response = page.map(|page| {
        HttpResponse::Ok().json(JobListJson {
            jobs: page.jobs.iter().map(Into::into).collect(),
            next_cursor: page.next.as_ref().map(cursor_text),
            trace_id: trace.trace_id(),
        })
    });
    with_trace(trace, response)
}

/// A page of the jobs that the caller may see.
async fn own_jobs(request: &HttpRequest, deps: &WebDeps) -> Result<JobPage, ApiError> {
    let registry = deps.registry.get();
    require_enabled(&registry)?;
    let client = auth::caller(request, &registry)?;
    let mut query = list_query(request.query_string())?;
    let missing = || ApiError::InvalidRequest("the parameter tenant_id is missing".to_owned());
    let tenant = query.tenant.as_deref().ok_or_else(missing)?;
    auth::require_scope(&client, Scope::JobsRead)?;
    query.workspaces = visible_workspaces(&client, tenant, query.workspaces)?;
    Ok(deps.store.list_jobs(query).await?)
}

/// Which workspaces of the tenant a list for this client has: those that it asks for, or else all that it may see. `None` is
/// all of the tenant.
pub(super) fn visible_workspaces(
    client: &ApiClient,
    tenant: &str,
    asked_for: Option<Vec<String>>,
) -> Result<Option<Vec<String>>, ApiError> {
    match (client.tenants.get(tenant), asked_for) {
        (Some(allowed), Some(names)) if names.iter().all(|name| allowed.include(name)) => Ok(Some(names)),
        (Some(Workspaces::All), None) => Ok(None),
        (Some(Workspaces::Only(names)), None) => Ok(Some(names.iter().cloned().collect())),
        _ => Err(ApiError::not_for_that_tenant()),
    }
}

/// Parses the query string of a list of jobs. The console accepts the same parameters, but without `tenant_id` it lists the
/// jobs of all tenants.
pub fn list_query(text: &str) -> Result<JobQuery, ApiError> {
    let query = Query::parse(text, &["tenant_id", "workspace_id", "job_id", "status", "limit", "cursor"])?;
    let name = |name, what| query.get(name, what, |text| checked_name(text).ok().map(|name| name.to_string()));
    Ok(JobQuery {
        tenant: name("tenant_id", "the name of a tenant")?,
        workspaces: name("workspace_id", "the name of a workspace")?.map(|name| vec![name]),
        job_id: name("job_id", "the job_id of a job")?,
        status: query.get("status", "pending, accepted, rejected or exhausted", Status::parse)?,
        limit: page_limit(&query)?,
        after: query.get("cursor", "the next_cursor of the previous page", parse_cursor)?,
    })
}

/// The text of a cursor. It has only values that the tenant has seen: a sequence number would tell one tenant how many jobs
/// others submit.
pub fn cursor_text(cursor: &JobCursor) -> String {
    format!("{:x}.{}", cursor.accepted_at.micros(), cursor.id)
}

/// Parses a cursor. Accepts only text that [`cursor_text`] produces.
fn parse_cursor(text: &str) -> Option<JobCursor> {
    let (micros, id) = text.split_once('.')?;
    let cursor = JobCursor { accepted_at: cursor_time(micros)?, id: SubmissionId::parse(id)? };
    (cursor_text(&cursor) == text).then_some(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::job::fixtures::submission_id;
    use crate::domain::time::Timestamp;

    #[test]
    fn only_cursors_of_this_service_are_accepted() {
        let cursor = JobCursor { accepted_at: Timestamp::from_micros(4711), id: submission_id(3) };
        assert_eq!(parse_cursor(&cursor_text(&cursor)), Some(cursor));
        let id = cursor.id;
        for text in [
            "",
            "1",
            "7fffffffffffffff.01010101-0101-4101-8101-010101010101",
            &format!("01.{id}"),
            &format!("-1.{id}"),
            &format!("A.{id}"),
            "1.x",
            &format!("1.{id} "),
        ] {
            assert_eq!(parse_cursor(text), None, "{text}");
        }
    }
}
