//! `GET /v1/inbox/…`: read inbox submissions, and the contacts and messages that were made of them.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;
use serde_json::value::RawValue;

use super::json::{ContactListJson, MessageListJson, SubmissionDetailJson, SubmissionJson, SubmissionListJson};
use super::require_enabled;
use crate::api::intents::page_limit;
use crate::api::json::{CommonErrors, ErrorJson};
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::checked_name;
use crate::store::{InboxQuery, InboxSubmissionState};
use crate::web::WebDeps;
use crate::web::error::ApiError;
use crate::web::query::Query;

/// Get an inbox submission with its payload
#[utoipa::path(get, path = "/v1/inbox/submissions/{id}", tag = "inbox", operation_id = "getInboxSubmission",
    security((), ("bearer" = ["inbox:read"])),
    params(("id" = String, Path, description = "The id of the inbox submission")),
    responses(
        (status = 200, body = SubmissionDetailJson, description = "The submission with its payload"),
        (status = 404, body = ErrorJson, description = "No such submission, or the inbox is not enabled"),
        CommonErrors,
    ))]
pub(crate) async fn submission(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    require_enabled(&deps.registry.get())?;
    let found = deps.store.find_submission(parse_id(&path)?).await?;
    let (row, payload) = found.ok_or_else(|| no_such_submission(&path))?;
    // Only JSON that common parsers accept is returned as JSON. `Value` refuses deep nesting, `RawValue` does not.
    let readable = serde_json::from_slice::<Value>(&payload).is_ok();
    let raw: Option<&RawValue> = serde_json::from_slice(&payload).ok().filter(|_| readable);
    let payload_text = raw.is_none().then(|| String::from_utf8_lossy(&payload).into_owned());
    let submission = SubmissionJson::from(&row);
    Ok(HttpResponse::Ok().json(SubmissionDetailJson { submission, payload: raw, payload_text }))
}

/// Parses the id of an inbox submission. An invalid id gets the same 404 as one that does not exist.
pub(super) fn parse_id(raw: &str) -> Result<InboxSubmissionId, ApiError> {
    InboxSubmissionId::parse(raw).ok_or_else(|| no_such_submission(raw))
}

pub(super) fn no_such_submission(id: &str) -> ApiError {
    ApiError::NotFound(format!("no such inbox submission: {id:?}"))
}

/// List inbox submissions, newest first
#[utoipa::path(get, path = "/v1/inbox/submissions", tag = "inbox", operation_id = "listInboxSubmissions",
    security((), ("bearer" = ["inbox:read"])),
    params(
        ("client_slug" = String, Query, description = "The client of the inbox"),
        ("state" = Option<super::json::SubmissionStateName>, Query, description = "Only submissions in this state"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 50 by default; values above 200 count as 200"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous page"),
    ),
    responses(
        (status = 200, body = SubmissionListJson, description = "A page of submissions, without their payloads"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid"),
        (status = 404, body = ErrorJson, description = "The inbox is not enabled"),
        CommonErrors,
    ))]
pub(crate) async fn submissions(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = api_query(&request, &deps, &["client_slug", "state", "limit", "cursor"])?;
    let page = deps.store.list_submissions(query).await?;
    let submissions = page.rows.iter().map(Into::into).collect();
    Ok(HttpResponse::Ok().json(SubmissionListJson { submissions, next_cursor: page.next.map(cursor_text) }))
}

/// List contacts, newest first
#[utoipa::path(get, path = "/v1/inbox/contacts", tag = "inbox", operation_id = "listInboxContacts",
    security((), ("bearer" = ["inbox:read"])),
    params(
        ("client_slug" = String, Query, description = "The client of the inbox"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 50 by default; values above 200 count as 200"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous page"),
    ),
    responses(
        (status = 200, body = ContactListJson, description = "A page of contacts"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid"),
        (status = 404, body = ErrorJson, description = "The inbox is not enabled"),
        CommonErrors,
    ))]
pub(crate) async fn contacts(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = api_query(&request, &deps, &["client_slug", "limit", "cursor"])?;
    let page = deps.store.list_contacts(query).await?;
    let contacts = page.rows.iter().map(Into::into).collect();
    Ok(HttpResponse::Ok().json(ContactListJson { contacts, next_cursor: page.next.map(cursor_text) }))
}

/// List messages, newest first
#[utoipa::path(get, path = "/v1/inbox/messages", tag = "inbox", operation_id = "listInboxMessages",
    security((), ("bearer" = ["inbox:read"])),
    params(
        ("client_slug" = String, Query, description = "The client of the inbox"),
        ("contact_id" = Option<i64>, Query, description = "Only messages of this contact"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 50 by default; values above 200 count as 200"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous page"),
    ),
    responses(
        (status = 200, body = MessageListJson, description = "A page of messages"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid"),
        (status = 404, body = ErrorJson, description = "The inbox is not enabled"),
        CommonErrors,
    ))]
pub(crate) async fn messages(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = api_query(&request, &deps, &["client_slug", "contact_id", "limit", "cursor"])?;
    let page = deps.store.list_messages(query).await?;
    let messages = page.rows.iter().map(Into::into).collect();
    Ok(HttpResponse::Ok().json(MessageListJson { messages, next_cursor: page.next.map(cursor_text) }))
}

/// Parses the query string of a list. Lists of the API are always of one client.
fn api_query(request: &HttpRequest, deps: &WebDeps, known: &[&str]) -> Result<InboxQuery, ApiError> {
    require_enabled(&deps.registry.get())?;
    let query = inbox_query(request.query_string(), known)?;
    if query.client_slug.is_none() {
        return Err(client_slug_missing());
    }
    Ok(query)
}

/// Parses the query string of a list that has the parameters in `known`. The console accepts the same parameters.
pub fn inbox_query(text: &str, known: &[&str]) -> Result<InboxQuery, ApiError> {
    let query = Query::parse(text, known)?;
    let states = "received, failed, parked or processed";
    Ok(InboxQuery {
        client_slug: client_slug(&query)?,
        state: query.get("state", states, InboxSubmissionState::parse)?,
        contact_id: query.get("contact_id", "the id of a contact", |text| text.parse().ok())?,
        limit: page_limit(&query)?,
        after: query.get("cursor", "the nextCursor of the previous page", parse_cursor)?,
    })
}

pub(super) fn client_slug(query: &Query) -> Result<Option<String>, ApiError> {
    query.get("client_slug", "the slug of a client", |text| checked_name(text).ok().map(|name| name.to_string()))
}

pub(super) fn client_slug_missing() -> ApiError {
    ApiError::InvalidRequest("the parameter client_slug is missing".to_owned())
}

/// The text of a cursor, which is opaque to clients.
pub fn cursor_text(number: i64) -> String {
    format!("n{number:x}")
}

/// Parses a cursor. Accepts only text that [`cursor_text`] produces.
pub fn parse_cursor(text: &str) -> Option<i64> {
    let number = i64::from_str_radix(text.strip_prefix('n')?, 16).ok().filter(|number| *number >= 0)?;
    (cursor_text(number) == text).then_some(number)
}
