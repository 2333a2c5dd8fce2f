//! The health of the service in one line: healthy, degraded or stopped, and why. A pure function.

use std::time::Duration;

use url::form_urlencoded::Serializer;

use super::wording::{duration_text, target_href};
use crate::domain::intent::TargetName;
use crate::domain::time::Timestamp;
use crate::store::{Activity, Overview, StoredTarget, TargetHealth};

/// From when on attempts count as late: the scheduler starts due attempts within a second unless something holds them back.
const LATE: Duration = Duration::from_secs(30);
/// From when on pending webhook events count as late: the first retries are within minutes.
const WEBHOOK_LATE: Duration = Duration::from_secs(5 * 60);
/// An instance that has not reported for this long is missing: several reports have failed or not been made.
pub(super) const MISSING_AFTER: Duration = Duration::from_secs(20);
/// How many recent attempts a target must have before it counts as failing.
const ENOUGH_ATTEMPTS: u64 = 5;
/// How many failing targets are named.
const MOST_NAMED: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Healthy,
    Degraded,
    Stopped,
}

impl Level {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Stopped => "stopped",
        }
    }

    /// The word at the beginning of a line.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Degraded => "Degraded",
            Self::Stopped => "Stopped",
        }
    }
}

/// Something that is wrong, with the page that shows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reason {
    pub level: Level,
    pub text: String,
    pub href: String,
}

/// The health of the service.
pub(super) struct Health {
    pub level: Level,
    pub reasons: Vec<Reason>,
}

/// What the health is computed from.
pub(super) struct Facts<'a> {
    pub overview: &'a Overview,
    pub activity: &'a Activity,
    pub targets: &'a [StoredTarget],
    /// Why the store accepts no writes, if it does not.
    pub refuses_writes: Option<String>,
    pub clock_ahead: Option<Duration>,
}

/// Computes the health.
pub(super) fn of(facts: &Facts<'_>) -> Health {
    let Facts { overview, activity, targets, refuses_writes, clock_ahead } = facts;
    let now = overview.now;
    let mut reasons = Vec::new();
    let mut add = |level, text: String, href: &str| reasons.push(Reason { level, text, href: href.to_owned() });
    if let Some(error) = refuses_writes {
        add(Level::Stopped, format!("the store accepts no writes ({error})"), "");
    }
    match &overview.leader {
        None => add(Level::Stopped, "no instance leads yet, so nothing is sent".to_owned(), "#fleet"),
        Some(leader) if leader.expires_at <= now => {
            let since = duration_text(now.since(leader.expires_at));
            add(Level::Stopped, format!("no instance has led for {since}, so nothing is sent"), "#fleet");
        }
        Some(_) => {}
    }
    let missing = activity.instances.iter().filter(|instance| is_missing(instance.seen_at, now)).count();
    if missing > 0 {
        add(Level::Degraded, format!("{} not reporting", counted(missing, "instance is", "instances are")), "#fleet");
    }
    let paused = targets.iter().filter(|target| target.pause.is_some()).count();
    if paused > 0 {
        add(Level::Degraded, format!("{} paused", counted(paused, "target is", "targets are")), "#paused");
    }
    if !activity.holds.is_empty() {
        let text = format!("{} on hold", counted(activity.holds.len(), "gateway is", "gateways are"));
        add(Level::Degraded, text, "#holds");
    }
    if let Some((target, due)) = &overview.first_due
        && now.since(*due) >= LATE
        && *due < now
    {
        let text = format!("attempts of {target} are {} late", duration_text(now.since(*due)));
        add(Level::Degraded, text, &pending_of(target));
    }
    if let Some(age) = overview.oldest_webhook.filter(|age| *age >= WEBHOOK_LATE) {
        add(Level::Degraded, format!("a webhook event has been pending for {}", duration_text(age)), "/ui/intents");
    }
    let failing: Vec<_> = overview.recent.iter().filter(|target| is_failing(target)).collect();
    for target in failing.iter().take(MOST_NAMED) {
        let failed = target.rejected + target.errors;
        let text = format!("{failed} of {} recent attempts of {} failed", failed + target.accepted, target.target);
        add(Level::Degraded, text, &target_href(&target.target));
    }
    if let Some(more) = failing.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        add(
            Level::Degraded,
            format!("{} failing too", counted(more, "more target is", "more targets are")),
            "/ui/targets",
        );
    }
    if let Some(ahead) = clock_ahead {
        let text = format!("the store's clock is {} ahead of its host's", duration_text(*ahead));
        add(Level::Degraded, text, "#clock");
    }
    let stopped = reasons.iter().any(|reason| reason.level == Level::Stopped);
    let level = match reasons.is_empty() {
        _ if stopped => Level::Stopped,
        true => Level::Healthy,
        false => Level::Degraded,
    };
    Health { level, reasons }
}

