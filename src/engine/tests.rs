//! The real actors over a real SQLite file in virtual time: hours of retries in milliseconds.
//!
//! Only the gateway is scripted, because a socket would let the stopped clock run ahead.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;

use super::faulty::{Fault, Faults, Faulty};
use super::*;
use crate::clock::{WallClock, monotonic};
use crate::core::contract::fixtures::{deadline, max_attempts, one_shot};
use crate::core::contract::{Contract, GatewayUrl};
use crate::core::intent::{ExhaustedReason, IntentId, State, Status};
use crate::core::lease::{Lease, LeaseTiming};
use crate::core::outcome::Outcome;
use crate::core::schedule::{Limits, MAX_LANE};
use crate::core::time::Timestamp;
use crate::gateway::Gateway;
use crate::leader::CrashChild;
use crate::store::conformance::{accepted, acquire_from, intent_id, new_intent, rejected, submit_to};
use crate::store::sqlite::SqliteStore;
use crate::store::{History, OpenAttempt, Submitted};
use crate::supervise::Crash;

const SECOND: Duration = Duration::from_secs(1);
const BASE: i64 = 1_790_000_000_000_000;

/// How a scripted gateway answers: after how long, and what. `None` is a panic of the client.
type Script = Arc<dyn Fn(&str, u32) -> (Duration, Option<Outcome>) + Send + Sync>;

#[derive(Clone)]
struct Scripted {
    script: Script,
    /// Every call: intent and attempt number.
    calls: Arc<Mutex<Vec<(String, u32)>>>,
    /// When each of them was made.
    moments: Arc<Mutex<Vec<tokio::time::Instant>>>,
}

impl Gateway for Scripted {
    fn attempt(&self, attempt: &OpenAttempt, _: Bytes) -> Pin<Box<dyn Future<Output = Outcome>>> {
        let call = (attempt.intent_id.to_string(), attempt.attempt_number);
        let (delay, outcome) = (self.script)(&call.0, call.1);
        self.calls.lock().unwrap().push(call);
        self.moments.lock().unwrap().push(monotonic());
        Box::pin(async move {
            if !delay.is_zero() {
                pass(delay).await;
            }
            outcome.expect("the script says panic")
        })
    }
}

fn script(script: impl Fn(&str, u32) -> (Duration, Option<Outcome>) + Send + Sync + 'static) -> Script {
    Arc::new(script)
}

fn always(outcome: Outcome) -> Script {
    script(move |_, _| (Duration::ZERO, Some(outcome.clone())))
}

fn error() -> Outcome {
    Outcome::error("connection refused")
}

fn settings() -> LeaderSettings {
    LeaderSettings {
        lease_name: "lease".into(),
        holder_id: "me".into(),
        timing: LeaseTiming::new(15 * SECOND, 5 * SECOND).unwrap(),
        acquire_interval: SECOND,
        refresh_interval: Duration::from_millis(250),
        limits: Limits { in_flight: 16, in_flight_per_gateway: 8, capacity: 64 * 1024 },
        retention: None,
    }
}

/// A database file and the virtual clock it lives by.
struct Lab {
    directory: tempfile::TempDir,
    clock: WallClock,
}

impl Lab {
    fn new() -> Self {
        tokio::time::pause();
        let origin = monotonic();
        let clock = WallClock::from_fn(move || Timestamp::from_micros(BASE) + monotonic().duration_since(origin));
        let lab = Self { directory: tempfile::tempdir().unwrap(), clock };
        SqliteStore::migrate(&lab.path()).unwrap();
        lab
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("lab.db")
    }

    /// The database as another instance has it.
    fn store(&self) -> SqliteStore {
        SqliteStore::open(&self.path(), self.clock.clone()).unwrap()
    }

