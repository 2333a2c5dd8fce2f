//! Tests of the engine: the real actors over a real SQLite file in virtual time, so that hours of retries take milliseconds.
//!
//! Only gateways and webhook receivers are scripted. A paused clock advances whenever all tasks wait, which they also do while
//! they wait for a socket.

mod attempts;
mod events;
mod inbox;
mod options;
mod progress;
mod reads;
mod redrives;
mod stores;
mod targets;
mod terms;
mod webhooks;

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;

use super::*;
use crate::config::registry::{CurrentRegistry, Registry};
use crate::config::variables::Variables;
use crate::domain::contract::fixtures::{deadline, max_attempts, one_shot};
use crate::domain::contract::{Contract, GatewayUrl};
use crate::domain::intent::{ExhaustedReason, IntentId, State, Status};
use crate::domain::lease::{Lease, LeaseTiming};
use crate::domain::outcome::Outcome;
use crate::domain::schedule::{Limits, MAX_LANE};
use crate::domain::time::Timestamp;
use crate::domain::webhook::TryOutcome;
use crate::engine::leader::{CrashChild, GatewayFactory, WebhookSenderFactory};
use crate::engine::messages::Child;
use crate::engine::webhooks::WebhookRequest;
use crate::engine::webhooks::sender::{Delivery, WebhookSender};
use crate::gateway::{Attempting, Gateway, LocalResourceError};
use crate::platform::clock::{WallClock, monotonic};
use crate::platform::supervision::Crash;
use crate::store::conformance::{accepted, acquire_from, intent_id, new_intent, rejected, submit_to};
use crate::store::faulty::{Fault, Faults, FaultyStore};
use crate::store::sqlite::SqliteStore;
use crate::store::{History, OpenAttempt, StoreError, Submitted, WriteBatch};
use crate::telemetry::spans::Tracer;

const SECOND: Duration = Duration::from_secs(1);
const BASE: i64 = 1_790_000_000_000_000;

/// How a scripted gateway answers an attempt of an intent: after how long, and with which outcome. `None` panics.
type Script = Arc<dyn Fn(&str, u32) -> (Duration, Option<Outcome>) + Send + Sync>;

/// A gateway that answers by a script and records its calls.
#[derive(Clone)]
struct ScriptedGateway {
    script: Script,
    /// The intent and the attempt number of every call.
    calls: Arc<Mutex<Vec<(String, u32)>>>,
    /// The `Idempotency-Key` of every call, if it is not the id of the intent.
    keys: Arc<Mutex<Vec<Option<String>>>>,
    /// When each call was made.
    call_times: Arc<Mutex<Vec<tokio::time::Instant>>>,
    /// How long each call was allowed to take.
    timeouts: Arc<Mutex<Vec<Duration>>>,
    /// How many of the next calls fail because this machine lacks a resource.
    shortages: Arc<AtomicUsize>,
}

impl ScriptedGateway {
    fn new(script: Script) -> Self {
        let (calls, keys, call_times, timeouts, shortages) = Default::default();
        Self { script, calls, keys, call_times, timeouts, shortages }
    }
}

impl Gateway for ScriptedGateway {
    fn attempt(&self, attempt: &OpenAttempt, _: Bytes, timeout: Duration) -> Attempting {
        if self.shortages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Box::pin(async { Err(LocalResourceError("too many open files".into())) });
        }
        let call = (attempt.intent_id.to_string(), attempt.attempt_number);
        let (delay, outcome) = (self.script)(&call.0, call.1);
        self.calls.lock().unwrap().push(call);
        self.keys.lock().unwrap().push(attempt.idempotency_key.as_ref().map(ToString::to_string));
        self.call_times.lock().unwrap().push(monotonic());
        self.timeouts.lock().unwrap().push(timeout);
        Box::pin(async move {
            if !delay.is_zero() {
                pass(delay).await;
            }
            Ok(outcome.expect("the script panics here"))
        })
    }
}

/// How scripted receivers answer the n-th request about an intent: after how long, and with which outcome.
type Answers = Arc<dyn Fn(&str, usize) -> (Duration, TryOutcome) + Send + Sync>;

/// Webhook receivers that answer by a script and record what was sent to them.
#[derive(Clone)]
struct ScriptedReceivers {
    answers: Answers,
    /// How many of the next calls fail because this machine lacks a resource.
    shortages: Arc<AtomicUsize>,
    /// The intents of all requests, in order.
    sent: Arc<Mutex<Vec<String>>>,
}

impl ScriptedReceivers {
    fn answering(answers: impl Fn(&str, usize) -> (Duration, TryOutcome) + Send + Sync + 'static) -> Self {
        Self { answers: Arc::new(answers), shortages: Arc::default(), sent: Arc::default() }
    }

    /// Receivers that accept every event.
    fn healthy() -> Self {
        let delivered = TryOutcome::Answered { status: 200, retry_after: None, remark: None };
        Self::answering(move |_, _| (Duration::ZERO, delivered.clone()))
    }

    fn factory(&self) -> WebhookSenderFactory {
        let receivers = self.clone();
        Arc::new(move || -> Rc<dyn WebhookSender> { Rc::new(receivers.clone()) })
    }
}

