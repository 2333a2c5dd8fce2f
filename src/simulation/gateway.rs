//! Gateways: they record every call that reaches them, and answer as the seed draws.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::faults::Fault;
use super::instance::Gate;
use super::plan::{Calls, Mishap};
use super::store::pass;
use super::world::World;
use crate::domain::outcome::Outcome;
use crate::gateway::{Attempting, Gateway, LocalResourceError, answer};
use crate::store::OpenAttempt;

/// The gateways, as one instance calls them.
#[derive(Clone)]
pub(super) struct SimulatedGateway {
    world: Arc<World>,
    instance: usize,
    gate: Gate,
}

/// How a gateway reacts to a call.
enum Reaction {
    /// It answers with this HTTP status and body, and asks for a pause if there is one.
    Answer(u16, &'static str, Option<Duration>),
    /// It does not answer at all.
    Hang,
    /// The connection is refused.
    Refused,
}

const ACCEPTED: Reaction = Reaction::Answer(200, r#"{"status":"accepted","gatewayMessageId":"m"}"#, None);

impl SimulatedGateway {
    pub(super) fn new(world: &Arc<World>, instance: usize, gate: &Gate) -> Self {
        Self { world: Arc::clone(world), instance, gate: gate.clone() }
    }

    /// Draws how a gateway reacts, and after how long.
    fn react(&self) -> (Reaction, Duration) {
        let world = &self.world;
        let delay = world.draw_millis(1, 60);
        if !world.strikes(Fault::Gateways) {
            return (ACCEPTED, delay);
        }
        let reaction = match world.draw(12) {
            0 => Reaction::Answer(200, r#"{"status":"rejected","reason":"invalid_recipient"}"#, None),
            1 => Reaction::Answer(200, r#"{"status":"rejected","reason":"provider_failure"}"#, None),
            2 => Reaction::Answer(200, r#"{"status":"queued"}"#, None),
            3 => Reaction::Answer(200, "<html>", None),
            4 => Reaction::Answer(503, "", Some(world.draw_millis(500, 4_000))),
            5 => Reaction::Hang,
            6 => Reaction::Refused,
            7 | 8 => Reaction::Answer(500, "", None),
            _ => ACCEPTED,
        };
        // Some answers come late, and some of these after the timeout of the attempt.
        let delay = if world.draw(3) == 0 { world.draw_millis(500, 10_000) } else { delay };
        (reaction, delay)
    }
}

impl Gateway for SimulatedGateway {
    fn attempt(&self, attempt: &OpenAttempt, payload: Bytes, timeout: Duration) -> Attempting {
        let (this, attempt) = (self.clone(), attempt.clone());
        Box::pin(async move {
            let world = &this.world;
            if this.gate.is_closed() {
                return std::future::pending().await;
            }
            if world.strikes(Fault::Shortage) {
                world.log(format_args!("i{} lacks a resource for {:?}", this.instance, attempt.intent_id));
                return Err(LocalResourceError("told to lack a resource".into()));
            }
            let (reaction, delay) = this.react();
            let sent = !matches!(reaction, Reaction::Refused);
            world.log(format_args!(
                "i{} calls {} for {:?} attempt {} epoch {} sent {sent}",
                this.instance,
                attempt.contract.gateway_url,
                attempt.intent_id,
                attempt.attempt_number,
                attempt.lease_epoch
            ));
            let _under_way = world.check_call(&attempt, &payload);
            if world.strikes(Fault::Panic) {
                panic!("told to panic");
            }
            if let Some(Mishap::Crash { .. } | Mishap::CrashAfter) = world.mishap_of(Calls::Gateways) {
                world.log(format_args!("i{} crashes in a call", this.instance));
                this.gate.end(world.draw_millis(10, 4_000));
                return std::future::pending().await;
            }
            let outcome = match reaction {
                Reaction::Refused => {
                    pass(delay.min(timeout)).await;
                    Outcome::not_sent("connection refused")
                }
                Reaction::Answer(status, body, retry_after) if delay < timeout => {
                    pass(delay).await;
                    answer::read(status, body.as_bytes()).with_retry_after(retry_after)
                }
                Reaction::Answer(..) | Reaction::Hang => {
                    pass(timeout).await;
                    Outcome::unknown("timed out")
                }
            };
            world.record_answer(&attempt, &outcome);
            Ok(outcome)
        })
    }
}
