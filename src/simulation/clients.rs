//! Clients: each submits one intent, tries again at other instances if it gets no answer, and records the answer.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use super::checks::{Answered, Promise};
use super::fleet::Fleet;
use super::instance::Running;
use super::plan::Submission;
use super::store::pass;
use super::targets::TARGETS;
use super::world::World;
use crate::api::wait;
use crate::domain::intent::{Intent, IntentId, Payload};
use crate::store::{NewIntent, StoreError, Submitted};

/// Runs one client until it has an answer or gives up.
pub(super) async fn run(fleet: Rc<Fleet>, submission: Submission) {
    pass(submission.at).await;
    let world = &fleet.world;
    for attempt in 0..submission.tries {
        let instance = world.draw(world.plan.instances);
        let answer = match fleet.host(instance) {
            None => None,
            Some(host) => {
                let asked = submission.clone();
                let answer = host.ask(move |running| Box::pin(async move { submit(running, asked).await }));
                tokio::time::timeout(submission.patience, answer).await.ok().flatten()
            }
        };
        let number = submission.number;
        match answer {
            Some(Ok(submitted)) => return told(world, &submission, submitted),
            Some(Err(error)) => {
                world.log(format_args!("client {number} try {attempt} at i{instance}: {}", error.kind()));
            }
            None => world.log(format_args!("client {number} try {attempt} at i{instance}: no answer")),
        }
        let pause = world.draw_millis(50, 2_000);
        pass(pause).await;
    }
}

/// Handles the request inside an instance, as the API does.
async fn submit(running: Rc<Running>, submission: Submission) -> Result<Submitted, StoreError> {
    let target = TARGETS[submission.target].parsed_name();
    let id = IntentId::parse(&submission.id).unwrap();
    let watch = submission.wait.and_then(|_| running.engine.watchers.watch(&id));
    let new = NewIntent {
        id,
        contract: running.registry.get().contract(&target).unwrap(),
        payload: Payload::new(Bytes::from(submission.payload.into_bytes())),
        trace: None,
        job: None,
        not_before: None,
        redrive: None,
    };
    let engine = &running.engine;
    let submitted = engine.store.submit(new).await?;
    let waited = async |intent| match (&watch, submission.wait) {
        (Some(watch), Some(limit)) => {
            wait::for_first_attempt(&engine.store, &engine.watchers, intent, watch, limit).await
        }
        _ => intent,
    };
    Ok(match submitted {
        Submitted::Created(intent) => Submitted::Created(waited(intent).await),
        Submitted::Existing(intent) => Submitted::Existing(waited(intent).await),
        conflict => conflict,
    })
}

/// Records the answer to a client, and compares it with the answers to other clients.
fn told(world: &Arc<World>, submission: &Submission, submitted: Submitted) {
    let number = submission.number;
    let (intent, created) = match submitted {
        Submitted::Conflict(conflict) => {
            world.log(format_args!("client {number}: conflict"));
            let differs = conflict.target_differs || conflict.payload_differs;
            return world.check(Promise::OneIdOneIntent, differs, || format!("client {number}: {conflict:?}"));
        }
        Submitted::Created(intent) => (intent, true),
        Submitted::Existing(intent) => (intent, false),
        other => return world.check(Promise::OneIdOneIntent, false, || format!("client {number}: {other:?}")),
    };
    world.log(format_args!("client {number}: created {created} {:?} {:?}", intent.id, intent.state));
    let mine = Answered {
        id: submission.id.clone(),
        target: TARGETS[submission.target].name.to_owned(),
        payload: submission.payload.clone(),
        ended: ended(&intent),
    };
    let same = {
        let mut state = world.state();
        *state.ledgers.created.entry(submission.id.clone()).or_default() += usize::from(created);
        let known = state.ledgers.answered.entry(intent.seq.0).or_insert_with(|| Answered {
            id: mine.id.clone(),
            target: mine.target.clone(),
            payload: mine.payload.clone(),
            ended: mine.ended,
        });
        let told_same_end = known.ended.is_none() || mine.ended.is_none() || known.ended == mine.ended;
        known.ended = known.ended.or(mine.ended);
        (&known.id, &known.target, &known.payload) == (&mine.id, &mine.target, &mine.payload) && told_same_end
    };
    world.check(Promise::OneIdOneIntent, same && intent.id.as_str() == submission.id, || {
        format!(
            "client {number} was told of {intent:?}, which is not what another client was told or what it submitted"
        )
    });
}

fn ended(intent: &Intent) -> Option<&'static str> {
    intent.state.is_terminal().then(|| intent.state.status().as_str())
}
