//! Webhooks: their configuration in a contract, the id of an event, and what happens to an event after a delivery try.
//!
//! Secrets are not part of these types, only the names of the environment variables that hold them.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::contract::http_url;
use super::intent::Intent;
use super::time::Timestamp;

/// The webhook of a contract. It is stored with the contract, so add fields as optional and never rename one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    pub url: WebhookUrl,
    /// Headers that are sent with every event.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are in environment variables: the name of the header, and the name of the variable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_env: BTreeMap<String, String>,
    /// The environment variable that holds the secrets. Without it, events are not signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
}

/// An http or https URL with a host.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WebhookUrl {
    url: Arc<str>,
    origin: Arc<str>,
}

impl WebhookUrl {
    /// Parses a URL. The error completes a sentence that begins with "this value".
    pub fn parse(raw: &str) -> Result<Self, String> {
        let url = http_url(raw)?;
        Ok(Self { url: url.as_str().into(), origin: url.origin().ascii_serialization().into() })
    }

    pub fn as_str(&self) -> &str {
        &self.url
    }

    /// Scheme, host and port. All webhooks with the same origin have the same receiver.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.url, f)
    }
}

impl TryFrom<String> for WebhookUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<WebhookUrl> for String {
    fn from(url: WebhookUrl) -> Self {
        url.as_str().to_owned()
    }
}

/// The store's number for a receiver. A receiver is the origin of webhook URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiverId(pub i64);

/// The only event type: an intent reached a terminal status.
pub const EVENT_TYPE: &str = "intent.terminal";

/// The id of the event of an intent, by which receivers recognize duplicates. It is the same in every delivery try. If the id
/// of a deleted intent is used again, the event of the new intent has another id.
pub fn event_id(intent: &Intent) -> String {
    let mut hash = Sha256::new();
    hash.update(EVENT_TYPE);
    hash.update(intent.created_at.micros().to_be_bytes());
    hash.update(intent.id.as_str());
    hash.finalize().iter().take(16).fold("evt_".to_owned(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ignored = write!(text, "{byte:02x}");
        text
    })
}

/// The status of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// It waits for a delivery try, or one is in flight.
    Pending,
    Delivered,
    /// It is not tried any more, unless an operator requests a redelivery.
    Failed,
}

impl EventStatus {
    pub const ALL: [Self; 3] = [Self::Pending, Self::Delivered, Self::Failed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// The outcome of one delivery try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryOutcome {
    /// The receiver responded with this HTTP status. `remark` says what was unusual about the response.
    Answered { status: u16, retry_after: Option<Duration>, remark: Option<String> },
    /// There was no response, for the reason in the text.
    Error(String),
    /// The service stopped during the try, so its outcome is unknown.
    Interrupted,
}

/// The error of an interrupted try.
pub const INTERRUPTED: &str =
    "interrupted: the service stopped before the receiver answered; the receiver may have got the event";

/// The error of a try whose event or contract this version of the service cannot read.
pub const UNREADABLE: &str = "not sent: the event or its contract cannot be read by this version; see the log";

impl TryOutcome {
    /// The HTTP status of the response, if there was one.
    pub fn http_status(&self) -> Option<u16> {
        match self {
            Self::Answered { status, .. } => Some(*status),
            Self::Error(_) | Self::Interrupted => None,
        }
    }

    /// The error text that is stored with the try.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Answered { remark, .. } => remark.as_deref(),
            Self::Error(text) => Some(text),
            Self::Interrupted => Some(INTERRUPTED),
        }
    }
}

/// What happens to an event after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    RetryAt(Timestamp),
    Failed,
}

impl Verdict {
    pub fn status(self) -> EventStatus {
        match self {
            Self::Delivered => EventStatus::Delivered,
            Self::RetryAt(_) => EventStatus::Pending,
            Self::Failed => EventStatus::Failed,
        }
    }
}

/// A series of delivery tries. It starts when the event becomes pending, and a new one starts when an operator requests a
/// redelivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// When the event became pending.
    pub pending_since: Timestamp,
    /// The number of tries in this round, including the current one.
    pub tries: u32,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
/// The delays after the first try, the second, and so on, in seconds. The last one repeats.
const DELAYS: [u64; 7] = [5, 30, 2 * MINUTE, 10 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR];
/// No try starts later than this after the event became pending.
const GIVE_UP_AFTER: Duration = Duration::from_secs(24 * HOUR);
/// The longest delay that a receiver can request with `Retry-After`.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(6 * HOUR);
/// Delays are extended by a random part of up to this fraction, so that events that failed together are not retried together.
const JITTER: f64 = 0.05;

