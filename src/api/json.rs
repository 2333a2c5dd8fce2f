//! The JSON of requests and answers, field by field, as the OpenAPI document shows it.

use std::num::NonZeroU32;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoResponses, ToSchema};

use super::targets::KnownTarget;
use crate::domain::intent::{Intent, TargetName};
use crate::domain::intent_json::IntentJson;
use crate::domain::limits::{AttemptTimeout, Rate};
use crate::domain::time::Timestamp;
use crate::domain::webhook::event_id;
use crate::store::{Attempt, History, WebhookHistory, WebhookTry};

/// What a client hands in.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitRequest<'a> {
    /// Your key for this submission: the same id again returns the same intent.
    #[schema(example = "order-1001-confirmation", min_length = 1, max_length = 200)]
    pub intent_id: String,
    /// The name of a contract in the registry.
    #[schema(example = "sms.realtime", min_length = 1, max_length = 200)]
    pub submission_target: String,
    /// Any JSON; forwarded to the gateway byte for byte as it stands in the request.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Value, required = false, example = json!({"to": "+46700000001", "message": "Your order is on its way"}))]
    pub payload: Option<&'a RawValue>,
}

/// `null` is a payload of four bytes; only a field that is not there is no payload.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// One attempt. Either `outcomeStatus` says what the gateway answered, or `error` why nothing
/// sensible was heard.
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
    #[schema(required = true)]
    pub outcome_reason: Option<&'a str>,
    #[schema(required = true)]
    pub error: Option<&'a str>,
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

/// The webhook event of an intent that has ended.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Webhook)]
pub struct WebhookJson<'a> {
    /// The same in every try: what a receiver tells repetitions by.
    #[schema(example = "evt_0123456789abcdef0123456789abcdef")]
    pub event_id: String,
    #[schema(value_type = WebhookStatusName)]
    pub status: &'static str,
    /// When the next try is due; absent if there is none, or one is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_try_at: Option<Timestamp>,
    pub tries: Vec<WebhookTryJson<'a>>,
}

/// The values of a webhook's `status`: owed, taken by the receiver, or given up.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum WebhookStatusName {
    Pending,
    Delivered,
    Failed,
}

/// One try to deliver an event.
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
    /// What the receiver answered; null if it did not.
    #[schema(required = true)]
    pub http_status: Option<u16>,
    /// What went wrong, or was odd about the answer.
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

/// An intent and its attempts in order, and its webhook if it has ended and its contract has one.
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
            intent: (&history.intent).into(),
            attempts: history.attempts.iter().map(Into::into).collect(),
            webhook: history.webhook.as_ref().map(|webhook| WebhookJson::of(&history.intent, webhook)),
        }
    }
}

/// A page of intents, newest first.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = IntentList)]
pub struct IntentListJson<'a> {
    pub intents: Vec<IntentJson<'a>>,
    /// Give this as `cursor` to get the next page; null on the last one.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// What every error looks like.
#[derive(ToSchema)]
#[schema(as = Error)]
pub struct ErrorJson {
    pub error: ErrorBody,
}

#[derive(ToSchema)]
pub struct ErrorBody {
    /// For programs: `invalid_request`, `unauthorized`, `forbidden`, `not_found`, `management_node_not_found`,
    /// `method_not_allowed`, `request_timeout`, `idempotency_conflict`, `already_processed`, `not_terminal`,
    /// `payload_too_large`, `policy_rejected`, `overloaded`, `store_unavailable`, `execution_unavailable` or
    /// `internal_error`. A proxy in front may add its own: that of `deploy/haproxy.cfg` answers 502, 503 and 504 with
    /// `unavailable`.
    #[schema(example = "invalid_request")]
    pub code: String,
    /// For people; may change.
    pub message: String,
    /// For programs, where there is more to say.
    #[schema(value_type = Option<Object>)]
    pub details: Option<serde_json::Value>,
}

/// A target as operators see it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Target)]
pub struct TargetJson {
    submission_target: String,
    /// Paused: no attempt of it begins.
    state: TargetState,
    /// Set while it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    paused_at: Option<Timestamp>,
    /// Whether the registry has it; if not, only intents that came before are concerned.
    registered: bool,
    /// Attempts of it at once, if it has a limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_in_flight: Option<u32>,
    /// Attempts of it that begin in a second, if that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_second: Option<f64>,
    /// How long an attempt of it may take, in seconds, if it has a limit of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_timeout_seconds: Option<u32>,
}

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
            state: if target.paused_at.is_some() { TargetState::Paused } else { TargetState::Active },
            paused_at: target.paused_at,
            registered: target.snapshot.is_some(),
            max_in_flight: target.limits.max_in_flight.map(NonZeroU32::get),
            rate_per_second: target.limits.rate.map(Rate::as_per_second),
            attempt_timeout_seconds: target.limits.attempt_timeout.map(AttemptTimeout::as_secs),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = TargetList)]
pub struct TargetListJson {
    pub targets: Vec<TargetJson>,
}

/// What every call may be answered that asks the store, and for a token where those are asked for.
#[derive(IntoResponses)]
pub enum Refused {
    /// Missing or invalid bearer token, where one is needed
    #[response(status = 401)]
    Unauthorized(ErrorJson),
    /// The token lacks the scope; or without tokens: the request comes from a web page of another site
    #[response(status = 403)]
    Forbidden(ErrorJson),
    /// Overloaded, or the store is gone; try again
    #[response(status = 503)]
    Unavailable(ErrorJson),
}
