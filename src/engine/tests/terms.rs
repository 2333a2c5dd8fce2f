//! Terms: how they start and end, and what happens when an actor dies or a store call fails within one.

use super::*;

#[actix::test]
async fn a_follower_makes_no_attempt_and_holds_no_schedule() {
    let lab = Lab::new();
    let lease = acquire_from(&*lab.store(), "lease", "somebody else", 3600 * SECOND).await.unwrap();
    let instance = lab.start(settings(), always(accepted()));
    instance.submit("a", &one_shot()).await;
    pass(600 * SECOND).await;
    assert!(instance.gateway.calls.lock().unwrap().is_empty());
    assert_eq!(instance.engine.metrics.schedule_held.get(), 0);
    lab.store().release_lease(lease.term).await.unwrap();
    assert_eq!(instance.until_terminal("a").await.intent.state.status(), Status::Accepted);
}

#[actix::test]
async fn a_lost_lease_stops_attempts_and_the_next_term_continues_them() {
    let lab = Lab::new();
    let instance = lab.start(
        settings(),
        script(|id, _| match id {
            "slow" => (8 * SECOND, Some(accepted())),
            _ => (Duration::ZERO, Some(error())),
        }),
    );
    instance.submit("slow", &max_attempts(5)).await;
    instance.submit("shot", &at_gateway("b", one_shot())).await;
    instance.submit("retries", &at_gateway("c", max_attempts(100))).await;
    let first = instance.lease_after(0).await;
    instance.until("retries", |history| history.attempts.len() == 1).await;
    assert_eq!(exhausted(&instance.until_terminal("shot").await), ExhaustedReason::OneShot);

    // Another instance takes the lease while an attempt is in flight and a retry is due.
    let other = lab.store();
    other.release_lease(first.term.clone()).await.unwrap();
    let taken = acquire_from(&*other, "lease", "other", 3600 * SECOND).await.unwrap();
    pass(60 * SECOND).await;
    let history = instance.history("slow").await;
    assert!(history.attempts.is_empty() && history.intent.attempt_open, "the outcome came after the term: {history:?}");
    assert_eq!(instance.history("retries").await.attempts.len(), 1, "no attempt in the term of another instance");
    assert!(instance.engine.board.lease().is_none());

    other.release_lease(taken.term.clone()).await.unwrap();
    let slow = instance.until_terminal("slow").await;
    assert_eq!(slow.attempts[0].outcome, Outcome::interrupted());
    assert_eq!((slow.attempts[1].outcome.clone(), slow.attempts.len()), (accepted(), 2));
    assert_eq!(instance.lease_after(0).await.term.epoch, taken.term.epoch + 1);
    instance.until("retries", |history| history.attempts.len() == 4).await;
    instance.assert_no_attempt_sent_twice();
}

#[actix::test]
async fn an_orderly_stop_records_attempts_under_way_and_releases_the_lease() {
    let lab = Lab::new();
    let instance = lab.start(settings(), script(|_, _| (9 * SECOND, Some(accepted()))));
    for n in 0..20 {
        instance.submit(&format!("{n}"), &one_shot()).await;
    }
    let under_way = instance.calls(8).await;
    instance.engine.stop_leading().await;
    for (id, _) in &under_way {
        assert_eq!(instance.history(id).await.intent.state.status(), Status::Accepted);
    }
    assert_eq!(instance.gateway.calls.lock().unwrap().len(), 8, "no new attempt was started");
    assert!(acquire_from(&*lab.store(), "lease", "next", SECOND).await.is_some(), "the lease is free");
    pass(60 * SECOND).await;
    assert!(instance.engine.board.lease().is_none(), "it does not acquire the lease again");
}