/// Decides what happens to an event after a try. `jitter` is a random number from 0 to 1.
pub fn decide(outcome: &TryOutcome, round: Round, finished_at: Timestamp, jitter: f64) -> Verdict {
    let requested_delay = match outcome {
        TryOutcome::Answered { status: 200..=299, .. } => return Verdict::Delivered,
        // 410 Gone means that the receiver does not want the event, now or later.
        TryOutcome::Answered { status: 410, .. } => return Verdict::Failed,
        TryOutcome::Interrupted => return Verdict::RetryAt(finished_at),
        TryOutcome::Answered { status: 429 | 503, retry_after, .. } => retry_after.unwrap_or_default(),
        TryOutcome::Answered { .. } | TryOutcome::Error(_) => Duration::ZERO,
    };
    let step = usize::try_from(round.tries.saturating_sub(1)).unwrap_or(usize::MAX).min(DELAYS.len() - 1);
    let delay = Duration::from_secs(DELAYS[step]).mul_f64(1.0 + JITTER * jitter.clamp(0.0, 1.0));
    let due = finished_at + delay.max(requested_delay.min(LONGEST_RETRY_AFTER));
    if due > round.pending_since + GIVE_UP_AFTER { Verdict::Failed } else { Verdict::RetryAt(due) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::intent::{IntentId, IntentSeq, State, TargetName};
    use proptest::prelude::*;

    fn answered(status: u16, retry_after: Option<u64>) -> TryOutcome {
        TryOutcome::Answered { status, retry_after: retry_after.map(Duration::from_secs), remark: None }
    }

    const START: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn after(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn every_response_leads_to_its_verdict() {
        let first = Round { pending_since: START, tries: 1 };
        for (outcome, expected) in [
            (answered(200, None), Verdict::Delivered),
            (answered(204, Some(60)), Verdict::Delivered),
            (answered(299, None), Verdict::Delivered),
            (answered(410, None), Verdict::Failed),
            (answered(301, None), Verdict::RetryAt(after(6))),
            (answered(404, None), Verdict::RetryAt(after(6))),
            (answered(500, Some(60)), Verdict::RetryAt(after(6))),
            (answered(429, None), Verdict::RetryAt(after(6))),
            (answered(429, Some(2)), Verdict::RetryAt(after(6))),
            (answered(429, Some(60)), Verdict::RetryAt(after(61))),
            (answered(503, Some(7 * HOUR)), Verdict::RetryAt(after(6 * HOUR + 1))),
            (TryOutcome::Error("refused".to_owned()), Verdict::RetryAt(after(6))),
            (TryOutcome::Interrupted, Verdict::RetryAt(after(1))),
        ] {
            assert_eq!(decide(&outcome, first, after(1), 0.0), expected, "{outcome:?}");
        }
    }

    /// The times of all tries of an event whose receiver never accepts it, in seconds after the first.
    fn tries_until_given_up(jitter: f64) -> Vec<u64> {
        let mut now = START;
        let mut moments = Vec::new();
        loop {
            moments.push(now.since(START).as_secs());
            let round = Round { pending_since: START, tries: u32::try_from(moments.len()).unwrap() };
            match decide(&answered(500, None), round, now, jitter) {
                Verdict::RetryAt(due) => now = due,
                Verdict::Failed => return moments,
                Verdict::Delivered => panic!("delivered"),
            }
        }
    }

    #[test]
    fn delays_grow_and_tries_stop_after_a_day() {
        let expected = [0, 5, 35, 155, 755, 4355, 15155, 36755, 58355, 79955];
        assert_eq!(tries_until_given_up(0.0), expected);
        assert_eq!(
            tries_until_given_up(1.0).len(),
            expected.len(),
            "jitter delays tries, but does not reduce their number"
        );
    }

    proptest! {
        #[test]
        fn no_try_starts_after_a_day_or_before_its_delay(
            tries in 1u32..50, late in 0u64..100_000, jitter in 0.0f64..1.0, status in 300u16..600, wait in 0u64..100_000
        ) {
            let round = Round { pending_since: START, tries };
            match decide(&answered(status, Some(wait)), round, after(late), jitter) {
                Verdict::RetryAt(due) => {
                    prop_assert!(due <= after(24 * HOUR));
                    prop_assert!(due >= after(late + 5) && due <= after(late + 7 * HOUR));
                }
                verdict => prop_assert_eq!(verdict, Verdict::Failed),
            }
        }
    }

    #[test]
    fn event_ids_are_stable_and_differ_between_intents() {
        let intent = |id: &str, micros| Intent {
            seq: IntentSeq(1),
            id: IntentId::parse(id).unwrap(),
            target: TargetName::parse("t").unwrap(),
            created_at: Timestamp::from_micros(micros),
            not_before: None,
            redrive_of: None,
            state: State::Pending,
            attempt_count: 0,
            attempt_open: false,
        };
        let event = event_id(&intent("a", 1));
        assert_eq!((event.len(), event.starts_with("evt_")), (36, true));
        let later = Intent { seq: IntentSeq(9), attempt_count: 3, ..intent("a", 1) };
        assert_eq!(event, event_id(&later));
        assert_ne!(event, event_id(&intent("b", 1)));
        assert_ne!(event, event_id(&intent("a", 2)));
    }

    #[test]
    fn webhook_urls_are_http_or_https_and_have_an_origin() {
        for (raw, origin) in [
            ("https://hooks.example/a?b=c", Some("https://hooks.example")),
            (" http://127.0.0.1:9000/ ", Some("http://127.0.0.1:9000")),
            ("https://hooks.example:443/x", Some("https://hooks.example")),
            ("ftp://x", None),
            ("https://", None),
            ("https://u:p@x", None),
            ("https://x/#top", None),
            ("hooks.example", None),
        ] {
            assert_eq!(WebhookUrl::parse(raw).ok().as_ref().map(WebhookUrl::origin), origin, "{raw}");
        }
    }
}
