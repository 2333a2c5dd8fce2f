//! `/ui/audit`: the audit log, for administrators.

use std::collections::BTreeMap;

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use serde_json::Value;
use url::form_urlencoded;

use super::nav::Nav;
use super::time_input::{self, Zone};
use super::{PageError, page};
use crate::api::audit::parse_actor;
use crate::api::inbox::{cursor_text, parse_cursor};
use crate::domain::audit::{AuditAction, AuditEntry};
use crate::domain::time::Timestamp;
use crate::store::{AuditPage, AuditQuery};
use crate::web::WebDeps;
use crate::web::operator::Operator;

/// Entries on one page.
const PAGE: usize = 50;

#[derive(Template)]
#[template(path = "console/audit.html")]
struct LogPage {
    nav: Nav,
    filter: Filter,
    actions: [(AuditAction, &'static str); AuditAction::ALL.len()],
    rows: Vec<Row>,
    next: Option<String>,
}

/// An entry of the list.
struct Row {
    entry: AuditEntry,
    /// The action in words.
    action: String,
    /// The details as text, such as `reason: maintenance`.
    details: String,
}

/// The page of the audit log.
pub(super) async fn show(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let now = deps.clock.now();
    let (filter, query) = Filter::parse(request.query_string(), now);
    let found = match filter.is_valid() {
        true => deps.store.list_audit(query).await?,
        false => AuditPage { entries: Vec::new(), next: None },
    };
    page(&LogPage {
        nav: Nav::new("audit", operator).at(now),
        actions: AuditAction::ALL.map(|action| (action, words(action))),
        next: found.next.map(|next| filter.next(next)),
        rows: found.entries.into_iter().map(Row::of).collect(),
        filter,
    })
}

/// The fields of the filter.
const FIELDS: [&str; 4] = ["actor", "action", "after", "before"];

/// The filter as it was typed.
struct Filter {
    values: BTreeMap<&'static str, String>,
    errors: BTreeMap<&'static str, String>,
    /// The time zone of the browser.
    zone: String,
    has_cursor: bool,
    /// An error that belongs to no field.
    problem: Option<String>,
}

impl Filter {
    fn parse(text: &str, now: Timestamp) -> (Self, AuditQuery) {
        let (values, errors) = (BTreeMap::new(), BTreeMap::new());
        let mut filter = Self { values, errors, zone: String::new(), has_cursor: false, problem: None };
        let mut cursor = None;
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let value = value.trim().to_owned();
            match (&*name, FIELDS.into_iter().find(|known| *known == name)) {
                (_, _) if value.is_empty() => {}
                (_, Some(known)) => drop(filter.values.insert(known, value)),
                ("tz", _) => filter.zone = value,
                ("cursor", _) => cursor = Some(value),
                _ => filter.problem = Some(format!("There is no filter {name:?}.")),
            }
        }
        filter.has_cursor = cursor.is_some();
        let older_than = cursor.as_deref().and_then(parse_cursor);
        if filter.has_cursor && older_than.is_none() {
            filter.problem = Some("This link to a further page is invalid. Search again.".to_owned());
        }
        let zone = Zone::of_browser(&filter.zone);
        let time = |text: &str| time_input::parse(text, now, zone);
        let query = AuditQuery {
            after: filter.read("after", time_input::EXPECTED, time),
            before: filter.read("before", time_input::EXPECTED, time),
            actor: filter.read("actor", "the name of a person or token", parse_actor),
            action: filter.read("action", "one of the actions in the list", AuditAction::parse),
            limit: PAGE,
            older_than,
        };
        (filter, query)
    }

    /// Reads a field; an invalid value is recorded as its error.
    fn read<T>(&mut self, name: &'static str, expected: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.values.get(name)?;
        let parsed = parse(text);
        if parsed.is_none() {
            self.errors.insert(name, format!("Write {expected}."));
        }
        parsed
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty() && self.problem.is_none()
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn value(&self, name: &str) -> &str {
        self.values.get(name).map(String::as_str).unwrap_or_default()
    }

    fn error(&self, name: &str) -> Option<&String> {
        self.errors.get(name)
    }

    /// The address of the page with this cursor.
    fn next(&self, older_than: i64) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.values);
        if !self.zone.is_empty() {
            query.append_pair("tz", &self.zone);
        }
        query.append_pair("cursor", &cursor_text(older_than));
        format!("/ui/audit?{}", query.finish())
    }

