//! Pages of events and long polls, and requests that are refused.

use serde_json::{Value, json};

use super::{Block, Stream, cursor, end, ids, metric};
use crate::jobs::{self, Jobs};
use crate::support::{Answer, Instance, site};

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
