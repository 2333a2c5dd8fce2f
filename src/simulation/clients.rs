//! Clients: each submits an intent or a batch, tries again at other instances if it gets no answer, and records the answer.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::checks::{Answered, Promise};
use super::fleet::Fleet;
use super::instance::Running;
use super::plan::Submission;
use super::store::pass;
use super::targets::TARGETS;
use super::world::{START, World};
use crate::api;
use crate::domain::intent::{Intent, IntentId, Payload};
use crate::store::{NewIntent, StoreError, Submitted};

/// Runs one client until all its submissions were answered, or it gives up. Several submissions are sent as a batch.
pub(super) async fn run(fleet: Rc<Fleet>, mut submissions: Vec<Submission>) {
    let Submission { number, at, patience, tries, wait, .. } = submissions[0].clone();
    pass(at).await;
    let world = &fleet.world;
    submissions.iter().filter_map(Submission::kind).for_each(|kind| world.count(kind));
    for attempt in 0..tries {
        let asked = submissions.clone();
        let answers = fleet.request(patience, move |running| {
            Box::pin(async move {
                match <[Submission; 1]>::try_from(asked) {
                    Ok([one]) => Ok(vec![submit(&running, one, wait).await]),
                    Err(several) => submit_all(&running, several).await,
                }
            })
        });
        let mut again = Vec::new();
        match answers.await {
            Some(Ok(answers)) => {
                for (submission, answer) in submissions.drain(..).zip(answers) {
                    match answer {
                        Ok(submitted) => told(world, &submission, submitted),
                        Err(error) => {
                            world.log(format_args!("client {number} try {attempt}: {}", error.kind()));
                            again.push(submission);
                        }
                    }
                }
                submissions = again;
            }
            Some(Err(error)) => world.log(format_args!("client {number} try {attempt}: {}", error.kind())),
            None => world.log(format_args!("client {number} try {attempt}: no answer")),
        }
        if submissions.is_empty() {
            return;
        }
        let pause = world.draw_millis(50, 2_000);
        pass(pause).await;
    }
}

fn new_intent(running: &Running, submission: Submission) -> NewIntent {
    let target = TARGETS[submission.target].parsed_name();
    NewIntent {
        id: IntentId::parse(&submission.id).unwrap(),
        contract: running.registry.get().contract(&target).unwrap(),
        payload: Payload::new(Bytes::from(submission.payload.into_bytes())),
        trace: None,
        job: None,
        not_before: submission.not_before.map(|moment| START + moment),
        redrive: None,
    }
}

/// Handles a batch inside an instance, as the API does.
async fn submit_all(
    running: &Running,
    batch: Vec<Submission>,
) -> Result<Vec<Result<Submitted, StoreError>>, StoreError> {
    let new = batch.into_iter().map(|submission| new_intent(running, submission)).collect();
    running.engine.store.submit_all(new).await
}

/// Handles the request inside an instance, as the API does.
async fn submit(running: &Running, submission: Submission, wait: Option<Duration>) -> Result<Submitted, StoreError> {
    let new = new_intent(running, submission);
    let watch = wait.and_then(|_| running.engine.watchers.watch(&new.id));
    let engine = &running.engine;
    let submitted = engine.store.submit(new).await?;
    let waited = async |intent| match (&watch, wait) {
        (Some(watch), Some(limit)) => {
            api::wait::for_first_attempt(&engine.store, &engine.watchers, intent, watch, limit).await
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
            let differs = conflict.target_differs || conflict.payload_differs || conflict.not_before_differs;
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
