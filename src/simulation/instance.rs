//! One instance of the fleet: a set of local tasks that can be frozen, and dropped at any await point.
//!
//! All tasks of the instance belong to its set. While the instance is frozen, none of them runs, although time passes
//! and answers arrive. A crash drops all of them. Calls that the instance has sent still take effect, as they would at
//! a real database or gateway.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use super::gateway::SimulatedGateway;
use super::plan::{MOST_INSTANCES, Plan};
use super::receiver::SimulatedReceivers;
use super::store::SimulatedStore;
use super::targets::registry;
use super::world::{START, World};
use crate::config::registry::CurrentRegistry;
use crate::config::settings::AuthMode;
use crate::config::variables::Variables;
use crate::engine::leader::{EngineDeps, GatewayFactory, LeaderSettings, WebhookSenderFactory};
use crate::engine::webhooks::sender::WebhookSender;
use crate::engine::{Engine, Threads};
use crate::gateway::Gateway;
use crate::platform::clock::WallClock;
use crate::platform::descriptors::ConnectionLimits;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Tracer;
use crate::web::body::BodyBudget;
use crate::web::origin::Listener;
use crate::web::streams::StreamSlots;
use crate::web::{ShutdownFlag, WebDeps};

/// Lets an instance run, freezes it, or ends it. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<Mutex<GateState>>);

#[derive(Default)]
struct GateState {
    /// Set once the instance has crashed or stopped: how long it stays down.
    down: Option<Duration>,
    frozen: bool,
    waker: Option<Waker>,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.0.try_lock().expect("the gate is locked for a moment only")
    }

    fn wake(&self) {
        let waker = self.state().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the instance for a while. Its tasks are dropped when the current one yields, and it sends nothing any more.
    pub(super) fn end(&self, down: Duration) {
        self.state().down.get_or_insert(down);
        self.wake();
    }

    /// Whether the instance has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.state().down.is_some()
    }

    pub(super) fn freeze(&self) {
        self.state().frozen = true;
    }

    pub(super) fn thaw(&self) {
        self.state().frozen = false;
        self.wake();
    }
}

/// The tasks of an instance. Resolves with how long the instance stays down, once it has ended.
struct Tasks {
    local: LocalSet,
    gate: Gate,
}

impl Future for Tasks {
    type Output = Duration;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Duration> {
        {
            let mut gate = self.gate.state();
            if let Some(down) = gate.down {
                return Poll::Ready(down);
            }
            gate.waker = Some(context.waker().clone());
            if gate.frozen {
                return Poll::Pending;
            }
        }
        let _never_ready = Pin::new(&mut self.local).poll(context);
        let ended = self.gate.state().down;
        ended.map_or(Poll::Pending, Poll::Ready)
    }
}

/// What runs inside an instance.
pub(super) struct Running {
    pub(super) engine: Engine,
    pub(super) registry: CurrentRegistry,
    /// What the handlers of the API need.
    pub(super) web: WebDeps,
    /// Whether an orderly stop is in progress.
    pub(super) stopping: Cell<bool>,
}

type Request = Box<dyn FnOnce(Rc<Running>)>;

/// A handle to an instance that is up.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) gate: Gate,
    pub(super) metrics: Arc<Metrics>,
    requests: mpsc::UnboundedSender<Request>,
}

impl Host {
    /// Makes a request inside the instance. `None` if the instance is down, or ends before it answers.
    pub(super) async fn ask<T: 'static>(
        &self,
        request: impl FnOnce(Rc<Running>) -> LocalBoxFuture<'static, T> + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let request: Request = Box::new(move |running| {
            drop(tokio::task::spawn_local(async move {
                let _client_may_be_gone = answer.send(request(running).await);
            }));
        });
        self.requests.send(request).ok()?;
        answered.await.ok()
    }

    /// Runs `what` inside the instance, as soon as the instance is not frozen.
    pub(super) fn tell(&self, what: impl FnOnce(Rc<Running>) + 'static) {
        let _instance_may_be_down = self.requests.send(Box::new(what));
    }
}

