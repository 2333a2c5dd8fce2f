//! Attempts: they are recorded before they are made, finished once, and only by the term that holds the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Fixture, LONG, accepted, acquire_from, finished, new_intent, purge_all, rejected, writes};
use crate::domain::contract::fixtures::{deadline, max_attempts, one_shot};
use crate::domain::intent::{ExhaustedReason, State, Status};
use crate::domain::lease::Term;
use crate::domain::outcome::Outcome;
use crate::domain::schedule::{Lane, Waiting};
use crate::domain::time::Timestamp;
use crate::store::{
    FencedError, FencedWrites, FinishResult, InFlight, InFlightGuard, OpenAttempt, PostponeAttempt, SlotGuard,
    SlotSource, StartOnInsert, StartResult, StartedOnInsert, Submitted, WriteBatch,
};
use crate::telemetry::metrics::Metrics;

const RETRY: Duration = Duration::from_secs(5);

pub async fn an_attempt_is_recorded_as_open_before_it_is_made(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &max_attempts(3)).await;
    let waiting = fixture.waiting(&intent).await;
    let Some(StartResult::Started { attempt, due, .. }) = fixture.start(&term, &waiting).await else {
        panic!("not started")
    };
    assert_eq!((attempt.attempt_number, attempt.lease_epoch), (1, term.epoch));
    assert_eq!((attempt.intent_id.as_str(), attempt.begins_at), ("a", intent.created_at));
    assert_eq!((due, *attempt.contract == max_attempts(3)), (intent.created_at, true));
    assert!(attempt.started_at >= intent.created_at);
    let stored = fixture.intent("a").await;
    assert_eq!((stored.attempt_count, stored.attempt_open), (1, true));
    assert!(fixture.history("a").await.attempts.is_empty(), "the audit row comes with the outcome");
    for attempt_count in [waiting.attempt_count, 1, 7] {
        let stale = Waiting { attempt_count, ..waiting.clone() };
        assert!(matches!(fixture.start(&term, &stale).await, Some(StartResult::Stale)), "started twice: {stale:?}");
    }
}

pub async fn every_decision_is_applied(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let cases = [
        ("accept", max_attempts(2), accepted()),
        ("reject", max_attempts(2), rejected("invalid_recipient")),
        ("exhaust", one_shot(), rejected("provider_failure")),
        ("retry", max_attempts(2), Outcome::error("timed out")),
    ];
    for (id, contract, outcome) in cases {
        let intent = fixture.submit(id, &contract).await;
        fixture.attempt(&term, &intent, outcome.clone()).await;
        let history = fixture.history(id).await;
        let attempt = &history.attempts[0];
        assert_eq!((history.attempts.len(), attempt.attempt_number, &attempt.outcome), (1, 1, &outcome), "{id}");
        assert!(attempt.started_at <= attempt.finished_at);
        assert_eq!(attempt.lease_epoch, term.epoch);
        let at = attempt.finished_at;
        let expected = match id {
            "accept" => State::Accepted { at },
            "reject" => State::Rejected { at, reason: "invalid_recipient".to_owned() },
            "exhaust" => State::Exhausted { at, reason: ExhaustedReason::OneShot },
            _ => State::Pending,
        };
        assert_eq!(history.intent.state, expected, "{id}");
        assert!(!history.intent.attempt_open);
    }
    let retry = fixture.waiting(&fixture.intent("retry").await).await;
    assert_eq!(retry.attempt_count, 1);
    assert_eq!(retry.due.since(fixture.history("retry").await.attempts[0].finished_at), RETRY);
}

