//! The HTTP API over a running instance.

use serde_json::{Value, json};

use crate::support::site;

fn field<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[actix::test]
async fn an_intent_is_submitted_attempted_and_found() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let payload = r#"{ "to":"+46700000001",  "message":"Hello \u00e9" }"#;
    let body = format!(r#"{{"intentId":"  a/b %c+d é ","submissionTarget":"deadline","payload":{payload}}}"#);
    let answer = api.call("POST", "/v1/intents?waitSeconds=30", body.clone()).await;
    assert_eq!((answer.status.as_u16(), answer.header("idempotent-replayed")), (200, None));
    let intent = answer.json();
    assert_eq!(field(&intent, "intentId"), "a/b %c+d é");
    assert_eq!((field(&intent, "submissionTarget"), field(&intent, "status")), ("deadline", "accepted"));
    let keys: Vec<_> = intent.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["completedAt", "createdAt", "intentId", "status", "submissionTarget"]);
    assert!(field(&intent, "createdAt").ends_with('Z') && field(&intent, "createdAt") < field(&intent, "completedAt"));

    let received = gateway.ledger.entries();
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].path.as_str(), received[0].attempt), ("/sms/send", 1));
    assert_eq!(received[0].idempotency_key, "a/b%20%25c+d%20%C3%A9");
    assert_eq!(received[0].body, payload, "byte for byte");

    let path = "/v1/intents/a%2Fb%20%25c%2Bd%20%C3%A9";
    assert_eq!(api.get(path).await.json(), intent);
    let history = api.get(&format!("{path}/history")).await.json();
    assert_eq!(history["intent"], intent);
    let attempt = &history["attempts"][0];
    assert_eq!(attempt["attemptNumber"], 1);
    assert_eq!((&attempt["outcomeStatus"], &attempt["error"]), (&json!("accepted"), &Value::Null));
    assert_eq!(field(attempt, "gatewayMessageId"), "gw-a/b%20%25c+d%20%C3%A9-1");
    let keys: Vec<_> = attempt.as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        ["attemptNumber", "error", "finishedAt", "gatewayMessageId", "outcomeReason", "outcomeStatus", "startedAt"];
    assert_eq!(keys, expected);

    let again = api.call("POST", "/v1/intents", body).await;
    assert_eq!((again.json(), again.header("idempotent-replayed")), (intent, Some("true")));
    assert_eq!(gateway.ledger.len(), 1);
}

#[actix::test]
async fn the_same_id_with_another_content_is_a_conflict_that_names_the_difference() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("a", "once", json!({ "simulate": "reject:invalid_recipient" }), "?waitSeconds=30").await;
    for (target, payload, fields) in [
        ("attempts", json!({ "simulate": "reject:invalid_recipient" }), json!(["submissionTarget"])),
        ("once", json!({}), json!(["payload"])),
        ("attempts", json!({}), json!(["submissionTarget", "payload"])),
    ] {
        let answer = api.submit("a", target, payload, "").await;
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (409, "idempotency_conflict"));
        let details = &answer.json()["error"]["details"];
        assert_eq!(details, &json!({ "conflictingFields": fields, "existingStatus": "rejected" }));
    }
    let intent = api.get("/v1/intents/a").await.json();
    assert_eq!(field(&intent, "rejectedReason"), "invalid_recipient");
}

