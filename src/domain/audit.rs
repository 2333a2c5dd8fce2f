//! The audit log: who did what as an operator. Each entry has the hash of the entry before it.
//!
//! This file has the entries, the actions and the definition of the hash. [`audit_chain`](super::audit_chain) finds entries
//! that were changed or removed.

use std::fmt;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::actor::Actor;
use super::inbox::InboxSubmissionId;
use super::intent::{IntentId, TargetName};
use super::pause::PauseReason;
use super::redrive::{RedriveChange, RedriveId};
use super::role::Role;
use super::time::Timestamp;

/// What an operator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuditAction {
    SignIn,
    SignInRefused,
    SignOut,
    ShowPayload,
    PauseTarget,
    ResumeTarget,
    CancelIntent,
    CancelJob,
    RedeliverWebhook,
    /// Processes one inbox submission again.
    ReprocessSubmission,
    /// Processes the parked inbox submissions of a client again.
    ReprocessParked,
    PlanRedrive,
    StartRedrive,
    PauseRedrive,
    ResumeRedrive,
    CancelRedrive,
    /// Redrives one intent, without a plan.
    RedriveIntent,
    ResetLease,
    /// The service deleted old entries, because `SM_AUDIT_RETENTION` is set.
    PurgeAuditLog,
}

impl AuditAction {
    pub const ALL: [Self; 19] = [
        Self::SignIn,
        Self::SignInRefused,
        Self::SignOut,
        Self::ShowPayload,
        Self::PauseTarget,
        Self::ResumeTarget,
        Self::CancelIntent,
        Self::CancelJob,
        Self::RedeliverWebhook,
        Self::ReprocessSubmission,
        Self::ReprocessParked,
        Self::PlanRedrive,
        Self::StartRedrive,
        Self::PauseRedrive,
        Self::ResumeRedrive,
        Self::CancelRedrive,
        Self::RedriveIntent,
        Self::ResetLease,
        Self::PurgeAuditLog,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SignIn => "sign_in",
            Self::SignInRefused => "sign_in_refused",
            Self::SignOut => "sign_out",
            Self::ShowPayload => "show_payload",
            Self::PauseTarget => "pause_target",
            Self::ResumeTarget => "resume_target",
            Self::CancelIntent => "cancel_intent",
            Self::CancelJob => "cancel_job",
            Self::RedeliverWebhook => "redeliver_webhook",
            Self::ReprocessSubmission => "reprocess_submission",
            Self::ReprocessParked => "reprocess_parked",
            Self::PlanRedrive => "plan_redrive",
            Self::StartRedrive => "start_redrive",
            Self::PauseRedrive => "pause_redrive",
            Self::ResumeRedrive => "resume_redrive",
            Self::CancelRedrive => "cancel_redrive",
            Self::RedriveIntent => "redrive_intent",
            Self::ResetLease => "reset_lease",
            Self::PurgeAuditLog => "purge_audit_log",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == text)
    }
}

/// How a person signed in to the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignInWith<'a> {
    Password,
    /// With the OpenID Connect provider, which knows the person as this subject.
    Provider {
        subject: &'a str,
    },
}

/// An entry that is to be appended to the audit log. The store adds its number, its time and its hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAuditEntry {
    pub actor: Actor,
    pub action: AuditAction,
    /// What was acted on: the id of an intent, the name of a target and so on.
    pub subject: String,
    /// A JSON object.
    pub details: String,
}

impl NewAuditEntry {
    fn new(actor: &Actor, action: AuditAction, subject: impl fmt::Display, details: &Value) -> Self {
        Self { actor: actor.clone(), action, subject: subject.to_string(), details: details.to_string() }
    }