/// Starts an instance. Returns it, and a future that resolves with how long it stays down, once it has ended.
pub(super) fn start(
    world: &Arc<World>,
    number: usize,
    incarnation: usize,
) -> (Host, impl Future<Output = Duration> + use<>) {
    let gate = Gate::default();
    let local = LocalSet::new();
    let (requests, mut received) = mpsc::unbounded_channel::<Request>();
    let (world, own_gate) = (Arc::clone(world), gate.clone());
    let metrics = metrics_of(number);
    let own_metrics = Arc::clone(&metrics);
    local.spawn_local(async move {
        let running = Rc::new(run(&world, number, incarnation, &own_gate, own_metrics));
        while let Some(request) = received.recv().await {
            request(Rc::clone(&running));
        }
    });
    let tasks = Tasks { local, gate: gate.clone() };
    (Host { gate, metrics, requests }, tasks)
}

/// Returns the metrics of an instance. All runs of a thread share them, because making them takes long and nothing but
/// [`Metrics::schedule_held`] is read.
fn metrics_of(number: usize) -> Arc<Metrics> {
    thread_local! {
        static METRICS: [Arc<Metrics>; MOST_INSTANCES] = std::array::from_fn(|_| Arc::new(Metrics::new().unwrap()));
    }
    let metrics = METRICS.with(|metrics| Arc::clone(&metrics[number]));
    metrics.schedule_held.set(0);
    metrics
}

fn run(world: &Arc<World>, number: usize, incarnation: usize, gate: &Gate, metrics: Arc<Metrics>) -> Running {
    let registry = CurrentRegistry::of(registry(0));
    let gateway = SimulatedGateway::new(world, number, gate);
    let gateway: GatewayFactory = Arc::new(move || -> Rc<dyn Gateway> { Rc::new(gateway.clone()) });
    let sender = SimulatedReceivers::new(world, number, gate);
    let sender: WebhookSenderFactory = Arc::new(move || -> Rc<dyn WebhookSender> { Rc::new(sender.clone()) });
    let deps = EngineDeps {
        gateway,
        attempt_timeout: world.plan.attempt_timeout,
        sender,
        variables: Variables::from_fn(|_| None),
        registry: registry.clone(),
        tracer: Tracer::default(),
    };
    world.store.forget_contracts();
    let store = Arc::new(SimulatedStore::new(world, number, gate));
    let settings = settings(&world.plan, number, incarnation);
    let engine = Engine::start(store, settings, deps, metrics, Threads::shared());
    let web = web_deps(&engine, &registry);
    Running { engine, registry, web, stopping: Cell::new(false) }
}

/// What the handlers of the API need. No connection is opened, so limits of connections have no effect.
fn web_deps(engine: &Engine, registry: &CurrentRegistry) -> WebDeps {
    let limits = ConnectionLimits { total: 1, per_address: 1 };
    WebDeps {
        store: engine.store.clone(),
        registry: registry.clone(),
        watchers: engine.watchers.clone(),
        events: engine.events.clone(),
        streams: StreamSlots::new(limits, Arc::clone(&engine.metrics)),
        metrics: Arc::clone(&engine.metrics),
        board: engine.board.clone(),
        shutdown: ShutdownFlag::default(),
        bodies: BodyBudget::default(),
        max_payload_bytes: usize::MAX,
        auth: AuthMode::Off,
        listener: Listener::new(Ipv4Addr::LOCALHOST.into()),
        variables: Variables::from_fn(|_| None),
        clock: WallClock::from_fn(|| START),
        tracer: Tracer::default(),
    }
}

fn settings(plan: &Plan, number: usize, incarnation: usize) -> LeaderSettings {
    let holder = if plan.fixed_holders { format!("i{number}") } else { format!("i{number}.{incarnation}") };
    LeaderSettings {
        lease_name: "lease".into(),
        holder_id: holder.into(),
        timing: plan.timing,
        acquire_interval: plan.acquire_interval,
        refresh_interval: plan.refresh_interval,
        limits: plan.limits,
        retention: plan.retention,
        audit_retention: None,
    }
}
