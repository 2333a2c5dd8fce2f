//! Scheduled starts, and intents that are cancelled before, during and between attempts.

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::store::{Cancellation, NewIntent, RedriveLink};

impl Instance {
    async fn cancel(&self, id: &str, after_attempt: bool) -> Cancellation {
        self.engine.store.cancel(intent_id(id), after_attempt, somebody()).await.unwrap()
    }
}

#[actix::test]
async fn a_scheduled_intent_starts_at_its_time_and_its_deadline_counts_from_then() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(error()));
    let epoch = instance.lease_after(0).await.term.epoch;
    let start = Timestamp::from_micros(BASE) + 2 * 3600 * SECOND;
    for (id, contract) in [("deadline", deadline(12)), ("once", one_shot())] {
        let new = NewIntent { not_before: Some(start), ..new_intent(id, &contract, b"{}") };
        assert!(matches!(instance.engine.store.submit(new).await, Ok(Submitted::Created(_))));
    }
    for (id, reason, attempts) in
        [("deadline", ExhaustedReason::DeadlineExceeded, 3), ("once", ExhaustedReason::OneShot, 1)]
    {
        let history = instance.until(id, |history| history.intent.state.is_terminal()).await;
        assert_eq!((exhausted(&history), history.attempts.len()), (reason, attempts), "{id}");
        let waited = history.attempts[0].started_at.since(start);
        assert!(history.attempts[0].started_at >= start && waited < SECOND, "{id}: {waited:?}");
    }
    assert_eq!(instance.engine.board.lease().unwrap().term.epoch, epoch, "one term");
}

#[actix::test]
async fn a_cancelled_intent_is_not_sent_again() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(error()));
    instance.submit("a", &max_attempts(9)).await;
    instance.until("a", |history| history.attempts.len() == 1 && !history.intent.attempt_open).await;
    assert!(matches!(instance.cancel("a", false).await, Cancellation::Cancelled(_)));
    pass(3600 * SECOND).await;
    let history = instance.history("a").await;
    assert_eq!((exhausted(&history), history.attempts.len()), (ExhaustedReason::Cancelled, 1));
    assert_eq!(instance.calls(1).await.len(), 1);
}

#[actix::test]
async fn an_intent_that_is_cancelled_during_its_attempt_ends_with_it() {
    let lab = Lab::new();
    let outcome = |id: &str| if id == "accepted" { accepted() } else { error() };
    let instance = lab.start(settings(), script(move |id, _| (10 * SECOND, Some(outcome(id)))));
    for id in ["accepted", "failed"] {
        instance.submit(id, &max_attempts(9)).await;
    }
    instance.calls(2).await;
    for id in ["accepted", "failed"] {
        assert!(matches!(instance.cancel(id, false).await, Cancellation::AttemptInProgress(_)));
        assert!(matches!(instance.cancel(id, true).await, Cancellation::AfterAttempt(_)));
    }
    assert_eq!(instance.until_terminal("accepted").await.intent.state.status(), Status::Accepted);
    let failed = instance.until_terminal("failed").await;
    assert_eq!((exhausted(&failed), failed.attempts.len()), (ExhaustedReason::Cancelled, 1));
    let metrics = String::from_utf8(instance.engine.metrics.text().unwrap()).unwrap();
    for line in [
        "submission_exhausted_total{reason=\"cancelled\"} 1",
        "submission_intents_terminal_total{status=\"exhausted\"} 1",
        "submission_retries_scheduled_total 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    pass(3600 * SECOND).await;
    assert_eq!(instance.calls(2).await.len(), 2);
}

#[actix::test]
async fn a_request_to_cancel_survives_the_leader_that_made_the_attempt() {
    let lab = Lab::new();
    let first = lab.start(settings(), script(|_, _| (3600 * SECOND, Some(error()))));
    first.submit("a", &max_attempts(9)).await;
    first.calls(1).await;
    assert!(matches!(first.cancel("a", true).await, Cancellation::AfterAttempt(_)));
    // It cannot renew its lease, and its attempt never ends.
    first.faults.add("renew_lease", 100_000, Fault::Fail);
    first.faults.add("acquire_lease", 100_000, Fault::Fail);
    let second = lab.start(LeaderSettings { holder_id: "second".into(), ..settings() }, always(accepted()));
    let history = second.until_terminal("a").await;
    assert_eq!((exhausted(&history), history.attempts.len()), (ExhaustedReason::Cancelled, 1));
    assert_eq!(history.attempts[0].outcome, Outcome::interrupted());
    pass(3600 * SECOND).await;
    assert!(second.gateway.calls.lock().unwrap().is_empty(), "no second attempt");
}

#[actix::test]
async fn an_intent_that_repeats_another_is_sent_under_the_key_of_its_chain() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let link = RedriveLink { of: intent_id("old"), redrive: None, gateway_key: intent_id("first"), audit: None };
    let new = NewIntent { redrive: Some(link), ..new_intent("new", &one_shot(), b"{}") };
    assert!(matches!(instance.engine.store.submit(new).await, Ok(Submitted::Created(_))));
    instance.until_terminal("new").await;
    assert_eq!(instance.gateway.keys.lock().unwrap().clone(), [Some("first".to_owned())]);
}