    pub fn pause_target(by: &Actor, target: &TargetName, reason: Option<&PauseReason>) -> Self {
        let details = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason.as_str() }));
        Self::new(by, AuditAction::PauseTarget, target, &details)
    }

    pub fn resume_target(by: &Actor, target: &TargetName) -> Self {
        Self::new(by, AuditAction::ResumeTarget, target, &json!({}))
    }

    /// `after_attempt` says that the intent ends only after the attempt that is in progress.
    pub fn cancel(by: &Actor, id: &IntentId, after_attempt: bool) -> Self {
        let details = json!({ "afterAttempt": after_attempt });
        match id.submission_id() {
            Some(job) => Self::new(by, AuditAction::CancelJob, job, &details),
            None => Self::new(by, AuditAction::CancelIntent, id, &details),
        }
    }

    pub fn redeliver_webhook(by: &Actor, id: &IntentId) -> Self {
        Self::new(by, AuditAction::RedeliverWebhook, id, &json!({}))
    }

    pub fn reprocess_submission(by: &Actor, id: InboxSubmissionId) -> Self {
        Self::new(by, AuditAction::ReprocessSubmission, id, &json!({}))
    }

    pub fn reprocess_parked(by: &Actor, client_slug: &str) -> Self {
        Self::new(by, AuditAction::ReprocessParked, client_slug, &json!({}))
    }

    /// `filter` is the filter as a JSON object. Of a list of intents only the number is recorded: the redrive has their ids.
    pub fn plan_redrive(
        by: &Actor,
        id: RedriveId,
        filter: &str,
        include_unknown: bool,
        note: Option<&str>,
        count: usize,
    ) -> Self {
        let mut filter: Value = serde_json::from_str(filter).unwrap_or_default();
        if let Some(ids) = filter.get("intentIds").and_then(Value::as_array).map(Vec::len) {
            filter = json!({ "intentIds": ids });
        }
        let mut details = json!({ "filter": filter, "includeUnknownOutcome": include_unknown, "count": count });
        if let (Some(note), Some(fields)) = (note, details.as_object_mut()) {
            fields.insert("note".to_owned(), note.into());
        }
        Self::new(by, AuditAction::PlanRedrive, id, &details)
    }

    pub fn change_redrive(by: &Actor, id: RedriveId, change: RedriveChange) -> Self {
        let (action, details) = match change {
            RedriveChange::Start { rate } => (AuditAction::StartRedrive, json!({ "ratePerSecond": rate.per_second() })),
            RedriveChange::Pause => (AuditAction::PauseRedrive, json!({})),
            RedriveChange::Resume => (AuditAction::ResumeRedrive, json!({})),
            RedriveChange::Cancel => (AuditAction::CancelRedrive, json!({})),
        };
        Self::new(by, action, id, &details)
    }

    /// `edited` says that the new intent has another payload.
    pub fn redrive_intent(by: &Actor, id: &IntentId, redriven_as: &IntentId, edited: bool) -> Self {
        let details = json!({ "redrivenAs": redriven_as.as_str(), "editedPayload": edited });
        Self::new(by, AuditAction::RedriveIntent, id, &details)
    }

    pub fn show_payload_of_intent(by: &Actor, id: &IntentId) -> Self {
        Self::new(by, AuditAction::ShowPayload, id, &json!({ "of": "intent" }))
    }

    pub fn show_payload_of_submission(by: &Actor, id: InboxSubmissionId) -> Self {
        Self::new(by, AuditAction::ShowPayload, id, &json!({ "of": "inbox_submission" }))
    }

    /// The texts of a contact's messages are shown.
    pub fn show_messages_of_contact(by: &Actor, contact: i64) -> Self {
        Self::new(by, AuditAction::ShowPayload, contact, &json!({ "of": "contact" }))
    }

    pub fn sign_in(by: &Actor, role: Role, with: SignInWith<'_>) -> Self {
        let details = match with {
            SignInWith::Password => json!({ "role": role.as_str(), "with": "password" }),
            SignInWith::Provider { subject } => {
                json!({ "role": role.as_str(), "with": "provider", "providerSubject": subject })
            }
        };
        Self::new(by, AuditAction::SignIn, CONSOLE, &details)
    }

    /// `unrecorded` is how many refused sign-ins before this one have no entry, because there were too many.
    pub fn sign_in_refused(by: &Actor, reason: &str, detail: &str, unrecorded: u64) -> Self {
        let mut details = serde_json::Map::new();
        details.insert("reason".to_owned(), reason.into());
        if !detail.is_empty() {
            details.insert("detail".to_owned(), detail.into());
        }
        if unrecorded > 0 {
            details.insert("unrecordedBefore".to_owned(), unrecorded.into());
        }
        Self::new(by, AuditAction::SignInRefused, CONSOLE, &Value::Object(details))
    }

    pub fn sign_out(by: &Actor) -> Self {
        Self::new(by, AuditAction::SignOut, CONSOLE, &json!({}))
    }

    pub fn reset_lease(by: &Actor, epoch: i64) -> Self {
        Self::new(by, AuditAction::ResetLease, "lease", &json!({ "leaseEpoch": epoch }))
    }

    /// The entries up to `last`, all from before `before`, are deleted.
    pub fn purge(by: &Actor, last: &ChainLink, before: Timestamp) -> Self {
        let details = json!({ "lastId": last.id, "lastHash": last.hash.to_string(), "before": before.to_string() });
        Self::new(by, AuditAction::PurgeAuditLog, "audit_log", &details)
    }

    /// The hash of everything that the caller of the store determines.
    pub fn content_hash(&self) -> [u8; 32] {
        content_hash(
            self.actor.kind().as_str(),
            self.actor.name().unwrap_or_default(),
            &self.address(),
            self.action.as_str(),
            &self.subject,
            &self.details,
        )
    }

    /// The address of the actor; empty if there is none.
    pub fn address(&self) -> String {
        self.actor.address().map(|address| address.to_string()).unwrap_or_default()
    }
}

