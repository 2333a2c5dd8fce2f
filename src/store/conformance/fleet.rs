//! Reports of instances, and the activity of the fleet by minute.

use std::time::Duration;

use super::{Fixture, LONG, accepted};
use crate::domain::contract::fixtures::one_shot;
use crate::store::{FORGET_INSTANCES_AFTER, InstanceReport, LeaderReport};

fn report(name: &str, submitted: u64) -> InstanceReport {
    InstanceReport {
        instance_id: format!("id of {name}"),
        holder_id: name.to_owned(),
        version: "1.2.3".to_owned(),
        submitted,
        leading: None,
    }
}

pub async fn instances_report_themselves_until_they_stop(fixture: Fixture) {
    fixture.store.record_instance(report("b é", 0)).await.unwrap();
    fixture.other.record_instance(report("a", 0)).await.unwrap();
    let activity = fixture.store.activity(60).await.unwrap();
    let names: Vec<_> = activity.instances.iter().map(|i| (i.holder_id.as_str(), i.version.as_str())).collect();
    assert_eq!(names, [("a", "1.2.3"), ("b é", "1.2.3")]);
    let first = activity.instances[0].clone();
    assert!(first.started_at == first.seen_at && first.seen_at <= activity.now);

    fixture.pass(fixture.short).await;
    fixture.other.record_instance(report("a", 0)).await.unwrap();
    fixture.store.forget_instance("id of b é".to_owned()).await.unwrap();
    let instances = fixture.store.activity(60).await.unwrap().instances;
    assert_eq!(instances.len(), 1);
    assert_eq!(instances[0].started_at, first.started_at);
    assert!(instances[0].seen_at > first.seen_at, "{instances:?}");
}

pub async fn what_instances_take_in_is_counted_once(fixture: Fixture) {
    let leading = LeaderReport { waiting: 7, holds: Vec::new() };
    for report in [
        report("a", 3),
        report("a", 3),
        report("b", 10),
        InstanceReport { leading: Some(leading), ..report("a", 5) },
        report("b", 10),
    ] {
        fixture.store.record_instance(report).await.unwrap();
    }
    let activity = fixture.other.activity(60).await.unwrap();
    let submitted: u64 = activity.minutes.iter().map(|minute| minute.submitted).sum();
    assert_eq!(submitted, 15, "{:?}", activity.minutes);
    let waiting: Vec<_> = activity.minutes.iter().filter_map(|minute| minute.waiting).collect();
    assert_eq!(waiting, [7], "followers do not know what waits");
}

pub async fn gateways_are_on_hold_until_their_time(fixture: Fixture) {
    let intent = fixture.submit("a", &one_shot()).await;
    let gateway = fixture.waiting(&intent).await.lane.gateway;
    let until = fixture.now().await + LONG;
    let hold = |until| LeaderReport { waiting: 0, holds: vec![(gateway, until)] };
    for (leading, expected) in
        [(Some(hold(until)), 1), (None, 1), (Some(hold(until - 2 * LONG)), 0), (Some(LeaderReport::default()), 0)]
    {
        fixture.store.record_instance(InstanceReport { leading, ..report("a", 0) }).await.unwrap();
        let holds = fixture.other.activity(60).await.unwrap().holds;
        assert_eq!(holds.len(), expected, "{holds:?}");
        if let Some(hold) = holds.first() {
            assert_eq!((hold.gateway.as_str(), hold.until), (one_shot().gateway_url.as_str(), until));
        }
    }
}

pub async fn times_to_the_end_are_those_of_recent_intents(fixture: Fixture) {
    assert_eq!(fixture.store.activity(60).await.unwrap().time_to_terminal, None);
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &one_shot()).await;
    fixture.submit("waits", &one_shot()).await;
    fixture.pass(fixture.short).await;
    fixture.attempt(&term, &intent, accepted()).await;
    let times = fixture.other.activity(60).await.unwrap().time_to_terminal.unwrap();
    let ended = fixture.intent("a").await.state.completed_at().unwrap();
    assert_eq!((times.intents, times.since, times.p50), (1, ended, ended.since(intent.created_at)));
    assert!(times.p99 >= fixture.short && FORGET_INSTANCES_AFTER > Duration::from_secs(60));
}
