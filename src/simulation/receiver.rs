//! Webhook receivers: they record every event that reaches them, and answer as the seed draws.

use std::sync::Arc;
use std::time::Duration;

use super::faults::Fault;
use super::instance::Gate;
use super::store::pass;
use super::world::World;
use crate::domain::webhook::TryOutcome;
use crate::engine::webhooks::WebhookRequest;
use crate::engine::webhooks::sender::{Delivery, WebhookSender};
use crate::gateway::LocalResourceError;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The receivers, as one instance calls them.
#[derive(Clone)]
pub(super) struct SimulatedReceivers {
    world: Arc<World>,
    instance: usize,
    gate: Gate,
}

impl SimulatedReceivers {
    pub(super) fn new(world: &Arc<World>, instance: usize, gate: &Gate) -> Self {
        Self { world: Arc::clone(world), instance, gate: gate.clone() }
    }

    /// Draws the status of an answer, or that there is none, and how long it takes.
    fn react(&self) -> (Option<u16>, Duration) {
        let world = &self.world;
        let delay = world.draw_millis(1, 40);
        if !world.strikes(Fault::Receivers) {
            return (Some(200), delay);
        }
        let status = [Some(500), Some(503), Some(429), Some(410), Some(204), Some(200), None][world.draw(7)];
        let delay = if world.draw(3) == 0 { world.draw_millis(500, 8_000) } else { delay };
        (status, delay)
    }
}

impl WebhookSender for SimulatedReceivers {
    fn deliver(&self, webhook_request: &WebhookRequest) -> Delivery {
        let (this, body) = (self.clone(), webhook_request.body.clone());
        Box::pin(async move {
            let world = &this.world;
            if this.gate.is_closed() {
                return std::future::pending().await;
            }
            if world.strikes(Fault::Shortage) {
                return Err(LocalResourceError("told to lack a resource".into()));
            }
            let (status, delay) = this.react();
            let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let (id, intent) = (event["eventId"].as_str().unwrap(), &event["intent"]);
            let (name, state) = (intent["intentId"].as_str().unwrap(), intent["status"].as_str().unwrap());
            world.log(format_args!("i{} delivers {id} of {name:?} {state} answered {status:?}", this.instance));
            world.check_event(id, name, state);
            pass(delay.min(TIMEOUT)).await;
            Ok(match status {
                Some(status) if delay < TIMEOUT => {
                    world.record_delivery(name, status);
                    TryOutcome::Answered { status, retry_after: None, remark: None }
                }
                _ => TryOutcome::Error("timed out".to_owned()),
            })
        })
    }
}
