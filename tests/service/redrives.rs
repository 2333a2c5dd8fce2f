//! Redriving failed intents, over HTTP and from the command line.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Answer, Api, BINARY, Instance, Site, site};

/// Submits intents that fail, and waits until they have.
async fn fail(api: &Api, ids: &[&str]) {
    for id in ids {
        api.submit(id, "once", json!({ "simulate": "reject" }), "?waitSeconds=20").await;
        assert_eq!(api.get(&format!("/v1/intents/{id}")).await.json()["status"], "exhausted", "{id}");
    }
}

async fn plan(api: &Api, filter: Value) -> Value {
    let answer = api.call("POST", "/v1/redrives", json!({ "filter": filter, "note": "test" }).to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()
}

async fn change(api: &Api, redrive: &Value, change: &str, body: &str) -> Answer {
    let id = redrive["redriveId"].as_str().unwrap();
    api.call("POST", &format!("/v1/redrives/{id}/{change}"), body.to_owned()).await
}

fn path(redrive: &Value) -> String {
    format!("/v1/redrives/{}", redrive["redriveId"].as_str().unwrap())
}

#[actix::test]
async fn a_redrive_sends_what_was_planned_under_the_key_of_the_first_intents() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    fail(&api, &["a", "b", "c"]).await;
    let planned = plan(&api, json!({ "status": "exhausted", "reason": "one_shot" })).await;
    assert_eq!(
        (&planned["state"], &planned["count"], &planned["note"]),
        (&json!("planned"), &json!(3), &json!("test"))
    );
    let group = json!({ "submissionTarget": "once", "status": "exhausted", "reason": "one_shot", "count": 3 });
    assert_eq!(planned["groups"], json!([group]));
    let excluded = json!({ "already_redriven": 0, "target_not_in_registry": 0, "outcome_unknown": 0 });
    assert_eq!((&planned["excluded"], &planned["sample"]), (&excluded, &json!(["a", "b", "c"])));
    assert_eq!(planned["filter"], json!({ "status": ["exhausted"], "reason": "one_shot" }));
    assert_eq!(gateway.ledger.len(), 3, "nothing is sent");
    assert_eq!(api.get(&path(&planned)).await.json(), planned);

    let started = change(&api, &planned, "start", r#"{"ratePerSecond":1000}"#).await;
    assert_eq!((started.status.as_u16(), &started.json()["ratePerSecond"]), (200, &json!(1000)));
    let done = api.until(&path(&planned), |answer| answer.json()["outcomes"]["exhausted"] == 3).await.json();
    assert_eq!((&done["state"], &done["created"], &done["remaining"]), (&json!("completed"), &json!(3), &json!(0)));
    let keys: Vec<_> = gateway.ledger.entries().into_iter().map(|received| received.idempotency_key).collect();
    assert_eq!(keys, ["a", "b", "c", "a", "b", "c"]);

    let list = api.get(&format!("/v1/intents?redriveId={}", planned["redriveId"].as_str().unwrap())).await.json();
    let of: Vec<_> = list["intents"].as_array().unwrap().iter().map(|intent| intent["redriveOf"].clone()).collect();
    assert_eq!(of, ["c", "b", "a"]);
    let new = list["intents"][2]["intentId"].as_str().unwrap().to_owned();
    assert_eq!(api.history("a").await["intent"]["redrivenAs"], json!(new));

    let again = plan(&api, json!({})).await;
    assert_eq!((&again["count"], &again["excluded"]["already_redriven"]), (&json!(3), &json!(3)), "the chain goes on");
    let all = api.get("/v1/redrives").await.json();
    let ids: Vec<_> = all["redrives"].as_array().unwrap().iter().map(|redrive| redrive["redriveId"].clone()).collect();
    assert_eq!(ids, [again["redriveId"].clone(), planned["redriveId"].clone()]);
    let first = api.get("/v1/redrives?limit=1").await.json();
    let next = api.get(&format!("/v1/redrives?limit=1&cursor={}", first["nextCursor"].as_str().unwrap())).await.json();
    assert_eq!((&next["redrives"][0]["redriveId"], &next["nextCursor"]), (&planned["redriveId"], &Value::Null));
    let metrics = api.get("/metrics").await.text();
    assert!(metrics.contains("submission_redrive_created_total 3\n"), "{metrics}");
    assert!(metrics.contains("submission_redrives_running 0\n"), "{metrics}");
}

#[actix::test]
async fn wrong_transitions_are_refused() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    fail(&api, &["a"]).await;
    let redrive = plan(&api, json!({ "intentIds": ["a"] })).await;
    let refused = async |redrive: &Value, name: &str, state: &str| {
        let answer = change(&api, redrive, name, "").await;
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (409, "invalid_state"), "{name}");
        assert_eq!(answer.json()["error"]["details"], json!({ "state": state }), "{name}");
    };
    refused(&redrive, "pause", "planned").await;
    refused(&redrive, "resume", "planned").await;
    let started = change(&api, &redrive, "start", r#"{"ratePerSecond":1}"#).await;
    assert_eq!(started.status, 200);
    api.until(&path(&redrive), |answer| answer.json()["state"] == "completed").await;
    for name in ["start", "pause", "resume", "cancel"] {
        refused(&redrive, name, "completed").await;
    }
    let none = plan(&api, json!({ "intentIds": ["unknown"] })).await;
    assert_eq!((&none["count"], &none["sample"]), (&json!(0), &json!([])));
    let empty = change(&api, &none, "start", "").await;
    assert_eq!((empty.status.as_u16(), empty.error().as_str()), (409, "invalid_state"));
    assert!(empty.text().contains("nothing to start"), "{}", empty.text());
    let cancelled = change(&api, &none, "cancel", "").await;
    assert_eq!((cancelled.status.as_u16(), &cancelled.json()["state"]), (200, &json!("cancelled")));
    refused(&none, "cancel", "cancelled").await;
}

