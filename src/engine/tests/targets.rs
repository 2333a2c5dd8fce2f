//! Targets that are paused or have limits of their own, and gateways that answer with `Retry-After`.

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::domain::intent::TargetName;

fn named(target: &str, contract: Contract) -> Contract {
    Contract { target: TargetName::parse(target).unwrap(), ..contract }
}

/// A registry whose target `t` has these limits.
fn limited(limits: serde_json::Value) -> CurrentRegistry {
    CurrentRegistry::new(Registry::parse(&targets(limits), &Variables::from_fn(|_| None)).unwrap())
}

/// Reloads the registry with other limits.
fn reload(registry: &CurrentRegistry, limits: serde_json::Value) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("targets.json");
    std::fs::write(&path, targets(limits)).unwrap();
    let files = crate::config::registry::RegistryFiles {
        targets: path,
        nodes: None,
        api_clients: None,
        inbox_clients: None,
        console_users: None,
    };
    registry.reload(&files, &Variables::from_fn(|_| None)).unwrap();
}

fn targets(limits: serde_json::Value) -> String {
    let mut entry = serde_json::json!({ "submissionTarget": "t", "gatewayType": "sms", "gatewayUrl": "http://x",
        "policy": "one_shot", "terminalOutcomes": ["invalid_request"] });
    entry.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
    serde_json::json!({ "targets": [entry] }).to_string()
}

#[actix::test]
async fn a_paused_target_keeps_its_backlog_and_continues_when_it_is_resumed() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let (paused, other) = (named("paused", max_attempts(3)), named("other", max_attempts(3)));
    // Another instance pauses the target, so the leader is not notified.
    let elsewhere = lab.store();
    elsewhere.pause_target(paused.target.clone(), None, somebody()).await.unwrap();
    for number in 0..3 {
        instance.submit(&format!("r{number}"), &paused).await;
        submit_to(&*elsewhere, new_intent(&format!("s{number}"), &paused, b"")).await;
    }
    instance.submit("o", &other).await;
    instance.until_terminal("o").await;
    pass(60 * SECOND).await;
    assert_eq!(instance.calls(1).await, [("o".to_owned(), 1)], "no attempt of the paused target");

    instance.engine.store.resume_target(paused.target, somebody()).await.unwrap();
    for id in ["r0", "s0", "r1", "s1", "r2", "s2"] {
        assert_eq!(instance.until_terminal(id).await.attempts.len(), 1);
    }
    instance.assert_no_attempt_sent_twice();
}

#[actix::test]
async fn due_attempts_are_not_lost_when_their_target_is_paused_repeatedly() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(error()));
    instance.lease_after(0).await;
    let contract = max_attempts(50);
    for number in 0..20 {
        instance.submit(&number.to_string(), &contract).await;
    }
    // Pauses come while attempts are being started.
    for _ in 0..40 {
        instance.engine.store.pause_target(contract.target.clone(), None, somebody()).await.unwrap();
        let before = instance.gateway.calls.lock().unwrap().len();
        pass(3 * SECOND).await;
        assert_eq!(instance.gateway.calls.lock().unwrap().len(), before, "no attempt started");
        instance.engine.store.resume_target(contract.target.clone(), somebody()).await.unwrap();
        pass(4 * SECOND).await;
    }
    for number in 0..20 {
        let history = instance.until_terminal(&number.to_string()).await;
        assert_eq!((history.attempts.len(), exhausted(&history)), (50, ExhaustedReason::MaxAttempts));
    }
    instance.assert_no_attempt_sent_twice();
}

#[actix::test]
async fn an_attempt_that_was_due_when_the_pause_came_starts_after_the_pause() {
    let lab = Lab::new();
    let instance = lab
        .start(settings(), script(|_, number| (Duration::ZERO, Some(if number == 1 { error() } else { accepted() }))));
    instance.lease_after(0).await;
    let contract = max_attempts(3);
    instance.submit("a", &contract).await;
    instance.until("a", |history| history.attempts.len() == 1).await;
    // Another instance pauses the target just before the attempt is due. The leader does not know, and its start is refused.
    pass(Duration::from_millis(4_990)).await;
    let elsewhere = lab.store();
    elsewhere.pause_target(contract.target.clone(), None, somebody()).await.unwrap();
    pass(3 * SECOND).await;
    assert_eq!(instance.calls(1).await.len(), 1);
    elsewhere.resume_target(contract.target, somebody()).await.unwrap();
    assert_eq!(instance.until_terminal("a").await.attempts.len(), 2);
}

