//! The audit log, over HTTP, in the console and from the command line.

use std::process::{Command, Output};

use actix_web::http::StatusCode;
use base64::Engine;
use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::jobs::{self, Jobs};
use crate::support::{Answer, Api, Instance, Site, site};

const ADMIN: &str = "Bearer everything";
const LIMITED: &str = "Bearer limited";

/// A command for an instance with tokens, a console user in each role, an inbox, and a target with a webhook.
fn command(site: &Site) -> Command {
    let write = |name: &str, content: Value| {
        let path = site.directory.path().join(name);
        std::fs::write(&path, content.to_string()).unwrap();
        path
    };
    let mut targets: Value = serde_json::from_slice(&std::fs::read(site.registry()).unwrap()).unwrap();
    let mut hooked = targets["targets"][2].clone();
    hooked["submissionTarget"] = "hooked".into();
    hooked["webhook"] = json!({ "url": "http://127.0.0.1:9/hook" });
    targets["targets"].as_array_mut().unwrap().push(hooked);
    targets["allowUnsignedWebhooks"] = true.into();
    write("targets.json", targets);
    let token = |token: &str| Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let scopes = ["intents:write", "intents:read", "inbox:write", "inbox:read"];
    let clients = json!({ "clients": [
        { "clientId": "deployments", "tokenSha256": token("everything"),
          "scopes": scopes.iter().chain(&["admin"]).collect::<Vec<_>>() },
        { "clientId": "shop", "tokenSha256": token("limited"), "scopes": scopes },
    ]});
    let hash = bcrypt::hash("secret", 10).unwrap();
    let user = |name: &str, role: &str| json!({ "name": name, "passwordHash": hash, "role": role });
    let users = json!({ "users": [user("ann", "admin"), user("oda", "operator"), user("vic", "viewer")] });
    let inbox = json!({ "clients": [{ "clientSlug": "acme", "channels": ["form"] }] });
    let mut command = site.command();
    command
        .env("SM_AUTH", "required")
        .env("SM_API_CLIENTS", write("clients.json", clients))
        .env("SM_CONSOLE_USERS", write("users.json", users))
        .env("SM_INBOX_CLIENTS", write("inbox.json", inbox));
    command
}

fn basic(given: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(given))
}

async fn as_client(api: &Api, token: &str, method: &str, path: &str, body: &str) -> Answer {
    api.call_with(method, path, &[("Authorization", token)], body).await
}

/// A request from a page of the console by this user.
async fn as_user(api: &Api, name: &str, method: &str, path: &str, body: &str) -> Answer {
    let authorization = basic(&format!("{name}:secret"));
    api.call_with(method, path, &[("Authorization", &authorization), ("Sec-Fetch-Site", "same-origin")], body).await
}

/// The log, the oldest entry first.
async fn log(api: &Api, query: &str) -> Vec<Value> {
    let answer = as_client(api, ADMIN, "GET", &format!("/v1/audit?limit=200{query}"), "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let mut entries = answer.json()["entries"].as_array().unwrap().clone();
    entries.reverse();
    entries
}

/// Checks that exactly these entries were added after the first `skip`: action, subject, and kind and name of the actor.
async fn assert_added(api: &Api, skip: &mut usize, expected: &[(&str, &str, &str, Option<&str>)]) {
    let entries = log(api, "").await;
    let added: Vec<_> = entries
        .iter()
        .skip(*skip)
        .map(|entry| {
            assert_eq!(entry["address"], "127.0.0.1", "{entry}");
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let actor = (text(&entry["actor"]["kind"]), text(&entry["actor"]["name"]));
            (text(&entry["action"]).unwrap(), text(&entry["subject"]).unwrap(), actor.0.unwrap(), actor.1)
        })
        .collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|(action, subject, kind, name)| {
            ((*action).to_owned(), (*subject).to_owned(), (*kind).to_owned(), name.map(str::to_owned))
        })
        .collect();
    assert_eq!(added, expected);
    *skip = entries.len();
}

async fn submit(api: &Api, id: &str, target: &str, payload: Value) -> Value {
    let body = json!({ "intentId": id, "submissionTarget": target, "payload": payload }).to_string();
    as_client(api, ADMIN, "POST", "/v1/intents?waitSeconds=20", &body).await.json()
}

