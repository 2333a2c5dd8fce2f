//! Working off redrives: at their rate, once whatever happens, and behind new intents.

use std::collections::BTreeSet;

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::domain::intent::TargetName;
use crate::domain::redrive::{
    Conditions, RedriveChange, RedriveFilter, RedriveId, RedriveRate, RedriveState, redriven_id,
};
use crate::store::{ChangedRedrive, NewRedrive, Planning, Redrive};

/// A registry with these targets, each at a gateway of its own.
fn registry(targets: &[&str]) -> CurrentRegistry {
    let entry = |name: &&str| {
        serde_json::json!({ "submissionTarget": name, "gatewayType": "sms", "gatewayUrl": format!("http://{name}.test"),
            "policy": "one_shot", "terminalOutcomes": ["invalid_request"] })
    };
    let text = serde_json::json!({ "targets": targets.iter().map(entry).collect::<Vec<_>>() }).to_string();
    CurrentRegistry::new(Registry::parse(&text, &Variables::from_fn(|_| None)).unwrap())
}

fn contract(registry: &CurrentRegistry, target: &str) -> Contract {
    let snapshot = registry.get().contract(&TargetName::parse(target).unwrap()).unwrap();
    Contract::clone(&snapshot.contract)
}

fn id() -> RedriveId {
    RedriveId::from_random([1; 16])
}

/// Whether the intent was created by a redrive.
fn is_redriven(id: &str) -> bool {
    id.contains("~redrive-")
}

/// Accepts redriven intents after this time, and answers others with an error.
fn accepts_redriven(after: Duration) -> Script {
    script(move |id, _| if is_redriven(id) { (after, Some(accepted())) } else { (Duration::ZERO, Some(error())) })
}

impl Lab {
    /// Stores this many intents of a target that fail, and waits until they have.
    async fn fail(&self, instance: &Instance, target: &Contract, count: usize) {
        let id = |number| format!("{}-{number}", target.target);
        let submits = (0..count).map(|number| new_intent(&id(number), target, b"{}")).collect();
        self.store().commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
        for number in 0..count {
            instance.until_terminal(&id(number)).await;
        }
    }

    /// Plans a redrive of everything that has failed, and starts it on another instance.
    async fn redrive(&self, registry: &CurrentRegistry, rate: u32) -> Redrive {
        let store = self.store();
        let registered: BTreeSet<_> =
            registry.get().contracts().map(|snapshot| snapshot.contract.target.clone()).collect();
        let new = NewRedrive {
            id: id(),
            filter: RedriveFilter::Matching(Conditions::default()),
            filter_json: "{}".to_owned(),
            include_unknown: true,
            note: None,
            registered: Arc::new(registered),
            by: somebody(),
        };
        assert!(matches!(store.plan_redrive(new).await.unwrap(), Planning::Planned(_)));
        self.change(RedriveChange::Start { rate: RedriveRate::new(rate).unwrap() }).await
    }

    async fn change(&self, change: RedriveChange) -> Redrive {
        match self.store().change_redrive(id(), change, somebody()).await.unwrap() {
            ChangedRedrive::Changed(redrive) => *redrive,
            other => panic!("not changed: {other:?}"),
        }
    }

    async fn progress(&self) -> Redrive {
        self.store().find_redrive(id()).await.unwrap().unwrap()
    }

    /// Lets time pass until this holds of the redrive.
    async fn until_redrive(&self, done: impl Fn(&Redrive) -> bool) -> Redrive {
        for _ in 0..10_000 {
            let redrive = self.progress().await;
            if done(&redrive) {
                return redrive;
            }
            pass(Duration::from_millis(100)).await;
        }
        panic!("the redrive did not get to the expected state: {:?}", self.progress().await);
    }
}

impl Instance {
    /// How often the gateway was called for redriven intents.
    fn redriven_calls(&self) -> usize {
        self.gateway.calls.lock().unwrap().iter().filter(|(id, _)| is_redriven(id)).count()
    }

