//! Terms: how they begin and end, and that whatever dies or fails in one harms nothing.

use super::*;

#[actix::test]
async fn a_follower_executes_nothing_and_builds_no_schedule() {
    let lab = Lab::new();
    let lease = acquire_from(&*lab.store(), "lease", "somebody else", 3600 * SECOND).await.unwrap();
    let instance = lab.start(settings(), always(accepted()));
    instance.submit("a", &one_shot()).await;
    pass(600 * SECOND).await;
    assert!(instance.gateway.calls.lock().unwrap().is_empty());
    assert_eq!(instance.engine.metrics.schedule_held.get(), 0);
    lab.store().release_lease(lease.term).await.unwrap();
    assert_eq!(instance.end("a").await.intent.state.status(), Status::Accepted);
}

#[actix::test]
async fn losing_the_lease_in_the_middle_of_everything() {
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
    assert_eq!(exhausted(&instance.end("shot").await), ExhaustedReason::OneShot);

    // Another instance takes the lease while an attempt is under way and a retry is due.
    let thief = lab.store();
    thief.release_lease(first.term.clone()).await.unwrap();
    let stolen = acquire_from(&*thief, "lease", "thief", 3600 * SECOND).await.unwrap();
    pass(60 * SECOND).await;
    let history = instance.history("slow").await;
    assert!(history.attempts.is_empty() && history.intent.attempt_open, "the outcome came after the term: {history:?}");
    assert_eq!(instance.history("retries").await.attempts.len(), 1, "no attempt in the term of another");
    assert!(instance.engine.board.lease().is_none());

    thief.release_lease(stolen.term.clone()).await.unwrap();
    let slow = instance.end("slow").await;
    assert_eq!(slow.attempts[0].outcome, Outcome::interrupted());
    assert_eq!((slow.attempts[1].outcome.clone(), slow.attempts.len()), (accepted(), 2));
    assert_eq!(instance.lease_after(0).await.term.epoch, stolen.term.epoch + 1);
    instance.until("retries", |history| history.attempts.len() == 4).await;
    instance.assert_no_number_sent_twice();
}

#[actix::test]
async fn an_orderly_stop_records_what_is_under_way_and_frees_the_lease() {
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
    assert_eq!(instance.gateway.calls.lock().unwrap().len(), 8, "nothing new was begun");
    assert!(acquire_from(&*lab.store(), "lease", "next", SECOND).await.is_some(), "the lease is free");
    pass(60 * SECOND).await;
    assert!(instance.engine.board.lease().is_none(), "it does not come back");
}

/// Kills an actor while an attempt is under way; afterwards all is as it should be.
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
        assert!(instance.engine.board.lease().is_none(), "a dead leader leads no more");
    }
    pass(60 * SECOND).await;
    assert_eq!(instance.end("under way").await.attempts[0].outcome, accepted(), "recorded all the same");
    instance.submit("after", &one_shot()).await;
    assert_eq!(instance.end("after").await.intent.state.status(), Status::Accepted);
    let now = instance.lease_after(0).await.term.epoch;
    assert_eq!(now > epoch, victim != "store", "epoch {epoch} then {now}");
    instance.assert_no_number_sent_twice();
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
async fn an_attempt_that_dies_is_closed_by_a_new_term_and_harms_no_other() {
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
    let poison = instance.end("poison").await;
    assert_eq!(poison.attempts[0].outcome, Outcome::interrupted());
    assert_eq!(poison.attempts[1].outcome, accepted());
    assert_eq!(instance.end("slow").await.attempts[0].outcome, accepted(), "it was recorded in its own term");
}

#[actix::test]
async fn a_slow_renewal_stretches_no_lease_and_loses_no_intent() {
    let lab = Lab::new();
    let began = monotonic();
    let instance = lab.start(
        settings(),
        script(|_, attempt| (Duration::ZERO, Some(if attempt == 1 { error() } else { accepted() }))),
    );
    let first = instance.lease_after(0).await;
    // Asked for at 5 s and at 10 s, answered at 14 s and later: trust ends 12 s after the check at 0 s.
    instance.faults.add("renew_lease", 2, Fault::SlowAnswer(9 * SECOND));
    pass(Duration::from_millis(7500)).await;
    instance.submit("a", &max_attempts(5)).await;
    let history = instance.end("a").await;
    assert_eq!(history.attempts.len(), 2, "the retry that came due without trust was not forgotten");
    let retried = instance.gateway.moments.lock().unwrap()[1].duration_since(began);
    assert!(retried >= 15 * SECOND, "an attempt was made {retried:?} after the start, without trust");
    assert!(instance.lease_after(0).await.term.epoch > first.term.epoch);
    instance.assert_no_number_sent_twice();
}

