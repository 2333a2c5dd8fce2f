//! Cancelling intents and scheduling their start, over HTTP and from the command line.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Answer, Api, BINARY, Instance, site};

async fn cancel(api: &Api, id: &str, query: &str) -> Answer {
    api.call("POST", &format!("/v1/intents/{id}/cancel{query}"), "").await
}

async fn schedule(api: &Api, id: &str, target: &str, not_before: Value) -> Answer {
    let body = json!({ "intentId": id, "submissionTarget": target, "payload": {}, "notBefore": not_before });
    api.call("POST", "/v1/intents", body.to_string()).await
}

/// A time far enough ahead that no attempt starts during a test.
async fn in_ten_days(api: &Api) -> String {
    let created = api.submit("clock", "once", json!({}), "").await.json()["createdAt"].as_str().unwrap().to_owned();
    let now = submission_manager::domain::time::Timestamp::parse(&created).unwrap();
    (now + std::time::Duration::from_secs(10 * 24 * 3600)).to_string()
}

#[actix::test]
async fn a_scheduled_intent_waits_and_can_be_cancelled() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let start = in_ten_days(&api).await;
    let created = schedule(&api, "a", "once", json!(start)).await.json();
    assert_eq!((&created["notBefore"], &created["status"]), (&json!(start), &json!("pending")));
    assert_eq!(api.get("/v1/intents/a").await.json(), created);
    let again = schedule(&api, "a", "once", json!(start)).await;
    assert_eq!((again.json(), again.header("idempotent-replayed")), (created, Some("true")));
    for other in [json!("2000-01-01T00:00:00Z"), Value::Null] {
        let conflict = schedule(&api, "a", "once", other).await;
        assert_eq!((conflict.status.as_u16(), conflict.error().as_str()), (409, "idempotency_conflict"));
        assert_eq!(conflict.json()["error"]["details"]["conflictingFields"], json!(["notBefore"]));
    }

    let first = cancel(&api, "a", "").await;
    assert_eq!(first.status, 200, "{}", first.text());
    let cancelled = first.json();
    assert_eq!((&cancelled["status"], &cancelled["exhaustedReason"]), (&json!("exhausted"), &json!("cancelled")));
    assert_eq!((&cancelled["mayHaveBeenSent"], &cancelled["notBefore"]), (&json!(false), &Value::Null));
    for query in ["", "?afterAttempt=true"] {
        let again = cancel(&api, "a", query).await;
        assert_eq!((again.status.as_u16(), again.json()), (200, cancelled.clone()), "the same answer");
    }
    let sent: Vec<_> = gateway.ledger.entries().into_iter().map(|received| received.idempotency_key).collect();
    assert_eq!(sent, ["clock"]);
    let metrics = api.get("/metrics").await.text();
    assert!(metrics.contains("submission_exhausted_total{reason=\"cancelled\"} 1\n"), "counted once: {metrics}");
}

#[actix::test]
async fn a_start_in_the_past_means_now_and_one_too_far_ahead_is_refused() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let created = schedule(&api, "past", "once", json!("2000-01-01T00:00:00+02:00")).await;
    assert_eq!(created.status, 200, "{}", created.text());
    api.until("/v1/intents/past", |answer| answer.json()["status"] == "accepted").await;
    assert_eq!(gateway.ledger.len(), 1);
    for (start, message) in [
        (json!("9999-01-01T00:00:00Z"), "notBefore must be at most 30 days ahead"),
        (json!("tomorrow"), "notBefore must be a time such as"),
        (json!("2026-11-18"), "notBefore must be a time such as"),
        (json!(1_800_000_000), "invalid type"),
    ] {
        let refused = schedule(&api, "b", "once", start).await;
        assert_eq!((refused.status.as_u16(), refused.error().as_str()), (400, "invalid_request"));
        assert!(refused.text().contains(message), "{}", refused.text());
    }
    assert_eq!(api.get("/v1/intents/b").await.status, 404);
}

