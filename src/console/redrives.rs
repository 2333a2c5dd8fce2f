//! `/ui/redrives`: plans and runs redrives. A plan sends nothing: its page shows the intents that would be sent, and
//! has the button that starts the redrive.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use serde_json::{Value, json};

use super::form::Form;
use super::nav::Nav;
use super::query_form::QueryForm;
use super::search::redirect;
use super::time_input::{self, Zone};
use super::{PageError, page, wording};
use crate::api::intents::page_limit;
use crate::api::redrives::{change_redrive, json as redrive_json, parse_id, plan_redrive};
use crate::domain::actor::Actor;
use crate::domain::redrive::{RedriveChange, RedriveId, RedriveRate, RedriveState};
use crate::domain::time::Timestamp;
use crate::store::Redrive;
use crate::web::WebDeps;
use crate::web::operator::Operator;
use crate::web::query::Query;

#[derive(Template)]
#[template(path = "console/redrives.html")]
struct RedrivesPage {
    nav: Nav,
    rows: Vec<Row>,
    /// The target for which the form is filled in; empty for none.
    target: String,
    targets: Vec<String>,
    live: Option<String>,
    first: Option<String>,
    next: Option<String>,
}

/// A redrive as pages show it.
pub(super) struct Row {
    pub href: String,
    pub what: String,
    /// How many of its intents were handled, in whole percent.
    pub percent: u64,
    pub redrive: Redrive,
}

#[derive(Template)]
#[template(path = "console/redrive.html")]
struct RedrivePage {
    nav: Nav,
    row: Row,
    /// How many intents match the filter but are not in the plan, in words.
    excluded: Vec<String>,
    outcomes: Vec<Outcome>,
    sample: Vec<(String, String)>,
    /// How long the remaining intents take at the rate of the redrive.
    time_left: Option<String>,
    default_rate: u32,
    max_rate: u32,
    live: bool,
}

/// How many of the new intents have one status.
struct Outcome {
    status: &'static str,
    intents: u64,
    href: String,
}

/// The list of redrives, with a form to plan one.
pub(super) async fn list(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let mut target = String::new();
    let form = QueryForm::read(request.query_string(), &mut [("submissionTarget", &mut target)]);
    let query = Query::parse(request.query_string(), &["submissionTarget", "limit", "cursor"])?;
    let after = query.get("cursor", "the id of a redrive", RedriveId::parse)?;
    let found = deps.store.list_redrives(after, page_limit(&query)?).await?;
    page(&RedrivesPage {
        nav: Nav::new("redrives", operator).at(deps.clock.now()),
        rows: found.redrives.into_iter().map(Row::of).collect(),
        target,
        targets: wording::known_targets(&deps),
        live: form.live_url("/ui/redrives"),
        first: form.first_url("/ui/redrives"),
        next: found.next.map(|next| form.next_url("/ui/redrives", &next.to_string())),
    })
}

/// The page of one redrive, with its plan and its progress.
pub(super) async fn show(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let id = parse_id(&path)?;
    let no_such = || {
        PageError::NotFound("There is no such redrive. A plan that is not started within a day is deleted.".to_owned())
    };
    let redrive = deps.store.find_redrive(id).await?.ok_or_else(no_such)?;
    let counts = redrive.outcomes;
    let outcomes = [
        ("pending", counts.pending),
        ("accepted", counts.accepted),
        ("rejected", counts.rejected),
        ("exhausted", counts.exhausted),
    ];
    let outcomes = outcomes.map(|(status, intents)| Outcome {
        status,
        intents,
        href: format!("/ui/intents?redriveId={id}&status={status}"),
    });
    let running = redrive.state == RedriveState::Running;
    let remaining = usize::try_from(redrive.remaining()).unwrap_or(usize::MAX);
    page(&RedrivePage {
        nav: Nav::new("redrives", operator).at(deps.clock.now()),
        excluded: excluded(&redrive),
        sample: redrive.plan.sample.iter().map(|id| (id.clone(), wording::href_of(id))).collect(),
        time_left: redrive.rate.filter(|_| running).map(|rate| wording::duration_text(rate.duration_of(remaining))),
        default_rate: RedriveRate::DEFAULT.per_second(),
        max_rate: RedriveRate::MAX,
        live: running || redrive.state == RedriveState::Paused || counts.pending > 0,
        outcomes: outcomes.into(),
        row: Row::of(redrive),
    })
}