async fn not_sent_when_answered_after_trust_ended(call: &'static str) {
    let lab = Lab::new();
    let began = monotonic();
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
    let history = instance.end("a").await;
    assert_eq!(history.attempts.len(), 1, "what was not sent is given back, and uses up nothing: {history:?}");
    let calls = instance.gateway.calls.lock().unwrap().clone();
    assert_eq!(calls, [("a".to_owned(), 1)]);
    let began = instance.gateway.moments.lock().unwrap()[0].duration_since(began);
    let epoch = history.attempts[0].lease_epoch;
    assert!(epoch > first.term.epoch, "called after {began:?}, in the term that lost its trust");
}

#[actix::test]
async fn a_begin_that_is_answered_after_trust_ended_is_not_sent() {
    not_sent_when_answered_after_trust_ended("start").await;
}

#[actix::test]
async fn a_begin_together_with_its_intent_that_is_answered_after_trust_ended_is_not_sent() {
    not_sent_when_answered_after_trust_ended("submit").await;
}

#[actix::test]
async fn a_new_intent_is_begun_in_the_transaction_that_takes_it_in() {
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
    assert!(matches!(submitted, Submitted::Created(intent) if !intent.attempt_open), "all eight places are taken");
    assert_eq!(instance.calls(8).await.len(), 8);
    instance.faults.clear("start");
    instance.end("full").await;
    instance.assert_no_number_sent_twice();
}

#[actix::test]
async fn a_commit_in_doubt_ends_the_term_so_that_what_it_began_is_closed() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let first = instance.lease_after(0).await.term;
    instance.faults.add("submit", 1, Fault::FailAfter);
    let refused = instance.engine.store.submit(new_intent("a", &max_attempts(3), b"{}")).await;
    assert!(refused.is_err(), "{refused:?}");
    let history = instance.end("a").await;
    assert_eq!(history.attempts[0].outcome, Outcome::interrupted(), "begun, but nobody was told to make it");
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
    instance.end("23").await;
    let calls = instance.gateway.calls.lock().unwrap().clone();
    assert!(calls.is_sorted(), "{calls:?}");
}

#[actix::test]
async fn a_failed_look_or_renewal_ends_the_term() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    for call in ["refresh_schedule", "renew_lease"] {
        let epoch = instance.lease_after(0).await.term.epoch;
        instance.faults.add(call, 1, Fault::Fail);
        instance.lease_after(epoch).await;
        instance.submit(call, &one_shot()).await;
        assert_eq!(instance.end(call).await.intent.state.status(), Status::Accepted);
    }
}

#[actix::test]
async fn a_term_that_is_lost_while_it_is_prepared_executes_nothing() {
    let lab = Lab::new();
    submit_to(&*lab.store(), new_intent("a", &one_shot(), b"{}")).await;
    let instance = lab.start(settings(), always(accepted()));
    instance.faults.add("schedule_snapshot", 1, Fault::SlowAnswer(20 * SECOND));
    instance.faults.add("renew_lease", 4, Fault::SlowAnswer(30 * SECOND));
    pass(20 * SECOND).await;
    assert!(instance.gateway.calls.lock().unwrap().is_empty(), "its lease of 15 s was over");
    assert_eq!(instance.end("a").await.attempts.len(), 1);
}

