//! Rules about the service as a whole: names and defaults that programs outside this project use, and promises that no
//! other test shows. `docs/conformance.md` names the test of every rule.

use std::collections::BTreeSet;
use std::process::Command;

use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::raw_server::whole;
use crate::support::{BINARY, Instance, PATIENCE, Site, site};

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn settings_have_the_defaults_that_deployments_rely_on() {
    let output = Command::new(BINARY).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    for (variable, default) in [
        ("SM_LISTEN", Some("127.0.0.1:8082")),
        ("SM_STORE", Some("sqlite:data/submission.db")),
        ("SM_STORE_PASSWORD", None),
        ("SM_REGISTRY", Some("registry/submission_targets.json")),
        ("SM_NODES", None),
        ("SM_API_CLIENTS", None),
        ("SM_INBOX_CLIENTS", None),
        ("SM_AUTH", None),
        ("SM_HOLDER_ID", None),
        ("SM_LEASE_NAME", Some("submission-manager-executor")),
        ("SM_LEASE_DURATION", Some("15s")),
        ("SM_RENEW_INTERVAL", Some("5s")),
        ("SM_ACQUIRE_INTERVAL", Some("1s")),
        ("SM_SCHEDULE_REFRESH_INTERVAL", Some("250ms")),
        ("SM_MAX_IN_FLIGHT", Some("256")),
        ("SM_MAX_IN_FLIGHT_PER_GATEWAY", Some("128")),
        ("SM_ATTEMPT_TIMEOUT", Some("35s")),
        ("SM_MAX_PAYLOAD_BYTES", Some("262144")),
        ("SM_RETENTION", None),
        ("SM_AUDIT_RETENTION", None),
    ] {
        let named = |end: &str| help.split(&format!("[env: {variable}{end}")).nth(1);
        let rest = named("=]").or_else(|| named("]")).unwrap_or_else(|| panic!("no {variable} in {help}"));
        let shown = rest.trim_start().strip_prefix("[default: ").and_then(|rest| rest.split(']').next());
        assert_eq!(shown, default, "{variable}");
    }
}

#[actix::test]
async fn an_instance_names_itself_after_host_process_and_chance() {
    let (site, _gateway) = site();
    let instance = site.start();
    let line = instance.wait_for_log("leader_acquired");
    let holder = line.split("holder_id=").nth(1).unwrap().split(' ').next().unwrap();
    let (rest, chance) = holder.rsplit_once('-').unwrap();
    let (host, process) = rest.rsplit_once('-').unwrap();
    assert!(!host.is_empty() && process == instance.pid().to_string(), "{line}");
    assert!(chance.len() == 8 && chance.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
}

/// Tables and columns that dashboards, backups and reports of operators use, on both stores.
#[test]
fn tables_have_the_columns_that_others_read() {
    let schema = |dialect: &str| {
        let folder = format!("{}/schema/{dialect}", env!("CARGO_MANIFEST_DIR"));
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect::<String>()
    };
    for dialect in ["sqlite", "sqlserver"] {
        let schema = schema(dialect);
        for (table, columns) in [
            ("submission_intents", "intent_id status attempt_count next_attempt_at last_modified_at payload_sha256"),
            ("submission_attempts", "attempt_number started_at finished_at outcome_status outcome_reason error"),
            ("submission_manager_leases", "lease_name holder_id lease_epoch acquired_at renewed_at expires_at"),
            ("inbox_submissions", "id client_slug channel payload source_url created_at processed_at error message_id"),
        ] {
            let made = if dialect == "sqlite" { "CREATE TABLE IF NOT EXISTS" } else { "CREATE TABLE" };
            let made = format!("{made} {table}");
            let definition = schema.split(&made).skip(1).find(|rest| rest.trim_start().starts_with('('));
            let definition = definition.unwrap_or_else(|| panic!("no {table} for {dialect}"));
            let definition = definition.split("\n)").next().unwrap();
            let words: BTreeSet<_> = definition.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            for column in columns.split(' ') {
                assert!(words.contains(column), "{dialect}: {table} has no {column}: {definition}");
            }
        }
    }
}

/// Runs every migration of the embedded store again on a store that has them all.
#[actix::test]
async fn every_file_of_the_schema_is_safe_to_run_again() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut instance = site.start();
    instance.api().submit("a", "once", json!({}), "?waitSeconds=30").await;
    instance.kill();
    let store = Connection::open(site.database()).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/schema/sqlite")).unwrap().collect();
    files.sort_by_key(|entry| entry.as_ref().unwrap().path());
    for entry in files {
        let path = entry.unwrap().path();
        let again = store.execute_batch(&std::fs::read_to_string(&path).unwrap());
        assert!(again.is_ok(), "{}: {again:?}", path.display());
    }
    let instance = site.start();
    assert_eq!(instance.api().get("/v1/intents/a").await.json()["status"], "accepted");
    assert_eq!(instance.api().submit("b", "once", json!({}), "?waitSeconds=30").await.json()["status"], "accepted");
}