/// The subject of sign-ins.
const CONSOLE: &str = "console";

/// A SHA-256 hash of the chain, shown as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainHash(pub [u8; 32]);

impl ChainHash {
    /// What the first entry of a log has as the hash of the entry before it.
    pub const ZERO: Self = Self([0; 32]);

    /// Reads a stored hash. Bytes of another length are no hash and count as [`Self::ZERO`], which fits no entry but the first.
    pub fn of_stored(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(Self::ZERO, Self)
    }

    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(hash))
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The number of an entry and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainLink {
    pub id: i64,
    pub hash: ChainHash,
}

impl ChainLink {
    /// Where the chain of an empty log continues.
    pub const START: Self = Self { id: 0, hash: ChainHash::ZERO };
}

impl fmt::Display for ChainLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.hash)
    }
}

/// An entry as it is stored. Its texts are not parsed, because somebody may have changed them, and because a newer version
/// may have written them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Counts from 1 without gaps.
    pub id: i64,
    pub at: Timestamp,
    pub actor_kind: String,
    /// Empty if the actor is not known by name.
    pub actor_name: String,
    /// Empty if the action came from no network connection.
    pub address: String,
    pub action: String,
    pub subject: String,
    pub details: String,
    pub previous_hash: ChainHash,
    pub hash: ChainHash,
}

impl AuditEntry {
    pub fn link(&self) -> ChainLink {
        ChainLink { id: self.id, hash: self.hash }
    }

    /// The entry before this one, as this one has it.
    pub fn previous_link(&self) -> ChainLink {
        ChainLink { id: self.id.saturating_sub(1), hash: self.previous_hash }
    }

    /// The hash that the entry must have, given its fields and the hash of the entry before it.
    pub fn computed_hash(&self) -> ChainHash {
        let content =
            content_hash(&self.actor_kind, &self.actor_name, &self.address, &self.action, &self.subject, &self.details);
        entry_hash(self.previous_hash, self.id, self.at, &content)
    }
}

/// Begins every content, so that another form of entries could never have the same bytes.
const CONTENT_FORM: &[u8] = b"submission_audit_log 1\n";

/// SHA-256 of [`CONTENT_FORM`] and of the six texts in this order, each as the number of its bytes (8 bytes, big-endian)
/// and its UTF-8 bytes.
fn content_hash(kind: &str, name: &str, address: &str, action: &str, subject: &str, details: &str) -> [u8; 32] {
    let mut hasher = Sha256::new_with_prefix(CONTENT_FORM);
    for text in [kind, name, address, action, subject, details] {
        hasher.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        hasher.update(text);
    }
    hasher.finalize().into()
}

/// SHA-256 of a text of seven parts with blanks between them: the hash of the entry before as four decimal numbers (of 8
/// bytes each, big-endian and signed), the number of the entry, its time in microseconds since 1970, and the hash of its
/// content in hexadecimal. The store for SQL Server computes the same in its transaction, where numbers are easier to convert
/// to text than bytes.
pub fn entry_hash(previous: ChainHash, id: i64, at: Timestamp, content: &[u8; 32]) -> ChainHash {
    let (numbers, _) = previous.0.as_chunks::<8>();
    let before: String = numbers.iter().map(|bytes| format!("{} ", i64::from_be_bytes(*bytes))).collect();
    let text = format!("{before}{id} {} {}", at.micros(), ChainHash(*content));
    ChainHash(Sha256::digest(text).into())
}

#[cfg(test)]
pub mod fixtures {
    use super::*;