#[actix::test]
async fn an_attempt_in_progress_is_the_last_one_if_that_is_asked_for() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("retried", "attempts", json!({ "simulate": "fail:9" }), "").await;
    api.until("/v1/intents/retried/history", |answer| answer.json()["attempts"].as_array().unwrap().len() == 1).await;
    let waiting = cancel(&api, "retried", "").await;
    assert_eq!((waiting.status.as_u16(), &waiting.json()["mayHaveBeenSent"]), (200, &json!(true)));

    // Its attempt begins only now: a server may take long for the first request of a kind.
    api.submit("accepted", "attempts", json!({ "simulate": "slow:1500" }), "").await;
    let refused = cancel(&api, "accepted", "").await;
    assert_eq!((refused.status.as_u16(), refused.error().as_str()), (409, "attempt_in_progress"));
    let requested = cancel(&api, "accepted", "?afterAttempt=true").await;
    assert_eq!((requested.status.as_u16(), &requested.json()["status"]), (202, &json!("pending")));
    assert_eq!(requested.json()["mayHaveBeenSent"], true);
    api.until("/v1/intents/accepted", |answer| answer.json()["status"] == "accepted").await;
    let late = cancel(&api, "accepted", "?afterAttempt=true").await;
    assert_eq!((late.status.as_u16(), late.error().as_str()), (409, "already_terminal"));
    assert_eq!(late.json()["error"]["details"], json!({ "status": "accepted" }));
    assert_eq!(gateway.ledger.len(), 2);
}

#[actix::test]
async fn bad_requests_to_cancel_are_refused() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("a", "once", json!({}), "?waitSeconds=10").await;
    for (path, status, code) in [
        ("/v1/intents/unknown/cancel", 404, "not_found"),
        ("/v1/intents/sm-job:x/cancel", 404, "not_found"),
        ("/v1/intents/a/cancel?afterAttempt=yes", 400, "invalid_request"),
        ("/v1/intents/a/cancel?after=true", 400, "invalid_request"),
        ("/v1/intents/a/cancel", 409, "already_terminal"),
    ] {
        let answer = api.call("POST", path, "").await;
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (status, code), "{path}");
    }
    assert_eq!(api.get("/v1/intents/a/cancel").await.status, 405);
}

#[actix::test]
async fn the_console_cancels_and_shows_the_start() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let start = in_ten_days(&api).await;
    schedule(&api, "a", "once", json!(start)).await;
    let page = api.get("/ui/intents/a").await.text();
    assert!(page.contains("Cancel intent") && page.contains("Not before") && page.contains(&start), "{page}");
    let press = async |id: &str, from: &str| {
        api.call_with("POST", &format!("/ui/intents/{id}/cancel"), &[("Sec-Fetch-Site", from)], "").await
    };
    assert_eq!(press("a", "cross-site").await.status, 403);
    assert_eq!(press("unknown", "same-origin").await.status, 404);
    press("a", "same-origin").await;
    // The client follows the redirect to the page.
    let page = press("a", "same-origin").await.text();
    assert!(page.contains("Cancelled before the first attempt.") && !page.contains("Cancel intent"), "{page}");
    assert_eq!(api.get("/v1/intents/a").await.json()["exhaustedReason"], "cancelled");
}

/// Runs a command of the client against an instance; returns its exit code and what it printed.
fn client(instance: &Instance, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(BINARY).args(arguments).env("SM_URL", &instance.url).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[actix::test]
async fn the_command_line_schedules_and_cancels() {
    let (site, _gateway) = site();
    let instance = site.start();
    let start = in_ten_days(&instance.api()).await;
    let run = |arguments: &[&str]| {
        let (instance, arguments) = (&instance, arguments);
        client(instance, arguments)
    };
    let (code, printed) = run(&["submit", "--id", "a b", "--target", "once", "--not-before", &start]);
    assert!(code == Some(0) && printed.contains(&start), "{printed}");
    let (code, printed) = run(&["cancel", "a b"]);
    assert!(code == Some(0) && printed.contains("cancelled; no attempt was ever started"), "{printed}");
    let (code, printed) = run(&["history", "a b"]);
    assert!(code == Some(0) && printed.contains("(cancelled)"), "{printed}");
    let (code, printed) = run(&["cancel", "clock", "--after-attempt"]);
    assert!(code == Some(1) && printed.contains("already_terminal"), "{printed}");
    let (code, printed) = run(&["cancel", "unknown"]);
    assert!(code == Some(1) && printed.contains("no such intent"), "{printed}");
}
