//! `/ui`: the overview page: the health of the service in one line, the fleet, what waits and what was done lately.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use url::form_urlencoded::Serializer;

use super::chart::{self, Chart, Range, Series, SeriesKind, Slot};
use super::health::{self, Facts, Health, Level};
use super::nav::Nav;
use super::wording::{duration_text, intent_href, target_href};
use super::{PageError, page, redrives};
use crate::domain::intent::Status;
use crate::domain::redrive::RedriveState;
use crate::domain::time::Timestamp;
use crate::store::{Activity, Failing, MINUTE_MICROS, Overview, RECENT_MINUTES, TargetPause};
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/overview.html")]
struct OverviewPage<'a> {
    nav: Nav,
    health: Health,
    overview: &'a Overview,
    activity: &'a Activity,
    instances: Vec<InstanceRow<'a>>,
    ranges: Vec<RangeTab>,
    oldest: Option<Oldest>,
    oldest_webhook: Option<String>,
    charts: Vec<Chart>,
    times: Option<Times>,
    paused: Vec<Paused>,
    failing: Vec<FailingRow<'a>>,
    redrives: Vec<redrives::Row>,
    recent_minutes: i64,
    clock_ahead: Option<String>,
    live: String,
}

struct RangeTab {
    label: &'static str,
    href: String,
    current: bool,
}

struct InstanceRow<'a> {
    holder_id: &'a str,
    version: &'a str,
    started_at: Timestamp,
    seen_at: Timestamp,
    leads: bool,
    is_this: bool,
    missing: bool,
}

struct Oldest {
    id: String,
    href: String,
    created_at: Timestamp,
}

/// Percentiles of the time from submission to the end.
struct Times {
    p50: String,
    p95: String,
    p99: String,
    intents: usize,
    since: Timestamp,
}

struct Paused {
    name: String,
    href: String,
    pause: TargetPause,
}

struct FailingRow<'a> {
    failing: &'a Failing,
    target_href: String,
    /// The intents that ended for this cause.
    href: String,
}

/// The overview page.
pub(super) async fn show(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let range = Range::of_query(request.query_string());
    let overview = deps.store.overview().await?;
    let activity = deps.store.activity(range.minutes()).await?;
    let targets = deps.store.targets().await?;
    let redrives = deps.store.list_redrives(None, MOST_REDRIVES).await?.redrives.into_iter();
    let clock_ahead = deps.store.clock_ahead();
    let refuses_writes = deps.store.can_write().await.err().map(|error| error.to_string());
    let health =
        health::of(&Facts { overview: &overview, activity: &activity, targets: &targets, refuses_writes, clock_ahead });
    let paused = targets.into_iter().filter_map(|target| {
        let href = target_href(&target.name);
        target.pause.map(|pause| Paused { name: target.name.to_string(), href, pause })
    });
    page(&OverviewPage {
        nav: Nav::new("overview", operator).at(overview.now),
        health,
        instances: instances(&overview, &activity, &deps.board.holder_id),
        ranges: Range::ALL
            .map(|tab| RangeTab { label: tab.label(), href: tab.href("/ui"), current: tab == range })
            .into(),
        oldest: overview.oldest_pending.as_ref().map(|(id, created_at)| Oldest {
            id: id.to_string(),
            href: intent_href(id),
            created_at: *created_at,
        }),
        oldest_webhook: overview.oldest_webhook.map(duration_text),
        charts: charts(range, &activity),
        times: activity.time_to_terminal.map(|times| Times {
            p50: duration_text(times.p50),
            p95: duration_text(times.p95),
            p99: duration_text(times.p99),
            intents: times.intents,
            since: times.since,
        }),
        paused: paused.collect(),
        failing: overview.failing.iter().map(FailingRow::of).collect(),
        redrives: redrives
            .filter(|redrive| matches!(redrive.state, RedriveState::Running | RedriveState::Paused))
            .map(redrives::Row::of)
            .collect(),
        recent_minutes: RECENT_MINUTES,
        clock_ahead: clock_ahead.map(duration_text),
        live: range.href("/ui"),
        overview: &overview,
        activity: &activity,
    })
}

/// Among how many of the newest redrives the running and paused ones are looked for.
const MOST_REDRIVES: usize = 20;

fn instances<'a>(overview: &Overview, activity: &'a Activity, own: &str) -> Vec<InstanceRow<'a>> {
    let leader = overview.leader.as_ref().filter(|leader| leader.expires_at > overview.now);
    let row = |instance: &'a crate::store::Instance| InstanceRow {
        holder_id: &instance.holder_id,
        version: &instance.version,
        started_at: instance.started_at,
        seen_at: instance.seen_at,
        leads: leader.is_some_and(|leader| leader.holder_id == instance.holder_id),
        is_this: instance.holder_id == own,
        missing: health::is_missing(instance.seen_at, activity.now),
    };
    activity.instances.iter().map(row).collect()
}

/// The charts of new and ended intents, and of what waits.
fn charts(range: Range, activity: &Activity) -> Vec<Chart> {
    let (mut flow, mut waiting) = (Vec::new(), Vec::new());
    for (start, end) in range.slots(activity.now) {
        let at = |minute: i64| Timestamp::from_micros(minute.saturating_mul(MINUTE_MICROS));
        let minutes = || activity.minutes.iter().filter(|minute| (start..end).contains(&minute.minute));
        let ended = |status| {
            let ended = activity.ended.iter().filter(|e| (start..end).contains(&e.minute) && e.status == status);
            Some(ended.map(|ended| ended.intents).sum::<u64>())
        };
        let submitted = minutes().map(|minute| minute.submitted).reduce(|sum, more| sum + more);
        let mut query = Serializer::new(String::new());
        query.append_pair("endedSince", &at(start).to_string()).append_pair("endedBefore", &at(end).to_string());
        flow.push(Slot {
            start: at(start),
            values: vec![ended(Status::Accepted), ended(Status::Exhausted), ended(Status::Rejected), submitted],
            href: Some(format!("/ui/intents?{}", query.finish())),
        });
        let last = minutes().filter_map(|minute| minute.waiting).next_back();
        waiting.push(Slot { start: at(start), values: vec![last], href: None });
    }
    let bars = |class, label| Series { class, label, kind: SeriesKind::Bars };
    let line = |class, label| Series { class, label, kind: SeriesKind::Line };
    let series = [
        bars("accepted", "accepted"),
        bars("exhausted", "exhausted"),
        bars("rejected", "rejected"),
        line("submitted", "submitted"),
    ];
    let flow = chart::draw("Submitted and ended intents", range.unit(), range.since(), &series, &flow);
    let series = [line("submitted", "waiting")];
    let waiting = chart::draw("Waiting intents", "at the end of each period", range.since(), &series, &waiting);
    flow.into_iter().chain(waiting).collect()
}

impl<'a> FailingRow<'a> {
    fn of(failing: &'a Failing) -> Self {
        let mut query = Serializer::new(String::new());
        query.append_pair("submissionTarget", failing.target.as_str()).append_pair("cause", &failing.cause);
        Self { failing, target_href: target_href(&failing.target), href: format!("/ui/intents?{}", query.finish()) }
    }
}