    fn metric(&self, name: &str) -> String {
        let text = String::from_utf8(self.engine.metrics.text().unwrap()).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
        line.rsplit(' ').next().unwrap().to_owned()
    }
}

#[actix::test]
async fn a_redrive_keeps_its_rate_and_sends_every_intent_once() {
    let lab = Lab::new();
    let registry = registry(&["a"]);
    let instance = lab.start_with_registry(settings(), accepts_redriven(Duration::ZERO), registry.clone());
    instance.lease_after(0).await;
    lab.fail(&instance, &contract(&registry, "a"), 100).await;
    lab.redrive(&registry, 10).await;
    pass(3 * SECOND).await;
    let created = lab.progress().await.created;
    assert!((24..=31).contains(&created), "{created} in three seconds at 10 a second");
    let redrive = lab.until_redrive(|redrive| redrive.state == RedriveState::Completed).await;
    let took = redrive.ended_at.unwrap().since(redrive.started_at.unwrap());
    assert!((9_000..11_500).contains(&took.as_millis()), "{took:?} for 100 at 10 a second");
    let redrive = lab.until_redrive(|redrive| redrive.outcomes.pending == 0).await;
    assert_eq!((redrive.created, redrive.skipped, redrive.outcomes.accepted), (100, 0, 100));
    assert_eq!(instance.redriven_calls(), 100);
    instance.assert_no_attempt_sent_twice();
    let first = redriven_id(&intent_id("a-0"), &id().to_string());
    let call = instance.gateway.calls.lock().unwrap().iter().find(|(id, _)| is_redriven(id)).cloned();
    assert_eq!(call, Some((first.to_string(), 1)), "in the order of completion");
    assert_eq!(instance.metric("submission_redrive_created_total"), "100");
    assert_eq!(instance.metric("submission_intents_created_total"), "100", "another instance stored the first ones");
    pass(SECOND).await;
    assert_eq!(instance.metric("submission_redrives_running"), "0");
}

#[actix::test]
async fn a_redrive_goes_on_after_a_failover_and_creates_nothing_twice() {
    let lab = Lab::new();
    let registry = registry(&["a"]);
    let one = lab.start_with_registry(settings(), accepts_redriven(Duration::ZERO), registry.clone());
    one.lease_after(0).await;
    lab.fail(&one, &contract(&registry, "a"), 100).await;
    lab.redrive(&registry, 10).await;
    lab.until_redrive(|redrive| redrive.created >= 20).await;
    // The leader cannot renew any more, so it loses its lease while it works.
    one.faults.add("renew_lease", 1000, Fault::Fail);
    one.faults.add("acquire_lease", 1000, Fault::Fail);
    let holder = LeaderSettings { holder_id: "other".into(), ..settings() };
    let other = lab.start_with_registry(holder, accepts_redriven(Duration::ZERO), registry);
    other.lease_after(0).await;
    let before = lab.progress().await.created;
    assert!(before < 100, "the redrive was not complete at the failover");
    let redrive = lab.until_redrive(|redrive| redrive.outcomes.accepted == 100).await;
    assert_eq!((redrive.state, redrive.created, redrive.skipped), (RedriveState::Completed, 100, 0));
    assert_eq!(one.redriven_calls() + other.redriven_calls(), 100);
    assert!(other.redriven_calls() > 0);
}

#[actix::test]
async fn steps_that_fail_or_whose_answer_is_lost_create_nothing_twice_and_lose_nothing() {
    let lab = Lab::new();
    let registry = registry(&["a"]);
    let instance = lab.start_with_registry(settings(), accepts_redriven(Duration::ZERO), registry.clone());
    instance.lease_after(0).await;
    lab.fail(&instance, &contract(&registry, "a"), 50).await;
    instance.faults.add("work_redrive", 3, Fault::FailAfter);
    instance.faults.add("work_redrive", 3, Fault::Fail);
    instance.faults.add("running_redrives", 2, Fault::Fail);
    lab.redrive(&registry, 100).await;
    let redrive = lab.until_redrive(|redrive| redrive.outcomes.accepted == 50).await;
    assert_eq!((redrive.state, redrive.created, redrive.skipped), (RedriveState::Completed, 50, 0));
    assert_eq!(instance.faults.left("work_redrive"), 0);
    assert_eq!(instance.redriven_calls(), 50);
    assert_eq!(instance.metric("submission_redrive_created_total"), "50", "with those whose answer was lost");
}

