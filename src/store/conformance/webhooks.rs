//! Webhook events: every end of an intent makes one pending, the term that holds the lease tries it, and none is lost.

use std::sync::Arc;
use std::time::Duration;

use super::{Fixture, LONG, accepted, acquire_from, finished, intent_id, rejected, writes};
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::Contract;
use crate::domain::contract::fixtures::{max_attempts, one_shot, with_webhook};
use crate::domain::intent::{ExhaustedReason, Intent, IntentSeq, Status};
use crate::domain::lease::Term;
use crate::domain::outcome::Outcome;
use crate::domain::webhook::{EventStatus, INTERRUPTED, ReceiverId, TryOutcome, Verdict};
use crate::store::{
    DueWebhooksQuery, FencedError, FencedWrites, FinishWebhookTry, OpenWebhookTry, Redelivery, StartResult,
    WebhookHistory, WebhookTry,
};

const RECEIVER: &str = "http://here.test/events";

fn with_receiver(contract: Contract) -> Contract {
    with_webhook(RECEIVER, contract)
}

fn query(limit: usize, per_receiver: usize) -> DueWebhooksQuery {
    DueWebhooksQuery { limit, per_receiver, except: Vec::new() }
}

impl Fixture {
    /// Returns an intent that has ended and whose event is pending.
    async fn ended(&self, term: &Term, id: &str, url: &str) -> Intent {
        let intent = self.submit(id, &with_webhook(url, one_shot())).await;
        self.attempt(term, &intent, accepted()).await;
        self.intent(id).await
    }

    async fn due(&self) -> Vec<IntentSeq> {
        let due = self.store.due_webhooks(query(100, 100)).await.unwrap();
        due.due.into_iter().map(|event| event.seq).collect()
    }

    async fn start_tries(&self, term: &Term) -> Vec<OpenWebhookTry> {
        let due = self.due().await;
        self.store.start_webhooks(term.clone(), due).await.expect("the term holds")
    }

    async fn start_try(&self, term: &Term) -> OpenWebhookTry {
        let mut started = self.start_tries(term).await;
        assert_eq!(started.len(), 1);
        started.remove(0)
    }

    async fn finish_try(&self, term: &Term, open: &OpenWebhookTry, outcome: TryOutcome, verdict: Verdict) -> bool {
        let finished_at = self.now().await.max(open.started_at);
        let finish = FinishWebhookTry { open: open.clone(), finished_at, outcome, verdict };
        match self.store.finish_webhooks(term.clone(), vec![Arc::new(finish)]).await {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error, FencedError::TermOver);
                false
            }
        }
    }

    async fn webhook(&self, id: &str) -> Option<WebhookHistory> {
        self.history(id).await.webhook
    }
}

fn answered(status: u16) -> TryOutcome {
    TryOutcome::Answered { status, retry_after: None, remark: (status != 200).then(|| "oh \"no\" \\ ~1 é".to_owned()) }
}

pub async fn every_end_of_an_intent_makes_one_event_pending(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let overdue = fixture.submit("overdue", &with_receiver(fixture.short_deadline())).await;
    let late = fixture.submit("late", &with_receiver(fixture.short_deadline())).await;
    let late = fixture.waiting(&late).await;
    fixture.pass(fixture.short).await;
    let Some(StartResult::Ended(_)) = fixture.start(&term, &late).await else { panic!("started after its deadline") };
    let expired = fixture.fenced(FencedWrites { expire: Some(10), ..writes(&term) }).await.unwrap().ended;
    assert_eq!(expired.iter().map(|intent| intent.seq).collect::<Vec<_>>(), [overdue.seq]);
    let cases = [
        ("accepted", with_receiver(max_attempts(2)), accepted(), Status::Accepted),
        ("rejected", with_receiver(max_attempts(2)), rejected("invalid_recipient"), Status::Rejected),
        ("exhausted", with_receiver(one_shot()), Outcome::error("x"), Status::Exhausted),
        ("retried", with_receiver(max_attempts(2)), Outcome::error("x"), Status::Pending),
        ("silent", max_attempts(2), accepted(), Status::Accepted),
    ];
    for (id, contract, outcome, status) in cases {
        let intent = fixture.submit(id, &contract).await;
        fixture.attempt(&term, &intent, outcome).await;
        assert_eq!(fixture.intent(id).await.state.status(), status);
    }
    // A term ends with an open attempt, and the next term closes it.
    let open = fixture.submit("interrupted", &with_receiver(one_shot())).await;
    fixture.start_due(&term, &open).await;
    fixture.store.release_lease(term).await.unwrap();
    let next = fixture.lead("me again").await;
    let left = fixture.store.open_attempts_before(next.epoch, 10).await.unwrap();
    let now = fixture.now().await;
    let finishes = left.iter().map(|attempt| finished(attempt, Outcome::interrupted(), now)).collect();
    fixture.fenced(FencedWrites { finishes, ..writes(&next) }).await.unwrap();

    for id in ["overdue", "late", "accepted", "rejected", "exhausted", "interrupted"] {
        let webhook = fixture.webhook(id).await.unwrap_or_else(|| panic!("{id} has no event"));
        assert_eq!((webhook.status, webhook.tries.len()), (EventStatus::Pending, 0), "{id}");
        assert!(webhook.next_try_at.is_some(), "{id}");
    }
    assert_eq!(fixture.due().await.len(), 6);
    for id in ["retried", "silent"] {
        assert_eq!(fixture.webhook(id).await, None, "{id}");
    }
    let reason = fixture.intent("overdue").await.state.exhausted_reason();
    assert_eq!(reason, Some(ExhaustedReason::DeadlineExceeded));
    assert_eq!(fixture.store.backlog().await.unwrap().webhooks, 6);
}