/// Handles the forms that plan a redrive of selected intents or of all that match a filter. Redirects to the plan.
pub(super) async fn plan(
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let form = Form::read(&deps, payload).await?;
    let now = deps.clock.now();
    let order = redrive_json::parse_plan(request_of(&form, now)?.to_string().as_bytes())?;
    let planned = plan_redrive(&deps, order, by).await?;
    Ok(redirect(&format!("/ui/redrives/{}", planned.id)))
}

/// The body of the API request that corresponds to this form.
fn request_of(form: &Form, now: Timestamp) -> Result<Value, PageError> {
    let zone = Zone::of_browser(form.text("tz"));
    let ids: Vec<_> = form.all("intentId").collect();
    let mut filter = serde_json::Map::new();
    if form.has("intentIds") {
        if ids.is_empty() {
            return Err(PageError::NotDone("No intents are selected. Select failed intents and try again.".to_owned()));
        }
        filter.insert("intentIds".to_owned(), ids.into());
    }
    for name in ["status", "submissionTarget", "reason", "cause"] {
        let text = form.text(name);
        if !text.is_empty() {
            filter.insert(name.to_owned(), text.into());
        }
    }
    for name in ["createdAfter", "createdBefore", "completedAfter", "completedBefore"] {
        let text = form.text(name);
        if !text.is_empty() {
            let moment = time_input::parse(text, now, zone)
                .ok_or_else(|| PageError::NotDone(format!("{name} must be {}, not {text:?}.", time_input::EXPECTED)))?;
            filter.insert(name.to_owned(), moment.to_string().into());
        }
    }
    let note = Some(form.text("note")).filter(|note| !note.is_empty());
    Ok(json!({ "filter": filter, "includeUnknownOutcome": form.has("includeUnknownOutcome"), "note": note }))
}

/// Handles the button that starts a plan, with its rate.
pub(super) async fn start(
    path: web::Path<String>,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let form = Form::read(&deps, payload).await?;
    let text = form.text("ratePerSecond");
    let rate = if text.is_empty() { Some(RedriveRate::DEFAULT) } else { text.parse().ok().and_then(RedriveRate::new) };
    let rate = rate.ok_or_else(|| {
        PageError::NotDone(format!("The rate must be a whole number from 1 to {}, not {text:?}.", RedriveRate::MAX))
    })?;
    change(&path, &deps, RedriveChange::Start { rate }, by).await
}

/// Handles the button that pauses a redrive.
pub(super) async fn pause(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    change(&path, &deps, RedriveChange::Pause, by).await
}

/// Handles the button that resumes a redrive.
pub(super) async fn resume(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    change(&path, &deps, RedriveChange::Resume, by).await
}

/// Handles the button that cancels a redrive.
pub(super) async fn cancel(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    change(&path, &deps, RedriveChange::Cancel, by).await
}

async fn change(raw: &str, deps: &WebDeps, change: RedriveChange, by: Actor) -> Result<HttpResponse, PageError> {
    let redrive = change_redrive(deps, parse_id(raw)?, change, by).await?;
    Ok(redirect(&format!("/ui/redrives/{}", redrive.id)))
}

impl Row {
    /// How many intents the plan has, in words.
    fn intents(&self) -> String {
        if self.redrive.count == 1 { "1 intent".to_owned() } else { format!("{} intents", self.redrive.count) }
    }

    pub(super) fn of(redrive: Redrive) -> Self {
        let handled = redrive.created + redrive.skipped;
        Self {
            href: format!("/ui/redrives/{}", redrive.id),
            what: filter_text(&redrive.filter),
            percent: (handled * 100).checked_div(redrive.count).unwrap_or(100),
            redrive,
        }
    }
}

