//! `/v1/intents/{intentId}/webhook/redeliver`: deliver a webhook event again.

use actix_web::{HttpResponse, web};

use super::intents::{no_such_intent, parse_id};
use super::json::{CommonErrors, ErrorJson, WebhookJson};
use crate::domain::actor::Actor;
use crate::store::Redelivery;
use crate::web::WebDeps;
use crate::web::error::ApiError;

/// Redeliver the webhook event of an intent
///
/// The event is sent again as soon as possible, whether or not it was delivered before, and is retried for up to a day
/// like a new event. Its `eventId` stays the same, so receivers can detect the duplicate.
#[utoipa::path(post, path = "/v1/intents/{intentId}/webhook/redeliver", tag = "intents",
    operation_id = "redeliverWebhook",
    security((), ("bearer" = ["intents:write"])),
    params(("intentId" = String, Path, description = "The id of the intent, percent-encoded")),
    responses(
        (status = 202, body = WebhookJson, description = "The event will be sent again"),
        (status = 404, body = ErrorJson, description = "No such intent, or its contract has no webhook"),
        (status = 409, body = ErrorJson, description = "The intent is still pending; it has no webhook event yet"),
        CommonErrors,
    ))]
pub(super) async fn redeliver(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, ApiError> {
    let id = parse_id(&path)?;
    match deps.store.redeliver_webhook(id.clone(), by).await? {
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