pub async fn a_try_is_recorded_as_open_and_finished_once(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.ended(&term, "a", RECEIVER).await;
    let open = fixture.start_try(&term).await;
    assert_eq!((open.intent.clone(), open.number, open.round.tries), (intent.clone(), 1, 1));
    assert_eq!(open.contract.webhook, with_receiver(one_shot()).webhook);
    assert!(open.round.pending_since <= open.started_at);
    assert!(fixture.start_tries(&term).await.is_empty());
    let again = fixture.store.start_webhooks(term.clone(), vec![intent.seq]).await.unwrap();
    assert!(again.is_empty(), "started twice");

    let retry = fixture.now().await + fixture.short;
    assert!(fixture.finish_try(&term, &open, answered(500), Verdict::RetryAt(retry)).await);
    assert!(fixture.finish_try(&term, &open, answered(200), Verdict::Delivered).await, "it has no effect");
    let webhook = fixture.webhook("a").await.unwrap();
    assert_eq!((webhook.status, webhook.next_try_at), (EventStatus::Pending, Some(retry)));
    let WebhookTry { number, http_status, error, started_at, finished_at } = &webhook.tries[0];
    assert_eq!((webhook.tries.len(), *number, *http_status), (1, 1, Some(500)));
    assert_eq!(error.as_deref(), answered(500).error());
    assert!(started_at == &open.started_at && finished_at >= started_at);

    let later = fixture.store.due_webhooks(query(10, 10)).await.unwrap();
    assert!(later.due.is_empty() && later.next == Some(retry) && later.now < retry);
    let early = fixture.store.start_webhooks(term.clone(), vec![intent.seq]).await.unwrap();
    assert!(early.is_empty(), "started before it was due");
    fixture.pass(fixture.short).await;
    let second = fixture.start_try(&term).await;
    assert_eq!((second.number, second.round), (2, crate::domain::webhook::Round { tries: 2, ..open.round }));
    assert!(fixture.finish_try(&term, &second, answered(200), Verdict::Delivered).await);
    let webhook = fixture.webhook("a").await.unwrap();
    assert_eq!((webhook.status, webhook.next_try_at, webhook.tries.len()), (EventStatus::Delivered, None, 2));
    assert_eq!((webhook.tries[1].http_status, webhook.tries[1].error.as_deref()), (Some(200), None));
    assert!(fixture.due().await.is_empty());
    assert_eq!(fixture.store.backlog().await.unwrap().webhooks, 0);
    assert_eq!(fixture.intent("a").await, intent, "a webhook never changes its intent");
}

