//! `/ui/failures`: failed intents in groups by target and cause. Each group leads to its intents, and to the plan of a redrive
//! of exactly these.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use url::form_urlencoded::{self, Serializer};

use super::chart::Spark;
use super::nav::Nav;
use super::wording::{self, cause_words, intent_href, target_href};
use super::{PageError, page};
use crate::domain::intent::{ExhaustedReason, IntentId, TargetName};
use crate::domain::time::Timestamp;
use crate::store::{FailureGroup, FailureQuery, FailureReport};
use crate::web::WebDeps;
use crate::web::operator::Operator;

/// The periods of the page: name in its address, label, minutes.
const PERIODS: [(&str, &str, i64); 3] =
    [("1h", "last hour", 60), ("6h", "last 6 hours", 360), ("24h", "last 24 hours", 1440)];
const DEFAULT_PERIOD: &str = "24h";

#[derive(Template)]
#[template(path = "console/failures.html")]
struct FailuresPage {
    nav: Nav,
    periods: Vec<Period>,
    period: &'static str,
    /// The target to which the page is limited; empty for all.
    target: String,
    /// The same page for all targets.
    all_targets: String,
    targets: Vec<String>,
    error: Option<String>,
    total: u64,
    cancelled: u64,
    groups: Vec<Group>,
    more_groups: usize,
    live: String,
}

/// A link to the page with another period.
struct Period {
    name: &'static str,
    label: &'static str,
    href: String,
    current: bool,
}

/// A group as the page shows it.
pub(super) struct Group {
    pub cause: String,
    pub target: String,
    pub target_href: String,
    pub status: &'static str,
    pub intents: u64,
    pub first: Timestamp,
    pub last: Timestamp,
    pub trend: Spark,
    /// The list of its intents.
    pub list: String,
    pub sample: Option<(IntentId, String)>,
    /// The values of the form that plans a redrive of the group.
    pub plan: Vec<(&'static str, String)>,
}

/// The failures of a period.
pub(super) async fn show(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let (mut name, mut target) = (DEFAULT_PERIOD.to_owned(), String::new());
    for (field, value) in form_urlencoded::parse(request.query_string().as_bytes()) {
        match &*field {
            "period" => name = value.trim().to_owned(),
            "submissionTarget" => target = value.trim().to_owned(),
            _ => {}
        }
    }
    let found = PERIODS.into_iter().find(|(known, _, _)| *known == name);
    let wanted = if target.is_empty() { None } else { TargetName::parse(&target).ok() };
    let error = if found.is_none() {
        Some("There is no such period. Choose one below.".to_owned())
    } else if wanted.is_none() && !target.is_empty() {
        Some(format!("{target:?} is not the name of a target."))
    } else {
        None
    };
    let (period, label, minutes) = found.unwrap_or(PERIODS[2]);
    let report = deps.store.failures(FailureQuery { minutes, target: wanted }).await?;
    let cancelled = |group: &&FailureGroup| group.cause == ExhaustedReason::Cancelled.as_str();
    let failed = || report.groups.iter().filter(|group| error.is_none() && !cancelled(group));
    page(&FailuresPage {
        nav: Nav::new("failures", operator).at(report.now),
        periods: PERIODS
            .into_iter()
            .map(|(name, label, _)| Period { name, label, href: href(name, &target), current: name == period })
            .collect(),
        period: label,
        all_targets: href(period, ""),
        live: href(period, &target),
        targets: wording::known_targets(&deps),
        total: failed().map(|group| group.intents).sum(),
        cancelled: report.groups.iter().filter(cancelled).map(|group| group.intents).sum(),
        groups: failed().map(|group| Group::of(group, &report)).collect(),
        more_groups: report.more_groups,
        target,
        error,
    })
}

/// The address of the page with a period and a target.
fn href(period: &str, target: &str) -> String {
    let mut query = Serializer::new(String::new());
    query.append_pair("period", period);
    if !target.is_empty() {
        query.append_pair("submissionTarget", target);
    }
    format!("/ui/failures?{}", query.finish())
}

impl Group {
    pub(super) fn of(group: &FailureGroup, report: &FailureReport) -> Self {
        let status = group.status.as_str();
        let target = group.target.to_string();
        let mut query = Serializer::new(String::new());
        query.append_pair("status", status).append_pair("submissionTarget", &target);
        // `completedAfter` does not include the moment itself.
        let after = report.since - Duration::from_micros(1);
        let mut plan = vec![
            ("status", status.to_owned()),
            ("submissionTarget", target.clone()),
            ("completedAfter", after.to_string()),
        ];
        if !group.cause.is_empty() {
            query.append_pair("cause", &group.cause);
            plan.push(("cause", group.cause.clone()));
        }
        query.append_pair("endedSince", &report.since.to_string());
        Self {
            cause: cause_words(&group.cause).to_owned(),
            target_href: target_href(&group.target),
            target,
            status,
            intents: group.intents,
            first: group.first,
            last: group.last,
            trend: Spark::of(&group.trend),
            list: format!("/ui/intents?{}", query.finish()),
            sample: group.sample.as_ref().map(|id| (id.clone(), intent_href(id))),
            plan,
        }
    }

    /// How many intents the group has, in words.
    fn intents_text(&self) -> String {
        if self.intents == 1 { "1 intent".to_owned() } else { format!("{} intents", self.intents) }
    }
}
