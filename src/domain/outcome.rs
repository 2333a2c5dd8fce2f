//! The outcome of an attempt: what the gateway responded, or why there is no usable response.
//!
//! An outcome is a fact that is stored as it is. It is not the status of the intent; [`super::policy`] derives that from it.

use std::time::Duration;

use super::intent::MAX_NAME_CHARS;

/// The outcome of an attempt.
#[derive(Clone, Debug)]
pub enum Outcome {
    Accepted {
        gateway_message_id: Option<String>,
    },
    Rejected {
        reason: String,
        gateway_message_id: Option<String>,
    },
    /// The gateway neither accepted nor rejected the intent.
    Error {
        /// Starts with the prefix of its contact, from which [`Contact::of_text`] recovers the contact.
        text: String,
        contact: Contact,
        /// The delay that the gateway requested with `Retry-After`. It is not stored.
        retry_after: Option<Duration>,
    },
}

/// How far the request of an attempt got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contact {
    /// No byte of the request was sent, so the gateway cannot have acted on it.
    NotSent,
    /// The gateway responded.
    Answered,
    /// The request may have been sent, in part or completely, and no complete response arrived. The gateway may have acted
    /// on it.
    Unknown,
}

impl Contact {
    pub const ALL: [Self; 3] = [Self::NotSent, Self::Answered, Self::Unknown];

    /// The value of the label of `submission_attempt_errors_total`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::Answered => "answered",
            Self::Unknown => "unknown",
        }
    }

    /// The prefix of error texts.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::NotSent => "not sent: ",
            Self::Answered => "",
            Self::Unknown => "outcome unknown: ",
        }
    }

    /// How texts about a response begin.
    pub const ANSWERED_TEXT: &str = "gateway";

    /// The contact of a stored error, from its text. Texts about a response begin with "gateway". The contact of any other
    /// text without a prefix is unknown.
    pub fn of_text(text: &str) -> Self {
        if text.starts_with(Self::NotSent.prefix()) {
            Self::NotSent
        } else if text.starts_with(Self::ANSWERED_TEXT) {
            Self::Answered
        } else {
            Self::Unknown
        }
    }

    /// Whether the gateway was reachable, if that is known.
    pub const fn reached(self) -> Option<bool> {
        match self {
            Self::NotSent => Some(false),
            Self::Answered => Some(true),
            Self::Unknown => None,
        }
    }
}

/// Compares only what is stored, so `retry_after` does not count.
impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let kept = |outcome: &Self| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            (outcome.kind(), own(outcome.reason()), own(outcome.error_text()), own(outcome.gateway_message_id()))
        };
        kept(self) == kept(other)
    }
}

impl Eq for Outcome {}

/// The error of an attempt whose leader stopped or lost its lease before it stored the outcome.
pub const INTERRUPTED: &str = "interrupted: the instance that made this attempt stopped or lost its lease \
                               before recording the outcome, which is therefore unknown";

/// The maximum length of a cause. The column that stores it needs up to two units per character.
pub const MAX_CAUSE_CHARS: usize = 60;

/// The cause that attempts with this rejection reason have: see [`Outcome::cause`].
pub fn cause_of_reason(reason: &str) -> String {
    reason.chars().take(MAX_CAUSE_CHARS).collect()
}

/// The cause that attempts with this error have: see [`Outcome::cause`].
pub fn cause_of_error(text: &str) -> String {
    let prefix = Contact::of_text(text).prefix();
    let prefix = if text.starts_with(prefix) { prefix.len() } else { 0 };
    let end = text[prefix..].find([':', '(', '"']).map_or(text.len(), |end| prefix + end);
    text[..end].trim().chars().take(MAX_CAUSE_CHARS).collect()
}

