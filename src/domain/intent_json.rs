//! The JSON form of an intent, which is the same in API responses and in webhook events.

use serde::Serialize;
use utoipa::ToSchema;

use super::intent::Intent;
use super::time::Timestamp;

/// An intent and its status.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Intent)]
pub struct IntentJson<'a> {
    #[schema(example = "order-1001-confirmation")]
    pub intent_id: &'a str,
    #[schema(example = "sms.realtime")]
    pub submission_target: &'a str,
    #[schema(value_type = String, format = DateTime, example = "2026-11-16T09:00:00.000000Z")]
    pub created_at: Timestamp,
    /// When the first attempt may start; only while the intent waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub not_before: Option<Timestamp>,
    #[schema(value_type = StatusName)]
    pub status: &'static str,
    /// When the intent ended; absent while it is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub completed_at: Option<Timestamp>,
    /// The reason that the gateway gave; only if the status is `rejected`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "invalid_recipient")]
    pub rejected_reason: Option<&'a str>,
    /// The rule of the contract that ended the intent, or `cancelled`; only if the status is `exhausted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ExhaustedReasonName>)]
    pub exhausted_reason: Option<&'static str>,
    /// The intent that this one repeats, if a redrive created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redrive_of: Option<&'a str>,
    /// The intent that repeats this one, if it was redriven; only in histories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redriven_as: Option<&'a str>,
}

/// The values of `status`.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum StatusName {
    Pending,
    Accepted,
    Rejected,
    Exhausted,
}

/// The values of `exhaustedReason`.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum ExhaustedReasonName {
    DeadlineExceeded,
    MaxAttempts,
    OneShot,
    Cancelled,
}

impl<'a> From<&'a Intent> for IntentJson<'a> {
    fn from(intent: &'a Intent) -> Self {
        Self {
            intent_id: intent.id.as_str(),
            submission_target: intent.target.as_str(),
            created_at: intent.created_at,
            not_before: intent.waits_until(),
            status: intent.state.status().as_str(),
            completed_at: intent.state.completed_at(),
            rejected_reason: intent.state.rejected_reason(),
            exhausted_reason: intent.state.exhausted_reason().map(|reason| reason.as_str()),
            redrive_of: intent.redrive_of.as_ref().map(|id| id.as_str()),
            redriven_as: None,
        }
    }
}
