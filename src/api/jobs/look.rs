//! `GET /v1/jobs…`: what became of a job, told to its tenant alone.

use actix_web::{HttpRequest, HttpResponse, web};

use super::json::{JobErrorJson, JobHistoryJson, JobJson, JobListJson, JobRefused};
use super::{JobError, closed, within};
use crate::api::intents::{moment_of, page_limit};
use crate::domain::client::{Scope, Workspaces};
use crate::domain::intent::{IntentId, Status, checked_name};
use crate::domain::job::SubmissionId;
use crate::store::{Attempt, Job, JobCursor, JobLookup, JobPage, JobQuery};
use crate::web::error::ApiError;
use crate::web::query::Query;
use crate::web::trace::given_or_new;
use crate::web::{WebDeps, auth};

/// Look up a job
#[utoipa::path(get, path = "/v1/jobs/{submission_id}", tag = "jobs", operation_id = "getJob",
    security(("bearer" = ["jobs:read"])),
    params(("submission_id" = String, Path, description = "As the answer to the submission said")),
    responses(
        (status = 200, body = JobJson, description = "The job"),
        (status = 404, body = JobErrorJson, description = "No such job, as far as this tenant is concerned"),
        JobRefused,
    ))]
pub async fn get(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, JobError> {
    let job = own_job(&request, &deps, &path).await;
    within(given_or_new(&request), job.map(|job| HttpResponse::Ok().json(JobJson::from(&job))))
}

/// A job with every attempt
#[utoipa::path(get, path = "/v1/jobs/{submission_id}/history", tag = "jobs", operation_id = "getJobHistory",
    security(("bearer" = ["jobs:read"])),
    params(("submission_id" = String, Path, description = "As the answer to the submission said")),
    responses(
        (status = 200, body = JobHistoryJson, description = "The job and its attempts in order"),
        (status = 404, body = JobErrorJson, description = "No such job, as far as this tenant is concerned"),
        JobRefused,
    ))]
pub async fn history(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, JobError> {
    let trace = given_or_new(&request);
    let found = own_history(&request, &deps, &path).await;
    let shown = found.map(|(job, attempts)| {
        HttpResponse::Ok().json(JobHistoryJson {
            job: (&job).into(),
            attempts: attempts.iter().map(Into::into).collect(),
            trace_id: trace.trace_id(),
        })
    });
    within(trace, shown)
}

async fn own_history(request: &HttpRequest, deps: &WebDeps, id: &str) -> Result<(Job, Vec<Attempt>), ApiError> {
    let job = own_job(request, deps, id).await?;
    let history = deps.store.history(IntentId::of_job(job.id)).await?.ok_or_else(|| no_such_job(id))?;
    Ok((Job { intent: history.intent, ..job }, history.attempts))
}

/// The job of that id, if the caller acts for its tenant and workspace. Whether it is somebody else's or
/// nobody's takes the same look at the store and gets the same answer.
async fn own_job(request: &HttpRequest, deps: &WebDeps, id: &str) -> Result<Job, ApiError> {
    let registry = deps.registry.get();
    if !registry.takes_jobs() {
        return Err(closed());
    }
    let client = auth::caller(request, &registry)?;
    auth::in_scope(&client, Scope::JobsRead)?;
    let lookup = JobLookup::Id(SubmissionId::parse(id).ok_or_else(|| no_such_job(id))?);
    let found = deps.store.find_job(lookup).await?;
    let own = found.filter(|found| client.acts_for(&found.job.facts.tenant_id, &found.job.facts.workspace_id));
    own.map(|found| found.job).ok_or_else(|| no_such_job(id))
}

fn no_such_job(id: &str) -> ApiError {
    ApiError::NotFound(format!("there is no job {id:?}"))
}

/// List the jobs of a tenant, newest first
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", operation_id = "listJobs",
    security(("bearer" = ["jobs:read"])),
    params(
        ("tenant_id" = String, Query, description = "Whose"),
        ("workspace_id" = Option<String>, Query, description = "Only of this workspace; else of all that the token is for"),
        ("job_id" = Option<String>, Query, description = "Only with this id of the tenant's"),
        ("status" = Option<crate::domain::intent_json::StatusName>, Query, description = "Only these"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "How many on a page: 50, or up to 200"),
        ("cursor" = Option<String>, Query, description = "next_cursor of the page before"),
    ),
    responses(
        (status = 200, body = JobListJson, description = "A page of jobs"),
        (status = 400, body = JobErrorJson, description = "A parameter is not right"),
        (status = 404, body = JobErrorJson, description = "Jobs are not enabled: SM_NODES or SM_API_CLIENTS is not set"),
        JobRefused,
    ))]
