//! The `demo` command: runs the real service with a temporary store, stand-in gateways and a webhook sink, and submits a
//! sample intent every few seconds.

use std::time::Duration;

use clap::{Args, FromArgMatches};
use serde_json::{Value, json};

use super::{CommandResult, token};
use crate::config::registry::Registry;
use crate::config::settings::{Config, listen_address};
use crate::config::variables::Variables;
use crate::devtools::stand_in_gateway::StandIn;
use crate::devtools::webhook_sink::{ReceivedEvent, Sink};
use crate::domain::signature::Secret;
use crate::platform::errors::Context;
use crate::service::{Service, SignalRequest, Signals, stop_in_order};

#[derive(Args)]
pub(super) struct DemoArgs {
    /// Address and port to serve HTTP on
    #[arg(long, env = "SM_LISTEN", default_value = "127.0.0.1:8082", value_parser = listen_address, value_name = "ADDRESS:PORT")]
    listen: String,
}

/// Time between two sample intents.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// The behaviours of the stand-in gateways that the sample intents request, one after the other.
const SIMULATIONS: [&str; 8] =
    ["accept", "accept", "fail:1", "accept", "reject:invalid_recipient", "slow:800", "lie", "fail:2"];
/// The name of the variable that holds the webhook secret. It exists only in the demo's own [`Variables`].
const SECRET_ENV: &str = "DEMO_WEBHOOK_SECRET";
const SAMPLE_REGISTRY: &str = include_str!("../../registry/submission_targets.json");
const SAMPLE_NODES: &str = include_str!("../../registry/management_nodes.json");
const SAMPLE_INBOX: &str = include_str!("../../registry/inbox_clients.json");
const SAMPLE_CLIENTS: &str = include_str!("../../registry/api_clients.json");

pub(super) async fn run(args: DemoArgs) -> CommandResult {
    let gateway = StandIn::start(false).context(|| "cannot start a stand-in gateway")?;
    let directory = tempfile::Builder::new().prefix("submission-manager-demo-").tempdir()?;
    let secret = Secret::text_of(&std::array::from_fn(|_| fastrand::u8(..)));
    let secrets = Secret::parse_list(&secret)?;
    let print = |event: &ReceivedEvent| println!("{}", event_line(event));
    let sink = Sink::start(secrets, Box::new(print)).context(|| "cannot start a webhook sink")?;
    let variables = Variables::from_fn(move |name| (name == SECRET_ENV).then(|| secret.clone()));
    let token = token::random()?;
    let registry = registry_for(&gateway.url, &sink.url, &token, &variables)?;
    let targets: Vec<String> = target_names()?;
    let config = demo_config(&args.listen, directory.path())?;
    let mut signals = Signals::listen()?;
    let service = Service::start(&config, registry, variables).await?;
    let address = service.address;
    print!("{}", welcome(&format!("http://{address}"), &targets, &token));
    let samples = actix::spawn(submit_samples(format!("http://{address}/v1/intents"), targets));
    while let SignalRequest::Reload = signals.next().await {}
    samples.abort();
    stop_in_order(&service, signals).await;
    gateway.stop().await;
    sink.stop().await;
    Ok(())
}

/// The line that the demo prints for an event that its webhook sink received.
fn event_line(event: &ReceivedEvent) -> String {
    let intent = &event.body["intent"];
    let text = |name: &str| intent[name].as_str().unwrap_or_default().to_owned();
    let signature = if event.verified { "verified" } else { "NOT VERIFIED" };
    format!("webhook {} {}: {} is {}", event.id, signature, text("intentId"), text("status"))
}

/// The settings of `serve`, with a store in `directory`.
fn demo_config(listen: &str, directory: &std::path::Path) -> CommandResult<Config> {
    let store = format!("sqlite:{}", directory.join("demo.db").display());
    let command = Config::augment_args(clap::Command::new("demo"));
    let fixed = ["--migrate", "on", "--retention", "1h", "--shutdown-delay", "0s"];
    let arguments = ["demo", "--listen", listen, "--store", &store].into_iter().chain(fixed);
    Ok(Config::from_arg_matches(&command.try_get_matches_from(arguments)?)?)
}

fn sample(text: &str) -> CommandResult<Value> {
    Ok(serde_json::from_str(text)?)
}