pub async fn an_attempt_is_finished_once(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &max_attempts(3)).await;
    let waiting = fixture.waiting(&intent).await;
    let attempt = fixture.start_due(&term, &intent).await;
    assert_eq!(fixture.finish(&term, &attempt, accepted()).await, Some(FinishResult::Recorded));
    let after = fixture.history("a").await;
    for outcome in [accepted(), rejected("invalid_recipient"), Outcome::error("late")] {
        assert_eq!(fixture.finish(&term, &attempt, outcome).await, Some(FinishResult::NotOpen));
    }
    for count in 0..3 {
        let again = fixture.start(&term, &Waiting { attempt_count: count, ..waiting.clone() }).await;
        assert!(matches!(again, Some(StartResult::Stale)), "a terminal intent never starts again");
    }
    assert_eq!(fixture.history("a").await, after);
}

pub async fn a_retry_starts_when_it_is_due_and_not_before(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &max_attempts(3)).await;
    fixture.attempt(&term, &intent, Outcome::error("refused")).await;
    let retry = fixture.waiting(&intent).await;
    match fixture.start(&term, &retry).await {
        Some(StartResult::NotDue { due, now }) => assert!(due == retry.due && now < due),
        other => panic!("started before it was due: {other:?}"),
    }
    fixture.pass(RETRY).await;
    let attempt = fixture.start_due(&term, &intent).await;
    assert_eq!(attempt.attempt_number, 2);
    assert!(attempt.started_at >= retry.due);
}

pub async fn no_attempt_starts_after_the_deadline(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &fixture.short_deadline()).await;
    let waiting = fixture.waiting(&intent).await;
    fixture.pass(fixture.short).await;
    let Some(StartResult::Ended(ended)) = fixture.start(&term, &waiting).await else { panic!("started") };
    assert_eq!(ended, fixture.intent("a").await);
    assert_eq!(ended.state.exhausted_reason(), Some(ExhaustedReason::DeadlineExceeded));
    assert_eq!(ended.attempt_count, 0);
    assert!(ended.state.completed_at().unwrap().since(intent.created_at) >= fixture.short);
}

pub async fn only_overdue_waiting_intents_expire(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let expire = async |limit| {
        let results = fixture.fenced(FencedWrites { expire: Some(limit), ..writes(&term) }).await.unwrap();
        let mut ids: Vec<_> = results.ended.iter().map(|intent| intent.id.to_string()).collect();
        ids.sort();
        ids
    };
    for id in ["a", "b", "c", "open"] {
        fixture.submit(id, &fixture.short_deadline()).await;
    }
    fixture.submit("later", &deadline(3600)).await;
    fixture.submit("never", &one_shot()).await;
    let open = fixture.start_due(&term, &fixture.intent("open").await).await;
    assert!(expire(10).await.is_empty());
    fixture.pass(fixture.short).await;
    assert_eq!(expire(2).await.len(), 2);
    assert_eq!(expire(10).await.len(), 1);
    assert!(expire(10).await.is_empty());
    for id in ["a", "b", "c"] {
        assert_eq!(fixture.intent(id).await.state.exhausted_reason(), Some(ExhaustedReason::DeadlineExceeded));
    }
    for id in ["later", "never", "open"] {
        assert_eq!(fixture.intent(id).await.state, State::Pending, "{id}");
    }
    assert_eq!(fixture.finish(&term, &open, Outcome::error("x")).await, Some(FinishResult::Recorded));
}