#[actix::test]
async fn a_rate_limit_from_a_reloaded_registry_neither_blocks_the_gateway_nor_leaves_the_target_idle() {
    let lab = Lab::new();
    let slow = script(|_, _| (Duration::from_millis(300), Some(accepted())));
    let registry = limited(serde_json::json!({}));
    let instance = lab.start_with_registry(settings(), slow, registry.clone());
    instance.lease_after(0).await;
    let (contract, other) = (named("t", one_shot()), named("other", one_shot()));
    let backlog = (0..100).map(|number| new_intent(&number.to_string(), &contract, b"")).collect();
    lab.store().commit(WriteBatch { submits: backlog, ..WriteBatch::default() }).await.unwrap();
    instance.calls(8).await;
    reload(&registry, serde_json::json!({ "ratePerSecond": 2 }));
    pass(2 * SECOND).await;
    let before = instance.calls(8).await.len();
    pass(10 * SECOND).await;
    let during = instance.calls(before).await.len() - before;
    assert!((18..=22).contains(&during), "{during} in ten seconds at 2 a second");
    let start = monotonic();
    instance.submit("o", &other).await;
    instance.until_terminal("o").await;
    assert!(monotonic().duration_since(start) < SECOND, "another target gets a slot");
}

#[actix::test]
async fn no_second_has_more_calls_of_a_target_than_its_rate() {
    let lab = Lab::new();
    let registry = limited(serde_json::json!({ "ratePerSecond": 4 }));
    // Slow answers make the calls of several seconds overlap.
    let slow = script(|_, _| (3 * SECOND, Some(accepted())));
    let instance = lab.start_with_registry(settings(), slow, registry);
    instance.lease_after(0).await;
    let contract = named("t", one_shot());
    for number in 0..10 {
        instance.submit(&number.to_string(), &contract).await;
    }
    let backlog = (10..30).map(|number| new_intent(&number.to_string(), &contract, b"")).collect();
    lab.store().commit(WriteBatch { submits: backlog, ..WriteBatch::default() }).await.unwrap();
    for number in 0..30 {
        instance.until_terminal(&number.to_string()).await;
    }
    let call_times = instance.gateway.call_times.lock().unwrap().clone();
    for four_later in call_times.windows(5) {
        assert!(four_later[4] - four_later[0] >= SECOND, "{four_later:?}");
    }
    let all = *call_times.last().unwrap() - call_times[0];
    assert!(all < 15 * SECOND, "30 at 4 a second were spread over {all:?}, though slots bound them to 8 in 3 s");
}

#[actix::test]
async fn a_target_never_exceeds_its_limit_of_calls_and_a_reloaded_limit_applies_immediately() {
    let lab = Lab::new();
    let slow = script(|_, _| (SECOND, Some(accepted())));
    let registry = limited(serde_json::json!({ "maxInFlight": 2 }));
    let instance = lab.start_with_registry(settings(), slow, registry.clone());
    instance.lease_after(0).await;
    let contract = named("t", one_shot());
    for number in 0..12 {
        instance.submit(&number.to_string(), &contract).await;
    }
    pass(SECOND / 2).await;
    assert_eq!(instance.calls(2).await.len(), 2);
    pass(SECOND).await;
    assert_eq!(instance.calls(4).await.len(), 4);
    reload(&registry, serde_json::json!({}));
    pass(2 * SECOND).await;
    assert_eq!(instance.calls(12).await.len(), 12, "all of them start without a limit");
}

#[actix::test]
async fn an_attempt_has_the_timeout_of_the_current_registry() {
    let lab = Lab::new();
    let registry = limited(serde_json::json!({ "attemptTimeoutSeconds": 90 }));
    let instance = lab.start_with_registry(settings(), always(error()), registry.clone());
    instance.lease_after(0).await;
    instance.submit("other", &named("other", one_shot())).await;
    instance.until_terminal("other").await;
    instance.submit("a", &named("t", max_attempts(3))).await;
    instance.until("a", |history| history.attempts.len() == 1).await;
    reload(&registry, serde_json::json!({ "attemptTimeoutSeconds": 7 }));
    instance.until("a", |history| history.attempts.len() == 2).await;
    reload(&registry, serde_json::json!({}));
    instance.until_terminal("a").await;
    let timeouts = instance.gateway.timeouts.lock().unwrap().clone();
    assert_eq!(timeouts, [35 * SECOND, 90 * SECOND, 7 * SECOND, 35 * SECOND]);
}

