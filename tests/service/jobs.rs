//! Jobs: tenants and their tokens, one job for each key, nodes that come and go. Also tokens for the other APIs.

use std::collections::HashSet;
use std::process::Command;

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use submission_manager::devtools::stand_in_gateway::StandIn;

use crate::support::{Answer, Api, BINARY, Instance, Site, site};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A site with jobs. `node-a` belongs to acme and is shared with globex, `node-b` belongs to globex, and `drained` is
/// draining.
pub(crate) struct Jobs {
    site: Site,
    node: StandIn,
}

fn hex(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn node(id: &str, owner: &str, url: &str) -> Value {
    json!({ "managementNodeId": id, "ownerTenantId": owner, "state": "active", "gatewayUrl": url,
        "policy": "max_attempts", "maxAttempts": 100, "terminalOutcomes": ["quota_exceeded"],
        "queues": [{ "queueName": "short", "accounts": ["research"], "qos": ["normal"],
                     "maxCpu": 64, "maxMemoryMib": 1024, "maxWalltimeSeconds": 3600 }] })
}

fn client(id: &str, scopes: &[&str], tenants: &Value) -> Value {
    let mut entry = json!({ "clientId": id, "tokenSha256": hex(id), "scopes": scopes });
    if !tenants.is_null() {
        entry["tenants"] = tenants.clone();
    }
    entry
}

impl Jobs {
    /// The token of a client is its id.
    pub(crate) fn new() -> Self {
        let (site, node) = site();
        let jobs = Self { site, node };
        jobs.write_nodes("active");
        let all = ["jobs:submit", "jobs:read", "intents:write", "intents:read"];
        let clients = json!({ "clients": [
            client("acme", &all, &json!([{ "tenantId": "acme", "workspaceIds": ["w1", "w2"] }])),
            client("globex", &all, &json!([{ "tenantId": "globex", "workspaceIds": ["*"] }])),
            client("reader", &["jobs:read"], &json!([{ "tenantId": "acme", "workspaceIds": ["*"] }])),
            client("intents", &["intents:read"], &Value::Null),
            client("operator", &["admin"], &Value::Null),
        ]});
        std::fs::write(jobs.path("clients.json"), clients.to_string()).unwrap();
        jobs
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.site.directory.path().join(name)
    }

    fn write_nodes(&self, state: &str) {
        let mut shared = node("node-a", "acme", &self.node.url);
        shared["sharedWithTenantIds"] = json!(["globex"]);
        shared["state"] = state.into();
        let mut drained = node("drained", "acme", &self.node.url);
        drained["state"] = "draining".into();
        let own = node("node-b", "globex", &self.node.url);
        std::fs::write(self.path("nodes.json"), json!({ "nodes": [shared, own, drained] }).to_string()).unwrap();
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = self.site.command();
        command.env("SM_NODES", self.path("nodes.json")).env("SM_API_CLIENTS", self.path("clients.json"));
        command
    }

    pub(crate) fn start(&self) -> Instance {
        Instance::start(self.command())
    }
}

pub(crate) fn command() -> Value {
    json!({
        "tenant_id": "acme", "workspace_id": "w1", "job_id": "job-1", "idempotency_key": "key-1",
        "management_node_id": "node-a",
        "execution_profile": { "queue_name": "short", "qos": "normal", "account": "research" },
        "resource_shape": { "cpu": 4, "memory_mib": 512, "walltime_seconds": 600 },
        "payload_ref": { "input_uri": "s3://acme/1/input.json", "artifact_bucket": "artifacts" },
        "requested_by": { "user_id": "user-7", "session_id": "session-3" },
    })
}

fn with(changes: &[(&str, Value)]) -> Value {
    let mut command = command();
    for (path, value) in changes {
        *command.pointer_mut(path).unwrap() = value.clone();
    }
    command
}

/// Sends a request with a token, if it is not empty, and with a known trace.
pub(crate) async fn send(api: &Api, token: &str, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("traceparent", traceparent.as_str())];
    if !token.is_empty() {
        headers.push(("Authorization", bearer.as_str()));
    }
    api.call_with(method, path, &headers, body).await
}

async fn post(api: &Api, token: &str, command: &Value) -> Answer {
    send(api, token, "POST", "/v1/jobs", command).await
}

async fn get(api: &Api, token: &str, path: &str) -> Answer {
    send(api, token, "GET", path, &Value::Null).await
}

