//! `/v1/redrives`: plan and run redrives in bulk. [`single`] redrives one intent.

pub mod json;
pub mod single;

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use self::json::{PlanRequest, RedriveJson, RedriveListJson, StartRequest};
use super::intents::page_limit;
use super::json::{CommonErrors, ErrorJson};
use crate::domain::actor::Actor;
use crate::domain::redrive::{MAX_PLANNED, RedriveChange, RedriveFilter, RedriveId, RedriveRate};
use crate::store::{ChangedRedrive, NewRedrive, Planning, Redrive};
use crate::web::error::ApiError;
use crate::web::query::Query;
use crate::web::{WebDeps, get_or_head, id_bytes, resource};

/// Registers the routes of redrives.
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(resource("/v1/redrives", "GET, HEAD, POST").route(get_or_head().to(list)).route(web::post().to(plan)))
        .service(resource("/v1/redrives/{redriveId}", "GET, HEAD").route(get_or_head().to(get)))
        .service(resource("/v1/redrives/{redriveId}/start", "POST").route(web::post().to(start)))
        .service(resource("/v1/redrives/{redriveId}/pause", "POST").route(web::post().to(pause)))
        .service(resource("/v1/redrives/{redriveId}/resume", "POST").route(web::post().to(resume)))
        .service(resource("/v1/redrives/{redriveId}/cancel", "POST").route(web::post().to(cancel)));
}

/// The maximum size of a request: a thousand ids of the maximum length.
const MAX_BYTES: usize = 1024 * 1024;

/// Plan a redrive
///
/// Fixes the set of failed intents that match the filter, and counts those that match but are not in the plan. Nothing
/// is sent until the plan is started. A plan that is not started within a day is deleted.
#[utoipa::path(post, path = "/v1/redrives", tag = "redrives", operation_id = "planRedrive",
    security((), ("bearer" = ["admin"])),
    request_body = PlanRequest,
    responses(
        (status = 201, body = RedriveJson, description = "The plan; nothing is sent"),
        (status = 400, body = ErrorJson, description = "The filter is invalid, or matches more than a million intents"),
        (status = 408, body = ErrorJson, description = "The request body did not arrive in time"),
        (status = 413, body = ErrorJson, description = "The request body has more than 1 MiB"),
        CommonErrors,
    ))]
pub async fn plan(payload: web::Payload, deps: web::Data<WebDeps>, by: Actor) -> Result<HttpResponse, ApiError> {
    let (body, _reservation) = deps.bodies.read(payload, MAX_BYTES).await?;
    let planned = plan_redrive(&deps, json::parse_plan(&body)?, by).await?;
    Ok(HttpResponse::Created().json(RedriveJson::from(&planned)))
}

/// An operator's request to plan a redrive.
pub struct PlanOrder {
    pub filter: RedriveFilter,
    pub include_unknown: bool,
    pub note: Option<String>,
}

/// Plans a redrive, and logs it.
pub async fn plan_redrive(deps: &WebDeps, order: PlanOrder, by: Actor) -> Result<Redrive, ApiError> {
    let registry = deps.registry.get();
    if let RedriveFilter::Matching(conditions) = &order.filter
        && let Some(target) = conditions.target.as_ref().filter(|target| registry.contract(target).is_none())
    {
        return Err(ApiError::InvalidRequest(format!(
            "submissionTarget {target:?} is not in the registry, so its intents cannot be redriven"
        )));
    }
    let registered = registry.contracts().map(|snapshot| snapshot.contract.target.clone()).collect();
    let new = NewRedrive {
        id: RedriveId::from_random(id_bytes()?),
        filter_json: json::filter_text(&order.filter)?,
        filter: order.filter,
        include_unknown: order.include_unknown,
        note: order.note,
        registered: Arc::new(registered),
        by,
    };
    match deps.store.plan_redrive(new).await? {
        Planning::Planned(redrive) => {
            log::info!("redrive_planned redrive_id={} count={}", redrive.id, redrive.count);
            Ok(*redrive)
        }
        Planning::TooMany => Err(ApiError::InvalidRequest(format!(
            "the filter matches more than {MAX_PLANNED} intents; narrow it, for example with submissionTarget or createdAfter"
        ))),
    }
}

/// List redrives, newest first
#[utoipa::path(get, path = "/v1/redrives", tag = "redrives", operation_id = "listRedrives",
    security((), ("bearer" = ["admin"])),
    params(
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 50 by default; values above 200 count as 200"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous page"),
    ),
    responses(
        (status = 200, body = RedriveListJson, description = "A page of redrives"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid"),
        CommonErrors,
    ))]
pub async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = Query::parse(request.query_string(), &["limit", "cursor"])?;
    let after = query.get("cursor", "the nextCursor of the previous page", RedriveId::parse)?;
    let page = deps.store.list_redrives(after, page_limit(&query)?).await?;
    let redrives = page.redrives.iter().map(RedriveJson::from).collect();
    Ok(HttpResponse::Ok().json(RedriveListJson { redrives, next_cursor: page.next.map(|id| id.to_string()) }))
}

/// Get a redrive with its progress
#[utoipa::path(get, path = "/v1/redrives/{redriveId}", tag = "redrives", operation_id = "getRedrive",
    security((), ("bearer" = ["admin"])),
    params(("redriveId" = String, Path, description = "The id of the redrive")),
    responses(
        (status = 200, body = RedriveJson, description = "The redrive"),
        (status = 404, body = ErrorJson, description = "No such redrive, or a plan that was not started within a day"),
        CommonErrors,
    ))]
