//! An intent, the unit of work that a client submits: its id, its target, its payload and its state.
//!
//! The constructors check their values, so an [`IntentId`] or a [`TargetName`] is always valid. Decisions about intents are
//! made in [`super::policy`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::job::SubmissionId;
use super::time::Timestamp;

/// The maximum length of `intentId`, `submissionTarget` and other names, in characters.
pub const MAX_NAME_CHARS: usize = 200;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must not be empty")]
    Empty,
    #[error("must have at most {MAX_NAME_CHARS} characters, not {0}")]
    TooLong(usize),
    #[error("must not contain control characters")]
    ControlCharacter,
}

/// Trims a name and checks it: it must not be empty, not be too long, and contain no control characters.
pub fn checked_name(raw: &str) -> Result<Arc<str>, NameError> {
    let name = raw.trim();
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.chars().any(char::is_control) {
        return Err(NameError::ControlCharacter);
    }
    let chars = name.chars().count();
    if chars > MAX_NAME_CHARS {
        return Err(NameError::TooLong(chars));
    }
    Ok(name.into())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Trims surrounding whitespace, then checks length and characters.
            pub fn parse(raw: &str) -> Result<Self, NameError> {
                checked_name(raw).map(Self)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name_type! {
    /// `intentId`: the client's idempotency key, compared byte for byte.
    IntentId
}

name_type! {
    /// `submissionTarget`: the name of a target in the registry.
    TargetName
}

impl IntentId {
    /// The prefix of the intent ids of jobs. Clients cannot submit an intent with this prefix.
    pub const OF_JOBS: &str = "sm-job:";

    /// The id of a job's intent.
    pub fn of_job(id: SubmissionId) -> Self {
        Self(format!("{}{id}", Self::OF_JOBS).into())
    }

    /// The id of an intent that repeats another one. The caller makes sure that it is a valid id.
    pub(in crate::domain) fn of_redrive(id: String) -> Self {
        Self(id.into())
    }

    /// Whether the id has the prefix that is reserved for jobs.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(Self::OF_JOBS)
    }

    /// The id of the job, if this is the intent of a job.
    pub fn submission_id(&self) -> Option<SubmissionId> {
        self.0.strip_prefix(Self::OF_JOBS).and_then(SubmissionId::parse)
    }
}

/// The store's number for an intent, in the order in which they are stored. Clients never see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IntentSeq(pub i64);

impl IntentSeq {
    /// The highest number. No intent has it.
    pub const LAST: Self = Self(i64::MAX);
}

/// The exact bytes that the client sent, and their hash. The service never parses or re-encodes them.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    bytes: Bytes,
    sha256: [u8; 32],
}

impl Payload {
    pub fn new(bytes: Bytes) -> Self {
        let sha256 = Sha256::digest(&bytes).into();
        Self { bytes, sha256 }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }
}

impl fmt::Debug for Payload {
    /// Writes the size only, so that payloads never appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.bytes.len())
    }
}

/// Why an intent ended although it was neither accepted nor rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExhaustedReason {
    DeadlineExceeded,
    MaxAttempts,
    OneShot,
    /// Somebody cancelled the intent.
    Cancelled,
}

impl ExhaustedReason {
    pub const ALL: [Self; 4] = [Self::DeadlineExceeded, Self::MaxAttempts, Self::OneShot, Self::Cancelled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::MaxAttempts => "max_attempts",
            Self::OneShot => "one_shot",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// The state of an intent. It is the result of a decision of the policy, not what a gateway responded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Pending,
    Accepted { at: Timestamp },
    Rejected { at: Timestamp, reason: String },
    Exhausted { at: Timestamp, reason: ExhaustedReason },
}

/// The name of a [`State`], for filters, labels and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    Pending,
    Accepted,
    Rejected,
    Exhausted,
}