    fn start(&self, settings: LeaderSettings, script: Script) -> Instance {
        let gateway = Scripted { script, calls: Arc::default(), moments: Arc::default() };
        let made = gateway.clone();
        let factory: GatewayFactory = Arc::new(move || -> Rc<dyn Gateway> { Rc::new(made.clone()) });
        let metrics = Arc::new(Metrics::new().unwrap());
        let faults = Faults::default();
        let store = Faulty { inner: Arc::new(self.store()), faults: faults.clone() };
        let engine = Engine::start(Arc::new(store), settings, factory, metrics, Threads::shared());
        Instance { engine, gateway, faults }
    }
}

struct Instance {
    engine: Engine,
    gateway: Scripted,
    /// What is to go wrong in its store.
    faults: Faults,
}

impl Instance {
    async fn submit(&self, id: &str, contract: &Contract) {
        let submitted = self.engine.store.submit(new_intent(id, contract, b"{}")).await.unwrap();
        assert!(matches!(submitted, Submitted::Created(_)));
    }

    async fn history(&self, id: &str) -> History {
        self.engine.store.history(intent_id(id)).await.unwrap().unwrap()
    }

    /// Waits until `done` says so, looking whenever the intent changes.
    async fn until(&self, id: &str, done: impl Fn(&History) -> bool) -> History {
        let watch = self.engine.notices.watch(&intent_id(id)).unwrap();
        let waiting = async {
            loop {
                let history = self.history(id).await;
                if done(&history) {
                    return history;
                }
                watch.changed().await;
            }
        };
        tokio::time::timeout(10 * 24 * 3600 * SECOND, waiting).await.unwrap_or_else(|_| panic!("{id} never got there"))
    }

    async fn end(&self, id: &str) -> History {
        self.until(id, |history| history.intent.state.is_terminal()).await
    }

    /// Waits until this instance leads, in a later term than `epoch`.
    async fn lease_after(&self, epoch: i64) -> Lease {
        for _ in 0..10_000 {
            match self.engine.board.lease() {
                Some(lease) if lease.term.epoch > epoch => return lease,
                _ => pass(Duration::from_millis(50)).await,
            }
        }
        panic!("never led after epoch {epoch}");
    }

    /// Waits until the gateway was called so many times.
    async fn calls(&self, count: usize) -> Vec<(String, u32)> {
        for _ in 0..10_000 {
            let calls = self.gateway.calls.lock().unwrap().clone();
            if calls.len() >= count {
                return calls;
            }
            pass(Duration::from_millis(1)).await;
        }
        panic!("fewer than {count} calls");
    }

    fn assert_no_number_sent_twice(&self) {
        let calls = self.gateway.calls.lock().unwrap();
        let unique: HashSet<_> = calls.iter().collect();
        assert_eq!(unique.len(), calls.len(), "{calls:?}");
    }
}

/// Lets virtual time pass.
async fn pass(span: Duration) {
    tokio::time::timeout(span, std::future::pending::<()>()).await.unwrap_err();
}

fn at_gateway(host: &str, contract: Contract) -> Contract {
    Contract { gateway_url: GatewayUrl::parse(&format!("http://{host}.test")).unwrap(), ..contract }
}

fn exhausted(history: &History) -> ExhaustedReason {
    history.intent.state.exhausted_reason().unwrap_or_else(|| panic!("{:?}", history.intent))
}

#[actix::test]
async fn the_first_attempt_waits_for_no_poll_and_no_timer() {
    let lab = Lab::new();
    let hour = 3600 * SECOND;
    let instance = lab.start(LeaderSettings { refresh_interval: hour, ..settings() }, always(accepted()));
    instance.lease_after(0).await;
    pass(SECOND).await;
    let began = monotonic();
    instance.submit("a", &one_shot()).await;
    let history = instance.end("a").await;
    assert_eq!(history.intent.state.status(), Status::Accepted);
    assert_eq!(monotonic().duration_since(began), Duration::ZERO, "virtual time did not have to move");
}