#[actix::test]
async fn a_gateway_that_answers_retry_after_is_not_called_by_any_of_its_targets() {
    let lab = Lab::new();
    let busy = Arc::new(Mutex::new(true));
    let is_busy = Arc::clone(&busy);
    let instance = lab.start(
        settings(),
        script(move |id, _| {
            let busy = *is_busy.lock().unwrap() && !id.starts_with("elsewhere");
            let retry_later = error().with_retry_after(Some(60 * SECOND));
            (Duration::ZERO, Some(if busy { retry_later } else { accepted() }))
        }),
    );
    instance.lease_after(0).await;
    let (one, two) = (named("one", max_attempts(9)), named("two", max_attempts(9)));
    instance.submit("first", &one).await;
    instance.until("first", |history| history.attempts.len() == 1).await;
    for number in 0..5 {
        instance.submit(&format!("one {number}"), &one).await;
        instance.submit(&format!("two {number}"), &two).await;
    }
    instance.submit("elsewhere", &at_gateway("other", one.clone())).await;
    instance.until_terminal("elsewhere").await;
    pass(55 * SECOND).await;
    assert_eq!(instance.calls(2).await.len(), 2, "the first one, and the one at the other gateway");
    pass(10 * SECOND).await;
    assert_eq!(instance.calls(3).await.len(), 3, "one attempt is made, and gets the same answer");
    *busy.lock().unwrap() = false;
    for id in ["first", "one 4", "two 4"] {
        instance.until_terminal(id).await;
    }
    let spent: Vec<_> = instance.calls(14).await.into_iter().filter(|(_, number)| *number > 1).collect();
    assert!(spent.len() <= 2, "few attempts were used up meanwhile: {spent:?}");
}

/// Counts the calls in each of `count` consecutive periods of virtual time.
async fn calls_per(period: Duration, count: usize, instance: &Instance) -> Vec<usize> {
    let mut calls = Vec::new();
    for _ in 0..count {
        let before = instance.gateway.calls.lock().unwrap().len();
        pass(period).await;
        calls.push(instance.gateway.calls.lock().unwrap().len() - before);
    }
    calls
}

#[actix::test]
async fn a_target_with_a_rate_and_deadlines_keeps_delivering_when_more_comes_than_its_rate_allows() {
    let lab = Lab::new();
    let registry = limited(serde_json::json!({ "ratePerSecond": 1 }));
    let instance = lab.start_with_registry(settings(), always(accepted()), registry);
    instance.lease_after(0).await;
    let contract = named("t", deadline(10));
    // Another instance submits at twice the rate, so that every intent has to wait.
    let elsewhere = lab.store();
    actix::spawn(async move {
        for number in 0..240 {
            submit_to(&*elsewhere, new_intent(&number.to_string(), &contract, b"")).await;
            pass(SECOND / 2).await;
        }
    });
    let calls = calls_per(20 * SECOND, 5, &instance).await;
    assert!(calls.iter().all(|calls| (18..=21).contains(calls)), "{calls:?} in each 20 s at one a second");
}

#[actix::test]
async fn a_paused_target_with_a_rate_and_deadlines_delivers_again_when_it_is_resumed() {
    let lab = Lab::new();
    let registry = limited(serde_json::json!({ "ratePerSecond": 1 }));
    let instance = lab.start_with_registry(settings(), always(accepted()), registry);
    instance.lease_after(0).await;
    let contract = named("t", deadline(10));
    instance.engine.store.pause_target(contract.target.clone(), None, somebody()).await.unwrap();
    for number in 0..60 {
        instance.submit(&format!("dead {number}"), &contract).await;
    }
    pass(15 * SECOND).await;
    instance.engine.store.resume_target(contract.target.clone(), somebody()).await.unwrap();
    let resumed = monotonic();
    instance.submit("live", &contract).await;
    assert_eq!(instance.until_terminal("live").await.intent.state.status(), Status::Accepted);
    assert!(monotonic().duration_since(resumed) < 3 * SECOND, "expired intents used none of the rate");
}

#[actix::test]
async fn a_stalled_store_does_not_cause_a_burst_of_calls() {
    let lab = Lab::new();
    let registry = limited(serde_json::json!({ "ratePerSecond": 2 }));
    let instance = lab.start_with_registry(settings(), always(accepted()), registry);
    instance.lease_after(0).await;
    let contract = named("t", one_shot());
    let backlog = (0..30).map(|number| new_intent(&number.to_string(), &contract, b"")).collect();
    lab.store().commit(WriteBatch { submits: backlog, ..WriteBatch::default() }).await.unwrap();
    instance.calls(3).await;
    instance.faults.add("start", 1, Fault::SlowAnswer(5 * SECOND));
    for number in 0..30 {
        assert_eq!(instance.until_terminal(&number.to_string()).await.attempts.len(), 1);
    }
    let call_times = instance.gateway.call_times.lock().unwrap().clone();
    for pair in call_times.windows(3) {
        assert!(pair[2] - pair[0] >= SECOND - Duration::from_millis(5), "three calls within {:?}", pair[2] - pair[0]);
    }
    instance.assert_no_attempt_sent_twice();
}

