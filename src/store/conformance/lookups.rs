//! Look-ups, lists and retention.

use std::time::Duration;

use super::{Fixture, accepted, intent_id, rejected};
use crate::core::contract::fixtures::{max_attempts, one_shot};
use crate::core::intent::{Status, TargetName};
use crate::core::outcome::Outcome;
use crate::store::{IntentPage, ListQuery, Purged};

pub async fn unknown_ids_are_not_found(fixture: Fixture) {
    assert_eq!(fixture.store.find(intent_id("nobody")).await, Ok(None));
    assert_eq!(fixture.store.history(intent_id("nobody")).await, Ok(None));
}

pub async fn history_is_in_order_and_complete(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let intent = fixture.submit("a", &max_attempts(12)).await;
    let outcomes = [
        Outcome::error("gateway answered HTTP 500: {\"a\": \"~1 \\ é \u{1f600}\"}"),
        rejected("moon \"phase\" ~2"),
        Outcome::Rejected { reason: "provider_failure".to_owned(), gateway_message_id: Some("m".to_owned()) },
        accepted(),
    ];
    for outcome in outcomes.clone() {
        fixture.attempt(&term, &intent, outcome).await;
        fixture.pass(Duration::from_secs(5)).await;
    }
    let history = fixture.history("a").await;
    assert_eq!(history.intent.state.status(), Status::Accepted);
    let numbers: Vec<_> = history.attempts.iter().map(|attempt| attempt.attempt_number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert!(history.attempts.windows(2).all(|pair| pair[0].finished_at < pair[1].started_at));
    let kept: Vec<_> = history.attempts.into_iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(kept, outcomes);
}

fn ids(page: &IntentPage) -> Vec<&str> {
    page.intents.iter().map(|intent| intent.id.as_str()).collect()
}

fn query(limit: usize) -> ListQuery {
    ListQuery { limit, ..ListQuery::default() }
}

pub async fn lists_are_newest_first_and_paged_without_gaps(fixture: Fixture) {
    assert_eq!(fixture.store.list(query(3)).await.unwrap(), IntentPage { intents: Vec::new(), next: None });
    for n in 0..7 {
        fixture.submit(&format!("{n}"), &one_shot()).await;
    }
    let (mut seen, mut behind) = (Vec::new(), None);
    for size in [3, 3, 1] {
        let page = fixture.store.list(ListQuery { behind, ..query(3) }).await.unwrap();
        assert_eq!(page.intents.len(), size);
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        behind = page.next;
    }
    assert_eq!(behind, None);
    assert_eq!(seen, ["6", "5", "4", "3", "2", "1", "0"]);
    assert_eq!(fixture.store.list(query(7)).await.unwrap().next, None, "an exact fit has no next page");
}

pub async fn lists_filter_by_status_target_and_time(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let mut created = Vec::new();
    for (n, contract) in [one_shot(), max_attempts(2), one_shot(), max_attempts(2)].into_iter().enumerate() {
        created.push(fixture.submit(&format!("{n}"), &contract).await);
        fixture.pass(Duration::from_millis(10)).await;
    }
    fixture.attempt(&term, &created[0], accepted()).await;
    fixture.attempt(&term, &created[1], rejected("invalid_recipient")).await;
    fixture.attempt(&term, &created[2], Outcome::error("x")).await;
    let target = |name: &str| Some(TargetName::parse(name).unwrap());
    let cases = [
        (ListQuery { status: Some(Status::Accepted), ..query(9) }, vec!["0"]),
        (ListQuery { status: Some(Status::Rejected), ..query(9) }, vec!["1"]),
        (ListQuery { status: Some(Status::Exhausted), ..query(9) }, vec!["2"]),
        (ListQuery { status: Some(Status::Pending), ..query(9) }, vec!["3"]),
        (ListQuery { target: target("sms.max_attempts"), ..query(9) }, vec!["3", "1"]),
        (ListQuery { target: target("SMS.max_attempts"), ..query(9) }, vec![]),
        (ListQuery { target: target("sms.one_shot"), status: Some(Status::Accepted), ..query(9) }, vec!["0"]),
        (ListQuery { created_after: Some(created[1].created_at), ..query(9) }, vec!["3", "2"]),
        (ListQuery { created_before: Some(created[1].created_at), ..query(9) }, vec!["0"]),
        (
            ListQuery {
                created_after: Some(created[0].created_at),
                created_before: Some(created[3].created_at),
                ..query(9)
            },
            vec!["2", "1"],
        ),
        (ListQuery { created_after: Some(created[3].created_at), ..query(9) }, vec![]),
        (ListQuery { created_before: Some(created[0].created_at), ..query(9) }, vec![]),
    ];
    for (query, expected) in cases {
        let page = fixture.store.list(query.clone()).await.unwrap();
        assert_eq!(ids(&page), expected, "{query:?}");
    }
}

pub async fn pages_stay_stable_while_intents_arrive(fixture: Fixture) {
    for n in 0..4 {
        fixture.submit(&format!("{n}"), &one_shot()).await;
    }
    let first = fixture.store.list(query(2)).await.unwrap();
    fixture.submit("new", &one_shot()).await;
    let second = fixture.store.list(ListQuery { behind: first.next, ..query(2) }).await.unwrap();
    assert_eq!((ids(&first), ids(&second)), (vec!["3", "2"], vec!["1", "0"]));
}

pub async fn retention_deletes_old_terminal_intents_only(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for n in 0..5 {
        let intent = fixture.submit(&format!("old{n}"), &one_shot()).await;
        fixture.attempt(&term, &intent, accepted()).await;
    }
    fixture.submit("waiting", &one_shot()).await;
    fixture.pass(2 * fixture.short).await;
    let young = fixture.submit("young", &one_shot()).await;
    fixture.attempt(&term, &young, accepted()).await;
    let purge = async |limit| fixture.store.purge(term.clone(), fixture.short, limit).await.unwrap();
    assert_eq!(purge(3).await, Purged::Deleted { intents: 3, more: true });
    assert_eq!(purge(3).await, Purged::Deleted { intents: 2, more: false });
    assert_eq!(purge(3).await, Purged::Deleted { intents: 0, more: false });
    let left = fixture.store.list(query(9)).await.unwrap();
    assert_eq!(ids(&left), ["young", "waiting"]);
    assert_eq!(fixture.store.history(intent_id("old0")).await, Ok(None));
    fixture.submit("old0", &max_attempts(2)).await;
    assert!(fixture.history("old0").await.attempts.is_empty(), "a purged id starts anew");
}

pub async fn a_reachable_store_answers_a_ping(fixture: Fixture) {
    assert_eq!(fixture.store.ping().await, Ok(()));
}
