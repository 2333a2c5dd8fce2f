//! The JSON types of requests and responses. The OpenAPI document is generated from them, so the doc comments on types and
//! fields are what API users read.

use std::num::NonZeroU32;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoResponses, ToSchema};

use super::targets::KnownTarget;
use crate::domain::intent::{Intent, IntentId, TargetName};
use crate::domain::intent_json::IntentJson;
use crate::domain::limits::{AttemptTimeout, Rate};
use crate::domain::time::Timestamp;
use crate::domain::webhook::event_id;
use crate::store::{Attempt, History, WebhookHistory, WebhookTry};

/// A submission of an intent.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitRequest<'a> {
    /// Your unique id for this intent. It also makes the submission idempotent: submitting the same id again returns the
    /// existing intent.
    #[schema(example = "order-1001-confirmation", min_length = 1, max_length = 200)]
    pub intent_id: String,
    /// The name of a target in the registry.
    #[schema(example = "sms.realtime", min_length = 1, max_length = 200)]
    pub submission_target: String,
    /// Any JSON. The gateway gets exactly the bytes of the request.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Value, required = false, example = json!({"to": "+46700000001", "message": "Your order is on its way"}))]
    pub payload: Option<&'a RawValue>,
    /// When the first attempt may start: at most 30 days ahead. A time in the past means now. The deadline of a contract
    /// with the policy `deadline` counts from it.
    #[serde(default)]
    #[schema(format = DateTime, example = "2026-11-17T08:00:00Z")]
    pub not_before: Option<String>,
}

/// Reads a field that is present. `null` is a payload of four bytes; only a missing field means that there is no payload.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// One attempt. `outcomeStatus` is the outcome that the gateway reported. If there is none, `error` says why.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Attempt)]
pub struct AttemptJson<'a> {
    #[schema(minimum = 1)]
    pub attempt_number: u32,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub finished_at: Timestamp,
    /// `accepted` or `rejected`; null if the attempt ended with an error.
    #[schema(required = true)]
    pub outcome_status: Option<&'static str>,
    /// The gateway's reason for a rejection.
    #[schema(required = true)]
    pub outcome_reason: Option<&'a str>,
    /// Why the attempt has no outcome, such as a timeout or an unexpected response.
    #[schema(required = true)]
    pub error: Option<&'a str>,
    /// The gateway's own id for the message, if it returned one.
    #[schema(required = true)]
    pub gateway_message_id: Option<&'a str>,
}

impl<'a> From<&'a Attempt> for AttemptJson<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        Self {
            attempt_number: attempt.attempt_number,
            started_at: attempt.started_at,
            finished_at: attempt.finished_at,
            outcome_status: attempt.outcome.status(),
            outcome_reason: attempt.outcome.reason(),
            error: attempt.outcome.error_text(),
            gateway_message_id: attempt.outcome.gateway_message_id(),
        }
    }
}

/// The webhook event of an intent that is no longer pending.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Webhook)]
pub struct WebhookJson<'a> {
    /// The id of the event. It is the same in every delivery, so receivers can detect duplicates.
    #[schema(example = "evt_0123456789abcdef0123456789abcdef")]
    pub event_id: String,
    #[schema(value_type = WebhookStatusName)]
    pub status: &'static str,
    /// When the next try is due. Absent if no further try is planned or one is in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_try_at: Option<Timestamp>,
    pub tries: Vec<WebhookTryJson<'a>>,
}

/// The status of a webhook event: not yet delivered, accepted by the receiver, or failed for good.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum WebhookStatusName {
    Pending,
    Delivered,
    Failed,
}

/// One try to deliver a webhook event.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WebhookTry)]
pub struct WebhookTryJson<'a> {
    #[schema(minimum = 1)]
    pub try_number: u32,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub finished_at: Timestamp,
    /// The status of the receiver's response; null if there was no response.
    #[schema(required = true)]
    pub http_status: Option<u16>,
    /// Why the try failed, or a remark about the response.
    #[schema(required = true)]
    pub error: Option<&'a str>,
}

impl<'a> From<&'a WebhookTry> for WebhookTryJson<'a> {
    fn from(tried: &'a WebhookTry) -> Self {
        Self {
            try_number: tried.number,
            started_at: tried.started_at,
            finished_at: tried.finished_at,
            http_status: tried.http_status,
            error: tried.error.as_deref(),
        }
    }
}

impl<'a> WebhookJson<'a> {
    pub fn of(intent: &Intent, webhook: &'a WebhookHistory) -> Self {
        Self {
            event_id: event_id(intent),
            status: webhook.status.as_str(),
            next_try_at: webhook.next_try_at,
            tries: webhook.tries.iter().map(Into::into).collect(),
        }
    }
}

/// An intent with its attempts in order. Once the intent has ended, `webhook` has its webhook event, if its contract has a
/// webhook.
#[derive(Serialize, ToSchema)]
#[schema(as = History)]
pub struct HistoryJson<'a> {
    pub intent: IntentJson<'a>,
    pub attempts: Vec<AttemptJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookJson<'a>>,
}

impl<'a> From<&'a History> for HistoryJson<'a> {
    fn from(history: &'a History) -> Self {
        Self {
            intent: IntentJson {
                redriven_as: history.redriven_as.as_ref().map(IntentId::as_str),
                ..(&history.intent).into()
            },
            attempts: history.attempts.iter().map(Into::into).collect(),
            webhook: history.webhook.as_ref().map(|webhook| WebhookJson::of(&history.intent, webhook)),
        }
    }
}