#[actix::test]
async fn a_stop_while_a_term_is_prepared_is_answered_and_frees_the_lease() {
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
async fn an_outcome_is_recorded_once_the_store_is_back() {
    let lab = Lab::new();
    let instance = lab.start(settings(), script(|_, _| (SECOND, Some(accepted()))));
    instance.lease_after(0).await;
    instance.faults.add("finish", 12, Fault::Fail);
    instance.submit("a", &max_attempts(5)).await;
    let history = instance.end("a").await;
    assert_eq!((history.attempts.len(), &history.attempts[0].outcome), (1, &accepted()), "three seconds later");
    assert_eq!((instance.faults.left("finish"), instance.gateway.calls.lock().unwrap().len()), (0, 1));
}

#[actix::test]
async fn a_stop_after_a_loss_waits_for_what_is_under_way() {
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
    assert_eq!(instance.history("a").await.intent.state.status(), Status::Accepted, "its lease had lasted that long");
}

#[actix::test]
async fn an_unreadable_open_attempt_stops_no_other() {
    let lab = Lab::new();
    let store = lab.store();
    let bad = new_intent("bad", &at_gateway("bad", one_shot()), b"{}");
    submit_to(&*store, bad).await;
    let damage = "UPDATE submission_contracts SET snapshot = 'not json';
        UPDATE submission_intents SET attempt_count = 1, next_attempt_at = NULL, open_lease_epoch = 0, open_started_at = 1;";
    Connection::open(lab.path()).unwrap().execute_batch(damage).unwrap();
    let instance = lab.start(settings(), always(accepted()));
    instance.submit("good", &one_shot()).await;
    assert_eq!(instance.end("good").await.intent.state.status(), Status::Accepted);
    assert_eq!(instance.lease_after(0).await.term.epoch, 1, "the first term");
}

#[actix::test]
async fn a_lease_given_back_is_taken_within_a_second_also_by_one_that_failed_before() {
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
    let freed = monotonic();
    store.release_lease(other.clone()).await.unwrap();
    instance.lease_after(other.epoch).await;
    let gap = monotonic().duration_since(freed);
    assert!(gap <= SECOND + Duration::from_millis(60), "{gap:?}");
}

#[actix::test]
async fn trust_counts_from_when_a_renewal_was_asked_for() {
    let lab = Lab::new();
    let began = monotonic();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    // Asked for at 5 s, answered at 11 s: trusted until 17 s, although the lease lasts until 25 s
    // because the one asked for at 10 s had its effect too.
    instance.faults.add("renew_lease", 2, Fault::SlowAnswer(60 * SECOND));
    instance.faults.add("renew_lease", 1, Fault::SlowAnswer(6 * SECOND));
    pass(18 * SECOND).await;
    instance.submit("a", &one_shot()).await;
    instance.end("a").await;
    let made = instance.gateway.moments.lock().unwrap()[0].duration_since(began);
    assert!(made >= 25 * SECOND, "made {made:?} after the start, without trust");
}

/// Delays one of the first two answers that trust is based on.
async fn trust_ends_in_time_though_slow(call: &'static str) {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.faults.add("renew_lease", 5, Fault::SlowAnswer(60 * SECOND));
    // Asked for at 0 s, answered at 10 s: trusted until 12 s.
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
async fn a_leader_whose_scheduler_is_stuck_does_not_keep_the_lease() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let stuck = instance.lease_after(0).await.term;
    instance.faults.add("refresh_schedule", 1, Fault::SlowAnswer(3600 * SECOND));
    let began = monotonic();
    let next = instance.lease_after(stuck.epoch).await;
    // Silent for 12.25 s, seen at the next renewal; the last lease of 15 s then runs out.
    let gap = monotonic().duration_since(began);
    assert!(gap > 12 * SECOND && gap < 40 * SECOND, "{gap:?}");
    instance.submit("a", &one_shot()).await;
    assert_eq!(instance.end("a").await.intent.state.status(), Status::Accepted);
    assert_eq!(instance.lease_after(0).await.term, next.term);
}

#[actix::test]
async fn a_term_that_is_stuck_while_it_is_prepared_does_not_keep_the_lease() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.faults.add("schedule_snapshot", 1, Fault::SlowAnswer(3600 * SECOND));
    let stuck = instance.lease_after(0).await.term;
    instance.lease_after(stuck.epoch).await;
    instance.submit("a", &one_shot()).await;
    assert_eq!(instance.end("a").await.intent.state.status(), Status::Accepted);
}

#[actix::test]
async fn leadership_is_dropped_when_no_renewal_is_answered() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let began = monotonic();
    instance.faults.add("renew_lease", 10, Fault::SlowAnswer(3600 * SECOND));
    while instance.engine.board.lease().is_some() {
        pass(Duration::from_millis(50)).await;
    }
    let gap = monotonic().duration_since(began);
    assert!(gap <= 12 * SECOND + Duration::from_millis(100), "trusted for 12 s, shown for {gap:?}");
}

