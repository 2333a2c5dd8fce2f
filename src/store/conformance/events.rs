//! The event feed: every end once, in the order of commits, for every reader.

use std::time::Duration;

use super::jobs::submit as submit_job;
use super::{Fixture, accepted, finished, intent_id, new_intent, rejected, submit_to, writes};
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::Contract;
use crate::domain::contract::fixtures::{max_attempts, one_shot, with_webhook};
use crate::domain::intent::{IntentSeq, TargetName};
use crate::domain::job::fixtures::{command, submission_id};
use crate::domain::lease::Term;
use crate::domain::outcome::Outcome;
use crate::domain::time::Timestamp;
use crate::store::{
    Event, EventFilter, EventPage, EventPosition, EventQuery, EventRead, EventSubject, EventsAfter, FencedWrites,
    OpenAttempt, PostponeAttempt,
};

const INTENTS: EventFilter = EventFilter::Intents { target: None };

/// What a reader at another instance gets.
async fn read(fixture: &Fixture, after: EventsAfter, filter: EventFilter, limit: usize) -> EventRead {
    fixture.other.events(EventQuery { after, filter, limit, examine: 100 }).await.unwrap()
}

fn page(read: EventRead) -> EventPage {
    match read {
        EventRead::Page(page) => page,
        other => panic!("no page: {other:?}"),
    }
}

fn ids(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.intent().id.as_str()).collect()
}

/// Reads pages of `limit` events to the end of the feed, and checks that they advance.
async fn all(fixture: &Fixture, after: EventsAfter, filter: &EventFilter, limit: usize) -> (Vec<Event>, EventPosition) {
    let (mut events, mut after, mut last) = (Vec::new(), after, EventPosition::START);
    loop {
        let page = page(read(fixture, after, filter.clone(), limit).await);
        assert!(page.events.len() <= limit && page.next > last, "{page:?}");
        assert!(page.events.is_sorted_by(|one, next| one.position < next.position));
        assert!(page.events.iter().all(|event| event.position > last && event.position <= page.next), "{page:?}");
        events.extend(page.events);
        last = page.next;
        after = EventsAfter::Position(page.next);
        if page.at_end {
            return (events, last);
        }
    }
}

/// Submits intents and starts their attempts.
async fn started(fixture: &Fixture, term: &Term, names: &[&str]) -> Vec<OpenAttempt> {
    let mut attempts = Vec::new();
    for name in names {
        attempts.push(fixture.start_due(term, &fixture.submit(name, &one_shot()).await).await);
    }
    attempts
}

/// Finishes attempts in one transaction.
async fn finish_all(fixture: &Fixture, term: &Term, attempts: &[OpenAttempt]) {
    let now = fixture.now().await;
    let finishes = attempts.iter().map(|attempt| finished(attempt, accepted(), now)).collect();
    fixture.fenced(FencedWrites { finishes, ..writes(term) }).await.unwrap();
}

pub async fn every_end_is_an_event_in_the_order_of_commits(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let names = ["accepted", "rejected", "exhausted", "postponed"];
    let attempts = started(&fixture, &term, &names).await;
    let overdue = fixture.submit("overdue", &fixture.short_deadline()).await;
    fixture.submit("cancelled", &one_shot()).await;
    let retried = fixture.submit("retried", &max_attempts(3)).await;
    assert_eq!(all(&fixture, EventsAfter::Oldest, &INTENTS, 10).await.0, [], "nothing has ended");
    // The outcomes are known in the opposite order.
    let known_at = fixture.now().await;
    let outcomes = [accepted(), rejected("invalid_recipient"), Outcome::error("gateway answered HTTP 500")];
    for (number, (attempt, outcome)) in attempts.iter().zip(outcomes).enumerate() {
        let finished_at = known_at - Duration::from_millis(u64::try_from(number).unwrap());
        let finishes = vec![finished(attempt, outcome, finished_at)];
        fixture.fenced(FencedWrites { finishes, ..writes(&term) }).await.unwrap();
    }
    fixture.attempt(&term, &retried, Outcome::error("gateway answered HTTP 500")).await;
    fixture.other.cancel(intent_id("cancelled"), false, somebody()).await.unwrap();
    fixture.other.cancel(intent_id("postponed"), true, somebody()).await.unwrap();
    let postpone = PostponeAttempt { seq: attempts[3].seq, attempt_number: 1, due: known_at };
    fixture.fenced(FencedWrites { postpones: vec![postpone], ..writes(&term) }).await.unwrap();
    fixture.pass(fixture.short).await;
    let expired = fixture.fenced(FencedWrites { expire: Some(10), ..writes(&term) }).await.unwrap();
    assert_eq!(expired.ended.len(), 1);

    let (events, end) = all(&fixture, EventsAfter::Oldest, &INTENTS, 10).await;
    assert_eq!(ids(&events), ["accepted", "rejected", "exhausted", "cancelled", "postponed", overdue.id.as_str()]);
    for event in &events {
        assert_eq!(*event.intent(), fixture.intent(event.intent().id.as_str()).await);
    }
    assert_eq!(all(&fixture, EventsAfter::Position(end), &INTENTS, 10).await.0, []);
    let now = page(read(&fixture, EventsAfter::Now, INTENTS, 10).await);
    assert_eq!((now.events.len(), now.at_end), (0, true));
    fixture.submit("later", &one_shot()).await;
    fixture.other.cancel(intent_id("later"), false, somebody()).await.unwrap();
    for after in [end, now.next] {
        assert_eq!(ids(&all(&fixture, EventsAfter::Position(after), &INTENTS, 10).await.0), ["later"]);
    }
}

