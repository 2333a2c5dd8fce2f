//! Webhook events as a store and whoever delivers them speak of them: looked for, begun, finished,
//! asked for again.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::contract::Contract;
use crate::domain::intent::{Intent, IntentSeq};
use crate::domain::time::Timestamp;
use crate::domain::webhook::{EventStatus, ReceiverId, Round, TryOutcome, Verdict};

/// How many webhook events may be tried now.
#[derive(Clone, Debug)]
pub struct DueWebhooksQuery {
    /// Over all receivers.
    pub limit: usize,
    /// For one receiver.
    pub per_receiver: usize,
    /// For these receivers instead.
    pub except: Vec<(ReceiverId, usize)>,
}

#[derive(Clone, Debug)]
pub struct DueWebhooks {
    pub now: Timestamp,
    pub due: Vec<DueWebhook>,
    /// When the next one will be due, if it is known.
    pub next: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueWebhook {
    pub seq: IntentSeq,
    pub receiver: ReceiverId,
    pub due: Timestamp,
}

impl DueWebhooks {
    /// Sorts out what was found at `now`: what is due, the longest waiting first and no more than
    /// `limit`, and when there will be more.
    pub fn at(now: Timestamp, found: Vec<DueWebhook>, limit: usize) -> Self {
        let (mut due, later): (Vec<_>, Vec<_>) = found.into_iter().partition(|event| event.due <= now);
        due.sort_by_key(|event| (event.due, event.seq));
        due.truncate(limit);
        Self { now, due, next: later.iter().map(|event| event.due).min() }
    }
}

impl DueWebhooksQuery {
    /// How many events of this receiver may be tried.
    pub fn places(&self, receiver: ReceiverId) -> usize {
        self.except.iter().find(|(known, _)| *known == receiver).map_or(self.per_receiver, |(_, places)| *places)
    }
}

/// A try that was written down as begun and not yet as finished.
#[derive(Clone, Debug)]
pub struct OpenWebhookTry {
    pub receiver: ReceiverId,
    pub intent: Intent,
    pub contract: Arc<Contract>,
    pub number: u32,
    pub round: Round,
    pub started_at: Timestamp,
}

/// How an open try ended and what that makes of its event.
#[derive(Clone, Debug)]
pub struct FinishWebhookTry {
    pub open: OpenWebhookTry,
    pub finished_at: Timestamp,
    pub outcome: TryOutcome,
    pub verdict: Verdict,
}

/// When an event that cannot be read is looked at again.
pub const PUT_OFF: Duration = Duration::from_secs(3600);

/// What came of asking for an event once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivery {
    /// It is due now, or a try is under way.
    Owed,
    /// The intent has not ended; its event is owed when it does.
    NotEnded,
    /// The intent's contract has no webhook.
    NoWebhook,
    NoIntent,
}

/// The webhook event of an ended intent, with its tries in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookHistory {
    pub status: EventStatus,
    /// When the next try is due; absent if none is, or one is under way.
    pub next_try_at: Option<Timestamp>,
    pub tries: Vec<WebhookTry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookTry {
    pub number: u32,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub http_status: Option<u16>,
    pub error: Option<String>,
}