    /// The address of the first page with the same filter.
    fn first(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.values);
        if !self.zone.is_empty() {
            query.append_pair("tz", &self.zone);
        }
        format!("/ui/audit?{}", query.finish())
    }
}

impl Row {
    fn of(entry: AuditEntry) -> Self {
        let action = AuditAction::parse(&entry.action).map_or_else(|| entry.action.clone(), |a| words(a).to_owned());
        Self { action, details: details_text(&entry.details), entry }
    }

    /// Who did it: a name, or how the actor is known.
    fn actor(&self) -> &str {
        if self.entry.actor_name.is_empty() { &self.entry.actor_kind } else { &self.entry.actor_name }
    }
}

/// The details as `name: value` pairs. Details that are not an object are shown as they are.
fn details_text(details: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str(details) else { return details.to_owned() };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    fields.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect::<Vec<_>>().join(", ")
}

/// An action in words.
const fn words(action: AuditAction) -> &'static str {
    match action {
        AuditAction::SignIn => "signed in",
        AuditAction::SignInRefused => "sign-in refused",
        AuditAction::SignOut => "signed out",
        AuditAction::ShowPayload => "looked at a payload",
        AuditAction::PauseTarget => "paused a target",
        AuditAction::ResumeTarget => "resumed a target",
        AuditAction::CancelIntent => "cancelled an intent",
        AuditAction::CancelJob => "cancelled a job",
        AuditAction::RedeliverWebhook => "redelivered a webhook",
        AuditAction::ReprocessSubmission => "reprocessed an inbox submission",
        AuditAction::ReprocessParked => "reprocessed parked inbox submissions",
        AuditAction::PlanRedrive => "planned a redrive",
        AuditAction::StartRedrive => "started a redrive",
        AuditAction::PauseRedrive => "paused a redrive",
        AuditAction::ResumeRedrive => "resumed a redrive",
        AuditAction::CancelRedrive => "cancelled a redrive",
        AuditAction::RedriveIntent => "sent an intent again",
        AuditAction::ResetLease => "reset the lease",
        AuditAction::PurgeAuditLog => "purged the audit log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_as_it_is_typed() {
        let now = Timestamp::parse("2026-11-16T10:00:00Z").unwrap();
        let (filter, query) = Filter::parse("actor=+ann&action=sign_in&after=09:30&tz=-60&before=", now);
        assert!(filter.is_valid() && !filter.is_empty());
        assert_eq!((query.after, query.before), (Timestamp::parse("2026-11-16T08:30:00Z"), None));
        assert_eq!((query.actor, query.action), (parse_actor("ann"), Some(AuditAction::SignIn)));
        assert_eq!(filter.next(31), "/ui/audit?action=sign_in&actor=ann&after=09%3A30&tz=-60&cursor=n1f");
        for text in ["after=soon", "action=delete", "cursor=x", "user=ann"] {
            assert!(!Filter::parse(text, now).0.is_valid(), "{text}");
        }
    }

    #[test]
    fn details_are_shown_as_text() {
        for (details, text) in [
            ("{}", ""),
            (
                r#"{"count":2,"filter":{"reason":"x"},"note":"a \"b\""}"#,
                r#"count: 2, filter: {"reason":"x"}, note: a "b""#,
            ),
            ("changed by hand", "changed by hand"),
            ("[1]", "[1]"),
        ] {
            assert_eq!(details_text(details), text);
        }
    }
}
