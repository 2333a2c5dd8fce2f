//! Idempotency: one id is one intent, however often and by whichever instance it is submitted.

use super::{Fixture, intent_id, new_intent, submit_to};
use crate::domain::contract::GatewayUrl;
use crate::domain::contract::fixtures::{deadline, max_attempts, one_shot};
use crate::domain::intent::State;
use crate::domain::policy;
use crate::store::{StartResult, Store, Submitted, WriteBatch};

pub async fn a_new_intent_is_created_and_found(fixture: Fixture) {
    let before = fixture.now().await;
    let created = fixture.submit("a", &one_shot()).await;
    assert_eq!((created.id.as_str(), created.target.as_str()), ("a", "sms.one_shot"));
    assert_eq!((&created.state, created.attempt_count, created.attempt_open), (&State::Pending, 0, false));
    assert!(created.created_at >= before, "store time does not go back");
    let found = fixture.find("a").await.unwrap();
    assert_eq!(found.intent, created);
    assert_eq!(found.payload_sha256, *new_intent("a", &one_shot(), b"{}").payload.sha256());
}

pub async fn a_repeated_submission_returns_the_existing_intent(fixture: Fixture) {
    let created = fixture.submit("a", &one_shot()).await;
    let again = submit_to(&*fixture.other, new_intent("a", &one_shot(), b"{}")).await;
    assert_eq!(again, Submitted::Existing(created));
    let changed_contract = deadline(5);
    let mut renamed = one_shot();
    renamed.policy = changed_contract.policy;
    let after_reload = submit_to(&*fixture.store, new_intent("a", &renamed, b"{}")).await;
    assert!(
        matches!(after_reload, Submitted::Existing(_)),
        "the name of the target is compared, not its current contract"
    );
}

pub async fn another_target_or_payload_is_a_conflict(fixture: Fixture) {
    let created = fixture.submit("a", &one_shot()).await;
    for (contract, payload, target_differs, payload_differs) in [
        (max_attempts(2), b"{}".as_slice(), true, false),
        (one_shot(), b"{ }".as_slice(), false, true),
        (one_shot(), b"".as_slice(), false, true),
        (max_attempts(2), b"1".as_slice(), true, true),
    ] {
        let Submitted::Conflict(conflict) = submit_to(&*fixture.store, new_intent("a", &contract, payload)).await
        else {
            panic!("no conflict for {payload:?}");
        };
        assert_eq!(conflict.existing, created);
        assert_eq!((conflict.target_differs, conflict.payload_differs), (target_differs, payload_differs));
    }
    assert_eq!(fixture.intent("a").await, created);
}

pub async fn ids_are_compared_byte_for_byte(fixture: Fixture) {
    let different = [
        "a",
        "A",
        "á",
        "a\u{301}",
        "ß",
        "ss",
        "a b",
        "a  b",
        "a\u{a0}b",
        "1",
        "01",
        "%41",
        "'",
        "\"",
        "\\\"",
        "\\n",
        "~1",
        "~01",
        "~\"",
        "~",
        "\u{1f600}",
    ];
    for id in different {
        fixture.submit(id, &one_shot()).await;
    }
    for id in different {
        assert_eq!(fixture.intent(id).await.id.as_str(), id);
    }
    assert_eq!(fixture.find("B").await, None);
}

pub async fn payload_bytes_are_stored_unchanged(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let payloads: [&'static [u8]; 4] = [b"", b"{ \"b\":1,\n\"a\" : 1.0e0 }", b"null", "\"\u{1f600}\u{0}\"".as_bytes()];
    for (number, payload) in payloads.into_iter().enumerate() {
        let id = format!("p{number}");
        let Submitted::Created(intent) = submit_to(&*fixture.store, new_intent(&id, &one_shot(), payload)).await else {
            panic!("not created");
        };
        let Some(StartResult::Started { payload: kept, .. }) =
            fixture.start(&term, &fixture.waiting(&intent).await).await
        else {
            panic!("not started");
        };
        assert_eq!(kept, payload);
    }
}

pub async fn one_batch_may_contain_the_same_id_several_times(fixture: Fixture) {
    let submits = vec![
        new_intent("a", &one_shot(), b"1"),
        new_intent("a", &one_shot(), b"1"),
        new_intent("a", &one_shot(), b"2"),
        new_intent("b", &max_attempts(3), b"1"),
    ];
    let results = fixture.store.commit(WriteBatch { submits, ..WriteBatch::default() }).await.unwrap();
    let kinds: Vec<_> = results
        .submits
        .into_iter()
        .map(|result| match result.unwrap() {
            Submitted::Created(_) => "created",
            Submitted::Existing(_) => "existing",
            Submitted::Conflict(_) => "conflict",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["created", "existing", "conflict", "created"]);
}

pub async fn racing_instances_create_one_intent(fixture: Fixture) {
    let race = |store: std::sync::Arc<dyn Store>, payload: &'static [u8]| {
        tokio::spawn(async move { submit_to(&*store, new_intent("same", &one_shot(), payload)).await })
    };
    let mut racers = Vec::new();
    for _ in 0..25 {
        racers.push(race(fixture.store.clone(), b"1"));
        racers.push(race(fixture.other.clone(), b"1"));
        racers.push(race(fixture.other.clone(), b"2"));
    }
    let (mut created, mut existing, mut conflicts) = (0, 0, 0);
    for racer in racers {
        match racer.await.unwrap() {
            Submitted::Created(_) => created += 1,
            Submitted::Existing(_) => existing += 1,
            Submitted::Conflict(_) => conflicts += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(created, 1);
    assert!((existing, conflicts) == (49, 25) || (existing, conflicts) == (24, 50), "{existing} {conflicts}");
    assert!(fixture.store.find(intent_id("same")).await.unwrap().is_some());
}

pub async fn a_stored_contract_does_not_change_with_the_registry(fixture: Fixture) {
    let term = fixture.lead("me").await;
    let old = max_attempts(2);
    let first = fixture.submit("first", &old).await;
    let mut new = max_attempts(9);
    new.gateway_url = GatewayUrl::parse("http://elsewhere.test").unwrap();
    let second = fixture.submit("second", &new).await;
    assert_eq!(*fixture.start_due(&term, &first).await.contract, old);
    let started = fixture.start_due(&term, &second).await;
    assert_eq!(*started.contract, new);
    assert_eq!(policy::deadline(&started.contract, started.begins_at), None);
}
