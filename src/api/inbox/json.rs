//! The JSON types of the inbox. The OpenAPI document is generated from them, so the doc comments on types and fields are
//! what API users read.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::domain::time::Timestamp;
use crate::store::{Contact, InboxMessage, InboxSubmission};

/// A submission to the inbox.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InboxSubmissionRequest)]
pub struct SubmissionRequest<'a> {
    /// The slug of an inbox client in the registry.
    #[schema(example = "acme", min_length = 1, max_length = 100)]
    pub client_slug: String,
    /// A channel of that client.
    #[schema(value_type = ChannelName)]
    pub channel: String,
    /// Any JSON. The service stores exactly the bytes of the request.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value, example = json!({"email": "ann@example.com", "name": "Ann", "message": "Hello"}))]
    pub payload: &'a RawValue,
    /// The page or address that the submission comes from.
    #[serde(default)]
    #[schema(max_length = 2000, example = "https://acme.example/contact")]
    pub source_url: Option<String>,
}

/// The channel of an inbox submission.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum ChannelName {
    Form,
    Sms,
    Voice,
    Email,
}

/// The state of an inbox submission: not processed yet (`received`), waiting for another try (`failed`), waiting for an
/// operator (`parked`), or done (`processed`).
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum SubmissionStateName {
    Received,
    Failed,
    Parked,
    Processed,
}

/// The id of a stored inbox submission.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxReceived)]
pub struct ReceivedJson {
    #[schema(example = "f47ac10b-58cc-4372-a567-0e02b2c3d479")]
    pub id: String,
}

/// The result of reprocessing parked submissions.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxReprocessed)]
pub struct ReprocessedJson {
    /// How many submissions are due now.
    pub reprocessed: usize,
    /// Whether there may be more parked submissions; if so, call again.
    pub more: bool,
}

/// An inbox submission.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxSubmission)]
pub struct SubmissionJson<'a> {
    pub id: String,
    pub client_slug: &'a str,
    #[schema(value_type = ChannelName)]
    pub channel: &'static str,
    #[schema(value_type = SubmissionStateName)]
    pub state: &'static str,
    #[schema(required = true)]
    pub source_url: Option<&'a str>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    pub processed_at: Option<Timestamp>,
    /// How many tries have failed since the submission was received or last reprocessed.
    pub tries: u32,
    /// The error of the last failed try.
    #[schema(required = true)]
    pub error: Option<&'a str>,
    /// When the next try is due.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    pub next_try_at: Option<Timestamp>,
    /// The message that was made of the submission.
    #[schema(required = true)]
    pub message_id: Option<i64>,
}

impl<'a> From<&'a InboxSubmission> for SubmissionJson<'a> {
    fn from(row: &'a InboxSubmission) -> Self {
        Self {
            id: row.id.to_string(),
            client_slug: &row.client_slug,
            channel: row.channel.as_str(),
            state: row.state().as_str(),
            source_url: row.source_url.as_deref(),
            created_at: row.created_at,
            processed_at: row.processed_at,
            tries: row.tries,
            error: row.error.as_deref(),
            next_try_at: row.next_try_at,
            message_id: row.message_id,
        }
    }
}

/// An inbox submission with its payload.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxSubmissionDetail)]
pub struct SubmissionDetailJson<'a> {
    #[serde(flatten)]
    pub submission: SubmissionJson<'a>,
    /// The payload, if it is JSON.
    #[schema(value_type = Option<serde_json::Value>, required = true)]
    pub payload: Option<&'a RawValue>,
    /// The payload as text, if it is not JSON or is nested too deeply. Bytes that are not UTF-8 are replaced by U+FFFD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_text: Option<String>,
}

/// A page of inbox submissions.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxSubmissionList)]
pub struct SubmissionListJson<'a> {
    pub submissions: Vec<SubmissionJson<'a>>,
    /// Pass this as `cursor` to get the next page; null on the last page.
    #[serde(rename = "nextCursor")]
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// A person who wrote or called.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxContact)]
pub struct ContactJson<'a> {
    pub id: i64,
    pub client_slug: &'a str,
    #[schema(required = true)]
    pub email: Option<&'a str>,
    /// The phone number in E.164 format.
    #[schema(required = true)]
    pub phone: Option<&'a str>,
    #[schema(required = true)]
    pub name: Option<&'a str>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

impl<'a> From<&'a Contact> for ContactJson<'a> {
    fn from(contact: &'a Contact) -> Self {
        Self {
            id: contact.id,
            client_slug: &contact.client_slug,
            email: contact.email.as_deref(),
            phone: contact.phone.as_deref(),
            name: contact.name.as_deref(),
            created_at: contact.created_at,
        }
    }
}

/// A page of contacts.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxContactList)]
pub struct ContactListJson<'a> {
    pub contacts: Vec<ContactJson<'a>>,
    /// Pass this as `cursor` to get the next page; null on the last page.
    #[serde(rename = "nextCursor")]
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// A message from a contact.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxMessage)]
pub struct MessageJson<'a> {
    pub id: i64,
    pub client_slug: &'a str,
    pub contact_id: i64,
    pub submission_id: String,
    #[schema(value_type = ChannelName)]
    pub channel: &'static str,
    /// The first 4,000 characters of the message. The payload of the submission has all of it.
    pub body: &'a str,
    /// Whether the message is longer than `body`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub body_cut: bool,
    #[schema(required = true)]
    pub source_url: Option<&'a str>,
    #[schema(value_type = String, format = DateTime)]
    pub processed_at: Timestamp,
}

impl<'a> From<&'a InboxMessage> for MessageJson<'a> {
    fn from(message: &'a InboxMessage) -> Self {
        Self {
            id: message.id,
            client_slug: &message.client_slug,
            contact_id: message.contact_id,
            submission_id: message.submission_id.to_string(),
            channel: message.channel.as_str(),
            body: &message.body.text,
            body_cut: message.body.cut,
            source_url: message.source_url.as_deref(),
            processed_at: message.processed_at,
        }
    }
}

/// A page of messages.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxMessageList)]
pub struct MessageListJson<'a> {
    pub messages: Vec<MessageJson<'a>>,
    /// Pass this as `cursor` to get the next page; null on the last page.
    #[serde(rename = "nextCursor")]
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}