#[actix::test]
async fn errors_have_one_format() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let large = json!({ "intentId": "a", "submissionTarget": "once", "payload": "x".repeat(262_143) }).to_string();
    let huge = "x".repeat(1_000_000);
    let fine = r#"{"intentId":"fine","submissionTarget":"once"}"#;
    let cases: Vec<(&str, &str, &str, u16, &str)> = vec![
        ("POST", "/v1/intents", "", 400, "invalid_request"),
        ("POST", "/v1/intents", "{", 400, "invalid_request"),
        ("POST", "/v1/intents", "[1]", 400, "invalid_request"),
        ("POST", "/v1/intents", r#"{"intentId":"a","submissionTarget":"once"}{}"#, 400, "invalid_request"),
        ("POST", "/v1/intents", r#"{"intentId":"a"}"#, 400, "invalid_request"),
        ("POST", "/v1/intents", r#"{"intentId":"a","submissionTarget":"nowhere"}"#, 400, "invalid_request"),
        ("POST", "/v1/intents", r#"{"intentId":"\u0007","submissionTarget":"once"}"#, 400, "invalid_request"),
        ("POST", "/v1/intents?waitSeconds=-1", fine, 400, "invalid_request"),
        ("POST", "/v1/intents?waitSeconds=1.5", fine, 400, "invalid_request"),
        ("POST", "/v1/intents?waitSeconds=soon", fine, 400, "invalid_request"),
        ("POST", "/v1/intents?wait=1", fine, 400, "invalid_request"),
        ("POST", "/v1/intents", &large, 413, "payload_too_large"),
        ("POST", "/v1/intents", &huge, 413, "payload_too_large"),
        ("GET", "/v1/intents?status=done", "", 400, "invalid_request"),
        ("GET", "/v1/intents?cursor=zzz", "", 400, "invalid_request"),
        ("GET", "/v1/intents/nobody", "", 404, "not_found"),
        ("GET", "/v1/intents/%00", "", 404, "not_found"),
        ("GET", "/v1/intents/nobody/history", "", 404, "not_found"),
        ("GET", "/v1/intents/a/b/c", "", 404, "not_found"),
        ("GET", "/nothing", "", 404, "not_found"),
        ("GET", "/v2/intents", "", 404, "not_found"),
        ("DELETE", "/v1/intents", "", 405, "method_not_allowed"),
        ("POST", "/v1/intents/a", "", 405, "method_not_allowed"),
        ("PUT", "/v1/intents/a/history", "", 405, "method_not_allowed"),
        ("POST", "/healthz", "", 405, "method_not_allowed"),
        ("GET", "/ui/history", "", 405, "method_not_allowed"),
        ("POST", "/ui/history", "intentId=", 400, "invalid_request"),
        ("POST", "/v1/intents?waitSeconds=-99999999999999999999999", fine, 400, "invalid_request"),
        ("POST", "/openapi.json", "", 405, "method_not_allowed"),
        ("OPTIONS", "/openapi.json", "", 405, "method_not_allowed"),
        ("PUT", "/docs", "", 405, "method_not_allowed"),
        ("POST", "/docs/", "", 405, "method_not_allowed"),
        ("OPTIONS", "/docs/swagger-ui.css", "", 405, "method_not_allowed"),
        ("GET", "/docs/nothing", "", 404, "not_found"),
        ("GET", "/v1/intents/batch", "", 404, "not_found"),
        ("PUT", "/v1/intents/batch", "", 405, "method_not_allowed"),
    ];
    for (method, path, body, status, code) in cases {
        let answer = api.call(method, path, body).await;
        let shown = &body[..body.len().min(60)];
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (status, code), "{method} {path} {shown}");
        assert_eq!(answer.header("allow").is_some(), status == 405, "{method} {path}");
    }
    assert_eq!(api.get("/v1/intents/fine").await.status.as_u16(), 404, "a refused request leaves nothing behind");
    for (path, allowed) in [("/v1/intents/a", "GET, HEAD"), ("/v1/intents/batch", "GET, HEAD, POST")] {
        assert_eq!(api.call("DELETE", path, "").await.header("allow"), Some(allowed), "{path}");
    }
}

#[actix::test]
async fn a_slash_at_the_end_of_a_path_changes_nothing() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let body = r#"{"intentId":"a/","submissionTarget":"once"}"#;
    let forever = "waitSeconds=99999999999999999999999";
    let submitted = api.call("POST", &format!("/v1/intents/?{forever}"), body).await.json();
    assert_eq!((field(&submitted, "intentId"), field(&submitted, "status")), ("a/", "accepted"), "{submitted}");
    for (plain, with_slash) in [
        ("/v1/intents?limit=99999999999999999999999", "/v1/intents/?limit=1"),
        ("/v1/intents/a%2F", "/v1/intents/a%2F/"),
        ("/v1/intents/a%2F/history", "/v1/intents/a%2F/history/"),
        ("/v1/targets", "/v1/targets/"),
        ("/ui/targets", "/ui/targets/"),
        ("/ui", "/ui/"),
    ] {
        let (one, other) = (api.get(plain).await, api.get(with_slash).await);
        assert_eq!((one.status.as_u16(), other.status.as_u16()), (200, 200), "{plain}");
        if plain.starts_with("/v1") {
            assert_eq!(one.json(), other.json(), "{plain}");
        }
    }
    assert_eq!(api.call("POST", "/v1/targets/once/pause/", "").await.json()["state"], "paused");
    assert_eq!(api.get("/v1/intents/a//").await.error(), "not_found");
    let metrics = api.get("/metrics").await.text();
    assert!(metrics.contains("route=\"/v1/intents/{intentId}\""), "{metrics}");
    assert!(!metrics.contains("/\",status_class"), "one name a route: {metrics}");
}

#[actix::test]
async fn waiting_ends_with_the_first_attempt_or_after_the_requested_time() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let failed = api.submit("fails", "attempts", json!({ "simulate": "fail:1" }), "?waitSeconds=30").await.json();
    assert_eq!(field(&failed, "status"), "pending");
    assert_eq!(api.history("fails").await["attempts"].as_array().unwrap().len(), 1, "the first attempt was over");
    let hung = api.submit("hangs", "attempts", json!({ "simulate": "hang" }), "?waitSeconds=1").await.json();
    assert_eq!(field(&hung, "status"), "pending");
    assert!(api.history("hangs").await["attempts"].as_array().unwrap().is_empty());
    let start_on_insert = api.submit("zero", "attempts", json!({ "simulate": "hang" }), "?waitSeconds=0").await;
    assert_eq!(start_on_insert.status.as_u16(), 200);
    let replayed = api.submit("fails", "attempts", json!({ "simulate": "fail:1" }), "?waitSeconds=99").await;
    assert_eq!(replayed.header("idempotent-replayed"), Some("true"), "and it did not wait: its first attempt is over");
}

