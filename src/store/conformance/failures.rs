//! Failures by target and cause: counts of a period, and lists and redrives of exactly one cause.

use super::{Fixture, accepted, intent_id, rejected, writes};
use crate::domain::contract::fixtures::{max_attempts, one_shot};
use crate::domain::intent::{Status, TargetName};
use crate::domain::outcome::Outcome;
use crate::store::{Examined, FailureQuery, FencedWrites, IntentPage, ListQuery};

const HTTP_500: &str = "gateway answered HTTP 500";

fn http_500() -> Outcome {
    Outcome::error(format!("{HTTP_500}: one ~1 \"x\""))
}

/// Intents that failed for four causes, and others. The texts of two causes begin in the same way.
async fn fill(fixture: &Fixture) {
    let term = fixture.lead("me").await;
    let overdue = fixture.submit("overdue", &fixture.short_deadline()).await;
    for (id, contract, outcome) in [
        ("a", one_shot(), http_500()),
        ("b", one_shot(), Outcome::error(format!("{HTTP_500} (another)"))),
        ("c", one_shot(), Outcome::error(format!("{HTTP_500}00"))),
        ("d", max_attempts(2), rejected("invalid_recipient")),
        ("e", one_shot(), rejected("provider é failure")),
        ("f", one_shot(), accepted()),
        ("g", max_attempts(2), http_500()),
        ("h", one_shot(), http_500()),
    ] {
        let intent = fixture.submit(id, &contract).await;
        fixture.attempt(&term, &intent, outcome).await;
    }
    fixture.pass(fixture.short).await;
    fixture.fenced(FencedWrites { expire: Some(9), ..writes(&term) }).await.unwrap();
    assert!(fixture.intent("overdue").await.state.is_terminal(), "{overdue:?}");
}

fn ids(page: &IntentPage) -> Vec<&str> {
    page.intents.iter().map(|intent| intent.id.as_str()).collect()
}

pub async fn failures_are_counted_by_target_and_cause(fixture: Fixture) {
    fill(&fixture).await;
    let report = fixture.other.failures(FailureQuery { minutes: 60, target: None }).await.unwrap();
    let mut shown: Vec<_> = report
        .groups
        .iter()
        .map(|group| (group.target.as_str(), group.status.as_str(), group.cause.as_str(), group.intents))
        .collect();
    assert_eq!(shown.remove(0), ("sms.one_shot", "exhausted", HTTP_500, 3), "the largest group is the first");
    shown.sort_unstable();
    assert_eq!(
        shown,
        [
            ("sms.deadline", "exhausted", "deadline_exceeded", 1),
            ("sms.max_attempts", "rejected", "invalid_recipient", 1),
            ("sms.one_shot", "exhausted", "gateway answered HTTP 50000", 1),
            ("sms.one_shot", "exhausted", "provider é failure", 1),
        ]
    );
    for group in &report.groups {
        assert_eq!(group.trend.iter().sum::<u64>(), group.intents, "{group:?}");
        assert!(report.since <= group.first && group.first <= group.last && group.last <= report.now, "{group:?}");
        let sample = group.sample.as_ref().expect("the newest failures are few");
        let found = fixture.intent(sample.as_str()).await;
        assert_eq!((&found.target, found.state.status().as_str()), (&group.target, group.status.as_str()));
    }
    let target = Some(TargetName::parse("sms.max_attempts").unwrap());
    let report = fixture.store.failures(FailureQuery { minutes: 1440, target }).await.unwrap();
    assert_eq!((report.groups.len(), report.groups[0].cause.as_str()), (1, "invalid_recipient"));
}

pub async fn a_list_has_the_intents_of_one_cause(fixture: Fixture) {
    fill(&fixture).await;
    let of_cause = |cause: &str| Examined { cause: Some(cause.to_owned()), ..Examined::default() };
    let query = |examined| ListQuery { examined, limit: 2, ..ListQuery::default() };
    // A page may be short, because it examines a bounded number of intents.
    for (query, expected) in [
        (query(of_cause(HTTP_500)), vec!["h", "b", "a"]),
        (ListQuery { status: Some(Status::Exhausted), ..query(of_cause(HTTP_500)) }, vec!["h", "b", "a"]),
        (ListQuery { status: Some(Status::Rejected), ..query(of_cause(HTTP_500)) }, vec![]),
        (ListQuery { status: Some(Status::Accepted), ..query(of_cause(HTTP_500)) }, vec![]),
        (query(of_cause("gateway answered HTTP")), vec![]),
        (query(of_cause("provider é failure")), vec!["e"]),
        (query(of_cause("invalid_recipient")), vec!["d"]),
        (query(of_cause("deadline_exceeded")), vec!["overdue"]),
        (query(of_cause("one_shot")), vec![]),
        (
            ListQuery { target: TargetName::parse("sms.max_attempts").ok(), ..query(of_cause("invalid_recipient")) },
            vec!["d"],
        ),
        (
            query(Examined { min_attempts: Some(1), ..Examined::default() }),
            vec!["h", "g", "f", "e", "d", "c", "b", "a"],
        ),
        (query(Examined { min_attempts: Some(2), ..Examined::default() }), vec![]),
        (
            query(Examined {
                ended_since: fixture.intent("overdue").await.state.completed_at(),
                ..Examined::default()
            }),
            vec!["overdue"],
        ),
        (
            query(Examined {
                ended_before: fixture.intent("b").await.state.completed_at(),
                min_attempts: Some(1),
                ..Examined::default()
            }),
            vec!["a"],
        ),
    ] {
        let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = fixture.other.list(ListQuery { after, ..query.clone() }).await.unwrap();
            assert!(page.intents.len() <= 2);
            found.extend(ids(&page).into_iter().map(str::to_owned));
            after = page.next;
            pages += 1;
            assert!(pages < 20, "{query:?}");
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "{query:?}");
    }
}

pub async fn causes_of_failed_intents_are_found(fixture: Fixture) {
    fill(&fixture).await;
    let mut seqs = Vec::new();
    for id in ["a", "d", "e", "f", "g", "overdue"] {
        seqs.push(fixture.store.find(intent_id(id)).await.unwrap().unwrap().intent.seq);
    }
    let causes = fixture.other.causes(seqs.clone()).await.unwrap();
    let found: Vec<_> = seqs.iter().map(|seq| causes.get(seq).map(String::as_str)).collect();
    assert_eq!(
        found,
        [Some(HTTP_500), Some("invalid_recipient"), Some("provider é failure"), None, None, Some("deadline_exceeded")]
    );
    assert!(fixture.store.causes(Vec::new()).await.unwrap().is_empty());
}