pub async fn a_busy_receiver_leaves_slots_for_others(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for n in 0..6 {
        fixture.ended(&term, &format!("many {n}"), "http://many.test/a?b").await;
    }
    fixture.ended(&term, "few", "http://few.test").await;
    let ids = async |query: DueWebhooksQuery| {
        let due = fixture.store.due_webhooks(query).await.unwrap().due;
        let started = due.iter().map(|event| event.receiver).collect::<Vec<_>>();
        (due.len(), started)
    };
    let (count, receivers) = ids(query(100, 100)).await;
    let (many, few) = (receivers[0], receivers[6]);
    assert!(count == 7 && many != few && receivers[..6].iter().all(|receiver| *receiver == many));
    assert_eq!(ids(query(100, 2)).await.1, [many, many, few]);
    assert_eq!(ids(query(2, 100)).await.1, [many, many], "in the order of their due times");
    let except = |many_free: usize| DueWebhooksQuery { except: vec![(many, many_free)], ..query(100, 4) };
    assert_eq!(ids(except(0)).await.1, [few]);
    assert_eq!(ids(except(1)).await.1, [many, few]);
    assert_eq!(ids(DueWebhooksQuery { except: vec![(ReceiverId(4711), 0)], ..query(100, 1) }).await.1, [many, few]);
}

pub async fn tries_that_were_left_open_are_closed_and_due_again(fixture: Fixture) {
    let term = fixture.lead("me").await;
    fixture.ended(&term, "a", RECEIVER).await;
    let open = fixture.start_try(&term).await;
    fixture.store.release_lease(term.clone()).await.unwrap();
    let next = fixture.lead("next").await;
    assert!(fixture.due().await.is_empty());
    assert_eq!(fixture.store.close_webhooks(next.clone(), Vec::new()).await, Ok(1));
    assert_eq!(fixture.store.close_webhooks(next.clone(), Vec::new()).await, Ok(0));
    let webhook = fixture.webhook("a").await.unwrap();
    assert_eq!(webhook.tries.len(), 1);
    assert_eq!((webhook.tries[0].http_status, webhook.tries[0].error.as_deref()), (None, Some(INTERRUPTED)));
    let second = fixture.start_try(&next).await;
    assert_eq!(second.number, 2);
    assert!(!fixture.finish_try(&term, &open, answered(200), Verdict::Delivered).await, "the old term is over");
    assert!(fixture.finish_try(&next, &open, answered(200), Verdict::Delivered).await, "not open any more");
    assert_eq!(fixture.webhook("a").await.unwrap().status, EventStatus::Pending);
    assert!(fixture.finish_try(&next, &second, answered(410), Verdict::Failed).await);
    let webhook = fixture.webhook("a").await.unwrap();
    assert_eq!((webhook.status, webhook.tries.len()), (EventStatus::Failed, 2));
}

pub async fn a_stale_term_changes_no_event(fixture: Fixture) {
    let term = acquire_from(&*fixture.store, "lease", "old", LONG).await.unwrap().term;
    let waiting = fixture.ended(&term, "waiting", RECEIVER).await;
    fixture.store.release_lease(term.clone()).await.unwrap();
    let next = fixture.lead("next").await;
    assert!(fixture.store.start_webhooks(term.clone(), vec![waiting.seq]).await.is_err(), "start");
    let open = fixture.start_try(&next).await;
    assert!(!fixture.finish_try(&term, &open, answered(200), Verdict::Delivered).await, "finish");
    assert_eq!(fixture.store.close_webhooks(term, Vec::new()).await, Err(FencedError::TermOver), "close");
    let webhook = fixture.webhook("waiting").await.unwrap();
    assert_eq!((webhook.status, webhook.next_try_at, webhook.tries.len()), (EventStatus::Pending, None, 0));
}

pub async fn an_event_can_be_redelivered(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let redeliver = async |id: &str| fixture.other.redeliver_webhook(intent_id(id), somebody()).await.unwrap();
    assert_eq!(redeliver("nobody").await, Redelivery::NoIntent);
    fixture.submit("silent", &one_shot()).await;
    assert_eq!(redeliver("silent").await, Redelivery::NoWebhook);
    let pending = fixture.submit("pending", &with_receiver(one_shot())).await;
    assert_eq!(redeliver("pending").await, Redelivery::NotEnded);
    fixture.attempt(&term, &pending, accepted()).await;

    let first = fixture.start_try(&term).await;
    assert_eq!(redeliver("pending").await, Redelivery::Pending);
    assert!(fixture.due().await.is_empty(), "a try is under way");
    assert!(fixture.finish_try(&term, &first, answered(410), Verdict::Failed).await);
    let second = fixture.start_try(&term).await;
    assert_eq!(
        (second.number, second.round.tries),
        (2, 1),
        "redelivery was requested meanwhile: a new round that is due now"
    );
    assert!(second.round.pending_since > first.round.pending_since);
    assert!(fixture.finish_try(&term, &second, answered(410), Verdict::Failed).await);
    assert!(fixture.due().await.is_empty());
    assert_eq!(redeliver("pending").await, Redelivery::Pending);
    let third = fixture.start_try(&term).await;
    assert_eq!(redeliver("pending").await, Redelivery::Pending);
    assert!(fixture.finish_try(&term, &third, answered(200), Verdict::Delivered).await);
    assert!(fixture.due().await.is_empty(), "it was delivered after redelivery was requested");
    assert_eq!(redeliver("pending").await, Redelivery::Pending);
    let webhook = fixture.webhook("pending").await.unwrap();
    assert_eq!((webhook.status, webhook.tries.len()), (EventStatus::Pending, 3));
}

