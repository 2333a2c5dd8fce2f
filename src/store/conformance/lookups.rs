//! Queries for intents, lists, the console, and retention.

use std::time::Duration;

use super::{Fixture, accepted, intent_id, rejected, writes};
use crate::domain::contract::fixtures::{max_attempts, one_shot};
use crate::domain::intent::{Status, TargetName};
use crate::domain::outcome::Outcome;
use crate::store::{FencedWrites, IntentPage, ListQuery};

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
    let (mut seen, mut after) = (Vec::new(), None);
    for size in [3, 3, 1] {
        let page = fixture.store.list(ListQuery { after, ..query(3) }).await.unwrap();
        assert_eq!(page.intents.len(), size);
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        after = page.next;
    }
    assert_eq!(after, None);
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

pub async fn intents_are_found_by_the_prefix_of_their_id(fixture: Fixture) {
    let term = fixture.lead("me").await;
    for id in ["order-10", "order-2", "order", "Order-1", "orde", "orderé", "order~1", "order-1", "ordes"] {
        let intent = fixture.submit(id, &one_shot()).await;
        if id.ends_with('2') {
            fixture.attempt(&term, &intent, accepted()).await;
        }
    }
    let starts = |prefix: &str, limit| ListQuery { prefix: Some(prefix.to_owned()), ..query(limit) };
    let list = async |query: ListQuery| fixture.store.list(query).await.unwrap();
    assert_eq!(ids(&list(starts("order-", 9)).await), ["order-1", "order-10", "order-2"]);
    assert_eq!(ids(&list(starts("order~", 9)).await), ["order~1"]);
    assert_eq!(ids(&list(starts("orderé", 9)).await), ["orderé"]);
    assert!(list(starts("nothing", 9)).await.intents.is_empty());
    let all = ["order", "order-1", "order-10", "order-2", "orderé", "order~1"];
    let mut found = ids(&list(starts("order", 9)).await).into_iter().map(str::to_owned).collect::<Vec<_>>();
    found.sort();
    let mut expected = all.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(found, expected);
    let (mut seen, mut after) = (Vec::new(), None);
    for _ in 0..3 {
        let page = list(ListQuery { after, ..starts("order", 2) }).await;
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        after = page.next;
    }
    assert_eq!(after, None);
    seen.sort();
    assert_eq!(seen, expected, "pages show each once");
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = list(ListQuery { status: Some(Status::Accepted), after, ..starts("order", 9) }).await;
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["order-2"]);
}

