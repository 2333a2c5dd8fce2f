//! `POST /v1/inbox/submissions`: keep it, answer, and nothing else.

use actix_web::{HttpRequest, HttpResponse, web};
use sha2::{Digest, Sha256};

use super::json::{ReceivedJson, SubmissionRequest};
use super::{client, open};
use crate::api::json::{ErrorJson, Refused};
use crate::config::registry::Registry;
use crate::domain::client::Scope;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, PayloadFormat};
use crate::domain::intent::checked_name;
use crate::http_client::shown;
use crate::store::{NewInboxSubmission, Received};
use crate::web::body;
use crate::web::error::ApiError;
use crate::web::{ENVELOPE_BYTES, WebDeps, auth};

/// As long as browsers make them.
const MAX_SOURCE_CHARS: usize = 2000;

/// Hand in something that came in
///
/// Answers as soon as it is durable, whether or not anybody can process it now. The payload is kept byte
/// for byte as it stands in the request.
#[utoipa::path(post, path = "/v1/inbox/submissions", tag = "inbox", operation_id = "submitToInbox",
    security((), ("bearer" = ["inbox:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key with the same submission is kept once; per client")),
    request_body = SubmissionRequest,
    responses(
        (status = 202, body = ReceivedJson, description = "It is kept",
            headers(("Idempotent-Replayed" = String, description = "true when it was kept before"))),
        (status = 400, body = ErrorJson, description = "The request is not right, or the client or its channel unknown"),
        (status = 404, body = ErrorJson, description = "The inbox has no clients"),
        (status = 408, body = ErrorJson, description = "The body did not arrive in time"),
        (status = 409, body = ErrorJson, description = "The key came before with something else"),
        (status = 413, body = ErrorJson, description = "The payload is too large"),
        Refused,
    ))]
pub async fn submit(
    request: HttpRequest,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    let registry = deps.registry.get();
    open(&registry)?;
    auth::allow(&request, &deps, Scope::InboxWrite)?;
    let key = idempotency_key(&request)?;
    let (body, _room) = body::read(payload, deps.max_payload_bytes + ENVELOPE_BYTES).await?;
    let Incoming { client_slug, channel, payload, source_url } =
        parse_submission(&body, &registry, deps.max_payload_bytes)?;
    let key_sha256 = key.map(|key| key_hash(&client_slug, "key", &key));
    keep(
        &deps,
        NewInboxSubmission {
            id: new_id()?,
            client_slug,
            channel,
            payload,
            format: PayloadFormat::Json,
            source_url,
            key_sha256,
        },
    )
    .await
}

/// What a body asks to be kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Incoming {
    pub client_slug: String,
    pub channel: Channel,
    /// A slice of the body.
    pub payload: web::Bytes,
    pub source_url: Option<String>,
}

/// Reads a body; its client and channel must be in the registry.
pub fn parse_submission(body: &web::Bytes, registry: &Registry, max_payload: usize) -> Result<Incoming, ApiError> {
    let invalid = |text: String| ApiError::InvalidRequest(text);
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(invalid("the body must be a JSON object".to_owned()));
    }
    let asked: SubmissionRequest<'_> =
        serde_json::from_slice(body).map_err(|error| invalid(format!("the body is not as expected: {error}")))?;
    let slug = asked.client_slug.trim();
    let (client, channel) = client(registry, slug, asked.channel.trim()).ok_or_else(|| {
        invalid(format!("there is no client {:?} with a channel {:?}", shown(slug), shown(asked.channel.trim())))
    })?;
    let source_url = asked.source_url.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if let Some(text) = &source_url
        && (text.chars().count() > MAX_SOURCE_CHARS || text.chars().any(char::is_control))
    {
        let rule = format!("source_url must have at most {MAX_SOURCE_CHARS} characters and no control characters");
        return Err(invalid(rule));
    }
    let payload = asked.payload.get().as_bytes();
    if payload.len() > max_payload {
        return Err(ApiError::PayloadTooLarge { what: "payload", limit: max_payload });
    }
    let payload = body.slice_ref(payload);
    Ok(Incoming { client_slug: client.slug.clone(), channel, payload, source_url })
}

/// What tells repetitions apart: a key of this client, of this kind.
pub(super) fn key_hash(client_slug: &str, kind: &str, key: &str) -> [u8; 32] {
    Sha256::digest([client_slug, kind, key].join("\n")).into()
}

pub(super) fn new_id() -> Result<InboxSubmissionId, ApiError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| {
        log::error!("no_random_numbers error={error}");
        ApiError::Internal
    })?;
    Ok(InboxSubmissionId::from_random(random))
}

/// Makes it durable and says so.
pub(super) async fn keep(deps: &WebDeps, new: NewInboxSubmission) -> Result<HttpResponse, ApiError> {
    let (id, replayed) = match deps.store.receive(new).await? {
        Received::Created(id) => (id, false),
        Received::Existing(id) => (id, true),
        Received::Conflict(id) => return Err(ApiError::KeyConflict { id }),
    };
    let mut response = HttpResponse::Accepted();
    if replayed {
        response.insert_header(("Idempotent-Replayed", "true"));
    }
    Ok(response.json(ReceivedJson { id: id.to_string() }))
}

fn idempotency_key(request: &HttpRequest) -> Result<Option<String>, ApiError> {
    let Some(value) = request.headers().get("Idempotency-Key") else { return Ok(None) };
    let key = value.to_str().ok().and_then(|text| checked_name(text).ok());
    let fault = || ApiError::InvalidRequest("Idempotency-Key must be 1 to 200 visible characters".to_owned());
    key.map(|key| Some(key.to_string())).ok_or_else(fault)
}