/// Makes an actor panic while an attempt is in flight. Its outcome is recorded, and new intents are executed.
async fn survives_the_death_of(victim: &'static str) {
    let lab = Lab::new();
    let instance = lab.start(
        settings(),
        script(|id, _| (if id == "under way" { 3 * SECOND } else { Duration::ZERO }, Some(accepted()))),
    );
    instance.submit("under way", &one_shot()).await;
    instance.calls(1).await;
    let epoch = instance.lease_after(0).await.term.epoch;
    match victim {
        "store" => instance.engine.store.actor().do_send(Crash),
        "leader" => instance.engine.leader().do_send(Crash),
        "scheduler" => instance.engine.leader().do_send(CrashChild(Child::Scheduler)),
        "executor" => instance.engine.leader().do_send(CrashChild(Child::Executor)),
        other => panic!("there is no actor {other}"),
    }
    if victim == "leader" {
        pass(SECOND).await;
        assert!(instance.engine.board.lease().is_none(), "a dead leader does not lead");
    }
    pass(60 * SECOND).await;
    assert_eq!(instance.until_terminal("under way").await.attempts[0].outcome, accepted(), "its outcome was recorded");
    instance.submit("after", &one_shot()).await;
    assert_eq!(instance.until_terminal("after").await.intent.state.status(), Status::Accepted);
    let now = instance.lease_after(0).await.term.epoch;
    assert_eq!(now > epoch, victim != "store", "epoch {epoch} then {now}");
    instance.assert_no_attempt_sent_twice();
}

#[actix::test]
async fn the_store_actor_may_die() {
    survives_the_death_of("store").await;
}

#[actix::test]
async fn the_leader_may_die() {
    survives_the_death_of("leader").await;
}

#[actix::test]
async fn the_scheduler_may_die() {
    survives_the_death_of("scheduler").await;
}

#[actix::test]
async fn the_executor_may_die() {
    survives_the_death_of("executor").await;
}

#[actix::test]
async fn an_attempt_that_panics_is_closed_by_a_new_term_and_affects_no_other() {
    let lab = Lab::new();
    let instance = lab.start(
        settings(),
        script(|id, attempt| match (id, attempt) {
            ("poison", 1) => (SECOND, None),
            ("slow", _) => (3 * SECOND, Some(accepted())),
            _ => (Duration::ZERO, Some(accepted())),
        }),
    );
    instance.submit("slow", &one_shot()).await;
    instance.submit("poison", &max_attempts(3)).await;
    let poison = instance.until_terminal("poison").await;
    assert_eq!(poison.attempts[0].outcome, Outcome::interrupted());
    assert_eq!(poison.attempts[1].outcome, accepted());
    assert_eq!(
        instance.until_terminal("slow").await.attempts[0].outcome,
        accepted(),
        "it was recorded in its own term"
    );
}

#[actix::test]
async fn a_slow_renewal_does_not_extend_the_trust_and_loses_no_intent() {
    let lab = Lab::new();
    let start = monotonic();
    let instance = lab.start(
        settings(),
        script(|_, attempt| (Duration::ZERO, Some(if attempt == 1 { error() } else { accepted() }))),
    );
    let first = instance.lease_after(0).await;
    // Requested at 5 s and at 10 s, answered at 14 s and later: the trust ends 12 s after the renewal at 0 s.
    instance.faults.add("renew_lease", 2, Fault::SlowAnswer(9 * SECOND));
    pass(Duration::from_millis(7500)).await;
    instance.submit("a", &max_attempts(5)).await;
    let history = instance.until_terminal("a").await;
    assert_eq!(history.attempts.len(), 2, "the retry that became due without trust was made later");
    let retried = instance.gateway.call_times.lock().unwrap()[1].duration_since(start);
    assert!(retried >= 15 * SECOND, "an attempt was made {retried:?} after the start, without trust");
    assert!(instance.lease_after(0).await.term.epoch > first.term.epoch);
    instance.assert_no_attempt_sent_twice();
}

/// The store answers a call that starts an attempt only after the trust has ended.
async fn not_sent_when_answered_after_trust_ended(call: &'static str) {
    let lab = Lab::new();
    let start = monotonic();
    let instance = lab.start(settings(), always(accepted()));
    let first = instance.lease_after(0).await;
    instance.faults.add(call, 1, Fault::SlowAnswer(13 * SECOND));
    instance.faults.add("renew_lease", 3, Fault::SlowAnswer(20 * SECOND));
    match call {
        "submit" => {
            let answer = instance.engine.store.submit(new_intent("a", &max_attempts(3), b"{}")).await;
            assert!(
                matches!(answer, Err(StoreError::Unavailable(_))),
                "the client does not wait that long: {answer:?}"
            );
        }
        _ => drop(submit_to(&*lab.store(), new_intent("a", &max_attempts(3), b"{}")).await),
    }
    let history = instance.until_terminal("a").await;
    assert_eq!(
        history.attempts.len(),
        1,
        "an attempt that was not sent is postponed and uses up no number: {history:?}"
    );
    let calls = instance.gateway.calls.lock().unwrap().clone();
    assert_eq!(calls, [("a".to_owned(), 1)]);
    let called = instance.gateway.call_times.lock().unwrap()[0].duration_since(start);
    let epoch = history.attempts[0].lease_epoch;
    assert!(epoch > first.term.epoch, "called after {called:?}, in the term that lost its trust");
}

