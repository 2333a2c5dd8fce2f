//! What a gateway said, or why nothing sensible was heard: facts, recorded as they are.
//!
//! An outcome is never a status of the intent; `policy` turns one into the other.

use std::time::Duration;

use super::intent::MAX_NAME_CHARS;

/// The fact an attempt ended with.
#[derive(Clone, Debug)]
pub enum Outcome {
    Accepted {
        gateway_message_id: Option<String>,
    },
    Rejected {
        reason: String,
        gateway_message_id: Option<String>,
    },
    /// Neither accepted nor rejected.
    Error {
        /// Begins with the words of its contact, by which [`Contact::of_text`] knows it again.
        text: String,
        contact: Contact,
        /// How long the gateway wants to be left alone, if it said so. Not stored.
        retry_after: Option<Duration>,
    },
}

/// How far an attempt got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contact {
    /// Nothing of the request left: the gateway cannot have acted on it.
    NotSent,
    /// The gateway answered.
    Answered,
    /// The request, or some of it, may have left, and no complete answer came: the gateway may have acted on it.
    Unknown,
}

impl Contact {
    pub const ALL: [Self; 3] = [Self::NotSent, Self::Answered, Self::Unknown];

    /// The label of `submission_attempt_errors_total`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::Answered => "answered",
            Self::Unknown => "unknown",
        }
    }

    /// What the text of an error begins with.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::NotSent => "not sent: ",
            Self::Answered => "",
            Self::Unknown => "outcome unknown: ",
        }
    }

    /// The contact that a stored error text tells. Texts of answers begin with the word gateway; what cannot be
    /// told is unknown.
    pub fn of_text(text: &str) -> Self {
        if text.starts_with(Self::NotSent.prefix()) {
            Self::NotSent
        } else if text.starts_with("gateway") {
            Self::Answered
        } else {
            Self::Unknown
        }
    }

    /// Whether the gateway was there, if that is known.
    pub const fn reached(self) -> Option<bool> {
        match self {
            Self::NotSent => Some(false),
            Self::Answered => Some(true),
            Self::Unknown => None,
        }
    }
}

/// By what is kept of them.
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

/// Recorded for an attempt whose leader went away before it could write down the outcome.
pub const INTERRUPTED: &str = "interrupted: the instance that made this attempt stopped or lost its lease \
                               before recording the outcome, which is therefore unknown";

/// Longest cause: a column holds it, at up to two units a character.
const MAX_CAUSE_CHARS: usize = 60;

impl Outcome {
    /// The gateway answered, but not with an acceptance or a rejection. The text begins with the word gateway.
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error { text: text.into(), contact: Contact::Answered, retry_after: None }
    }

    /// Nothing was sent, and this is why.
    pub fn not_sent(text: impl AsRef<str>) -> Self {
        Self::with_prefix(Contact::NotSent, text.as_ref())
    }

    /// The request may have been sent, and this is why there is no answer.
    pub fn unknown(text: impl AsRef<str>) -> Self {
        Self::with_prefix(Contact::Unknown, text.as_ref())
    }

    /// An error as a store has kept it.
    pub fn stored_error(text: String) -> Self {
        Self::Error { contact: Contact::of_text(&text), text, retry_after: None }
    }

    fn with_prefix(contact: Contact, text: &str) -> Self {
        Self::Error { text: format!("{}{text}", contact.prefix()), contact, retry_after: None }
    }

    /// The same; and the gateway wants to be left alone for so long.
    pub fn with_retry_after(mut self, span: Option<Duration>) -> Self {
        if let Self::Error { retry_after, .. } = &mut self {
            *retry_after = span;
        }
        self
    }

    /// How far the attempt got.
    pub fn contact(&self) -> Contact {
        match self {
            Self::Error { contact, .. } => *contact,
            Self::Accepted { .. } | Self::Rejected { .. } => Contact::Answered,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Error { retry_after, .. } => *retry_after,
            Self::Accepted { .. } | Self::Rejected { .. } => None,
        }
    }

    pub fn interrupted() -> Self {
        Self::stored_error(INTERRUPTED.to_owned())
    }

    /// The label of `submission_attempts_total`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
            Self::Rejected { .. } => "rejected",
            Self::Error { .. } => "error",
        }
    }

    /// `outcomeStatus` of the audit row: what the gateway said, so nothing for an error.
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

    /// Why it was not accepted, in few words that many attempts share: a reason, or an error
    /// without its details.
    pub fn cause(&self) -> String {
        let text = match self {
            Self::Accepted { .. } => "",
            Self::Rejected { reason, .. } => reason,
            Self::Error { text, contact, .. } => {
                let prefix = if text.starts_with(contact.prefix()) { contact.prefix().len() } else { 0 };
                let end = text[prefix..].find([':', '(', '"']).map_or(text.len(), |end| prefix + end);
                text[..end].trim()
            }
        };
        text.chars().take(MAX_CAUSE_CHARS).collect()
    }

    /// The gateway's id, if it is one that can be searched for.
    pub fn searchable_message_id(&self) -> Option<&str> {
        self.gateway_message_id().filter(|id| id.chars().count() <= MAX_NAME_CHARS)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_what_many_attempts_share() {
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
            assert_eq!(again.map_or(outcome.cause(), |again| again.cause()), cause, "and so does what is stored");
        }
        assert_eq!(Outcome::error("é".repeat(500)).cause().chars().count(), MAX_CAUSE_CHARS);
    }

    #[test]
    fn a_stored_text_tells_how_far_the_attempt_got() {
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
            assert_eq!(Contact::of_text(text), Contact::Unknown, "what earlier versions wrote is in doubt: {text}");
        }
    }
}
