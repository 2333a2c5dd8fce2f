//! Sets a secret in every setting that takes one, makes calls that succeed and calls that fail, and then searches for the
//! secrets everywhere a person could read them: logs, metrics, answers, pages, the command line, the database and its
//! backups.

use serde_json::json;
use sha2::{Digest, Sha256};
use submission_manager::devtools::webhook_sink::Sink;
use submission_manager::domain::signature::Secret;

use crate::support::{Api, Instance, site};

const TOKEN: &str = "smt_PLANTED-token-0123456789";
const HEADER: &str = "PLANTED-header-value";
const PASSWORD: &str = "PLANTED-console-password";
const STORE_PASSWORD: &str = "PLANTED-store-password";
const SIGNED_URL: &str = "https://store.test/in?X-Signature=PLANTED-url-signature";

async fn get(api: &Api, path: &str, authorization: &str) -> String {
    api.call_with("GET", path, &[("Authorization", authorization)], "").await.text()
}

#[actix::test]
async fn no_secret_is_readable_anywhere() {
    let (site, gateway) = site();
    if !site.is_a_file() {
        return;
    }
    let (webhook_secret, hook_secret) = (Secret::text_of(&[0x51; 32]), Secret::text_of(&[0x52; 32]));
    let sink = Sink::start(Secret::parse_list(&webhook_secret).unwrap(), Box::new(|_| ())).unwrap();
    let path = |name: &str| site.directory.path().join(name);
    let write = |name: &str, json: serde_json::Value| std::fs::write(path(name), json.to_string()).unwrap();
    let mut targets: serde_json::Value = std::fs::read_to_string(site.registry()).unwrap().parse().unwrap();
    targets["targets"][2]["webhook"] =
        json!({ "url": sink.url, "secretEnv": "HOOK_OUT", "headersEnv": { "X-Key": "HEADER_VALUE" } });
    write("targets.json", targets);
    write(
        "nodes.json",
        json!({ "nodes": [{ "managementNodeId": "n", "ownerTenantId": "t", "state": "active", "gatewayUrl": gateway.url,
            "policy": "one_shot", "terminalOutcomes": ["invalid_request"],
            "queues": [{ "queueName": "q", "maxCpu": 1, "maxMemoryMib": 1, "maxWalltimeSeconds": 1 }] }] }),
    );
    let hash: String = Sha256::digest(TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
    let scopes = ["jobs:submit", "jobs:read", "intents:write", "intents:read", "inbox:write", "inbox:read"];
    write(
        "clients.json",
        json!({ "clients": [{ "clientId": "c", "tokenSha256": hash, "scopes": scopes,
            "tenants": [{ "tenantId": "t", "workspaceIds": ["*"] }] }] }),
    );
    write(
        "inbox.json",
        json!({ "clients": [{ "clientSlug": "acme", "channels": ["form"], "hookSecretEnv": "HOOK_IN" }] }),
    );
    let console = format!("ops:{}", bcrypt::hash(PASSWORD, 4).unwrap());
    let mut command = site.command();
    command
        .env("RUST_LOG", "trace")
        .env("SM_NODES", path("nodes.json"))
        .env("SM_API_CLIENTS", path("clients.json"))
        .env("SM_INBOX_CLIENTS", path("inbox.json"))
        .env("SM_STORE_PASSWORD", STORE_PASSWORD)
        .env("SM_CONSOLE_AUTH", &console)
        .env("HOOK_OUT", &webhook_secret)
        .env("HOOK_IN", &hook_secret)
        .env("HEADER_VALUE", HEADER);
    let instance = Instance::start(command);
    let api = instance.api();
    let bearer = format!("Bearer {TOKEN}");
    let mut read = Vec::new();
    let mut post = async |path: &str, authorization: &str, body: &serde_json::Value| {
        let answer = api.call_with("POST", path, &[("Authorization", authorization)], body.to_string()).await;
        read.push(answer.text());
        answer
    };
    // Calls that succeed, and calls that fail.
    post("/v1/intents?waitSeconds=30", &bearer, &json!({ "intentId": "a", "submissionTarget": "once" })).await;
    let mut job = json!({ "tenant_id": "t", "workspace_id": "w", "job_id": "j", "idempotency_key": "k",
        "management_node_id": "n", "execution_profile": { "queue_name": "q" }, "requested_by": { "user_id": "u" },
        "resource_shape": { "cpu": 1, "memory_mib": 1, "walltime_seconds": 1 }, "payload_ref": { "input_uri": SIGNED_URL } });
    let taken = post("/v1/jobs", &bearer, &job).await.json();
    job["payload_ref"]["input_uri"] = format!("{SIGNED_URL}&more").into();
    assert_eq!(post("/v1/jobs", &bearer, &job).await.status.as_u16(), 409);
    job["payload_ref"]["input_uri"] = SIGNED_URL.replace("https", "ftp").into();
    assert_eq!(post("/v1/jobs", &bearer, &job).await.status.as_u16(), 400);
    post("/v1/intents", &format!("Bearer {TOKEN}x"), &json!({})).await;
    post("/v1/inbox/hooks/acme/form", "", &json!({ "email": "a@b" })).await;
    api.until("/metrics", |answer| answer.text().contains("submission_webhook_tries_total{result=\"delivered\"} 1"))
        .await;
    instance.signal("HUP");
    instance.wait_for_log("registry_reloaded");

    let login = format!("Basic {}", {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(format!("ops:{PASSWORD}"))
    });
    let job_page = format!("/ui/intents/sm-job:{}", taken["submission_id"].as_str().unwrap());
    for path in ["/ui", "/ui/intents", "/ui/intents/a", "/ui/targets", "/ui/jobs", "/ui/inbox", &job_page] {
        read.push(get(&api, path, &login).await);
    }
    for path in ["/metrics", "/readyz", "/openapi.json", "/v1/intents/a/history", "/v1/jobs?tenant_id=t", "/v1/nowhere"]
    {
        read.push(get(&api, path, &bearer).await);
    }
    read.push(instance.log_lines().join("\n"));
    read.push(
        String::from_utf8_lossy(&std::fs::read(format!("/proc/{}/cmdline", instance.pid())).unwrap()).into_owned(),
    );
    let check = site.command().arg("check").env("SM_STORE_PASSWORD", STORE_PASSWORD).output().unwrap();
    read.push(String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned());

    let bare = |secret: &str| secret.trim_start_matches("whsec_").to_owned();
    let secrets = [
        TOKEN.to_owned(),
        HEADER.to_owned(),
        PASSWORD.to_owned(),
        STORE_PASSWORD.to_owned(),
        console.clone(),
        bare(&webhook_secret),
        bare(&hook_secret),
    ];
    for secret in secrets.iter().chain([&"PLANTED-url-signature".to_owned()]) {
        for text in &read {
            assert!(!text.contains(secret.as_str()), "{secret} in {}", text.chars().take(2000).collect::<String>());
        }
    }
    // The database has the payloads, and no secret but those.
    for file in ["data/submission.db", "data/submission.db-wal"] {
        let bytes = std::fs::read(path(file)).unwrap();
        for secret in &secrets {
            assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{secret} in {file}");
        }
    }
}
