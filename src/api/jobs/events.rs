//! `GET /v1/jobs/events…`: how the jobs of a tenant ended, as pages and as a stream.

use actix_web::http::Method;
use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::json::{CommonJobErrors, JobErrorJson, JobJson};
use super::queries::visible_workspaces;
use super::{JobError, require_enabled, with_trace};
use crate::api::events::cursor::FeedKind;
use crate::api::events::reader::{Feed, FeedReader};
use crate::api::events::stream::SentEventJson;
use crate::api::events::{cursor_of, more, page_limit, raw, read, start_of_stream, stream as sse, wait_seconds};
use crate::domain::client::Scope;
use crate::domain::intent::checked_name;
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::domain::webhook::event_id;
use crate::store::{EventFilter, Job};
use crate::web::error::ApiError;
use crate::web::query::Query;
use crate::web::trace::of_request_or_new;
use crate::web::{WebDeps, auth};

/// The type of all events of jobs.
const EVENT_TYPE: &str = "job.terminal";

/// A job has ended.
#[derive(Serialize, ToSchema)]
#[schema(as = JobEvent)]
pub(in crate::api) struct JobEventJson<'a> {
    /// The id of the event, which is always the same.
    #[schema(example = "evt_0123456789abcdef0123456789abcdef")]
    event_id: String,
    /// `job.terminal`, the only type of event.
    #[schema(value_type = String, example = "job.terminal")]
    event_type: &'static str,
    /// When the job ended: its `completed_at`.
    #[schema(value_type = String, format = DateTime)]
    occurred_at: Timestamp,
    job: JobJson<'a>,
}

impl<'a> From<&'a Job> for JobEventJson<'a> {
    fn from(job: &'a Job) -> Self {
        Self {
            event_id: event_id(&job.intent),
            event_type: EVENT_TYPE,
            // Only jobs that have ended have an event.
            occurred_at: job.intent.state.completed_at().unwrap_or(job.intent.created_at),
            job: job.into(),
        }
    }
}

/// A page of events of jobs.
#[derive(Serialize, ToSchema)]
#[schema(as = JobEventList)]
struct JobEventListJson<'a> {
    #[schema(value_type = Vec<JobEventJson>)]
    events: Vec<&'a RawValue>,
    /// Pass this as `after` to get the next events.
    #[schema(example = "j65c0b2f3c5d40")]
    next_cursor: String,
    /// `true` if there may be more events already: send the next request immediately. Absent at the end of the feed.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<bool>,
    /// The trace of this request.
    trace_id: String,
}

/// Read events of a tenant's jobs
///
/// An event says that a job has reached its final status. The feed has the events of the tenant's jobs in the order in which
/// they were stored. A reader that always passes `next_cursor` of the last response as `after` gets every event once, from any
/// instance.
#[utoipa::path(get, path = "/v1/jobs/events", tag = "jobs", operation_id = "listJobEvents",
    security(("bearer" = ["jobs:read"])),
    params(
        ("tenant_id" = String, Query, description = "The tenant"),
        ("workspace_id" = Option<String>, Query, description = "Only jobs of this workspace; by default all workspaces that the token covers"),
        ("after" = Option<String>, Query, description = "`next_cursor` of the previous response, or `now` for the end of the feed; by default the oldest event that is kept"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 100 by default; values above 1,000 count as 1,000"),
        ("wait_seconds" = Option<u64>, Query, description = "If there are no events yet, wait for one, but at most this many seconds; values above 30 count as 30"),
    ),
    responses(
        (status = 200, body = JobEventListJson, description = "The next events. The list may be empty although more events follow; `next_cursor` advances in any case"),
        (status = 400, body = JobErrorJson, description = "A parameter is invalid, or the cursor is of another list or another store"),
        (status = 404, body = JobErrorJson, description = "Jobs are not enabled: SM_NODES or SM_API_CLIENTS is not set"),
        (status = 410, body = JobErrorJson, description = "`cursor_expired`: events after the cursor were deleted"),
        CommonJobErrors,
    ))]
pub(crate) async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, JobError> {
    let trace = of_request_or_new(&request);
    let page = page(&request, &deps, trace).await;
    with_trace(trace, page)
}