#[actix::test]
async fn a_retry_comes_exactly_five_seconds_after_the_attempt_finished() {
    let lab = Lab::new();
    let instance = lab.start(
        settings(),
        script(|_, attempt| (700 * SECOND / 1000, Some(if attempt < 4 { error() } else { accepted() }))),
    );
    instance.submit("a", &max_attempts(9)).await;
    let history = instance.end("a").await;
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
    let history = instance.end("a").await;
    assert_eq!(exhausted(&history), ExhaustedReason::MaxAttempts);
    assert!(history.attempts.iter().map(|attempt| attempt.attempt_number).eq(1..=1500));
    assert!(history.attempts[1499].started_at.since(history.intent.created_at) >= 2 * 3600 * SECOND);
    instance.assert_no_number_sent_twice();
}

#[actix::test]
async fn one_shot_is_sent_once() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(error()));
    instance.submit("a", &one_shot()).await;
    assert_eq!(exhausted(&instance.end("a").await), ExhaustedReason::OneShot);
    pass(60 * SECOND).await;
    assert_eq!(instance.gateway.calls.lock().unwrap().len(), 1);
}

#[actix::test]
async fn a_deadline_allows_no_retry_that_would_be_due_at_it() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(error()));
    instance.submit("a", &deadline(12)).await;
    let history = instance.end("a").await;
    assert_eq!((exhausted(&history), history.attempts.len()), (ExhaustedReason::DeadlineExceeded, 3));
    assert_eq!(history.intent.state.completed_at(), Some(history.attempts[2].finished_at), "ended at once");
}

#[actix::test]
async fn an_acceptance_after_the_deadline_is_too_late() {
    let lab = Lab::new();
    let instance = lab.start(settings(), script(|_, _| (11 * SECOND, Some(accepted()))));
    instance.submit("late", &deadline(11)).await;
    instance.submit("in time", &deadline(12)).await;
    let late = instance.end("late").await;
    assert_eq!(exhausted(&late), ExhaustedReason::DeadlineExceeded);
    assert_eq!(late.attempts[0].outcome, accepted(), "the fact is kept as it was");
    assert_eq!(instance.end("in time").await.intent.state.status(), Status::Accepted);
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
    let history = instance.end("waits").await;
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
    instance.end("19").await;
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
        let began = monotonic();
        instance.submit(&format!("quick {n}"), &at_gateway("quick", one_shot())).await;
        instance.end(&format!("quick {n}")).await;
        assert_eq!(monotonic().duration_since(began), Duration::ZERO);
    }
    let dead = instance.gateway.calls.lock().unwrap().iter().filter(|(id, _)| id.starts_with("dead")).count();
    assert_eq!(dead, 8, "as many as one gateway may have");
}

#[actix::test]
async fn a_hundred_thousand_waiting_retries_cost_bounded_memory_and_delay_nothing() {
    let lab = Lab::new();
    submit_to(&lab.store(), new_intent("model", &at_gateway("dead", max_attempts(1_000_000)), b"{}")).await;
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
    let began = monotonic();
    instance.submit("new", &one_shot()).await;
    instance.end("new").await;
    assert_eq!(monotonic().duration_since(began), Duration::ZERO);
    let held = instance.engine.metrics.schedule_held.get();
    assert!((1..=i64::try_from(MAX_LANE).unwrap()).contains(&held), "{held}");
    assert_eq!(instance.engine.metrics.queue_depth.get(), 100_001 - 8);
}

#[actix::test]
async fn a_backlog_larger_than_memory_is_worked_off_completely() {
    let lab = Lab::new();
    let store = lab.store();
    let mut settings = settings();
    settings.limits.capacity = 10;
    for batch in 0..30 {
        let submits = (0..20)
            .map(|n| new_intent(&format!("{batch}-{n}"), &at_gateway(&format!("g{}", n % 4), one_shot()), b""))
            .collect();
        store.commit(crate::store::WriteBatch { submits, fenced: None }).await.unwrap();
    }
    let instance = lab.start(settings, always(accepted()));
    for batch in 0..30 {
        for n in 0..20 {
            assert_eq!(instance.end(&format!("{batch}-{n}")).await.intent.state.status(), Status::Accepted);
        }
    }
    instance.assert_no_number_sent_twice();
    assert_eq!(instance.gateway.calls.lock().unwrap().len(), 600);
}

