//! `/v1/intents/{intentId}/redrive`: send one failed intent again.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::super::intents::{no_such_intent, parse_id};
use super::super::json::{CommonErrors, ErrorJson};
use super::json::optional_object;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::{Intent, IntentId, Payload, Status};
use crate::domain::intent_json::IntentJson;
use crate::domain::redrive::redriven_id;
use crate::domain::trace::TraceContext;
use crate::store::{NewIntent, RedriveLink, RedriveSource, Submitted};
use crate::web::error::ApiError;
use crate::web::{ENVELOPE_BYTES, WebDeps, trace};

/// How to redrive an intent.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedriveIntentRequest<'a> {
    /// Any JSON, in place of the payload of the intent. Without it, the new intent has the same payload bytes.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Value, required = false, example = json!({"to": "+46700000001", "message": "Your order is on its way"}))]
    payload: Option<&'a RawValue>,
}

/// Reads a field that is present. `null` is a payload of four bytes; only a missing field means the payload of the intent.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Redrive an intent
///
/// Sends a failed intent again immediately, as a new intent under the current contract of its target. The gateway gets
/// the `Idempotency-Key` of the first intent of the chain, so it can recognize a message that it has accepted before.
#[utoipa::path(post, path = "/v1/intents/{intentId}/redrive", tag = "redrives", operation_id = "redriveIntent",
    security((), ("bearer" = ["admin"])),
    params(("intentId" = String, Path, description = "The id of the intent, percent-encoded")),
    request_body(content = Option<RedriveIntentRequest>),
    responses(
        (status = 201, body = IntentJson, description = "The new intent"),
        (status = 400, body = ErrorJson, description = "The payload is invalid, or the target is not in the registry"),
        (status = 404, body = ErrorJson, description = "No such intent"),
        (status = 408, body = ErrorJson, description = "The request body did not arrive in time"),
        (status = 409, body = ErrorJson, description = "The intent was already redriven (`already_redriven`), or has not failed (`invalid_state`)"),
        (status = 413, body = ErrorJson, description = "The payload is too large"),
        CommonErrors,
    ))]
pub async fn redrive(
    request: HttpRequest,
    path: web::Path<String>,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, ApiError> {
    let id = parse_id(&path)?;
    let (body, _reservation) = deps.bodies.read(payload, deps.max_payload_bytes + ENVELOPE_BYTES).await?;
    let edited = parse_payload(&body, deps.max_payload_bytes)?;
    let created = redrive_intent(&deps, id, edited, trace::of_request(&request), &by).await?;
    Ok(HttpResponse::Created().json(IntentJson::from(&created)))
}

/// Parses the body, which may be empty, and returns the edited payload.
fn parse_payload(body: &web::Bytes, limit: usize) -> Result<Option<Payload>, ApiError> {
    let request: RedriveIntentRequest<'_> = optional_object(body)?;
    let Some(payload) = request.payload.map(|raw| raw.get().as_bytes()) else { return Ok(None) };
    if payload.len() > limit {
        return Err(ApiError::PayloadTooLarge { what: "payload", limit });
    }
    Ok(Some(Payload::new(body.slice_ref(payload))))
}

/// Redrives an intent, and logs it. `edited` replaces its payload.
pub async fn redrive_intent(
    deps: &WebDeps,
    id: IntentId,
    edited: Option<Payload>,
    trace: Option<TraceContext>,
    by: &Actor,
) -> Result<Intent, ApiError> {
    let source = deps.store.redrive_source(id.clone()).await?;
    let RedriveSource { intent, payload, gateway_key } = source.ok_or_else(|| no_such_intent(id.as_str()))?;
    let status = intent.state.status();
    if !matches!(status, Status::Rejected | Status::Exhausted) {
        return Err(ApiError::NotFailed { status });
    }
    let contract = deps.registry.get().contract(&intent.target).ok_or_else(|| {
        ApiError::InvalidRequest(format!(
            "submissionTarget {:?} is not in the registry, so the intent cannot be redriven",
            intent.target
        ))
    })?;
    // The same for every request, so that a repeated one does not create another intent.
    const ALONE: &str = "single";
    let new_id = redriven_id(&id, ALONE);
    let audit = Some(NewAuditEntry::redrive_intent(by, &id, &new_id, edited.is_some()));
    let link = RedriveLink { of: id.clone(), redrive: None, gateway_key, audit };
    let payload = edited.unwrap_or_else(|| Payload::new(payload));
    let new = NewIntent { id: new_id, contract, payload, not_before: None, redrive: Some(link), trace, job: None };
    match deps.store.submit(new).await? {
        Submitted::Created(created) => {
            log::info!("intent_redriven intent_id={id:?} redriven_as={:?}", created.id);
            Ok(created)
        }
        Submitted::Conflict(conflict) if conflict.existing.redrive_of.as_ref() != Some(&id) => {
            Err(ApiError::IdempotencyConflict { conflict: Box::new(conflict) })
        }
        Submitted::TooFarAhead => Err(ApiError::Internal),
        Submitted::Existing(_) | Submitted::Conflict(_) | Submitted::AlreadyRedriven => {
            let history = deps.store.history(id.clone()).await?;
            let redriven_as = history.and_then(|history| history.redriven_as);
            Err(redriven_as.map_or(ApiError::Internal, |redriven_as| ApiError::AlreadyRedriven { redriven_as }))
        }
    }
}