async fn page(request: &HttpRequest, deps: &WebDeps, trace: TraceContext) -> Result<HttpResponse, ApiError> {
    let known = ["tenant_id", "workspace_id", "after", "limit", "wait_seconds"];
    let (query, filter) = own_events(request, deps, &known)?;
    let after = cursor_of(&query, FeedKind::Jobs)?;
    let mut reader = FeedReader::new(deps.clone(), Feed { kind: FeedKind::Jobs, filter, after });
    let events = read(&mut reader, page_limit(&query)?, wait_seconds(&query, "wait_seconds")?).await?;
    let (events, next_cursor, more) = (raw(&events)?, reader.cursor(), more(&reader));
    Ok(HttpResponse::Ok().json(JobEventListJson { events, next_cursor, more, trace_id: trace.trace_id() }))
}

/// Follow events of a tenant's jobs
///
/// The same events as server-sent events: `event` is the type of the event, `data` the event, and `id` the cursor after
/// it. The stream ends after an hour, and when the client reads too slowly, the token is no longer valid or the
/// instance stops. Then connect again with `Last-Event-ID`. While there are no events, a comment is sent every 15 s;
/// its `id` is a newer cursor.
#[utoipa::path(get, path = "/v1/jobs/events/stream", tag = "jobs", operation_id = "streamJobEvents",
    security(("bearer" = ["jobs:read"])),
    params(
        ("tenant_id" = String, Query, description = "The tenant"),
        ("workspace_id" = Option<String>, Query, description = "Only jobs of this workspace; by default all workspaces that the token covers"),
        ("after" = Option<String>, Query, description = "A cursor, or `now` for the end of the feed; by default the oldest event that is kept"),
        ("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last event that the client got; it takes precedence over `after`"),
    ),
    responses(
        (status = 200, body = inline(SentEventJson), content_type = "text/event-stream", description = "Server-sent events, each with these fields"),
        (status = 400, body = JobErrorJson, description = "A parameter is invalid, or the cursor is of another list or another store"),
        (status = 404, body = JobErrorJson, description = "Jobs are not enabled: SM_NODES or SM_API_CLIENTS is not set"),
        (status = 410, body = JobErrorJson, description = "`cursor_expired`: events after the cursor were deleted"),
        CommonJobErrors,
    ))]
pub(crate) async fn stream(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, JobError> {
    let trace = of_request_or_new(&request);
    let response = own_stream(request, &deps).await;
    with_trace(trace, response)
}

async fn own_stream(request: HttpRequest, deps: &web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let known = ["tenant_id", "workspace_id", "after"];
    let (query, filter) = own_events(&request, deps, &known)?;
    let after = start_of_stream(&request, &query, FeedKind::Jobs)?;
    let feed = Feed { kind: FeedKind::Jobs, filter: filter.clone(), after };
    let (is_head, checked) = (*request.method() == Method::HEAD, deps.clone());
    // A client whose rights have changed connects again, and then gets what it may see.
    let is_allowed = move || own_events(&request, &checked, &known).is_ok_and(|(_, allowed)| allowed == filter);
    sse::respond(deps, is_head, FeedReader::new(deps.as_ref().clone(), feed), EVENT_TYPE, is_allowed).await
}

/// Parses the query string, and returns which events the caller may see.
fn own_events(request: &HttpRequest, deps: &WebDeps, known: &[&str]) -> Result<(Query, EventFilter), ApiError> {
    let registry = deps.registry.get();
    require_enabled(&registry)?;
    let client = auth::caller(request, &registry)?;
    let query = Query::parse(request.query_string(), known)?;
    let name = |name, what| query.get(name, what, |text| checked_name(text).ok().map(|name| name.to_string()));
    let missing = || ApiError::InvalidRequest("the parameter tenant_id is missing".to_owned());
    let tenant = name("tenant_id", "the name of a tenant")?.ok_or_else(missing)?;
    let workspaces = name("workspace_id", "the name of a workspace")?.map(|name| vec![name]);
    auth::require_scope(&client, Scope::JobsRead)?;
    let workspaces = visible_workspaces(&client, &tenant, workspaces)?;
    Ok((query, EventFilter::Jobs { tenant, workspaces }))
}
