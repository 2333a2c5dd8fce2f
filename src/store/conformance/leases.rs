//! The lease: it has one holder at a time by the store's clock, and its epoch only grows.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Fixture, LONG, acquire_from};
use crate::domain::actor::fixtures::somebody;
use crate::domain::contract::fixtures::max_attempts;
use crate::domain::outcome::Outcome;
use crate::store::FencedError;

pub async fn one_holder_at_a_time(fixture: Fixture) {
    let lease = fixture.acquire("a").await.unwrap();
    assert_eq!((lease.term.epoch, &*lease.term.holder_id, &*lease.term.lease_name), (1, "a", "lease"));
    assert_eq!(lease.expires_at.since(lease.now), LONG);
    for holder in ["a", "b"] {
        assert_eq!(acquire_from(&*fixture.other, "lease", holder, LONG).await, None);
    }
}

pub async fn a_renewed_lease_lasts_longer(fixture: Fixture) {
    let lease = acquire_from(&*fixture.store, "lease", "a", fixture.short).await.unwrap();
    fixture.pass(fixture.short / 2).await;
    let renewed = fixture.store.renew_lease(lease.term.clone(), LONG).await.unwrap();
    assert_eq!(renewed.term, lease.term, "renewing keeps the epoch");
    assert!(renewed.expires_at > lease.expires_at);
    fixture.pass(fixture.short).await;
    assert_eq!(fixture.acquire("b").await, None);
}

pub async fn an_expired_lease_cannot_be_renewed(fixture: Fixture) {
    let lease = acquire_from(&*fixture.store, "lease", "a", fixture.short).await.unwrap();
    fixture.pass(fixture.short).await;
    assert_eq!(fixture.store.renew_lease(lease.term, fixture.short).await, Err(FencedError::TermOver));
    let next = acquire_from(&*fixture.other, "lease", "b", LONG).await.unwrap();
    assert_eq!(next.term.epoch, 2);
}

pub async fn the_same_holder_acquires_the_lease_again_with_a_new_epoch(fixture: Fixture) {
    let first = acquire_from(&*fixture.store, "lease", "a", fixture.short).await.unwrap();
    fixture.pass(fixture.short).await;
    let second = acquire_from(&*fixture.store, "lease", "a", fixture.short).await.unwrap();
    assert_eq!((first.term.epoch, second.term.epoch), (1, 2));
    assert_eq!(fixture.store.renew_lease(first.term, fixture.short).await, Err(FencedError::TermOver));
}

pub async fn a_released_lease_can_be_acquired_immediately(fixture: Fixture) {
    let term = fixture.lead("a").await;
    fixture.store.release_lease(term.clone()).await.unwrap();
    assert_eq!(fixture.store.renew_lease(term.clone(), LONG).await, Err(FencedError::TermOver));
    assert_eq!(fixture.acquire("b").await.unwrap().term.epoch, 2);
    fixture.store.release_lease(term).await.unwrap();
    assert_eq!(fixture.acquire("c").await, None, "an old term cannot release the lease");
}

pub async fn one_store_has_one_leader_even_with_different_lease_names(fixture: Fixture) {
    let first = acquire_from(&*fixture.store, "one", "a", LONG).await.unwrap().term;
    for name in ["two", "ONE"] {
        assert_eq!(acquire_from(&*fixture.other, name, "b", LONG).await, None, "{name} beside one");
    }
    fixture.store.release_lease(first.clone()).await.unwrap();
    let second = acquire_from(&*fixture.other, "two", "b", LONG).await.unwrap().term;
    assert_eq!((first.epoch, second.epoch), (1, 2), "the epoch grows across lease names");
    assert_eq!(acquire_from(&*fixture.store, "one", "a", LONG).await, None);
    fixture.store.release_lease(second).await.unwrap();
    assert_eq!(acquire_from(&*fixture.store, "one", "a", LONG).await.unwrap().term.epoch, 3);
}

pub async fn racing_instances_get_one_term(fixture: Fixture) {
    for round in 1..=5 {
        let racers: Vec<_> = (0..8)
            .map(|n| {
                let store = if n % 2 == 0 { fixture.store.clone() } else { fixture.other.clone() };
                // Some of them use another lease name.
                let name = if n < 6 { "lease" } else { "another" };
                tokio::spawn(async move { acquire_from(&*store, name, &format!("racer {n}"), LONG).await })
            })
            .collect();
        let mut won = Vec::new();
        for racer in racers {
            won.extend(racer.await.unwrap());
        }
        assert_eq!(won.len(), 1);
        assert_eq!(won[0].term.epoch, round);
        fixture.store.release_lease(won[0].term.clone()).await.unwrap();
    }
}

pub async fn a_lease_is_reset_only_if_it_was_not_renewed_since(fixture: Fixture) {
    let state = async || fixture.store.lease_state().await.unwrap();
    assert_eq!(state().await.lease, None);
    let term = fixture.lead("dead").await;
    let seen = state().await;
    let lease = seen.lease.clone().unwrap();
    assert_eq!((lease.holder_id.as_str(), lease.epoch), ("dead", term.epoch));
    assert!(lease.expires_at > seen.now && lease.renewed_at <= seen.now);
    assert!(seen.clock_ahead < fixture.short, "{seen:?}");
    fixture.pass(fixture.short).await;
    fixture.store.renew_lease(term.clone(), LONG).await.expect("it is held");
    assert_eq!(
        fixture.store.reset_lease(lease.epoch, lease.renewed_at, somebody()).await,
        Ok(false),
        "it was renewed since"
    );
    assert_eq!(fixture.acquire("next").await, None);
    let lease = state().await.lease.unwrap();
    assert_eq!(fixture.other.reset_lease(lease.epoch, lease.renewed_at, somebody()).await, Ok(true));
    assert_eq!(fixture.store.renew_lease(term.clone(), LONG).await, Err(FencedError::TermOver), "its holder is fenced");
    let next = fixture.acquire("next").await.expect("it is free").term;
    assert_eq!(next.epoch, term.epoch + 1);
    assert_eq!(
        fixture.store.reset_lease(lease.epoch, lease.renewed_at, somebody()).await,
        Ok(false),
        "another instance holds it now"
    );
}

pub async fn the_holder_of_every_term_is_recorded(fixture: Fixture) {
    let intent = fixture.submit("a", &max_attempts(9)).await;
    let mut expected = BTreeMap::new();
    for holder in ["first", "second ä", "first"] {
        let term = fixture.lead(holder).await;
        fixture.attempt(&term, &intent, Outcome::error("x")).await;
        fixture.pass(Duration::from_secs(5)).await;
        expected.insert(term.epoch, holder.to_owned());
        fixture.store.release_lease(term).await.unwrap();
    }
    fixture.lead("without an attempt").await;
    let detail = fixture.other.detail(intent.id).await.unwrap().unwrap();
    assert_eq!(detail.history.attempts.len(), 3);
    assert_eq!(detail.holders, expected);
}