#[actix::test]
async fn an_attempt_whose_start_is_answered_after_trust_ended_is_not_sent() {
    not_sent_when_answered_after_trust_ended("start").await;
}

#[actix::test]
async fn an_attempt_started_on_insert_that_is_answered_after_trust_ended_is_not_sent() {
    not_sent_when_answered_after_trust_ended("submit").await;
}

#[actix::test]
async fn a_new_intent_is_started_in_the_transaction_that_inserts_it() {
    let lab = Lab::new();
    let instance = lab.start(settings(), script(|_, _| (SECOND, Some(accepted()))));
    instance.lease_after(0).await;
    instance.faults.add("start", 100, Fault::Fail);
    instance.faults.add("refresh_schedule", 100, Fault::SlowAnswer(SECOND));
    for n in 0..8 {
        let submitted = instance.engine.store.submit(new_intent(&format!("{n}"), &one_shot(), b"{}")).await.unwrap();
        let Submitted::Created(intent) = submitted else { panic!("{submitted:?}") };
        assert!(intent.attempt_open && intent.attempt_count == 1, "{intent:?}");
    }
    let submitted = instance.engine.store.submit(new_intent("full", &one_shot(), b"{}")).await.unwrap();
    assert!(matches!(submitted, Submitted::Created(intent) if !intent.attempt_open), "all eight slots are taken");
    assert_eq!(instance.calls(8).await.len(), 8);
    instance.faults.clear("start");
    instance.until_terminal("full").await;
    instance.assert_no_attempt_sent_twice();
}

#[actix::test]
async fn a_commit_in_doubt_ends_the_term_so_that_attempts_it_started_are_closed() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let first = instance.lease_after(0).await.term;
    instance.faults.add("submit", 1, Fault::FailAfter);
    let refused = instance.engine.store.submit(new_intent("a", &max_attempts(3), b"{}")).await;
    assert!(refused.is_err(), "{refused:?}");
    let history = instance.until_terminal("a").await;
    assert_eq!(
        history.attempts[0].outcome,
        Outcome::interrupted(),
        "started, but the executor was not told to make it"
    );
    assert_eq!(history.attempts[1].outcome, accepted());
    assert!(history.attempts[1].lease_epoch > first.epoch);
}

#[actix::test]
async fn a_new_intent_does_not_overtake_one_that_is_due() {
    let lab = Lab::new();
    let instance = lab.start(settings(), script(|_, _| (SECOND, Some(accepted()))));
    instance.lease_after(0).await;
    for n in 0..24 {
        instance.submit(&format!("{n:02}"), &one_shot()).await;
        pass(Duration::from_millis(100)).await;
    }
    instance.until_terminal("23").await;
    let calls = instance.gateway.calls.lock().unwrap().clone();
    assert!(calls.is_sorted(), "{calls:?}");
}

#[actix::test]
async fn a_failed_refresh_or_renewal_ends_the_term() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    for call in ["refresh_schedule", "renew_lease"] {
        let epoch = instance.lease_after(0).await.term.epoch;
        instance.faults.add(call, 1, Fault::Fail);
        instance.lease_after(epoch).await;
        instance.submit(call, &one_shot()).await;
        assert_eq!(instance.until_terminal(call).await.intent.state.status(), Status::Accepted);
    }
}

#[actix::test]
async fn a_term_that_is_lost_while_it_is_prepared_makes_no_attempt() {
    let lab = Lab::new();
    submit_to(&*lab.store(), new_intent("a", &one_shot(), b"{}")).await;
    let instance = lab.start(settings(), always(accepted()));
    instance.faults.add("schedule_snapshot", 1, Fault::SlowAnswer(20 * SECOND));
    instance.faults.add("renew_lease", 4, Fault::SlowAnswer(30 * SECOND));
    pass(20 * SECOND).await;
    assert!(instance.gateway.calls.lock().unwrap().is_empty(), "its lease of 15 s had expired");
    assert_eq!(instance.until_terminal("a").await.attempts.len(), 1);
}

