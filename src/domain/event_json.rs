//! The JSON form of an event: the body of webhooks, and an entry of the event feed.

use serde::Serialize;
use utoipa::ToSchema;

use super::intent::Intent;
use super::intent_json::IntentJson;
use super::time::Timestamp;
use super::webhook::{EVENT_TYPE, event_id};

/// An intent has ended.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Event)]
pub struct EventJson<'a> {
    /// The id of the event. It is the same in every delivery of a webhook and in the event feed.
    #[schema(example = "evt_0123456789abcdef0123456789abcdef")]
    pub event_id: String,
    /// `intent.terminal`, the only type of event.
    #[schema(value_type = String, example = "intent.terminal")]
    pub event_type: &'static str,
    /// When the intent ended: its `completedAt`.
    #[schema(value_type = String, format = DateTime)]
    pub occurred_at: Timestamp,
    pub intent: IntentJson<'a>,
}

impl<'a> From<&'a Intent> for EventJson<'a> {
    fn from(intent: &'a Intent) -> Self {
        Self {
            event_id: event_id(intent),
            event_type: EVENT_TYPE,
            // Only intents that have ended have an event.
            occurred_at: intent.state.completed_at().unwrap_or(intent.created_at),
            intent: intent.into(),
        }
    }
}