pub async fn pages_follow_one_another_within_a_transaction_too(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let names = ["a", "b", "c", "d", "e"];
    let attempts = started(&fixture, &term, &names).await;
    finish_all(&fixture, &term, &attempts).await;
    fixture.submit("f", &one_shot()).await;
    fixture.store.cancel(intent_id("f"), false, somebody()).await.unwrap();
    for limit in 1..8 {
        let (events, _) = all(&fixture, EventsAfter::Oldest, &EventFilter::All, limit).await;
        assert_eq!(ids(&events), ["a", "b", "c", "d", "e", "f"]);
        assert_eq!(events[0].position.at, events[4].position.at, "one transaction");
        // A reader may go on after any of the events.
        for (number, event) in events.iter().enumerate() {
            let (rest, _) = all(&fixture, EventsAfter::Position(event.position), &EventFilter::All, limit).await;
            assert_eq!(rest, events[number + 1..]);
        }
    }
}

pub async fn a_page_examines_a_limited_number_of_events_and_advances(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let others: Vec<String> = (0..10).map(|number| format!("other{number}")).collect();
    let attempts = started(&fixture, &term, &others.iter().map(String::as_str).collect::<Vec<_>>()).await;
    finish_all(&fixture, &term, &attempts).await;
    let target = TargetName::parse("rare").unwrap();
    let rare = Contract { target: target.clone(), ..one_shot() };
    fixture.submit("rare", &rare).await;
    fixture.store.cancel(intent_id("rare"), false, somebody()).await.unwrap();
    let (mut after, mut empty) = (EventsAfter::Oldest, 0);
    loop {
        let filter = EventFilter::Intents { target: Some(target.clone()) };
        let query = EventQuery { after, filter, limit: 10, examine: 3 };
        let page = page(fixture.other.events(query).await.unwrap());
        if !page.events.is_empty() {
            assert_eq!(ids(&page.events), ["rare"]);
            break;
        }
        assert!(!page.at_end && after != EventsAfter::Position(page.next), "{page:?}");
        (after, empty) = (EventsAfter::Position(page.next), empty + 1);
    }
    assert_eq!(empty, 3, "ten other events, three at a time, and the rest with the rare one");
}

