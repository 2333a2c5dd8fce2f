//! Options of intents: cancelling, scheduled starts, and intents that repeat others.

use std::sync::Arc;
use std::time::Duration;

use super::attempts::OneSlot;
use super::{Fixture, accepted, intent_id, new_intent, submit_to, writes};
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::Contract;
use crate::domain::contract::fixtures::{deadline, max_attempts, one_shot, with_webhook};
use crate::domain::intent::{ExhaustedReason, Intent, State, Status};
use crate::domain::outcome::Outcome;
use crate::domain::policy;
use crate::domain::redrive::{RedriveId, redriven_id};
use crate::domain::time::Timestamp;
use crate::store::{
    Cancellation, DueWebhooksQuery, FencedWrites, FinishResult, MAX_AHEAD, NewIntent, PostponeAttempt, RedriveLink,
    StartOnInsert, StartResult, Submitted, WriteBatch,
};

async fn cancel(fixture: &Fixture, id: &str, after_attempt: bool) -> Cancellation {
    fixture.other.cancel(intent_id(id), after_attempt, somebody()).await.unwrap()
}

fn is_cancelled(intent: &Intent) -> bool {
    matches!(intent.state, State::Exhausted { reason: ExhaustedReason::Cancelled, .. })
}

fn scheduled(id: &str, contract: &Contract, not_before: Timestamp) -> NewIntent {
    NewIntent { not_before: Some(not_before), ..new_intent(id, contract, b"{}") }
}

/// How many webhook events are pending.
async fn pending_events(fixture: &Fixture) -> usize {
    let query = DueWebhooksQuery { limit: 10, per_receiver: 10, except: Vec::new() };
    fixture.store.due_webhooks(query).await.unwrap().due.len()
}

pub async fn a_waiting_intent_can_be_cancelled(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &with_webhook("http://hook.test", max_attempts(3))).await;
    let waiting = fixture.waiting(&intent).await;
    let Cancellation::Cancelled(cancelled) = cancel(&fixture, "a", false).await else { panic!("not cancelled") };
    assert!(is_cancelled(&cancelled));
    assert_eq!((fixture.intent("a").await, cancelled.attempt_count), (cancelled.clone(), 0));
    assert_eq!(pending_events(&fixture).await, 1, "its end makes an event pending");
    assert!(matches!(fixture.start(&term, &waiting).await, Some(StartResult::Stale)), "no attempt starts any more");
    for after_attempt in [false, true] {
        assert_eq!(
            cancel(&fixture, "a", after_attempt).await,
            Cancellation::CancelledBefore(cancelled.clone()),
            "a repeated request has the same answer"
        );
    }
    assert_eq!(pending_events(&fixture).await, 1);
    let ended = fixture.store.activity(60).await.unwrap().ended;
    assert_eq!(ended.iter().map(|ended| (ended.status, ended.intents)).collect::<Vec<_>>(), [(Status::Exhausted, 1)]);
    assert_eq!(cancel(&fixture, "b", false).await, Cancellation::NotFound);
}

pub async fn an_intent_that_has_ended_cannot_be_cancelled(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &one_shot()).await;
    fixture.attempt(&term, &intent, accepted()).await;
    let ended = fixture.intent("a").await;
    for after_attempt in [false, true] {
        assert_eq!(cancel(&fixture, "a", after_attempt).await, Cancellation::AlreadyTerminal(ended.clone()));
    }
    assert_eq!(fixture.intent("a").await, ended);
}

pub async fn an_open_attempt_can_be_the_last_one(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let error = || Outcome::error("gateway answered HTTP 500");
    for (id, outcome, expected) in
        [("retried", error(), FinishResult::RecordedAndCancelled), ("accepted", accepted(), FinishResult::Recorded)]
    {
        let intent = fixture.submit(id, &with_webhook("http://hook.test", max_attempts(3))).await;
        let attempt = fixture.start_due(&term, &intent).await;
        let open = fixture.intent(id).await;
        assert_eq!(cancel(&fixture, id, false).await, Cancellation::AttemptInProgress(open.clone()));
        for _ in 0..2 {
            assert_eq!(cancel(&fixture, id, true).await, Cancellation::AfterAttempt(open.clone()));
        }
        assert_eq!(fixture.finish(&term, &attempt, outcome).await, Some(expected), "{id}");
    }
    let retried = fixture.intent("retried").await;
    assert!(is_cancelled(&retried), "{retried:?}");
    assert_eq!(cancel(&fixture, "retried", false).await, Cancellation::CancelledBefore(retried));
    assert_eq!(fixture.history("retried").await.attempts.len(), 1);
    assert_eq!(fixture.intent("accepted").await.state.status(), Status::Accepted);
    assert_eq!(pending_events(&fixture).await, 2);
    let mut ended: Vec<_> = fixture
        .store
        .activity(60)
        .await
        .unwrap()
        .ended
        .iter()
        .map(|ended| (ended.status.as_str(), ended.intents))
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, [("accepted", 1), ("exhausted", 1)]);
}

