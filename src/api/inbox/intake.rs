//! `POST /v1/inbox/submissions`: stores an inbox submission. The leader processes it later.

use actix_web::{HttpRequest, HttpResponse, web};
use sha2::{Digest, Sha256};

use super::json::{ReceivedJson, SubmissionRequest};
use super::{client, require_enabled};
use crate::api::json::{CommonErrors, ErrorJson};
use crate::config::registry::Registry;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, PayloadFormat};
use crate::domain::intent::checked_name;
use crate::http_client::shown;
use crate::store::{NewInboxSubmission, Received};
use crate::web::error::ApiError;
use crate::web::{ENVELOPE_BYTES, WebDeps, id_bytes};

const KEY_HEADER: &str = "Idempotency-Key";

/// The maximum length of a `source_url`: about what browsers support.
const MAX_SOURCE_CHARS: usize = 2000;

/// Submit to the inbox
///
/// Responds as soon as the submission is stored durably; it is processed later. The service stores the exact bytes of the
/// payload.
#[utoipa::path(post, path = "/v1/inbox/submissions", tag = "inbox", operation_id = "submitToInbox",
    security((), ("bearer" = ["inbox:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the submission idempotent: the same key of the same client is stored once")),
    request_body = SubmissionRequest,
    responses(
        (status = 202, body = ReceivedJson, description = "The submission is stored",
            headers(("Idempotent-Replayed" = String, description = "`true` if it was already stored"))),
        (status = 400, body = ErrorJson, description = "The request is invalid, or there is no such client or channel"),
        (status = 404, body = ErrorJson, description = "The inbox is not enabled"),
        (status = 408, body = ErrorJson, description = "The request body did not arrive in time"),
        (status = 409, body = ErrorJson, description = "The key was already used with a different request"),
        (status = 413, body = ErrorJson, description = "The payload is too large"),
        CommonErrors,
    ))]
pub(crate) async fn submit(
    request: HttpRequest,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    let registry = deps.registry.get();
    require_enabled(&registry)?;
    let key = idempotency_key(&request)?;
    let (body, _reservation) = deps.bodies.read(payload, deps.max_payload_bytes + ENVELOPE_BYTES).await?;
    let Incoming { client_slug, channel, payload, source_url } =
        parse_submission(&body, &registry, deps.max_payload_bytes)?;
    let key_sha256 = key.map(|key| key_hash(&client_slug, "key", &key));
    let (id, format) = (InboxSubmissionId::from_random(id_bytes()?), PayloadFormat::Json);
    let new = NewInboxSubmission { id, client_slug, channel, payload, format, source_url, key_sha256 };
    receive(&deps, new, KEY_HEADER).await
}

/// The parsed body of a submission.
#[derive(Clone, PartialEq, Eq)]
pub struct Incoming {
    pub client_slug: String,
    pub channel: Channel,
    /// A slice of the body.
    pub payload: web::Bytes,
    pub source_url: Option<String>,
}

/// Parses the body of a submission. Its client and channel must be in the registry.
pub fn parse_submission(body: &web::Bytes, registry: &Registry, max_payload: usize) -> Result<Incoming, ApiError> {
    let invalid = |text: String| ApiError::InvalidRequest(text);
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(invalid("the body must be a JSON object".to_owned()));
    }
    let request: SubmissionRequest<'_> =
        serde_json::from_slice(body).map_err(|error| invalid(format!("the body is invalid: {error}")))?;
    let slug = request.client_slug.trim();
    let (client, channel) = client(registry, slug, request.channel.trim()).ok_or_else(|| {
        invalid(format!("no such client {:?} with a channel {:?}", shown(slug), shown(request.channel.trim())))
    })?;
    let source_url = request.source_url.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if let Some(text) = &source_url
        && (text.chars().count() > MAX_SOURCE_CHARS || text.chars().any(char::is_control))
    {
        let rule = format!("source_url must have at most {MAX_SOURCE_CHARS} characters and no control characters");
        return Err(invalid(rule));
    }
    let payload = request.payload.get().as_bytes();
    if payload.len() > max_payload {
        return Err(ApiError::PayloadTooLarge { what: "payload", limit: max_payload });
    }
    let payload = body.slice_ref(payload);
    Ok(Incoming { client_slug: client.slug.clone(), channel, payload, source_url })
}

/// The hash by which the store detects duplicates. Keys of different clients and of different kinds never collide.
pub(super) fn key_hash(client_slug: &str, kind: &str, key: &str) -> [u8; 32] {
    Sha256::digest([client_slug, kind, key].join("\n")).into()
}

/// Stores a submission durably and returns the response. `key_header` is the header that its key came from.
pub(super) async fn receive(
    deps: &WebDeps,
    new: NewInboxSubmission,
    key_header: &'static str,
) -> Result<HttpResponse, ApiError> {
    let (id, replayed) = match deps.store.receive(new).await? {
        Received::Created(id) => (id, false),
        Received::Existing(id) => (id, true),
        Received::Conflict(id) => return Err(ApiError::KeyConflict { header: key_header, id }),
    };
    let mut response = HttpResponse::Accepted();
    if replayed {
        response.insert_header(("Idempotent-Replayed", "true"));
    }
    Ok(response.json(ReceivedJson { id: id.to_string() }))
}

fn idempotency_key(request: &HttpRequest) -> Result<Option<String>, ApiError> {
    let Some(value) = request.headers().get(KEY_HEADER) else { return Ok(None) };
    let key = value.to_str().ok().and_then(|text| checked_name(text).ok());
    let invalid = || ApiError::InvalidRequest("Idempotency-Key must have 1 to 200 visible characters".to_owned());
    key.map(|key| Some(key.to_string())).ok_or_else(invalid)
}
