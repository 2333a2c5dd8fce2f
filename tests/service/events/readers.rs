//! Readers that go on where they were, at whichever instance: all see every event once, and in one order.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Stream, cursor, end, ids};
use crate::support::{Api, site};

/// Follows the feed by pages, at one instance after the other.
async fn follow_pages(urls: Vec<String>, last: &str) -> Vec<String> {
    let (mut seen, mut after, mut turn) = (Vec::new(), String::new(), 0);
    while seen.last().is_none_or(|id| id != last) {
        let api = Api::new(&urls[turn % urls.len()]);
        turn += 1;
        let path = format!("/v1/events?limit=20&waitSeconds=1&after={after}");
        if let Ok(answer) = api.try_get(&path).await
            && answer.status == 200
        {
            seen.extend(ids(&answer));
            after = cursor(&answer);
        }
    }
    seen
}

/// Follows the stream; when it ends or breaks, goes on at the next instance.
async fn follow_stream(urls: Vec<String>, last: &str) -> Vec<String> {
    let (mut seen, mut after, mut turn) = (Vec::new(), String::new(), 0);
    while seen.last().is_none_or(|id| id != last) {
        let url = &urls[turn % urls.len()];
        turn += 1;
        let Ok(mut stream) = Stream::open(url, "/v1/events/stream", &[("Last-Event-ID", &after)]).await else {
            continue;
        };
        while let Ok(Some(block)) = stream.block().await {
            after = block.id.clone().unwrap_or(after);
            if block.data.is_some() {
                seen.push(block.json()["intent"]["intentId"].as_str().unwrap().to_owned());
            }
            if seen.last().is_some_and(|id| id == last) {
                break;
            }
        }
    }
    seen
}

#[actix::test]
async fn readers_see_every_event_once_and_in_one_order_over_two_instances_and_a_kill() {
    let (site, _gateway) = site();
    let mut leader = site.start();
    leader.wait_for_log("leader_acquired");
    let follower = site.start();
    let urls = vec![leader.url.clone(), follower.url.clone()];
    let reversed: Vec<_> = urls.iter().rev().cloned().collect();
    let readers = [
        actix::spawn(follow_pages(urls.clone(), "last")),
        actix::spawn(follow_pages(reversed.clone(), "last")),
        actix::spawn(follow_stream(urls, "last")),
        actix::spawn(follow_stream(reversed, "last")),
    ];
    let api = follower.api();
    let mut submitted = BTreeSet::new();
    for number in 0..300 {
        if number == 150 {
            leader.kill();
        }
        let id = format!("i{number}");
        let simulate = if number % 3 == 0 { "reject:invalid_recipient" } else { "accept" };
        assert_eq!(api.submit(&id, "once", json!({ "simulate": simulate }), "").await.status, 200);
        submitted.insert(id);
    }
    api.until_nothing_is_pending().await;
    end(&api, "last", "once", json!({})).await;
    submitted.insert("last".to_owned());
    let mut orders = Vec::new();
    for reader in readers {
        let seen = reader.await.unwrap();
        assert_eq!(seen.iter().cloned().collect::<BTreeSet<_>>(), submitted);
        assert_eq!(seen.len(), submitted.len(), "nothing twice");
        orders.push(seen);
    }
    assert!(orders.iter().all(|order| *order == orders[0]), "all readers see the same order");
}

/// Streams that start anywhere and at any time, while intents end, all go on with the same events.
#[actix::test]
async fn streams_that_join_at_any_time_have_the_same_rest_of_the_feed() {
    let (site, _gateway) = site();
    let instances = [site.start(), site.start()];
    let api = instances[0].api();
    let last = "last";
    let mut readers = Vec::new();
    for number in 0..60 {
        let id = format!("i{number}");
        api.submit(&id, "once", json!({ "simulate": "slow:20" }), "").await;
        // Each starts after the event that was the newest one at some time.
        let path = if number % 2 == 0 { "/v1/events?limit=1000" } else { "/v1/events?after=now" };
        let (after, url) = (cursor(&api.get(path).await), instances[number % 2].url.clone());
        readers.push(actix::spawn(async move {
            let path = format!("/v1/events/stream?after={after}");
            let mut stream = Stream::open(&url, &path, &[]).await.unwrap();
            let mut seen = Vec::new();
            while seen.last().is_none_or(|id| id != last) {
                seen.push(stream.event().await.json()["intent"]["intentId"].as_str().unwrap().to_owned());
            }
            (after, seen)
        }));
    }
    api.until_nothing_is_pending().await;
    end(&api, last, "once", json!({})).await;
    for reader in readers {
        let (after, seen) = reader.await.unwrap();
        let rest = api.get(&format!("/v1/events?limit=1000&after={after}")).await;
        assert_eq!(seen, ids(&rest), "after {after}");
    }
}