#[actix::test]
async fn an_intent_given_to_another_instance_starts_within_the_refresh_interval() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    pass(SECOND).await;
    submit_to(&lab.store(), new_intent("a", &one_shot(), b"{}")).await;
    let history = instance.end("a").await;
    let waited = history.attempts[0].started_at.since(history.intent.created_at);
    assert!(waited <= settings().refresh_interval + Duration::from_millis(2), "{waited:?}");
}

#[actix::test]
async fn a_follower_executes_nothing_and_builds_no_schedule() {
    let lab = Lab::new();
    let lease = acquire_from(&lab.store(), "lease", "somebody else", 3600 * SECOND).await.unwrap();
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
    let stolen = acquire_from(&thief, "lease", "thief", 3600 * SECOND).await.unwrap();
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
    assert!(acquire_from(&lab.store(), "lease", "next", SECOND).await.is_some(), "the lease is free");
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
        child => instance.engine.leader().do_send(CrashChild(child)),
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
async fn an_unreadable_intent_stops_no_other() {
    let lab = Lab::new();
    submit_to(&lab.store(), new_intent("bad", &at_gateway("bad", one_shot()), b"{}")).await;
    let damage = "UPDATE submission_contracts SET snapshot = 'not json' WHERE contract_id = 1";
    Connection::open(lab.path()).unwrap().execute_batch(damage).unwrap();
    let instance = lab.start(settings(), always(accepted()));
    let epoch = instance.lease_after(0).await.term.epoch;
    instance.submit("good", &one_shot()).await;
    assert_eq!(instance.end("good").await.intent.state.status(), Status::Accepted);
    pass(60 * SECOND).await;
    assert_eq!(instance.lease_after(0).await.term.epoch, epoch, "still the first term");
    assert_eq!(instance.history("bad").await.intent.state, State::Pending);
}

#[actix::test]
async fn retention_deletes_what_ended_long_ago() {
    let lab = Lab::new();
    let instance = lab.start(LeaderSettings { retention: Some(3600 * SECOND), ..settings() }, always(accepted()));
    for n in 0..500 {
        instance.submit(&format!("{n}"), &one_shot()).await;
    }
    instance.end("499").await;
    pass(3500 * SECOND).await;
    assert!(instance.engine.store.find(intent_id("0")).await.unwrap().is_some());
    pass(300 * SECOND).await;
    for n in [0, 250, 499] {
        let id: IntentId = intent_id(&format!("{n}"));
        assert!(instance.engine.store.find(id).await.unwrap().is_none(), "{n}");
    }
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
    instance.faults.add("renew", 2, Fault::SlowAnswer(9 * SECOND));
    pass(Duration::from_millis(7500)).await;
    instance.submit("a", &max_attempts(5)).await;
    let history = instance.end("a").await;
    assert_eq!(history.attempts.len(), 2, "the retry that came due without trust was not forgotten");
    let retried = instance.gateway.moments.lock().unwrap()[1].duration_since(began);
    assert!(retried >= 15 * SECOND, "an attempt was made {retried:?} after the start, without trust");
    assert!(instance.lease_after(0).await.term.epoch > first.term.epoch);
    instance.assert_no_number_sent_twice();
}

#[actix::test]
async fn a_begin_that_is_answered_after_trust_ended_is_not_sent() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    instance.faults.add("begin", 1, Fault::SlowAnswer(13 * SECOND));
    instance.faults.add("renew", 3, Fault::SlowAnswer(20 * SECOND));
    instance.submit("a", &max_attempts(3)).await;
    let history = instance.end("a").await;
    assert_eq!(
        history.attempts[0].outcome,
        Outcome::interrupted(),
        "written down, never sent, closed by the next term"
    );
    let calls = instance.gateway.calls.lock().unwrap().clone();
    assert_eq!(calls, [("a".to_owned(), 2)]);
}