/// Whether an instance that reported last at `seen_at` is missing.
pub(super) fn is_missing(seen_at: Timestamp, now: Timestamp) -> bool {
    now.since(seen_at) >= MISSING_AFTER
}

fn is_failing(target: &TargetHealth) -> bool {
    let failed = target.rejected + target.errors;
    failed >= ENOUGH_ATTEMPTS && failed > target.accepted
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn pending_of(target: &TargetName) -> String {
    let mut query = Serializer::new(String::new());
    query.append_pair("status", "pending").append_pair("submissionTarget", target.as_str());
    format!("/ui/intents?{}", query.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{GatewayHold, Instance, LeaderRow, TargetPause};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000_000);

    fn before(seconds: u64) -> Timestamp {
        NOW - Duration::from_secs(seconds)
    }

    fn overview() -> Overview {
        let leader = LeaderRow {
            holder_id: "me".to_owned(),
            epoch: 1,
            acquired_at: before(100),
            expires_at: NOW + Duration::from_secs(5),
        };
        Overview {
            now: NOW,
            leader: Some(leader),
            waiting: 0,
            in_flight: 0,
            oldest_pending: None,
            webhooks: 0,
            oldest_webhook: None,
            first_due: Some((target(), before(1))),
            recent: Vec::new(),
            failing: Vec::new(),
        }
    }

    fn activity() -> Activity {
        let instance = Instance {
            holder_id: "me".to_owned(),
            version: "1".to_owned(),
            started_at: before(100),
            seen_at: before(4),
        };
        Activity {
            now: NOW,
            instances: vec![instance],
            holds: Vec::new(),
            minutes: Vec::new(),
            ended: Vec::new(),
            time_to_terminal: None,
        }
    }

    fn target() -> TargetName {
        TargetName::parse("sms").unwrap()
    }

    fn health(overview: &Overview, activity: &Activity, targets: &[StoredTarget]) -> (Level, Vec<String>) {
        let found = of(&Facts { overview, activity, targets, refuses_writes: None, clock_ahead: None });
        (found.level, found.reasons.into_iter().map(|reason| reason.text).collect())
    }

    #[test]
    fn the_line_says_what_is_wrong() {
        let healthy = health(&overview(), &activity(), &[]);
        assert_eq!(healthy, (Level::Healthy, vec![]));

        let expired = LeaderRow { expires_at: before(65), ..overview().leader.unwrap() };
        let (level, reasons) = health(&Overview { leader: Some(expired), ..overview() }, &activity(), &[]);
        assert_eq!((level, &*reasons[0]), (Level::Stopped, "no instance has led for 1 min 5 s, so nothing is sent"));

        let pause = Some(TargetPause { at: before(9), by: None, reason: None });
        let bad = TargetHealth { errors: 6, accepted: 5, ..TargetHealth::of(target()) };
        let good = TargetHealth { errors: 4, ..TargetHealth::of(target()) };
        let late = Overview { first_due: Some((target(), before(90))), recent: vec![bad, good], ..overview() };
        let mut gone = activity();
        gone.instances[0].seen_at = before(60);
        gone.holds.push(GatewayHold { gateway: "http://g".to_owned(), until: NOW });
        let (level, reasons) = health(&late, &gone, &[StoredTarget { name: target(), pause }]);
        assert_eq!(level, Level::Degraded);
        assert_eq!(
            reasons,
            [
                "1 instance is not reporting",
                "1 target is paused",
                "1 gateway is on hold",
                "attempts of sms are 1 min 30 s late",
                "6 of 11 recent attempts of sms failed"
            ]
        );
    }
}
