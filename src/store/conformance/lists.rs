//! The order of lists, and their counts by status.

use super::{Fixture, accepted, intent_id, new_intent, rejected, submit_to};
use crate::domain::contract::fixtures::{max_attempts, one_shot};
use crate::domain::intent::{Status, TargetName};
use crate::domain::outcome::Outcome;
use crate::domain::redrive::RedriveId;
use crate::store::{
    BoundedCount, Examined, ListOrder, ListQuery, MAX_COUNTED, NewIntent, PageCursor, RedriveLink, StatusCounts,
};

/// Reads a list page by page, and returns the ids in its order.
async fn all(fixture: &Fixture, query: &ListQuery) -> Vec<String> {
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = fixture.other.list(ListQuery { after, ..query.clone() }).await.unwrap();
        assert!(page.intents.len() <= query.limit, "{query:?}");
        found.extend(page.intents.iter().map(|intent| intent.id.to_string()));
        after = page.next;
        pages += 1;
        assert!(pages < 20, "{query:?}");
        if after.is_none() {
            return found;
        }
    }
}

/// Intents with every status, of two targets: "0" and "1" are accepted, "2" is pending, "3" rejected, "4" and "5" exhausted.
async fn fill(fixture: &Fixture) {
    let term = fixture.lead("me").await;
    for (id, contract, outcome) in [
        ("0", one_shot(), Some(accepted())),
        ("1", max_attempts(2), Some(accepted())),
        ("2", max_attempts(2), None),
        ("3", max_attempts(2), Some(rejected("invalid_recipient"))),
        ("4", one_shot(), Some(Outcome::error("x"))),
        ("5", one_shot(), Some(Outcome::error("x"))),
    ] {
        let intent = fixture.submit(id, &contract).await;
        if let Some(outcome) = outcome {
            fixture.attempt(&term, &intent, outcome).await;
        }
    }
}

pub async fn a_list_can_begin_with_the_oldest(fixture: Fixture) {
    fill(&fixture).await;
    let oldest = ListQuery { order: ListOrder::OldestFirst, limit: 2, ..ListQuery::default() };
    assert_eq!(all(&fixture, &oldest).await, ["0", "1", "2", "3", "4", "5"]);
    for (status, expected) in [
        (Status::Pending, vec!["2"]),
        (Status::Accepted, vec!["0", "1"]),
        (Status::Rejected, vec!["3"]),
        (Status::Exhausted, vec!["4", "5"]),
    ] {
        assert_eq!(all(&fixture, &ListQuery { status: Some(status), ..oldest.clone() }).await, expected);
    }
    let target = TargetName::parse("sms.max_attempts").ok();
    assert_eq!(all(&fixture, &ListQuery { target: target.clone(), ..oldest.clone() }).await, ["1", "2", "3"]);
    let failed = |status| ListQuery { target: target.clone(), status: Some(status), ..oldest.clone() };
    assert_eq!(all(&fixture, &failed(Status::Rejected)).await, ["3"]);
    assert_eq!(all(&fixture, &failed(Status::Exhausted)).await, [""; 0]);
    let attempted = Examined { min_attempts: Some(1), ..Examined::default() };
    let attempted = ListQuery { examined: attempted, limit: 1, ..oldest };
    assert_eq!(all(&fixture, &attempted).await, ["0", "1", "3", "4", "5"]);
    let of_two_statuses = Examined { cause: Some("x".to_owned()), ..Examined::default() };
    assert_eq!(all(&fixture, &ListQuery { examined: of_two_statuses, ..attempted }).await, ["4", "5"]);
}