impl WebhookSender for ScriptedReceivers {
    fn deliver(&self, request: &WebhookRequest) -> Delivery {
        let less = |left: usize| left.checked_sub(1);
        if self.shortages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return Box::pin(async { Err(LocalResourceError("too many open files".into())) });
        }
        let event: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let id = event["intent"]["intentId"].as_str().unwrap().to_owned();
        let mut sent = self.sent.lock().unwrap();
        sent.push(id.clone());
        let (delay, outcome) = (self.answers)(&id, sent.iter().filter(|sent_id| **sent_id == id).count());
        Box::pin(async move {
            if !delay.is_zero() {
                pass(delay).await;
            }
            Ok(outcome)
        })
    }
}

/// Scripted gateways and receivers as an engine needs them.
fn engine_deps(gateway: GatewayFactory, receivers: &ScriptedReceivers, registry: CurrentRegistry) -> EngineDeps {
    let variables = Variables::from_fn(|_| None);
    let attempt_timeout = 35 * SECOND;
    EngineDeps { gateway, attempt_timeout, sender: receivers.factory(), registry, variables, tracer: Tracer::default() }
}

/// A registry whose inbox has these clients.
fn inbox_registry_with(clients: &str) -> CurrentRegistry {
    let targets = include_str!("../../../registry/submission_targets.json");
    let variables = Variables::from_fn(|_| None);
    let registry = Registry::parse(targets, &variables).and_then(|registry| registry.with_inbox(clients, &variables));
    CurrentRegistry::new(registry.unwrap())
}

fn inbox_registry() -> CurrentRegistry {
    inbox_registry_with(r#"{"clients": [{"clientSlug": "acme", "channels": ["form", "sms"]}]}"#)
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
        // More than four times the limit of one gateway, so that a new gateway can use all of its own.
        limits: Limits { in_flight: 40, in_flight_per_gateway: 8, capacity: 64 * 1024 },
        retention: None,
        audit_retention: None,
    }
}

/// A database file and its virtual clock. Instances are started over it.
struct Lab {
    directory: tempfile::TempDir,
    clock: WallClock,
}

impl Lab {
    fn new() -> Self {
        tokio::time::pause();
        Self::with_paused_clock()
    }

    /// For a test that has paused the clock already.
    fn with_paused_clock() -> Self {
        let origin = monotonic();
        let clock = WallClock::from_fn(move || Timestamp::from_micros(BASE) + monotonic().duration_since(origin));
        let lab = Self { directory: tempfile::tempdir().unwrap(), clock };
        SqliteStore::migrate(&lab.path()).unwrap();
        lab
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("lab.db")
    }

    /// Opens the database as another instance would, without faults.
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(&self.path(), self.clock.clone()).unwrap())
    }

    fn start(&self, settings: LeaderSettings, script: Script) -> Instance {
        self.start_with(settings, script, ScriptedReceivers::healthy())
    }

    fn start_with(&self, settings: LeaderSettings, script: Script, receivers: ScriptedReceivers) -> Instance {
        self.start_in(settings, script, receivers, inbox_registry())
    }

    fn start_with_registry(&self, settings: LeaderSettings, script: Script, registry: CurrentRegistry) -> Instance {
        self.start_in(settings, script, ScriptedReceivers::healthy(), registry)
    }

    fn start_in(
        &self,
        settings: LeaderSettings,
        script: Script,
        receivers: ScriptedReceivers,
        registry: CurrentRegistry,
    ) -> Instance {
        let gateway = ScriptedGateway::new(script);
        let shared = gateway.clone();
        let factory: GatewayFactory = Arc::new(move || -> Rc<dyn Gateway> { Rc::new(shared.clone()) });
        let metrics = Arc::new(Metrics::new().unwrap());
        let faults = Faults::default();
        let store = FaultyStore { inner: self.store(), faults: faults.clone() };
        let deps = engine_deps(factory, &receivers, registry);
        let engine = Engine::start(Arc::new(store), settings, deps, metrics, Threads::shared());
        Instance { engine, gateway, receivers, faults }
    }
}

/// One running instance.
struct Instance {
    engine: Engine,
    gateway: ScriptedGateway,
    receivers: ScriptedReceivers,
    /// The faults that its store injects.
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

    /// Waits until `done` returns true; it is called whenever the intent has changed.
    async fn until(&self, id: &str, done: impl Fn(&History) -> bool) -> History {
        let watch = self.engine.watchers.watch(&intent_id(id)).unwrap();
        let waiting = async {
            loop {
                let history = self.history(id).await;
                if done(&history) {
                    return history;
                }
                watch.changed().await;
            }
        };
        tokio::time::timeout(10 * 24 * 3600 * SECOND, waiting)
            .await
            .unwrap_or_else(|_| panic!("{id} did not get to the expected state"))
    }

    async fn until_terminal(&self, id: &str) -> History {
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

    /// Waits until the gateway was called `count` times, and returns the calls.
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

    fn assert_no_attempt_sent_twice(&self) {
        let calls = self.gateway.calls.lock().unwrap();
        let unique: HashSet<_> = calls.iter().collect();
        assert_eq!(unique.len(), calls.len(), "{calls:?}");
    }
}

/// Lets virtual time pass.
async fn pass(duration: Duration) {
    tokio::time::timeout(duration, std::future::pending::<()>()).await.unwrap_err();
}

fn at_gateway(host: &str, contract: Contract) -> Contract {
    Contract { gateway_url: GatewayUrl::parse(&format!("http://{host}.test")).unwrap(), ..contract }
}

fn exhausted(history: &History) -> ExhaustedReason {
    history.intent.state.exhausted_reason().unwrap_or_else(|| panic!("{:?}", history.intent))
}