fn code(answer: &Answer) -> String {
    let json = answer.json();
    assert_eq!(json["trace_id"], TRACE, "{json}");
    let traceparent = answer.header("traceparent").unwrap();
    assert!(traceparent.starts_with(&format!("00-{TRACE}-")) && !traceparent.contains("00f067aa0ba902b7"));
    format!("{} {}", answer.status.as_u16(), json["error"]["code"].as_str().unwrap_or_default())
}

#[actix::test]
async fn a_job_is_sent_to_its_node_and_shown_to_its_tenant() {
    let jobs = Jobs::new();
    let instance = jobs.start();
    let api = instance.api();
    let answer = post(&api, "acme", &command()).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text());
    let accepted = answer.json();
    let mut fields: Vec<_> = accepted.as_object().unwrap().keys().cloned().collect();
    fields.sort();
    assert_eq!(fields, ["accepted_at", "execution_owner", "job_id", "submission_id", "trace_id"]);
    assert_eq!((&accepted["job_id"], &accepted["execution_owner"]), (&json!("job-1"), &json!("node-a")));
    assert_eq!(accepted["trace_id"], TRACE);
    let id = accepted["submission_id"].as_str().unwrap().to_owned();

    let shown = async || get(&api, "acme", &format!("/v1/jobs/{id}")).await.json();
    while shown().await["status"] == "pending" {
        tokio::task::yield_now().await;
    }
    let job = shown().await;
    assert_eq!(
        (&job["status"], &job["tenant_id"], &job["workspace_id"]),
        (&json!("accepted"), &json!("acme"), &json!("w1"))
    );
    assert_eq!((&job["trace_id"], &job["accepted_at"]), (&json!(TRACE), &accepted["accepted_at"]));
    let received = jobs.node.ledger.entries();
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].path.as_str(), &received[0].idempotency_key), ("/jobs/submit", &id));
    assert!(received[0].traceparent.starts_with(&format!("00-{TRACE}-")), "{}", received[0].traceparent);
    let mut forwarded: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(forwarded.as_object_mut().unwrap().remove("submission_id").unwrap(), json!(id));
    assert_eq!(forwarded, command(), "the node gets the command");

    let history = get(&api, "acme", &format!("/v1/jobs/{id}/history")).await.json();
    assert_eq!((&history["job"], &history["trace_id"]), (&job, &json!(TRACE)));
    assert_eq!(history["attempts"][0]["outcome_status"], "accepted");
    assert_eq!(history["attempts"][0]["gateway_message_id"], format!("gw-{id}-1"));
    let list = get(&api, "acme", "/v1/jobs?tenant_id=acme").await.json();
    assert_eq!((&list["jobs"], &list["next_cursor"]), (&json!([job]), &Value::Null));

    // The job is an intent, but lists of intents do not show it.
    let intent = format!("/v1/intents/sm-job:{id}");
    for path in [intent.as_str(), &format!("{intent}/history"), &format!("/v1/intents/{id}")] {
        assert_eq!(get(&api, "acme", path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(get(&api, "acme", "/v1/intents?q=sm-").await.json()["intents"], json!([]));
    let taken = json!({ "intentId": format!("sm-job:{id}"), "submissionTarget": "once" });
    assert_eq!(send(&api, "acme", "POST", "/v1/intents", &taken).await.status, StatusCode::BAD_REQUEST);

    let page = get(&api, "", "/ui/jobs?tenant_id=acme").await.text();
    assert!(page.contains("job-1") && page.contains("/ui/intents/sm-job%3A"), "{page}");
    assert!(get(&api, "", "/ui/jobs?tenant_id=globex").await.text().contains("No jobs found."));
    let page = get(&api, "", &format!("/ui/intents/sm%2Djob%3A{id}")).await.text();
    assert!(page.contains("of tenant acme, workspace w1") && page.contains(TRACE), "{page}");

    let tags = format!(
        "trace_id={TRACE} tenant_id=\"acme\" workspace_id=\"w1\" job_id=\"job-1\" submission_id=\"{id}\" \
         management_node_id=\"node-a\" idempotency_key=\"key-1\""
    );
    assert!(instance.wait_for_log("job_accepted").contains(&tags));
    let finished = instance.wait_for_log("job_attempt_finished");
    assert!(finished.contains(&tags) && finished.contains("outcome=accepted"), "{finished}");
    let metrics = api.get("/metrics").await.text();
    assert!(metrics.contains("submission_jobs_total{result=\"accepted\"} 1"), "{metrics}");
    assert!(!metrics.contains("acme"), "no tenants in labels");
    let log = instance.log_lines().join("\n");
    assert!(!log.contains("s3://acme") && !log.contains("session-3"), "what is in a command is not logged");
}

#[actix::test]
async fn checks_are_made_in_order_and_each_error_has_its_trace() {
    let jobs = Jobs::new();
    let instance = jobs.start();
    let api = instance.api();
    let accepted = post(&api, "acme", &command()).await;
    assert_eq!(accepted.status, StatusCode::ACCEPTED);
    let first = accepted.json()["submission_id"].as_str().unwrap().to_owned();
    let bad = with(&[("/resource_shape/cpu", json!(0)), ("/tenant_id", json!("globex"))]);
    let foreign = with(&[("/tenant_id", json!("globex")), ("/management_node_id", json!("nowhere"))]);
    let unknown = with(&[("/management_node_id", json!("nowhere")), ("/resource_shape/cpu", json!(65))]);
    let others = with(&[("/management_node_id", json!("node-b")), ("/resource_shape/cpu", json!(65))]);
    let differs = with(&[("/resource_shape/cpu", json!(65))]);
    let fresh = |changes: &[(&str, Value)]| {
        let mut command = with(changes);
        command["idempotency_key"] = "key-2".into();
        command
    };
    for (token, body, expected) in [
        ("", json!({}), "401 unauthorized"),
        ("nobody", command(), "401 unauthorized"),
        ("acme", bad, "400 invalid_request"),
        ("acme", foreign, "403 forbidden"),
        ("acme", with(&[("/workspace_id", json!("w3"))]), "403 forbidden"),
        ("reader", command(), "403 forbidden"),
        ("intents", command(), "403 forbidden"),
        ("acme", unknown, "404 management_node_not_found"),
        ("acme", others, "404 management_node_not_found"),
        ("acme", differs, "409 idempotency_conflict"),
        (
            "acme",
            fresh(&[("/resource_shape/cpu", json!(65)), ("/management_node_id", json!("drained"))]),
            "422 policy_rejected",
        ),
        ("acme", fresh(&[("/execution_profile/queue_name", json!("long"))]), "422 policy_rejected"),
        ("acme", fresh(&[("/management_node_id", json!("drained"))]), "503 execution_unavailable"),
    ] {
        let answer = post(&api, token, &body).await;
        assert_eq!(code(&answer), expected, "{body} by {token:?}: {}", answer.text());
    }
    let rejected = fresh(&[("/resource_shape/cpu", json!(65)), ("/execution_profile/qos", json!("high"))]);
    let rejected = post(&api, "acme", &rejected).await.json();
    let fields: Vec<_> =
        rejected["error"]["details"]["violations"].as_array().unwrap().iter().map(|v| v["field"].clone()).collect();
    assert_eq!(fields, ["execution_profile.qos", "resource_shape.cpu"]);
    assert_eq!(post(&api, "", &command()).await.header("www-authenticate"), Some("Bearer"));
    for (token, path, expected) in [
        ("", "/v1/jobs?tenant_id=acme", "401 unauthorized"),
        ("acme", "/v1/jobs", "400 invalid_request"),
        ("acme", "/v1/jobs?tenant_id=acme&colour=1", "400 invalid_request"),
        ("acme", "/v1/jobs?tenant_id=globex", "403 forbidden"),
        ("acme", "/v1/jobs?tenant_id=acme&workspace_id=w3", "403 forbidden"),
        ("intents", "/v1/jobs?tenant_id=acme", "403 forbidden"),
        ("", "/v1/jobs/x", "401 unauthorized"),
        ("intents", "/v1/jobs/x", "403 forbidden"),
        ("acme", "/v1/jobs/x", "404 not_found"),
    ] {
        assert_eq!(code(&get(&api, token, path).await), expected, "{path} by {token:?}");
    }
    assert_eq!(code(&send(&api, "acme", "DELETE", "/v1/jobs", &Value::Null).await), "405 method_not_allowed");
    for path in ["/v1/jobs/a/b", "/v1/jobs/a/b/c", "/v1/jobs/a/history/b", "/v1/jobs//"] {
        assert_eq!(code(&get(&api, "acme", path).await), "404 not_found", "{path}");
    }
    assert_eq!(code(&get(&api, "acme", "/v1/jobs/").await), "400 invalid_request", "as without the slash");
    assert!(instance.wait_for_log("code=idempotency_conflict").contains(&format!("submission_id=\"{first}\"")));
    let forbidden = instance.wait_for_log("code=forbidden");
    for tag in [TRACE, "tenant_id=\"globex\"", "job_id=\"job-1\"", "submission_id=\"\"", "client_id=\"acme\""] {
        assert!(forbidden.contains(tag), "no {tag} in {forbidden}");
    }
    let made = api.call_with("POST", "/v1/jobs", &[("traceparent", "00-zz")], "").await.json();
    assert!(made["trace_id"].as_str().is_some_and(|id| id.len() == 32 && id != TRACE), "{made}");

    // A draining node gets no new jobs, and its jobs can still be read. So can the jobs of a node that was removed.
    jobs.write_nodes("draining");
    instance.signal("HUP");
    instance.wait_for_log("registry_reloaded");
    assert_eq!(code(&post(&api, "acme", &fresh(&[])).await), "503 execution_unavailable");
    assert_eq!(post(&api, "acme", &command()).await.status, StatusCode::ACCEPTED);
    let only = json!({ "nodes": [node("node-b", "globex", &jobs.node.url)] });
    std::fs::write(jobs.path("nodes.json"), only.to_string()).unwrap();
    instance.signal("HUP");
    instance.wait_for_log("nodes=1");
    assert_eq!(post(&api, "acme", &command()).await.status, StatusCode::ACCEPTED);
    assert_eq!(code(&post(&api, "acme", &with(&[("/job_id", json!("other"))])).await), "404 management_node_not_found");
}

#[actix::test]
async fn a_repeated_job_may_differ_only_in_its_session() {
    let jobs = Jobs::new();
    let instance = jobs.start();
    let api = instance.api();
    let first = post(&api, "acme", &command()).await;
    assert_eq!(post(&api, "acme", &command()).await.json(), first.json());
    let without = |path: &str| {
        let mut command = command();
        let (parent, field) = path.rsplit_once('/').unwrap();
        command.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(field).unwrap();
        command
    };
    for session in [with(&[("/requested_by/session_id", json!("other"))]), without("/requested_by/session_id")] {
        let again = post(&api, "acme", &session).await;
        assert_eq!((again.status, again.json()), (StatusCode::ACCEPTED, first.json()));
    }
    for (path, value) in [
        ("/job_id", json!("other")),
        ("/execution_profile/queue_name", json!("other")),
        ("/execution_profile/qos", json!("other")),
        ("/execution_profile/account", json!("other")),
        ("/resource_shape/cpu", json!(5)),
        ("/resource_shape/memory_mib", json!(5)),
        ("/resource_shape/walltime_seconds", json!(5)),
        ("/payload_ref/input_uri", json!("s3://other/x")),
        ("/payload_ref/artifact_bucket", json!("other")),
        ("/requested_by/user_id", json!("other")),
        ("/management_node_id", json!("drained")),
    ] {
        let answer = post(&api, "acme", &with(&[(path, value)])).await;
        assert_eq!(code(&answer), "409 idempotency_conflict", "{path}");
        let details = &answer.json()["error"]["details"];
        assert_eq!(details["conflicting_fields"], json!([path[1..].replace('/', ".")]));
    }
    for path in ["/execution_profile/qos", "/execution_profile/account", "/payload_ref/artifact_bucket"] {
        assert_eq!(code(&post(&api, "acme", &without(path)).await), "409 idempotency_conflict", "{path} left out");
    }
    let elsewhere = post(&api, "acme", &with(&[("/workspace_id", json!("w2"))])).await;
    assert_eq!(elsewhere.status, StatusCode::ACCEPTED);
    assert_ne!(elsewhere.json()["submission_id"], first.json()["submission_id"], "a key is of its workspace");
}

#[actix::test]
async fn a_hundred_racing_submissions_of_one_key_are_one_job() {
    let jobs = Jobs::new();
    let (one, two) = (jobs.start(), jobs.start());
    let apis = [one.api(), two.api()];
    let racing = (0..100).map(|number| {
        let api = apis[number % 2].clone();
        async move { post(&api, "acme", &command()).await }
    });
    let answers = futures_util::future::join_all(racing).await;
    let different: HashSet<_> = answers.iter().map(|answer| (answer.status, answer.text())).collect();
    assert_eq!(different.len(), 1, "{different:?}");
    assert_eq!(answers[0].status, StatusCode::ACCEPTED);
    let list = get(&apis[0], "acme", "/v1/jobs?tenant_id=acme").await.json();
    assert_eq!(list["jobs"].as_array().unwrap().len(), 1);
    let path = format!("/v1/jobs/{}", answers[0].json()["submission_id"].as_str().unwrap());
    while get(&apis[1], "acme", &path).await.json()["status"] == "pending" {
        tokio::task::yield_now().await;
    }
    assert_eq!(jobs.node.ledger.len(), 1);
}

/// Every answer to a client of one tenant is the same as if the other tenants did not exist.
#[actix::test]
async fn a_tenant_cancels_its_own_jobs_only() {
    let jobs = Jobs::new();
    let instance = jobs.start();
    let api = instance.api();
    // No attempt of the node's target starts, so the job waits.
    let node = send(&api, "operator", "POST", "/v1/targets/node:node-a/pause", &Value::Null).await;
    assert_eq!(node.status, StatusCode::OK, "{}", node.text());
    let id = post(&api, "acme", &command()).await.json()["submission_id"].as_str().unwrap().to_owned();
    let cancel = format!("/v1/jobs/{id}/cancel");
    for (token, expected) in [("globex", "404 not_found"), ("reader", "403 forbidden"), ("", "401 unauthorized")] {
        assert_eq!(code(&send(&api, token, "POST", &cancel, &Value::Null).await), expected, "{token}");
    }
    let intent = send(&api, "acme", "POST", &format!("/v1/intents/sm-job:{id}/cancel"), &Value::Null).await;
    assert_eq!(intent.status, StatusCode::NOT_FOUND, "a job is not cancelled as an intent");
    for _ in 0..2 {
        let cancelled = send(&api, "acme", "POST", &cancel, &Value::Null).await;
        let job = cancelled.json();
        assert_eq!((cancelled.status, &job["submission_id"]), (StatusCode::OK, &json!(id)), "{job}");
        assert_eq!((&job["status"], &job["exhausted_reason"]), (&json!("exhausted"), &json!("cancelled")));
        assert_eq!(job["may_have_been_sent"], false);
    }
    let shown = get(&api, "acme", &format!("/v1/jobs/{id}")).await.json();
    assert_eq!(shown["exhausted_reason"], "cancelled");
    assert!(jobs.node.ledger.is_empty());
}

#[actix::test]
async fn answers_reveal_nothing_about_other_tenants() {
    let (busy, empty) = (Jobs::new(), Jobs::new());
    let (busy_instance, empty_instance) = (busy.start(), empty.start());
    let (busy_api, empty_api) = (busy_instance.api(), empty_instance.api());
    let mut ids = vec!["f47ac10b-58cc-4372-a567-0e02b2c3d479".to_owned(), "nonsense".to_owned()];
    // Globex has jobs in one of the two services, and none in the other.
    for number in 0..5 {
        let changes = [("/tenant_id", json!("globex")), ("/idempotency_key", json!(format!("key-{number}")))];
        let answer = post(&busy_api, "globex", &with(&changes)).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text());
        ids.push(answer.json()["submission_id"].as_str().unwrap().to_owned());
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..300 {
        let token = *random.choice(["acme", "reader", "intents", "nobody"].iter()).unwrap();
        let tenant = *random.choice(["acme", "globex", "initech"].iter()).unwrap();
        let workspace = *random.choice(["w1", "w3", "w9"].iter()).unwrap();
        let node = *random.choice(["node-a", "node-b", "nowhere"].iter()).unwrap();
        let id = random.choice(ids.iter()).unwrap().clone();
        let key = format!("key-{}", random.u8(0..7));
        let changes = [
            ("/tenant_id", json!(tenant)),
            ("/workspace_id", json!(workspace)),
            ("/management_node_id", json!(node)),
            ("/idempotency_key", json!(key)),
        ];
        let (method, path, body) = match random.u8(0..9) {
            0 | 1 => ("POST", "/v1/jobs".to_owned(), with(&changes)),
            2 => ("GET", format!("/v1/jobs/{id}"), Value::Null),
            3 => ("GET", format!("/v1/jobs/{id}/history"), Value::Null),
            4 => ("GET", format!("/v1/jobs?tenant_id={tenant}"), Value::Null),
            5 => ("GET", format!("/v1/jobs?tenant_id={tenant}&workspace_id={workspace}&job_id=job-1"), Value::Null),
            6 => ("GET", format!("/v1/intents/sm-job:{id}"), Value::Null),
            7 => ("POST", format!("/v1/jobs/{id}/cancel?afterAttempt=true"), Value::Null),
            _ => ("GET", "/v1/intents?q=s".to_owned(), Value::Null),
        };
        // Ids of jobs differ between the services, so they are left out of the comparison.
        let own = method == "POST" && token == "acme" && tenant == "acme" && workspace == "w1" && node == "node-a";
        if own {
            continue;
        }
        let busy = send(&busy_api, token, method, &path, &body).await;
        let empty = send(&empty_api, token, method, &path, &body).await;
        assert_eq!(
            (busy.status, busy.text()),
            (empty.status, empty.text()),
            "round {round}: {method} {path} {body} by {token}"
        );
        let names = |answer: &Answer| {
            let mut names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(names(&busy), names(&empty));
    }
    // The cursor of a tenant's list does not reveal what others did meanwhile.
    for number in 0..3 {
        let changes = [("/idempotency_key", json!(format!("own-{number}")))];
        assert_eq!(post(&busy_api, "acme", &with(&changes)).await.status, StatusCode::ACCEPTED);
    }
    let page = get(&busy_api, "acme", "/v1/jobs?tenant_id=acme&limit=1").await.json();
    let id = page["jobs"][0]["submission_id"].as_str().unwrap();
    assert!(page["next_cursor"].as_str().unwrap().ends_with(id), "{page}");
    for foreign in &ids[2..] {
        let path = format!("/v1/jobs?tenant_id=acme&cursor=7fffffffffffff.{foreign}");
        assert_eq!(get(&busy_api, "acme", &path).await.json()["jobs"].as_array().unwrap().len(), 3);
    }
}

#[actix::test]
async fn nothing_is_read_or_written_before_the_tenant_checks_have_passed() {
    let jobs = Jobs::new();
    if !jobs.site.is_a_file() {
        return;
    }
    let instance = jobs.start();
    let api = instance.api();
    std::fs::remove_file(jobs.site.database()).unwrap();
    assert_eq!(code(&post(&api, "acme", &command()).await), "503 store_unavailable");
    assert_eq!(code(&post(&api, "acme", &with(&[("/tenant_id", json!("globex"))])).await), "403 forbidden");
    assert_eq!(code(&post(&api, "acme", &json!({})).await), "400 invalid_request");
    assert_eq!(code(&post(&api, "", &command()).await), "401 unauthorized");
    assert!(jobs.node.ledger.is_empty());
}

#[actix::test]
async fn a_node_that_does_not_answer_gets_no_new_jobs_until_it_does() {
    let jobs = Jobs::new();
    let instance = jobs.start();
    let api = instance.api();
    jobs.node.stop().await;
    let numbered = |number: u32| with(&[("/idempotency_key", json!(format!("key-{number}")))]);
    for number in 0..5 {
        assert_eq!(post(&api, "acme", &numbered(number)).await.status, StatusCode::ACCEPTED);
    }
    let mut number = 5;
    let mut ids = Vec::new();
    let refused = loop {
        number += 1;
        let answer = post(&api, "acme", &numbered(number)).await;
        if answer.status != StatusCode::ACCEPTED {
            break answer;
        }
        ids.push(answer.json()["submission_id"].as_str().unwrap().to_owned());
        assert!(number < 1000, "it never counted as gone");
    };
    assert_eq!(code(&refused), "503 execution_unavailable");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(post(&api, "acme", &numbered(1)).await.status, StatusCode::ACCEPTED, "what was taken is answered for");
    assert_eq!(
        code(&post(&api, "globex", &with(&[("/tenant_id", json!("globex"))])).await),
        "503 execution_unavailable"
    );

    // Accepted jobs keep their contract and are tried again. The first answer makes the node available again.
    let _node = jobs.node.restarted().unwrap();
    let path = "/v1/jobs?tenant_id=acme&status=accepted";
    while get(&api, "acme", path).await.json()["jobs"].as_array().unwrap().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(post(&api, "acme", &numbered(number)).await.status, StatusCode::ACCEPTED);
}

#[actix::test]
async fn the_other_apis_require_tokens_too() {
    let jobs = Jobs::new();
    let instance = jobs.start();
    let api = instance.api();
    let intent = json!({ "intentId": "a", "submissionTarget": "once" });
    let form = "intentId=a";
    for (token, status) in [("", 401), ("nobody", 401), ("intents", 403), ("acme", 200)] {
        let answer = send(&api, token, "POST", "/v1/intents", &intent).await;
        assert_eq!(answer.status.as_u16(), status, "{token}: {}", answer.text());
    }
    for (token, status) in [("", 401), ("reader", 403), ("intents", 200), ("acme", 200)] {
        for path in ["/v1/intents", "/v1/intents/a", "/v1/intents/a/history"] {
            assert_eq!(get(&api, token, path).await.status.as_u16(), status, "{path} by {token:?}");
        }
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/x-www-form-urlencoded")];
        assert_eq!(api.call_with("POST", "/ui/history", &headers, form).await.status.as_u16(), status, "{token:?}");
    }
    for (token, status) in [("", 401), ("intents", 403), ("acme", 404)] {
        let path = "/v1/intents/a/webhook/redeliver";
        assert_eq!(send(&api, token, "POST", path, &Value::Null).await.status.as_u16(), status, "{token:?}");
    }
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs/"] {
        assert_eq!(api.get(path).await.status, StatusCode::OK, "{path}");
    }
    let run = |token: &str| {
        let mut command = Command::new(BINARY);
        command.args(["history", "a", "--url", &instance.url]).env("SM_TOKEN", token);
        actix_web::rt::task::spawn_blocking(move || command.output().unwrap())
    };
    assert!(run("intents").await.unwrap().status.success());
    let refused = run("nobody").await.unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("401") && !said.contains("nobody"), "{said}");
    // With the setting that turns it off, they do not.
    let mut command = jobs.command();
    command.env("SM_AUTH", "off");
    let open = Instance::start(command);
    assert_eq!(open.api().get("/v1/intents/a").await.status, StatusCode::OK);
    assert_eq!(code(&post(&open.api(), "", &crate::jobs::command()).await), "401 unauthorized");
}

#[actix::test]
async fn the_job_api_is_disabled_without_its_files_and_their_errors_are_reported() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    for (method, path) in [("POST", "/v1/jobs"), ("GET", "/v1/jobs?tenant_id=a"), ("GET", "/v1/jobs/x")] {
        assert_eq!(code(&send(&api, "acme", method, path, &Value::Null).await), "404 not_found");
    }
    std::fs::write(site.directory.path().join("nodes.json"), r#"{"nodes": [{}]}"#).unwrap();
    std::fs::write(site.directory.path().join("clients.json"), r#"{"clients": [{"token": "s3cret"}]}"#).unwrap();
    let mut check = site.command();
    check
        .arg("check")
        .env("SM_NODES", site.directory.path().join("nodes.json"))
        .env("SM_API_CLIENTS", site.directory.path().join("clients.json"));
    let output = check.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    for fault in [
        "nodes[0].managementNodeId: is missing",
        "clients[0].tokenSha256: is missing",
        "clients[0].token: unknown field",
    ] {
        assert!(said.contains(fault), "{said}");
    }
    assert!(!said.contains("s3cret"));
    let mut required = site.command();
    let output = required.env("SM_AUTH", "required").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("SM_AUTH") && said.contains("SM_API_CLIENTS"), "{said}");
}

#[actix::test]
async fn a_new_token_is_printed_once_and_known_by_its_hash() {
    let jobs = Jobs::new();
    let made = Command::new(BINARY)
        .args(["token", "new", "--client", "new", "--scope", "jobs:read", "--tenant", "acme", "--workspace", "w1"])
        .output()
        .unwrap();
    let text = String::from_utf8(made.stdout).unwrap();
    let token = text.lines().find_map(|line| line.trim().strip_prefix("smt_")).unwrap();
    assert_eq!(token.len(), 43, "32 bytes in base64");
    let entry: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    assert_eq!(entry["tokenSha256"], hex(&format!("smt_{token}")));
    std::fs::write(jobs.path("clients.json"), json!({ "clients": [entry] }).to_string()).unwrap();
    let instance = jobs.start();
    let answer = get(&instance.api(), &format!("smt_{token}"), "/v1/jobs?tenant_id=acme").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
}