pub async fn get(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let found = deps.store.find_redrive(parse_id(&path)?).await?.ok_or_else(|| no_such_redrive(&path))?;
    Ok(HttpResponse::Ok().json(RedriveJson::from(&found)))
}

/// Start a planned redrive
///
/// The leader creates a new intent for each intent of the plan, at no more than the given rate. They use only slots
/// that are free, so that they do not delay new submissions.
#[utoipa::path(post, path = "/v1/redrives/{redriveId}/start", tag = "redrives", operation_id = "startRedrive",
    security((), ("bearer" = ["admin"])),
    params(("redriveId" = String, Path, description = "The id of the redrive")),
    request_body(content = Option<StartRequest>),
    responses(
        (status = 200, body = RedriveJson, description = "The redrive runs"),
        (status = 400, body = ErrorJson, description = "The rate is invalid"),
        (status = 404, body = ErrorJson, description = "No such redrive, or a plan that was not started within a day"),
        (status = 409, body = ErrorJson, description = "The redrive is not planned, or its plan has no intents (`invalid_state`)"),
        CommonErrors,
    ))]
pub async fn start(
    path: web::Path<String>,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, ApiError> {
    let id = parse_id(&path)?;
    let (body, _reservation) = deps.bodies.read(payload, MAX_BYTES).await?;
    let rate: RedriveRate = json::parse_start(&body)?;
    respond(&deps, id, RedriveChange::Start { rate }, by).await
}

/// Pause a running redrive
#[utoipa::path(post, path = "/v1/redrives/{redriveId}/pause", tag = "redrives", operation_id = "pauseRedrive",
    security((), ("bearer" = ["admin"])),
    params(("redriveId" = String, Path, description = "The id of the redrive")),
    responses(
        (status = 200, body = RedriveJson, description = "No new intents are created until the redrive is resumed"),
        (status = 404, body = ErrorJson, description = "No such redrive"),
        (status = 409, body = ErrorJson, description = "The redrive is not running (`invalid_state`)"),
        CommonErrors,
    ))]
pub async fn pause(path: web::Path<String>, deps: web::Data<WebDeps>, by: Actor) -> Result<HttpResponse, ApiError> {
    respond(&deps, parse_id(&path)?, RedriveChange::Pause, by).await
}

/// Resume a paused redrive
#[utoipa::path(post, path = "/v1/redrives/{redriveId}/resume", tag = "redrives", operation_id = "resumeRedrive",
    security((), ("bearer" = ["admin"])),
    params(("redriveId" = String, Path, description = "The id of the redrive")),
    responses(
        (status = 200, body = RedriveJson, description = "The redrive runs again, at the same rate as before"),
        (status = 404, body = ErrorJson, description = "No such redrive"),
        (status = 409, body = ErrorJson, description = "The redrive is not paused (`invalid_state`)"),
        CommonErrors,
    ))]
pub async fn resume(path: web::Path<String>, deps: web::Data<WebDeps>, by: Actor) -> Result<HttpResponse, ApiError> {
    respond(&deps, parse_id(&path)?, RedriveChange::Resume, by).await
}

/// Cancel a redrive
///
/// No further intents are created. Those that were created before stay.
#[utoipa::path(post, path = "/v1/redrives/{redriveId}/cancel", tag = "redrives", operation_id = "cancelRedrive",
    security((), ("bearer" = ["admin"])),
    params(("redriveId" = String, Path, description = "The id of the redrive")),
    responses(
        (status = 200, body = RedriveJson, description = "The redrive is cancelled"),
        (status = 404, body = ErrorJson, description = "No such redrive"),
        (status = 409, body = ErrorJson, description = "The redrive has already ended (`invalid_state`)"),
        CommonErrors,
    ))]
pub async fn cancel(path: web::Path<String>, deps: web::Data<WebDeps>, by: Actor) -> Result<HttpResponse, ApiError> {
    respond(&deps, parse_id(&path)?, RedriveChange::Cancel, by).await
}

async fn respond(deps: &WebDeps, id: RedriveId, change: RedriveChange, by: Actor) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(RedriveJson::from(&change_redrive(deps, id, change, by).await?)))
}

/// Starts, pauses, resumes or cancels a redrive, and logs it.
pub async fn change_redrive(
    deps: &WebDeps,
    id: RedriveId,
    change: RedriveChange,
    by: Actor,
) -> Result<Redrive, ApiError> {
    match deps.store.change_redrive(id, change, by).await? {
        ChangedRedrive::Changed(redrive) => {
            log::info!("redrive_changed redrive_id={id} change={} created={}", change.as_str(), redrive.created);
            Ok(*redrive)
        }
        ChangedRedrive::Refused(refusal) => Err(ApiError::InvalidRedriveState { change: change.as_str(), refusal }),
        ChangedRedrive::NotFound => Err(no_such_redrive(&id.to_string())),
    }
}

/// Parses the id of a redrive. An invalid id gets the same 404 as one that does not exist.
pub fn parse_id(raw: &str) -> Result<RedriveId, ApiError> {
    RedriveId::parse(raw).ok_or_else(|| no_such_redrive(raw))
}

fn no_such_redrive(id: &str) -> ApiError {
    ApiError::NotFound(format!("no such redrive: {id:?}; a plan that is not started within a day is deleted"))
}