#[actix::test]
async fn a_redrive_actor_that_dies_is_replaced() {
    let lab = Lab::new();
    let registry = registry(&["a"]);
    let instance = lab.start_with_registry(settings(), accepts_redriven(Duration::ZERO), registry.clone());
    let lease = instance.lease_after(0).await;
    lab.fail(&instance, &contract(&registry, "a"), 30).await;
    lab.redrive(&registry, 10).await;
    lab.until_redrive(|redrive| redrive.created >= 5).await;
    instance.engine.leader.address().do_send(CrashChild(Child::Redrives));
    let redrive = lab.until_redrive(|redrive| redrive.outcomes.accepted == 30).await;
    assert_eq!(redrive.state, RedriveState::Completed);
    assert_eq!(instance.redriven_calls(), 30);
    assert_eq!(instance.engine.board.lease().unwrap().term, lease.term, "within the term");
}

#[actix::test]
async fn a_paused_redrive_creates_nothing_until_it_is_resumed() {
    let lab = Lab::new();
    let registry = registry(&["a"]);
    let instance = lab.start_with_registry(settings(), accepts_redriven(Duration::ZERO), registry.clone());
    instance.lease_after(0).await;
    lab.fail(&instance, &contract(&registry, "a"), 60).await;
    lab.redrive(&registry, 10).await;
    lab.until_redrive(|redrive| redrive.created >= 20).await;
    let paused = lab.change(RedriveChange::Pause).await;
    pass(60 * SECOND).await;
    assert_eq!(lab.progress().await.created, paused.created);
    lab.change(RedriveChange::Resume).await;
    pass(2 * SECOND).await;
    let resumed = lab.progress().await.created - paused.created;
    assert!((10..=22).contains(&resumed), "{resumed} in two seconds: the pause is not caught up");
    let cancelled = lab.change(RedriveChange::Cancel).await;
    pass(60 * SECOND).await;
    let ended = lab.progress().await;
    assert_eq!((ended.state, ended.created), (RedriveState::Cancelled, cancelled.created));
    assert_eq!(ended.outcomes.accepted, ended.created, "what was created is sent");
}

#[actix::test]
async fn new_intents_come_before_redriven_ones() {
    let lab = Lab::new();
    let registry = registry(&["a"]);
    let instance = lab.start_with_registry(settings(), accepts_redriven(SECOND), registry.clone());
    instance.lease_after(0).await;
    let target = contract(&registry, "a");
    lab.fail(&instance, &target, 100).await;
    lab.redrive(&registry, 1000).await;
    // The gateway has 8 slots and takes a second for each call. So many intents wait at most as one step creates before the
    // schedule has seen those of the last one.
    for _ in 0..5 {
        pass(SECOND).await;
        let progress = lab.progress().await;
        assert!(progress.outcomes.pending <= 24, "{:?}", progress.outcomes);
    }
    let start = monotonic();
    instance.submit("new", &target).await;
    instance.until_terminal("new").await;
    let waited = monotonic().duration_since(start);
    assert!(waited <= 3 * SECOND, "it would have waited for ten seconds behind all of them: {waited:?}");
    lab.until_redrive(|redrive| redrive.outcomes.accepted == 100).await;
}

