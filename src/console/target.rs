//! `/ui/targets/{submissionTarget}`: the page of one target: whether it is paused, its contract in words and as JSON, its
//! attempts over time, what waits, recent failures, and the contracts that its intents had before.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use serde_json::{Value, json};
use url::form_urlencoded::Serializer;

use super::chart::{self, Chart, Range, Series, SeriesKind, Slot};
use super::failures::Group;
use super::nav::Nav;
use super::wording::{self, duration_text, target_href};
use super::{PageError, page};
use crate::api::targets::known_targets;
use crate::domain::contract::Contract;
use crate::domain::intent::{ExhaustedReason, TargetName};
use crate::domain::pause::MAX_REASON_CHARS;
use crate::domain::time::Timestamp;
use crate::store::{
    FailureQuery, MINUTE_MICROS, RECENT_MINUTES, SeenContract, TargetActivity, TargetHealth, TargetPause, minute_of,
};
use crate::web::WebDeps;
use crate::web::operator::Operator;

/// The failures that the page shows: those of a day.
const FAILURE_MINUTES: i64 = 24 * 60;
/// How many groups of failures the page shows.
const MOST_GROUPS: usize = 10;

#[derive(Template)]
#[template(path = "console/target.html")]
struct TargetPage {
    nav: Nav,
    name: String,
    pause: Option<TargetPause>,
    pause_href: String,
    resume_href: String,
    max_reason_chars: usize,
    /// The contract of the registry in force, if it has the target.
    contract: Option<ContractFacts>,
    limits: String,
    waiting: u64,
    /// How long the earliest intent has been due; `None` if none is.
    late: Option<String>,
    first_due: Option<Timestamp>,
    intents_href: String,
    pending_href: String,
    failures_href: String,
    /// The form that plans a redrive, filled in for this target.
    plan_href: String,
    ranges: Vec<RangeTab>,
    charts: Vec<Chart>,
    recent_minutes: i64,
    recent: Recent,
    groups: Vec<Group>,
    more_groups: usize,
    seen: Vec<Seen>,
    live: String,
}

struct RangeTab {
    label: &'static str,
    href: String,
    current: bool,
}

/// A contract as the page shows it.
struct ContractFacts {
    words: String,
    gateway_type: &'static str,
    gateway: String,
    terminal: String,
    webhook: Option<String>,
    json: String,
}

/// The attempts of the last minutes.
struct Recent {
    text: String,
    mean: String,
}

/// A contract that intents of the target had.
struct Seen {
    words: String,
    gateway: String,
    first_used_at: Option<Timestamp>,
    waiting: u64,
    /// What is different from the contract before, in words.
    changes: String,
    json: String,
}

/// The page of one target.
pub(super) async fn show(
    path: web::Path<String>,
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let no_such = || PageError::NotFound(format!("There is no target {:?}. Names are case-sensitive.", *path));
    let name = TargetName::parse(&path).map_err(|_| no_such())?;
    let known = known_targets(&deps).await?.remove(&name).ok_or_else(no_such)?;
    let range = Range::of_query(request.query_string());
    let activity = deps.store.target_activity(name.clone(), range.minutes()).await?;
    let query = FailureQuery { minutes: FAILURE_MINUTES, target: Some(name.clone()) };
    let report = deps.store.failures(query).await?;
    let failed = report.groups.iter().filter(|group| group.cause != ExhaustedReason::Cancelled.as_str());
    let groups: Vec<_> = failed.map(|group| Group::of(group, &report)).collect();
    let href = target_href(&name);
    let list = |path: &str, status: &str| {
        let mut query = Serializer::new(String::new());
        query.append_pair("submissionTarget", name.as_str());
        if !status.is_empty() {
            query.append_pair("status", status);
        }
        format!("{path}?{}", query.finish())
    };
    let now = activity.now;
    let is_late = |due: &Timestamp| *due < now && known.pause.is_none();
    page(&TargetPage {
        nav: Nav::new("targets", operator).at(now),
        name: name.to_string(),
        pause_href: format!("{href}/pause"),
        resume_href: format!("{href}/resume"),
        max_reason_chars: MAX_REASON_CHARS,
        contract: known.snapshot.as_ref().map(|snapshot| ContractFacts::of(&snapshot.contract)),
        limits: wording::limits(known.limits),
        waiting: activity.waiting,
        late: activity.first_due.filter(is_late).map(|due| duration_text(now.since(due))),
        first_due: activity.first_due,
        intents_href: list("/ui/intents", ""),
        pending_href: list("/ui/intents", "pending"),
        failures_href: list("/ui/failures", ""),
        plan_href: list("/ui/redrives", ""),
        ranges: Range::ALL
            .map(|tab| RangeTab { label: tab.label(), href: tab.href(&href), current: tab == range })
            .into(),
        charts: charts(range, &activity),
        recent_minutes: RECENT_MINUTES,
        recent: Recent::of(name.clone(), &activity),
        more_groups: groups.len().saturating_sub(MOST_GROUPS),
        groups: groups.into_iter().take(MOST_GROUPS).collect(),
        seen: seen(&activity.contracts),
        live: range.href(&href),
        pause: known.pause,
    })
}