pub async fn intents_are_found_by_the_message_id_of_a_gateway(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let called = |id: &str| Outcome::Accepted { gateway_message_id: Some(id.to_owned()) };
    let long = "x".repeat(201);
    for (id, outcome) in [
        ("a", called("gw \"7\" ~1 é")),
        ("b", called("GW-8")),
        ("c", called("gw-8")),
        ("gw-8 itself", called("other")),
        ("d", called(&long)),
        (
            "e",
            Outcome::Rejected { reason: "invalid_recipient".to_owned(), gateway_message_id: Some("gw-9".to_owned()) },
        ),
    ] {
        let intent = fixture.submit(id, &one_shot()).await;
        fixture.attempt(&term, &intent, outcome).await;
    }
    let find = async |text: &str| {
        let page = fixture.store.list(ListQuery { prefix: Some(text.to_owned()), ..query(9) }).await.unwrap();
        ids(&page).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(find("gw \"7\" ~1 é").await, ["a"]);
    assert_eq!(
        find("gw-8").await,
        ["c", "gw-8 itself"],
        "first by the gateway's message id, then by the prefix of the intent's id"
    );
    assert_eq!(find("gw-9").await, ["e"]);
    assert!(find(&long).await.is_empty() && find("gw").await == ["gw-8 itself"]);
    let only = |status| ListQuery { prefix: Some("gw-9".to_owned()), status: Some(status), ..query(9) };
    assert_eq!(ids(&fixture.store.list(only(Status::Rejected)).await.unwrap()), ["e"]);
    assert!(fixture.store.list(only(Status::Accepted)).await.unwrap().intents.is_empty());
    fixture.pass(2 * fixture.short).await;
    let purged = fixture.purge(&term, fixture.short, 9).await;
    assert_eq!(purged.iter().sum::<usize>(), 6);
    assert!(find("gw-9").await.is_empty());
}

pub async fn a_search_shows_every_match_once_on_pages_of_the_requested_size(fixture: Fixture) {
    let term = fixture.lead("me").await;
    // Twelve intents have the gateway message id "ref". Half of these and five others have ids that start with "ref".
    let mut expected = Vec::new();
    for n in 0..12 {
        let id = if n % 2 == 0 { format!("ref-{n:02}") } else { format!("other-{n:02}") };
        let contract = if n % 3 == 0 { one_shot() } else { max_attempts(2) };
        let intent = fixture.submit(&id, &contract).await;
        fixture.attempt(&term, &intent, Outcome::Accepted { gateway_message_id: Some("ref".to_owned()) }).await;
        expected.insert(0, id);
    }
    for n in 0..5 {
        let id = format!("ref-a{n}");
        fixture.submit(&id, &one_shot()).await;
        expected.push(id);
    }
    let search = async |limit: usize, filter: fn(&mut ListQuery)| {
        let (mut seen, mut after) = (Vec::new(), None);
        for _ in 0..100 {
            let mut query = ListQuery { prefix: Some("ref".to_owned()), after, ..query(limit) };
            filter(&mut query);
            let page = fixture.store.list(query).await.unwrap();
            assert!(page.intents.len() <= limit, "{} on a page of {limit}", page.intents.len());
            seen.extend(ids(&page).into_iter().map(str::to_owned));
            after = page.next;
            if after.is_none() {
                return seen;
            }
        }
        panic!("the pages do not end");
    };
    for limit in [1, 2, 3, 5, 11, 12, 13, 16, 17, 18, 50] {
        assert_eq!(search(limit, |_| ()).await, expected, "pages of {limit}");
    }
    let only = |wanted: &dyn Fn(&str) -> bool| expected.iter().filter(|id| wanted(id)).cloned().collect::<Vec<_>>();
    for limit in [1, 4, 50] {
        let pending = search(limit, |query| query.status = Some(Status::Pending)).await;
        assert_eq!(pending, only(&|id| id.starts_with("ref-a")), "pages of {limit}");
        let target = search(limit, |query| query.target = Some(one_shot().target)).await;
        let thirds = ["00", "03", "06", "09"];
        assert_eq!(target, only(&|id| id.starts_with("ref-a") || thirds.iter().any(|end| id.ends_with(end))));
    }
    // The last intent of a page is purged before the next page is read.
    let first = fixture.store.list(ListQuery { prefix: Some("ref".to_owned()), ..query(1) }).await.unwrap();
    assert_eq!(ids(&first), ["other-11"]);
    fixture.pass(2 * fixture.short).await;
    fixture.purge(&term, fixture.short, 99).await;
    let after = first.next;
    let rest = fixture.store.list(ListQuery { prefix: Some("ref".to_owned()), after, ..query(9) }).await.unwrap();
    assert_eq!(ids(&rest), ["ref-a0", "ref-a1", "ref-a2", "ref-a3", "ref-a4"]);
}

pub async fn the_detail_of_an_intent_is_complete(fixture: Fixture) {
    assert!(fixture.store.detail(intent_id("nobody")).await.unwrap().is_none());
    assert_eq!(fixture.store.payload(intent_id("nobody")).await, Ok(None));
    let term = fixture.lead("me").await;
    let detail = async |id: &str| fixture.store.detail(intent_id(id)).await.unwrap().unwrap();
    let intent = fixture.submit("a", &max_attempts(3)).await;
    let waits = detail("a").await;
    assert_eq!((waits.contract, waits.history), (max_attempts(3), fixture.history("a").await));
    assert_eq!((waits.next_attempt_at, waits.open_since), (Some(intent.created_at), None));
    let attempt = fixture.start_due(&term, &intent).await;
    let open = detail("a").await;
    assert_eq!((open.next_attempt_at, open.open_since), (None, Some(attempt.started_at)));
    assert!(open.now >= attempt.started_at);
    fixture.finish(&term, &attempt, Outcome::error("x")).await;
    let retry = detail("a").await;
    assert!(retry.next_attempt_at > Some(retry.now) && retry.open_since.is_none());
    assert_eq!(retry.history.attempts.len(), 1);
    let payload = fixture.store.payload(intent_id("a")).await.unwrap().unwrap();
    assert_eq!(payload.as_ref(), b"{}");
}

pub async fn the_overview_shows_who_leads_and_what_waits(fixture: Fixture) {
    let overview = async || fixture.store.overview().await.unwrap();
    assert!(overview().await.leader.is_none() && overview().await.oldest_pending.is_none());
    let term = fixture.lead("me").await;
    for id in ["first", "second", "third"] {
        fixture.submit(id, &one_shot()).await;
    }
    let first = fixture.intent("first").await;
    let attempt = fixture.start_due(&term, &first).await;
    let seen = overview().await;
    let leader = seen.leader.unwrap();
    assert_eq!((leader.holder_id.as_str(), leader.epoch), ("me", term.epoch));
    assert!(leader.acquired_at <= seen.now && leader.expires_at > seen.now);
    assert_eq!((seen.waiting, seen.in_flight, seen.webhooks), (2, 1, 0));
    assert_eq!(seen.oldest_pending, Some((intent_id("first"), first.created_at)));
    assert!(seen.recent.is_empty() && seen.failing.is_empty());
    fixture.finish(&term, &attempt, accepted()).await;
    assert_eq!(overview().await.oldest_pending.unwrap().0, intent_id("second"));
}

pub async fn the_results_of_attempts_are_counted(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let overdue = fixture.submit("overdue", &fixture.short_deadline()).await;
    for (id, contract, outcome) in [
        ("a", one_shot(), accepted()),
        ("b", one_shot(), accepted()),
        ("c", one_shot(), Outcome::error("gateway answered HTTP 500: one ~1 \"x\"")),
        ("d", max_attempts(2), Outcome::error("gateway answered HTTP 500: another")),
        ("e", max_attempts(2), rejected("invalid_recipient")),
    ] {
        let intent = fixture.submit(id, &contract).await;
        let attempt = fixture.start_due(&term, &intent).await;
        for _ in 0..2 {
            fixture.finish(&term, &attempt, outcome.clone()).await; // The second time has no effect.
        }
    }
    fixture.submit("waits", &one_shot()).await;
    fixture.pass(fixture.short).await;
    fixture.fenced(FencedWrites { expire: Some(9), ..writes(&term) }).await.unwrap();
    assert!(fixture.intent("overdue").await.state.is_terminal(), "{overdue:?}");

    let overview = fixture.store.overview().await.unwrap();
    let all_ended = fixture.store.activity(60).await.unwrap().ended;
    let ended = |status| all_ended.iter().filter(|e| e.status == status).map(|e| e.intents).sum::<u64>();
    let ends = [Status::Accepted, Status::Rejected, Status::Exhausted, Status::Pending].map(ended);
    assert_eq!(ends, [2, 1, 2, 0], "{all_ended:?}");
    let recent: Vec<_> =
        overview.recent.iter().map(|h| (h.target.as_str(), h.accepted, h.rejected, h.errors)).collect();
    assert_eq!(recent, [("sms.deadline", 0, 0, 0), ("sms.max_attempts", 0, 1, 1), ("sms.one_shot", 2, 0, 1)]);
    let (target, due) = overview.first_due.clone().unwrap();
    assert!(target == one_shot().target && due <= overview.now, "{target} at {due}");
    let failing: Vec<_> = overview
        .failing
        .iter()
        .map(|f| (f.target.as_str(), f.outcome.as_str(), f.cause.as_str(), f.attempts))
        .collect();
    assert_eq!(
        failing,
        [
            ("sms.max_attempts", "error", "gateway answered HTTP 500", 1),
            ("sms.max_attempts", "rejected", "invalid_recipient", 1),
            ("sms.one_shot", "error", "gateway answered HTTP 500", 1),
        ]
    );
    let health = fixture.store.target_health().await.unwrap();
    let health: Vec<_> = health
        .iter()
        .map(|h| (h.target.as_str(), h.waiting, h.accepted, h.rejected, h.errors, h.mean.is_some()))
        .collect();
    assert_eq!(
        health,
        [
            ("sms.deadline", 0, 0, 0, 0, false),
            ("sms.max_attempts", 1, 0, 1, 1, true),
            ("sms.one_shot", 1, 2, 0, 1, true),
        ]
    );
}

pub async fn pages_stay_stable_while_intents_arrive(fixture: Fixture) {
    for n in 0..4 {
        fixture.submit(&format!("{n}"), &one_shot()).await;
    }
    let first = fixture.store.list(query(2)).await.unwrap();
    fixture.submit("new", &one_shot()).await;
    let second = fixture.store.list(ListQuery { after: first.next.clone(), ..query(2) }).await.unwrap();
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
    let recent = fixture.submit("recent", &one_shot()).await;
    fixture.attempt(&term, &recent, accepted()).await;
    let steps = fixture.purge(&term, fixture.short, 3).await;
    assert!(steps.iter().all(|deleted| *deleted <= 3) && steps.iter().sum::<usize>() == 5, "{steps:?}");
    assert_eq!(fixture.purge(&term, fixture.short, 3).await, [0]);
    let left = fixture.store.list(query(9)).await.unwrap();
    assert_eq!(ids(&left), ["recent", "waiting"]);
    assert_eq!(fixture.store.history(intent_id("old0")).await, Ok(None));
    fixture.submit("old0", &max_attempts(2)).await;
    assert!(fixture.history("old0").await.attempts.is_empty(), "the id of a purged intent can be used again");
}

pub async fn numbers_of_purged_intents_are_not_reused(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let mut given = Vec::new();
    for n in 0..3 {
        let intent = fixture.submit(&format!("{n}"), &one_shot()).await;
        given.push(intent.seq);
        fixture.attempt(&term, &intent, accepted()).await;
        fixture.pass(2 * fixture.short).await;
        assert_eq!(fixture.purge(&term, fixture.short, 9).await.iter().sum::<usize>(), 1);
    }
    given.dedup();
    assert!(given.len() == 3 && given.is_sorted(), "{given:?}");
}

pub async fn a_reachable_store_accepts_probes(fixture: Fixture) {
    for bytes in [1, 64 * 1024, 512] {
        assert_eq!(fixture.store.probe(bytes).await, Ok(()));
        assert_eq!(fixture.other.probe(bytes).await, Ok(()));
    }
}
