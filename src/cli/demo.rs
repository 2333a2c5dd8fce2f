//! `demo`: the real service on a store of its own, with stand-in gateways, a webhook sink and a
//! trickle of intents.

use std::time::Duration;

use clap::{Args, FromArgMatches};
use serde_json::{Value, json};

use crate::app::{Asked, Service, Signals, stop_in_order};
use crate::config::{Config, listen_address};
use crate::core::signature::Secret;
use crate::gateway::standin::StandIn;
use crate::registry::Registry;
use crate::variables::Variables;
use crate::webhooks::sink::{Arrived, Sink};

#[derive(Args)]
pub struct DemoArgs {
    /// Address and port to serve HTTP on
    #[arg(long, env = "SM_LISTEN", default_value = "127.0.0.1:8082", value_parser = listen_address, value_name = "ADDRESS:PORT")]
    listen: String,
}

/// Between two sample intents.
const TRICKLE: Duration = Duration::from_secs(2);
/// What sample intents ask of the stand-in gateways, in turn.
const WISHES: [&str; 8] =
    ["accept", "accept", "fail:1", "accept", "reject:invalid_recipient", "slow:800", "lie", "fail:2"];
/// The variable that holds the demo's webhook secret, for the demo alone.
const SECRET_ENV: &str = "DEMO_WEBHOOK_SECRET";
const SAMPLE_REGISTRY: &str = include_str!("../../registry/submission_targets.json");

pub async fn run(args: DemoArgs) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let gateway = StandIn::start(false).map_err(|error| format!("cannot start a stand-in gateway: {error}"))?;
    let directory = tempfile::Builder::new().prefix("submission-manager-demo-").tempdir().map_err(text)?;
    let secret = Secret::text_of(&std::array::from_fn(|_| fastrand::u8(..)));
    let secrets = Secret::parse_list(&secret).map_err(|fault| fault.to_string())?;
    let show = |arrived: &Arrived| println!("{}", told(arrived));
    let sink = Sink::start(secrets, Box::new(show)).map_err(|error| format!("cannot start a webhook sink: {error}"))?;
    let variables = Variables::from_fn(move |name| (name == SECRET_ENV).then(|| secret.clone()));
    let registry = registry_for(&gateway.url, &sink.url, &variables)?;
    let targets: Vec<String> = target_names()?;
    let config = demo_config(&args.listen, directory.path())?;
    let mut signals = Signals::listen().map_err(|error| error.to_string())?;
    let service = Service::start(&config, registry, variables).await.map_err(|error| error.to_string())?;
    let address = service.address;
    print!("{}", welcome(&format!("http://{address}"), &targets));
    let trickle = actix::spawn(trickle(format!("http://{address}/v1/intents"), targets));
    while let Asked::Reload = signals.next().await {}
    trickle.abort();
    stop_in_order(&service, signals).await;
    gateway.stop().await;
    sink.stop().await;
    Ok(())
}

/// What the sink says of an event.
fn told(arrived: &Arrived) -> String {
    let intent = &arrived.body["intent"];
    let text = |name: &str| intent[name].as_str().unwrap_or_default().to_owned();
    let signature = if arrived.verified { "verified" } else { "NOT VERIFIED" };
    format!("webhook {} {}: {} is {}", arrived.id, signature, text("intentId"), text("status"))
}

/// The settings of `serve`, with a store in `directory`.
fn demo_config(listen: &str, directory: &std::path::Path) -> Result<Config, String> {
    let store = format!("sqlite:{}", directory.join("demo.db").display());
    let command = Config::augment_args(clap::Command::new("demo"));
    let fixed = ["--migrate", "on", "--retention", "1h", "--shutdown-delay", "0s"];
    let matches = command
        .try_get_matches_from(["demo", "--listen", listen, "--store", &store].into_iter().chain(fixed))
        .map_err(|error| error.to_string())?;
    Config::from_arg_matches(&matches).map_err(|error| error.to_string())
}

fn sample() -> Result<Value, String> {
    serde_json::from_str(SAMPLE_REGISTRY).map_err(|error| error.to_string())
}

/// The sample registry with every target going to the stand-in, and its outcome to the sink.
fn registry_for(gateway: &str, sink: &str, variables: &Variables) -> Result<Registry, String> {
    let mut document = sample()?;
    for target in document["targets"].as_array_mut().into_iter().flatten() {
        target["gatewayUrl"] = gateway.into();
        target["webhook"] = json!({ "url": sink, "secretEnv": SECRET_ENV });
    }
    Registry::parse(&document.to_string(), variables).map_err(|faults| format!("{faults:?}"))
}

fn target_names() -> Result<Vec<String>, String> {
    let document = sample()?;
    let names = document["targets"].as_array().into_iter().flatten().filter_map(|t| t["submissionTarget"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// Submits a sample intent now and then, like any client would.
async fn trickle(url: String, targets: Vec<String>) {
    let client = awc::Client::default();
    let run = fastrand::u32(..);
    for (number, (target, wish)) in targets.iter().cycle().zip(WISHES.into_iter().cycle()).enumerate() {
        let intent = json!({
            "intentId": format!("demo-{run:08x}-{number}"),
            "submissionTarget": target,
            "payload": { "to": "+46700000001", "message": format!("Sample {number}"), "simulate": wish },
        });
        if let Err(error) = client.post(&url).send_json(&intent).await {
            log::warn!("sample_failed error={:?}", error.to_string());
        }
        tokio::time::sleep(TRICKLE).await;
    }
}

fn welcome(url: &str, targets: &[String]) -> String {
    format!(
        r#"Submission Manager demo: real service, embedded store, stand-in gateways, a sample intent every {pause} s. Outcomes go
to a webhook sink, which verifies their signatures and shows them here.

  {url}/ui         the operator console
  {url}/docs       the API, to read and try
  {url}/readyz     who leads
  {url}/metrics    numbers for Prometheus

Try, in another terminal:

  curl -s '{url}/v1/intents?waitSeconds=10' -H 'Content-Type: application/json' \
    -d '{{"intentId":"hello-1","submissionTarget":"sms.realtime","payload":{{"to":"+46700000001","message":"Hello"}}}}'
  curl -s {url}/v1/intents/hello-1/history

Targets: {targets}.
The stand-in gateways do what a payload's "simulate" asks: accept, reject:<reason>, fail, fail:<times>, hang,
slow:<ms>, lie, garbage, redirect, flood. Everything is forgotten when you stop it with Ctrl-C.
"#,
        pause = TRICKLE.as_secs(),
        targets = targets.join(", "),
    )
}