/// An intent that is cancelled, or will be after its attempt.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CancelledIntent)]
pub struct CancelledIntentJson<'a> {
    #[serde(flatten)]
    intent: IntentJson<'a>,
    /// `false` if no attempt of the intent was ever started, so that its gateway cannot have received it.
    may_have_been_sent: bool,
}

impl<'a> From<&'a Intent> for CancelledIntentJson<'a> {
    fn from(intent: &'a Intent) -> Self {
        Self { intent: intent.into(), may_have_been_sent: intent.attempt_count > 0 }
    }
}

/// The results of a batch, in the order of its items.
#[derive(Serialize, ToSchema)]
#[schema(as = BatchResults)]
pub struct BatchResultsJson<'a> {
    pub results: Vec<BatchItemJson<'a>>,
}

/// The result of one submission of a batch. It is the response that a request of its own would get.
#[derive(Serialize, ToSchema)]
#[schema(as = BatchItem)]
pub struct BatchItemJson<'a> {
    /// The HTTP status: 200 if the intent is stored.
    status: u16,
    /// The intent, new or existing; only if the status is 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<IntentJson<'a>>,
    /// `true` if the intent already existed.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<bool>,
    /// What went wrong; only if the status is not 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ErrorBody>)]
    error: Option<serde_json::Value>,
}

impl<'a> BatchItemJson<'a> {
    pub fn stored(intent: &'a Intent, replayed: bool) -> Self {
        Self { status: 200, intent: Some(intent.into()), replayed: replayed.then_some(true), error: None }
    }

    /// `body` is that of the response which the submission alone would have got.
    pub fn failed(status: u16, mut body: serde_json::Value) -> Self {
        Self { status, intent: None, replayed: None, error: Some(body["error"].take()) }
    }
}

/// A page of intents.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = IntentList)]
pub struct IntentListJson<'a> {
    pub intents: Vec<IntentJson<'a>>,
    /// Pass this as `cursor` to get the next page; null on the last page.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// The body of every error response.
#[derive(ToSchema)]
#[schema(as = Error)]
pub struct ErrorJson {
    pub error: ErrorBody,
}

/// What went wrong.
#[derive(ToSchema)]
pub struct ErrorBody {
    /// A stable code for programs: `invalid_request`, `unauthorized`, `forbidden`, `not_found`,
    /// `management_node_not_found`, `method_not_allowed`, `request_timeout`, `idempotency_conflict`, `already_processed`,
    /// `cursor_expired`, `not_terminal`, `already_terminal`, `attempt_in_progress`, `invalid_state`,
    /// `already_redriven`, `payload_too_large`, `headers_too_large`, `policy_rejected`, `overloaded`, `store_unavailable`,
    /// `execution_unavailable` or `internal_error`. A proxy in front of the service may have codes of its own: the one in
    /// `deploy/haproxy.cfg` responds with 502, 503 and 504 and the code `unavailable`.
    #[schema(example = "invalid_request")]
    pub code: String,
    /// A message for people. It may change between versions.
    pub message: String,
    /// Further details for programs, depending on the code.
    #[schema(value_type = Option<Object>)]
    pub details: Option<serde_json::Value>,
}

/// A target with its state and its limits.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Target)]
pub struct TargetJson {
    submission_target: String,
    /// While a target is `paused`, none of its attempts start.
    state: TargetState,
    /// When the target was paused. Absent while it is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    paused_at: Option<Timestamp>,
    /// Who paused it: the name of a person or token, or `loopback` or `anonymous` if no sign-in was needed. Absent while it is
    /// active.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_by: Option<String>,
    /// Why, in the words of the person who paused it. Absent while it is active, and if no reason was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_reason: Option<String>,
    /// Whether the target is in the registry. One that is not accepts no new intents.
    registered: bool,
    /// The target's own limit of attempts in progress at the same time, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_in_flight: Option<u32>,
    /// The target's own limit of attempts that start per second, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_second: Option<f64>,
    /// The target's own timeout of an attempt, in seconds, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_timeout_seconds: Option<u32>,
}

/// A request to pause a target.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PauseRequest {
    /// Why the target is paused, for other operators.
    #[schema(max_length = 500, example = "maintenance of the gateway until 9:00")]
    pub reason: Option<String>,
}

/// The state of a target.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum TargetState {
    Active,
    Paused,
}

impl TargetJson {
    pub fn of(name: &TargetName, target: &KnownTarget) -> Self {
        Self {
            submission_target: name.to_string(),
            state: if target.pause.is_some() { TargetState::Paused } else { TargetState::Active },
            paused_at: target.pause.as_ref().map(|pause| pause.at),
            paused_by: target.pause.as_ref().and_then(|pause| pause.by.clone()),
            pause_reason: target.pause.as_ref().and_then(|pause| pause.reason.clone()),
            registered: target.snapshot.is_some(),
            max_in_flight: target.limits.max_in_flight.map(NonZeroU32::get),
            rate_per_second: target.limits.rate.map(Rate::as_per_second),
            attempt_timeout_seconds: target.limits.attempt_timeout.map(AttemptTimeout::as_secs),
        }
    }
}

/// All targets, in order of their names.
#[derive(Serialize, ToSchema)]
#[schema(as = TargetList)]
pub struct TargetListJson {
    pub targets: Vec<TargetJson>,
}

/// The error responses that every call to the store can get.
#[derive(IntoResponses)]
pub enum CommonErrors {
    /// Missing or invalid bearer token (with SM_AUTH=required)
    #[response(status = 401)]
    Unauthorized(ErrorJson),
    /// The token does not have the scope or, with SM_AUTH=off, a web page of another site sent the request
    #[response(status = 403)]
    Forbidden(ErrorJson),
    /// The service is overloaded or the store is unavailable; try again
    #[response(status = 503)]
    Unavailable(ErrorJson),
}
