//! Deliberate bugs of a store that commits batches; see [`crate::platform::mutation`].

use std::time::Duration;

use super::end::query;
use super::instance::Gate;
use super::store::pass;
use super::world::World;
use crate::domain::actor::fixtures::somebody;
use crate::domain::intent::IntentId;
use crate::domain::policy::Decision;
use crate::platform::mutated;
use crate::store::{BatchResults, FencedError, StoreError, WriteBatch};

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
    if mutated!(NoDoubtReported) && !batch.submits.is_empty() && world.draw(10) == 0 {
        drop(world.calls.commit(batch).await?);
        return Err(StoreError::unavailable("told to lose the answer"));
    }
    if mutated!(UnknownCommitRepeated) && world.draw(10) == 0 {
        drop(world.calls.commit(batch.clone()).await);
    }
    world.calls.commit(batch).await
}

/// Checks the fence in a transaction of its own, and then commits without a fence.
async fn commit_after_fence(world: &World, mut batch: WriteBatch) -> Result<BatchResults, StoreError> {
    let lease = world.lease();
    let held = |epoch: i64| lease.is_some_and(|(current, end)| current == epoch && end > world.store.now());
    let over = batch.fenced.take_if(|writes| !held(writes.term.epoch)).is_some();
    batch.start_on_insert.take_if(|permission| !held(permission.term.epoch));
    pass(PAUSE).await;
    let mut results = world.calls.commit(batch).await?;
    if over {
        results.fenced = Err(FencedError::TermOver);
    }
    Ok(results)
}

/// Commits a batch, and writes the webhook events of the intents that it ended afterwards.
async fn commit_before_events(world: &World, gate: &Gate, batch: WriteBatch) -> Result<BatchResults, StoreError> {
    let finishes = batch.fenced.as_ref().map(|writes| writes.finishes.clone()).unwrap_or_default();
    let results = world.calls.commit(batch).await?;
    pass(PAUSE).await;
    let ended = finishes.iter().filter(|finish| !matches!(finish.decision, Decision::RetryAt(_)));
    for finish in ended.filter(|_| !gate.is_closed()) {
        let _result = world.calls.redeliver_webhook(finish.attempt.intent_id.clone(), somebody()).await?;
    }
    Ok(results)
}

/// A row of the intents that a redrive has still to handle.
type Item = (i64, i64, i64, i64);

/// Returns the position of all redrives before a step, if a deliberate bug may forget it.
pub(super) fn remembered_position(world: &World, call: &str) -> Vec<Item> {
    if call != "work_redrive" || !mutated!(RedriveForgetsPosition) {
        return Vec::new();
    }
    let sql = "SELECT redrive_seq, target_number, position, intent_seq FROM submission_redrive_items";
    world.store.inspect(|connection| {
        query(connection, sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
    })
}

/// Sets redrives back to a position.
pub(super) fn forget_position(world: &World, items: &[Item]) {
    let sql = "INSERT OR IGNORE INTO submission_redrive_items SELECT ?1, ?2, ?3, ?4
        WHERE ?1 IN (SELECT redrive_seq FROM submission_redrives WHERE state = 'running')";
    world.store.inspect(|connection| {
        for item in items {
            connection.execute(sql, *item).unwrap();
        }
    });
}

/// Advances the position of a redrive whose step fails, if a deliberate bug does that.
pub(super) fn advance_position(world: &World, call: &str) {
    if call == "work_redrive" && mutated!(RedriveLosesIntents) {
        let sql = "DELETE FROM submission_redrive_items WHERE (redrive_seq, target_number, position) IN
            (SELECT redrive_seq, target_number, position FROM submission_redrive_items
             JOIN submission_redrives USING (redrive_seq) WHERE state = 'running' LIMIT 1)";
        world.store.inspect(|connection| connection.execute(sql, [])).unwrap();
    }
}
