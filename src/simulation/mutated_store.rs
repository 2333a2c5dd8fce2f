//! Deliberate bugs of a store that commits batches; see [`crate::platform::mutation`].

use std::time::Duration;

use super::faults::Fault;
use super::instance::Gate;
use super::store::pass;
use super::world::World;
use crate::domain::actor::fixtures::somebody;
use crate::domain::intent::IntentId;
use crate::domain::policy::Decision;
use crate::platform::mutated;
use crate::store::{BatchResults, FencedError, StoreError, WebhookStore, WriteBatch, WriteStore};

/// The time between the two parts of an operation that should be one transaction.
const PAUSE: Duration = Duration::from_millis(20);

/// Commits a batch, with the deliberate bug that is switched on.
pub(super) async fn commit(world: &World, gate: &Gate, mut batch: WriteBatch) -> Result<BatchResults, StoreError> {
    if mutated!(CaseIgnored) {
        batch.submits.iter_mut().for_each(|new| new.id = IntentId::parse(&new.id.to_string().to_lowercase()).unwrap());
    }
    if mutated!(FenceOutsideTransaction) {
        return commit_after_fence(world, batch).await;
    }
    if mutated!(EventOutsideTransaction) {
        return commit_before_events(world, gate, batch).await;
    }
    if mutated!(UnknownCommitRepeated) && world.strikes(Fault::LostAnswer) {
        drop(world.store.commit(batch.clone()).await);
    }
    world.store.commit(batch).await
}

/// Checks the fence in a transaction of its own, and then commits without a fence.
async fn commit_after_fence(world: &World, mut batch: WriteBatch) -> Result<BatchResults, StoreError> {
    let lease = world.lease();
    let held = |epoch: i64| lease.is_some_and(|(current, end)| current == epoch && end > world.store.now());
    let over = batch.fenced.take_if(|writes| !held(writes.term.epoch)).is_some();
    batch.start_on_insert.take_if(|permission| !held(permission.term.epoch));
    pass(PAUSE).await;
    let mut results = world.store.commit(batch).await?;
    if over {
        results.fenced = Err(FencedError::TermOver);
    }
    Ok(results)
}

/// Commits a batch, and writes the webhook events of the intents that it ended afterwards.
async fn commit_before_events(world: &World, gate: &Gate, batch: WriteBatch) -> Result<BatchResults, StoreError> {
    let finishes = batch.fenced.as_ref().map(|writes| writes.finishes.clone()).unwrap_or_default();
    let results = world.store.commit(batch).await?;
    pass(PAUSE).await;
    let ended = finishes.iter().filter(|finish| !matches!(finish.decision, Decision::RetryAt(_)));
    for finish in ended.filter(|_| !gate.is_closed()) {
        let _result = world.store.redeliver_webhook(finish.attempt.intent_id.clone(), somebody()).await?;
    }
    Ok(results)
}
