//! What the leader reads: the lanes of the schedule page by page, and every change at least once.

use std::collections::{BTreeMap, HashSet};

use super::{Fixture, accepted, new_intent, submit_to, writes};
use crate::domain::contract::fixtures::{max_attempts, one_shot};
use crate::domain::contract::{Contract, GatewayUrl};
use crate::domain::intent::TargetName;
use crate::domain::outcome::Outcome;
use crate::domain::schedule::{LanePage, LanePosition};
use crate::store::{FencedWrites, RefreshRequest, WriteBatch};

fn at_gateway(host: &str) -> Contract {
    Contract { gateway_url: GatewayUrl::parse(&format!("http://{host}.test")).unwrap(), ..one_shot() }
}

pub async fn the_snapshot_has_the_first_page_of_every_lane(fixture: Fixture) {
    let snapshot = fixture.store.schedule_snapshot(10).await.unwrap();
    assert!(snapshot.lanes.is_empty());
    for n in 0..3 {
        fixture.submit(&format!("a{n}"), &at_gateway("a")).await;
        fixture.submit(&format!("b{n}"), &at_gateway("b")).await;
    }
    // Another contract with the same gateway has a lane of its own.
    for n in 3..5 {
        let other = Contract { gateway_url: at_gateway("b").gateway_url, ..max_attempts(2) };
        fixture.submit(&format!("b{n}"), &other).await;
    }
    let snapshot = fixture.store.schedule_snapshot(2).await.unwrap();
    assert_eq!(snapshot.lanes.len(), 3);
    for lane in &snapshot.lanes {
        assert_eq!((lane.page.from, lane.page.limit, lane.waiting.len()), (LanePosition::START, 2, 2));
        assert!(lane.waiting.iter().all(|waiting| waiting.lane == lane.page.lane));
        assert!(lane.waiting[0].due <= lane.waiting[1].due);
    }
    let mut all: Vec<_> = fixture.store.schedule_snapshot(10).await.unwrap().lanes;
    all.sort_by_key(|lane| lane.page.lane.id);
    let lanes: Vec<_> = all.iter().map(|lane| (lane.page.lane.target.as_str(), lane.waiting.len())).collect();
    assert_eq!(lanes, [("sms.one_shot", 3), ("sms.one_shot", 3), ("sms.max_attempts", 2)]);
    let gateways: Vec<_> = all.iter().map(|lane| lane.page.lane.gateway).collect();
    assert!(gateways[0] != gateways[1] && gateways[1] == gateways[2], "{gateways:?}");
}

pub async fn pages_of_a_lane_follow_one_another(fixture: Fixture) {
    let submits = (0..25).map(|n| new_intent(&format!("{n}"), &one_shot(), b"")).collect();
    fixture.store.commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
    let snapshot = fixture.store.schedule_snapshot(10).await.unwrap();
    let mut page = snapshot.lanes[0].clone();
    let mut seen = Vec::new();
    loop {
        seen.extend(page.waiting.iter().map(|waiting| waiting.seq));
        let Some(last) = page.waiting.last().filter(|_| page.waiting.len() == 10) else { break };
        let from = LanePosition { due: last.due, seq: last.seq }.next();
        let pages = vec![LanePage { lane: last.lane.clone(), from, limit: 10 }];
        let request = RefreshRequest { cursor: snapshot.cursor.clone(), limit: 1, pages };
        page = fixture.store.refresh_schedule(request).await.unwrap().pages.remove(0);
    }
    assert_eq!(seen.len(), 25, "all have one due time; none is missing");
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 25);
}

pub async fn changes_are_reported_once_and_in_small_steps(fixture: Fixture) {
    let mut cursor = fixture.store.schedule_snapshot(10).await.unwrap().cursor;
    assert!(fixture.refresh(&cursor, 10).await.changed.is_empty());
    let mut expected = Vec::new();
    for n in 0..5 {
        expected.push(fixture.submit(&format!("{n}"), &one_shot()).await.seq);
    }
    let mut seen = Vec::new();
    for more in [true, true, false] {
        let refresh = fixture.refresh(&cursor, 2).await;
        assert_eq!(refresh.more, more);
        seen.extend(refresh.changed.iter().map(|waiting| waiting.seq));
        cursor = refresh.cursor;
    }
    assert_eq!(seen, expected);
    let again = fixture.refresh(&cursor, 2).await;
    assert!(again.changed.iter().all(|waiting| expected.contains(&waiting.seq)), "only intents that exist");
}