/// The sample registry, in which every target and node points to the stand-in gateway and every webhook to the sink, and
/// the sample client has the given token.
fn registry_for(gateway: &str, sink: &str, token: &str, variables: &Variables) -> CommandResult<Registry> {
    let mut document = sample(SAMPLE_REGISTRY)?;
    for target in document["targets"].as_array_mut().into_iter().flatten() {
        target["gatewayUrl"] = gateway.into();
        target["webhook"] = json!({ "url": sink, "secretEnv": SECRET_ENV });
    }
    let mut nodes = sample(SAMPLE_NODES)?;
    nodes["nodes"][0]["gatewayUrl"] = gateway.into();
    let mut clients = sample(SAMPLE_CLIENTS)?;
    clients["clients"][0]["tokenSha256"] = token::sha256_of(token).into();
    let registry = Registry::parse(&document.to_string(), variables);
    let registry = registry.and_then(|registry| registry.with_jobs(&nodes.to_string(), &clients.to_string()));
    let registry = registry.and_then(|registry| registry.with_inbox(SAMPLE_INBOX, variables));
    Ok(registry.map_err(|errors| format!("{errors:?}"))?)
}

fn target_names() -> CommandResult<Vec<String>> {
    let document = sample(SAMPLE_REGISTRY)?;
    let names = document["targets"].as_array().into_iter().flatten().filter_map(|t| t["submissionTarget"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// Submits sample intents over HTTP, one every [`SAMPLE_INTERVAL`], until the task is aborted.
async fn submit_samples(url: String, targets: Vec<String>) {
    let client = awc::Client::default();
    let run = fastrand::u32(..);
    for (number, (target, simulation)) in targets.iter().cycle().zip(SIMULATIONS.into_iter().cycle()).enumerate() {
        let intent = json!({
            "intentId": format!("demo-{run:08x}-{number}"),
            "submissionTarget": target,
            "payload": { "to": "+46700000001", "message": format!("Sample {number}"), "simulate": simulation },
        });
        if let Err(error) = client.post(&url).send_json(&intent).await {
            log::warn!("sample_failed error={:?}", error.to_string());
        }
        tokio::time::sleep(SAMPLE_INTERVAL).await;
    }
}

fn welcome(url: &str, targets: &[String], token: &str) -> String {
    format!(
        r#"Submission Manager demo: the real service with a temporary SQLite store, stand-in gateways and a sample intent
every {interval} s. Webhooks go to a sink that verifies their signatures and prints them here.

  {url}/ui         the operator console
  {url}/docs       the API reference, with requests to try
  {url}/readyz     readiness, and which instance leads
  {url}/metrics    metrics for Prometheus

Try this in another terminal:

  curl -s '{url}/v1/intents?waitSeconds=10' -H 'Content-Type: application/json' \
    -d '{{"intentId":"hello-1","submissionTarget":"sms.realtime","payload":{{"to":"+46700000001","message":"Hello"}}}}'
  curl -s {url}/v1/intents/hello-1/history

Submit a job for tenant acme, with a token that is valid for this run:

  curl -s {url}/v1/jobs -H 'Authorization: Bearer {token}' \
    -d '{{"tenant_id":"acme","workspace_id":"w1","job_id":"j1","idempotency_key":"k1","management_node_id":"node-a",
        "execution_profile":{{"queue_name":"short"}},"requested_by":{{"user_id":"u1"}},
        "resource_shape":{{"cpu":4,"memory_mib":8192,"walltime_seconds":600}},
        "payload_ref":{{"input_uri":"s3://acme-jobs/j1/input.json"}}}}'
  curl -s '{url}/v1/jobs?tenant_id=acme' -H 'Authorization: Bearer {token}'

Send a form to the inbox, and list its messages:

  curl -s {url}/v1/inbox/submissions \
    -d '{{"client_slug":"acme","channel":"form","payload":{{"email":"ann@example.com","name":"Ann","message":"Hello"}}}}'
  curl -s '{url}/v1/inbox/messages?client_slug=acme'

Targets: {targets}.
The field "simulate" of a payload tells the stand-in gateways what to do: accept, reject:<reason>, fail, fail:<times>,
hang, slow:<ms>, lie, garbage, redirect, flood. Ctrl-C stops the demo and deletes its data.
"#,
        interval = SAMPLE_INTERVAL.as_secs(),
        targets = targets.join(", "),
    )
}
