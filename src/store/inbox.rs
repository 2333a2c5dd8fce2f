//! The inbox as the store keeps it: raw submissions, and the contacts and messages made of them.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::inbox::{Channel, Draft, PayloadFormat};
use crate::domain::time::Timestamp;

/// An inbox submission to be stored exactly as it was received.
#[derive(Clone)]
pub struct NewInboxSubmission {
    pub id: InboxSubmissionId,
    pub client_slug: String,
    pub channel: Channel,
    pub payload: Bytes,
    pub format: PayloadFormat,
    pub source_url: Option<String>,
    /// The hash of the client and the idempotency key, if the request had one.
    pub key_sha256: Option<[u8; 32]>,
}

impl NewInboxSubmission {
    /// Returns the hash by which two submissions with the same idempotency key are compared.
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
    /// Shows only the size of the payload, because payloads must not get into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewInboxSubmission({} of {:?}, {} bytes)", self.id, self.client_slug, self.payload.len())
    }
}

/// The result of storing a [`NewInboxSubmission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Created(InboxSubmissionId),
    /// The same submission was stored before with this key.
    Existing(InboxSubmissionId),
    /// A different submission was stored before with this key.
    Conflict(InboxSubmissionId),
}

/// The store's own number of a submission. Numbers follow the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboxSubmissionSeq(pub i64);

/// A submission that is due for processing.
#[derive(Clone, Debug)]
pub struct DueInboxSubmission {
    pub seq: InboxSubmissionSeq,
    pub id: InboxSubmissionId,
    pub client_slug: String,
    pub channel: Channel,
    pub payload: Bytes,
    pub format: PayloadFormat,
    /// How often processing it has failed.
    pub tries: u32,
}

/// The submissions that are due, and how much waits.
#[derive(Clone, Debug)]
pub struct DueInbox {
    pub now: Timestamp,
    /// In the order of their due times.
    pub due: Vec<DueInboxSubmission>,
    /// When the next submission becomes due, if none is due now.
    pub next: Option<Timestamp>,
    pub backlog: InboxBacklog,
}

/// How many submissions are not processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxBacklog {
    /// How long the oldest submission that is not parked has been waiting.
    pub oldest: Option<Duration>,
    /// How many submissions are parked.
    pub parked: u64,
}

/// The result of processing a submission that was due.
#[derive(Clone, Debug)]
pub struct ProcessedInboxSubmission {
    pub seq: InboxSubmissionSeq,
    /// How often it had failed before. If that has changed in the store, the result is not recorded.
    pub tries: u32,
    pub result: Result<Draft, FailedInboxTry>,
}

/// A submission could not be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedInboxTry {
    pub error: String,
    /// When to try again; `None` parks the submission.
    pub next_try_at: Option<Timestamp>,
}

/// How far the processing of a submission has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InboxSubmissionState {
    /// It was not processed yet.
    Received,
    /// It failed and is tried again.
    Failed,
    /// It failed too often and waits until an operator has it processed again.
    Parked,
    /// It became a message.
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

/// A stored submission without its payload.
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
    /// Derives the state from the columns of the submission.
    pub fn state(&self) -> InboxSubmissionState {
        match (self.processed_at, self.next_try_at, self.tries) {
            (Some(_), _, _) => InboxSubmissionState::Processed,
            (None, None, _) => InboxSubmissionState::Parked,
            (None, Some(_), 0) => InboxSubmissionState::Received,
            (None, Some(_), _) => InboxSubmissionState::Failed,
        }
    }
}

/// A person who wrote to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    pub id: i64,
    pub client_slug: String,
    pub email: Option<String>,
    pub phone: Option<String>,
    pub name: Option<String>,
    pub created_at: Timestamp,
}

/// A message of a contact, made of one submission.
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

/// The text of a message, cut to the length that lists show. The submission has all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    /// Whether the text was cut.
    pub cut: bool,
}

/// Characters of a message that lists show. The SQL statements read one more, to know whether the text is cut.
pub const SHOWN_CHARS: usize = 4000;

impl Text {
    /// Cuts a text.
    pub(super) fn cut(text: String) -> Self {
        let cut = text.chars().nth(SHOWN_CHARS).is_some();
        Self { text: if cut { text.chars().take(SHOWN_CHARS).collect() } else { text }, cut }
    }
}

/// Which submissions, contacts or messages to list. The newest come first.
#[derive(Clone, Debug, Default)]
pub struct InboxQuery {
    /// Only those of this client; those of all clients if `None`.
    pub client_slug: Option<String>,
    /// Only submissions in this state. Set it only for lists of submissions.
    pub state: Option<InboxSubmissionState>,
    /// Only this contact, or its messages. Set it only for lists of contacts and messages.
    pub contact_id: Option<i64>,
    pub limit: usize,
    /// Continue after this number: the `next` of the page before.
    pub after: Option<i64>,
}

/// One page of a list of the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxPage<T> {
    pub rows: Vec<T>,
    /// Set if there is a next page.
    pub next: Option<i64>,
}

impl<T> InboxPage<T> {
    /// Makes a page of the rows that were found. Stores read one row more than the page has, to know whether there is a
    /// next page.
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
    /// The parked submissions of a client, at most `limit` of them, which bounds the transaction.
    ParkedOf {
        client_slug: String,
        limit: usize,
    },
}

impl Reprocess {
    pub(super) fn audit_entry(&self, by: &Actor) -> NewAuditEntry {
        match self {
            Self::One(id) => NewAuditEntry::reprocess_submission(by, *id),
            Self::ParkedOf { client_slug, .. } => NewAuditEntry::reprocess_parked(by, client_slug),
        }
    }
}