pub async fn many_changes_with_one_timestamp_are_all_reported(fixture: Fixture) {
    let mut cursor = fixture.store.schedule_snapshot(10).await.unwrap().cursor;
    for batch in ["x", "a"] {
        let submits = (0..20).map(|n| new_intent(&format!("{batch}{n}"), &one_shot(), b"")).collect();
        fixture.store.commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
        let mut seen = HashSet::new();
        for _ in 0..12 {
            let refresh = fixture.refresh(&cursor, 7).await;
            seen.extend(refresh.changed.iter().map(|waiting| waiting.seq));
            cursor = refresh.cursor;
        }
        for n in 0..20 {
            let intent = fixture.intent(&format!("{batch}{n}")).await;
            assert!(seen.contains(&intent.seq), "{} was not reported", intent.id);
        }
    }
}

pub async fn started_and_ended_intents_are_not_reported(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let cursor = fixture.store.schedule_snapshot(10).await.unwrap().cursor;
    let started = fixture.submit("started", &one_shot()).await;
    let ended = fixture.submit("ended", &one_shot()).await;
    fixture.start_due(&term, &started).await;
    fixture.attempt(&term, &ended, accepted()).await;
    assert!(fixture.refresh(&cursor, 10).await.changed.is_empty());
    assert!(fixture.store.schedule_snapshot(10).await.unwrap().lanes.is_empty());
}

pub async fn a_retry_is_reported(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &max_attempts(3)).await;
    let cursor = fixture.store.schedule_snapshot(10).await.unwrap().cursor;
    let attempt = fixture.start_due(&term, &intent).await;
    fixture.finish(&term, &attempt, Outcome::error("x")).await;
    let changed = fixture.refresh(&cursor, 10).await.changed;
    assert_eq!(changed, [fixture.waiting(&intent).await]);
    assert_eq!((changed[0].seq, changed[0].attempt_count), (intent.seq, 1));
}

pub async fn no_change_is_missed_when_commits_race_with_the_cursor(fixture: Fixture) {
    const WRITERS: usize = 4;
    const EACH: usize = 40;
    let mut cursor = fixture.store.schedule_snapshot(10).await.unwrap().cursor;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = if writer % 2 == 0 { fixture.store.clone() } else { fixture.other.clone() };
            tokio::spawn(async move {
                for n in 0..EACH {
                    // Ids that sort before and after those of the other writers.
                    let id = format!("{}-{writer}", (n * 7919) % 1000);
                    submit_to(&*store, new_intent(&id, &one_shot(), b"")).await;
                }
            })
        })
        .collect();
    let mut seen = HashSet::new();
    let mut finished = false;
    loop {
        let refresh = fixture.refresh(&cursor, 5).await;
        cursor = refresh.cursor;
        seen.extend(refresh.changed.iter().map(|waiting| waiting.seq));
        if finished && !refresh.more {
            break;
        }
        finished = writers.iter().all(tokio::task::JoinHandle::is_finished);
    }
    assert_eq!(seen.len(), WRITERS * EACH);
}

pub async fn a_refresh_reports_whether_intents_are_overdue(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let cursor = fixture.store.schedule_snapshot(10).await.unwrap().cursor;
    fixture.submit("a", &fixture.short_deadline()).await;
    assert!(!fixture.refresh(&cursor, 10).await.overdue);
    fixture.pass(fixture.short).await;
    assert!(fixture.refresh(&cursor, 10).await.overdue);
    fixture.fenced(FencedWrites { expire: Some(10), ..writes(&term) }).await.unwrap();
    assert!(!fixture.refresh(&cursor, 10).await.overdue);
}

pub async fn the_backlog_counts_waiting_intents_by_target(fixture: Fixture) {
    assert_eq!(fixture.store.backlog().await.unwrap().waiting, Vec::new());
    let term = fixture.lead("me").await;
    let target = |name: &str| TargetName::parse(name).unwrap();
    let (first, second) =
        (Contract { target: target("a"), ..one_shot() }, Contract { target: target("b"), ..one_shot() });
    // A target whose contract was changed has two of them.
    let changed = Contract { target: target("a"), ..max_attempts(2) };
    for (number, contract) in [&first, &first, &first, &changed, &second, &second].into_iter().enumerate() {
        fixture.submit(&format!("{number}"), contract).await;
    }
    fixture.start_due(&term, &fixture.intent("0").await).await;
    fixture.attempt(&term, &fixture.intent("1").await, accepted()).await;
    let backlog = fixture.store.backlog().await.unwrap();
    assert_eq!(backlog.all_waiting(), 4);
    let mut by_target = BTreeMap::new();
    backlog.waiting.into_iter().for_each(|(target, count)| *by_target.entry(target).or_default() += count);
    assert_eq!(by_target, BTreeMap::from([(target("a"), 2_u64), (target("b"), 2)]));
}