impl Outcome {
    /// The gateway responded, but neither accepted nor rejected. The text must begin with "gateway".
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error { text: text.into(), contact: Contact::Answered, retry_after: None }
    }

    /// Nothing was sent, for the reason in the text.
    pub fn not_sent(text: impl AsRef<str>) -> Self {
        Self::with_prefix(Contact::NotSent, text.as_ref())
    }

    /// The request may have been sent, but there is no complete response, for the reason in the text.
    pub fn unknown(text: impl AsRef<str>) -> Self {
        Self::with_prefix(Contact::Unknown, text.as_ref())
    }

    /// An error that was read from a store.
    pub fn stored_error(text: String) -> Self {
        Self::Error { contact: Contact::of_text(&text), text, retry_after: None }
    }

    fn with_prefix(contact: Contact, text: &str) -> Self {
        Self::Error { text: format!("{}{text}", contact.prefix()), contact, retry_after: None }
    }

    /// This outcome, with the delay that the gateway requested. Only errors have one.
    pub fn with_retry_after(mut self, delay: Option<Duration>) -> Self {
        if let Self::Error { retry_after, .. } = &mut self {
            *retry_after = delay;
        }
        self
    }

    /// How far the request got.
    pub fn contact(&self) -> Contact {
        match self {
            Self::Error { contact, .. } => *contact,
            Self::Accepted { .. } | Self::Rejected { .. } => Contact::Answered,
        }
    }

    /// The delay that the gateway requested with `Retry-After`.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Error { retry_after, .. } => *retry_after,
            Self::Accepted { .. } | Self::Rejected { .. } => None,
        }
    }

    /// The outcome of an attempt that its leader left open; see [`INTERRUPTED`].
    pub fn interrupted() -> Self {
        Self::stored_error(INTERRUPTED.to_owned())
    }

    /// The value of the label of `submission_attempts_total`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
            Self::Rejected { .. } => "rejected",
            Self::Error { .. } => "error",
        }
    }

    /// The `outcomeStatus` of the audit row: what the gateway responded, so `None` for an error.
    pub fn status(&self) -> Option<&'static str> {
        match self {
            Self::Error { .. } => None,
            _ => Some(self.kind()),
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Rejected { reason, .. } => Some(reason),
            _ => None,
        }
    }

    pub fn error_text(&self) -> Option<&str> {
        match self {
            Self::Error { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Why the attempt was not accepted, in words that many attempts share: the rejection reason, or the error text without
    /// its details.
    pub fn cause(&self) -> String {
        match self {
            Self::Accepted { .. } => String::new(),
            Self::Rejected { reason, .. } => cause_of_reason(reason),
            Self::Error { text, .. } => cause_of_error(text),
        }
    }

    /// The message id of the gateway, if it is short enough to be indexed for searches.
    pub fn searchable_message_id(&self) -> Option<&str> {
        self.gateway_message_id().filter(|id| is_searchable_message_id(id))
    }

    pub fn gateway_message_id(&self) -> Option<&str> {
        match self {
            Self::Accepted { gateway_message_id } | Self::Rejected { gateway_message_id, .. } => {
                gateway_message_id.as_deref()
            }
            Self::Error { .. } => None,
        }
    }
}

/// Whether a message id is short enough to be indexed for searches.
pub fn is_searchable_message_id(id: &str) -> bool {
    id.chars().count() <= MAX_NAME_CHARS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_the_part_of_an_error_that_many_attempts_share() {
        for (outcome, cause) in [
            (Outcome::Accepted { gateway_message_id: None }, ""),
            (
                Outcome::Rejected { reason: "invalid_recipient".to_owned(), gateway_message_id: None },
                "invalid_recipient",
            ),
            (Outcome::error("gateway answered HTTP 500: <html> 4711"), "gateway answered HTTP 500"),
            (
                Outcome::error("gateway's answer is not the expected JSON (at 1): x"),
                "gateway's answer is not the expected JSON",
            ),
            (Outcome::error("gateway answered with unknown status \"x\""), "gateway answered with unknown status"),
            (Outcome::interrupted(), "interrupted"),
            (
                Outcome::not_sent("cannot connect to the gateway: Connection refused (os error 111)"),
                "not sent: cannot connect to the gateway",
            ),
            (
                Outcome::unknown("connection lost after sending: reset"),
                "outcome unknown: connection lost after sending",
            ),
            (Outcome::unknown("timed out: no complete answer within 35s"), "outcome unknown: timed out"),
        ] {
            assert_eq!(outcome.cause(), cause);
            let again = outcome.error_text().map(|text| Outcome::stored_error(text.to_owned()));
            assert_eq!(again.map_or(outcome.cause(), |again| again.cause()), cause, "also after it was stored");
        }
        assert_eq!(Outcome::error("é".repeat(500)).cause().chars().count(), MAX_CAUSE_CHARS);
    }

    #[test]
    fn the_contact_is_recovered_from_a_stored_text() {
        for outcome in [
            Outcome::not_sent("cannot connect to the gateway: refused"),
            Outcome::unknown("connection lost after sending: reset"),
            Outcome::unknown("gateway's answer is not HTTP: x"),
            Outcome::interrupted(),
            Outcome::error("gateway answered HTTP 500"),
            Outcome::error("gateway's answer has no status"),
        ] {
            let text = outcome.error_text().unwrap();
            assert_eq!(Contact::of_text(text), outcome.contact(), "{text}");
            assert_eq!(Outcome::stored_error(text.to_owned()).contact(), outcome.contact(), "{text}");
        }
        for text in ["cannot connect to the gateway: x", "timed out", "", "not sentimental"] {
            assert_eq!(Contact::of_text(text), Contact::Unknown, "texts of earlier versions have no prefix: {text}");
        }
    }
}