pub async fn intents_and_jobs_have_feeds_of_their_own(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let mut jobs = Vec::new();
    for (number, (tenant, workspace)) in
        (1..).zip([("acme", "w1"), ("acme", "w~2"), ("globex", "w1"), ("acme", "w1"), ("acme", "W1")])
    {
        jobs.push(submit_job(&fixture, number, &command(tenant, workspace, &number.to_string())).await);
    }
    fixture.submit("mine", &one_shot()).await;
    for job in &jobs {
        fixture.attempt(&term, &job.intent, accepted()).await;
    }
    fixture.store.cancel(intent_id("mine"), false, somebody()).await.unwrap();
    let of = async |filter: &EventFilter| -> Vec<u8> {
        let events = all(&fixture, EventsAfter::Oldest, filter, 2).await.0;
        let number = |event: &Event| (1..6).find(|n| event.intent().id.submission_id() == Some(submission_id(*n)));
        events.iter().map(|event| number(event).unwrap_or(0)).collect()
    };
    let tenant = |name: &str, workspaces: &[&str]| {
        let workspaces = Some(workspaces.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        EventFilter::Jobs { tenant: name.to_owned(), workspaces: workspaces.filter(|names| !names.is_empty()) }
    };
    for (filter, expected) in [
        (EventFilter::All, vec![1, 2, 3, 4, 5, 0]),
        (INTENTS, vec![0]),
        (tenant("acme", &[]), vec![1, 2, 4, 5]),
        (tenant("acme", &["w1"]), vec![1, 4]),
        (tenant("acme", &["w~2", "W1"]), vec![2, 5]),
        (tenant("globex", &[]), vec![3]),
        (tenant("initech", &[]), vec![]),
    ] {
        assert_eq!(of(&filter).await, expected, "{filter:?}");
        let (events, _) = all(&fixture, EventsAfter::Oldest, &EventFilter::All, 10).await;
        assert_eq!(events.iter().filter(|event| filter.includes(event)).count(), expected.len(), "{filter:?}");
    }
    let after = EventsAfter::Job(submission_id(2));
    let (events, _) = all(&fixture, after, &tenant("acme", &[]), 10).await;
    assert_eq!(
        events.iter().map(|event| event.intent().id.submission_id().unwrap()).collect::<Vec<_>>(),
        [submission_id(4), submission_id(5)]
    );
    let EventSubject::Job(job) = &events[0].subject else { panic!("not a job") };
    assert_eq!((job.id, &job.facts, job.trace), (jobs[3].id, &jobs[3].facts, jobs[3].trace));
    assert_eq!(read(&fixture, EventsAfter::Job(submission_id(9)), INTENTS, 10).await, EventRead::Expired);
}

pub async fn no_event_is_missed_or_repeated_when_commits_race_with_the_reader(fixture: Fixture) {
    const WRITERS: usize = 4;
    const EACH: usize = 25;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = if writer % 2 == 0 { fixture.store.clone() } else { fixture.other.clone() };
            tokio::spawn(async move {
                for number in 0..EACH {
                    let id = format!("{writer}-{number}");
                    submit_to(&*store, new_intent(&id, &one_shot(), b"")).await;
                    store.cancel(intent_id(&id), false, somebody()).await.unwrap();
                }
            })
        })
        .collect();
    let (mut after, mut seen, mut finished) = (EventsAfter::Oldest, Vec::new(), false);
    loop {
        let page = page(read(&fixture, after, INTENTS, 3).await);
        after = EventsAfter::Position(page.next);
        seen.extend(page.events.iter().map(|event| event.intent().id.to_string()));
        if finished && page.at_end {
            break;
        }
        finished = writers.iter().all(tokio::task::JoinHandle::is_finished);
    }
    assert_eq!(seen.len(), WRITERS * EACH, "{seen:?}");
    let mut by_writer: Vec<_> = seen.iter().map(|id| id.split_once('-').unwrap()).collect();
    by_writer.sort_by_key(|(writer, _)| *writer);
    let expected = (0..WRITERS).flat_map(|writer| (0..EACH).map(move |number| (writer, number)));
    let expected: Vec<_> = expected.map(|(writer, number)| (writer.to_string(), number.to_string())).collect();
    assert!(by_writer.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).eq(expected), "{by_writer:?}");
}

pub async fn a_reader_that_missed_deleted_events_is_told(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let pending = fixture.submit("pending", &with_webhook("http://hook.test", one_shot())).await;
    fixture.attempt(&term, &pending, accepted()).await;
    let attempts = started(&fixture, &term, &["a", "b", "c"]).await;
    finish_all(&fixture, &term, &attempts).await;
    let (events, end) = all(&fixture, EventsAfter::Oldest, &INTENTS, 10).await;
    fixture.pass(2 * fixture.short).await;
    assert_eq!(fixture.purge(&term, Duration::from_secs(1), 10).await.iter().sum::<usize>(), 3);
    let after = |event: usize| EventsAfter::Position(events[event].position);
    for event in [0, 1, 2] {
        assert_eq!(read(&fixture, after(event), INTENTS, 10).await, EventRead::Expired, "{event}");
    }
    for whole in [after(3), EventsAfter::Position(end)] {
        assert_eq!(page(read(&fixture, whole, INTENTS, 10).await).events, [], "nothing was missed");
    }
    // The first event is left out, although its intent is kept for its webhook: a reader could not go on from it.
    let oldest = page(read(&fixture, EventsAfter::Oldest, INTENTS, 1).await);
    assert_eq!(oldest.events, []);
    assert_eq!(page(read(&fixture, EventsAfter::Position(oldest.next), INTENTS, 1).await).events, []);
    assert_eq!(page(read(&fixture, EventsAfter::Now, INTENTS, 10).await).events, []);
    // A later purge that deletes nothing, or only an older event, changes nothing.
    assert_eq!(fixture.purge(&term, Duration::ZERO, 10).await.iter().sum::<usize>(), 0);
    assert_eq!(page(read(&fixture, after(3), INTENTS, 10).await).events, []);
}

pub async fn a_position_that_the_store_has_not_reached_is_refused(fixture: Fixture) {
    let term = fixture.lead("me").await;
    finish_all(&fixture, &term, &started(&fixture, &term, &["a"]).await).await;
    let end = page(read(&fixture, EventsAfter::Now, INTENTS, 10).await).next;
    assert_eq!(page(read(&fixture, EventsAfter::Position(end), INTENTS, 10).await).events, []);
    let later = EventPosition { at: end.at + Duration::from_micros(1), seq: IntentSeq(0) };
    assert_eq!(read(&fixture, EventsAfter::Position(later), INTENTS, 10).await, EventRead::Ahead);
    let latest = EventPosition::after_all(Timestamp::LATEST);
    assert_eq!(read(&fixture, EventsAfter::Position(latest), INTENTS, 10).await, EventRead::Ahead);
}