#[actix::test]
async fn every_action_of_a_client_of_the_api_is_one_entry() {
    let (site, _gateway) = site();
    let instance = Instance::start(command(&site));
    let api = instance.api();
    let call = async |path: &str, body: &str| {
        let answer = as_client(&api, ADMIN, "POST", path, body).await;
        assert!(answer.status.is_success(), "{path}: {}", answer.text());
        answer
    };
    submit(&api, "ended", "hooked", json!({})).await;
    submit(&api, "failed", "once", json!({ "simulate": "reject" })).await;
    submit(&api, "failed too", "once", json!({ "simulate": "reject" })).await;
    let mut seen = 0;
    assert_added(&api, &mut seen, &[]).await;

    let by = ("token", Some("deployments"));
    call("/v1/targets/attempts/pause", r#"{"reason":"maintenance"}"#).await;
    call("/v1/targets/attempts/pause", "").await;
    let waits = json!({ "intentId": "waits", "submissionTarget": "attempts" }).to_string();
    call("/v1/intents", &waits).await;
    call("/v1/intents/waits/cancel", "").await;
    call("/v1/intents/waits/cancel", "").await;
    call("/v1/targets/attempts/resume", "").await;
    call("/v1/targets/attempts/resume", "").await;
    call("/v1/intents/ended/webhook/redeliver", "").await;
    assert_eq!(log(&api, "").await[0]["details"], json!({ "reason": "maintenance" }));
    let expected = [
        ("pause_target", "attempts", by.0, by.1),
        ("cancel_intent", "waits", by.0, by.1),
        ("resume_target", "attempts", by.0, by.1),
        ("redeliver_webhook", "ended", by.0, by.1),
    ];
    assert_added(&api, &mut seen, &expected).await;

    call("/v1/intents/failed/redrive", r#"{"payload":{"edited":true}}"#).await;
    let again = as_client(&api, ADMIN, "POST", "/v1/intents/failed/redrive", "").await;
    assert_eq!(again.error(), "already_redriven");
    let planned = call("/v1/redrives", r#"{"filter":{"intentIds":["failed too"]},"note":"INC-7"}"#).await.json();
    let id = planned["redriveId"].as_str().unwrap();
    let change = async |name: &str, body: &str| {
        as_client(&api, ADMIN, "POST", &format!("/v1/redrives/{id}/{name}"), body).await.status
    };
    assert_eq!(change("pause", "").await, StatusCode::CONFLICT, "it is not running");
    assert_eq!(change("start", r#"{"ratePerSecond":7}"#).await, StatusCode::OK);
    let expected =
        [("redrive_intent", "failed", by.0, by.1), ("plan_redrive", id, by.0, by.1), ("start_redrive", id, by.0, by.1)];
    assert_added(&api, &mut seen, &expected).await;
    let entries = log(&api, "").await;
    assert_eq!(entries[4]["details"]["editedPayload"], true);
    let details = json!({ "count": 1, "filter": { "intentIds": 1 }, "includeUnknownOutcome": false, "note": "INC-7" });
    assert_eq!(entries[5]["details"], details);

    let submission = call("/v1/inbox/submissions", r#"{"client_slug":"acme","channel":"form","payload":{}}"#).await;
    let id = submission.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/inbox/submissions/{id}");
    while as_client(&api, ADMIN, "GET", &path, "").await.json()["state"] == "received" {
        tokio::task::yield_now().await;
    }
    call(&format!("{path}/reprocess"), "").await;
    assert_added(&api, &mut seen, &[("reprocess_submission", id.as_str(), by.0, by.1)]).await;
    assert!(verify(&site, &[]).0.status.success());
}

#[actix::test]
async fn every_action_in_the_console_is_one_entry_and_so_are_sign_ins() {
    let (site, _gateway) = site();
    let instance = Instance::start(command(&site));
    let api = instance.api();
    submit(&api, "ended", "hooked", json!({ "secret": 1 })).await;
    let mut seen = 0;
    let oda = ("console", Some("oda"));
    let post = async |path: &str, body: &str| {
        let answer = as_user(&api, "oda", "POST", path, body).await;
        assert!(answer.status.is_success() || answer.status.is_redirection(), "{path}: {}", answer.text());
    };
    assert_eq!(as_user(&api, "oda", "GET", "/ui/intents", "").await.status, StatusCode::OK);
    assert_eq!(as_user(&api, "oda", "GET", "/ui/intents/ended", "").await.status, StatusCode::OK);
    assert_added(&api, &mut seen, &[("sign_in", "console", oda.0, oda.1)]).await;
    assert_eq!(log(&api, "").await[0]["details"], json!({ "role": "operator", "with": "password" }));

    let payload = as_user(&api, "oda", "GET", "/ui/intents/ended/payload", "").await;
    assert!(payload.text().contains("secret"), "{}", payload.text());
    assert_eq!(as_user(&api, "oda", "GET", "/ui/intents/unknown/payload", "").await.status, StatusCode::NOT_FOUND);
    let form = as_user(&api, "oda", "GET", "/ui/intents/ended/edit", "").await;
    assert!(form.text().contains("secret"), "{}", form.text());
    post("/ui/intents/ended/redeliver", "").await;
    post("/ui/redeliver-events", "intentId=ended&intentId=unknown").await;
    post("/ui/redeliver-events", "intentId=ended&intentId=unknown&confirmed=on").await;
    let submission = r#"{"client_slug":"acme","channel":"form","payload":{}}"#;
    let submission = as_client(&api, ADMIN, "POST", "/v1/inbox/submissions", submission).await;
    let received = submission.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/inbox/submissions/{received}");
    while as_client(&api, ADMIN, "GET", &path, "").await.json()["state"] == "received" {
        tokio::task::yield_now().await;
    }
    post("/ui/inbox/reprocess", &format!("id={received}")).await;
    post("/ui/inbox/reprocess", &format!("id={received}&confirmed=on")).await;
    post("/ui/targets/attempts/pause", "reason=%3Cb%3Ebold%3C%2Fb%3E").await;
    as_client(&api, ADMIN, "POST", "/v1/intents", r#"{"intentId":"w","submissionTarget":"attempts"}"#).await;
    as_client(&api, ADMIN, "POST", "/v1/intents", r#"{"intentId":"x","submissionTarget":"attempts"}"#).await;
    post("/ui/intents/w/cancel", "").await;
    post("/ui/cancel-intents", "intentId=w&intentId=x").await;
    post("/ui/cancel-intents", "intentId=w&intentId=x&confirmed=on").await;
    post("/ui/targets/attempts/resume", "").await;
    let expected = [
        ("show_payload", "ended", oda.0, oda.1),
        ("show_payload", "ended", oda.0, oda.1),
        ("redeliver_webhook", "ended", oda.0, oda.1),
        ("redeliver_webhook", "ended", oda.0, oda.1),
        ("reprocess_submission", received.as_str(), oda.0, oda.1),
        ("pause_target", "attempts", oda.0, oda.1),
        ("cancel_intent", "w", oda.0, oda.1),
        ("cancel_intent", "x", oda.0, oda.1),
        ("resume_target", "attempts", oda.0, oda.1),
    ];
    assert_added(&api, &mut seen, &expected).await;

    // A name that no user has may be a password in the wrong field, so it is not recorded.
    for (given, user) in [("vic:wrong", Some("vic")), ("hunter2:wrong", None)] {
        let headers = [("Authorization", basic(given))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        assert_eq!(api.call_with("GET", "/ui", &headers, "").await.status, StatusCode::UNAUTHORIZED);
        assert_added(&api, &mut seen, &[("sign_in_refused", "console", "console", user)]).await;
    }
    let last = log(&api, "").await.pop().unwrap();
    assert_eq!(last["details"], json!({ "reason": "wrong_password" }));
    assert!(!last.to_string().contains("hunter2"), "{last}");

    // Only administrators see the log.
    for (user, status) in [("vic", 403), ("oda", 403), ("ann", 200)] {
        let page = as_user(&api, user, "GET", "/ui/audit", "").await;
        assert_eq!(page.status, status, "{user}");
        let overview = as_user(&api, user, "GET", "/ui", "").await.text();
        assert_eq!(overview.contains("href=\"/ui/audit\""), user == "ann", "{user}");
    }
    let page = as_user(&api, "ann", "GET", "/ui/audit?action=pause_target&actor=oda&after=1h", "").await.text();
    assert!(page.contains("paused a target") && page.contains("reason: &#60;b&#62;bold&#60;/b&#62;"), "{page}");
    assert!(!page.contains("<b>bold") && !page.contains("\">redelivered a webhook</td>"), "{page}");
    let wrong = as_user(&api, "ann", "GET", "/ui/audit?after=soon", "").await.text();
    assert!(wrong.contains("The filter is invalid"), "{wrong}");
    for _ in 0..51 {
        as_user(&api, "oda", "GET", "/ui/intents/ended/payload", "").await;
    }
    let page = as_user(&api, "ann", "GET", "/ui/audit?action=show_payload", "").await.text();
    let next = page.split("rel=\"next\"").next().unwrap().rsplit("href=\"").next().unwrap();
    let next = next.trim_end_matches(['"', ' ']).replace("&#38;", "&").replace("&amp;", "&");
    let page = as_user(&api, "ann", "GET", &next, "").await.text();
    assert_eq!(page.matches("looked at a payload").count(), 4, "three entries and the filter: {page}");
}

#[actix::test]
async fn the_log_is_read_in_pages_with_filters_by_administrators_only() {
    let (site, _gateway) = site();
    let instance = Instance::start(command(&site));
    let api = instance.api();
    for _ in 0..3 {
        for change in ["pause", "resume"] {
            as_client(&api, ADMIN, "POST", &format!("/v1/targets/once/{change}"), "").await;
        }
    }
    let entries = log(&api, "").await;
    assert_eq!(entries.len(), 6);
    for (one, next) in entries.iter().zip(&entries[1..]) {
        assert_eq!(one["hash"], next["previousHash"]);
    }
    assert_eq!(entries[0]["previousHash"], json!("0".repeat(64)));
    let ids = async |query: &str| {
        log(&api, query).await.iter().map(|entry| entry["id"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    let at = |id: usize| entries[id - 1]["at"].as_str().unwrap();
    assert_eq!(ids("&action=resume_target").await, [2, 4, 6]);
    assert_eq!(ids(&format!("&after={}&before={}", at(2), at(5))).await, [3, 4]);
    assert_eq!(ids("&actor=deployments").await.len(), 6);
    assert!(ids("&actor=nobody").await.is_empty());
    let page = as_client(&api, ADMIN, "GET", "/v1/audit?limit=4", "").await.json();
    let next = format!("/v1/audit?limit=4&cursor={}", page["nextCursor"].as_str().unwrap());
    let rest = as_client(&api, ADMIN, "GET", &next, "").await.json();
    assert_eq!(rest["entries"].as_array().unwrap().iter().map(|entry| &entry["id"]).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(rest["nextCursor"], Value::Null);
    for query in ["actor=a&actor=b", "user=ann", "action=delete", "after=today", "cursor=1", "limit=0"] {
        let answer = as_client(&api, ADMIN, "GET", &format!("/v1/audit?{query}"), "").await;
        assert_eq!(answer.error(), "invalid_request", "{query}");
    }
    assert_eq!(as_client(&api, LIMITED, "GET", "/v1/audit", "").await.error(), "forbidden");
    assert_eq!(api.get("/v1/audit").await.error(), "unauthorized");
}

#[actix::test]
async fn a_tenant_that_cancels_a_job_is_the_actor() {
    let jobs = Jobs::new();
    let instance = jobs.start();
    let api = instance.api();
    let operator = [("Authorization", "Bearer operator")];
    let paused = api.call_with("POST", "/v1/targets/node:node-a/pause", &operator, "").await;
    assert_eq!(paused.status, StatusCode::OK, "{}", paused.text());
    let job = jobs::send(&api, "acme", "POST", "/v1/jobs", &jobs::command()).await.json();
    let id = job["submission_id"].as_str().unwrap();
    let cancel = format!("/v1/jobs/{id}/cancel");
    assert_eq!(jobs::send(&api, "globex", "POST", &cancel, &json!({})).await.status, StatusCode::NOT_FOUND);
    assert_eq!(jobs::send(&api, "acme", "POST", &cancel, &json!({})).await.status, StatusCode::OK);
    let entries = api.call_with("GET", "/v1/audit?action=cancel_job", &operator, "").await.json();
    let [entry] = &entries["entries"].as_array().unwrap()[..] else { panic!("{entries}") };
    assert_eq!((&entry["subject"], &entry["actor"]), (&json!(id), &json!({ "kind": "token", "name": "acme" })));
}

/// Runs `audit verify`, and returns what it printed.
fn verify(site: &Site, arguments: &[&str]) -> (Output, String) {
    let output = site.command().args(["audit", "verify"]).args(arguments).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, text)
}

#[actix::test]
async fn a_changed_or_removed_entry_is_found() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let instance = Instance::start(command(&site));
    let api = instance.api();
    let (output, text) = verify(&site, &[]);
    assert!(output.status.success() && text.contains("0 entries"), "{text}");
    for target in ["once", "attempts", "deadline", "hooked"] {
        as_client(&api, ADMIN, "POST", &format!("/v1/targets/{target}/pause"), "").await;
    }
    let (output, text) = verify(&site, &[]);
    assert!(output.status.success() && text.contains("4 entries, the chain is intact"), "{text}");
    assert!(text.contains("first: 1 of ") && text.contains("pause_target \"once\" by \"deployments\""), "{text}");
    let noted = text.trim().rsplit(' ').next().unwrap().to_owned();
    as_client(&api, ADMIN, "POST", "/v1/targets/once/resume", "").await;
    let (output, text) = verify(&site, &["--expect", &noted]);
    assert!(output.status.success() && text.contains("entry 4 is the expected one"), "{text}");

    let store = Connection::open(site.database()).unwrap();
    for (tamper, undo, broken) in [
        (
            "UPDATE submission_audit_log SET actor_name = 'shop' WHERE entry_id = 2",
            "UPDATE submission_audit_log SET actor_name = 'deployments' WHERE entry_id = 2",
            "broken at entry 2: its fields do not match its hash",
        ),
        (
            "CREATE TABLE kept AS SELECT * FROM submission_audit_log WHERE entry_id = 3;
             DELETE FROM submission_audit_log WHERE entry_id = 3",
            "INSERT INTO submission_audit_log SELECT * FROM kept; DROP TABLE kept",
            "broken at entry 3: it is missing",
        ),
        (
            "CREATE TABLE kept AS SELECT * FROM submission_audit_log WHERE entry_id = 1;
             DELETE FROM submission_audit_log WHERE entry_id = 1",
            "INSERT INTO submission_audit_log SELECT * FROM kept; DROP TABLE kept",
            "broken at entry 2: the chain does not begin after the entries that it records as purged",
        ),
        (
            "CREATE TABLE kept AS SELECT * FROM submission_audit_log WHERE entry_id = 5;
             DELETE FROM submission_audit_log WHERE entry_id = 5",
            "INSERT INTO submission_audit_log SELECT * FROM kept; DROP TABLE kept",
            "broken at entry 5: it is missing",
        ),
    ] {
        store.execute_batch(tamper).unwrap();
        let (output, text) = verify(&site, &[]);
        assert!(output.status.code() == Some(1) && text.contains(broken), "{tamper}: {text}");
        store.execute_batch(undo).unwrap();
        assert!(verify(&site, &[]).0.status.success(), "{undo}");
    }
    // Somebody with full access to the database could rewrite the whole chain, but not what was noted elsewhere.
    let other = format!("4:{}", "0".repeat(64));
    let (output, text) = verify(&site, &["--expect", &other]);
    assert!(
        output.status.code() == Some(1) && text.contains("entry 4") && text.contains("not the expected one"),
        "{text}"
    );
    let (output, text) = verify(&site, &["--expect", "4"]);
    assert!(output.status.code() == Some(2) && text.contains("a colon"), "{text}");
}

#[actix::test]
async fn what_cannot_be_recorded_is_not_done() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let instance = Instance::start(command(&site));
    let api = instance.api();
    submit(&api, "a", "once", json!({ "secret": 1 })).await;
    assert_eq!(as_user(&api, "oda", "GET", "/ui/intents/a", "").await.status, StatusCode::OK);
    let store = Connection::open(site.database()).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON submission_audit_log
        BEGIN SELECT RAISE(ABORT, 'refused by the test'); END";
    store.execute_batch(refuse).unwrap();
    for _ in 0..2 {
        let page = as_user(&api, "ann", "GET", "/ui/intents/a", "").await;
        assert!(page.status.is_server_error() && !page.text().contains("once"), "{}", page.text());
        let payload = as_user(&api, "oda", "GET", "/ui/intents/a/payload", "").await;
        assert!(payload.status.is_server_error() && !payload.text().contains("secret"), "{}", payload.text());
    }
    assert!(as_user(&api, "oda", "POST", "/ui/targets/once/pause", "").await.status.is_server_error());
    assert!(as_user(&api, "vic", "GET", "/ui", "").await.status.is_server_error());
    let wrong = [("Authorization", basic("vic:wrong"))];
    let wrong = wrong.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(api.call_with("GET", "/ui", &wrong, "").await.status, StatusCode::UNAUTHORIZED);
    store.execute_batch("DROP TRIGGER refuse").unwrap();

    assert_eq!(as_user(&api, "ann", "GET", "/ui/targets", "").await.status, StatusCode::OK);
    let targets = as_client(&api, ADMIN, "GET", "/v1/targets", "").await.text();
    assert!(!targets.contains(r#""state":"paused""#), "{targets}");
    assert_eq!(api.call_with("GET", "/ui", &wrong, "").await.status, StatusCode::UNAUTHORIZED);
    let mut seen = 0;
    let expected = [
        ("sign_in", "console", "console", Some("oda")),
        ("sign_in", "console", "console", Some("ann")),
        ("sign_in_refused", "console", "console", Some("vic")),
    ];
    assert_added(&api, &mut seen, &expected).await;
    let last = log(&api, "").await.pop().unwrap();
    assert_eq!(last["details"], json!({ "reason": "wrong_password", "unrecordedBefore": 1 }));
}
