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
    /// No readable answer: whether the gateway acted on the attempt is unknown.
    Error {
        text: String,
        /// Whether the gateway was there, if that is known. Not kept: it matters for what comes next only.
        reached: Option<bool>,
        /// How long it wants to be left alone, if it said so. Not kept either.
        retry_after: Option<Duration>,
    },
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
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error { text: text.into(), reached: Some(true), retry_after: None }
    }

    /// The same; and the gateway wants to be left alone for so long.
    pub fn with_retry_after(mut self, span: Option<Duration>) -> Self {
        if let Self::Error { retry_after, .. } = &mut self {
            *retry_after = span;
        }
        self
    }

    /// There was no connection.
    pub fn unreachable(text: impl Into<String>) -> Self {
        Self::Error { text: text.into(), reached: Some(false), retry_after: None }
    }

    /// There was no answer, or nobody is left who could say.
    pub fn unheard(text: impl Into<String>) -> Self {
        Self::Error { text: text.into(), reached: None, retry_after: None }
    }

    /// Whether the gateway was there.
    pub fn reached(&self) -> Option<bool> {
        match self {
            Self::Error { reached, .. } => *reached,
            Self::Accepted { .. } | Self::Rejected { .. } => Some(true),
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Error { retry_after, .. } => *retry_after,
            Self::Accepted { .. } | Self::Rejected { .. } => None,
        }
    }

    pub fn interrupted() -> Self {
        Self::unheard(INTERRUPTED)
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
            Self::Error { text, .. } => text.split([':', '(', '"']).next().unwrap_or_default().trim(),
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
        ] {
            assert_eq!(outcome.cause(), cause);
        }
        assert_eq!(Outcome::error("é".repeat(500)).cause().chars().count(), MAX_CAUSE_CHARS);
    }
}