    impl NewAuditEntry {
        /// The stored form of this entry, `at` microseconds after 1970, as the next one of a chain.
        pub fn stored(&self, previous: ChainLink, at: i64) -> AuditEntry {
            let (id, at) = (previous.id + 1, Timestamp::from_micros(at));
            AuditEntry {
                id,
                at,
                actor_kind: self.actor.kind().as_str().to_owned(),
                actor_name: self.actor.name().unwrap_or_default().to_owned(),
                address: self.address(),
                action: self.action.as_str().to_owned(),
                subject: self.subject.clone(),
                details: self.details.clone(),
                previous_hash: previous.hash,
                hash: entry_hash(previous.hash, id, at, &self.content_hash()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::actor::fixtures::somebody;
    use crate::domain::redrive::RedriveRate;

    fn redrive() -> RedriveId {
        RedriveId::from_random([7; 16])
    }

    #[test]
    fn actions_have_names_of_their_own() {
        for action in AuditAction::ALL {
            assert_eq!(AuditAction::parse(action.as_str()), Some(action));
        }
        assert_eq!(AuditAction::parse("delete"), None);
    }

    /// The example of docs/audit.md, computed with another program.
    #[test]
    fn the_hash_is_the_documented_one() {
        let target = TargetName::parse("sms.realtime").unwrap();
        let entry = NewAuditEntry::resume_target(&somebody(), &target).stored(ChainLink::START, 1_800_000_000_000_000);
        assert_eq!(entry.hash.to_string(), "4114d320657ac1d0c0ab505012058004dde35ec55d48396a13d50d16882270c5");
        assert_eq!(entry.computed_hash(), entry.hash);
        assert_eq!(ChainHash::parse(&entry.hash.to_string()), Some(entry.hash));
        for text in ["", "00", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            assert_eq!(ChainHash::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_field_is_part_of_the_hash() {
        let target = TargetName::parse("a").unwrap();
        let entry = NewAuditEntry::resume_target(&somebody(), &target).stored(ChainLink::START, 5);
        let changes: [fn(&mut AuditEntry); 10] = [
            |entry| entry.id += 1,
            |entry| entry.at = Timestamp::from_micros(6),
            |entry| entry.actor_kind.push('x'),
            |entry| entry.actor_name.clear(),
            |entry| entry.address.push('x'),
            |entry| entry.action.push('x'),
            |entry| entry.subject.push('x'),
            |entry| entry.details.push(' '),
            |entry| entry.previous_hash = ChainHash([1; 32]),
            // The same bytes in other fields.
            |entry| entry.subject = std::mem::take(&mut entry.action) + &entry.subject,
        ];
        for change in changes {
            let mut changed = entry.clone();
            change(&mut changed);
            assert_ne!(changed.computed_hash(), entry.hash, "{changed:?}");
        }
    }

    #[test]
    fn entries_say_what_was_done() {
        let by = somebody();
        let job = IntentId::parse(&format!("{}0c9fd372-5ba4-4d8c-a5a3-0b4b1b3c2d1e", IntentId::OF_JOBS)).unwrap();
        let intent = IntentId::parse("order-1").unwrap();
        let rate = RedriveRate::new(5).unwrap();
        let filter = r#"{"intentIds":["a","b"]}"#;
        let reason = PauseReason::parse("maintenance").unwrap();
        let target = TargetName::parse("a").unwrap();
        for (entry, action, subject, details) in [
            (NewAuditEntry::cancel(&by, &intent, true), "cancel_intent", "order-1", r#"{"afterAttempt":true}"#),
            (
                NewAuditEntry::cancel(&by, &job, false),
                "cancel_job",
                "0c9fd372-5ba4-4d8c-a5a3-0b4b1b3c2d1e",
                r#"{"afterAttempt":false}"#,
            ),
            (
                NewAuditEntry::plan_redrive(&by, redrive(), filter, true, Some("INC-7"), 2),
                "plan_redrive",
                &redrive().to_string(),
                r#"{"count":2,"filter":{"intentIds":2},"includeUnknownOutcome":true,"note":"INC-7"}"#,
            ),
            (
                NewAuditEntry::change_redrive(&by, redrive(), RedriveChange::Start { rate }),
                "start_redrive",
                &redrive().to_string(),
                r#"{"ratePerSecond":5}"#,
            ),
            (
                NewAuditEntry::pause_target(&by, &target, reason.as_ref()),
                "pause_target",
                "a",
                r#"{"reason":"maintenance"}"#,
            ),
            (
                NewAuditEntry::sign_in(&by, Role::Viewer, SignInWith::Provider { subject: "42" }),
                "sign_in",
                "console",
                r#"{"providerSubject":"42","role":"viewer","with":"provider"}"#,
            ),
            (
                NewAuditEntry::sign_in_refused(&by, "wrong_password", "", 3),
                "sign_in_refused",
                "console",
                r#"{"reason":"wrong_password","unrecordedBefore":3}"#,
            ),
        ] {
            assert_eq!((entry.action.as_str(), entry.subject.as_str()), (action, subject));
            assert_eq!(entry.details, details);
        }
    }
}