/// The filter of a redrive in words, such as "all rejected intents".
fn filter_text(filter: &str) -> String {
    let filter: Value = serde_json::from_str(filter).unwrap_or_default();
    if let Some(ids) = filter["intentIds"].as_array() {
        return if ids.len() == 1 { "1 selected intent".to_owned() } else { format!("{} selected intents", ids.len()) };
    }
    let text = |name: &str| filter[name].as_str();
    let statuses: Vec<_> = filter["status"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut words = vec![match statuses.as_slice() {
        [one] => format!("all {one} intents"),
        _ => "all failed intents".to_owned(),
    }];
    words.extend(text("submissionTarget").map(|target| format!("of {target}")));
    words.extend(text("reason").map(|reason| format!("with reason {reason}")));
    words.extend(text("cause").map(|cause| format!("with cause “{}”", wording::cause_words(cause))));
    words.extend(period("created", text("createdAfter"), text("createdBefore")));
    words.extend(period("that failed", text("completedAfter"), text("completedBefore")));
    words.join(" ")
}

/// A period in words, such as "created after 2026-11-16 08:30:00 UTC".
fn period(what: &str, after: Option<&str>, before: Option<&str>) -> Option<String> {
    let utc = |moment: &str| Timestamp::parse(moment).map_or_else(|| moment.to_owned(), wording::utc);
    let parts = [("after", after), ("before", before)];
    let parts = parts.iter().filter_map(|(word, moment)| Some(format!("{word} {}", utc((*moment)?))));
    let parts: Vec<_> = parts.collect();
    (!parts.is_empty()).then(|| format!("{what} {}", parts.join(" and ")))
}

/// The numbers of intents that match the filter but are not in the plan, in words.
fn excluded(redrive: &Redrive) -> Vec<String> {
    let left_out = redrive.plan.excluded.iter().filter(|(_, count)| **count > 0);
    let text = |(reason, count): (&String, &u64)| match reason.as_str() {
        "already_redriven" => format!("{count} already redriven"),
        "target_not_in_registry" => format!("{count} whose target is not in the registry"),
        "outcome_unknown" => {
            format!(
                "{count} that the gateway may have accepted (interrupted or timed out), so a redrive could repeat them"
            )
        }
        reason => format!("{count}: {reason}"),
    };
    let known = redrive.count + redrive.plan.excluded.values().sum::<u64>();
    let rest = selected_intents(&redrive.filter).unwrap_or(0).saturating_sub(known);
    left_out.map(text).chain((rest > 0).then(|| format!("{rest} that have not failed"))).collect()
}

/// How many intents were selected one by one; `None` if all that match a filter were.
fn selected_intents(filter: &str) -> Option<u64> {
    let filter: Value = serde_json::from_str(filter).ok()?;
    u64::try_from(filter["intentIds"].as_array()?.len()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_become_requests_and_filters_become_words() {
        let now = Timestamp::parse("2026-11-16T10:00:00Z").unwrap();
        let form = |text: &str| Form::parse(text.as_bytes());
        let text = "status=rejected&submissionTarget=a+b&completedAfter=09:30&tz=-60&note=";
        let request = request_of(&form(text), now).unwrap();
        let filter =
            json!({ "status": "rejected", "submissionTarget": "a b", "completedAfter": "2026-11-16T08:30:00.000000Z" });
        assert_eq!(request, json!({ "filter": filter, "includeUnknownOutcome": false, "note": null }));
        let order = redrive_json::parse_plan(request.to_string().as_bytes()).unwrap();
        let stored = redrive_json::filter_text(&order.filter).unwrap();
        assert_eq!(filter_text(&stored), "all rejected intents of a b that failed after 2026-11-16 08:30:00 UTC");
        let selected = request_of(&form("intentIds=on&intentId=a&intentId=b&includeUnknownOutcome=on"), now).unwrap();
        assert_eq!(selected["filter"], json!({ "intentIds": ["a", "b"] }));
        assert_eq!(filter_text(&selected["filter"].to_string()), "2 selected intents");
        assert!(request_of(&form("intentIds=on"), now).is_err(), "nothing selected is not everything");
        assert!(request_of(&form("createdAfter=soon"), now).is_err());
        assert_eq!(filter_text("{}"), "all failed intents");
        let period = r#"{"createdAfter":"2026-11-16T08:30:00.5Z","createdBefore":"2026-11-16T09:30:00Z"}"#;
        let words = "all failed intents created after 2026-11-16 08:30:00 UTC and before 2026-11-16 09:30:00 UTC";
        assert_eq!(filter_text(period), words);
    }
}
