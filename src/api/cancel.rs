//! `/v1/intents/{intentId}/cancel`: end an intent that waits for an attempt. [`cancel`] also serves jobs and the console.

use actix_web::{HttpRequest, HttpResponse, web};

use super::intents::{no_such_intent, parse_id};
use super::json::{CancelledIntentJson, CommonErrors, ErrorJson};
use crate::domain::actor::Actor;
use crate::domain::intent::{Intent, IntentId};
use crate::store::{Cancellation, StoreError};
use crate::web::WebDeps;
use crate::web::error::ApiError;
use crate::web::query::Query;

/// Cancel an intent
///
/// Ends an intent that waits for an attempt: its status becomes `exhausted` with the reason `cancelled`. Cancelling it again
/// returns the same response. If an attempt is in progress, the call fails, unless `afterAttempt=true` is given: then the
/// attempt finishes and its outcome counts, so an accepted intent stays accepted, and no further attempt starts.
#[utoipa::path(post, path = "/v1/intents/{intentId}/cancel", tag = "intents", operation_id = "cancelIntent",
    security((), ("bearer" = ["intents:write"])),
    params(
        ("intentId" = String, Path, description = "The id of the intent, percent-encoded"),
        ("afterAttempt" = Option<bool>, Query, description = "If an attempt is in progress, cancel the intent after it"),
    ),
    responses(
        (status = 200, body = CancelledIntentJson, description = "The intent is cancelled"),
        (status = 202, body = CancelledIntentJson, description = "An attempt is in progress; no further attempt starts after it"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid"),
        (status = 404, body = ErrorJson, description = "No such intent"),
        (status = 409, body = ErrorJson, description = "An attempt is in progress (`attempt_in_progress`), or the intent has ended for another reason (`already_terminal`)"),
        CommonErrors,
    ))]
pub(super) async fn cancel_intent(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, ApiError> {
    let id = parse_id(&path)?;
    let after_attempt = after_attempt(request.query_string())?;
    let cancelled = Cancelled::of(cancel(&deps, id, after_attempt, by).await?)?.ok_or_else(|| no_such_intent(&path))?;
    Ok(cancelled.status().json(CancelledIntentJson::from(cancelled.intent())))
}

/// An intent that is cancelled, or will be after its attempt.
pub enum Cancelled {
    Now(Intent),
    AfterAttempt(Intent),
}

impl Cancelled {
    /// The response to a cancellation; `None` if there is no such intent.
    pub fn of(cancellation: Cancellation) -> Result<Option<Self>, ApiError> {
        match cancellation {
            Cancellation::Cancelled(intent) | Cancellation::CancelledBefore(intent) => Ok(Some(Self::Now(intent))),
            Cancellation::AfterAttempt(intent) => Ok(Some(Self::AfterAttempt(intent))),
            Cancellation::AttemptInProgress(intent) => {
                Err(ApiError::AttemptInProgress { attempt: intent.attempt_count })
            }
            Cancellation::AlreadyTerminal(intent) => Err(ApiError::AlreadyTerminal { status: intent.state.status() }),
            Cancellation::NotFound => Ok(None),
        }
    }

    pub fn intent(&self) -> &Intent {
        match self {
            Self::Now(intent) | Self::AfterAttempt(intent) => intent,
        }
    }

    /// The response without its body.
    pub fn status(&self) -> actix_web::HttpResponseBuilder {
        match self {
            Self::Now(_) => HttpResponse::Ok(),
            Self::AfterAttempt(_) => HttpResponse::Accepted(),
        }
    }
}

/// Parses the query string of a cancellation.
pub fn after_attempt(text: &str) -> Result<bool, ApiError> {
    let query = Query::parse(text, &["afterAttempt"])?;
    Ok(query.get("afterAttempt", "true or false", |text| text.parse().ok())?.unwrap_or(false))
}

/// Cancels an intent, and counts and logs it.
pub async fn cancel(deps: &WebDeps, id: IntentId, after_attempt: bool, by: Actor) -> Result<Cancellation, StoreError> {
    let cancellation = deps.store.cancel(id.clone(), after_attempt, by).await?;
    match &cancellation {
        Cancellation::Cancelled(intent) => {
            log::info!("intent_cancelled intent_id={id:?} attempts={}", intent.attempt_count);
            deps.metrics.intent_ended(intent);
            deps.watchers.publish(&id);
        }
        Cancellation::AfterAttempt(intent) => {
            log::info!("intent_cancel_requested intent_id={id:?} attempt={}", intent.attempt_count);
        }
        _ => {}
    }
    Ok(cancellation)
}