/// Makes every write of a leader with a term that is over, on a store where each of them would change something.
async fn assert_fenced(fixture: &Fixture, stale: &Term) {
    let term_now = fixture.acquire("somebody else").await.map(|lease| lease.term);
    let fresh = fixture.submit("fresh", &max_attempts(3)).await;
    let open = match &term_now {
        Some(term) => {
            let intent = fixture.submit("open", &max_attempts(3)).await;
            Some(fixture.start_due(term, &intent).await)
        }
        None => None,
    };
    let ids = ["overdue", "done", "fresh"];
    let before = [fixture.history(ids[0]).await, fixture.history(ids[1]).await, fixture.history(ids[2]).await];
    let waiting = fixture.waiting(&fresh).await;
    let now = fixture.now().await;
    assert!(fixture.start(stale, &waiting).await.is_none(), "start");
    assert!(fixture.fenced(FencedWrites { expire: Some(10), ..writes(stale) }).await.is_none(), "expire");
    if let Some(open) = &open {
        let finishes = vec![finished(open, accepted(), now)];
        assert!(fixture.fenced(FencedWrites { finishes, ..writes(stale) }).await.is_none(), "finish");
        let history = fixture.history("open").await;
        assert!(history.intent.attempt_open && history.attempts.is_empty(), "finish: {history:?}");
    }
    assert_eq!(fixture.store.purge(stale.clone(), purge_all()).await, Err(FencedError::TermOver), "purge");
    assert_eq!(fixture.store.renew_lease(stale.clone(), LONG).await, Err(FencedError::TermOver), "renew");
    fixture.store.release_lease(stale.clone()).await.unwrap();
    if let Some(term) = term_now {
        assert!(fixture.store.renew_lease(term, LONG).await.is_ok(), "released a lease of another term");
    }
    let after = [fixture.history(ids[0]).await, fixture.history(ids[1]).await, fixture.history(ids[2]).await];
    assert_eq!(before, after);
}

async fn a_term_with_something_to_do(fixture: &Fixture, duration: Duration) -> Term {
    let term = acquire_from(&*fixture.store, "lease", "old", duration).await.unwrap().term;
    let done = fixture.submit("done", &one_shot()).await;
    fixture.attempt(&term, &done, accepted()).await;
    fixture.submit("overdue", &fixture.short_deadline()).await;
    term
}

pub async fn a_stale_term_changes_nothing(fixture: Fixture) {
    let stale = a_term_with_something_to_do(&fixture, LONG).await;
    fixture.store.release_lease(stale.clone()).await.unwrap();
    fixture.pass(fixture.short).await;
    assert_fenced(&fixture, &stale).await;
    for wrong in [
        Term { epoch: stale.epoch + 7, ..stale.clone() },
        Term { holder_id: "somebody else".into(), ..stale.clone() },
        Term { lease_name: "another lease".into(), ..stale },
    ] {
        assert!(fixture.fenced(FencedWrites { expire: Some(10), ..writes(&wrong) }).await.is_none(), "{wrong:?}");
    }
}

pub async fn an_expired_term_changes_nothing_even_without_a_successor(fixture: Fixture) {
    let stale = a_term_with_something_to_do(&fixture, fixture.short).await;
    fixture.pass(fixture.short).await;
    let purge = fixture.store.purge(stale.clone(), purge_all()).await;
    assert_eq!(purge, Err(FencedError::TermOver));
    assert!(fixture.fenced(FencedWrites { expire: Some(10), ..writes(&stale) }).await.is_none());
    assert_eq!(fixture.intent("overdue").await.state, State::Pending);
    assert_fenced(&fixture, &stale).await;
}

pub async fn submissions_are_stored_even_if_the_fenced_writes_are_refused(fixture: Fixture) {
    let stale = fixture.lead("old").await;
    fixture.store.release_lease(stale.clone()).await.unwrap();
    let batch = WriteBatch {
        submits: vec![new_intent("a", &one_shot(), b"{}")],
        fenced: Some(FencedWrites { expire: Some(1), ..writes(&stale) }),
        ..WriteBatch::default()
    };
    let results = fixture.store.commit(batch).await.unwrap();
    assert_eq!(results.fenced.err(), Some(FencedError::TermOver));
    assert!(matches!(results.submits[0], Ok(Submitted::Created(_))));
    assert!(fixture.find("a").await.is_some());
}

