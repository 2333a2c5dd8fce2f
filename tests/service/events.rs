//! The event feed: pages, long polls and streams, over several instances, and clients that do everything wrong.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::pin::Pin;

use awc::error::PayloadError;
use awc::http::header::HeaderMap;
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::jobs::{self, Jobs};
use crate::support::{Answer, Api, Instance, PATIENCE, site};

/// One block of a stream: what stands between two empty lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: Option<String>,
    pub comments: usize,
}

impl Block {
    fn parse(text: &str) -> Self {
        let mut block = Self::default();
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("", _)) => block.comments += 1,
                Some(("id", value)) => block.id = Some(value.to_owned()),
                Some(("event", value)) => block.event = Some(value.to_owned()),
                Some(("data", value)) => block.data = Some(value.to_owned()),
                Some(("retry", value)) => assert!(value.parse::<u32>().is_ok(), "{text}"),
                _ => panic!("not a line of a stream: {line:?}"),
            }
        }
        block
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.data.as_ref().unwrap()).unwrap()
    }
}

/// A client of a stream.
pub(crate) struct Stream {
    body: Pin<Box<dyn futures_util::Stream<Item = Result<Bytes, PayloadError>>>>,
    text: String,
    pub headers: HeaderMap,
}

impl Stream {
    pub(crate) async fn open(url: &str, path: &str, headers: &[(&str, &str)]) -> Result<Self, String> {
        let client = awc::Client::builder().timeout(PATIENCE).finish();
        let request =
            headers.iter().fold(client.get(format!("{url}{path}")), |request, header| request.insert_header(*header));
        let body = request.send().await.map_err(|error| error.to_string())?;
        if body.status() != 200 {
            return Err(body.status().to_string());
        }
        Ok(Self { headers: body.headers().clone(), body: Box::pin(body), text: String::new() })
    }

    /// The next block; `None` at the end of the stream, and an error if the connection breaks.
    pub(crate) async fn block(&mut self) -> Result<Option<Block>, String> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                return Ok(Some(Block::parse(block.trim_end())));
            }
            let chunk = tokio::time::timeout(PATIENCE, self.body.next()).await.expect("the stream went silent");
            match chunk {
                Some(chunk) => self.text += std::str::from_utf8(&chunk.map_err(|error| error.to_string())?).unwrap(),
                None => {
                    return if self.text.is_empty() { Ok(None) } else { Err(format!("half a block: {}", self.text)) };
                }
            }
        }
    }

    /// The next event.
    async fn event(&mut self) -> Block {
        loop {
            let block = self.block().await.unwrap().expect("the stream has ended");
            if block.data.is_some() {
                return block;
            }
        }
    }
}

fn ids(answer: &Answer) -> Vec<String> {
    let json = answer.json();
    let events = json["events"].as_array().unwrap_or_else(|| panic!("no events in {json}"));
    events.iter().map(|event| event["intent"]["intentId"].as_str().unwrap().to_owned()).collect()
}

fn cursor(answer: &Answer) -> String {
    answer.json()["nextCursor"].as_str().unwrap_or_else(|| panic!("no cursor in {}", answer.text())).to_owned()
}

/// Submits an intent, and waits until it has ended.
async fn end(api: &Api, id: &str, target: &str, payload: Value) {
    let intent = api.submit(id, target, payload, "?waitSeconds=30").await.json();
    assert_ne!(intent["status"], "pending", "{intent}");
}

async fn metric(api: &Api, name: &str) -> u64 {
    let text = api.get("/metrics").await.text();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

async fn until_metric(api: &Api, name: &str, value: u64) {
    let line = format!("\n{name} {value}\n");
    api.until("/metrics", |answer| answer.text().contains(&line)).await;
}

#[actix::test]
async fn pages_have_every_outcome_in_order() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let empty = api.get("/v1/events").await;
    assert_eq!((empty.status.as_u16(), ids(&empty)), (200, vec![]));
    let first = cursor(&empty);
    end(&api, "accepted", "once", json!({})).await;
    end(&api, "rejected", "once", json!({ "simulate": "reject:invalid_recipient" })).await;
    end(&api, "exhausted", "once", json!({ "simulate": "fail" })).await;
    api.submit("waiting", "attempts", json!({ "simulate": "fail" }), "?waitSeconds=30").await;
    end(&api, "other", "deadline", json!({})).await;
    api.call("POST", "/v1/intents/waiting/cancel", "").await;
    let all = ["accepted", "rejected", "exhausted", "other", "waiting"];
    for after in ["", &format!("?after={first}")] {
        let answer = api.get(&format!("/v1/events{after}")).await;
        assert_eq!(ids(&answer), all, "{}", answer.text());
        for event in answer.json()["events"].as_array().unwrap() {
            let id = event["intent"]["intentId"].as_str().unwrap();
            let intent = api.get(&format!("/v1/intents/{id}")).await.json();
            assert_eq!((&event["intent"], &event["occurredAt"]), (&intent, &intent["completedAt"]));
            assert_eq!(event["eventType"], "intent.terminal");
            assert!(event["eventId"].as_str().unwrap().starts_with("evt_"), "{event}");
            assert_eq!(event.as_object().unwrap().len(), 4, "{event}");
        }
        let rest = api.get(&format!("/v1/events?after={}", cursor(&answer))).await;
        assert_eq!((ids(&rest), rest.json().as_object().unwrap().len()), (vec![], 2));
    }
    let (mut after, mut paged) = (String::new(), Vec::new());
    while paged.len() < 5 {
        let answer = api.get(&format!("/v1/events?limit=2&after={after}")).await;
        paged.extend(ids(&answer));
        after = cursor(&answer);
        assert_eq!(answer.json()["more"], if paged.len() < 5 { json!(true) } else { Value::Null });
    }
    assert_eq!(paged, all);
    assert_eq!(ids(&api.get("/v1/events?submissionTarget=deadline").await), ["other"]);
    assert_eq!(ids(&api.get("/v1/events?after=now").await), [] as [&str; 0]);
}

