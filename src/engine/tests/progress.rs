//! Leaders whose term makes no progress: they must not keep the lease from other instances.

use super::*;

#[actix::test]
async fn a_leader_whose_scheduler_is_stuck_does_not_keep_the_lease() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let stuck = instance.lease_after(0).await.term;
    instance.faults.add("refresh_schedule", 1, Fault::SlowAnswer(3600 * SECOND));
    let start = monotonic();
    let next = instance.lease_after(stuck.epoch).await;
    // The scheduler is silent for 12.25 s, which the next renewal notices. The last lease of 15 s then expires.
    let gap = monotonic().duration_since(start);
    assert!(gap > 12 * SECOND && gap < 40 * SECOND, "{gap:?}");
    instance.submit("a", &one_shot()).await;
    assert_eq!(instance.until_terminal("a").await.intent.state.status(), Status::Accepted);
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
    assert_eq!(instance.until_terminal("a").await.intent.state.status(), Status::Accepted);
}

#[actix::test]
async fn a_term_ends_when_no_renewal_is_answered() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let start = monotonic();
    instance.faults.add("renew_lease", 10, Fault::SlowAnswer(3600 * SECOND));
    while instance.engine.board.lease().is_some() {
        pass(Duration::from_millis(50)).await;
    }
    let gap = monotonic().duration_since(start);
    assert!(gap <= 12 * SECOND + Duration::from_millis(100), "trusted for 12 s, shown for {gap:?}");
}

/// In real time, because a paused clock needs all actors on one thread, and that thread would be stuck.
#[actix::test]
async fn a_leader_whose_executor_is_stuck_loses_the_lease_and_does_not_request_it() {
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
    let start_instance = |settings, script: Script| {
        let gateway = ScriptedGateway::new(script);
        let factory: GatewayFactory = Arc::new(move || -> Rc<dyn Gateway> { Rc::new(gateway.clone()) });
        let deps = engine_deps(factory, &ScriptedReceivers::healthy(), inbox_registry());
        Engine::start(open(), settings, deps, Arc::new(Metrics::new().unwrap()), Threads::own())
    };
    let (call, called) = oneshot::channel();
    let call = Mutex::new(Some(call));
    let stuck = start_instance(
        settings("stuck"),
        script(move |_, _| {
            call.lock().unwrap().take().map(|call| call.send(()));
            let _until_unblocked = blocked.lock().unwrap().recv();
            (Duration::ZERO, Some(accepted()))
        }),
    );
    let leads = |engine: &Engine| engine.board.lease().is_some();
    let until = async |condition: &dyn Fn() -> bool| {
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        let waiting = async {
            while !condition() {
                pace.tick().await;
            }
        };
        tokio::time::timeout(60 * SECOND, waiting).await.expect("the condition was not met");
    };
    until(&|| leads(&stuck)).await;
    let submitted = stuck.store.submit(new_intent("a", &one_shot(), b"{}")).await.unwrap();
    assert!(matches!(submitted, Submitted::Created(_)));
    called.await.unwrap();
    until(&|| !leads(&stuck)).await;

    let other = start_instance(settings("other"), always(accepted()));
    until(&|| leads(&other)).await;
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    let history = loop {
        pace.tick().await;
        let history = other.store.history(intent_id("a")).await.unwrap().unwrap();
        if history.intent.state.is_terminal() {
            break history;
        }
    };
    assert_eq!(history.attempts[0].outcome, Outcome::interrupted(), "closed by the other instance");
    assert!(!leads(&stuck), "it does not lead while it is stuck");
    other.stop_leading().await;
    pass(8 * timing.renew_interval()).await;
    assert!(!leads(&stuck), "not even when nobody leads");
    unblock.send(()).unwrap();
    until(&|| leads(&stuck)).await;
}