#[actix::test]
async fn a_follower_serves_everything_and_waits_too() {
    let (site, _gateway) = site();
    let leader = site.start();
    leader.wait_for_log("leader_ready");
    let follower = site.start();
    let api = follower.api();
    let role = api.get("/readyz").await;
    assert!(role.status.is_success() && role.text().starts_with("mode=follower holder_id="), "{}", role.text());
    let intent = api.submit("a", "once", json!({ "simulate": "slow:100" }), "?waitSeconds=30").await.json();
    assert_eq!(field(&intent, "status"), "accepted");
    let text = leader.api().get("/readyz").await.text();
    assert!(text.starts_with("mode=leader holder_id=") && text.contains(" lease_epoch=1 lease_expires_at="), "{text}");
    assert!(!follower.log_lines().iter().any(|line| line.contains("leader_acquired")));
}

#[actix::test]
async fn lists_are_paged_and_filtered() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    for n in 0..7 {
        let target = if n % 2 == 0 { "once" } else { "attempts" };
        api.submit(&format!("{n}"), target, json!({}), "?waitSeconds=30").await;
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = api.get(&format!("/v1/intents?limit=3&cursor={cursor}&status=accepted")).await.json();
        seen.extend(page["intents"].as_array().unwrap().iter().map(|intent| field(intent, "intentId").to_owned()));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, ["6", "5", "4", "3", "2", "1", "0"]);
    let once = api.get("/v1/intents?submissionTarget=once&limit=1").await.json();
    assert_eq!(field(&once["intents"][0], "intentId"), "6");
    let third = api.get("/v1/intents/3").await.json();
    let moment = field(&third, "createdAt");
    let before = api.get(&format!("/v1/intents?createdBefore={moment}&limit=9")).await.json();
    assert_eq!(before["intents"].as_array().unwrap().len(), 3);
}

