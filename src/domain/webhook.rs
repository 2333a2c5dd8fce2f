//! Webhooks: what a contract says of them, which event is owed, and what becomes of a try.
//!
//! Pure. A secret is never here, only the name of the variable that holds it.

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

/// The part of a contract that says where its outcome is told. Stored with the contract: add
/// fields as optional, never rename one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    pub url: WebhookUrl,
    /// Sent as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are in environment variables, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_env: BTreeMap<String, String>,
    /// The variable that holds the secrets; without it, events are not signed.
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
    pub fn parse(raw: &str) -> Result<Self, String> {
        let url = http_url(raw)?;
        Ok(Self { url: url.as_str().into(), origin: url.origin().ascii_serialization().into() })
    }

    pub fn as_str(&self) -> &str {
        &self.url
    }

    /// Scheme, host and port: what is up or down as a whole.
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

/// The store's number for a receiver, which is an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiverId(pub i64);

/// The only type of event.
pub const EVENT_TYPE: &str = "intent.terminal";

/// The same for every try of an event, and another one if the id of a deleted intent is used again.
pub fn event_id(intent: &Intent) -> String {
    let mut hash = Sha256::new();
    hash.update(EVENT_TYPE);
    hash.update(intent.created_at.micros().to_be_bytes());
    hash.update(intent.id.as_str());
    hash.finalize().iter().take(16).fold("evt_".to_owned(), |mut text, byte| {
        let _a_string_takes_all = write!(text, "{byte:02x}");
        text
    })
}

/// Where an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// Owed: it waits for a try, or one is under way.
    Pending,
    Delivered,
    /// Given up; a person may ask for it again.
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

/// What came of a try: a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryOutcome {
    /// The receiver answered with this HTTP status; what was odd about it is a remark.
    Answered { status: u16, retry_after: Option<Duration>, remark: Option<String> },
    /// There was no answer, and this is why.
    Error(String),
    /// Nobody knows: the service stopped while it was under way.
    Interrupted,
}

/// The error of a try that was cut off.
pub const INTERRUPTED: &str =
    "interrupted: the service stopped before the receiver had answered, which may have got it";

/// The error of a try whose event or contract is not as this program knows them.
pub const UNREADABLE: &str = "not sent: the event or its contract cannot be read by this version; see the log";

impl TryOutcome {
    pub fn http_status(&self) -> Option<u16> {
        match self {
            Self::Answered { status, .. } => Some(*status),
            Self::Error(_) | Self::Interrupted => None,
        }
    }

    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Answered { remark, .. } => remark.as_deref(),
            Self::Error(text) => Some(text),
            Self::Interrupted => Some(INTERRUPTED),
        }
    }
}

/// What is made of a try.
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

/// A row of tries: it begins when the event comes to be owed, and anew when it is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    pub owed_since: Timestamp,
    /// Tries made in it, the present one included.
    pub tries: u32,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
/// After the first try, the second, and so on, in seconds; the last one repeats.
const DELAYS: [u64; 7] = [5, 30, 2 * MINUTE, 10 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR];
/// No try begins later than this after the event came to be owed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(24 * HOUR);
/// A receiver may ask for a later try, but not for more than the longest delay.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(6 * HOUR);
/// Delays are longer by up to this part, so that events which failed together do not come back together.
const JITTER: f64 = 0.05;

/// What becomes of an event after a try. `jitter` is a random number from 0 to 1.
pub fn decide(outcome: &TryOutcome, round: Round, finished_at: Timestamp, jitter: f64) -> Verdict {
    let asked_to_wait = match outcome {
        TryOutcome::Answered { status: 200..=299, .. } => return Verdict::Delivered,
        // Gone: the receiver does not want any of it, now or later.
        TryOutcome::Answered { status: 410, .. } => return Verdict::Failed,
        TryOutcome::Interrupted => return Verdict::RetryAt(finished_at),
        TryOutcome::Answered { status: 429 | 503, retry_after, .. } => retry_after.unwrap_or_default(),
        TryOutcome::Answered { .. } | TryOutcome::Error(_) => Duration::ZERO,
    };
    let step = usize::try_from(round.tries.saturating_sub(1)).unwrap_or(usize::MAX).min(DELAYS.len() - 1);
    let delay = Duration::from_secs(DELAYS[step]).mul_f64(1.0 + JITTER * jitter.clamp(0.0, 1.0));
    let due = finished_at + delay.max(asked_to_wait.min(LONGEST_RETRY_AFTER));
    if due > round.owed_since + GIVE_UP_AFTER { Verdict::Failed } else { Verdict::RetryAt(due) }
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
    fn answers_and_what_becomes_of_them() {
        let first = Round { owed_since: START, tries: 1 };
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

    /// Follows an event whose receiver never takes it; when its tries were made.
    fn tries_until_given_up(jitter: f64) -> Vec<u64> {
        let mut now = START;
        let mut moments = Vec::new();
        loop {
            moments.push(now.since(START).as_secs());
            let round = Round { owed_since: START, tries: u32::try_from(moments.len()).unwrap() };
            match decide(&answered(500, None), round, now, jitter) {
                Verdict::RetryAt(due) => now = due,
                Verdict::Failed => return moments,
                Verdict::Delivered => panic!("delivered"),
            }
        }
    }

    #[test]
    fn a_day_of_growing_delays_and_then_no_more() {
        let expected = [0, 5, 35, 155, 755, 4355, 15155, 36755, 58355, 79955];
        assert_eq!(tries_until_given_up(0.0), expected);
        assert_eq!(tries_until_given_up(1.0).len(), expected.len(), "jitter moves tries, it does not cost one");
    }

    proptest! {
        #[test]
        fn no_try_begins_later_than_a_day_and_none_earlier_than_its_delay(
            tries in 1u32..50, late in 0u64..100_000, jitter in 0.0f64..1.0, status in 300u16..600, wait in 0u64..100_000
        ) {
            let round = Round { owed_since: START, tries };
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
    fn event_ids_are_stable_and_of_one_intent() {
        let intent = |id: &str, micros| Intent {
            seq: IntentSeq(1),
            id: IntentId::parse(id).unwrap(),
            target: TargetName::parse("t").unwrap(),
            created_at: Timestamp::from_micros(micros),
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
    fn urls() {
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
