//! `/ui/history`: one intent and its attempts as an HTML fragment that other portals embed, or as plain text.
//!
//! Portals style the fragment by its classes, which stay as they are: `kv` for the summary, `table` for tables, `status` and
//! `status-…` for what became of the intent, of an attempt and of the webhook.

use std::fmt::{self, Write};

use actix_web::http::StatusCode;
use actix_web::http::header::{Accept, ContentType, Header};
use actix_web::{HttpRequest, HttpResponse, ResponseError, web};
use askama::Template;
use url::form_urlencoded;

use crate::api::intents::{known_id, no_such_intent};
use crate::api::json::ErrorJson;
use crate::domain::client::Scope;
use crate::store::History;
use crate::web::body;
use crate::web::error::ApiError;
use crate::web::{WebDeps, auth, with_and_without_slash};

/// A form with an id of 200 characters, each as twelve percent-encoded bytes, fits.
const MAX_FORM_BYTES: usize = 8 * 1024;

#[derive(Template)]
#[template(path = "history.html")]
struct Fragment<'a> {
    asked_for: &'a str,
    history: Option<History>,
}

pub fn routes(config: &mut web::ServiceConfig) {
    config.service(
        web::resource(with_and_without_slash("/ui/history"))
            .route(web::post().to(fragment))
            .default_service(web::to(refuse_method)),
    );
}

/// The history of an intent as an HTML fragment, or as plain text for `Accept: text/plain`
#[utoipa::path(post, path = "/ui/history", tag = "console", operation_id = "historyFragment",
    security((), ("bearer" = ["intents:read"])),
    request_body(content = HistoryForm, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, description = "Summary and attempts", content((String = "text/html"), (String = "text/plain"))),
        (status = 400, description = "The form has no intentId", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 401, description = "Missing or invalid bearer token, where one is needed", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 403, description = "The token lacks the scope; or without tokens: the request comes from a web page of another site", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 404, description = "No such intent", content((String = "text/html"), (String = "text/plain"))),
        (status = 408, description = "The body did not arrive in time", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 413, description = "The form is too large", content((ErrorJson = "application/json"), (String = "text/plain"))),
        (status = 503, description = "Overloaded, or the store is gone; try again", content((ErrorJson = "application/json"), (String = "text/plain"))),
    ))]
pub async fn fragment(request: HttpRequest, payload: web::Payload, deps: web::Data<WebDeps>) -> HttpResponse {
    let format = Format::wanted(&request);
    let shown = match look_up(&request, payload, &deps).await {
        Ok((asked_for, history)) => format.show(&asked_for, history),
        Err(error) => Err(error),
    };
    shown.unwrap_or_else(|error| format.refuse(&error))
}

/// Every other method.
pub async fn refuse_method(request: HttpRequest) -> HttpResponse {
    Format::wanted(&request).refuse(&ApiError::MethodNotAllowed { allowed: "POST" })
}

/// What is asked for, and what is known of it.
async fn look_up(
    request: &HttpRequest,
    payload: web::Payload,
    deps: &WebDeps,
) -> Result<(String, Option<History>), ApiError> {
    auth::allow(request, deps, Scope::IntentsRead)?;
    let (form, _room) = body::read(payload, MAX_FORM_BYTES).await?;
    let asked_for = form_urlencoded::parse(&form)
        .find(|(name, _)| name == "intentId")
        .map(|(_, value)| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .ok_or_else(|| ApiError::InvalidRequest("the form must have an intentId".to_owned()))?;
    let history = match known_id(&asked_for) {
        Ok(id) => deps.store.history(id).await?,
        Err(_) => None,
    };
    Ok((asked_for, history))
}

/// In which form the answer is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Html,
    Plain,
}

impl Format {
    /// Whichever the client names first; HTML if it names neither.
    fn wanted(request: &HttpRequest) -> Self {
        let wanted = Accept::parse(request).map(|accept| accept.ranked()).unwrap_or_default();
        let known = wanted.iter().find_map(|mime| match mime.essence_str() {
            "text/plain" => Some(Self::Plain),
            "text/html" => Some(Self::Html),
            _ => None,
        });
        known.unwrap_or(Self::Html)
    }

    fn show(self, asked_for: &str, history: Option<History>) -> Result<HttpResponse, ApiError> {
        let failed = |error: &dyn fmt::Display| {
            log::error!("page_failed page=history error={:?}", error.to_string());
            ApiError::Internal
        };
        let status = if history.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
        let mut response = HttpResponse::build(status);
        match (self, history) {
            (Self::Plain, None) => Err(no_such_intent(asked_for)),
            (Self::Plain, Some(history)) => {
                let text = plain(&history).map_err(|error| failed(&error))?;
                Ok(response.content_type(ContentType::plaintext()).body(text))
            }
            (Self::Html, history) => {
                let html = Fragment { asked_for, history }.render().map_err(|error| failed(&error))?;
                Ok(response.content_type(ContentType::html()).body(html))
            }
        }
    }

    fn refuse(self, error: &ApiError) -> HttpResponse {
        match self {
            Self::Html => error.error_response(),
            Self::Plain => {
                let text = format!("{}: {}\n", error.code(), on_one_line(&error.to_string()));
                error.head().content_type(ContentType::plaintext()).body(text)
            }
        }
    }
}

/// The same as the fragment says, a line each.
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
        let open = "The first attempt is under way.";
        writeln!(text, "{}", if intent.attempt_open { open } else { "No attempt has been made." })?;
    }
    for attempt in &history.attempts {
        let (number, outcome) = (attempt.attempt_number, &attempt.outcome);
        write!(text, "{number}: {}, from {} to {}", outcome.kind(), attempt.started_at, attempt.finished_at)?;
        if let Some(said) = outcome.reason().or(outcome.error_text()) {
            write!(text, ", {}", on_one_line(said))?;
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

/// What others wrote makes no lines of its own.
fn on_one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// The form of `/ui/history`.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct HistoryForm {
    pub intent_id: String,
}
