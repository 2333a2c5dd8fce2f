//! Pausing targets, `Retry-After` of gateways, and rate limits: across instances, over real HTTP.

use std::time::Duration;

use actix_web::http::StatusCode;
use base64::Engine;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{Answer, Instance, site};

#[actix::test]
async fn a_target_is_paused_and_resumed_through_any_instance() {
    let (site, gateway) = site();
    let instances = [site.start(), site.start()];
    instances[0].wait_for_log("leader_ready");
    let [leader, follower] = instances.each_ref().map(Instance::api);

    let paused = follower.call("POST", "/v1/targets/attempts/pause", "").await;
    assert_eq!(paused.status, StatusCode::OK, "{}", paused.text());
    let since = paused.json()["pausedAt"].clone();
    assert_eq!(
        paused.json(),
        json!({ "submissionTarget": "attempts", "state": "paused", "pausedAt": since, "pausedBy": "loopback",
            "registered": true })
    );
    let again = leader.call("POST", "/v1/targets/attempts/pause", "").await.json();
    assert_eq!(again["pausedAt"], since, "it was paused before");
    for (api, id) in [(&leader, "a"), (&follower, "b")] {
        let answer = api.submit(id, "attempts", json!({}), "?waitSeconds=1").await;
        assert_eq!((answer.status, &answer.json()["status"]), (StatusCode::OK, &json!("pending")));
    }
    // Another target of the same gateway is not affected.
    assert_eq!(leader.submit("c", "once", json!({}), "?waitSeconds=30").await.json()["status"], "accepted");
    assert_eq!(gateway.ledger.len(), 1);
    let state = |list: Value, name: &str| {
        let targets = list["targets"].as_array().unwrap().clone();
        targets.iter().find(|target| target["submissionTarget"] == name).unwrap()["state"].clone()
    };
    let list = leader.get("/v1/targets").await.json();
    assert_eq!((state(list.clone(), "attempts"), state(list, "once")), (json!("paused"), json!("active")));
    leader.until("/metrics", |answer| answer.text().contains("submission_targets_paused 1")).await;
    let page = leader.get("/ui/intents/a").await.text();
    assert!(page.contains("its target has been paused for"), "{page}");
    let overview = leader.get("/ui").await.text();
    assert!(overview.contains("1 target is paused") && overview.contains("/ui/targets/attempts"), "{overview}");

    assert_eq!(follower.call("POST", "/v1/targets/attempts/resume", "").await.json()["state"], "active");
    for id in ["a", "b"] {
        leader.until(&format!("/v1/intents/{id}"), |answer| answer.json()["status"] == "accepted").await;
    }
    assert_eq!(gateway.ledger.len(), 3);
    for path in ["/v1/targets/nobody/pause", "/v1/targets/nobody/resume", "/v1/targets/%00/pause"] {
        assert_eq!(leader.call("POST", path, "").await.error(), "not_found");
    }
    assert_eq!(leader.get("/v1/targets/attempts/pause").await.error(), "method_not_allowed");
}

