//! `/ui/history`: the history of one intent as an HTML fragment that other portals embed, or as plain text.
//!
//! Portals style the fragment by its CSS classes, so these never change: `kv` for the summary, `table` for tables, `status`
//! and `status-…` for the status of the intent, of an attempt and of the webhook.

use std::fmt::{self, Write};

use actix_web::http::StatusCode;
use actix_web::http::header::{self, Accept, ContentType, Header};
use actix_web::{HttpRequest, HttpResponse, ResponseError, web};
use askama::Template;
use url::form_urlencoded;

use crate::api::intents::{no_such_intent, parse_id};
use crate::api::json::ErrorJson;
use crate::store::History;
use crate::web::error::ApiError;
use crate::web::permissions::guarded;
use crate::web::{WebDeps, with_and_without_slash};

/// The maximum size of the form. An id of 200 characters fits, even if each takes twelve percent-encoded bytes.
const MAX_FORM_BYTES: usize = 8 * 1024;

/// The Content-Security-Policy of the fragment, for a browser that opens it by itself: it is text in tables, and nothing of it
/// may run or load anything. Portals may show it in a frame.
const FRAGMENT_POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'";

#[derive(Template)]
#[template(path = "history.html")]
struct Fragment<'a> {
    intent_id: &'a str,
    history: Option<History>,
}

const PATH: &str = "/ui/history";

pub fn routes(config: &mut web::ServiceConfig) {
    let resource = web::resource(with_and_without_slash(PATH));
    let guarded = guarded(resource, PATH, |request, refusal| {
        Format::requested(request).error_response(&refusal.into_api_error("POST"))
    });
    config.service(guarded.route(web::post().to(fragment)));
}

/// Get the history of an intent as an HTML fragment
///
/// With `Accept: text/plain` the response is plain text.
#[utoipa::path(post, path = "/ui/history", tag = "console", operation_id = "historyFragment",
    security((), ("bearer" = ["intents:read"])),
    request_body(content = HistoryForm, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, description = "The intent, its attempts and its webhook", content((String = "text/html"), (String = "text/plain"))),
        (status = 400, description = "The form has no intentId", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 401, description = "Missing or invalid bearer token (with SM_AUTH=required)", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 403, description = "The token does not have the scope or, with SM_AUTH=off, a web page of another site sent the request", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 404, description = "No such intent", content((String = "text/html"), (String = "text/plain"))),
        (status = 408, description = "The request body did not arrive in time", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 413, description = "The form is too large", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 503, description = "The service is overloaded or the store is unavailable; try again", content((ErrorJson = "application/json"), (String = "text/plain"))),
    ))]
pub async fn fragment(request: HttpRequest, payload: web::Payload, deps: web::Data<WebDeps>) -> HttpResponse {
    let format = Format::requested(&request);
    let response = match find(payload, &deps).await {
        Ok((intent_id, history)) => format.response(&intent_id, history),
        Err(error) => Err(error),
    };
    response.unwrap_or_else(|error| format.error_response(&error))
}

/// The requested intent id and the history of that intent, if it exists.
async fn find(payload: web::Payload, deps: &WebDeps) -> Result<(String, Option<History>), ApiError> {
    let (form, _reservation) = deps.bodies.read(payload, MAX_FORM_BYTES).await?;
    let intent_id = form_urlencoded::parse(&form)
        .find(|(name, _)| name == "intentId")
        .map(|(_, value)| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .ok_or_else(|| ApiError::InvalidRequest("the form must have an intentId".to_owned()))?;
    let history = match parse_id(&intent_id) {
        Ok(id) => deps.store.history(id).await?,
        Err(_) => None,
    };
    Ok((intent_id, history))
}

/// The format of the response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Html,
    Plain,
}

impl Format {
    /// The format that the `Accept` header prefers; HTML if it names neither of the two.
    fn requested(request: &HttpRequest) -> Self {
        let accepted = Accept::parse(request).map(|accept| accept.ranked()).unwrap_or_default();
        let known = accepted.iter().find_map(|mime| match mime.essence_str() {
            "text/plain" => Some(Self::Plain),
            "text/html" => Some(Self::Html),
            _ => None,
        });
        known.unwrap_or(Self::Html)
    }