pub async fn tries_under_way_are_not_closed(fixture: Fixture) {
    let term = fixture.lead("me").await;
    fixture.ended(&term, "mine", RECEIVER).await;
    let mine = fixture.start_try(&term).await;
    fixture.ended(&term, "lost", RECEIVER).await;
    fixture.start_try(&term).await;
    assert_eq!(fixture.store.close_webhooks(term.clone(), vec![mine.intent.seq]).await, Ok(1));
    assert_eq!(fixture.webhook("lost").await.unwrap().tries.len(), 1);
    assert!(fixture.webhook("mine").await.unwrap().tries.is_empty());
    assert!(fixture.finish_try(&term, &mine, answered(200), Verdict::Delivered).await);
    assert_eq!(fixture.webhook("mine").await.unwrap().status, EventStatus::Delivered);
}

pub async fn an_event_that_cannot_be_read_delays_no_other(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let unreadable = fixture.ended(&term, "unreadable", RECEIVER).await;
    (fixture.garble)(unreadable.seq).await;
    fixture.ended(&term, "readable", "http://elsewhere.test").await;
    // The other instance has not read the contract before.
    let due = fixture.due().await;
    assert_eq!(due.len(), 2);
    let started = fixture.other.start_webhooks(term, due).await.unwrap();
    assert_eq!(started.iter().map(|open| open.intent.id.as_str()).collect::<Vec<_>>(), ["readable"]);
    assert!(fixture.due().await.is_empty(), "it is put off");
}

pub async fn retention_waits_for_pending_events(fixture: Fixture) {
    let term = fixture.lead("me").await;
    fixture.ended(&term, "delivered", RECEIVER).await;
    let open = fixture.start_try(&term).await;
    assert!(fixture.finish_try(&term, &open, answered(200), Verdict::Delivered).await);
    fixture.ended(&term, "pending", RECEIVER).await;
    fixture.pass(2 * fixture.short).await;
    let purge = async || fixture.purge(&term, Duration::from_secs(1), 10).await.iter().sum::<usize>();
    assert_eq!(purge().await, 1);
    assert_eq!(fixture.find("delivered").await, None);
    let open = fixture.start_try(&term).await;
    assert_eq!(purge().await, 0, "a try is under way");
    assert!(fixture.finish_try(&term, &open, answered(200), Verdict::Delivered).await);
    assert_eq!(purge().await, 1);
    fixture.ended(&term, "delivered", RECEIVER).await;
    assert!(
        fixture.webhook("delivered").await.unwrap().tries.is_empty(),
        "the id of a purged intent can be used again"
    );
}

pub async fn a_purge_skips_intents_with_pending_events_and_does_not_examine_them_again(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for n in 0..4 {
        fixture.ended(&term, &format!("pending{n}"), RECEIVER).await;
    }
    let intent = fixture.submit("free", &one_shot()).await;
    fixture.attempt(&term, &intent, accepted()).await;
    fixture.pass(2 * fixture.short).await;
    let steps = fixture.purge(&term, Duration::from_secs(1), 2).await;
    assert!(steps.len() >= 3, "each step examines at most two: {steps:?}");
    assert_eq!(steps.iter().sum::<usize>(), 1, "intents with pending events do not stop the purge");
    assert_eq!(fixture.find("free").await, None);
    assert!(fixture.find("pending0").await.is_some());
}

pub async fn the_backlog_has_the_age_of_the_oldest_pending_event(fixture: Fixture) {
    let term = fixture.lead("me").await;
    assert_eq!(fixture.store.backlog().await.unwrap().oldest_webhook, None);
    fixture.ended(&term, "old", RECEIVER).await;
    fixture.pass(fixture.short).await;
    fixture.ended(&term, "recent", RECEIVER).await;
    let backlog = fixture.store.backlog().await.unwrap();
    assert_eq!(backlog.webhooks, 2);
    assert!(backlog.oldest_webhook.unwrap() >= fixture.short);
}