#[actix::test]
async fn a_pause_says_who_paused_and_why() {
    let (site, _gateway) = site();
    let users = json!({ "users": [{ "name": "ann", "passwordHash": bcrypt::hash("secret", 10).unwrap(), "role": "operator" }] });
    let clients = json!({ "clients": [{ "clientId": "deployments", "scopes": ["admin"],
        "tokenSha256": Sha256::digest("token").iter().map(|byte| format!("{byte:02x}")).collect::<String>() }] });
    let (users_file, clients_file) =
        (site.directory.path().join("users.json"), site.directory.path().join("clients.json"));
    std::fs::write(&users_file, users.to_string()).unwrap();
    std::fs::write(&clients_file, clients.to_string()).unwrap();
    let mut command = site.command();
    command.env("SM_API_CLIENTS", clients_file).env("SM_CONSOLE_USERS", users_file);
    let instance = Instance::start(command);
    let api = instance.api();
    let bearer = [("Authorization", "Bearer token")];
    let pause = async |body: &str| api.call_with("POST", "/v1/targets/once/pause", &bearer, body).await;
    for (body, text) in [
        (json!({ "reason": "é".repeat(501) }).to_string(), "at most 500 characters"),
        (r#"{"reason":"a\nb"}"#.to_owned(), "no control characters"),
        (r#"{"raeson":"a"}"#.to_owned(), "unknown field"),
        ("[]".to_owned(), "must be a JSON object"),
    ] {
        let answer = pause(&body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(answer.text().contains(text), "{}", answer.text());
    }
    let paused = pause(r#"{"reason":" maintenance <until> 9 "}"#).await.json();
    assert_eq!((&paused["pausedBy"], &paused["pauseReason"]), (&json!("deployments"), &json!("maintenance <until> 9")));
    assert_eq!(pause(r#"{"reason":"again"}"#).await.json(), paused, "it was paused before");

    let basic = base64::engine::general_purpose::STANDARD.encode("ann:secret");
    let basic = format!("Basic {basic}");
    let from_console = [("Authorization", basic.as_str()), ("Sec-Fetch-Site", "same-origin")];
    let page = api.call_with("GET", "/ui/targets", &from_console, "").await.text();
    assert!(page.contains("by deployments because: maintenance &#60;until&#62; 9"), "{page}");
    let post = async |body: &str| api.call_with("POST", "/ui/targets/attempts/pause", &from_console, body).await;
    let long = format!("reason={}", "e".repeat(501));
    assert_eq!(post(&long).await.status, StatusCode::BAD_REQUEST);
    post("reason=too+many+%C3%A9rrors").await;
    let targets = api.call_with("GET", "/v1/targets", &bearer, "").await.json()["targets"].clone();
    let target = targets.as_array().unwrap().iter().find(|target| target["submissionTarget"] == "attempts").unwrap();
    assert_eq!((&target["pausedBy"], &target["pauseReason"]), (&json!("ann"), &json!("too many érrors")));
    let resumed = api.call_with("POST", "/v1/targets/attempts/resume", &bearer, "").await.json();
    assert_eq!((&resumed["pausedBy"], &resumed["pauseReason"]), (&Value::Null, &Value::Null));
}

#[actix::test]
async fn a_reload_changes_which_targets_have_metrics() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    instance.wait_for_log("leader_ready");
    api.call("POST", "/v1/targets/attempts/pause", "").await;
    api.submit("a", "attempts", json!({}), "").await;
    assert_eq!(api.submit("b", "once", json!({}), "?waitSeconds=30").await.json()["status"], "accepted");
    let shown = |line: &'static str| move |answer: &Answer| answer.text().lines().any(|other| other == line);
    let attempts = "submission_target_attempts_total{outcome_status=\"accepted\",target=\"once\"} 1";
    api.until("/metrics", shown(attempts)).await;
    api.until("/metrics", shown("submission_target_waiting{target=\"attempts\"} 1")).await;

    let registry = std::fs::read_to_string(site.registry()).unwrap();
    std::fs::write(site.registry(), registry.replace("\"attempts\"", "\"renamed\"")).unwrap();
    instance.signal("HUP");
    api.until("/metrics", shown("submission_target_waiting{target=\"other\"} 1")).await;
    let text = api.get("/metrics").await.text();
    assert!(text.contains("submission_target_waiting{target=\"renamed\"} 0") && text.contains(attempts), "{text}");
    assert!(!text.contains("target=\"attempts\""), "{text}");
}

#[actix::test]
async fn only_administrators_pause_targets() {
    let (site, _gateway) = site();
    let hash = |token: &str| Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let client = |id: &str, scopes: &[&str]| json!({ "clientId": id, "tokenSha256": hash(id), "scopes": scopes });
    let clients =
        json!({ "clients": [client("root", &["admin"]), client("user", &["intents:write", "intents:read"])] });
    let path = site.directory.path().join("clients.json");
    std::fs::write(&path, clients.to_string()).unwrap();
    let mut command = site.command();
    command.env("SM_API_CLIENTS", path);
    let instance = Instance::start(command);
    let api = instance.api();
    for (token, status) in [("user", 403), ("nobody", 401), ("root", 200)] {
        let bearer = format!("Bearer {token}");
        for (method, path) in
            [("POST", "/v1/targets/once/pause"), ("POST", "/v1/targets/once/resume"), ("GET", "/v1/targets")]
        {
            let answer = api.call_with(method, path, &[("Authorization", &bearer)], "").await;
            assert_eq!(answer.status.as_u16(), status, "{token} {method} {path}");
        }
    }
}

#[actix::test]
async fn a_gateway_that_answers_retry_after_gets_no_request_until_then() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    instance.wait_for_log("leader_ready");
    let busy = api.submit("busy", "attempts", json!({ "simulate": "busy:2" }), "?waitSeconds=30").await;
    assert_eq!(busy.json()["status"], "pending");
    let other = api.submit("other", "once", json!({}), "?waitSeconds=30").await;
    assert_eq!(other.json()["status"], "accepted");
    let entries = gateway.ledger.entries();
    let called: Vec<_> = entries.iter().map(|entry| entry.idempotency_key.as_str()).collect();
    assert_eq!(called, ["busy", "other"]);
    assert!(entries[1].at - entries[0].at >= Duration::from_secs(2), "another intent of another target waited too");
    assert!(instance.wait_for_log("gateway_on_hold").contains(&format!("gateway={}", gateway.url)));
    api.until("/v1/intents/busy", |answer| answer.json()["status"] == "accepted").await;
    assert!(api.history("busy").await["attempts"][0]["error"].as_str().unwrap().contains("HTTP 429"));
}

#[actix::test]
async fn a_target_with_a_rate_is_called_at_that_rate() {
    let (site, gateway) = site();
    let mut targets: Value = std::fs::read_to_string(site.registry()).unwrap().parse().unwrap();
    targets["targets"][2]["ratePerSecond"] = 20.into();
    targets["targets"][2]["maxInFlight"] = 2.into();
    std::fs::write(site.registry(), targets.to_string()).unwrap();
    let instance = site.start();
    let api = instance.api();
    instance.wait_for_log("leader_ready");
    let submits = (0..30).map(|number| {
        let api = api.clone();
        async move { api.submit(&format!("a{number}"), "once", json!({}), "?waitSeconds=30").await }
    });
    for answer in futures_util::future::join_all(submits).await {
        assert_eq!(answer.json()["status"], "accepted");
    }
    let moments: Vec<_> = gateway.ledger.entries().iter().map(|entry| entry.at).collect();
    // 29 intervals of 50 ms. On a busy machine the first request may take longer to the gateway than the last.
    let spread = moments[29] - moments[0];
    assert!(spread >= Duration::from_millis(1200), "{spread:?}");
}
