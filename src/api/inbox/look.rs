//! What came in, who from, and what became of it; and asking for it to be processed again.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;
use serde_json::value::RawValue;

use super::json::{
    ContactListJson, MessageListJson, ReprocessedJson, SubmissionDetailJson, SubmissionJson, SubmissionListJson,
};
use super::open;
use crate::api::intents::page_limit;
use crate::api::json::{ErrorJson, Refused};
use crate::domain::client::Scope;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::checked_name;
use crate::store::{InboxQuery, InboxSubmission, InboxSubmissionState, Reprocess};
use crate::web::error::ApiError;
use crate::web::query::Query;
use crate::web::{WebDeps, auth};

/// Look at something that came in
#[utoipa::path(get, path = "/v1/inbox/submissions/{id}", tag = "inbox", operation_id = "getInboxSubmission",
    security((), ("bearer" = ["inbox:read"])),
    params(("id" = String, Path, description = "As the answer to the submission said")),
    responses(
        (status = 200, body = SubmissionDetailJson, description = "The submission with its payload"),
        (status = 404, body = ErrorJson, description = "No such submission"),
        Refused,
    ))]
pub async fn submission(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    open(&deps.registry.get())?;
    auth::allow(&request, &deps, Scope::InboxRead)?;
    let found = deps.store.find_submission(known_id(&path)?).await?;
    let (row, payload) = found.ok_or_else(|| no_such(&path))?;
    // As JSON only if it is some that parsers take, and not nested a thousand times.
    let readable = serde_json::from_slice::<Value>(&payload).is_ok();
    let raw: Option<&RawValue> = serde_json::from_slice(&payload).ok().filter(|_| readable);
    let payload_text = raw.is_none().then(|| String::from_utf8_lossy(&payload).into_owned());
    let submission = SubmissionJson::from(&row);
    Ok(HttpResponse::Ok().json(SubmissionDetailJson { submission, payload: raw, payload_text }))
}

fn known_id(raw: &str) -> Result<InboxSubmissionId, ApiError> {
    InboxSubmissionId::parse(raw).ok_or_else(|| no_such(raw))
}

fn no_such(id: &str) -> ApiError {
    ApiError::NotFound(format!("there is no submission {id:?}"))
}

/// Process something again that failed
#[utoipa::path(post, path = "/v1/inbox/submissions/{id}/reprocess", tag = "inbox",
    operation_id = "reprocessInboxSubmission",
    security((), ("bearer" = ["inbox:write"])),
    params(("id" = String, Path, description = "As the answer to the submission said")),
    responses(
        (status = 202, body = SubmissionJson, description = "It is due now"),
        (status = 404, body = ErrorJson, description = "No such submission"),
        (status = 409, body = ErrorJson, description = "It is processed"),
        Refused,
    ))]
pub async fn reprocess(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    open(&deps.registry.get())?;
    auth::allow(&request, &deps, Scope::InboxWrite)?;
    let row = reprocess_one(&deps, &path).await?;
    Ok(HttpResponse::Accepted().json(SubmissionJson::from(&row)))
}

/// Also what the console does.
pub async fn reprocess_one(deps: &WebDeps, id: &str) -> Result<InboxSubmission, ApiError> {
    let known = known_id(id)?;
    let changed = deps.store.reprocess(Reprocess::One(known)).await?;
    let (row, _) = deps.store.find_submission(known).await?.ok_or_else(|| no_such(id))?;
    if changed == 0 && row.state() == InboxSubmissionState::Processed {
        return Err(ApiError::AlreadyProcessed { id: known });
    }
    log::info!("inbox_reprocess submission_id={known}");
    Ok(row)
}

/// Rows that one call makes due again: a transaction that nobody waits long for.
const MOST_REPROCESSED: usize = 1000;

/// Process everything again that is parked, of one client
#[utoipa::path(post, path = "/v1/inbox/submissions/reprocess", tag = "inbox",
    operation_id = "reprocessParkedInboxSubmissions",
    security((), ("bearer" = ["inbox:write"])),
    params(("client_slug" = String, Query, description = "Whose")),
    responses(
        (status = 202, body = ReprocessedJson, description = "So many are due now: up to a thousand in one call"),
        (status = 400, body = ErrorJson, description = "A parameter is not right"),
        (status = 404, body = ErrorJson, description = "The inbox has no clients"),
        Refused,
    ))]
pub async fn reprocess_parked(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    open(&deps.registry.get())?;
    auth::allow(&request, &deps, Scope::InboxWrite)?;
    let query = Query::parse(request.query_string(), &["client_slug"])?;
    let client_slug = slug(&query)?.ok_or_else(slug_missing)?;
    let reprocessed = reprocess_parked_of(&deps, client_slug).await?;
    Ok(HttpResponse::Accepted().json(ReprocessedJson { reprocessed, more: reprocessed == MOST_REPROCESSED }))
}

/// Also what the console does.
pub async fn reprocess_parked_of(deps: &WebDeps, client_slug: String) -> Result<usize, ApiError> {
    log::info!("inbox_reprocess_parked client_slug={client_slug:?}");
    Ok(deps.store.reprocess(Reprocess::ParkedOf { client_slug, limit: MOST_REPROCESSED }).await?)
}

