//! `POST /v1/inbox/hooks/{client_slug}/{channel}`: what providers send that cannot send our JSON, signed as
//! Standard Webhooks. The body is kept as it is, whatever it is; the content type says how it will be read.

use actix_web::{HttpRequest, HttpResponse, web};

use super::intake::{keep, key_hash, new_id};
use super::json::ReceivedJson;
use super::{client, open};
use crate::api::json::ErrorJson;
use crate::domain::inbox::PayloadFormat;
use crate::domain::signature::{Secret, TOLERANCE_SECONDS, verify};
use crate::store::NewInboxSubmission;
use crate::web::WebDeps;
use crate::web::body;
use crate::web::error::ApiError;

/// Hand in something that came in, as a signed webhook
///
/// `webhook-id` tells repetitions; the signature takes the place of a token. The body is processed as JSON, or as form
/// fields if its content type is `application/x-www-form-urlencoded`.
#[utoipa::path(post, path = "/v1/inbox/hooks/{client_slug}/{channel}", tag = "inbox", operation_id = "hookToInbox",
    params(
        ("client_slug" = String, Path, description = "A client with a hookSecretEnv"),
        ("channel" = String, Path, description = "One of its channels"),
        ("webhook-id" = String, Header, description = "The same id is kept once"),
        ("webhook-timestamp" = String, Header, description = "Seconds since 1970, at most five minutes from now"),
        ("webhook-signature" = String, Header, description = "As Standard Webhooks has it"),
    ),
    request_body(content = Vec<u8>, description = "Anything; kept byte for byte. Processed as JSON, or as form fields if the content type is application/x-www-form-urlencoded", content_type = "application/octet-stream"),
    responses(
        (status = 202, body = ReceivedJson, description = "It is kept",
            headers(("Idempotent-Replayed" = String, description = "true when it was kept before"))),
        (status = 401, body = ErrorJson, description = "Not signed, not with this client's secret, or not recently"),
        (status = 404, body = ErrorJson, description = "No such client or channel, or it takes no hooks"),
        (status = 408, body = ErrorJson, description = "The body did not arrive in time"),
        (status = 409, body = ErrorJson, description = "The id came before with something else"),
        (status = 413, body = ErrorJson, description = "The body is too large"),
        (status = 503, body = ErrorJson, description = "Overloaded, or the store is gone; try again"),
    ))]
pub async fn hook(
    request: HttpRequest,
    path: web::Path<(String, String)>,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    let registry = deps.registry.get();
    open(&registry)?;
    let (slug, channel) = path.into_inner();
    let no_such = || ApiError::NotFound("there is no such client with that channel that takes hooks".to_owned());
    let (client, channel) = client(&registry, &slug, &channel).ok_or_else(no_such)?;
    let variable = client.hook_secret_env.as_deref().ok_or_else(no_such)?;
    let secrets = deps.variables.get(variable).and_then(|text| Secret::parse_list(&text).ok()).unwrap_or_default();
    let (body, _room) = body::read(payload, deps.max_payload_bytes).await?;
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
    let id = new_id()?;
    keep(&deps, NewInboxSubmission { id, client_slug, channel, payload: body, format, source_url: None, key_sha256 })
        .await
}