#[actix::test]
async fn a_redrive_is_paused_resumed_and_cancelled() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let ids: Vec<_> = (0..20).map(|number| format!("i{number}")).collect();
    fail(&api, &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let redrive = plan(&api, json!({})).await;
    change(&api, &redrive, "start", r#"{"ratePerSecond":5}"#).await;
    api.until(&path(&redrive), |answer| answer.json()["created"].as_u64().unwrap() >= 2).await;
    let paused = change(&api, &redrive, "pause", "").await.json();
    assert_eq!(paused["state"], "paused");
    assert!(paused["remaining"].as_u64().unwrap() > 0);
    let resumed = change(&api, &redrive, "resume", "").await.json();
    assert_eq!((&resumed["state"], &resumed["ratePerSecond"]), (&json!("running"), &json!(5)));
    let before = paused["created"].as_u64().unwrap();
    api.until(&path(&redrive), |answer| answer.json()["created"].as_u64().unwrap() > before).await;
    let cancelled = change(&api, &redrive, "cancel", "").await.json();
    assert_eq!((&cancelled["state"], &cancelled["remaining"]), (&json!("cancelled"), &json!(0)));
    let created = cancelled["created"].clone();
    let done = api.until(&path(&redrive), |answer| answer.json()["outcomes"]["pending"] == 0).await.json();
    assert_eq!((&done["created"], &done["outcomes"]["exhausted"]), (&created, &created));
    assert_eq!(gateway.ledger.len() as u64, 20 + created.as_u64().unwrap());
}

#[actix::test]
async fn one_intent_is_redriven_at_once_with_another_payload() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    fail(&api, &["b", "c"]).await;
    let created = api.call("POST", "/v1/intents/c/redrive", r#"{"payload":{ "simulate" : "accept" }}"#).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let created = created.json();
    assert_eq!((&created["redriveOf"], &created["submissionTarget"]), (&json!("c"), &json!("once")));
    let new = created["intentId"].as_str().unwrap().to_owned();
    api.until(&format!("/v1/intents/{new}"), |answer| answer.json()["status"] == "accepted").await;
    let sent = gateway.ledger.entries().pop().unwrap();
    assert_eq!((sent.idempotency_key.as_str(), sent.body.as_ref()), ("c", &br#"{ "simulate" : "accept" }"#[..]));
    for body in ["", r#"{"payload":1}"#] {
        let again = api.call("POST", "/v1/intents/c/redrive", body).await;
        assert_eq!((again.status.as_u16(), again.error().as_str()), (409, "already_redriven"));
        assert_eq!(again.json()["error"]["details"], json!({ "redrivenAs": new }));
    }
    let accepted = api.call("POST", &format!("/v1/intents/{new}/redrive"), "").await;
    assert_eq!((accepted.status.as_u16(), accepted.error().as_str()), (409, "invalid_state"));
    assert_eq!(accepted.json()["error"]["details"], json!({ "status": "accepted" }));

    // The same payload again, and a chain of three.
    let second = api.call("POST", "/v1/intents/b/redrive", "").await.json();
    let second = second["intentId"].as_str().unwrap().to_owned();
    api.until(&format!("/v1/intents/{second}"), |answer| answer.json()["status"] == "exhausted").await;
    let third = api.call("POST", &format!("/v1/intents/{second}/redrive"), "{}").await.json();
    assert_eq!(third["redriveOf"], json!(second));
    let third = third["intentId"].as_str().unwrap().to_owned();
    api.until(&format!("/v1/intents/{third}"), |answer| answer.json()["status"] == "exhausted").await;
    let keys: Vec<_> = gateway.ledger.entries().into_iter().map(|received| received.idempotency_key).collect();
    assert_eq!(keys.iter().filter(|key| key.as_str() == "b").count(), 3, "{keys:?}");
}

#[actix::test]
async fn bad_requests_are_refused() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    fail(&api, &["a"]).await;
    let redrive = plan(&api, json!({})).await;
    let start = format!("{}/start", path(&redrive));
    let unknown = "/v1/redrives/00000000-0000-4000-8000-000000000000";
    let many = json!({ "filter": { "intentIds": vec!["a"; 1001] } }).to_string();
    for (path, body, status, code) in [
        ("/v1/redrives", "", 400, "invalid_request"),
        ("/v1/redrives", "{}", 400, "invalid_request"),
        ("/v1/redrives", many.as_str(), 400, "invalid_request"),
        ("/v1/redrives", r#"{"filter":{"submissionTarget":"unknown"}}"#, 400, "invalid_request"),
        ("/v1/redrives", r#"{"filter":{"intentIds":["sm-job:x"]}}"#, 400, "invalid_request"),
        ("/v1/redrives", r#"{"filter":{"status":"pending"}}"#, 400, "invalid_request"),
        (start.as_str(), r#"{"ratePerSecond":0}"#, 400, "invalid_request"),
        (start.as_str(), r#"{"ratePerSecond":1001}"#, 400, "invalid_request"),
        (start.as_str(), "[]", 400, "invalid_request"),
        (&format!("{unknown}/start"), "", 404, "not_found"),
        (&format!("{unknown}/pause"), "", 404, "not_found"),
        (&format!("{unknown}/resume"), "", 404, "not_found"),
        (&format!("{unknown}/cancel"), "", 404, "not_found"),
        ("/v1/redrives/x/cancel", "", 404, "not_found"),
        ("/v1/intents/unknown/redrive", "", 404, "not_found"),
        ("/v1/intents/sm-job:x/redrive", "", 404, "not_found"),
        ("/v1/intents/a/redrive", r#"{"payload":}"#, 400, "invalid_request"),
        ("/v1/intents/a/redrive", r#"{"pay":1}"#, 400, "invalid_request"),
    ] {
        let answer = api.call("POST", path, body).await;
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (status, code), "{path} {body}");
    }
    assert_eq!(api.get(unknown).await.status, 404);
    assert_eq!(api.get("/v1/redrives?cursor=x").await.status, 400);
    assert_eq!(api.get("/v1/redrives?limit=0").await.status, 400);
    assert_eq!(api.get("/v1/intents?redriveId=x").await.status, 400);
    assert_eq!(api.get(&start).await.status, 405);
    assert_eq!(api.get(&path(&redrive)).await.json(), redrive, "nothing has changed");
}

#[actix::test]
async fn intents_of_a_target_that_left_the_registry_are_not_redriven() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    fail(&api, &["a"]).await;
    remove_target(&site, "once");
    instance.signal("HUP");
    instance.wait_for_log("registry_reloaded");
    let planned = plan(&api, json!({})).await;
    assert_eq!((&planned["count"], &planned["excluded"]["target_not_in_registry"]), (&json!(0), &json!(1)));
    let refused = api.call("POST", "/v1/intents/a/redrive", "").await;
    assert_eq!((refused.status.as_u16(), refused.error().as_str()), (400, "invalid_request"));
    assert!(refused.text().contains("not in the registry"), "{}", refused.text());
}

fn remove_target(site: &Site, name: &str) {
    let mut registry: Value = serde_json::from_slice(&std::fs::read(site.registry()).unwrap()).unwrap();
    registry["targets"].as_array_mut().unwrap().retain(|target| target["submissionTarget"] != name);
    std::fs::write(site.registry(), registry.to_string()).unwrap();
}

/// Runs a command of the client against an instance; returns its exit code and what it printed.
fn client(instance: &Instance, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(BINARY).args(arguments).env("SM_URL", &instance.url).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[actix::test]
async fn the_command_line_plans_and_runs_redrives() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    fail(&api, &["a", "b"]).await;
    let run = |arguments: &[&str]| client(&instance, arguments);
    let (code, printed) = run(&["redrive", "plan", "--target", "once", "--reason", "one_shot", "--note", "outage"]);
    assert!(code == Some(0) && printed.contains("planned, 2 intents"), "{printed}");
    assert!(printed.contains("  once    exhausted  one_shot        2"), "{printed}");
    let id = printed.split_whitespace().nth(1).unwrap().trim_end_matches(':').to_owned();
    let (code, printed) = run(&["redrive", "status", &id]);
    assert!(code == Some(0) && printed.contains("first ids: a, b"), "{printed}");
    let (code, printed) = run(&["redrive", "pause", &id]);
    assert!(code == Some(1) && printed.contains("cannot pause a redrive that is planned"), "{printed}");
    let (code, printed) = run(&["redrive", "start", &id, "--rate", "1000"]);
    assert!(code == Some(0) && printed.contains("completed, 2 of 2 created"), "{printed}");
    api.until_nothing_is_pending().await;
    assert_eq!(gateway.ledger.len(), 4);
    let (code, printed) = run(&["redrive", "plan", "--id", "a", "--json"]);
    assert!(code == Some(0) && serde_json::from_str::<Value>(&printed).unwrap()["count"] == 0, "{printed}");
    let (code, printed) = run(&["redrive", "status"]);
    assert!(code == Some(0) && printed.lines().count() == 2 && printed.contains("2 exhausted"), "{printed}");
    let (code, printed) = run(&["redrive", "cancel", "x"]);
    assert!(code == Some(1) && printed.contains("no such redrive"), "{printed}");
}
