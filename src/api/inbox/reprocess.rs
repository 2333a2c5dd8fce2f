//! `POST /v1/inbox/submissions/…/reprocess`: process inbox submissions again that failed or are parked.

use actix_web::{HttpRequest, HttpResponse, web};

use super::json::{ReprocessedJson, SubmissionJson};
use super::queries::{client_slug, client_slug_missing, no_such_submission, parse_id};
use super::require_enabled;
use crate::api::json::{CommonErrors, ErrorJson};
use crate::domain::actor::Actor;
use crate::store::{InboxSubmission, InboxSubmissionState, Reprocess};
use crate::web::WebDeps;
use crate::web::error::ApiError;
use crate::web::query::Query;

/// How many parked submissions one call makes due, so that its transaction stays short.
const MAX_REPROCESSED: usize = 1000;

/// Process a failed inbox submission again
#[utoipa::path(post, path = "/v1/inbox/submissions/{id}/reprocess", tag = "inbox",
    operation_id = "reprocessInboxSubmission",
    security((), ("bearer" = ["inbox:write"])),
    params(("id" = String, Path, description = "The id of the inbox submission")),
    responses(
        (status = 202, body = SubmissionJson, description = "The submission will be processed again"),
        (status = 404, body = ErrorJson, description = "No such submission, or the inbox is not enabled"),
        (status = 409, body = ErrorJson, description = "The submission has already been processed"),
        CommonErrors,
    ))]
pub(crate) async fn reprocess(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, ApiError> {
    require_enabled(&deps.registry.get())?;
    let row = reprocess_one(&deps, &path, by).await?;
    Ok(HttpResponse::Accepted().json(SubmissionJson::from(&row)))
}

/// Makes one submission due now. The console calls it too.
pub async fn reprocess_one(deps: &WebDeps, raw_id: &str, by: Actor) -> Result<InboxSubmission, ApiError> {
    let id = parse_id(raw_id)?;
    let changed = deps.store.reprocess(Reprocess::One(id), by).await?;
    let (row, _) = deps.store.find_submission(id).await?.ok_or_else(|| no_such_submission(raw_id))?;
    if changed == 0 && row.state() == InboxSubmissionState::Processed {
        return Err(ApiError::AlreadyProcessed { id });
    }
    log::info!("inbox_reprocess submission_id={id}");
    Ok(row)
}

/// Process all parked inbox submissions of a client again
#[utoipa::path(post, path = "/v1/inbox/submissions/reprocess", tag = "inbox",
    operation_id = "reprocessParkedInboxSubmissions",
    security((), ("bearer" = ["inbox:write"])),
    params(("client_slug" = String, Query, description = "The client of the inbox")),
    responses(
        (status = 202, body = ReprocessedJson, description = "The submissions will be processed again: at most 1,000 for each call"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid"),
        (status = 404, body = ErrorJson, description = "The inbox is not enabled"),
        CommonErrors,
    ))]
pub(crate) async fn reprocess_parked(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, ApiError> {
    require_enabled(&deps.registry.get())?;
    let query = Query::parse(request.query_string(), &["client_slug"])?;
    let client_slug = client_slug(&query)?.ok_or_else(client_slug_missing)?;
    let reprocessed = reprocess_parked_of(&deps, client_slug, by).await?;
    Ok(HttpResponse::Accepted().json(ReprocessedJson { reprocessed, more: reprocessed == MAX_REPROCESSED }))
}

/// Makes up to `MAX_REPROCESSED` parked submissions of a client due now, and returns how many. The console calls it too.
pub async fn reprocess_parked_of(deps: &WebDeps, client_slug: String, by: Actor) -> Result<usize, ApiError> {
    log::info!("inbox_reprocess_parked client_slug={client_slug:?}");
    Ok(deps.store.reprocess(Reprocess::ParkedOf { client_slug, limit: MAX_REPROCESSED }, by).await?)
}