pub async fn a_request_to_cancel_is_kept_over_terms_and_postponements(fixture: Fixture) {
    let old = fixture.lead("me").await;
    let interrupted = fixture.submit("interrupted", &max_attempts(3)).await;
    let postponed = fixture.submit("postponed", &with_webhook("http://hook.test", max_attempts(3))).await;
    let other = fixture.submit("other", &max_attempts(3)).await;
    for intent in [&interrupted, &postponed, &other] {
        fixture.start_due(&old, intent).await;
    }
    for id in ["interrupted", "postponed"] {
        assert!(matches!(cancel(&fixture, id, true).await, Cancellation::AfterAttempt(_)));
    }
    let due = fixture.now().await;
    let postpones =
        [&postponed, &other].map(|intent| PostponeAttempt { seq: intent.seq, attempt_number: 1, due }).to_vec();
    let results = fixture.fenced(FencedWrites { postpones, ..writes(&old) }).await.unwrap();
    assert_eq!(results.ended.iter().map(|intent| intent.id.as_str()).collect::<Vec<_>>(), ["postponed"]);
    assert!(is_cancelled(&results.ended[0]));
    assert_eq!((fixture.intent("postponed").await, results.ended[0].attempt_count), (results.ended[0].clone(), 0));
    assert_eq!(pending_events(&fixture).await, 1);
    assert_eq!(fixture.intent("other").await.state, State::Pending, "nobody asked to cancel it");

    fixture.store.release_lease(old).await.unwrap();
    let new = fixture.lead("other").await;
    let open = fixture.store.open_attempts_before(new.epoch, 10).await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(
        fixture.finish(&new, &open[0], Outcome::interrupted()).await,
        Some(FinishResult::RecordedAndCancelled),
        "a later term keeps the request"
    );
    assert!(is_cancelled(&fixture.intent("interrupted").await));
}

pub async fn a_scheduled_intent_waits_for_its_start(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let start = fixture.now().await + 3 * fixture.short;
    let new = scheduled("a", &fixture.short_deadline(), start);
    let Submitted::Created(created) = submit_to(&*fixture.store, new).await else { panic!("not created") };
    assert_eq!((created.not_before, created.begins_at(), created.waits_until()), (Some(start), start, Some(start)));
    assert_eq!(fixture.intent("a").await, created);
    let waiting = fixture.waiting(&created).await;
    assert_eq!(waiting.due, start);
    fixture.pass(2 * fixture.short).await;
    let results = fixture.fenced(FencedWrites { expire: Some(10), ..writes(&term) }).await.unwrap();
    assert!(results.ended.is_empty(), "the deadline counts from the start");
    assert!(matches!(fixture.start(&term, &waiting).await, Some(StartResult::NotDue { due, .. }) if due == start));
    fixture.pass(fixture.short).await;
    let attempt = fixture.start_due(&term, &created).await;
    assert_eq!(attempt.begins_at, start);
    assert_eq!(policy::deadline(&attempt.contract, attempt.begins_at), Some(start + fixture.short));
    assert_eq!(fixture.intent("a").await.waits_until(), None);
    let [open] = &fixture.store.open_attempts_before(i64::MAX, 10).await.unwrap()[..] else { panic!("not open") };
    assert_eq!(open.begins_at, start, "also for the term that closes it");
    assert_eq!(fixture.finish(&term, &attempt, accepted()).await, Some(FinishResult::Recorded));
}

