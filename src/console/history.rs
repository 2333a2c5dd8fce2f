//! `/ui/history`: one intent and its attempts as an HTML fragment that other portals embed.

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use url::form_urlencoded;

use crate::core::client::Scope;
use crate::http::body;
use crate::http::error::ApiError;
use crate::http::intents::known_id;
use crate::http::{HttpParts, auth};
use crate::store::History;

/// A form with an id of 200 characters, each as twelve percent-encoded bytes, fits.
const MAX_FORM_BYTES: usize = 8 * 1024;

#[derive(Template)]
#[template(path = "history.html")]
struct Fragment<'a> {
    asked_for: &'a str,
    history: Option<History>,
}

/// The history of an intent as an HTML fragment
#[utoipa::path(post, path = "/ui/history", tag = "console", operation_id = "historyFragment",
    security((), ("bearer" = ["intents:read"])),
    request_body(content = HistoryForm, content_type = "application/x-www-form-urlencoded"),
    responses(
        (status = 200, description = "Summary and attempts", body = String, content_type = "text/html"),
        (status = 400, description = "The form has no intentId", body = crate::http::json::ErrorJson),
        (status = 401, description = "A token is needed, and there is none or not one that is known", body = crate::http::json::ErrorJson),
        (status = 403, description = "The token lacks the scope", body = crate::http::json::ErrorJson),
        (status = 404, description = "No such intent, said in HTML", body = String, content_type = "text/html"),
        (status = 503, description = "Overloaded, or the store is gone; try again", body = crate::http::json::ErrorJson),
    ))]
pub async fn fragment(
    request: HttpRequest,
    payload: web::Payload,
    parts: web::Data<HttpParts>,
) -> Result<HttpResponse, ApiError> {
    auth::allow(&request, &parts, Scope::IntentsRead)?;
    let (form, _room) = body::read(payload, MAX_FORM_BYTES).await?;
    let asked_for = form_urlencoded::parse(&form)
        .find(|(name, _)| name == "intentId")
        .map(|(_, value)| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .ok_or_else(|| ApiError::InvalidRequest("the form must have an intentId".to_owned()))?;
    let history = match known_id(&asked_for) {
        Ok(id) => parts.store.history(id).await?,
        Err(_) => None,
    };
    let status = if history.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let html = Fragment { asked_for: &asked_for, history }.render().map_err(|error| {
        log::error!("page_failed page=history error={error:?}");
        ApiError::Internal
    })?;
    Ok(HttpResponse::build(status).content_type(ContentType::html()).body(html))
}

/// The form of `/ui/history`.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct HistoryForm {
    pub intent_id: String,
}
