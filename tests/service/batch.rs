//! Batch submission: a thousand intents with one request, each with a result of its own.

use serde_json::{Value, json};

use crate::support::{Answer, Api, site};

const NDJSON: &[(&str, &str)] = &[("Content-Type", "application/x-ndjson")];

async fn array(api: &Api, body: impl Into<Vec<u8>>) -> Answer {
    api.call("POST", "/v1/intents/batch", body).await
}

/// Sends lines. The headers of the client are replaced.
async fn lines(api: &Api, body: impl Into<Vec<u8>>) -> Answer {
    api.call_with("POST", "/v1/intents/batch", NDJSON, body).await
}

fn item(id: &str, target: &str) -> String {
    json!({ "intentId": id, "submissionTarget": target, "payload": { "n": id } }).to_string()
}

fn statuses(answer: &Answer) -> Vec<u64> {
    let json = answer.json();
    let results = json["results"].as_array().unwrap_or_else(|| panic!("no results in {json}"));
    results.iter().map(|result| result["status"].as_u64().unwrap()).collect()
}

#[actix::test]
async fn every_item_has_the_result_that_it_would_have_alone() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("old", "once", json!({ "n": "old" }), "?waitSeconds=10").await;
    let payload = r#"{ "b" : 1.0e0,  "a":"\u00e9" }"#;
    let exact = format!(r#"{{"submissionTarget":"once","payload":{payload},"intentId":"exact"}}"#);
    let items = [
        exact,
        item("old", "once"),
        item("old", "attempts"),
        item("x", "nowhere"),
        item(" ", "once"),
        "[]".to_owned(),
        r#"{"intentId":"late","submissionTarget":"once","notBefore":"9999-01-01T00:00:00Z"}"#.to_owned(),
        item("exact-2", "once"),
        item("exact-2", "once"),
    ];
    let answer = array(&api, format!("[{}]", items.join(" , "))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(statuses(&answer), [200, 200, 409, 400, 400, 400, 400, 200, 200]);
    let results = answer.json()["results"].clone();
    for (place, code) in
        [(2, "idempotency_conflict"), (3, "invalid_request"), (5, "invalid_request"), (6, "invalid_request")]
    {
        let alone = api.call("POST", "/v1/intents", items[place].clone()).await;
        assert_eq!(results[place]["error"], alone.json()["error"], "{place}");
        assert_eq!(results[place]["error"]["code"], code);
    }
    for (place, replayed) in [(0, Value::Null), (1, json!(true)), (7, Value::Null), (8, json!(true))] {
        assert_eq!(results[place]["replayed"], replayed, "{place}");
        let id = results[place]["intent"]["intentId"].as_str().unwrap();
        assert_eq!(
            api.get(&format!("/v1/intents/{id}")).await.json()["createdAt"],
            results[place]["intent"]["createdAt"]
        );
    }
    api.until_nothing_is_pending().await;
    let sent = gateway.ledger.entries();
    let exact = sent.iter().find(|received| received.idempotency_key == "exact").unwrap();
    assert_eq!(exact.body, payload, "byte for byte");
    assert_eq!(sent.len(), 3);
}

#[actix::test]
async fn a_thousand_lines_are_one_commit_and_all_are_sent() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    instance.wait_for_log("leader_acquired");
    let commits = async || {
        let metrics = api.get("/metrics").await.text();
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("submission_store_batch_size_bucket{le=\"512\"} "));
        let all = metrics.lines().find_map(|line| line.strip_prefix("submission_store_batch_size_count "));
        let number = |text: Option<&str>| text.unwrap().parse::<u64>().unwrap();
        number(all) - number(line)
    };
    let before = commits().await;
    let body: Vec<String> = (0..1000).map(|number| item(&format!("n-{number}"), "once")).collect();
    let answer = lines(&api, body.join("\n") + "\n").await;
    assert_eq!(statuses(&answer), [200; 1000]);
    // Transactions of a SQL Server are smaller, so that other instances need not wait for long.
    if site.is_a_file() {
        assert_eq!(commits().await - before, 1, "one commit of more than 512 writes");
    }
    api.until_nothing_is_pending().await;
    assert_eq!(gateway.ledger.len(), 1000);
    let again = lines(&api, body.join("\n")).await.json();
    assert!(again["results"].as_array().unwrap().iter().all(|result| result["replayed"] == true));
    assert_eq!(gateway.ledger.len(), 1000);
}

