//! `/v1/audit`: the audit log, who did what as an operator.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::inbox::{cursor_text, parse_cursor};
use super::intents::page_limit;
use super::json::{CommonErrors, ErrorJson};
use crate::domain::actor::MAX_ACTOR_CHARS;
use crate::domain::audit::{AuditAction, AuditEntry};
use crate::domain::time::Timestamp;
use crate::store::{AuditActor, AuditQuery};
use crate::web::WebDeps;
use crate::web::error::ApiError;
use crate::web::query::Query;

/// List the audit log, newest first
///
/// Each entry says who did what as an operator, and has the hash of the entry before it. Reading the log makes no entry.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", operation_id = "listAuditLog",
    security((), ("bearer" = ["admin"])),
    params(
        ("after" = Option<String>, Query, format = DateTime, description = "Only entries made after this moment"),
        ("before" = Option<String>, Query, format = DateTime, description = "Only entries made before this moment"),
        ("actor" = Option<String>, Query, description = "Only entries of the actors with this name. Actors without a name are listed by their kind: `loopback`, `anonymous` or `console`"),
        ("action" = Option<AuditActionName>, Query, description = "Only entries of this action"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 50 by default; values above 200 count as 200"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous page"),
    ),
    responses(
        (status = 200, body = AuditListJson, description = "A page of entries"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid"),
        CommonErrors,
    ))]
pub(super) async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let page = deps.store.list_audit(audit_query(request.query_string())?).await?;
    let entries = page.entries.iter().map(AuditEntryJson::from).collect();
    Ok(HttpResponse::Ok().json(AuditListJson { entries, next_cursor: page.next.map(cursor_text) }))
}

fn audit_query(text: &str) -> Result<AuditQuery, ApiError> {
    const TIME: &str = "a time in RFC 3339, such as 2026-11-16T09:30:00Z";
    let query = Query::parse(text, &["after", "before", "actor", "action", "limit", "cursor"])?;
    Ok(AuditQuery {
        after: query.get("after", TIME, Timestamp::parse)?,
        before: query.get("before", TIME, Timestamp::parse)?,
        actor: query.get("actor", "the name of an actor, or the kind of an actor without one", parse_actor)?,
        action: query.get("action", "an action such as pause_target", AuditAction::parse)?,
        limit: page_limit(&query)?,
        older_than: query.get("cursor", "the nextCursor of the previous page", parse_cursor)?,
    })
}

/// Parses the label of an actor. No stored name is longer or has control characters.
pub fn parse_actor(text: &str) -> Option<AuditActor> {
    let is_name = text.chars().count() <= MAX_ACTOR_CHARS && !text.chars().any(char::is_control);
    is_name.then(|| AuditActor::of_label(text))
}

/// An entry of the audit log.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AuditEntry)]
pub struct AuditEntryJson<'a> {
    /// Counts from 1 without gaps.
    pub id: i64,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    pub actor: AuditActorJson<'a>,
    /// The address of the connection; that of a proxy if there is one in between. Null for commands on the store.
    #[schema(required = true)]
    pub address: Option<&'a str>,
    #[schema(value_type = AuditActionName)]
    pub action: &'a str,
    /// What was acted on: the id of an intent, the name of a target and so on.
    #[schema(example = "sms.realtime")]
    pub subject: &'a str,
    /// An object; its fields depend on the action.
    #[schema(value_type = Object)]
    pub details: Details<'a>,
    /// The hash of the entry before this one, in hexadecimal; zeros in the first entry.
    pub previous_hash: String,
    /// SHA-256 of the previous hash and of all other fields, in hexadecimal.
    pub hash: String,
}

/// Who did it.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditActor)]
pub struct AuditActorJson<'a> {
    #[schema(value_type = AuditActorKindName)]
    pub kind: &'a str,
    /// Null if it is not known who it was.
    #[schema(required = true)]
    pub name: Option<&'a str>,
}

/// The details of an entry as they are stored, or as a JSON text if somebody has changed them to something else than JSON.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Details<'a> {
    Json(&'a RawValue),
    Text(&'a str),
}

impl<'a> From<&'a AuditEntry> for AuditEntryJson<'a> {
    fn from(entry: &'a AuditEntry) -> Self {
        let known = |text: &'a str| (!text.is_empty()).then_some(text);
        // Only JSON that common parsers accept is returned as JSON. `Value` refuses deep nesting, `RawValue` does not.
        let is_json = serde_json::from_str::<Value>(&entry.details).is_ok();
        let json = serde_json::from_str(&entry.details).ok().filter(|_| is_json);
        Self {
            id: entry.id,
            at: entry.at,
            actor: AuditActorJson { kind: &entry.actor_kind, name: known(&entry.actor_name) },
            address: known(&entry.address),
            action: &entry.action,
            subject: &entry.subject,
            details: json.map_or(Details::Text(&entry.details), Details::Json),
            previous_hash: entry.previous_hash.to_string(),
            hash: entry.hash.to_string(),
        }
    }
}

/// A page of the audit log.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AuditList)]
pub struct AuditListJson<'a> {
    pub entries: Vec<AuditEntryJson<'a>>,
    /// Pass this as `cursor` to get the next page; null on the last page.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// What was done.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case", as = AuditAction)]
pub enum AuditActionName {
    SignIn,
    SignInRefused,
    SignOut,
    ShowPayload,
    PauseTarget,
    ResumeTarget,
    CancelIntent,
    CancelJob,
    RedeliverWebhook,
    ReprocessSubmission,
    ReprocessParked,
    PlanRedrive,
    StartRedrive,
    PauseRedrive,
    ResumeRedrive,
    CancelRedrive,
    RedriveIntent,
    ResetLease,
    PurgeAuditLog,
}

/// How an actor is known: by a bearer token, by a sign-in to the console, not at all (on this machine or on another one), as
/// the user of a command on the store, or as the service itself.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case", as = AuditActorKind)]
pub enum AuditActorKindName {
    Token,
    Console,
    Loopback,
    Anonymous,
    CommandLine,
    Service,
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema;

    use super::*;
    use crate::domain::actor::ActorKind;

    #[test]
    fn queries_are_strict() {
        let query = audit_query("actor=ann&action=sign_in&after=2026-01-01T00%3A00%3A00Z&before=&limit=999&cursor=n1f");
        let query = query.unwrap();
        assert_eq!((query.actor, query.action), (parse_actor("ann"), Some(AuditAction::SignIn)));
        assert_eq!((query.older_than, query.limit, query.before), (Some(31), 200, None));
        assert!(query.after.is_some());
        for text in [
            "user=ann",
            "actor=a&actor=b",
            "action=delete",
            "after=today",
            "limit=0",
            "cursor=31",
            "actor=a%00",
            "cursor=n01f",
        ] {
            assert!(audit_query(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_action_and_kind_is_documented() {
        let documented = include_str!("../../docs/audit.md");
        let names = AuditAction::ALL.map(AuditAction::as_str).into_iter().chain(ActorKind::ALL.map(ActorKind::as_str));
        for name in names {
            assert!(documented.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn the_schema_names_every_action_and_kind() {
        let names = |schema| serde_json::to_value(schema).unwrap()["enum"].clone();
        let actions = AuditAction::ALL.map(AuditAction::as_str);
        assert_eq!(names(AuditActionName::schema()), serde_json::json!(actions));
        let kinds = ActorKind::ALL.map(ActorKind::as_str);
        assert_eq!(names(AuditActorKindName::schema()), serde_json::json!(kinds));
    }
}
