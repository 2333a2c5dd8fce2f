//! The event feed in virtual time: who gets which events, and when.

use super::*;
use crate::domain::actor::fixtures::somebody;
use crate::engine::event_feed::{Ended, Subscription};
use crate::store::{EventFilter, EventQuery, EventRead, EventsAfter};

/// The intents of the next events.
async fn next(subscription: &mut Subscription, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    while ids.len() < count {
        ids.push(subscription.next().await.unwrap().event.intent().id.to_string());
    }
    ids
}

async fn end(instance: &Instance, id: &str) {
    instance.submit(id, &one_shot()).await;
    instance.until_terminal(id).await;
}

#[actix::test]
async fn subscribers_get_new_events_at_once_and_those_of_other_instances_soon() {
    let lab = Lab::new();
    let leader = lab.start(settings(), always(accepted()));
    leader.lease_after(0).await;
    let follower = lab.start(settings(), always(accepted()));
    end(&leader, "before").await;
    let mut at_leader =
        [leader.engine.events.subscribe().await.unwrap(), leader.engine.events.subscribe().await.unwrap()];
    let mut at_follower = follower.engine.events.subscribe().await.unwrap();
    for id in ["a", "b", "c"] {
        let start = monotonic();
        end(&leader, id).await;
        for subscription in &mut at_leader {
            assert_eq!(next(subscription, 1).await, [id]);
        }
        assert!(monotonic().duration_since(start) < Duration::from_millis(100), "not by polling");
        assert_eq!(next(&mut at_follower, 1).await, [id]);
        assert!(monotonic().duration_since(start) < Duration::from_millis(500));
    }
    let [first, _] = at_leader;
    assert!(first.caught_up() > Some(first.from()), "the position advances");
    // An intent that an instance cancels ends at once for its own subscribers, whoever leads.
    let later = Timestamp::from_micros(BASE) + 3600 * SECOND;
    let new = crate::store::NewIntent { not_before: Some(later), ..new_intent("later", &one_shot(), b"{}") };
    follower.engine.store.submit(new).await.unwrap();
    let start = monotonic();
    follower.engine.store.cancel(intent_id("later"), false, somebody()).await.unwrap();
    assert_eq!(next(&mut at_follower, 1).await, ["later"]);
    assert!(monotonic().duration_since(start) < Duration::from_millis(100));
}

#[actix::test]
async fn subscribers_start_in_the_order_in_which_they_came() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    let (started, mut order) = tokio::sync::mpsc::unbounded_channel();
    let subscribers: Vec<_> = (0..20)
        .map(|number| {
            let (events, started) = (instance.engine.events.clone(), started.clone());
            actix::spawn(async move {
                let subscription = events.subscribe().await.unwrap();
                started.send(number).unwrap();
                subscription
            })
        })
        .collect();
    for expected in 0..subscribers.len() {
        assert_eq!(order.recv().await, Some(expected), "the simulation repeats a run exactly");
    }
}

#[actix::test]
async fn nothing_is_read_while_nobody_subscribes() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    instance.faults.add("events", 1000, Fault::SlowAnswer(Duration::ZERO));
    end(&instance, "a").await;
    pass(60 * SECOND).await;
    assert_eq!(instance.faults.left("events"), 1000);
    let subscription = instance.engine.events.subscribe().await.unwrap();
    pass(60 * SECOND).await;
    let reads = 1000 - instance.faults.left("events");
    assert!((100..300).contains(&reads), "{reads} reads in a minute");
    drop(subscription);
    pass(60 * SECOND).await;
    let left = instance.faults.left("events");
    pass(60 * SECOND).await;
    assert_eq!(instance.faults.left("events"), left, "it stops soon after the last subscriber has left");
    // What ended meanwhile is in the store, and not sent.
    end(&instance, "b").await;
    let mut subscription = instance.engine.events.subscribe().await.unwrap();
    end(&instance, "c").await;
    assert_eq!(next(&mut subscription, 1).await, ["c"]);
}

#[actix::test]
async fn a_subscriber_that_does_not_read_is_dropped_and_delays_nobody() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let mut slow = instance.engine.events.subscribe().await.unwrap();
    let mut fast = instance.engine.events.subscribe().await.unwrap();
    for batch in 0..25 {
        for number in 0..100 {
            instance.submit(&format!("{batch}-{number}"), &one_shot()).await;
        }
        let mut ids = next(&mut fast, 100).await;
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 100, "no event is missing or repeated");
    }
    assert_eq!(slow.next().await.err(), Some(Ended::TooSlow));
}

#[actix::test]
async fn subscribers_miss_nothing_while_the_store_fails() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let mut subscription = instance.engine.events.subscribe().await.unwrap();
    instance.faults.add("events", 5, Fault::Fail);
    instance.faults.add("events", 1, Fault::FailAfter);
    end(&instance, "a").await;
    end(&instance, "b").await;
    assert_eq!(next(&mut subscription, 2).await, ["a", "b"]);
    assert_eq!(instance.faults.left("events"), 0);
    // A store that does not answer lets nobody wait for long.
    drop(subscription);
    pass(60 * SECOND).await;
    instance.faults.add("events", 1000, Fault::Fail);
    let start = monotonic();
    assert!(instance.engine.events.subscribe().await.is_none());
    assert!(monotonic().duration_since(start) < 10 * SECOND);
}

#[actix::test]
async fn closing_the_feed_ends_all_subscriptions() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let mut subscription = instance.engine.events.subscribe().await.unwrap();
    end(&instance, "a").await;
    assert_eq!(next(&mut subscription, 1).await, ["a"]);
    instance.engine.events.close();
    assert_eq!(subscription.next().await.err(), Some(Ended::Closed));
    assert!(instance.engine.events.subscribe().await.is_none());
}

/// Subscribers that come at any time, while intents end, find every event either in the store or in the subscription.
#[actix::test]
async fn what_a_new_subscriber_does_not_get_is_in_the_store() {
    let lab = Lab::new();
    let instance = lab.start(settings(), always(accepted()));
    instance.lease_after(0).await;
    let keep_reading = instance.engine.events.subscribe().await.unwrap();
    for number in 0..50 {
        instance.submit(&format!("i{number}"), &one_shot()).await;
        let subscribed = instance.engine.events.subscribe().await.unwrap();
        let query = EventQuery { after: EventsAfter::Oldest, filter: EventFilter::All, limit: 1000, examine: 1000 };
        let EventRead::Page(stored) = instance.engine.store.events(query).await.unwrap() else { panic!("no page") };
        assert!(stored.next >= subscribed.from(), "what was sent before is in the store");
        let mut seen: Vec<_> = stored.events.iter().map(|event| event.intent().id.to_string()).collect();
        let (mut subscribed, last) = (subscribed, stored.next);
        while seen.len() <= number {
            let live = subscribed.next().await.unwrap();
            if live.event.position > last {
                seen.push(live.event.intent().id.to_string());
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), number + 1);
    }
    drop(keep_reading);
}