#[actix::test]
async fn the_command_line_submits_a_file_and_can_be_repeated() {
    let (site, _gateway) = site();
    let instance = site.start();
    let file = site.directory.path().join("intents.ndjson");
    let mut lines: Vec<String> = (0..25).map(|number| item(&format!("n-{number}"), "once")).collect();
    lines[7] = item("bad", "nowhere");
    lines.insert(20, String::new());
    std::fs::write(&file, lines.join("\n")).unwrap();
    let run = |url: &str| {
        let mut command = std::process::Command::new(crate::support::BINARY);
        command.args(["submit", "--batch", "10", "--file"]).arg(&file).env("SM_URL", url);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    for summary in ["created 24, existed 0", "created 0, existed 24"] {
        let (code, printed) = run(&instance.url);
        assert!(code == Some(1) && printed.contains(summary), "{printed}");
        assert!(
            printed.contains("line 8: ") && printed.contains("refused lines by code: invalid_request 1"),
            "{printed}"
        );
    }
    std::fs::write(&file, item("n-1", "once")).unwrap();
    assert_eq!(run(&instance.url).0, Some(0));
    std::fs::remove_file(&file).unwrap();
    let (code, printed) = run(&instance.url);
    assert!(code == Some(1) && printed.contains("cannot read"), "{printed}");
}

#[actix::test]
async fn bad_batches_are_refused_and_a_bad_line_fails_alone() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let good = item("a", "once");
    let many = vec![good.as_str(); 1001];
    for (answer, message) in [
        (array(&api, "").await, "must be a JSON array"),
        (array(&api, good.clone()).await, "must be a JSON array"),
        (array(&api, format!("[{good}")).await, "must be a JSON array"),
        (array(&api, [b"[{\"intentId\":\"\xff\"}]".as_slice()].concat()).await, "must be a JSON array"),
        (array(&api, "[]").await, "1 to 1000 submissions, not 0"),
        (array(&api, format!("[{}]", many.join(","))).await, "1 to 1000 submissions, not 1001"),
        (lines(&api, "\n \n").await, "1 to 1000 submissions, not 0"),
        (lines(&api, many.join("\n")).await, "1 to 1000 submissions, not 1001"),
        (api.call("POST", "/v1/intents/batch?waitSeconds=1", format!("[{good}]")).await, "waitSeconds"),
    ] {
        assert_eq!((answer.status.as_u16(), answer.error().as_str()), (400, "invalid_request"));
        assert!(answer.text().contains(message), "{}", answer.text());
    }
    let large = format!("[{}]", vec![format!("{{\"x\":\"{}\"}}", "x".repeat(9000)); 999].join(","));
    let answer = array(&api, large).await;
    assert_eq!((answer.status.as_u16(), answer.error().as_str()), (413, "payload_too_large"));
    assert_eq!(api.get("/v1/intents").await.json()["intents"], json!([]), "nothing was stored");

    let half = format!("{good}\n{}", &item("b", "once")[..20]);
    assert_eq!(statuses(&lines(&api, half).await), [200, 400]);
    let invalid = [item("c", "once").as_bytes(), b"\n{\"intentId\":\"\xff\"}\n[[]]"].concat();
    assert_eq!(statuses(&lines(&api, invalid).await), [200, 400, 400]);

    assert_eq!(api.get("/v1/intents/batch").await.status, 404, "an intent may have this id");
    api.submit("batch", "once", json!({}), "").await;
    assert_eq!(api.get("/v1/intents/batch").await.json()["intentId"], "batch");
}