#[actix::test]
async fn a_gateway_that_hangs_does_not_hold_up_the_redrive_of_others() {
    let lab = Lab::new();
    let registry = registry(&["hangs", "works"]);
    let hangs = script(|id, _| match is_redriven(id) {
        true if id.starts_with("hangs") => (30 * SECOND, Some(Outcome::unknown("no response"))),
        true => (Duration::ZERO, Some(accepted())),
        false => (Duration::ZERO, Some(error())),
    });
    let instance = lab.start_with_registry(settings(), hangs, registry.clone());
    instance.lease_after(0).await;
    lab.fail(&instance, &contract(&registry, "hangs"), 100).await;
    lab.fail(&instance, &contract(&registry, "works"), 50).await;
    lab.redrive(&registry, 10).await;
    lab.until_redrive(|redrive| redrive.outcomes.accepted == 50).await;
    let redrive = lab.progress().await;
    assert_eq!(redrive.state, RedriveState::Running, "those of the other gateway are left");
    assert!(redrive.created < 100, "only as many as start, and one step more: {}", redrive.created);
}

#[actix::test]
async fn intents_of_a_target_that_left_the_registry_are_skipped() {
    let lab = Lab::new();
    let both = registry(&["kept", "gone"]);
    let only_kept = registry(&["kept"]);
    let instance = lab.start_with_registry(settings(), accepts_redriven(Duration::ZERO), only_kept);
    instance.lease_after(0).await;
    for target in ["kept", "gone"] {
        lab.fail(&instance, &contract(&both, target), 3).await;
    }
    // The instance that planned it had the target.
    lab.redrive(&both, 100).await;
    let redrive = lab.until_redrive(|redrive| redrive.state == RedriveState::Completed).await;
    assert_eq!((redrive.created, redrive.skipped), (3, 3));
}

#[actix::test]
async fn a_plan_that_is_not_started_within_a_day_is_deleted() {
    let lab = Lab::new();
    let registry = registry(&["a"]);
    let instance = lab.start_with_registry(settings(), accepts_redriven(Duration::ZERO), registry.clone());
    instance.lease_after(0).await;
    lab.fail(&instance, &contract(&registry, "a"), 3).await;
    let new = NewRedrive {
        id: id(),
        filter: RedriveFilter::Matching(Conditions::default()),
        filter_json: "{}".to_owned(),
        include_unknown: true,
        note: None,
        registered: Arc::new([TargetName::parse("a").unwrap()].into()),
        by: somebody(),
    };
    lab.store().plan_redrive(new).await.unwrap();
    // Of a plan that was cut off.
    let connection = Connection::open(lab.path()).unwrap();
    let cut_off =
        "INSERT INTO submission_redrives (redrive_id, state, planned_at, filter, include_unknown, intent_count,
            created_count, skipped_count, plan_summary)
        SELECT 'x', 'planning', planned_at, '{}', 0, 0, 0, 0, '' FROM submission_redrives;
        INSERT INTO submission_redrive_items SELECT redrive_seq + 1, target_number, position, intent_seq
        FROM submission_redrive_items";
    connection.execute_batch(cut_off).unwrap();
    let rows = |table: &str| -> i64 {
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!((rows("submission_redrives"), rows("submission_redrive_items")), (2, 6));
    assert_eq!(
        lab.store().list_redrives(None, 10).await.unwrap().redrives.len(),
        1,
        "a plan that was cut off is not shown"
    );
    // As if this much time had passed.
    let make_older = |hours: i64| {
        let planned_at = "UPDATE submission_redrives SET planned_at = planned_at - ?1 * 3600 * 1000000";
        connection.execute(planned_at, [hours]).unwrap();
    };
    make_older(2);
    pass(120 * SECOND).await;
    assert_eq!((rows("submission_redrives"), rows("submission_redrive_items")), (1, 3));
    assert!(lab.store().find_redrive(id()).await.unwrap().is_some());
    make_older(22);
    assert!(lab.store().find_redrive(id()).await.unwrap().is_none());
    let start = RedriveChange::Start { rate: RedriveRate::DEFAULT };
    assert!(matches!(lab.store().change_redrive(id(), start, somebody()).await.unwrap(), ChangedRedrive::NotFound));
    pass(120 * SECOND).await;
    assert_eq!((rows("submission_redrives"), rows("submission_redrive_items")), (0, 0));
}
