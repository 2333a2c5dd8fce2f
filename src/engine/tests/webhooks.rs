//! Webhooks in virtual time: days of a dead receiver take milliseconds.

use std::collections::HashMap;

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::fixtures::with_webhook;
use crate::domain::webhook::{EventStatus, INTERRUPTED, TryOutcome};
use crate::store::Redelivery;

const RECEIVER: &str = "http://here.test/events";
const HOUR: Duration = Duration::from_secs(3600);

fn status(status: u16) -> TryOutcome {
    TryOutcome::Answered { status, retry_after: None, remark: None }
}

fn delivered(history: &History) -> bool {
    history.webhook.as_ref().is_some_and(|webhook| webhook.status == EventStatus::Delivered)
}

impl Instance {
    /// Returns the intents of all events that were sent to receivers, in order.
    fn sent_events(&self) -> Vec<String> {
        self.receivers.sent.lock().unwrap().clone()
    }

    /// Waits until `done` returns true for the history of this intent.
    async fn until_webhook(&self, id: &str, done: impl Fn(&History) -> bool) -> History {
        for _ in 0..20_000 {
            let history = self.history(id).await;
            if done(&history) {
                return history;
            }
            pass(10 * SECOND).await;
        }
        panic!("{id} did not get to the expected state: {:?}", self.history(id).await)
    }
}

#[actix::test]
async fn an_event_is_sent_as_soon_as_its_intent_ends() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let start = monotonic();
    instance.submit("a", &with_webhook(RECEIVER, one_shot())).await;
    instance.until_terminal("a").await;
    for _ in 0..1000 {
        if delivered(&instance.history("a").await) {
            break;
        }
        pass(Duration::from_millis(1)).await;
    }
    assert!(monotonic().duration_since(start) < Duration::from_millis(100), "not by polling");
    assert_eq!(instance.sent_events(), ["a"]);
    instance.submit("b", &one_shot()).await;
    instance.until_terminal("b").await;
    pass(2 * SECOND).await;
    assert_eq!(instance.sent_events(), ["a"], "a contract without a webhook has no event");
}

#[actix::test]
async fn a_receiver_that_was_down_for_an_hour_gets_every_event_once() {
    let lab = Lab::new();
    let origin = monotonic();
    let up = move || monotonic().duration_since(origin) > HOUR;
    let receivers = ScriptedReceivers::answering(move |_, _| {
        (Duration::ZERO, if up() { status(200) } else { TryOutcome::Error("refused".to_owned()) })
    });
    let instance = lab.start_with(settings(), always(accepted()), receivers);
    instance.lease_after(0).await;
    for n in 0..20 {
        instance.submit(&format!("{n}"), &with_webhook(RECEIVER, one_shot())).await;
        pass(4 * 60 * SECOND).await;
    }
    for n in 0..20 {
        let history = instance.until_webhook(&format!("{n}"), delivered).await;
        let tries = history.webhook.unwrap().tries;
        let failed = tries.iter().filter(|tried| tried.http_status.is_none()).count();
        assert_eq!(failed, tries.len() - 1, "every try is recorded, and only the last one was accepted");
    }
    let mut sent: HashMap<String, usize> = HashMap::new();
    instance.sent_events().into_iter().for_each(|id| *sent.entry(id).or_default() += 1);
    for n in 0..20 {
        let kept = instance.history(&format!("{n}")).await.webhook.unwrap().tries.len();
        assert_eq!(sent[&format!("{n}")], kept, "sent as often as recorded");
    }
    assert_eq!(sent.len(), 20);
}

#[actix::test]
async fn an_event_that_failed_for_good_can_be_redelivered() {
    let lab = Lab::new();
    let receivers =
        ScriptedReceivers::answering(|_, number| (Duration::ZERO, status(if number == 1 { 410 } else { 200 })));
    let instance = lab.start_with(settings(), always(accepted()), receivers);
    instance.submit("a", &with_webhook(RECEIVER, one_shot())).await;
    let failed = |history: &History| history.webhook.as_ref().is_some_and(|w| w.status == EventStatus::Failed);
    let history = instance.until_webhook("a", failed).await;
    assert_eq!(history.webhook.unwrap().tries.len(), 1, "status 410 is not tried again");
    pass(HOUR).await;
    assert_eq!(instance.sent_events(), ["a"]);
    assert_eq!(instance.engine.store.redeliver_webhook(intent_id("a"), somebody()).await, Ok(Redelivery::Pending));
    let history = instance.until_webhook("a", delivered).await;
    assert_eq!(history.webhook.unwrap().tries.len(), 2);
}

