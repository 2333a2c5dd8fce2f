//! `POST /v1/inbox/hooks/{client_slug}/{channel}`: accepts inbox submissions as webhooks that are signed according to
//! Standard Webhooks.
//!
//! This is for providers that cannot send the JSON of `/v1/inbox/submissions`. The body may be anything and is stored
//! unchanged; its content type decides how it is parsed later.

use actix_web::{HttpRequest, HttpResponse, web};

use super::intake::{key_hash, receive};
use super::json::ReceivedJson;
use super::{client, require_enabled};
use crate::api::json::ErrorJson;
use crate::domain::inbox::{InboxSubmissionId, PayloadFormat};
use crate::domain::signature::{Secret, TOLERANCE_SECONDS, verify};
use crate::store::NewInboxSubmission;
use crate::web::error::ApiError;
use crate::web::{WebDeps, id_bytes};

/// Submit to the inbox as a signed webhook
///
/// The signature replaces a bearer token, and `webhook-id` makes the submission idempotent. The body is parsed as JSON, or
/// as form fields if its content type is `application/x-www-form-urlencoded`.
#[utoipa::path(post, path = "/v1/inbox/hooks/{client_slug}/{channel}", tag = "inbox", operation_id = "hookToInbox",
    params(
        ("client_slug" = String, Path, description = "The slug of a client with a `hookSecretEnv`"),
        ("channel" = String, Path, description = "A channel of that client"),
        ("webhook-id" = String, Header, description = "The unique id of the webhook; the same id is stored once"),
        ("webhook-timestamp" = String, Header, description = "Unix time in seconds, at most five minutes from now"),
        ("webhook-signature" = String, Header, description = "The signature according to Standard Webhooks"),
    ),
    request_body(content = Vec<u8>, description = "Any bytes, stored unchanged. They are parsed as JSON, or as form fields if the content type is application/x-www-form-urlencoded", content_type = "application/octet-stream"),
    responses(
        (status = 202, body = ReceivedJson, description = "The submission is stored",
            headers(("Idempotent-Replayed" = String, description = "`true` if it was already stored"))),
        (status = 401, body = ErrorJson, description = "The signature is missing, invalid or expired"),
        (status = 404, body = ErrorJson, description = "No such client or channel, or the client has no `hookSecretEnv`"),
        (status = 408, body = ErrorJson, description = "The request body did not arrive in time"),
        (status = 409, body = ErrorJson, description = "The `webhook-id` was already used with a different request"),
        (status = 413, body = ErrorJson, description = "The request body is too large"),
        (status = 503, body = ErrorJson, description = "The service is overloaded or the store is unavailable; try again"),
    ))]
pub(crate) async fn hook(
    request: HttpRequest,
    path: web::Path<(String, String)>,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    let registry = deps.registry.get();
    require_enabled(&registry)?;
    let (slug, channel) = path.into_inner();
    let no_such =
        || ApiError::NotFound("no such client and channel, or the client does not accept webhooks".to_owned());
    let (client, channel) = client(&registry, &slug, &channel).ok_or_else(no_such)?;
    let variable = client.hook_secret_env.as_deref().ok_or_else(no_such)?;
    let secrets = deps.variables.get(variable).and_then(|text| Secret::parse_list(&text).ok()).unwrap_or_default();
    let (body, _reservation) = deps.bodies.read(payload, deps.max_payload_bytes).await?;
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (id, signatures) = (header("webhook-id"), header("webhook-signature"));
    let timestamp: i64 = header("webhook-timestamp").parse().map_err(|_| ApiError::NotSigned)?;
    let now = deps.clock.now().micros().div_euclid(1_000_000);
    let recent = now.abs_diff(timestamp) <= TOLERANCE_SECONDS.unsigned_abs();
    if id.is_empty() || !recent || !verify(&secrets, id, timestamp, &body, signatures) {
        return Err(ApiError::NotSigned);
    }
    let key_sha256 = Some(key_hash(&client.slug, "hook", id));
    let client_slug = client.slug.clone();
    let format = PayloadFormat::of_content_type(header("content-type"));
    let id = InboxSubmissionId::from_random(id_bytes()?);
    let new = NewInboxSubmission { id, client_slug, channel, payload: body, format, source_url: None, key_sha256 };
    receive(&deps, new, "webhook-id").await
}
