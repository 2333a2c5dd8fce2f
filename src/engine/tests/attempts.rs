//! Attempts of intents: when they start, in which order, and how they end.

use super::*;

#[actix::test]
async fn the_first_attempt_does_not_wait_for_a_refresh_or_a_timer() {
    let lab = Lab::new();
    let hour = 3600 * SECOND;
    let instance = lab.start(LeaderSettings { refresh_interval: hour, ..settings() }, always(accepted()));
    instance.lease_after(0).await;
    pass(SECOND).await;
    let start = monotonic();
    instance.submit("a", &one_shot()).await;
    let history = instance.until_terminal("a").await;
    assert_eq!(history.intent.state.status(), Status::Accepted);
    assert_eq!(monotonic().duration_since(start), Duration::ZERO, "virtual time did not have to move");
}

#[actix::test]
async fn a_retry_starts_exactly_five_seconds_after_the_attempt_finished() {
    let lab = Lab::new();
    let instance = lab.start(
        settings(),
        script(|_, attempt| (700 * SECOND / 1000, Some(if attempt < 4 { error() } else { accepted() }))),
    );
    instance.submit("a", &max_attempts(9)).await;
    let history = instance.until_terminal("a").await;
    assert_eq!((history.attempts.len(), history.intent.attempt_count), (4, 4));
    for pair in history.attempts.windows(2) {
        let gap = pair[1].started_at.since(pair[0].finished_at);
        assert!(gap >= 5 * SECOND && gap < 5 * SECOND + Duration::from_millis(3), "{gap:?}");
    }
    assert_eq!(history.intent.state, State::Accepted { at: history.attempts[3].finished_at });
}

#[actix::test]
async fn max_attempts_ends_after_hours_of_retries() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(rejected("provider_failure")));
    instance.submit("a", &max_attempts(1500)).await;
    let history = instance.until_terminal("a").await;
    assert_eq!(exhausted(&history), ExhaustedReason::MaxAttempts);
    assert!(history.attempts.iter().map(|attempt| attempt.attempt_number).eq(1..=1500));
    assert!(history.attempts[1499].started_at.since(history.intent.created_at) >= 2 * 3600 * SECOND);
    instance.assert_no_attempt_sent_twice();
}

#[actix::test]
async fn one_shot_is_sent_once() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(error()));
    instance.submit("a", &one_shot()).await;
    assert_eq!(exhausted(&instance.until_terminal("a").await), ExhaustedReason::OneShot);
    pass(60 * SECOND).await;
    assert_eq!(instance.gateway.calls.lock().unwrap().len(), 1);
}

#[actix::test]
async fn a_deadline_allows_no_retry_that_would_be_due_at_it() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(error()));
    instance.submit("a", &deadline(12)).await;
    let history = instance.until_terminal("a").await;
    assert_eq!((exhausted(&history), history.attempts.len()), (ExhaustedReason::DeadlineExceeded, 3));
    assert_eq!(
        history.intent.state.completed_at(),
        Some(history.attempts[2].finished_at),
        "it ended with its last attempt"
    );
}

#[actix::test]
async fn an_acceptance_after_the_deadline_is_too_late() {
    let lab = Lab::new();
    let instance = lab.start(settings(), script(|_, _| (11 * SECOND, Some(accepted()))));
    instance.submit("late", &deadline(11)).await;
    instance.submit("in time", &deadline(12)).await;
    let late = instance.until_terminal("late").await;
    assert_eq!(exhausted(&late), ExhaustedReason::DeadlineExceeded);
    assert_eq!(late.attempts[0].outcome, accepted(), "the outcome itself is kept");
    assert_eq!(instance.until_terminal("in time").await.intent.state.status(), Status::Accepted);
}