pub async fn the_next_term_closes_attempts_that_were_left_open(fixture: Fixture) {
    let old = fixture.lead("old").await;
    let mut left = Vec::new();
    for id in ["one", "two", "three"] {
        let contract = if id == "one" { one_shot() } else { max_attempts(3) };
        left.push(fixture.start_due(&old, &fixture.submit(id, &contract).await).await);
    }
    fixture.store.release_lease(old.clone()).await.unwrap();
    let new = fixture.lead("new").await;
    let mine = fixture.start_due(&new, &fixture.submit("mine", &one_shot()).await).await;
    assert_eq!(fixture.store.open_attempts_before(new.epoch, 2).await.unwrap().len(), 2, "the limit holds");
    let open = fixture.store.open_attempts_before(new.epoch, 10).await.unwrap();
    let ids: Vec<_> = open.iter().map(|attempt| attempt.intent_id.as_str()).collect();
    assert_eq!(ids, ["one", "two", "three"], "without the attempt of the new term");
    for (open, started) in open.iter().zip(&left) {
        assert_eq!((open.started_at, open.lease_epoch, open.attempt_number), (started.started_at, old.epoch, 1));
        assert_eq!(fixture.finish(&new, open, Outcome::interrupted()).await, Some(FinishResult::Recorded));
    }
    assert!(fixture.store.open_attempts_before(new.epoch, 10).await.unwrap().is_empty());
    assert_eq!(fixture.intent("one").await.state.exhausted_reason(), Some(ExhaustedReason::OneShot));
    assert_eq!(fixture.intent("two").await.state, State::Pending);
    assert!(
        fixture
            .fenced(FencedWrites { finishes: vec![finished(&left[1], accepted(), left[1].started_at)], ..writes(&old) })
            .await
            .is_none()
    );
    assert_eq!(fixture.finish(&new, &mine, accepted()).await, Some(FinishResult::Recorded));
}

pub async fn a_postponed_attempt_uses_up_no_number_and_waits_until_it_is_due(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &one_shot()).await;
    let attempt = fixture.start_due(&term, &intent).await;
    let cursor = fixture.store.schedule_snapshot(1).await.unwrap().cursor;
    let (now, later) = (fixture.now().await, fixture.now().await + Duration::from_secs(60));
    let postpone = async |term: &Term, attempt: &OpenAttempt, due: Timestamp| {
        let postpone = PostponeAttempt { seq: attempt.seq, attempt_number: attempt.attempt_number, due };
        let results = fixture.fenced(FencedWrites { postpones: vec![postpone], ..writes(term) }).await?;
        Some(*results.postpones[0].as_ref().unwrap())
    };
    let ended = Term { epoch: term.epoch - 1, ..term.clone() };
    assert_eq!(postpone(&ended, &attempt, now).await, None, "its term is over");
    assert!(fixture.intent("a").await.attempt_open);
    assert_eq!(postpone(&term, &attempt, later).await, Some(FinishResult::Recorded));
    let stored = fixture.intent("a").await;
    assert_eq!((stored.attempt_count, stored.attempt_open, &stored.state), (0, false, &State::Pending));
    assert!(fixture.history("a").await.attempts.is_empty(), "an attempt that was not sent has no audit row");
    let seen = fixture.refresh(&cursor, 10).await.changed;
    assert_eq!(seen.iter().map(|waiting| (waiting.seq, waiting.due)).collect::<Vec<_>>(), [(intent.seq, later)]);
    assert!(matches!(fixture.start(&term, &seen[0]).await, Some(StartResult::NotDue { due, .. }) if due == later));
    assert_eq!(postpone(&term, &attempt, now).await, Some(FinishResult::NotOpen), "it is not open any more");
    assert_eq!(fixture.finish(&term, &attempt, accepted()).await, Some(FinishResult::NotOpen));
    assert!(fixture.history("a").await.attempts.is_empty(), "an audit row without its update");

    let other = fixture.start_due(&term, &fixture.submit("b", &one_shot()).await).await;
    assert_eq!(postpone(&term, &other, now).await, Some(FinishResult::Recorded));
    let again = fixture.start_due(&term, &fixture.intent("b").await).await;
    assert_eq!(again.attempt_number, 1, "a number that was not sent is used again");
    assert_eq!(fixture.finish(&term, &again, accepted()).await, Some(FinishResult::Recorded));
    assert_eq!(fixture.intent("b").await.state.status(), Status::Accepted);
}