#[actix::test]
async fn a_stop_while_a_term_is_prepared_is_answered_and_releases_the_lease() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.faults.add("schedule_snapshot", 1, Fault::SlowAnswer(2 * SECOND));
    instance.lease_after(0).await;
    tokio::time::timeout(10 * SECOND, instance.engine.stop_leading()).await.expect("the stop is answered");
    pass(5 * SECOND).await;
    assert!(instance.engine.board.lease().is_none());
    assert!(acquire_from(&*lab.store(), "lease", "next", SECOND).await.is_some(), "the lease is free");
}

#[actix::test]
async fn an_outcome_is_recorded_once_the_store_answers_again() {
    let lab = Lab::new();
    let instance = lab.start(settings(), script(|_, _| (SECOND, Some(accepted()))));
    instance.lease_after(0).await;
    instance.faults.add("finish", 12, Fault::Fail);
    instance.submit("a", &max_attempts(5)).await;
    let history = instance.until_terminal("a").await;
    assert_eq!((history.attempts.len(), &history.attempts[0].outcome), (1, &accepted()), "three seconds later");
    assert_eq!((instance.faults.left("finish"), instance.gateway.calls.lock().unwrap().len()), (0, 1));
}

#[actix::test]
async fn a_stop_after_a_lost_term_waits_for_attempts_under_way() {
    let lab = Lab::new();
    let instance = lab.start(settings(), script(|_, _| (9 * SECOND, Some(accepted()))));
    instance.lease_after(0).await;
    instance.submit("a", &one_shot()).await;
    instance.calls(1).await;
    instance.faults.add("renew_lease", 1, Fault::Fail);
    while instance.engine.board.lease().is_some() {
        pass(Duration::from_millis(100)).await;
    }
    instance.engine.stop_leading().await;
    assert_eq!(
        instance.history("a").await.intent.state.status(),
        Status::Accepted,
        "its lease was still valid in the store"
    );
}

#[actix::test]
async fn an_unreadable_open_attempt_affects_no_other() {
    let lab = Lab::new();
    let store = lab.store();
    let bad = new_intent("bad", &at_gateway("bad", one_shot()), b"{}");
    submit_to(&*store, bad).await;
    let damage = "UPDATE submission_contracts SET snapshot = 'not json';
        UPDATE submission_intents SET attempt_count = 1, next_attempt_at = NULL, open_lease_epoch = 0, open_started_at = 1;";
    Connection::open(lab.path()).unwrap().execute_batch(damage).unwrap();
    let instance = lab.start(settings(), always(accepted()));
    instance.submit("good", &one_shot()).await;
    assert_eq!(instance.until_terminal("good").await.intent.state.status(), Status::Accepted);
    assert_eq!(instance.lease_after(0).await.term.epoch, 1, "the first term");
}

#[actix::test]
async fn a_released_lease_is_acquired_within_a_second_even_after_failed_terms() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    for _ in 0..4 {
        let epoch = instance.lease_after(0).await.term.epoch;
        instance.faults.add("refresh_schedule", 1, Fault::Fail);
        instance.lease_after(epoch).await;
    }
    let mine = instance.lease_after(0).await.term;
    let store = lab.store();
    store.release_lease(mine).await.unwrap();
    let other = acquire_from(&*store, "lease", "other", 3600 * SECOND).await.unwrap().term;
    pass(120 * SECOND).await;
    let released = monotonic();
    store.release_lease(other.clone()).await.unwrap();
    instance.lease_after(other.epoch).await;
    let gap = monotonic().duration_since(released);
    assert!(gap <= SECOND + Duration::from_millis(60), "{gap:?}");
}

#[actix::test]
async fn trust_counts_from_the_request_of_a_renewal() {
    let lab = Lab::new();
    let start = monotonic();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    // Requested at 5 s, answered at 11 s: trusted until 17 s. The lease itself lasts until 25 s, because the renewal that was
    // requested at 10 s took effect too.
    instance.faults.add("renew_lease", 2, Fault::SlowAnswer(60 * SECOND));
    instance.faults.add("renew_lease", 1, Fault::SlowAnswer(6 * SECOND));
    pass(18 * SECOND).await;
    instance.submit("a", &one_shot()).await;
    instance.until_terminal("a").await;
    let made = instance.gateway.call_times.lock().unwrap()[0].duration_since(start);
    assert!(made >= 25 * SECOND, "made {made:?} after the start, without trust");
}

