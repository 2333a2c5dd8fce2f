//! `SM_LOG_FORMAT=json`: every line on standard error is a JSON object with the fields of the text format.

use serde_json::{Value, json};

use crate::jobs::{self, Jobs};
use crate::support::Instance;

/// Starts an instance that logs JSON.
fn start(jobs: &Jobs) -> Instance {
    let mut command = jobs.command();
    command.env("SM_LOG_FORMAT", "json").env("SM_HOLDER_ID", "1").env("RUST_LOG", "debug");
    let mut instance = Instance::spawn(command);
    let line: Value = serde_json::from_str(&instance.wait_for_log("\"event\":\"listening\"")).unwrap();
    instance.url = format!("http://{}", line["address"].as_str().unwrap());
    instance
}

/// All lines so far.
fn lines(instance: &Instance) -> Vec<Value> {
    let parse = |line: &String| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    instance.log_lines().iter().map(parse).collect()
}

/// The first line of an event.
fn event(instance: &Instance, name: &str) -> Value {
    instance.wait_for_log(&format!("\"event\":\"{name}\""));
    lines(instance).into_iter().find(|line| line["event"] == name).unwrap()
}

#[actix::test]
async fn events_of_the_leader_and_of_jobs_have_their_fields() {
    let jobs = Jobs::new();
    let mut instance = start(&jobs);
    let answer = jobs::send(&instance.api(), "acme", "POST", "/v1/jobs", &jobs::command()).await.json();
    for name in ["leader_acquired", "leader_renewed"] {
        let line = event(&instance, name);
        assert_eq!((&line["holder_id"], &line["lease_epoch"]), (&json!("1"), &json!(1)), "{line}");
        assert!(line["expires_at"].as_str().unwrap().ends_with('Z') && line["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(line["level"], if name == "leader_renewed" { "DEBUG" } else { "INFO" });
    }
    let accepted = event(&instance, "job_accepted");
    let attempt = event(&instance, "job_attempt_finished");
    for line in [&accepted, &attempt] {
        for (key, value) in [
            ("trace_id", answer["trace_id"].clone()),
            ("tenant_id", json!("acme")),
            ("workspace_id", json!("w1")),
            ("job_id", json!("job-1")),
            ("submission_id", answer["submission_id"].clone()),
            ("management_node_id", json!("node-a")),
            ("idempotency_key", json!("key-1")),
        ] {
            assert_eq!(line[key], value, "{key} in {line}");
        }
    }
    assert_eq!((&accepted["client_id"], &attempt["attempt"]), (&json!("acme"), &json!(1)));
    instance.signal("TERM");
    assert!(instance.wait().success());
    assert_eq!(event(&instance, "leader_lost")["why"], "orderly stop");
    event(&instance, "stopped");
    for line in lines(&instance) {
        let message = line["target"].is_string() && line["message"].is_string();
        assert!(line["event"].is_string() != message, "{line}");
    }
}

#[actix::test]
async fn a_service_that_does_not_start_says_so_in_json() {
    let jobs = Jobs::new();
    let mut command = jobs.command();
    command.env("SM_LOG_FORMAT", "json").env("SM_REGISTRY", "/nowhere.json");
    let mut instance = Instance::spawn(command);
    assert_eq!(instance.wait().code(), Some(1));
    let line = event(&instance, "not_started");
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("/nowhere.json") && error.contains("SM_REGISTRY"), "{error}");
}
