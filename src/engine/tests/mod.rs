//! The real actors over a real SQLite file in virtual time: hours of retries in milliseconds.
//!
//! Only gateways and receivers are scripted, because a socket would let the stopped clock run ahead.

mod attempts;

mod inbox;
mod reads;
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
use crate::engine::webhooks::sender::{Delivering, WebhookSender};
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

/// How a scripted gateway answers: after how long, and what. `None` is a panic of the client.
type Script = Arc<dyn Fn(&str, u32) -> (Duration, Option<Outcome>) + Send + Sync>;

#[derive(Clone)]
struct Scripted {
    script: Script,
    /// Every call: intent and attempt number.
    calls: Arc<Mutex<Vec<(String, u32)>>>,
    /// When each of them was made.
    moments: Arc<Mutex<Vec<tokio::time::Instant>>>,
    /// How long each of them was allowed to take.
    timeouts: Arc<Mutex<Vec<Duration>>>,
    /// How many of the next calls cannot be made for want of a local resource.
    shortages: Arc<AtomicUsize>,
}

impl Scripted {
    fn new(script: Script) -> Self {
        let (calls, moments, timeouts, shortages) = Default::default();
        Self { script, calls, moments, timeouts, shortages }
    }
}

impl Gateway for Scripted {
    fn attempt(&self, attempt: &OpenAttempt, _: Bytes, timeout: Duration) -> Attempting {
        if self.shortages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Box::pin(async { Err(LocalResourceError("too many open files".to_owned())) });
        }
        let call = (attempt.intent_id.to_string(), attempt.attempt_number);
        let (delay, outcome) = (self.script)(&call.0, call.1);
        self.calls.lock().unwrap().push(call);
        self.moments.lock().unwrap().push(monotonic());
        self.timeouts.lock().unwrap().push(timeout);
        Box::pin(async move {
            if !delay.is_zero() {
                pass(delay).await;
            }
            Ok(outcome.expect("the script says panic"))
        })
    }
}

/// How scripted receivers answer an event of this intent in its so-manieth letter.
type Answers = Arc<dyn Fn(&str, usize) -> (Duration, TryOutcome) + Send + Sync>;

#[derive(Clone)]
struct Couriers {
    answers: Answers,
    /// How many of the next calls cannot be made for want of a local resource.
    shortages: Arc<AtomicUsize>,
    /// The intents that letters were about.
    letters: Arc<Mutex<Vec<String>>>,
}

impl Couriers {
    fn answering(answers: impl Fn(&str, usize) -> (Duration, TryOutcome) + Send + Sync + 'static) -> Self {
        Self { answers: Arc::new(answers), shortages: Arc::default(), letters: Arc::default() }
    }

    /// Receivers that take everything.
    fn well() -> Self {
        let taken = TryOutcome::Answered { status: 200, retry_after: None, remark: None };
        Self::answering(move |_, _| (Duration::ZERO, taken.clone()))
    }

    fn factory(&self) -> WebhookSenderFactory {
        let couriers = self.clone();
        Arc::new(move || -> Rc<dyn WebhookSender> { Rc::new(couriers.clone()) })
    }
}

impl WebhookSender for Couriers {
    fn deliver(&self, letter: &WebhookRequest) -> Delivering {
        let less = |left: usize| left.checked_sub(1);
        if self.shortages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return Box::pin(async { Err(LocalResourceError("too many open files".to_owned())) });
        }
        let event: serde_json::Value = serde_json::from_slice(&letter.body).unwrap();
        let id = event["intent"]["intentId"].as_str().unwrap().to_owned();
        let mut letters = self.letters.lock().unwrap();
        letters.push(id.clone());
        let (delay, outcome) = (self.answers)(&id, letters.iter().filter(|sent| **sent == id).count());
        Box::pin(async move {
            if !delay.is_zero() {
                pass(delay).await;
            }
            Ok(outcome)
        })
    }
}

/// The outside world as these tests have it.
fn external(gateway: GatewayFactory, couriers: &Couriers, registry: CurrentRegistry) -> EngineDeps {
    let variables = Variables::from_fn(|_| None);
    let attempt_timeout = 35 * SECOND;
    EngineDeps { gateway, attempt_timeout, sender: couriers.factory(), registry, variables, tracer: Tracer::default() }
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
        // More than twice as many as one gateway may have, so that a gateway that is new can have all of its own.
        limits: Limits { in_flight: 20, in_flight_per_gateway: 8, capacity: 64 * 1024 },
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
        Self::resumed()
    }

    /// Another one in a test whose clock stands still already.
    fn resumed() -> Self {
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
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(&self.path(), self.clock.clone()).unwrap())
    }

    fn start(&self, settings: LeaderSettings, script: Script) -> Instance {
        self.start_with(settings, script, Couriers::well())
    }

    fn start_with(&self, settings: LeaderSettings, script: Script, sender: Couriers) -> Instance {
        self.start_in(settings, script, sender, inbox_registry())
    }

    fn start_with_registry(&self, settings: LeaderSettings, script: Script, registry: CurrentRegistry) -> Instance {
        self.start_in(settings, script, Couriers::well(), registry)
    }

    fn start_in(
        &self,
        settings: LeaderSettings,
        script: Script,
        sender: Couriers,
        registry: CurrentRegistry,
    ) -> Instance {
        let gateway = Scripted::new(script);
        let made = gateway.clone();
        let factory: GatewayFactory = Arc::new(move || -> Rc<dyn Gateway> { Rc::new(made.clone()) });
        let metrics = Arc::new(Metrics::new().unwrap());
        let faults = Faults::default();
        let store = FaultyStore { inner: self.store(), faults: faults.clone() };
        let external = external(factory, &sender, registry);
        let engine = Engine::start(Arc::new(store), settings, external, metrics, Threads::shared());
        Instance { engine, gateway, sender, faults }
    }
}

struct Instance {
    engine: Engine,
    gateway: Scripted,
    sender: Couriers,
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