#[actix::test]
async fn metrics_have_the_names_that_dashboards_use_and_no_ids_in_labels() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("secret-id-4711", "once", json!({ "simulate": "reject:odd-reason-4711" }), "?waitSeconds=30").await;
    api.get("/v1/intents/secret-id-4711/history").await;
    let text = api.get("/metrics").await.text();
    for (name, kind, label) in [
        ("intents_created_total", "counter", ""),
        ("idempotent_hits_total", "counter", ""),
        ("idempotency_conflicts_total", "counter", ""),
        ("intents_terminal_total", "counter", "status"),
        ("exhausted_total", "counter", "reason"),
        ("attempts_total", "counter", "outcome_status"),
        ("retries_scheduled_total", "counter", ""),
        ("intent_time_to_terminal_seconds", "histogram", "status"),
        ("attempt_duration_seconds", "histogram", ""),
        ("queue_delay_seconds", "histogram", ""),
        ("queue_depth", "gauge", ""),
        ("inflight_attempts", "gauge", ""),
        ("leader", "gauge", ""),
        ("lease_epoch", "gauge", ""),
        ("leader_transitions_total", "counter", "to"),
        ("store_batch_size", "histogram", ""),
        ("store_commit_seconds", "histogram", ""),
        ("store_errors_total", "counter", "kind"),
        ("http_requests_total", "counter", "route"),
        ("http_request_seconds", "histogram", "route"),
        ("webhook_tries_total", "counter", "result"),
        ("target_attempts_total", "counter", "target"),
        ("target_waiting", "gauge", "target"),
        ("target_time_to_terminal_seconds", "histogram", "target"),
        ("build_info", "gauge", "version"),
    ] {
        assert!(text.contains(&format!("# TYPE submission_{name} {kind}\n")), "{name} in\n{text}");
        let series =
            text.lines().find(|line| line.starts_with(&format!("submission_{name}")) && !line.contains("_bucket"));
        let series = series.unwrap_or_else(|| panic!("no {name}"));
        assert!(label.is_empty() || series.contains(&format!("{label}=\"")), "{series}");
    }
    let series: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for outside in ["4711", &site.registry().display().to_string()] {
        assert!(!series.iter().any(|line| line.contains(outside)), "{outside} in\n{text}");
    }
    // Names of targets are bounded only in the metrics by target.
    let mut others = series.iter().filter(|line| !line.starts_with("submission_target_"));
    assert!(!others.any(|line| line.contains("\"once\"") || line.contains("\"attempts\"")), "{text}");
}

