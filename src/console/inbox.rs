//! `/ui/inbox` and below: inbox submissions, contacts and messages, with buttons to reprocess submissions.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use bytes::Bytes;

use super::bulk::{Action, BulkPage, Selected, selected, tally};
use super::form::Form;
use super::nav::Nav;
use super::query_form::QueryForm;
use super::search::redirect;
use super::{Console, PageError, page, payload};
use crate::api::inbox::{cursor_text, inbox_query, reprocess_one, reprocess_parked_of};
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::inbox::InboxSubmissionId;
use crate::store::{Contact, InboxMessage, InboxPage, InboxQuery, InboxSubmission, InboxSubmissionState};
use crate::web::WebDeps;
use crate::web::error::ApiError;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/inbox.html")]
struct SubmissionsPage {
    nav: Nav,
    client: String,
    state: String,
    states: [&'static str; 4],
    clients: Vec<String>,
    error: Option<String>,
    rows: Vec<InboxSubmission>,
    /// Whether the inbox is enabled.
    enabled: bool,
    live: Option<String>,
    /// The address of the list with this filter.
    here: String,
    first: Option<String>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/submission.html")]
struct SubmissionPage {
    nav: Nav,
    row: InboxSubmission,
    message: Option<InboxMessage>,
    payloads: bool,
}

#[derive(Template)]
#[template(path = "console/contacts.html")]
struct ContactsPage {
    nav: Nav,
    client: String,
    clients: Vec<String>,
    error: Option<String>,
    rows: Vec<Contact>,
    first: Option<String>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/contact.html")]
struct ContactPage {
    nav: Nav,
    contact: Contact,
    messages: Vec<InboxMessage>,
    payloads: bool,
    first: Option<String>,
    next: Option<String>,
}

/// The list of inbox submissions.
pub(super) async fn submissions(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let (mut client, mut state) = (String::new(), String::new());
    let text = request.query_string();
    let form = QueryForm::read(text, &mut [("client_slug", &mut client), ("state", &mut state)]);
    let (found, error) = match inbox_query(text, &["client_slug", "state", "limit", "cursor"]) {
        Ok(query) => (deps.store.list_submissions(query).await?, None),
        Err(error) => (InboxPage { rows: Vec::new(), next: None }, Some(error.to_string())),
    };
    page(&SubmissionsPage {
        nav: Nav::new("inbox", operator).at(deps.clock.now()),
        client,
        state,
        states: InboxSubmissionState::ALL.map(InboxSubmissionState::as_str),
        clients: clients(&deps),
        here: form.url("/ui/inbox"),
        live: form.live_url("/ui/inbox").filter(|_| error.is_none()),
        error,
        enabled: deps.registry.get().inbox.is_some(),
        first: form.first_url("/ui/inbox"),
        next: found.next.map(|next| form.next_url("/ui/inbox", &cursor_text(next))),
        rows: found.rows,
    })
}

/// The clients that the filter form suggests.
fn clients(deps: &WebDeps) -> Vec<String> {
    const MAX_SUGGESTIONS: usize = 200;
    let registry = deps.registry.get();
    let mut slugs: Vec<_> = registry.inbox.iter().flat_map(|clients| clients.keys().cloned()).collect();
    slugs.sort();
    slugs.truncate(MAX_SUGGESTIONS);
    slugs
}

/// The page of one inbox submission.
pub(super) async fn submission(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
    operator: Operator,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let (row, _) = find(&deps, &path).await?;
    let message = match row.message_id {
        // Lists are newest first and start below the cursor, so the cursor of this message is the next number.
        Some(number) => {
            let query = InboxQuery { after: Some(number + 1), limit: 1, ..InboxQuery::default() };
            deps.store.list_messages(query).await?.rows.into_iter().find(|message| message.id == number)
        }
        None => None,
    };
    let nav = Nav::new("inbox", operator).at(deps.clock.now());
    let payloads = console.payloads && nav.may_act();
    if payloads && message.is_some() {
        deps.store.append_audit(NewAuditEntry::show_payload_of_submission(&by, row.id)).await?;
    }
    page(&SubmissionPage { payloads, nav, row, message })
}

async fn find(deps: &WebDeps, id: &str) -> Result<(InboxSubmission, Bytes), PageError> {
    let no_such = || PageError::NotFound(format!("There is no inbox submission {id:?}."));
    let parsed = InboxSubmissionId::parse(id).ok_or_else(no_such)?;
    deps.store.find_submission(parsed).await?.ok_or_else(no_such)
}

/// The payload of an inbox submission as a fragment of its page.
pub(super) async fn payload(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    payload::require_enabled(&console)?;
    let (row, bytes) = find(&deps, &path).await?;
    deps.store.append_audit(NewAuditEntry::show_payload_of_submission(&by, row.id)).await?;
    log::info!("payload_shown submission_id={}", row.id);
    payload::fragment(&bytes)
}

/// The list of contacts.
pub(super) async fn contacts(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let mut client = String::new();
    let text = request.query_string();
    let form = QueryForm::read(text, &mut [("client_slug", &mut client)]);
    let (found, error) = match inbox_query(text, &["client_slug", "limit", "cursor"]) {
        Ok(query) => (deps.store.list_contacts(query).await?, None),
        Err(error) => (InboxPage { rows: Vec::new(), next: None }, Some(error.to_string())),
    };
    let next = found.next.map(|next| form.next_url("/ui/inbox/contacts", &cursor_text(next)));
    let nav = Nav::new("inbox", operator).at(deps.clock.now());
    let first = form.first_url("/ui/inbox/contacts");
    page(&ContactsPage { nav, client, clients: clients(&deps), error, rows: found.rows, first, next })
}

/// The page of one contact with its messages.
pub(super) async fn contact(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
    operator: Operator,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let no_such = || PageError::NotFound(format!("There is no contact {:?}.", path.as_str()));
    let contact_id = Some(path.parse().map_err(|_| no_such())?);
    let only = InboxQuery { contact_id, limit: 1, ..InboxQuery::default() };
    let contact = deps.store.list_contacts(only).await?.rows.into_iter().next().ok_or_else(no_such)?;
    let form = QueryForm::read(request.query_string(), &mut []);
    let query = inbox_query(request.query_string(), &["limit", "cursor"]);
    let query = InboxQuery { contact_id, ..query.map_err(|error| PageError::NotFound(error.to_string()))? };
    let found = deps.store.list_messages(query).await?;
    let path = format!("/ui/inbox/contacts/{}", contact.id);
    let next = found.next.map(|next| form.next_url(&path, &cursor_text(next)));
    let nav = Nav::new("inbox", operator).at(deps.clock.now());
    let payloads = console.payloads && nav.may_act();
    if payloads && !found.rows.is_empty() {
        deps.store.append_audit(NewAuditEntry::show_messages_of_contact(&by, contact.id)).await?;
    }
    page(&ContactPage { nav, contact, messages: found.rows, payloads, first: form.first_url(&path), next })
}

/// Handles the button of one submission: reprocesses it and redirects to its page.
pub(super) async fn reprocess(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    match reprocess_one(&deps, &path, by).await {
        Ok(_) | Err(ApiError::AlreadyProcessed { .. }) => {
            Ok(redirect(&format!("/ui/inbox/submissions/{}", path.as_str())))
        }
        Err(error) => Err(error.into()),
    }
}

static REPROCESS: Action = Action {
    title: "Process inbox submissions again",
    path: "/ui/inbox/reprocess",
    field: "id",
    list: "/ui/inbox",
    ends_something: false,
    headings: ["Inbox submission", "Client", "Received", "State"],
};

/// Shows the selected submissions that are not processed, or reprocesses them once that is confirmed.
pub(super) async fn reprocess_selected(
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    operator: Operator,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let form = Form::read(&deps, payload).await?;
    let ids = selected(&form, &REPROCESS, InboxSubmissionId::parse)?;
    let nav = Nav::new("inbox", operator).at(deps.clock.now());
    if form.has("confirmed") {
        return page(&BulkPage::results(nav, &REPROCESS, &form, reprocess_all(&deps, ids, &by).await?));
    }
    let (mut rows, mut processed, mut gone) = (Vec::new(), 0, 0);
    for id in ids {
        match deps.store.find_submission(id).await? {
            Some((row, _)) if row.state() == InboxSubmissionState::Processed => processed += 1,
            Some((row, _)) => rows.push(Selected {
                id: row.id.to_string(),
                href: format!("/ui/inbox/submissions/{}", row.id),
                state: row.state().as_str().to_owned(),
                of: row.client_slug,
                at: row.created_at,
            }),
            None => gone += 1,
        }
    }
    let left_out = tally([(processed, "already processed"), (gone, "no longer there")]);
    page(&BulkPage::preview(nav, &REPROCESS, &form, ["reprocess", "submission"], rows, left_out))
}

/// Makes the submissions due one after the other, and returns the results in words.
async fn reprocess_all(deps: &WebDeps, ids: Vec<InboxSubmissionId>, by: &Actor) -> Result<Vec<String>, PageError> {
    let (mut due, mut processed, mut gone) = (0, 0, 0);
    for id in ids {
        match reprocess_one(deps, &id.to_string(), by.clone()).await {
            Ok(_) => due += 1,
            Err(ApiError::AlreadyProcessed { .. }) => processed += 1,
            Err(ApiError::NotFound(_)) => gone += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(tally([(due, "to be processed now"), (processed, "already processed"), (gone, "no longer there")]))
}

/// Handles the button of a client: reprocesses its parked submissions and redirects to the list.
pub(super) async fn reprocess_parked(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let slug = path.into_inner();
    let query = url::form_urlencoded::Serializer::new(String::new()).append_pair("client_slug", &slug).finish();
    reprocess_parked_of(&deps, slug, by).await?;
    Ok(redirect(&format!("/ui/inbox?{query}")))
}