pub async fn an_invalid_item_fails_alone(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let mut attempts = Vec::new();
    for id in ["good", "bad", "fine"] {
        attempts.push(fixture.start_due(&term, &fixture.submit(id, &one_shot()).await).await);
    }
    (fixture.spoil)(attempts[1].seq).await;
    let now = fixture.now().await;
    let finishes = attempts.iter().map(|attempt| finished(attempt, accepted(), now)).collect();
    let batch = WriteBatch {
        submits: vec![new_intent("neighbour", &one_shot(), b"")],
        fenced: Some(FencedWrites { finishes, ..writes(&term) }),
        ..WriteBatch::default()
    };
    let results = fixture.store.commit(batch).await.unwrap();
    assert!(matches!(results.submits[0], Ok(Submitted::Created(_))));
    let results: Vec<_> = results.fenced.unwrap().finishes.iter().map(Result::is_ok).collect();
    assert_eq!(results, [true, false, true]);
    assert!(fixture.intent("bad").await.attempt_open, "the invalid item had no effect");
    assert!(fixture.intent("fine").await.state.is_terminal());
}

/// Gives out one slot.
#[derive(Default)]
pub struct OneSlot(AtomicBool);

impl SlotSource for OneSlot {
    fn take(&self, _: &Arc<Lane>, _: Timestamp) -> Option<(SlotGuard, InFlightGuard)> {
        let free = !self.0.swap(true, Ordering::SeqCst);
        let in_flight = || InFlight::new(Arc::new(Metrics::new().unwrap())).enter();
        free.then(|| (SlotGuard::new(|_| {}), in_flight()))
    }
}

/// An intent that is started on insert must look as if it had been started later.
pub async fn a_new_intent_may_be_started_on_insert(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let ended = Term { epoch: term.epoch - 1, ..term.clone() };
    let submit = async |ids: [&str; 2], term: &Term| {
        let submits = ids.map(|id| new_intent(id, &max_attempts(3), b"{}")).into();
        let start_on_insert = Some(StartOnInsert { term: term.clone(), slots: Arc::new(OneSlot::default()) });
        fixture.store.commit(WriteBatch { submits, start_on_insert, ..WriteBatch::default() }).await.unwrap()
    };
    assert!(submit(["x", "y"], &ended).await.started.is_empty(), "its term is over");
    let results = submit(["a", "b"], &term).await;
    let open: Vec<_> = results
        .submits
        .iter()
        .filter(|submitted| matches!(submitted, Ok(Submitted::Created(intent)) if intent.attempt_open))
        .collect();
    assert_eq!(open.len(), results.started.len());
    assert_eq!(results.started.len(), 1, "there was one slot");
    for StartedOnInsert { attempt, payload, .. } in results.started {
        assert_eq!((attempt.intent_id.as_str(), &payload[..], attempt.attempt_number), ("a", &b"{}"[..], 1));
        assert_eq!(attempt.lease_epoch, term.epoch);
        let left = fixture.store.open_attempts_before(term.epoch + 1, 9).await.unwrap();
        assert_eq!(left.len(), 1, "a later term would find and close it");
        assert_eq!(fixture.store.backlog().await.unwrap().all_waiting(), 3, "it does not wait");
        assert_eq!(fixture.finish(&term, &attempt, accepted()).await, Some(FinishResult::Recorded));
        let history = fixture.history("a").await;
        assert_eq!((history.attempts.len(), history.intent.attempt_count), (1, 1));
        assert_eq!(history.intent.state.status(), Status::Accepted);
    }
    let again = submit(["a", "b"], &term).await;
    assert!(again.started.is_empty(), "the intents exist already");
}