pub async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, JobError> {
    let trace = given_or_new(&request);
    let page = own_jobs(&request, &deps).await;
    let shown = page.map(|page| {
        HttpResponse::Ok().json(JobListJson {
            jobs: page.jobs.iter().map(Into::into).collect(),
            next_cursor: page.next.as_ref().map(cursor_text),
            trace_id: trace.trace_id(),
        })
    });
    within(trace, shown)
}

async fn own_jobs(request: &HttpRequest, deps: &WebDeps) -> Result<JobPage, ApiError> {
    let registry = deps.registry.get();
    if !registry.takes_jobs() {
        return Err(closed());
    }
    let client = auth::caller(request, &registry)?;
    let mut query = list_query(request.query_string())?;
    let missing = || ApiError::InvalidRequest("tenant_id is missing; jobs are listed for one tenant".to_owned());
    let tenant = query.tenant.as_deref().ok_or_else(missing)?;
    auth::in_scope(&client, Scope::JobsRead)?;
    query.workspaces = match (client.tenants.get(tenant), query.workspaces) {
        (Some(allowed), Some(asked)) if asked.iter().all(|name| allowed.include(name)) => Some(asked),
        (Some(Workspaces::All), None) => None,
        (Some(Workspaces::Only(names)), None) => Some(names.iter().cloned().collect()),
        _ => return Err(ApiError::not_for_that_tenant()),
    };
    Ok(deps.store.list_jobs(query).await?)
}

/// Also what the console is asked for, which knows no tenants of its own.
pub fn list_query(text: &str) -> Result<JobQuery, ApiError> {
    let query = Query::parse(text, &["tenant_id", "workspace_id", "job_id", "status", "limit", "cursor"])?;
    let name = |name, what| query.get(name, what, |text| checked_name(text).ok().map(|name| name.to_string()));
    Ok(JobQuery {
        tenant: name("tenant_id", "the name of a tenant")?,
        workspaces: name("workspace_id", "the name of a workspace")?.map(|name| vec![name]),
        job_id: name("job_id", "a tenant's id of a job")?,
        status: query.get("status", "pending, accepted, rejected or exhausted", Status::parse)?,
        limit: page_limit(&query)?,
        after: query.get("cursor", "the next_cursor of a page before", cursor_of)?,
    })
}

/// Where a page ended, in terms that its tenant knows anyway.
pub fn cursor_text(place: &JobCursor) -> String {
    format!("{:x}.{}", place.accepted_at.micros(), place.id)
}

/// Taken back only as it was given.
fn cursor_of(text: &str) -> Option<JobCursor> {
    let (micros, id) = text.split_once('.')?;
    let place = JobCursor { accepted_at: moment_of(micros)?, id: SubmissionId::parse(id)? };
    (cursor_text(&place) == text).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::job::fixtures::submission_id;
    use crate::domain::time::Timestamp;

    #[test]
    fn cursors_are_taken_back_only_as_they_were_given() {
        let place = JobCursor { accepted_at: Timestamp::from_micros(4711), id: submission_id(3) };
        assert_eq!(cursor_of(&cursor_text(&place)), Some(place));
        let id = place.id;
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
            assert_eq!(cursor_of(text), None, "{text}");
        }
    }
}