#[actix::test]
async fn a_deadline_that_passes_while_waiting_for_a_slot_ends_the_intent_in_time() {
    let lab = Lab::new();
    let mut settings = settings();
    settings.limits.in_flight_per_gateway = 1;
    let instance = lab.start(settings, script(|_, _| (600 * SECOND, Some(accepted()))));
    instance.submit("first", &one_shot()).await;
    instance.calls(1).await;
    instance.submit("waits", &deadline(10)).await;
    let history = instance.until_terminal("waits").await;
    assert_eq!((exhausted(&history), history.attempts.len()), (ExhaustedReason::DeadlineExceeded, 0));
    let late = history.intent.state.completed_at().unwrap().since(history.intent.created_at) - 10 * SECOND;
    assert!(late < SECOND, "{late:?} after the deadline");
}

#[actix::test]
async fn due_attempts_start_in_order_of_due_time() {
    let lab = Lab::new();
    let mut settings = settings();
    settings.limits = Limits { in_flight: 1, in_flight_per_gateway: 1, capacity: 64 };
    let instance = lab.start(settings, script(|_, _| (SECOND, Some(accepted()))));
    for n in 0..20 {
        instance.submit(&format!("{n:02}"), &at_gateway(&format!("g{}", n % 3), one_shot())).await;
    }
    instance.until_terminal("19").await;
    let order: Vec<_> = instance.gateway.calls.lock().unwrap().iter().map(|(id, _)| id.clone()).collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[actix::test]
async fn a_gateway_that_hangs_delays_only_its_own_intents() {
    let lab = Lab::new();
    let instance = lab.start(
        settings(),
        script(|id, _| (if id.starts_with("dead") { 3600 * SECOND } else { Duration::ZERO }, Some(accepted()))),
    );
    for n in 0..100 {
        instance.submit(&format!("dead {n}"), &at_gateway("dead", max_attempts(5))).await;
    }
    instance.calls(8).await;
    for n in 0..20 {
        let start = monotonic();
        instance.submit(&format!("quick {n}"), &at_gateway("quick", one_shot())).await;
        instance.until_terminal(&format!("quick {n}")).await;
        assert_eq!(monotonic().duration_since(start), Duration::ZERO);
    }
    let dead = instance.gateway.calls.lock().unwrap().iter().filter(|(id, _)| id.starts_with("dead")).count();
    assert_eq!(dead, 8, "the limit of one gateway");
}

#[actix::test]
async fn a_hundred_thousand_waiting_retries_need_bounded_memory_and_delay_no_other_intent() {
    let lab = Lab::new();
    submit_to(&*lab.store(), new_intent("model", &at_gateway("dead", max_attempts(1_000_000)), b"{}")).await;
    Connection::open(lab.path())
        .unwrap()
        .execute_batch(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
             INSERT INTO submission_intents (intent_id, contract_id, gateway_id, payload_sha256, status, attempt_count,
                 next_attempt_at, created_at, last_modified_at)
             SELECT 'waiting ' || i, contract_id, gateway_id, payload_sha256, 'pending', 1,
                 next_attempt_at + 4000000 + i, created_at, last_modified_at
             FROM n, submission_intents WHERE intent_id = 'model';
             INSERT INTO submission_payloads SELECT intent_seq, x'7b7d' FROM submission_intents WHERE attempt_count = 1;",
        )
        .unwrap();
    let instance = lab.start(
        settings(),
        script(|id, _| match id {
            "new" => (Duration::ZERO, Some(accepted())),
            _ => (3600 * SECOND, Some(error())),
        }),
    );
    instance.lease_after(0).await;
    pass(10 * SECOND).await;
    let start = monotonic();
    instance.submit("new", &one_shot()).await;
    instance.until_terminal("new").await;
    assert_eq!(monotonic().duration_since(start), Duration::ZERO);
    let held = instance.engine.metrics.schedule_held.get();
    assert!((1..=i64::try_from(MAX_LANE).unwrap()).contains(&held), "{held}");
    let calls = i64::try_from(instance.gateway.calls.lock().unwrap().len()).unwrap();
    assert!((2..=9).contains(&calls), "{calls}: the dead gateway was called, and few times");
    assert_eq!(instance.engine.metrics.queue_depth.get(), 100_002 - calls, "all but those in flight and the new one");
}

#[actix::test]
async fn a_backlog_larger_than_the_schedule_is_completed() {
    let lab = Lab::new();
    let store = lab.store();
    let mut settings = settings();
    settings.limits.capacity = 10;
    for batch in 0..30 {
        let submits = (0..20)
            .map(|n| new_intent(&format!("{batch}-{n}"), &at_gateway(&format!("g{}", n % 4), one_shot()), b""))
            .collect();
        store.commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
    }
    let instance = lab.start(settings, always(accepted()));
    for batch in 0..30 {
        for n in 0..20 {
            assert_eq!(instance.until_terminal(&format!("{batch}-{n}")).await.intent.state.status(), Status::Accepted);
        }
    }
    instance.assert_no_attempt_sent_twice();
    assert_eq!(instance.gateway.calls.lock().unwrap().len(), 600);
}

#[actix::test]
async fn an_intent_stored_by_another_instance_starts_within_the_refresh_interval() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    pass(SECOND).await;
    submit_to(&*lab.store(), new_intent("a", &one_shot(), b"{}")).await;
    let history = instance.until_terminal("a").await;
    let waited = history.attempts[0].started_at.since(history.intent.created_at);
    assert!(waited <= settings().refresh_interval + Duration::from_millis(2), "{waited:?}");
}