/// The charts of attempts by outcome, and of their mean duration.
fn charts(range: Range, activity: &TargetActivity) -> Vec<Chart> {
    let (mut outcomes, mut durations) = (Vec::new(), Vec::new());
    for (start, end) in range.slots(activity.now) {
        let minutes = || activity.minutes.iter().filter(|minute| (start..end).contains(&minute.minute));
        let attempts = |outcome| {
            Some(minutes().filter(|minute| minute.outcome == outcome).map(|minute| minute.attempts).sum::<u64>())
        };
        let start = Timestamp::from_micros(start.saturating_mul(MINUTE_MICROS));
        let values = vec![attempts("accepted"), attempts("error"), attempts("rejected")];
        let count: u64 = values.iter().flatten().sum();
        let micros: u64 = minutes().map(|minute| minute.micros).sum();
        outcomes.push(Slot { start, values, href: None });
        let mean = micros.checked_div(count).map(|micros| micros.div_ceil(1000));
        durations.push(Slot { start, values: vec![mean], href: None });
    }
    let bars = |class, label| Series { class, label, kind: SeriesKind::Bars };
    let series = [bars("accepted", "accepted"), bars("error", "errors"), bars("rejected", "rejected")];
    let outcomes = chart::draw("Attempts by outcome", range.unit(), range.since(), &series, &outcomes);
    let series = [Series { class: "submitted", label: "mean duration in ms", kind: SeriesKind::Line }];
    let durations = chart::draw("Duration of attempts", "mean in ms", range.since(), &series, &durations);
    outcomes.into_iter().chain(durations).collect()
}

impl Recent {
    fn of(name: TargetName, activity: &TargetActivity) -> Self {
        let first = minute_of(activity.now) - RECENT_MINUTES + 1;
        let mut health = TargetHealth::of(name);
        for minute in activity.minutes.iter().filter(|minute| minute.minute >= first) {
            health.add(&minute.outcome, minute.attempts, minute.micros);
        }
        Self { text: wording::health(&health), mean: health.mean.map(duration_text).unwrap_or_default() }
    }
}

impl ContractFacts {
    fn of(contract: &Contract) -> Self {
        Self {
            words: wording::contract(contract),
            gateway_type: contract.gateway_type.as_str(),
            gateway: contract.gateway_url.to_string(),
            terminal: contract.terminal_outcomes.names().collect::<Vec<_>>().join(", "),
            webhook: contract.webhook.as_ref().map(|webhook| webhook.url.origin().to_owned()),
            json: shown_json(contract),
        }
    }
}

/// The JSON of a contract, without what could be a secret: the path of its webhook and the values of headers.
fn shown_json(contract: &Contract) -> String {
    let mut shown = serde_json::to_value(contract).unwrap_or(Value::Null);
    if let (Some(webhook), Some(shown)) = (&contract.webhook, shown.get_mut("webhook")) {
        shown["url"] = format!("{}/…", webhook.url.origin()).into();
        if let Some(headers) = shown.get_mut("headers").and_then(Value::as_object_mut) {
            headers.values_mut().for_each(|value| *value = json!("…"));
        }
    }
    serde_json::to_string_pretty(&shown).unwrap_or_default()
}

/// The contracts, the newest first, each with what is different from the one before.
fn seen(contracts: &[SeenContract]) -> Vec<Seen> {
    let before = contracts.iter().skip(1).map(Some).chain([None]);
    let row = |(seen, before): (&SeenContract, Option<&SeenContract>)| Seen {
        words: wording::contract(&seen.contract),
        gateway: seen.contract.gateway_url.to_string(),
        first_used_at: seen.first_used_at,
        waiting: seen.waiting,
        changes: before.map(|before| changes(&before.contract, &seen.contract)).unwrap_or_default(),
        json: shown_json(&seen.contract),
    };
    contracts.iter().zip(before).map(row).collect()
}

/// Which parts of a contract changed, in words.
fn changes(before: &Contract, now: &Contract) -> String {
    let parts = [
        (before.gateway_type != now.gateway_type, "gateway type"),
        (before.gateway_url != now.gateway_url, "gateway URL"),
        (before.policy != now.policy, "policy"),
        (before.terminal_outcomes != now.terminal_outcomes, "final rejection reasons"),
        (before.webhook != now.webhook, "webhook"),
    ];
    parts.iter().filter(|(changed, _)| *changed).map(|(_, part)| *part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::contract::fixtures::{max_attempts, one_shot, with_webhook};

    #[test]
    fn the_json_of_a_contract_shows_no_secrets() {
        let mut contract = with_webhook("https://hooks.test/secret-path?token=x", one_shot());
        if let Some(webhook) = &mut contract.webhook {
            webhook.headers.insert("X-Api-Key".to_owned(), "hunter2".to_owned());
        }
        let json = shown_json(&contract);
        assert!(json.contains("https://hooks.test/…") && json.contains("X-Api-Key"), "{json}");
        assert!(!json.contains("secret-path") && !json.contains("hunter2") && !json.contains("token"), "{json}");
    }

    #[test]
    fn changes_of_contracts_are_named() {
        assert_eq!(changes(&max_attempts(2), &max_attempts(3)), "policy");
        assert_eq!(changes(&one_shot(), &with_webhook("http://h.test", one_shot())), "webhook");
    }
}