/// Two thousand events are pending for a receiver at which every try times out.
#[actix::test]
async fn a_dead_receiver_delays_no_attempt_and_no_other_receiver() {
    let lab = Lab::new();
    let store = lab.store();
    let submits: Vec<_> = (0..2000)
        .map(|n| new_intent(&format!("dead {n}"), &with_webhook("http://dead.test", one_shot()), b"{}"))
        .collect();
    for chunk in submits.chunks(500) {
        store.commit(WriteBatch { submits: chunk.to_vec(), ..WriteBatch::default() }).await.unwrap();
    }
    let receivers = ScriptedReceivers::answering(|id, _| match id.starts_with("dead") {
        true => (15 * SECOND, TryOutcome::Error("timed out".to_owned())),
        false => (Duration::ZERO, status(204)),
    });
    let instance = lab.start_with(settings(), always(accepted()), receivers);
    instance.lease_after(0).await;
    instance.until_terminal("dead 1999").await;
    pass(20 * SECOND).await;
    let taken = instance.engine.metrics.webhooks_inflight.get();
    assert!((1..=4).contains(&taken), "{taken} slots taken by a receiver that fails");
    let start = monotonic();
    instance.submit("alive", &with_webhook(RECEIVER, one_shot())).await;
    instance.until_terminal("alive").await;
    assert!(monotonic().duration_since(start) < SECOND, "an attempt waited for a webhook");
    for _ in 0..1000 {
        if delivered(&instance.history("alive").await) {
            break;
        }
        pass(Duration::from_millis(1)).await;
    }
    assert!(monotonic().duration_since(start) < SECOND, "an event waited for another receiver");
}

#[actix::test]
async fn a_try_that_a_crash_interrupts_is_recorded_and_repeated() {
    let lab = Lab::new();
    let hanging = ScriptedReceivers::answering(|_, _| (HOUR, status(200)));
    let first = lab.start_with(settings(), always(accepted()), hanging);
    first.submit("a", &with_webhook(RECEIVER, one_shot())).await;
    first.until_terminal("a").await;
    while first.sent_events().is_empty() {
        pass(Duration::from_millis(10)).await;
    }
    // The first instance cannot renew the lease any more, and another one takes over.
    first.faults.add("renew_lease", 1000, Fault::Fail);
    first.faults.add("acquire_lease", 10_000, Fault::Fail);
    let second = lab.start(LeaderSettings { holder_id: "other".into(), ..settings() }, always(accepted()));
    second.lease_after(0).await;
    let history = second.until_webhook("a", delivered).await;
    let tries = history.webhook.unwrap().tries;
    assert_eq!(tries.len(), 2);
    assert_eq!((tries[0].error.as_deref(), tries[1].http_status), (Some(INTERRUPTED), Some(200)));
    assert_eq!(second.sent_events(), ["a"]);
}

#[actix::test]
async fn an_orderly_stop_records_the_tries_that_it_interrupts() {
    let lab = Lab::new();
    let hanging = ScriptedReceivers::answering(|_, _| (HOUR, status(200)));
    let instance = lab.start_with(settings(), always(accepted()), hanging);
    instance.submit("a", &with_webhook(RECEIVER, one_shot())).await;
    instance.until_terminal("a").await;
    while instance.sent_events().is_empty() {
        pass(Duration::from_millis(10)).await;
    }
    let start = monotonic();
    instance.engine.stop_leading().await;
    assert!(monotonic().duration_since(start) < SECOND, "a slow receiver held up the next leader");
    let webhook = instance.history("a").await.webhook.unwrap();
    assert_eq!((webhook.status, webhook.tries.len()), (EventStatus::Pending, 1));
    assert_eq!(webhook.tries[0].error.as_deref(), Some(INTERRUPTED));
    assert!(webhook.next_try_at.is_some(), "due for the next leader");
}