#[actix::test]
async fn a_resubmission_uses_none_of_the_rate() {
    let lab = Lab::new();
    let registry = limited(serde_json::json!({ "ratePerSecond": 0.1 }));
    let instance = lab.start_with_registry(settings(), always(accepted()), registry);
    instance.lease_after(0).await;
    let contract = named("t", one_shot());
    instance.submit("first", &contract).await;
    instance.until_terminal("first").await;
    pass(10 * SECOND).await;
    for _ in 0..5 {
        let again = instance.engine.store.submit(new_intent("first", &contract, b"{}")).await.unwrap();
        assert!(matches!(again, Submitted::Existing(_)));
    }
    let submitted = monotonic();
    instance.submit("second", &contract).await;
    instance.until_terminal("second").await;
    assert!(monotonic().duration_since(submitted) < SECOND);
}

#[actix::test]
async fn no_call_is_made_after_the_deadline_even_if_its_attempt_started_before() {
    let lab = Lab::new();
    // One call at a time, each of nine seconds, so an attempt that is started early waits that long.
    let limits = Limits { in_flight: 1, in_flight_per_gateway: 1, capacity: 1_000 };
    let slow = script(|_, _| (9 * SECOND, Some(accepted())));
    let instance = lab.start(LeaderSettings { limits, ..settings() }, slow);
    instance.lease_after(0).await;
    instance.submit("before", &one_shot()).await;
    instance.calls(1).await;
    // The answer to its start comes when the deadline has passed.
    instance.faults.add("start", 1, Fault::SlowAnswer(6 * SECOND));
    let late = named("late", deadline(12));
    instance.submit("late", &late).await;
    let history = instance.until_terminal("late").await;
    assert_eq!(exhausted(&history), ExhaustedReason::DeadlineExceeded);
    let [attempt] = &history.attempts[..] else { panic!("{history:?}") };
    assert_eq!(attempt.outcome.cause(), "not sent: the deadline passed before the request was sent");
    assert_eq!(instance.calls(1).await, [("before".to_owned(), 1)], "the gateway never saw it");
}

#[actix::test]
async fn an_intent_that_the_store_cannot_start_is_tried_again_in_the_same_term() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let lease = instance.lease_after(0).await;
    instance.faults.add("start alone", 1, Fault::Fail);
    submit_to(&*lab.store(), new_intent("a", &max_attempts(3), b"")).await;
    assert_eq!(instance.until_terminal("a").await.intent.state.status(), Status::Accepted);
    assert_eq!(instance.engine.board.lease().unwrap().term, lease.term);
}

#[actix::test]
async fn hung_gateways_delay_only_their_own_intents() {
    let lab = Lab::new();
    let hang = script(|id, _| match id.starts_with("hung") {
        true => (35 * SECOND, Some(Outcome::unknown("timed out"))),
        false => (Duration::from_millis(20), Some(accepted())),
    });
    let limits = Limits { in_flight: 64, in_flight_per_gateway: 32, capacity: 64 * 1024 };
    let instance = lab.start(LeaderSettings { limits, ..settings() }, hang);
    instance.lease_after(0).await;
    let healthy = at_gateway("healthy", named("healthy", one_shot()));
    instance.submit("warm", &healthy).await;
    instance.until_terminal("warm").await;
    let mut backlog = Vec::new();
    for gateway in 0..50 {
        let contract = at_gateway(&format!("hung{gateway}"), named("hung", max_attempts(3)));
        backlog.extend((0..40).map(|number| new_intent(&format!("hung {gateway} {number}"), &contract, b"")));
    }
    lab.store().commit(WriteBatch { submits: backlog, ..WriteBatch::default() }).await.unwrap();
    // At first nothing is known about these gateways, then they do not answer, and then their calls have timed out.
    for round in 0..60 {
        let (id, submitted) = (format!("healthy {round}"), monotonic());
        instance.submit(&id, &healthy).await;
        instance.until_terminal(&id).await;
        let took = monotonic().duration_since(submitted);
        assert!(took < Duration::from_millis(100), "{id} took {took:?}");
        pass(2 * SECOND).await;
    }
}