#[actix::test]
async fn a_failed_look_or_renewal_ends_the_term() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    for call in ["refresh", "renew"] {
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
    submit_to(&lab.store(), new_intent("a", &one_shot(), b"{}")).await;
    let instance = lab.start(settings(), always(accepted()));
    instance.faults.add("build", 1, Fault::SlowAnswer(20 * SECOND));
    instance.faults.add("renew", 4, Fault::SlowAnswer(30 * SECOND));
    pass(20 * SECOND).await;
    assert!(instance.gateway.calls.lock().unwrap().is_empty(), "its lease of 15 s was over");
    assert_eq!(instance.end("a").await.attempts.len(), 1);
}

#[actix::test]
async fn a_stop_while_a_term_is_prepared_is_answered_and_frees_the_lease() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.faults.add("build", 1, Fault::SlowAnswer(2 * SECOND));
    instance.lease_after(0).await;
    tokio::time::timeout(10 * SECOND, instance.engine.stop_leading()).await.expect("the stop is answered");
    pass(5 * SECOND).await;
    assert!(instance.engine.board.lease().is_none());
    assert!(acquire_from(&lab.store(), "lease", "next", SECOND).await.is_some(), "the lease is free");
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
    instance.faults.add("renew", 1, Fault::Fail);
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
    submit_to(&store, bad).await;
    let damage = "UPDATE submission_contracts SET snapshot = 'not json';
        UPDATE submission_intents SET attempt_count = 1, next_attempt_at = NULL, open_lease_epoch = 0, open_started_at = 1;";
    Connection::open(lab.path()).unwrap().execute_batch(damage).unwrap();
    let instance = lab.start(settings(), always(accepted()));
    instance.submit("good", &one_shot()).await;
    assert_eq!(instance.end("good").await.intent.state.status(), Status::Accepted);
    assert_eq!(instance.lease_after(0).await.term.epoch, 1, "the first term");
}

#[actix::test]
async fn retries_do_not_wait_for_the_poll() {
    let lab = Lab::new();
    let slow = LeaderSettings { refresh_interval: 600 * SECOND, ..settings() };
    let instance = lab.start(slow, script(|_, n| (Duration::ZERO, Some(if n == 1 { error() } else { accepted() }))));
    instance.submit("a", &max_attempts(5)).await;
    let attempts = instance.end("a").await.attempts;
    assert!(attempts[1].started_at.since(attempts[0].finished_at) < 6 * SECOND);
}

#[actix::test]
async fn a_lease_given_back_is_taken_within_a_second_also_by_one_that_failed_before() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    for _ in 0..4 {
        let epoch = instance.lease_after(0).await.term.epoch;
        instance.faults.add("refresh", 1, Fault::Fail);
        instance.lease_after(epoch).await;
    }
    let mine = instance.lease_after(0).await.term;
    let store = lab.store();
    store.release_lease(mine).await.unwrap();
    let other = acquire_from(&store, "lease", "other", 3600 * SECOND).await.unwrap().term;
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
    instance.faults.add("renew", 2, Fault::SlowAnswer(60 * SECOND));
    instance.faults.add("renew", 1, Fault::SlowAnswer(6 * SECOND));
    pass(18 * SECOND).await;
    instance.submit("a", &one_shot()).await;
    instance.end("a").await;
    let made = instance.gateway.moments.lock().unwrap()[0].duration_since(began);
    assert!(made >= 25 * SECOND, "made {made:?} after the start, without trust");
}