#[actix::test]
async fn store_calls_that_fail_lose_no_event_and_send_none_twice() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    for call in ["due_webhooks", "start_webhooks", "finish_webhooks", "close_webhooks"] {
        for (what, fault) in [("fails", Fault::Fail), ("fails afterwards", Fault::FailAfter)] {
            instance.faults.add(call, 3, fault);
            if call == "close_webhooks" {
                // Otherwise there is nothing to close.
                instance.faults.add("start_webhooks", 1, Fault::FailAfter);
            }
            let id = format!("{call} {what}");
            instance.submit(&id, &with_webhook(RECEIVER, one_shot())).await;
            let history = instance.until_webhook(&id, delivered).await;
            let tries = history.webhook.unwrap().tries;
            assert_eq!(instance.sent_events().iter().filter(|sent| **sent == id).count(), 1, "{id}");
            assert_eq!(tries.last().unwrap().http_status, Some(200), "{id}");
            assert_eq!(instance.faults.left(call), 0);
        }
    }
}

/// Several tries finish together when the service stops, and the store records none of them.
#[actix::test]
async fn a_stop_does_not_hang_when_the_store_fails() {
    for fault in [Fault::Fail, Fault::SlowAnswer(HOUR)] {
        let lab = Lab::with_paused_clock();
        let hanging = ScriptedReceivers::answering(|_, _| (HOUR, status(200)));
        let instance = lab.start_with(settings(), always(accepted()), hanging);
        for n in 0..5 {
            instance.submit(&format!("{n}"), &with_webhook(RECEIVER, one_shot())).await;
        }
        while instance.sent_events().len() < 5 {
            pass(Duration::from_millis(10)).await;
        }
        instance.faults.add("finish_webhooks", 100, fault);
        let start = monotonic();
        instance.engine.stop_leading().await;
        assert!(monotonic().duration_since(start) < 4 * SECOND, "the lease was not released in time");
        assert_eq!(instance.engine.board.lease().map(|lease| lease.term), None);
    }
}

#[actix::test]
async fn an_open_try_that_is_not_under_way_is_repeated_within_the_term() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let term = instance.lease_after(0).await.term;
    pass(SECOND).await;
    instance.submit("a", &with_webhook(RECEIVER, one_shot())).await;
    instance.until_webhook("a", delivered).await;
    // As if starting a try had taken effect after the caller stopped waiting for the answer.
    let store = lab.store();
    store.redeliver_webhook(intent_id("a"), somebody()).await.unwrap();
    let seq = instance.history("a").await.intent.seq;
    assert_eq!(store.start_webhooks(term.clone(), vec![seq]).await.unwrap().len(), 1);
    let tries = |history: &History| history.webhook.as_ref().unwrap().tries.len();
    let history = instance.until_webhook("a", |history| delivered(history) && tries(history) == 3).await;
    assert_eq!(history.webhook.unwrap().tries[1].error.as_deref(), Some(INTERRUPTED));
    assert_eq!(instance.engine.board.lease().unwrap().term, term);
}

#[actix::test]
async fn a_dead_webhook_actor_is_replaced_within_the_term() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let term = instance.lease_after(0).await.term;
    pass(SECOND).await;
    instance.engine.leader().send(CrashChild(Child::Webhooks)).await.unwrap();
    pass(SECOND).await;
    instance.submit("a", &with_webhook(RECEIVER, one_shot())).await;
    instance.until_terminal("a").await;
    instance.until_webhook("a", delivered).await;
    assert_eq!(instance.engine.board.lease().unwrap().term, term);
}

#[actix::test]
async fn a_lack_of_local_resources_uses_up_no_try() {
    let lab = Lab::new();
    let receivers = ScriptedReceivers::healthy();
    receivers.shortages.store(20, Ordering::SeqCst);
    let instance = lab.start_with(settings(), always(accepted()), receivers);
    instance.lease_after(0).await;
    instance.submit("a", &with_webhook(RECEIVER, one_shot())).await;
    let tries = instance.until_webhook("a", delivered).await.webhook.unwrap().tries;
    assert_eq!((tries.len(), tries[0].http_status), (1, Some(200)));
    // If the lack lasts, it becomes the error of the try, and the event is tried again.
    instance.receivers.shortages.store(40, Ordering::SeqCst);
    instance.submit("b", &with_webhook(RECEIVER, one_shot())).await;
    let tries = instance.until_webhook("b", delivered).await.webhook.unwrap().tries;
    assert_eq!(tries.len(), 2);
    assert_eq!(tries[0].error.as_deref(), Some("not sent: too many open files"));
}