#[actix::test]
async fn an_unreadable_intent_affects_no_other() {
    let lab = Lab::new();
    submit_to(&*lab.store(), new_intent("bad", &at_gateway("bad", one_shot()), b"{}")).await;
    let damage = "UPDATE submission_contracts SET snapshot = 'not json' WHERE contract_id = 1";
    Connection::open(lab.path()).unwrap().execute_batch(damage).unwrap();
    let instance = lab.start(settings(), always(accepted()));
    let epoch = instance.lease_after(0).await.term.epoch;
    instance.submit("good", &one_shot()).await;
    assert_eq!(instance.until_terminal("good").await.intent.state.status(), Status::Accepted);
    pass(60 * SECOND).await;
    assert_eq!(instance.lease_after(0).await.term.epoch, epoch, "still the first term");
    assert_eq!(instance.history("bad").await.intent.state, State::Pending);
}

#[actix::test]
async fn retention_deletes_intents_that_ended_long_ago() {
    let lab = Lab::new();
    let instance = lab.start(LeaderSettings { retention: Some(3600 * SECOND), ..settings() }, always(accepted()));
    for n in 0..500 {
        instance.submit(&format!("{n}"), &one_shot()).await;
    }
    instance.until_terminal("499").await;
    pass(3500 * SECOND).await;
    assert!(instance.engine.store.find(intent_id("0")).await.unwrap().is_some());
    pass(300 * SECOND).await;
    for n in [0, 250, 499] {
        let id: IntentId = intent_id(&format!("{n}"));
        assert!(instance.engine.store.find(id).await.unwrap().is_none(), "{n}");
    }
}

#[actix::test]
async fn retries_do_not_wait_for_a_refresh() {
    let lab = Lab::new();
    let slow = LeaderSettings { refresh_interval: 600 * SECOND, ..settings() };
    let instance = lab.start(slow, script(|_, n| (Duration::ZERO, Some(if n == 1 { error() } else { accepted() }))));
    instance.submit("a", &max_attempts(5)).await;
    let attempts = instance.until_terminal("a").await.attempts;
    assert!(attempts[1].started_at.since(attempts[0].finished_at) < 6 * SECOND);
}

#[actix::test]
async fn a_lack_of_local_resources_uses_up_no_attempt() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    instance.gateway.shortages.store(50, Ordering::SeqCst);
    instance.submit("shot", &one_shot()).await;
    instance.submit("retried", &max_attempts(1)).await;
    for id in ["shot", "retried"] {
        let history = instance.until_terminal(id).await;
        assert_eq!((history.intent.state.status(), history.attempts.len()), (Status::Accepted, 1), "{id}");
        assert_eq!(history.attempts[0].attempt_number, 1, "{id}");
    }
    instance.gateway.shortages.store(usize::MAX, Ordering::SeqCst);
    instance.submit("late", &deadline(30)).await;
    let history = instance.until_terminal("late").await;
    assert_eq!((exhausted(&history), history.attempts.len()), (ExhaustedReason::DeadlineExceeded, 0));
}
