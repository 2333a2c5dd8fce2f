//! `/v1/intents/{intentId}/webhook`: an event that is to be delivered once more.

use actix_web::{HttpRequest, HttpResponse, web};

use super::intents::{known_id, no_such_intent};
use super::json::{ErrorJson, Refused, WebhookJson};
use crate::domain::client::Scope;
use crate::store::Redelivery;
use crate::web::error::ApiError;
use crate::web::{WebDeps, auth};

/// Deliver the webhook event of an intent again
///
/// Whatever became of it before: it is due now, and tried for a day like a new one. Its `eventId`
/// stays, so a receiver that has had it can tell.
#[utoipa::path(post, path = "/v1/intents/{intentId}/webhook/redeliver", tag = "intents",
    operation_id = "redeliverWebhook",
    security((), ("bearer" = ["intents:write"])),
    params(("intentId" = String, Path, description = "Percent-encoded where a URL needs it")),
    responses(
        (status = 202, body = WebhookJson, description = "It is due now"),
        (status = 404, body = ErrorJson, description = "No such intent, or its contract has no webhook"),
        (status = 409, body = ErrorJson, description = "The intent has not ended; its event is owed when it does"),
        Refused,
    ))]
pub async fn redeliver(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    auth::allow(&request, &deps, Scope::IntentsWrite)?;
    let id = known_id(&path)?;
    match deps.store.redeliver_webhook(id.clone()).await? {
        Redelivery::NoIntent => return Err(no_such_intent(&path)),
        Redelivery::NoWebhook => {
            return Err(ApiError::NotFound(format!("the contract of intent {id:?} has no webhook")));
        }
        Redelivery::NotEnded => return Err(ApiError::NotTerminal { id }),
        Redelivery::Pending => {}
    }
    log::info!("webhook_redelivered intent_id={id:?}");
    let history = deps.store.history(id).await?.ok_or_else(|| no_such_intent(&path))?;
    let webhook = history.webhook.as_ref().ok_or_else(|| no_such_intent(&path))?;
    Ok(HttpResponse::Accepted().json(WebhookJson::of(&history.intent, webhook)))
}