#[actix::test]
async fn a_long_poll_is_answered_by_the_next_event_of_its_filter() {
    let (site, _gateway) = site();
    let instances = [site.start(), site.start()];
    let api = instances[0].api();
    end(&api, "before", "once", json!({})).await;
    let start = cursor(&api.get("/v1/events?after=now").await);
    let wait = |instance: &Instance, query: &str| {
        let (api, path) = (instance.api(), format!("/v1/events?after={start}&waitSeconds=30{query}"));
        actix::spawn(async move { api.get(&path).await })
    };
    let any = [wait(&instances[0], ""), wait(&instances[1], "")];
    let deadline = wait(&instances[1], "&submissionTarget=deadline");
    end(&api, "a", "once", json!({})).await;
    for answer in any {
        let answer = answer.await.unwrap();
        assert_eq!(ids(&answer), ["a"]);
        assert_eq!(ids(&api.get(&format!("/v1/events?after={}", cursor(&answer))).await), [] as [&str; 0]);
    }
    assert!(!deadline.is_finished());
    end(&api, "b", "deadline", json!({})).await;
    assert_eq!(ids(&deadline.await.unwrap()), ["b"]);
    // What is there already is not waited for, and what does not come is waited for no longer than asked.
    assert_eq!(ids(&api.get(&format!("/v1/events?after={start}&waitSeconds=30")).await), ["a", "b"]);
    let none = api.get("/v1/events?after=now&waitSeconds=1").await;
    assert_eq!((none.status.as_u16(), ids(&none)), (200, vec![]));
    end(&api, "c", "once", json!({})).await;
    assert_eq!(ids(&api.get(&format!("/v1/events?after={}", cursor(&none))).await), ["c"]);
}

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

#[actix::test]
async fn a_cursor_before_deleted_events_has_expired() {
    let (site, _gateway) = site();
    let mut command = site.command();
    command.env("SM_RETENTION", "1s");
    let instance = Instance::start(command);
    let api = instance.api();
    let first = cursor(&api.get("/v1/events").await);
    end(&api, "a", "once", json!({})).await;
    let after_a = cursor(&api.get(&format!("/v1/events?after={first}&waitSeconds=30")).await);
    api.until("/v1/intents/a", |answer| answer.status == 404).await;
    for path in [format!("/v1/events?after={first}"), format!("/v1/events/stream?after={first}")] {
        let answer = api.get(&path).await;
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (410, "cursor_expired"), "{path}");
    }
    // A reader that has read everything has missed nothing, however long ago that was.
    assert_eq!(ids(&api.get(&format!("/v1/events?after={after_a}")).await), [] as [&str; 0]);
    assert_eq!(ids(&api.get("/v1/events").await), [] as [&str; 0]);
}

#[actix::test]
async fn invalid_requests_are_refused_with_a_reason() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    end(&api, "a", "once", json!({})).await;
    end(&api, "b", "once", json!({})).await;
    let of_intents = api.get("/v1/intents?limit=1").await.json()["nextCursor"].as_str().unwrap().to_owned();
    let future = "e70000000000000";
    for (query, reason) in [
        ("after=nonsense".to_owned(), "after must be a cursor of this feed"),
        (format!("after={of_intents}"), "after must be a cursor of this feed"),
        ("after=j65c0b2f3c5d40".to_owned(), "after must be a cursor of this feed"),
        ("after=e7fffffffffffffff".to_owned(), "after must be a cursor of this feed"),
        (format!("after={future}"), "later than everything in the store"),
        ("after=now&after=now".to_owned(), "more than once"),
        ("cursor=x".to_owned(), "unknown parameter"),
        ("submissionTarget=%00".to_owned(), "submissionTarget must be"),
    ] {
        for path in ["/v1/events", "/v1/events/stream"] {
            let answer = api.get(&format!("{path}?{query}")).await;
            assert_eq!((answer.status.as_u16(), answer.error().as_str()), (400, "invalid_request"), "{path}?{query}");
            assert!(answer.text().contains(reason), "{path}?{query}: {}", answer.text());
        }
    }
    for query in ["limit=0", "limit=x", "waitSeconds=-1", "waitSeconds=1.5"] {
        let answer = api.get(&format!("/v1/events?{query}")).await;
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (400, "invalid_request"), "{query}");
    }
    for (value, reason) in
        [("x", "Last-Event-ID must be"), (future, "later than everything"), ("ä", "Last-Event-ID must be")]
    {
        let answer = api.call_with("GET", "/v1/events/stream?after=now", &[("Last-Event-ID", value)], "").await;
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (400, "invalid_request"), "{value}");
        assert!(answer.text().contains(reason), "{}", answer.text());
    }
    assert_eq!(ids(&api.get("/v1/events?limit=18446744073709551616").await), ["a", "b"]);
    assert_eq!(metric(&api, "submission_event_streams").await, 0, "a refused stream takes no slot");
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