    fn response(self, intent_id: &str, history: Option<History>) -> Result<HttpResponse, ApiError> {
        let failed = |error: &dyn fmt::Display| {
            log::error!("page_failed page=history error={:?}", error.to_string());
            ApiError::Internal
        };
        let status = if history.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
        let mut response = HttpResponse::build(status);
        match (self, history) {
            (Self::Plain, None) => Err(no_such_intent(intent_id)),
            (Self::Plain, Some(history)) => {
                let text = plain(&history).map_err(|error| failed(&error))?;
                Ok(response.content_type(ContentType::plaintext()).body(text))
            }
            (Self::Html, history) => {
                let html = Fragment { intent_id, history }.render().map_err(|error| failed(&error))?;
                let policy = (header::CONTENT_SECURITY_POLICY, FRAGMENT_POLICY);
                Ok(response.content_type(ContentType::html()).insert_header(policy).body(html))
            }
        }
    }

    fn error_response(self, error: &ApiError) -> HttpResponse {
        match self {
            Self::Html => error.error_response(),
            Self::Plain => {
                let text = format!("{}: {}\n", error.code(), on_one_line(&error.to_string()));
                error.head().content_type(ContentType::plaintext()).body(text)
            }
        }
    }
}

/// The content of the HTML fragment as plain text, one line for each fact.
fn plain(history: &History) -> Result<String, fmt::Error> {
    let (intent, mut text) = (&history.intent, String::new());
    writeln!(text, "Intent summary")?;
    writeln!(text, "Intent: {}", intent.id)?;
    writeln!(text, "Status: {}", intent.state.status().as_str())?;
    writeln!(text, "Target: {}", intent.target)?;
    writeln!(text, "Created: {}", intent.created_at)?;
    if let Some(at) = intent.state.completed_at() {
        writeln!(text, "Completed: {at}")?;
    }
    if let Some(reason) = intent.state.rejected_reason() {
        writeln!(text, "Rejected because: {}", on_one_line(reason))?;
    }
    if let Some(reason) = intent.state.exhausted_reason() {
        writeln!(text, "Exhausted because: {}", reason.as_str())?;
    }
    writeln!(text, "\nAttempts")?;
    if history.attempts.is_empty() {
        let open = "The first attempt is in progress.";
        writeln!(text, "{}", if intent.attempt_open { open } else { "No attempt has been made." })?;
    }
    for attempt in &history.attempts {
        let (number, outcome) = (attempt.attempt_number, &attempt.outcome);
        write!(text, "{number}: {}, from {} to {}", outcome.kind(), attempt.started_at, attempt.finished_at)?;
        if let Some(reason) = outcome.reason().or(outcome.error_text()) {
            write!(text, ", {}", on_one_line(reason))?;
        }
        if let Some(id) = outcome.gateway_message_id() {
            write!(text, ", gateway message id {}", on_one_line(id))?;
        }
        writeln!(text)?;
    }
    if let Some(webhook) = &history.webhook {
        writeln!(text, "\nWebhook\nStatus: {}", webhook.status.as_str())?;
        if let Some(at) = webhook.next_try_at {
            writeln!(text, "Next try: {at}")?;
        }
        for tried in &webhook.tries {
            write!(text, "{}: from {} to {}", tried.number, tried.started_at, tried.finished_at)?;
            if let Some(status) = tried.http_status {
                write!(text, ", HTTP {status}")?;
            }
            if let Some(error) = &tried.error {
                write!(text, ", {}", on_one_line(error))?;
            }
            writeln!(text)?;
        }
    }
    Ok(text)
}

/// Replaces control characters, so that text from a gateway or receiver cannot add lines of its own.
fn on_one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// The form of `/ui/history`.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct HistoryForm {
    pub intent_id: String,
}