impl Status {
    pub const ALL: [Self; 4] = [Self::Pending, Self::Accepted, Self::Rejected, Self::Exhausted];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Exhausted => "exhausted",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

impl State {
    /// Whether the intent has ended without being accepted.
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Rejected { .. } | Self::Exhausted { .. })
    }

    pub fn status(&self) -> Status {
        match self {
            Self::Pending => Status::Pending,
            Self::Accepted { .. } => Status::Accepted,
            Self::Rejected { .. } => Status::Rejected,
            Self::Exhausted { .. } => Status::Exhausted,
        }
    }

    pub fn is_terminal(&self) -> bool {
        !matches!(self, Self::Pending)
    }

    /// When the intent ended; `None` while it is pending.
    pub fn completed_at(&self) -> Option<Timestamp> {
        match self {
            Self::Pending => None,
            Self::Accepted { at } | Self::Rejected { at, .. } | Self::Exhausted { at, .. } => Some(*at),
        }
    }

    pub fn rejected_reason(&self) -> Option<&str> {
        match self {
            Self::Rejected { reason, .. } => Some(reason),
            _ => None,
        }
    }

    pub fn exhausted_reason(&self) -> Option<ExhaustedReason> {
        match self {
            Self::Exhausted { reason, .. } => Some(*reason),
            _ => None,
        }
    }
}

/// A stored intent, without its payload and contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    pub seq: IntentSeq,
    pub id: IntentId,
    pub target: TargetName,
    pub created_at: Timestamp,
    /// The `notBefore` of its submission, as the client sent it. It may have been in the past even then.
    pub not_before: Option<Timestamp>,
    /// The intent that this one repeats, if a redrive created it.
    pub redrive_of: Option<IntentId>,
    pub state: State,
    /// The number of attempts started so far, from which the number of the next attempt follows.
    pub attempt_count: u32,
    /// Whether the latest attempt is not finished yet.
    pub attempt_open: bool,
}

impl Intent {
    /// From when the contract of the intent counts, and when its first attempt is due: its `notBefore`, or its creation if
    /// that is later.
    pub fn begins_at(&self) -> Timestamp {
        self.not_before.map_or(self.created_at, |moment| moment.max(self.created_at))
    }

    /// Its `notBefore`, while the intent still waits for it.
    pub fn waits_until(&self) -> Option<Timestamp> {
        let waits = !self.state.is_terminal() && self.attempt_count == 0;
        self.not_before.filter(|moment| waits && *moment > self.created_at)
    }

    /// Whether the first attempt is finished, or the intent ended without one. `waitSeconds` waits for this.
    pub fn first_attempt_finished(&self) -> bool {
        let finished = self.attempt_count.saturating_sub(u32::from(self.attempt_open));
        finished > 0 || self.state.is_terminal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_trimmed_and_checked() {
        let long = "ä".repeat(MAX_NAME_CHARS);
        let cases: [(&str, Result<&str, NameError>); 7] = [
            ("  a b\t", Ok("a b")),
            ("A", Ok("A")),
            (&long, Ok(&long)),
            (" \u{a0}\n", Err(NameError::Empty)),
            ("a\u{0}b", Err(NameError::ControlCharacter)),
            ("a\u{85}b", Err(NameError::ControlCharacter)),
            ("", Err(NameError::Empty)),
        ];
        for (raw, expected) in cases {
            let got = IntentId::parse(raw);
            assert_eq!(got.as_ref().map(IntentId::as_str), expected.as_ref().map(|s| *s), "{raw:?}");
        }
        assert_eq!(TargetName::parse(&format!("{long}x")), Err(NameError::TooLong(201)));
    }

    #[test]
    fn debug_of_a_payload_shows_no_content() {
        let payload = Payload::new(Bytes::from_static(b"secret"));
        assert_eq!(format!("{payload:?}"), "Payload(6 bytes)");
    }

    #[test]
    fn first_attempt_is_finished_when_a_second_is_open() {
        let mut intent = Intent {
            seq: IntentSeq(1),
            id: IntentId::parse("i").unwrap(),
            target: TargetName::parse("t").unwrap(),
            created_at: Timestamp::from_micros(0),
            not_before: None,
            redrive_of: None,
            state: State::Pending,
            attempt_count: 0,
            attempt_open: false,
        };
        for (count, open, finished) in [(0, false, false), (1, true, false), (1, false, true), (2, true, true)] {
            (intent.attempt_count, intent.attempt_open) = (count, open);
            assert_eq!(intent.first_attempt_finished(), finished, "{count} {open}");
        }
    }
}
