//! `/ui/inbox` and below: what came in and where it stands, who it was from, and what they said. What is
//! parked can be asked for again here.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use bytes::Bytes;

use super::asked::Asked;
use super::{Console, PageError, page, payload};
use crate::api::inbox::{cursor_text, inbox_query, reprocess_one, reprocess_parked_of};
use crate::domain::inbox::InboxSubmissionId;
use crate::store::{Contact, InboxMessage, InboxPage, InboxQuery, InboxSubmission, InboxSubmissionState};
use crate::web::WebDeps;
use crate::web::error::ApiError;

#[derive(Template)]
#[template(path = "console/inbox.html")]
struct SubmissionsPage {
    place: &'static str,
    client: String,
    state: String,
    states: [&'static str; 4],
    clients: Vec<String>,
    fault: Option<String>,
    rows: Vec<InboxSubmission>,
    /// Something comes in here.
    open: bool,
    live: Option<String>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/submission.html")]
struct SubmissionPage {
    place: &'static str,
    row: InboxSubmission,
    message: Option<InboxMessage>,
    payloads: bool,
}

#[derive(Template)]
#[template(path = "console/contacts.html")]
struct ContactsPage {
    place: &'static str,
    client: String,
    clients: Vec<String>,
    fault: Option<String>,
    rows: Vec<Contact>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/contact.html")]
struct ContactPage {
    place: &'static str,
    contact: Contact,
    messages: Vec<InboxMessage>,
    payloads: bool,
    next: Option<String>,
}

pub async fn submissions(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, PageError> {
    let (mut client, mut state) = (String::new(), String::new());
    let text = request.query_string();
    let asked = Asked::read(text, &mut [("client_slug", &mut client), ("state", &mut state)]);
    let (found, fault) = match inbox_query(text, &["client_slug", "state", "limit", "cursor"]) {
        Ok(query) => (deps.store.list_submissions(query).await?, None),
        Err(fault) => (InboxPage { rows: Vec::new(), next: None }, Some(fault.to_string())),
    };
    page(&SubmissionsPage {
        place: "inbox",
        client,
        state,
        states: InboxSubmissionState::ALL.map(InboxSubmissionState::as_str),
        clients: clients(&deps),
        live: asked.live("/ui/inbox").filter(|_| fault.is_none()),
        fault,
        open: deps.registry.get().inbox.is_some(),
        next: found.next.map(|next| asked.next("/ui/inbox", &cursor_text(next))),
        rows: found.rows,
    })
}

/// Clients that an input offers.
fn clients(deps: &WebDeps) -> Vec<String> {
    const MAX_HINTS: usize = 200;
    let registry = deps.registry.get();
    let mut slugs: Vec<_> = registry.inbox.iter().flat_map(|clients| clients.keys().cloned()).collect();
    slugs.sort();
    slugs.truncate(MAX_HINTS);
    slugs
}

pub async fn submission(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
) -> Result<HttpResponse, PageError> {
    let (row, _) = find(&deps, &path).await?;
    let message = match row.message_id {
        // The one before the next number.
        Some(number) => {
            let query = InboxQuery { after: Some(number + 1), limit: 1, ..InboxQuery::default() };
            deps.store.list_messages(query).await?.rows.into_iter().find(|message| message.id == number)
        }
        None => None,
    };
    page(&SubmissionPage { place: "inbox", row, message, payloads: console.payloads })
}

async fn find(deps: &WebDeps, id: &str) -> Result<(InboxSubmission, Bytes), PageError> {
    let no_such = || PageError::NotFound(format!("Nothing came in as {id:?}."));
    let known = InboxSubmissionId::parse(id).ok_or_else(no_such)?;
    deps.store.find_submission(known).await?.ok_or_else(no_such)
}

pub async fn payload(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
) -> Result<HttpResponse, PageError> {
    payload::allowed(&console)?;
    let (row, bytes) = find(&deps, &path).await?;
    log::info!("payload_shown submission_id={}", row.id);
    payload::part(&bytes)
}

pub async fn contacts(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, PageError> {
    let mut client = String::new();
    let text = request.query_string();
    let asked = Asked::read(text, &mut [("client_slug", &mut client)]);
    let (found, fault) = match inbox_query(text, &["client_slug", "limit", "cursor"]) {
        Ok(query) => (deps.store.list_contacts(query).await?, None),
        Err(fault) => (InboxPage { rows: Vec::new(), next: None }, Some(fault.to_string())),
    };
    let next = found.next.map(|next| asked.next("/ui/inbox/contacts", &cursor_text(next)));
    page(&ContactsPage { place: "inbox", client, clients: clients(&deps), fault, rows: found.rows, next })
}

pub async fn contact(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
) -> Result<HttpResponse, PageError> {
    let no_such = || PageError::NotFound(format!("There is no contact {:?}.", path.as_str()));
    let contact_id = Some(path.parse().map_err(|_| no_such())?);
    let only = InboxQuery { contact_id, limit: 1, ..InboxQuery::default() };
    let contact = deps.store.list_contacts(only).await?.rows.into_iter().next().ok_or_else(no_such)?;
    let asked = Asked::read(request.query_string(), &mut []);
    let query = inbox_query(request.query_string(), &["limit", "cursor"]);
    let query = InboxQuery { contact_id, ..query.map_err(|fault| PageError::NotFound(fault.to_string()))? };
    let found = deps.store.list_messages(query).await?;
    let next = found.next.map(|next| asked.next(&format!("/ui/inbox/contacts/{}", contact.id), &cursor_text(next)));
    page(&ContactPage { place: "inbox", contact, messages: found.rows, payloads: console.payloads, next })
}

/// The button of one: process it again, and show it.
pub async fn reprocess(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, PageError> {
    match reprocess_one(&deps, &path).await {
        Ok(_) | Err(ApiError::AlreadyProcessed { .. }) => Ok(back(&format!("/ui/inbox/submissions/{}", path.as_str()))),
        Err(ApiError::NotFound(text)) => Err(PageError::NotFound(text)),
        Err(error) => Err(PageError::Refused(error.to_string())),
    }
}

/// The button of a client: process all that is parked again.
pub async fn reprocess_parked(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, PageError> {
    let slug = path.into_inner();
    let query = url::form_urlencoded::Serializer::new(String::new()).append_pair("client_slug", &slug).finish();
    reprocess_parked_of(&deps, slug).await.map_err(|error| PageError::Refused(error.to_string()))?;
    Ok(back(&format!("/ui/inbox?{query}")))
}

fn back(to: &str) -> HttpResponse {
    HttpResponse::build(StatusCode::SEE_OTHER).insert_header((header::LOCATION, to)).finish()
}