/// In real time, because a thread that is stuck cannot share one with a stopped clock.
#[actix::test]
async fn a_leader_whose_executor_is_stuck_loses_the_lease_and_does_not_seek_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stuck.db");
    SqliteStore::migrate(&path).unwrap();
    let open = || Arc::new(SqliteStore::open(&path, WallClock::system()).unwrap());
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let timing = LeaseTiming::new(Duration::from_millis(500), Duration::from_millis(100)).unwrap();
    let settings = |holder: &str| LeaderSettings {
        holder_id: holder.into(),
        timing,
        acquire_interval: Duration::from_millis(50),
        ..settings()
    };
    let start = |settings, script: Script| {
        let gateway = Scripted::new(script);
        let factory: GatewayFactory = Arc::new(move || -> Rc<dyn Gateway> { Rc::new(gateway.clone()) });
        let external = external(factory, &Couriers::well(), inbox_registry());
        Engine::start(open(), settings, external, Arc::new(Metrics::new().unwrap()), Threads::own())
    };
    let (call, called) = oneshot::channel();
    let call = Mutex::new(Some(call));
    let stuck = start(
        settings("stuck"),
        script(move |_, _| {
            call.lock().unwrap().take().map(|call| call.send(()));
            let _until_unblocked = blocked.lock().unwrap().recv();
            (Duration::ZERO, Some(accepted()))
        }),
    );
    let led = |engine: &Engine| engine.board.lease().is_some();
    let until = async |what: &dyn Fn() -> bool| {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        let looking = async {
            while !what() {
                pace.tick().await;
            }
        };
        tokio::time::timeout(60 * SECOND, looking).await.expect("it never got there");
    };
    until(&|| led(&stuck)).await;
    let submitted = stuck.store.submit(new_intent("a", &one_shot(), b"{}")).await.unwrap();
    assert!(matches!(submitted, Submitted::Created(_)));
    called.await.unwrap();
    until(&|| !led(&stuck)).await;

    let other = start(settings("other"), always(accepted()));
    until(&|| led(&other)).await;
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    let history = loop {
        pace.tick().await;
        let history = other.store.history(intent_id("a")).await.unwrap().unwrap();
        if history.intent.state.is_terminal() {
            break history;
        }
    };
    assert_eq!(history.attempts[0].outcome, Outcome::interrupted(), "closed by the other");
    assert!(!led(&stuck), "it does not come back while it is stuck");
    other.stop_leading().await;
    pass(8 * timing.renew_interval()).await;
    assert!(!led(&stuck), "not even when nobody leads");
    unblock.send(()).unwrap();
    until(&|| led(&stuck)).await;
}

#[actix::test]
async fn an_intent_given_to_a_follower_starts_within_the_refresh_interval() {
    let lab = Lab::new();
    let leader = lab.start(settings(), always(accepted()));
    leader.lease_after(0).await;
    let follower = lab.start(LeaderSettings { holder_id: "other".into(), ..settings() }, always(accepted()));
    for n in 0..5 {
        pass(Duration::from_millis(730)).await;
        let id = format!("{n}");
        follower.submit(&id, &one_shot()).await;
        let given = monotonic();
        leader.calls(n + 1).await;
        let gap = leader.gateway.moments.lock().unwrap()[n].duration_since(given);
        assert!(gap <= settings().refresh_interval, "{gap:?}");
        assert_eq!(follower.engine.metrics.schedule_held.get(), 0);
    }
    assert!(follower.engine.board.lease().is_none());
}

#[actix::test]
async fn a_drain_in_doubt_goes_on_renewing_until_calls_under_way_are_recorded() {
    let lab = Lab::new();
    let instance = lab.start(
        settings(),
        script(|id, _| (if id == "long" { 28 * SECOND } else { Duration::from_millis(1) }, Some(accepted()))),
    );
    let first = instance.lease_after(0).await;
    instance.submit("long", &at_gateway("slow", one_shot())).await;
    instance.calls(1).await;
    // One look fails: from here on the term is in doubt. Attempts are still being handed out.
    let backlog = (0..3_000).map(|number| new_intent(&number.to_string(), &one_shot(), b"")).collect();
    lab.store().commit(WriteBatch { submits: backlog, ..WriteBatch::default() }).await.unwrap();
    instance.calls(20).await;
    instance.faults.add("refresh_schedule", 1, Fault::Fail);
    assert_eq!(instance.end("long").await.intent.state.status(), Status::Accepted, "the gateway accepted it");
    for number in 0..3_000 {
        let history = instance.end(&number.to_string()).await;
        assert_eq!(history.intent.state.status(), Status::Accepted, "{history:?}");
    }
    assert!(instance.lease_after(first.term.epoch).await.term.epoch > first.term.epoch, "and the term has ended");
    instance.assert_no_number_sent_twice();
}