/// List what came in, newest first
#[utoipa::path(get, path = "/v1/inbox/submissions", tag = "inbox", operation_id = "listInboxSubmissions",
    security((), ("bearer" = ["inbox:read"])),
    params(
        ("client_slug" = String, Query, description = "Whose"),
        ("state" = Option<super::json::SubmissionStateName>, Query, description = "Only these"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "How many on a page: 50, or up to 200"),
        ("cursor" = Option<String>, Query, description = "nextCursor of the page before"),
    ),
    responses(
        (status = 200, body = SubmissionListJson, description = "A page of submissions, without their payloads"),
        (status = 400, body = ErrorJson, description = "A parameter is not right"),
        (status = 404, body = ErrorJson, description = "The inbox has no clients"),
        Refused,
    ))]
pub async fn submissions(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = api_query(&request, &deps, &["client_slug", "state", "limit", "cursor"])?;
    let page = deps.store.list_submissions(query).await?;
    let submissions = page.rows.iter().map(Into::into).collect();
    Ok(HttpResponse::Ok().json(SubmissionListJson { submissions, next_cursor: page.next.map(cursor_text) }))
}

/// List contacts, newest first
#[utoipa::path(get, path = "/v1/inbox/contacts", tag = "inbox", operation_id = "listInboxContacts",
    security((), ("bearer" = ["inbox:read"])),
    params(
        ("client_slug" = String, Query, description = "Whose"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "How many on a page: 50, or up to 200"),
        ("cursor" = Option<String>, Query, description = "nextCursor of the page before"),
    ),
    responses(
        (status = 200, body = ContactListJson, description = "A page of contacts"),
        (status = 400, body = ErrorJson, description = "A parameter is not right"),
        (status = 404, body = ErrorJson, description = "The inbox has no clients"),
        Refused,
    ))]
pub async fn contacts(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = api_query(&request, &deps, &["client_slug", "limit", "cursor"])?;
    let page = deps.store.list_contacts(query).await?;
    let contacts = page.rows.iter().map(Into::into).collect();
    Ok(HttpResponse::Ok().json(ContactListJson { contacts, next_cursor: page.next.map(cursor_text) }))
}

/// List messages, newest first
#[utoipa::path(get, path = "/v1/inbox/messages", tag = "inbox", operation_id = "listInboxMessages",
    security((), ("bearer" = ["inbox:read"])),
    params(
        ("client_slug" = String, Query, description = "Whose"),
        ("contact_id" = Option<i64>, Query, description = "Only of this contact"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "How many on a page: 50, or up to 200"),
        ("cursor" = Option<String>, Query, description = "nextCursor of the page before"),
    ),
    responses(
        (status = 200, body = MessageListJson, description = "A page of messages"),
        (status = 400, body = ErrorJson, description = "A parameter is not right"),
        (status = 404, body = ErrorJson, description = "The inbox has no clients"),
        Refused,
    ))]
pub async fn messages(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = api_query(&request, &deps, &["client_slug", "contact_id", "limit", "cursor"])?;
    let page = deps.store.list_messages(query).await?;
    let messages = page.rows.iter().map(Into::into).collect();
    Ok(HttpResponse::Ok().json(MessageListJson { messages, next_cursor: page.next.map(cursor_text) }))
}

/// What a list is asked for through the API: always of one client.
fn api_query(request: &HttpRequest, deps: &WebDeps, known: &[&str]) -> Result<InboxQuery, ApiError> {
    open(&deps.registry.get())?;
    auth::allow(request, deps, Scope::InboxRead)?;
    let query = inbox_query(request.query_string(), known)?;
    if query.client_slug.is_none() {
        return Err(slug_missing());
    }
    Ok(query)
}

/// Also what the console is asked for.
pub fn inbox_query(text: &str, known: &[&str]) -> Result<InboxQuery, ApiError> {
    let query = Query::parse(text, known)?;
    let states = "received, failed, parked or processed";
    Ok(InboxQuery {
        client_slug: slug(&query)?,
        state: query.get("state", states, InboxSubmissionState::parse)?,
        contact_id: query.get("contact_id", "the number of a contact", |text| text.parse().ok())?,
        limit: page_limit(&query)?,
        after: query.get("cursor", "the nextCursor of a page before", cursor_of)?,
    })
}

fn slug(query: &Query) -> Result<Option<String>, ApiError> {
    query.get("client_slug", "the slug of a client", |text| checked_name(text).ok().map(|name| name.to_string()))
}

fn slug_missing() -> ApiError {
    ApiError::InvalidRequest("client_slug is missing; say whose".to_owned())
}

pub fn cursor_text(number: i64) -> String {
    format!("n{number:x}")
}

/// Taken back only as it was given.
fn cursor_of(text: &str) -> Option<i64> {
    let number = i64::from_str_radix(text.strip_prefix('n')?, 16).ok().filter(|number| *number >= 0)?;
    (cursor_text(number) == text).then_some(number)
}