#[actix::test]
async fn the_history_fragment_shows_hostile_text_as_text() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let id = "<script>alert(1)</script>&\"'";
    let reason = "<img src=x onerror=alert(2)>";
    api.submit(id, "once", json!({ "simulate": format!("reject:{reason}") }), "?waitSeconds=30").await;
    let form = "intentId=%3Cscript%3Ealert%281%29%3C%2Fscript%3E%26%22%27";
    let fragment = api.call("POST", "/ui/history", form).await;
    assert_eq!((fragment.status.as_u16(), fragment.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let html = fragment.text();
    assert!(html.contains("exhausted") && html.contains("one_shot"), "{html}");
    assert!(!html.contains("<script") && !html.contains("<img"), "{html}");
    assert!(html.contains("&#60;script&#62;") && html.contains("&#60;img"), "{html}");
    let missing = api.call("POST", "/ui/history", "intentId=%3Cb%3E").await;
    assert_eq!(missing.status.as_u16(), 404);
    assert!(missing.text().contains("&#60;b&#62;"));
    for stable in [
        "<h2>Intent summary</h2>",
        "<h2>Attempts</h2>",
        "<dl class=\"kv\">",
        "<table class=\"table\">",
        "<span class=\"status status-exhausted\">exhausted</span>",
        "<span class=\"status status-rejected\">rejected</span>",
    ] {
        assert!(html.contains(stable), "no {stable} in {html}");
    }
}

#[actix::test]
async fn the_history_is_plain_text_on_request() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("<b>", "once", json!({ "simulate": "reject:<i>\nStatus: accepted" }), "?waitSeconds=30").await;
    let plain = |accept: &'static str| [("Accept", accept)];
    let asked = api.call_with("POST", "/ui/history", &plain("text/plain"), "intentId=%3Cb%3E").await;
    assert_eq!((asked.status.as_u16(), asked.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    let text = asked.text();
    assert!(text.starts_with("Intent summary\nIntent: <b>\nStatus: exhausted\nTarget: once\nCreated: "), "{text}");
    assert!(text.contains("\nExhausted because: one_shot\n\nAttempts\n1: rejected, from "), "{text}");
    assert!(text.contains("<i> Status: accepted"), "on one line: {text}");
    for (method, form, status, body) in [
        ("POST", "intentId=nobody", 404, "not_found: no such intent: \"nobody\"\n"),
        ("POST", "", 400, "invalid_request: the form must have an intentId\n"),
        ("GET", "", 405, "method_not_allowed: method not allowed; this path supports POST\n"),
    ] {
        let answer = api.call_with(method, "/ui/history", &plain("text/plain;q=0.9, text/html;q=0.1"), form).await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (status, body));
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    let large = api.call_with("POST", "/ui/history", &plain("text/plain"), "x".repeat(10_000)).await;
    assert_eq!(large.status.as_u16(), 413);
    assert!(large.text().starts_with("payload_too_large: "), "{}", large.text());
    let foreign = [("Accept", "text/plain"), ("Origin", "http://evil.example")];
    let refused = api.call_with("POST", "/ui/history", &foreign, "intentId=a").await;
    assert!(refused.status.as_u16() == 403 && refused.text().starts_with("forbidden: "), "{}", refused.text());
    for accept in ["text/html, text/plain;q=0.9", "*/*", "application/json"] {
        let answer = api.call_with("POST", "/ui/history", &plain(accept), "intentId=nobody").await;
        assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"), "{accept}");
    }
}

#[actix::test]
async fn metrics_count_what_happened() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("a", "once", json!({}), "?waitSeconds=30").await;
    api.submit("a", "once", json!({}), "").await;
    api.submit("a", "once", json!({ "other": 1 }), "").await;
    api.submit("b", "once", json!({ "simulate": "fail" }), "?waitSeconds=30").await;
    api.submit("c", "attempts", json!({ "simulate": "lie" }), "?waitSeconds=30").await;
    let text = api.get("/metrics").await.text();
    for line in [
        "submission_intents_created_total 3",
        "submission_idempotent_hits_total 1",
        "submission_idempotency_conflicts_total 1",
        "submission_intents_terminal_total{status=\"accepted\"} 1",
        "submission_intents_terminal_total{status=\"rejected\"} 0",
        "submission_intents_terminal_total{status=\"exhausted\"} 1",
        "submission_exhausted_total{reason=\"one_shot\"} 1",
        "submission_exhausted_total{reason=\"deadline_exceeded\"} 0",
        "submission_attempts_total{outcome_status=\"accepted\"} 1",
        "submission_attempts_total{outcome_status=\"error\"} 2",
        "submission_retries_scheduled_total 1",
        "submission_intent_time_to_terminal_seconds_count{status=\"accepted\"} 1",
        "submission_attempt_duration_seconds_count 3",
        "submission_queue_delay_seconds_count 3",
        "submission_inflight_attempts 0",
        "submission_leader 1",
        "submission_lease_epoch 1",
        "submission_http_requests_total{route=\"/v1/intents\",status_class=\"2xx\"} 4",
        "submission_http_requests_total{route=\"/v1/intents\",status_class=\"4xx\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("submission_queue_depth ") && text.contains("submission_build_info{version="));
    assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| line.starts_with("submission_")));
}

#[actix::test]
async fn the_openapi_document_and_its_page_come_from_the_binary() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let document = api.get("/openapi.json").await.json();
    for path in ["/v1/intents", "/v1/intents/{intentId}", "/v1/intents/{intentId}/history", "/ui/history", "/readyz"] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    let statuses = document["components"]["schemas"]["StatusName"]["enum"].clone();
    assert_eq!(statuses, json!(["pending", "accepted", "rejected", "exhausted"]));
    for part in ["JobCommand", "ExecutionProfile", "ResourceShape", "PayloadRef", "RequestedBy", "SubmitRequest"] {
        assert_eq!(document["components"]["schemas"][part]["additionalProperties"], false, "{part}");
    }
    let answers = |path: &str, method: &str| document["paths"][path][method]["responses"].as_object().unwrap().clone();
    assert!(answers("/v1/jobs", "get").contains_key("404"), "jobs may not be enabled");
    let fragment = answers("/ui/history", "post");
    assert!(["408", "413"].iter().all(|status| fragment.contains_key(*status)), "{fragment:?}");
    let hook = answers("/v1/inbox/hooks/{client_slug}/{channel}", "post");
    assert!(hook["202"]["headers"]["Idempotent-Replayed"].is_object(), "{hook:?}");
    let codes = document["components"]["schemas"]["ErrorBody"]["properties"]["code"]["description"].clone();
    let proxy = include_str!("../../deploy/haproxy.cfg").split("\"code\":\"").skip(1);
    for code in proxy.map(|rest| rest.split('"').next().unwrap()).chain(["not_terminal", "policy_rejected"]) {
        assert!(codes.as_str().unwrap().contains(&format!("`{code}`")), "{code} is not among {codes}");
    }
    let redirect = api.call("GET", "/docs/", "").await;
    let page = redirect.text();
    assert!(redirect.status.is_success() && page.contains("swagger-ui"), "{page}");
    assert!(!page.contains("https://") && !page.contains("http://"), "needs no network: {page}");
    let script = api.get("/docs/swagger-ui-bundle.js").await;
    assert!(script.status.is_success() && script.body.len() > 100_000);
    let policy = redirect.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
    let settings = api.get("/docs/swagger-initializer.js").await.text();
    assert!(settings.contains(r#""validatorUrl": "none""#) && settings.contains("/openapi.json"), "{settings}");
    let text = "{\"openapi\"";
    for (path, body) in [
        ("/healthz", "ok\n"),
        ("/readyz", "mode="),
        ("/metrics", "# HELP"),
        ("/openapi.json", text),
        ("/openapi.json/", text),
        ("/docs/", "<!--"),
        ("/metrics/", "# HELP"),
    ] {
        assert!(api.get(path).await.text().starts_with(body), "{path}");
        let head = api.call("HEAD", path, "").await;
        assert!(head.status.is_success() && head.body.is_empty(), "HEAD {path}");
    }
}

#[actix::test]
async fn a_hangup_reloads_the_registry_and_a_bad_file_changes_nothing() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let before = api.submit("old", "once", json!({}), "?waitSeconds=30").await.json();
    let good = json!({ "targets": [{ "submissionTarget": "new", "gatewayType": "push", "gatewayUrl": gateway.url,
        "policy": "one_shot", "terminalOutcomes": ["unregistered_token"] }] });
    std::fs::write(site.registry(), r#"{"targets": [{}]}"#).unwrap();
    instance.signal("HUP");
    assert!(instance.wait_for_log("registry_kept").contains("targets[0].policy: is missing"));
    assert_eq!(api.submit("kept", "once", json!({}), "").await.status.as_u16(), 200);
    std::fs::write(site.registry(), good.to_string()).unwrap();
    instance.signal("HUP");
    instance.wait_for_log("registry_reloaded");
    assert_eq!(api.submit("n", "new", json!({}), "?waitSeconds=30").await.json()["status"], "accepted");
    assert_eq!(api.submit("o", "once", json!({}), "").await.error(), "invalid_request");
    let replay = api.submit("old", "once", json!({}), "").await;
    assert_eq!((replay.json(), replay.header("idempotent-replayed")), (before, Some("true")), "still answered for");
    assert_eq!(api.submit("old", "once", json!(1), "").await.error(), "idempotency_conflict");
    assert!(gateway.ledger.entries().iter().any(|received| received.path == "/push/send"));
}