/// What arrives at a gateway, byte by byte.
#[actix::test]
async fn a_gateway_gets_the_request_that_the_contract_describes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // A trailing slash is harmless.
    let site = Site::new(&format!("http://{}/base/", listener.local_addr().unwrap()));
    let instance = site.start();
    let body = r#"{"intentId":"é 1","submissionTarget":"once","payload":[ 1.0,"\u00e9" ]}"#;
    instance.api().call("POST", "/v1/intents", body).await;
    let (mut socket, _) = tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let mut read = Vec::new();
    while !whole(&read) {
        assert!(socket.read_buf(&mut read).await.unwrap() > 0, "it broke off");
    }
    let text = String::from_utf8(read).unwrap();
    let (head, payload) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some("POST /base/sms/send HTTP/1.1"));
    let headers: BTreeSet<_> = lines.map(str::to_lowercase).collect();
    for header in ["content-type: application/json", "idempotency-key: %c3%a9%201", "x-submission-attempt: 1"] {
        assert!(headers.contains(header), "no {header} in {head}");
    }
    assert_eq!(payload, r#"[ 1.0,"\u00e9" ]"#, "byte for byte");
    // Blanks around values do not count, nor do other fields.
    let answer = r#"{"status":" accepted ","gatewayMessageId":" m1 ","other":{"status":"rejected"}}"#;
    let answer = format!("HTTP/1.1 202 Accepted\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
    socket.write_all(answer.as_bytes()).await.unwrap();
    let path = "/v1/intents/%C3%A9%201/history";
    let history = instance.api().until(path, |answer| answer.json()["intent"]["status"] == "accepted").await.json();
    assert_eq!(history["attempts"][0]["gatewayMessageId"], "m1");
}

#[actix::test]
async fn nothing_that_a_client_sees_names_the_delay_of_retries() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let intent = api.submit("a", "attempts", json!({ "simulate": "fail" }), "?waitSeconds=30").await.json();
    assert_eq!(keys(&intent), BTreeSet::from(["createdAt", "intentId", "status", "submissionTarget"]));
    assert_eq!(intent["status"], "pending", "and it waits for a retry");
    let history = api.history("a").await;
    assert_eq!(keys(&history), BTreeSet::from(["attempts", "intent"]));
    let attempt = BTreeSet::from([
        "attemptNumber",
        "error",
        "finishedAt",
        "gatewayMessageId",
        "outcomeReason",
        "outcomeStatus",
        "startedAt",
    ]);
    assert_eq!(keys(&history["attempts"][0]), attempt);
    let document = api.get("/openapi.json").await.text().to_lowercase();
    for name in ["nextattempt", "next_attempt_at", "retrydelay", "retry_delay", "5 seconds"] {
        assert!(!document.contains(name), "{name} is in the OpenAPI document");
    }
}

