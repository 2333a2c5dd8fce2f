//! Traces from the client to the gateway, and the spans that an OpenTelemetry collector gets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use actix_web::{App, HttpResponse, HttpServer, web};
use serde_json::{Value, json};

use crate::jobs::Jobs;
use crate::support::{Api, Instance, site};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// A collector that records the exported spans.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Value>>>);

impl Collector {
    fn start(&self) -> String {
        let taken = self.clone();
        let server = HttpServer::new(move || {
            let taken = taken.clone();
            let take = move |body: web::Json<Value>| {
                let taken = taken.clone();
                async move {
                    taken.0.lock().unwrap().push(body.into_inner());
                    HttpResponse::Ok().json(json!({}))
                }
            };
            App::new().app_data(web::JsonConfig::default().limit(16 << 20)).route("/v1/traces", web::post().to(take))
        });
        let server = server.workers(1).disable_signals().shutdown_timeout(0).bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", server.addrs()[0]);
        actix::spawn(server.run());
        url
    }

    fn spans(&self) -> Vec<Value> {
        let taken = self.0.lock().unwrap();
        let of = |export: &Value| export["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
        let mut spans: Vec<_> = taken.iter().flat_map(of).collect();
        // Sort requests before the spans within them, because spans end in any order.
        spans.sort_by_key(|span| (span["kind"].as_u64(), span["startTimeUnixNano"].to_string()));
        spans
    }
}

fn attributes(of: &Value) -> BTreeMap<String, String> {
    let pairs = of["attributes"].as_array().unwrap().iter().map(|attribute| {
        let value = &attribute["value"];
        let text = value["stringValue"].as_str().or(value["intValue"].as_str()).unwrap();
        (attribute["key"].as_str().unwrap().to_owned(), text.to_owned())
    });
    pairs.collect()
}

async fn submit(api: &Api, id: &str, flags: &str, payload: Value) {
    let traceparent = format!("00-{TRACE}-{CLIENT}-{flags}");
    let body = json!({ "intentId": id, "submissionTarget": "attempts", "payload": payload }).to_string();
    let answer =
        api.call_with("POST", "/v1/intents?waitSeconds=30", &[("traceparent", traceparent.as_str())], body).await;
    assert!(answer.status.is_success(), "{}", answer.text());
}

#[actix::test]
async fn a_collector_gets_requests_and_attempts_of_sampled_traces() {
    let (site, gateway) = site();
    let collector = Collector::default();
    let mut command = site.command();
    command.env("SM_OTLP_ENDPOINT", collector.start()).env("SM_HOLDER_ID", "me");
    let mut instance = Instance::start(command);
    instance.wait_for_log("leader_ready");
    let api = instance.api();
    submit(&api, "a", "01", json!({ "simulate": "fail:1", "secret": "PLANTED-payload" })).await;
    submit(&api, "unsampled", "00", json!({})).await;
    api.submit("no trace", "once", json!({}), "?waitSeconds=30").await;
    api.until("/v1/intents/a", |answer| answer.json()["status"] == "accepted").await;
    // The remaining spans are exported before the process ends.
    instance.signal("TERM");
    let stopped = actix_web::rt::task::spawn_blocking(move || instance.wait());
    assert!(stopped.await.unwrap().success());

    let spans = collector.spans();
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "{spans:#?}");
    let [request, first, second] = spans.as_slice() else { panic!("{spans:#?}") };
    assert_eq!((&request["name"], &request["kind"]), (&json!("POST /v1/intents"), &json!(2)));
    assert_eq!(request["parentSpanId"], CLIENT);
    assert_eq!(attributes(request)["http.response.status_code"], "200");
    let by_key = |key: &str| {
        let entries = gateway.ledger.entries().into_iter().filter(|entry| entry.idempotency_key == key);
        entries.map(|entry| entry.traceparent).collect::<Vec<_>>()
    };
    let mut expected = Vec::new();
    for (attempt, number, outcome) in [(first, "1", "error"), (second, "2", "accepted")] {
        assert_eq!((&attempt["name"], &attempt["kind"]), (&json!("POST /sms/send"), &json!(3)));
        assert_eq!(attempt["parentSpanId"], request["spanId"], "attempts are part of the request that asked for them");
        let attributes = attributes(attempt);
        assert_eq!(
            (attributes["submission.attempt"].as_str(), attributes["submission.intent_id"].as_str()),
            (number, "a")
        );
        assert_eq!(attributes["submission.outcome"], outcome);
        expected.push(format!("00-{TRACE}-{}-01", attempt["spanId"].as_str().unwrap()));
    }
    assert_eq!(by_key("a"), expected, "the gateway's spans are part of their attempt");
    assert_eq!(first["status"]["code"], 2);
    assert_eq!(by_key("unsampled"), [format!("00-{TRACE}-{CLIENT}-00")], "passed on as it came");
    let taken = collector.0.lock().unwrap().clone();
    assert_eq!(attributes(&taken[0]["resourceSpans"][0]["resource"])["service.instance.id"], "me");
    assert!(!format!("{taken:?}").contains("PLANTED"), "nothing of payloads");
}

#[actix::test]
async fn jobs_belong_to_a_trace_even_if_their_client_sends_none() {
    let jobs = Jobs::new();
    let collector = Collector::default();
    let mut command = jobs.command();
    command.env("SM_OTLP_ENDPOINT", collector.start());
    let instance = Instance::start(command);
    let api = instance.api();
    let body = crate::jobs::command().to_string();
    let made = api.call_with("POST", "/v1/jobs", &[("Authorization", "Bearer acme")], body).await.json();
    let exported = "submission_spans_total{result=\"exported\"} 2";
    api.until("/metrics", |answer| answer.text().contains(exported)).await;
    let [request, attempt] = collector.spans().try_into().unwrap();
    assert_eq!((&request["name"], &attempt["name"]), (&json!("POST /v1/jobs"), &json!("POST /jobs/submit")));
    assert_eq!((&request["traceId"], &attempt["traceId"]), (&made["trace_id"], &made["trace_id"]));
    assert_eq!((&request["parentSpanId"], &attempt["parentSpanId"]), (&json!(""), &request["spanId"]));
}

#[actix::test]
async fn a_dead_collector_affects_nothing() {
    let (site, gateway) = site();
    let mut command = site.command();
    // No server listens there.
    command.env("SM_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let instance = Instance::start(command);
    let api = instance.api();
    submit(&api, "a", "01", json!({})).await;
    api.until("/metrics", |answer| answer.text().contains("submission_spans_total{result=\"failed\"} 2")).await;
    assert!(instance.wait_for_log("spans_not_exported").contains("cannot connect to the collector"));
    assert_eq!(gateway.ledger.len(), 1);
    assert_eq!(api.get("/readyz").await.status.as_u16(), 200);
    let wrong = site.command().arg("check").env("SM_OTLP_ENDPOINT", "collector:4318").output().unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && said.contains("SM_OTLP_ENDPOINT") && said.contains("--otlp-endpoint"), "{said}");
}