#[actix::test]
async fn a_tenant_reads_the_events_of_its_own_jobs() {
    let jobs = Jobs::new();
    let instance = jobs.start();
    let api = instance.api();
    let submit = async |token: &str, tenant: &str, workspace: &str, key: &str| {
        let mut command = jobs::command();
        for (name, value) in [("tenant_id", tenant), ("workspace_id", workspace), ("idempotency_key", key)] {
            command[name] = value.into();
        }
        let answer = jobs::send(&api, token, "POST", "/v1/jobs", &command).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        let id = answer.json()["submission_id"].as_str().unwrap().to_owned();
        let path = format!("/v1/jobs/{id}");
        while jobs::send(&api, token, "GET", &path, &Value::Null).await.json()["status"] == "pending" {
            tokio::task::yield_now().await;
        }
        id
    };
    let read = async |token: &str, query: &str| {
        jobs::send(&api, token, "GET", &format!("/v1/jobs/events?{query}"), &Value::Null).await
    };
    let of = |answer: &Answer| -> Vec<String> {
        let json = answer.json();
        let events = json["events"].as_array().unwrap_or_else(|| panic!("no events in {json}"));
        events.iter().map(|event| event["job"]["submission_id"].as_str().unwrap().to_owned()).collect()
    };
    let first = submit("acme", "acme", "w1", "1").await;
    let foreign = submit("globex", "globex", "w1", "2").await;
    let second = submit("acme", "acme", "w2", "3").await;
    let all = read("acme", "tenant_id=acme").await;
    assert_eq!(of(&all), [first.clone(), second.clone()]);
    let event = all.json()["events"][0].clone();
    let job = jobs::send(&api, "acme", "GET", &format!("/v1/jobs/{first}"), &Value::Null).await.json();
    assert_eq!((&event["job"], &event["event_type"]), (&job, &json!("job.terminal")));
    assert_eq!((&event["occurred_at"], event.as_object().unwrap().len()), (&job["completed_at"], 4));
    assert_eq!(of(&read("globex", "tenant_id=globex").await), [foreign.as_str()]);
    assert_eq!(of(&read("acme", "tenant_id=acme&workspace_id=w2").await), [second.as_str()]);
    let page = read("acme", "tenant_id=acme&limit=1").await;
    let next = page.json()["next_cursor"].as_str().unwrap().to_owned();
    assert_eq!(
        (of(&page), next.as_str()),
        (vec![first.clone()], format!("j{first}").as_str()),
        "it tells nothing else"
    );
    assert_eq!(of(&read("acme", &format!("tenant_id=acme&after={next}")).await), [second.as_str()]);
    for (token, query, expected) in [
        ("acme", "tenant_id=globex", (403, "forbidden")),
        ("acme", "tenant_id=acme&workspace_id=w3", (403, "forbidden")),
        ("acme", "", (400, "invalid_request")),
        ("acme", "tenant_id=acme&after=e65c0b2f3c5d40", (400, "invalid_request")),
        ("operator", "tenant_id=acme", (403, "forbidden")),
        ("", "tenant_id=acme", (401, "unauthorized")),
    ] {
        for path in ["/v1/jobs/events", "/v1/jobs/events/stream"] {
            let answer = jobs::send(&api, token, "GET", &format!("{path}?{query}"), &Value::Null).await;
            let code = answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
            assert_eq!((answer.status.as_u16(), code.as_str()), expected, "{token} {path}?{query}");
        }
    }
    let bearer = [("Authorization", "Bearer acme")];
    let mut stream = Stream::open(&instance.url, "/v1/jobs/events/stream?tenant_id=acme", &bearer).await.unwrap();
    let events = [stream.event().await, stream.event().await];
    assert_eq!(json!(events.each_ref().map(Block::json)), all.json()["events"]);
    assert_eq!((events[0].event.as_deref(), &events[0].id), (Some("job.terminal"), &Some(format!("j{first}"))));
    submit("globex", "globex", "w1", "4").await;
    let third = submit("acme", "acme", "w1", "5").await;
    assert_eq!(stream.event().await.json()["job"]["submission_id"], third.as_str());
    // Jobs are not in the feed of intents.
    let intents = jobs::send(&api, "acme", "GET", "/v1/events", &Value::Null).await;
    assert_eq!(intents.json()["events"], json!([]));
}