/// `attempt_count` of the intent is the only source of numbers: the audit log may lose rows.
#[actix::test]
async fn attempt_numbers_do_not_come_from_the_audit_log() {
    let (site, gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let instance = site.start();
    let api = instance.api();
    api.submit("a", "attempts", json!({ "simulate": "fail:1" }), "?waitSeconds=30").await;
    let store = Connection::open(site.database()).unwrap();
    assert_eq!(store.execute("DELETE FROM submission_attempts", []).unwrap(), 1);
    api.until("/v1/intents/a", |answer| answer.json()["status"] == "accepted").await;
    let numbers: Vec<_> = gateway.ledger.entries().iter().map(|received| received.attempt).collect();
    assert_eq!(numbers, [1, 2]);
}

#[actix::test]
async fn idempotency_holds_across_a_restart() {
    let (site, gateway) = site();
    let mut first = site.start();
    let payload = "{ \"b\":1, \"a\" : 2 }";
    let body = |payload: &str| format!(r#"{{"payload":{payload},"intentId":"a","submissionTarget":"once"}}"#);
    first.api().call("POST", "/v1/intents?waitSeconds=30", body(payload)).await;
    first.api().call("POST", "/v1/intents?waitSeconds=30", r#"{"intentId":"empty","submissionTarget":"once"}"#).await;
    first.kill();
    if site.is_a_file() {
        let store = Connection::open(site.database()).unwrap();
        let hash = "SELECT payload_sha256 FROM submission_intents WHERE intent_id = ?1";
        for (id, payload) in [("a", payload), ("empty", "")] {
            let kept: Vec<u8> = store.query_row(hash, [id], |row| row.get(0)).unwrap();
            assert_eq!(kept, Sha256::digest(payload).to_vec(), "{id}");
        }
    }
    let second = site.start();
    let api = second.api();
    let again = api.call("POST", "/v1/intents", body(payload)).await;
    assert_eq!((again.status.as_u16(), again.header("idempotent-replayed")), (200, Some("true")));
    let empty = api.call("POST", "/v1/intents", r#"{"intentId":" empty ","submissionTarget":" once "}"#).await;
    assert_eq!(empty.header("idempotent-replayed"), Some("true"), "blanks around names do not count");
    for other in ["{ \"a\" : 2, \"b\":1 }", "{\"b\":1,\"a\":2}", "null", "{}"] {
        let conflict = api.call("POST", "/v1/intents", body(other)).await;
        assert_eq!(conflict.error(), "idempotency_conflict", "{other}");
    }
    let null = r#"{"intentId":"empty","submissionTarget":"once","payload":null}"#;
    assert_eq!(api.call("POST", "/v1/intents", null).await.error(), "idempotency_conflict", "null is four bytes");
    assert_eq!(gateway.ledger.len(), 2);
}

#[actix::test]
async fn requests_under_way_are_answered_at_an_orderly_stop() {
    let (site, gateway) = site();
    let mut instance = site.start();
    let api = instance.api();
    instance.wait_for_log("leader_ready");
    let waiting = api.submit("a", "once", json!({ "simulate": "slow:500" }), "?waitSeconds=30");
    let stop = async {
        while gateway.ledger.is_empty() {
            tokio::task::yield_now().await;
        }
        instance.signal("TERM");
    };
    let (answer, ()) = tokio::join!(waiting, stop);
    assert_eq!((answer.status.as_u16(), &answer.json()["status"]), (200, &json!("accepted")));
    assert_eq!(instance.wait().code(), Some(0));
}

#[actix::test]
async fn the_leader_logs_what_happens_to_its_lease() {
    let (site, _gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let mut command = site.command();
    command.env("RUST_LOG", "debug").env("SM_HOLDER_ID", "one");
    // So that it is a renewal that fails first.
    command.env("SM_SCHEDULE_REFRESH_INTERVAL", "1m");
    let instance = Instance::start(command);
    for event in ["leader_acquired", "leader_renewed"] {
        let line = instance.wait_for_log(&format!("{event} "));
        assert!(line.contains("holder_id=one lease_epoch=1 expires_at="), "{line}");
        assert_eq!(line.contains(" DEBUG "), event == "leader_renewed", "{line}");
    }
    let aside = site.directory.path().join("aside.db");
    std::fs::rename(site.database(), &aside).unwrap();
    for event in ["leader_renew_failed", "leader_lost"] {
        let line = instance.wait_for_log(&format!("{event} "));
        assert!(line.contains("holder_id=one lease_epoch=1"), "{line}");
        assert!(line.contains(" expires_at=") && line.contains(" store_error="), "{line}");
    }
    let line = instance.wait_for_log("leader_acquire_failed ");
    assert!(line.contains("holder_id=one") && line.contains("store_error="), "{line}");
    std::fs::rename(&aside, site.database()).unwrap();
    instance.wait_for_log("lease_epoch=2");
    // Nothing at info for each renewal, and every line is an event.
    let quiet = site.start();
    quiet.api().get("/readyz").await;
    assert!(!quiet.log_lines().iter().any(|line| line.contains("leader_renewed")));
}

#[actix::test]
async fn a_service_that_is_open_to_all_says_so() {
    let (site, _gateway) = site();
    let mut command = site.command();
    command.env("SM_LISTEN", "0.0.0.0:0");
    let open = Instance::start(command);
    assert!(open.wait_for_log("open_to_all").contains("SM_AUTH=required"));
    let local = site.start();
    local.wait_for_log("listening");
    assert!(!local.log_lines().iter().any(|line| line.contains("open_to_all")));
}
