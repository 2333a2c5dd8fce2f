//! What the leader and its children depend on. It stays the same for every term of this process.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{LeaderSettings, LeadershipBoard};
use crate::config::registry::CurrentRegistry;
use crate::config::variables::Variables;
use crate::engine::webhooks::sender::WebhookSender;
use crate::gateway::Gateway;
use crate::platform::actor_thread::ActorThread;
use crate::store::InFlight;
use crate::store::client::StoreClient;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Tracer;

/// Makes a gateway client on the thread that will use it.
pub type GatewayFactory = Arc<dyn Fn() -> Rc<dyn Gateway> + Send + Sync>;
/// Makes a webhook sender on the thread that will use it.
pub type WebhookSenderFactory = Arc<dyn Fn() -> Rc<dyn WebhookSender> + Send + Sync>;

/// What the engine needs besides its store: clients for gateways and receivers, and the configuration of targets.
#[derive(Clone)]
pub struct EngineDeps {
    pub gateway: GatewayFactory,
    /// How long an attempt may take, unless its target has a timeout of its own.
    pub attempt_timeout: Duration,
    pub sender: WebhookSenderFactory,
    pub variables: Variables,
    pub registry: CurrentRegistry,
    pub tracer: Tracer,
}

/// What a leader needs.
#[derive(Clone)]
pub struct LeaderDeps {
    pub store: StoreClient,
    pub metrics: Arc<Metrics>,
    pub board: LeadershipBoard,
    pub in_flight: InFlight,
    pub engine: EngineDeps,
    /// The thread of the leader, the scheduler and retention.
    pub scheduler_thread: ActorThread,
    pub executor_thread: ActorThread,
    /// The thread of the webhook and the inbox actors.
    pub webhook_thread: ActorThread,
    pub settings: LeaderSettings,
}