pub async fn pages_from_the_oldest_go_on_after_an_intent_that_was_deleted(fixture: Fixture) {
    for id in ["a", "b", "c"] {
        fixture.submit(id, &one_shot()).await;
    }
    let b = fixture.intent("b").await;
    let cursor = |id: &str| Some(PageCursor::Newer { created_at: b.created_at, id: intent_id(id) });
    let query = ListQuery { order: ListOrder::OldestFirst, limit: 9, ..ListQuery::default() };
    let ids = async |after| {
        let page = fixture.store.list(ListQuery { after, ..query.clone() }).await.unwrap();
        page.intents.into_iter().map(|intent| intent.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(cursor("b")).await, ["c"]);
    assert_eq!(ids(cursor("deleted")).await, ["b", "c"], "those of its time may be listed again, but none is left out");
}

fn exactly(intents: u64) -> BoundedCount {
    BoundedCount { intents, or_more: false }
}

async fn counts(fixture: &Fixture, query: ListQuery) -> [BoundedCount; 4] {
    assert!(StatusCounts::can_count(&query));
    let counts = fixture.other.status_counts(query).await.unwrap();
    Status::ALL.map(|status| counts.of(status))
}

pub async fn intents_are_counted_by_status(fixture: Fixture) {
    assert_eq!(counts(&fixture, ListQuery::default()).await, [exactly(0); 4]);
    let (early, late) = {
        fill(&fixture).await;
        (fixture.intent("1").await.created_at, fixture.intent("5").await.created_at)
    };
    let numbers = |pending, accepted, rejected, exhausted| [pending, accepted, rejected, exhausted];
    let of = async |query: ListQuery| {
        let found = counts(&fixture, query).await;
        // With few intents per target the examined ones are bounded too; what was found is true in any case.
        found.map(|count| count.intents)
    };
    let target = TargetName::parse("sms.max_attempts").ok();
    assert_eq!(of(ListQuery { target: target.clone(), ..ListQuery::default() }).await, numbers(1, 1, 1, 0));
    let filtered = ListQuery { status: Some(Status::Rejected), target, ..ListQuery::default() };
    assert_eq!(of(filtered).await, numbers(1, 1, 1, 0), "the status makes no difference");
    let after = ListQuery { created_after: Some(early), ..ListQuery::default() };
    assert_eq!(of(ListQuery { created_before: Some(late), ..after }).await, numbers(1, 0, 1, 1));
    let attempted = |examined| ListQuery { examined, ..ListQuery::default() };
    let once = Examined { min_attempts: Some(1), ..Examined::default() };
    assert_eq!(of(attempted(once)).await[2..], [1, 2]);
    let ended = fixture.intent("5").await.state.completed_at();
    let last = Examined { ended_since: ended, ..Examined::default() };
    assert_eq!(of(attempted(last)).await, numbers(0, 0, 0, 1));
    let earlier = Examined { ended_before: ended, ..Examined::default() };
    assert_eq!(of(attempted(earlier)).await[2..], [1, 1]);
    let redrive = RedriveId::parse("00000000-0000-4000-8000-000000000001");
    assert!(redrive.is_some());
    let link = RedriveLink { of: intent_id("5"), redrive, gateway_key: intent_id("5"), audit: None };
    submit_to(&*fixture.store, NewIntent { redrive: Some(link), ..new_intent("again", &one_shot(), b"") }).await;
    assert_eq!(of(ListQuery { redrive, ..ListQuery::default() }).await, numbers(1, 0, 0, 0));
    for without in [
        ListQuery { prefix: Some("a".to_owned()), ..ListQuery::default() },
        attempted(Examined { cause: Some("x".to_owned()), ..Examined::default() }),
    ] {
        assert!(!StatusCounts::can_count(&without));
    }
}

pub async fn counts_are_bounded(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let many = MAX_COUNTED + 1;
    for n in 0..many {
        fixture.submit(&format!("waiting {n}"), &max_attempts(2)).await;
        let intent = fixture.submit(&format!("failed {n}"), &one_shot()).await;
        if n > 0 {
            fixture.attempt(&term, &intent, Outcome::error("x")).await;
        }
    }
    let [pending, _, rejected, exhausted] = counts(&fixture, ListQuery::default()).await;
    assert_eq!(pending, BoundedCount { intents: MAX_COUNTED, or_more: true });
    assert_eq!((rejected, exhausted), (exactly(0), exactly(MAX_COUNTED)), "exactly the limit is not more");
    let all = fixture.store.status_counts(ListQuery::default()).await.unwrap().all();
    assert!(all.or_more && all.intents >= 2 * MAX_COUNTED);
}

pub async fn failures_of_one_target_are_found_among_those_of_others(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for n in 0..9 {
        let contract = if n % 4 == 0 { max_attempts(1) } else { one_shot() };
        let intent = fixture.submit(&format!("{n}"), &contract).await;
        fixture.attempt(&term, &intent, Outcome::error("x")).await;
    }
    let of_target = |order| ListQuery {
        status: Some(Status::Exhausted),
        target: Some(max_attempts(1).target),
        order,
        limit: 2,
        ..ListQuery::default()
    };
    assert_eq!(all(&fixture, &of_target(ListOrder::NewestFirst)).await, ["8", "4", "0"]);
    assert_eq!(all(&fixture, &of_target(ListOrder::OldestFirst)).await, ["0", "4", "8"]);
    let with_cause = Examined { cause: Some("x".to_owned()), ..Examined::default() };
    let with_cause = ListQuery { examined: with_cause, ..of_target(ListOrder::NewestFirst) };
    assert_eq!(all(&fixture, &with_cause).await, ["8", "4", "0"]);
}
