//! Streams of events: where they start, how they end, and clients that do not read.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{Stream, end, ids, metric, until_metric};
use crate::support::site;

#[actix::test]
async fn a_stream_has_the_same_events_and_goes_on_where_it_ended() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    end(&api, "a", "once", json!({})).await;
    let mut all = Stream::open(&instance.url, "/v1/events/stream", &[]).await.unwrap();
    let header = |name: &str| all.headers.get(name).unwrap().to_str().unwrap().to_owned();
    assert_eq!((header("content-type"), header("cache-control")), ("text/event-stream".into(), "no-store".into()));
    let mut new = Stream::open(&instance.url, "/v1/events/stream?after=now", &[]).await.unwrap();
    let hello = new.block().await.unwrap().unwrap();
    assert!(hello.comments == 1 && hello.id.is_some() && hello.data.is_none(), "{hello:?}");
    let mut deadline = Stream::open(&instance.url, "/v1/events/stream?submissionTarget=deadline", &[]).await.unwrap();
    assert_eq!(metric(&api, "submission_event_streams").await, 3);
    end(&api, "b", "once", json!({})).await;
    end(&api, "c", "deadline", json!({})).await;
    let listed = api.get("/v1/events").await;
    let [a, b, c] = [all.event().await, all.event().await, all.event().await];
    assert_eq!(
        json!([a.json(), b.json(), c.json()]),
        listed.json()["events"],
        "events of pages and streams are the same"
    );
    assert_eq!(a.event.as_deref(), Some("intent.terminal"));
    assert_eq!([new.event().await, new.event().await], [b.clone(), c.clone()]);
    assert_eq!(deadline.event().await, c);
    drop((all, new, deadline));
    until_metric(&api, "submission_event_streams", 0).await;

    let after_a = a.id.unwrap();
    // The header counts more than the parameter, which a browser repeats.
    let headers = [("Last-Event-ID", after_a.as_str())];
    let mut resumed = Stream::open(&instance.url, "/v1/events/stream?after=now", &headers).await.unwrap();
    assert_eq!([resumed.event().await, resumed.event().await], [b.clone(), c]);
    drop(resumed);
    assert_eq!(ids(&api.get(&format!("/v1/events?after={}", b.id.unwrap())).await), ["c"], "ids are cursors");
    let mut resumed =
        Stream::open(&instance.url, "/v1/events/stream", &[("Last-Event-ID", &hello.id.unwrap())]).await.unwrap();
    assert_eq!(resumed.event().await.json()["intent"]["intentId"], "b", "ids of comments are cursors too");
    // A HEAD opens no stream.
    let head = api.call("HEAD", "/v1/events/stream", "").await;
    assert_eq!((head.status.as_u16(), head.header("content-type")), (200, Some("text/event-stream")));
    drop(resumed);
    until_metric(&api, "submission_event_streams", 0).await;
}

#[actix::test]
async fn a_client_that_never_reads_is_disconnected_and_delays_nobody() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let mut silent = TcpStream::connect(instance.url.trim_start_matches("http://")).unwrap();
    silent.write_all(b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    until_metric(&api, "submission_event_streams", 1).await;
    let mut reader = Stream::open(&instance.url, "/v1/events/stream?after=now", &[]).await.unwrap();
    // Long names, so that the buffers of the connection are full soon.
    let id = |number: usize| format!("{number}-{}", "x".repeat(180));
    let (batches, each) = (8, 1000);
    for batch in 0..batches {
        let items =
            (0..each).map(|number| json!({ "intentId": id(batch * each + number), "submissionTarget": "once" }));
        let answer = api.call("POST", "/v1/intents/batch", Value::from(items.collect::<Vec<_>>()).to_string()).await;
        assert_eq!(answer.status, 200);
        let mut seen = BTreeSet::new();
        while seen.len() < each {
            assert!(seen.insert(reader.event().await.json()["intent"]["intentId"].as_str().unwrap().to_owned()));
        }
    }
    until_metric(&api, "submission_event_streams", 1).await;
    let metrics = api.get("/metrics").await.text();
    let disconnected = "submission_http_connections_closed_total{reason=\"slow_reader\"} 1\n";
    assert!(metrics.contains(disconnected), "{metrics}");
    drop(silent);
}

#[actix::test]
async fn a_stopping_instance_ends_streams_and_long_polls_cleanly() {
    let (site, _gateway) = site();
    let mut instance = site.start();
    let api = instance.api();
    end(&api, "a", "once", json!({})).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = Stream::open(&instance.url, "/v1/events/stream", &[]).await.unwrap();
        stream.event().await;
        streams.push(stream);
    }
    let poll = {
        let api = instance.api();
        actix::spawn(async move { api.get("/v1/events?after=now&waitSeconds=30").await })
    };
    let path = "submission_http_connections 5";
    api.until("/metrics", |answer| answer.text().contains(path)).await;
    instance.signal("TERM");
    for mut stream in streams {
        assert_eq!(stream.block().await, Ok(None), "the end of the response, not of the connection");
    }
    let answer = poll.await.unwrap();
    assert_eq!((answer.status.as_u16(), ids(&answer)), (200, vec![]));
    assert!(instance.wait().success());
}
