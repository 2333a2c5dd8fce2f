//! Webhook events as the store and the webhook actor exchange them: due events, open and finished tries, redelivery.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::contract::Contract;
use crate::domain::intent::{Intent, IntentSeq};
use crate::domain::time::Timestamp;
use crate::domain::webhook::{EventStatus, ReceiverId, Round, TryOutcome, Verdict};

/// Asks for due webhook events. Its limits are the free slots of the webhook actor.
#[derive(Clone, Debug)]
pub struct DueWebhooksQuery {
    /// How many events to return at most, over all receivers.
    pub limit: usize,
    /// How many events to return at most of one receiver.
    pub per_receiver: usize,
    /// Receivers with a limit of their own, in place of `per_receiver`.
    pub except: Vec<(ReceiverId, usize)>,
}

/// The answer to a [`DueWebhooksQuery`].
#[derive(Clone, Debug)]
pub struct DueWebhooks {
    pub now: Timestamp,
    pub due: Vec<DueWebhook>,
    /// When the next event will be due, if that is known.
    pub next: Option<Timestamp>,
}

/// A pending event and when its next try is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueWebhook {
    pub seq: IntentSeq,
    pub receiver: ReceiverId,
    pub due: Timestamp,
}

impl DueWebhooks {
    /// Makes an answer of pending events that were found at `now`: at most `limit` events that are due, the longest waiting
    /// first, and the moment at which the next event is due.
    pub fn at(now: Timestamp, found: Vec<DueWebhook>, limit: usize) -> Self {
        let (mut due, later): (Vec<_>, Vec<_>) = found.into_iter().partition(|event| event.due <= now);
        due.sort_by_key(|event| (event.due, event.seq));
        due.truncate(limit);
        Self { now, due, next: later.iter().map(|event| event.due).min() }
    }
}

impl DueWebhooksQuery {
    /// Returns how many events of this receiver may be tried.
    pub fn slots(&self, receiver: ReceiverId) -> usize {
        self.except.iter().find(|(known, _)| *known == receiver).map_or(self.per_receiver, |(_, slots)| *slots)
    }
}

/// A try that is recorded as open, with everything that its request needs.
#[derive(Clone, Debug)]
pub struct OpenWebhookTry {
    pub receiver: ReceiverId,
    pub intent: Intent,
    pub contract: Arc<Contract>,
    pub number: u32,
    pub round: Round,
    pub started_at: Timestamp,
}

/// The outcome of an open try, and what it means for its event.
#[derive(Clone, Debug)]
pub struct FinishWebhookTry {
    pub open: OpenWebhookTry,
    pub finished_at: Timestamp,
    pub outcome: TryOutcome,
    pub verdict: Verdict,
}

/// After this pause an event that cannot be read is tried again.
pub const PUT_OFF: Duration = Duration::from_secs(3600);

/// The result of a request to deliver an event again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivery {
    /// The event is pending: it is due now, or a try is in flight.
    Pending,
    /// The intent has not ended. Its event becomes pending when it does.
    NotEnded,
    /// The intent's contract has no webhook.
    NoWebhook,
    NoIntent,
}

/// The webhook event of an ended intent, with its tries in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookHistory {
    pub status: EventStatus,
    /// When the next try is due; `None` if no try will follow, or if one is in flight.
    pub next_try_at: Option<Timestamp>,
    pub tries: Vec<WebhookTry>,
}

/// A finished try to deliver an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookTry {
    pub number: u32,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub http_status: Option<u16>,
    pub error: Option<String>,
}