pub async fn the_start_is_compared_and_bounded(fixture: Fixture) {
    let now = fixture.now().await;
    let (soon, late) = (now + Duration::from_secs(60), now + MAX_AHEAD + Duration::from_secs(3600));
    let submit = async |id: &str, not_before: Option<Timestamp>| {
        submit_to(&*fixture.store, NewIntent { not_before, ..new_intent(id, &deadline(5), b"{}") }).await
    };
    let Submitted::Created(created) = submit("a", Some(soon)).await else { panic!("not created") };
    assert_eq!(submit("a", Some(soon)).await, Submitted::Existing(created.clone()));
    for other in [None, Some(soon + Duration::from_micros(1)), Some(late)] {
        let Submitted::Conflict(conflict) = submit("a", other).await else { panic!("no conflict: {other:?}") };
        assert_eq!(
            (conflict.target_differs, conflict.payload_differs, conflict.not_before_differs),
            (false, false, true)
        );
        assert_eq!(conflict.existing, created);
    }
    assert_eq!(submit("b", Some(late)).await, Submitted::TooFarAhead);
    assert!(fixture.find("b").await.is_none());
    let past = Timestamp::from_micros(0);
    let Submitted::Created(created) = submit("c", Some(past)).await else { panic!("not created") };
    assert_eq!((created.not_before, created.begins_at()), (Some(past), created.created_at), "the past means now");
    assert_eq!(fixture.waiting(&created).await.due, created.created_at);
    assert!(matches!(submit("c", None).await, Submitted::Conflict(_)));
}

pub async fn only_intents_without_a_scheduled_start_are_started_on_insert(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for (id, not_before) in [("future", fixture.now().await + fixture.short), ("past", Timestamp::from_micros(0))] {
        let start_on_insert = Some(StartOnInsert { term: term.clone(), slots: Arc::new(OneSlot::default()) });
        let submits = vec![scheduled(id, &one_shot(), not_before)];
        let batch = WriteBatch { submits, start_on_insert, ..WriteBatch::default() };
        let results = fixture.store.commit(batch).await.unwrap();
        assert!(results.started.is_empty(), "{id}");
        assert!(!fixture.intent(id).await.attempt_open, "{id}");
    }
}

/// A submission that repeats `old` and belongs to the chain of `first`.
fn repeats(old: &str, first: &str, redrive: Option<RedriveId>) -> NewIntent {
    let link = RedriveLink { of: intent_id(old), redrive, gateway_key: intent_id(first), audit: None };
    let id = redriven_id(&link.of, &redrive.map(|id| id.to_string()).unwrap_or_default());
    NewIntent { id, redrive: Some(link), ..new_intent("x", &one_shot(), b"{}") }
}

pub async fn an_intent_is_repeated_once_under_the_key_of_its_chain(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let old = fixture.submit("a \"b\" ~c", &one_shot()).await;
    fixture.attempt(&term, &old, Outcome::error("x")).await;
    let redrive = RedriveId::from_random([7; 16]);
    let new = repeats(old.id.as_str(), "first", Some(redrive));
    let Submitted::Created(created) = submit_to(&*fixture.store, new.clone()).await else { panic!("not created") };
    assert_eq!(created.redrive_of, Some(old.id.clone()));
    assert_eq!(fixture.intent(created.id.as_str()).await, created);
    assert_eq!(fixture.history(old.id.as_str()).await.redriven_as, Some(created.id.clone()));
    assert_eq!(fixture.history(created.id.as_str()).await.redriven_as, None);
    assert_eq!(submit_to(&*fixture.other, new).await, Submitted::Existing(created.clone()), "created once");
    let another = repeats(old.id.as_str(), "first", None);
    assert_eq!(submit_to(&*fixture.other, another.clone()).await, Submitted::AlreadyRedriven);
    assert!(fixture.find(another.id.as_str()).await.is_none());

    let attempt = fixture.start_due(&term, &created).await;
    assert_eq!(attempt.idempotency_key, Some(intent_id("first")));
    let [open] = &fixture.store.open_attempts_before(i64::MAX, 10).await.unwrap()[..] else { panic!("not open") };
    assert_eq!(open.idempotency_key, Some(intent_id("first")));
    assert_eq!(fixture.finish(&term, &attempt, accepted()).await, Some(FinishResult::Recorded));
}

pub async fn an_intent_that_repeats_another_may_be_started_on_insert(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let start_on_insert = Some(StartOnInsert { term, slots: Arc::new(OneSlot::default()) });
    let batch = WriteBatch { submits: vec![repeats("a", "first", None)], start_on_insert, ..WriteBatch::default() };
    let results = fixture.store.commit(batch).await.unwrap();
    assert_eq!(results.started.len(), 1);
    assert_eq!(results.started[0].attempt.idempotency_key, Some(intent_id("first")));
}

pub async fn retention_deletes_options_with_their_intents(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let new = repeats("gone", "gone", None);
    for _ in 0..2 {
        let Submitted::Created(created) = submit_to(&*fixture.store, new.clone()).await else {
            panic!("the deleted one still counts")
        };
        fixture.attempt(&term, &created, accepted()).await;
        fixture.pass(fixture.short).await;
        assert_eq!(fixture.purge(&term, Duration::ZERO, 10).await.iter().sum::<usize>(), 1);
    }
}
