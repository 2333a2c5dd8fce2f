//! What a store keeps of the inbox: raw submissions, contacts and messages.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, Draft, PayloadFormat};
use crate::domain::time::Timestamp;

/// Something that came in, to be kept as it came.
#[derive(Clone)]
pub struct NewInboxSubmission {
    pub id: InboxSubmissionId,
    pub client_slug: String,
    pub channel: Channel,
    pub payload: Bytes,
    pub format: PayloadFormat,
    pub source_url: Option<String>,
    /// Of client and idempotency key, if one came.
    pub key_sha256: Option<[u8; 32]>,
}

impl NewInboxSubmission {
    /// What makes two submissions with one key the same.
    pub fn content_sha256(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.channel.as_str());
        hash.update([u8::from(self.source_url.is_some())]);
        let source = self.source_url.as_deref().unwrap_or_default();
        hash.update(u64::try_from(source.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(source);
        hash.update(&self.payload);
        hash.finalize().into()
    }
}

impl fmt::Debug for NewInboxSubmission {
    /// Size only: payloads stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewSubmission({} of {:?}, {} bytes)", self.id, self.client_slug, self.payload.len())
    }
}

/// What became of something that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Created(InboxSubmissionId),
    /// The same came before with this key.
    Existing(InboxSubmissionId),
    /// Something else came before with this key.
    Conflict(InboxSubmissionId),
}

/// The store's own number for a submission: the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboxSubmissionSeq(pub i64);

/// A submission that is to be processed now.
#[derive(Clone, Debug)]
pub struct DueInboxSubmission {
    pub seq: InboxSubmissionSeq,
    pub id: InboxSubmissionId,
    pub client_slug: String,
    pub channel: Channel,
    pub payload: Bytes,
    pub format: PayloadFormat,
    /// How often it has failed.
    pub tries: u32,
}

#[derive(Clone, Debug)]
pub struct DueInbox {
    pub now: Timestamp,
    /// In order of when they are due.
    pub due: Vec<DueInboxSubmission>,
    /// When the next one is, if none is now.
    pub next: Option<Timestamp>,
    pub backlog: InboxBacklog,
}

/// How much is not processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxBacklog {
    /// For how long the oldest that is to be processed has been waiting.
    pub oldest: Option<Duration>,
    pub parked: u64,
}

/// What came of a submission that was due.
#[derive(Clone, Debug)]
pub struct ProcessedInboxSubmission {
    pub seq: InboxSubmissionSeq,
    /// How often it had failed before; it is left alone if that has changed.
    pub tries: u32,
    pub result: Result<Draft, FailedInboxTry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedInboxTry {
    pub error: String,
    /// When to try again; parked if there is none.
    pub next_try_at: Option<Timestamp>,
}

/// Where a submission stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InboxSubmissionState {
    /// To be processed for the first time.
    Received,
    /// Failed, and to be tried again.
    Failed,
    /// Waits for a person.
    Parked,
    Processed,
}

impl InboxSubmissionState {
    pub const ALL: [Self; 4] = [Self::Received, Self::Failed, Self::Parked, Self::Processed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Failed => "failed",
            Self::Parked => "parked",
            Self::Processed => "processed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// A submission without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxSubmission {
    pub seq: InboxSubmissionSeq,
    pub id: InboxSubmissionId,
    pub client_slug: String,
    pub channel: Channel,
    pub source_url: Option<String>,
    pub created_at: Timestamp,
    pub processed_at: Option<Timestamp>,
    pub tries: u32,
    pub error: Option<String>,
    pub next_try_at: Option<Timestamp>,
    pub message_id: Option<i64>,
}

impl InboxSubmission {
    pub fn state(&self) -> InboxSubmissionState {
        match (self.processed_at, self.next_try_at, self.tries) {
            (Some(_), _, _) => InboxSubmissionState::Processed,
            (None, None, _) => InboxSubmissionState::Parked,
            (None, Some(_), 0) => InboxSubmissionState::Received,
            (None, Some(_), _) => InboxSubmissionState::Failed,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    pub id: i64,
    pub client_slug: String,
    pub email: Option<String>,
    pub phone: Option<String>,
    pub name: Option<String>,
    pub created_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxMessage {
    pub id: i64,
    pub client_slug: String,
    pub contact_id: i64,
    pub submission_id: InboxSubmissionId,
    pub channel: Channel,
    pub body: Text,
    pub source_url: Option<String>,
    pub processed_at: Timestamp,
}

/// What somebody said, as much of it as lists show; all of it stands in what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    /// There is more.
    pub cut: bool,
}

/// Characters of a message that lists show. The statements ask for one more.
pub const SHOWN_CHARS: usize = 4000;

impl Text {
    /// Of a text that may be a character longer than is shown.
    pub(super) fn cut(text: String) -> Self {
        let cut = text.chars().nth(SHOWN_CHARS).is_some();
        Self { text: if cut { text.chars().take(SHOWN_CHARS).collect() } else { text }, cut }
    }
}

/// A page of a client's things, newest first.
#[derive(Clone, Debug, Default)]
pub struct InboxQuery {
    /// All clients' if there is none.
    pub client_slug: Option<String>,
    /// Of submissions only.
    pub state: Option<InboxSubmissionState>,
    /// Of messages, and of contacts.
    pub contact_id: Option<i64>,
    pub limit: usize,
    /// Continue behind this number, as a page before said.
    pub behind: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxPage<T> {
    pub rows: Vec<T>,
    pub next: Option<i64>,
}

impl<T> InboxPage<T> {
    /// A page of what was found, which may be one more than asked for.
    pub(super) fn of(query: &InboxQuery, mut rows: Vec<T>, number: impl Fn(&T) -> i64) -> Self {
        let limit = query.limit.max(1);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(number);
        Self { rows, next }
    }
}

/// Which submissions to process again.
#[derive(Clone, Debug)]
pub enum Reprocess {
    One(InboxSubmissionId),
    /// All that are parked of a client, as many as one transaction should touch.
    ParkedOf {
        client_slug: String,
        limit: usize,
    },
}
