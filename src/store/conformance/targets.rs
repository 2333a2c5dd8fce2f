//! Pausing a target: from then on none of its attempts starts, whichever instance leads. Nothing else changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::attempts::OneSlot;
use super::{Fixture, accepted, new_intent, writes};
use crate::domain::actor::Actor;
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::Contract;
use crate::domain::contract::fixtures::{max_attempts, one_shot};
use crate::domain::intent::{ExhaustedReason, TargetName};
use crate::domain::outcome::Outcome;
use crate::domain::pause::PauseReason;
use crate::store::{FencedWrites, FinishResult, StartOnInsert, StartResult, StoredTarget, WriteBatch};

fn name(text: &str) -> TargetName {
    TargetName::parse(text).unwrap()
}

pub async fn no_attempt_of_a_paused_target_starts(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let target = max_attempts(3).target;
    let open = fixture.submit("under way", &max_attempts(3)).await;
    let open = fixture.start_due(&term, &open).await;
    let waits = fixture.submit("waits", &max_attempts(3)).await;
    let other = fixture.submit("of another", &one_shot()).await;

    let reason = |text: &str| PauseReason::parse(text).unwrap();
    let why = reason("\"maintenance\" é ~1");
    let pause = fixture.other.pause_target(target.clone(), why, somebody()).await.unwrap();
    assert!(pause.at > open.started_at && pause.at <= fixture.now().await);
    assert_eq!((pause.by.as_deref(), pause.reason.as_deref()), (Some("somebody"), Some("\"maintenance\" é ~1")));
    let again = Actor::token("another", None);
    let again = fixture.store.pause_target(target.clone(), reason("again"), again).await.unwrap();
    assert_eq!(again, pause, "pausing again changes nothing");

    let waiting = fixture.waiting(&waits).await;
    assert!(matches!(fixture.start(&term, &waiting).await, Some(StartResult::Paused)));
    assert_eq!(fixture.intent("waits").await, waits, "the intent keeps waiting unchanged");
    fixture.start_due(&term, &other).await;
    let start_on_insert = Some(StartOnInsert { term: term.clone(), slots: Arc::new(OneSlot::default()) });
    let submits = vec![new_intent("new", &max_attempts(3), b"")];
    let results = fixture.store.commit(WriteBatch { submits, start_on_insert, ..WriteBatch::default() }).await.unwrap();
    assert!(results.submits[0].is_ok() && results.started.is_empty(), "new intents are inserted as waiting");
    assert_eq!(
        fixture.finish(&term, &open, Outcome::error("x")).await,
        Some(FinishResult::Recorded),
        "it had started before the pause"
    );

    fixture.store.resume_target(target.clone(), somebody()).await.unwrap();
    fixture.store.resume_target(target, somebody()).await.unwrap();
    assert!(matches!(fixture.start(&term, &waiting).await, Some(StartResult::Started { .. })));
}

pub async fn deadlines_of_a_paused_target_keep_running(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let contract = fixture.short_deadline();
    let (swept, tried) = (fixture.submit("swept", &contract).await, fixture.submit("tried", &contract).await);
    let waiting = fixture.waiting(&tried).await;
    fixture.store.pause_target(contract.target, None, somebody()).await.unwrap();
    fixture.pass(fixture.short).await;
    assert!(matches!(fixture.start(&term, &waiting).await, Some(StartResult::Ended(_))));
    fixture.fenced(FencedWrites { expire: Some(10), ..writes(&term) }).await.unwrap();
    for intent in [swept, tried] {
        let state = fixture.intent(intent.id.as_str()).await.state;
        assert_eq!(state.exhausted_reason(), Some(ExhaustedReason::DeadlineExceeded));
    }
}

pub async fn snapshots_and_refreshes_show_paused_targets(fixture: Fixture) {
    let snapshot = fixture.store.schedule_snapshot(1).await.unwrap();
    assert!(snapshot.paused.is_empty());
    let (one, odd) = (one_shot(), Contract { target: name("Sms \"~1\" é"), ..one_shot() });
    let attempted = fixture.submit("a", &one).await;
    fixture.submit("b", &odd).await;
    for target in [&odd.target, &name("never used")] {
        let pause = fixture.store.pause_target(target.clone(), None, somebody()).await.unwrap();
        assert_eq!((pause.by.as_deref(), pause.reason), (Some("somebody"), None));
    }
    let paused = BTreeSet::from([odd.target.clone(), name("never used")]);
    assert_eq!(fixture.refresh(&snapshot.cursor, 10).await.paused, paused);
    assert_eq!(fixture.other.schedule_snapshot(1).await.unwrap().paused, paused);
    let due = fixture.store.overview().await.unwrap().first_due.map(|(target, _)| target);
    assert_eq!(due, Some(one.target), "intents of paused targets are not late");
    let known = fixture.store.targets().await.unwrap();
    let shown: Vec<_> = known.iter().map(|StoredTarget { name, pause }| (name.as_str(), pause.is_some())).collect();
    assert_eq!(shown, [("Sms \"~1\" é", true), ("never used", true), ("sms.one_shot", false)]);
    let detail = |id: &str| fixture.store.detail(super::intent_id(id));
    assert!(detail("b").await.unwrap().unwrap().paused_at.is_some());
    assert_eq!(detail("a").await.unwrap().unwrap().paused_at, None);
    let term = fixture.lead("me").await;
    fixture.attempt(&term, &attempted, accepted()).await;
}

pub async fn the_activity_of_a_target_has_its_attempts_and_contracts(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let (first, second) = (max_attempts(3), Contract { target: max_attempts(3).target, ..one_shot() });
    let before = fixture.now().await;
    for (id, contract, outcome) in [
        ("a", &first, accepted()),
        ("b", &second, Outcome::error("x")),
        ("c", &first, Outcome::error("x")),
        ("of another", &one_shot(), accepted()),
    ] {
        let intent = fixture.submit(id, contract).await;
        fixture.attempt(&term, &intent, outcome).await;
    }
    let waits = fixture.submit("waits", &second).await;
    let found = fixture.other.target_activity(first.target.clone(), 60).await.unwrap();
    let attempts = |outcome: &str| {
        let minutes = found.minutes.iter().filter(|minute| minute.outcome == outcome);
        minutes.map(|minute| minute.attempts).sum::<u64>()
    };
    assert_eq!((attempts("accepted"), attempts("error"), attempts("rejected")), (1, 2, 0), "{:?}", found.minutes);
    assert_eq!((found.waiting, found.first_due), (2, Some(waits.created_at)), "one waits for a retry");
    let contracts: Vec<_> = found.contracts.iter().map(|seen| (seen.contract.policy, seen.waiting)).collect();
    assert_eq!(contracts, [(second.policy, 1), (first.policy, 1)], "the newest first");
    assert!(found.contracts.iter().all(|seen| seen.first_used_at.is_some_and(|at| at >= before && at <= found.now)));
    let nothing = fixture.store.target_activity(name("never used"), 60).await.unwrap();
    assert_eq!((nothing.waiting, nothing.minutes.len(), nothing.contracts.len()), (0, 0, 0));
}