/// Delays one of the first two answers that trust is based on.
async fn trust_ends_in_time_though_slow(call: &'static str) {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.faults.add("renew_lease", 5, Fault::SlowAnswer(60 * SECOND));
    // Requested at 0 s, answered at 10 s: trusted until 12 s.
    instance.faults.add(call, 1, Fault::SlowAnswer(10 * SECOND));
    pass(Duration::from_millis(11_500)).await;
    assert!(instance.engine.board.lease().is_some(), "the lease is trusted");
    pass(SECOND).await;
    assert!(instance.engine.board.lease().is_none(), "the slow answer extended the trust");
}

#[actix::test]
async fn trust_counts_from_when_the_lease_was_asked_for() {
    trust_ends_in_time_though_slow("acquire_lease").await;
}

#[actix::test]
async fn trust_counts_from_when_the_check_of_a_prepared_term_was_asked_for() {
    trust_ends_in_time_though_slow("renew_lease").await;
}

#[actix::test]
async fn an_intent_stored_by_a_follower_starts_within_the_refresh_interval() {
    let lab = Lab::new();
    let leader = lab.start(settings(), always(accepted()));
    leader.lease_after(0).await;
    let follower = lab.start(LeaderSettings { holder_id: "other".into(), ..settings() }, always(accepted()));
    for n in 0..5 {
        pass(Duration::from_millis(730)).await;
        let id = format!("{n}");
        follower.submit(&id, &one_shot()).await;
        let submitted = monotonic();
        leader.calls(n + 1).await;
        let gap = leader.gateway.call_times.lock().unwrap()[n].duration_since(submitted);
        assert!(gap <= settings().refresh_interval, "{gap:?}");
        assert_eq!(follower.engine.metrics.schedule_held.get(), 0);
    }
    assert!(follower.engine.board.lease().is_none());
}

#[actix::test]
async fn a_term_in_doubt_is_renewed_until_calls_under_way_are_recorded() {
    let lab = Lab::new();
    let instance = lab.start(
        settings(),
        script(|id, _| (if id == "long" { 28 * SECOND } else { Duration::from_millis(1) }, Some(accepted()))),
    );
    let first = instance.lease_after(0).await;
    instance.submit("long", &at_gateway("slow", one_shot())).await;
    instance.calls(1).await;
    // A refresh fails while attempts are being started: from here on the term is in doubt.
    let backlog = (0..3_000).map(|number| new_intent(&number.to_string(), &one_shot(), b"")).collect();
    lab.store().commit(WriteBatch { submits: backlog, ..WriteBatch::default() }).await.unwrap();
    instance.calls(20).await;
    instance.faults.add("refresh_schedule", 1, Fault::Fail);
    assert_eq!(
        instance.until_terminal("long").await.intent.state.status(),
        Status::Accepted,
        "the gateway accepted it"
    );
    for number in 0..3_000 {
        let history = instance.until_terminal(&number.to_string()).await;
        assert_eq!(history.intent.state.status(), Status::Accepted, "{history:?}");
    }
    assert!(instance.lease_after(first.term.epoch).await.term.epoch > first.term.epoch, "and the term has ended");
    instance.assert_no_attempt_sent_twice();
}

#[actix::test]
async fn an_attempt_that_the_store_refuses_to_close_is_closed_later_in_the_same_term() {
    let lab = Lab::new();
    let answer = |_: &str, attempt| if attempt == 1 { 3600 * SECOND } else { Duration::ZERO };
    let instance = lab.start(settings(), script(move |id, attempt| (answer(id, attempt), Some(accepted()))));
    instance.submit("a", &max_attempts(2)).await;
    instance.calls(1).await;
    let first = instance.lease_after(0).await;
    let other = lab.store();
    other.release_lease(first.term.clone()).await.unwrap();
    let taken = acquire_from(&*other, "lease", "other", 3600 * SECOND).await.unwrap();
    pass(60 * SECOND).await;
    instance.faults.add("finish alone", 1, Fault::Fail);
    other.release_lease(taken.term.clone()).await.unwrap();
    let lease = instance.lease_after(taken.term.epoch).await;
    pass(20 * SECOND).await;
    assert!(instance.history("a").await.attempts.is_empty(), "the store refused to close it");
    let history = instance.until_terminal("a").await;
    assert_eq!(history.attempts[0].outcome, Outcome::interrupted());
    assert_eq!(history.attempts[1].outcome, accepted());
    assert_eq!(instance.engine.board.lease().unwrap().term, lease.term, "no other term was needed");
}
