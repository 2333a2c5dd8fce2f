//! Webhooks over real sockets: they are signed as the standard says, delivered in spite of `kill -9`, and every failure of a
//! receiver is recorded.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use actix_web::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};
use submission_manager::devtools::webhook_sink::{ReceivedEvent, Sink};
use submission_manager::domain::signature::Secret;
use submission_manager::domain::webhook::TryOutcome;
use submission_manager::engine::webhooks::WebhookRequest;
use submission_manager::engine::webhooks::sender::{HttpWebhookSender, WebhookSender};
use submission_manager::http_client::tls_config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Api, Instance, PATIENCE, Site, site};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const TOKEN: &str = "Bearer planted-token-4711";

fn sink() -> Sink {
    Sink::start(Secret::parse_list(SECRET).unwrap(), Box::new(|_| ())).unwrap()
}

/// Adds this webhook to every target of the site.
fn hook(site: &Site, webhook: &Value) {
    let text = std::fs::read_to_string(site.registry()).unwrap();
    let mut registry: Value = serde_json::from_str(&text).unwrap();
    for target in registry["targets"].as_array_mut().unwrap() {
        target["webhook"] = webhook.clone();
    }
    std::fs::write(site.registry(), registry.to_string()).unwrap();
}

fn command(site: &Site) -> Command {
    let mut command = site.command();
    command.env("HOOK_SECRET", SECRET).env("HOOK_TOKEN", TOKEN).env("RUST_LOG", "debug");
    command
}

async fn until_arrived(sink: &Sink, done: impl Fn(&[ReceivedEvent]) -> bool) -> Vec<ReceivedEvent> {
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    let looking = async {
        loop {
            pace.tick().await;
            let arrived = sink.arrived();
            if done(&arrived) {
                return arrived;
            }
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.expect("events arrive")
}

async fn until_delivered(api: &Api, id: &str) -> Value {
    let path = format!("/v1/intents/{id}/history");
    api.until(&path, |answer| answer.json()["webhook"]["status"] == "delivered").await.json()
}

#[actix::test]
async fn an_event_is_signed_and_shown_and_its_secrets_appear_nowhere() {
    let (site, _gateway) = site();
    let sink = sink();
    hook(
        &site,
        &json!({ "url": sink.url, "secretEnv": "HOOK_SECRET", "headers": { "X-Plain": "as it is" },
            "headersEnv": { "Authorization": "HOOK_TOKEN" } }),
    );
    let instance = Instance::start(command(&site));
    let api = instance.api();
    api.submit("told 1", "once", json!({ "simulate": "reject:invalid_recipient" }), "?waitSeconds=30").await;
    let arrived = until_arrived(&sink, |arrived| !arrived.is_empty()).await.remove(0);
    assert!(arrived.verified);
    let header = |name: &str| arrived.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!((header("x-plain"), header("authorization")), (Some("as it is"), Some(TOKEN)));
    assert_eq!(header("content-type"), Some("application/json"));
    let history = until_delivered(&api, "told%201").await;
    let body = &arrived.body;
    assert_eq!(body["intent"], history["intent"]);
    assert_eq!(
        (&body["eventType"], &body["occurredAt"]),
        (&json!("intent.terminal"), &history["intent"]["completedAt"])
    );
    assert_eq!((&body["eventId"], &history["webhook"]["eventId"]), (&json!(arrived.id), &json!(arrived.id)));
    assert_eq!(api.get("/v1/events").await.json()["events"], json!([body]), "the event feed has the same event");
    let tried = &history["webhook"]["tries"][0];
    assert_eq!((&tried["tryNumber"], &tried["httpStatus"], &tried["error"]), (&json!(1), &json!(204), &Value::Null));

    let again = api.call("POST", "/v1/intents/told%201/webhook/redeliver", "").await;
    assert_eq!((again.status, &again.json()["eventId"]), (StatusCode::ACCEPTED, &json!(arrived.id)));
    let both = until_arrived(&sink, |arrived| arrived.len() == 2).await;
    assert_eq!(both[0].id, both[1].id);
    assert!(both[1].verified);
    let redeliver = async |id: &str| api.call("POST", &format!("/v1/intents/{id}/webhook/redeliver"), "").await;
    assert_eq!(redeliver("nobody").await.error(), "not_found");
    api.submit("waits", "attempts", json!({ "simulate": "fail" }), "?waitSeconds=30").await;
    let early = redeliver("waits").await;
    assert_eq!((early.status, early.error()), (StatusCode::CONFLICT, "not_terminal".to_owned()));

    let fragment = api.call("POST", "/ui/history", "intentId=told+1").await.text();
    assert!(fragment.contains("<h2>Webhook</h2>"), "{fragment}");
    let metrics = api.get("/metrics").await.text();
    assert!(metrics.contains("submission_webhook_tries_total{result=\"delivered\"} "), "{metrics}");
    let mut seen = vec![fragment, metrics, instance.log_lines().join("\n"), api.get("/v1/intents").await.text()];
    seen.push(history.to_string());
    seen.push(std::fs::read_to_string(format!("/proc/{}/cmdline", instance.pid())).unwrap());
    if site.is_a_file() {
        for entry in std::fs::read_dir(site.database().parent().unwrap()).unwrap() {
            seen.push(String::from_utf8_lossy(&std::fs::read(entry.unwrap().path()).unwrap()).into_owned());
        }
    }
    for text in seen {
        assert!(!text.contains("planted-token") && !text.contains(&SECRET[6..]), "a secret shows in {text:.200}");
    }
}

/// The reference library checks the signature, not our own code.
#[actix::test]
async fn the_reference_library_verifies_our_signatures() {
    let (site, _gateway) = site();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    hook(&site, &json!({ "url": url, "secretEnv": "HOOK_SECRET" }));
    let mut command = command(&site);
    let other = Secret::text_of(&[9; 32]);
    command.env("HOOK_SECRET", format!("{other} {SECRET}"));
    let instance = Instance::start(command);
    instance.api().submit("a", "once", json!({}), "").await;
    let (mut socket, _) = tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let mut raw = Vec::new();
    let mut buffer = [0; 4096];
    let body_of = |raw: &[u8]| {
        let text = String::from_utf8(raw.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length: usize =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())?;
        (body.len() >= length).then(|| (head.to_owned(), body.to_owned()))
    };
    let (head, body) = loop {
        let read = socket.read(&mut buffer).await.unwrap();
        raw.extend_from_slice(&buffer[..read]);
        if let Some(whole) = body_of(&raw) {
            break whole;
        }
        assert!(read > 0, "the request broke off");
    };
    socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    let mut headers = http::HeaderMap::new();
    for line in head.lines().skip(1) {
        let (name, value) = line.split_once(": ").unwrap();
        headers.insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    for secret in [SECRET, &other] {
        standardwebhooks::Webhook::new(secret).unwrap().verify(body.as_bytes(), &headers).unwrap();
    }
    let wrong = standardwebhooks::Webhook::new(&Secret::text_of(&[1; 32])).unwrap();
    assert!(wrong.verify(body.as_bytes(), &headers).is_err());
}

#[actix::test]
async fn kill_minus_nine_between_outcome_and_delivery_loses_no_event() {
    let (site, _gateway) = site();
    let sink = sink();
    sink.answer_with(StatusCode::SERVICE_UNAVAILABLE);
    hook(&site, &json!({ "url": sink.url, "secretEnv": "HOOK_SECRET" }));
    let mut first = Instance::start(command(&site));
    first.wait_for_log("leader_ready");
    let api = first.api();
    let count = 200;
    let ids: Vec<_> = (0..count).map(|n| format!("event-{n}")).collect();
    futures_util::future::join_all(ids.iter().map(|id| api.submit(id, "once", json!({}), ""))).await;
    api.until_nothing_is_pending().await;
    until_arrived(&sink, |arrived| !arrived.is_empty()).await;
    first.kill();
    sink.answer_with(StatusCode::OK);
    let told_before = sink.arrived().len();

    let second = Instance::start(command(&site));
    let api = second.api();
    for id in &ids {
        until_delivered(&api, id).await;
    }
    let arrived = sink.arrived();
    let mut taken: HashMap<String, usize> = HashMap::new();
    for event in &arrived[told_before..] {
        assert!(event.verified);
        *taken.entry(event.body["intent"]["intentId"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(taken.len(), count, "exactly the events that are owed");
    let by_event: std::collections::HashSet<_> = arrived.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(by_event.len(), count, "an event keeps its id");
}

#[actix::test]
async fn a_missing_secret_keeps_the_service_from_starting() {
    let (site, _gateway) = site();
    hook(&site, &json!({ "url": "https://shop.example", "secretEnv": "HOOK_SECRET" }));
    for name in ["check", "serve"] {
        let output = site.command().arg(name).env_remove("HOOK_SECRET").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(
            said.contains("targets[0].webhook.secretEnv: the environment variable HOOK_SECRET is not set"),
            "{said}"
        );
        assert!(said.contains("targets[2].webhook.secretEnv"), "all faults at once: {said}");
    }
    let output = site.command().arg("check").env("HOOK_SECRET", "whsec_dG9vIHNob3J0").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("holds a secret of 9 bytes") && !said.contains("dG9vIHNob3J0"), "{said}");
}

const TIMEOUT: Duration = Duration::from_millis(400);

async fn deliver(url: &str) -> TryOutcome {
    let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let courier = HttpWebhookSender::new(TIMEOUT, tls_config(None).unwrap());
    let headers = vec![("webhook-id".to_owned(), "evt_1".to_owned())];
    let secrets = vec!["t0ken".to_owned()];
    let body = Bytes::from_static(b"{}");
    courier.deliver(&WebhookRequest { url: url.to_owned(), headers, secrets, body }).await.unwrap()
}

/// A server that answers a request with `answer` and then with `endless` again and again, until the other side closes the
/// connection.
async fn raw_server(answer: &'static str, endless: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    actix::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _read = socket.read(&mut request).await;
            let _client_may_be_gone = socket.write_all(answer.as_bytes()).await;
            while !endless.is_empty() && socket.write_all(endless.as_bytes()).await.is_ok() {}
            let _until_closed = socket.read(&mut request).await;
        }
    });
    url
}

#[actix::test]
async fn failures_of_receivers_are_recorded_with_their_cause() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}/hook", listener.local_addr().unwrap())
    };
    let chunk: &'static str = Box::leak(format!("400\r\n{}\r\n", " ".repeat(1024)).into_boxed_str());
    let cases = [
        ("well", raw_server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "").await, Some(200), None, ""),
        ("slow", raw_server("", "").await, None, None, "outcome unknown: timed out: no complete answer within 400ms"),
        (
            "redirect",
            raw_server("HTTP/1.1 302 Found\r\nLocation: http://elsewhere.test/\r\nContent-Length: 0\r\n\r\n", "").await,
            Some(302),
            None,
            "answered with a redirect, which is not followed: http://elsewhere.test/",
        ),
        (
            "body without end",
            raw_server("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk).await,
            Some(200),
            None,
            "answered with more than 65536 bytes, which were not read",
        ),
        (
            "body that stops",
            raw_server("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "").await,
            Some(200),
            None,
            "answered with a body that did not end within 400ms",
        ),
        (
            "busy",
            raw_server("HTTP/1.1 503 Busy\r\nRetry-After: 120\r\nContent-Length: 4\r\n\r\nbusy", "").await,
            Some(503),
            Some(120),
            "answered HTTP 503: busy",
        ),
        (
            "echo",
            raw_server("HTTP/1.1 410 Gone\r\nContent-Length: 16\r\n\r\nyou said: T0KEN!", "").await,
            Some(410),
            None,
            "answered HTTP 410: you said: …!",
        ),
        ("refused", closed, None, None, "not sent: cannot connect to the receiver: "),
        (
            "unknown",
            "http://no-such-host.invalid/".to_owned(),
            None,
            None,
            "not sent: cannot find the receiver's host: ",
        ),
        (
            "no TLS",
            raw_server("HTTP/1.1 400 Bad\r\n\r\n", "").await.replace("http:", "https:"),
            None,
            None,
            "not sent: TLS with the receiver failed: ",
        ),
        (
            "no HTTP",
            raw_server("SSH-2.0-OpenSSH\r\n\r\n", "").await,
            None,
            None,
            "outcome unknown: receiver's answer is not HTTP: ",
        ),
    ];
    for (name, url, status, retry_after, said) in cases {
        let outcome = deliver(&url).await;
        assert_eq!(outcome.http_status(), status, "{name}: {outcome:?}");
        assert!(outcome.error().unwrap_or_default().starts_with(said), "{name}: {outcome:?}");
        assert_eq!(outcome.error().is_none(), said.is_empty(), "{name}: {outcome:?}");
        if let TryOutcome::Answered { retry_after: asked, .. } = outcome {
            assert_eq!(asked.map(|span| span.as_secs()), retry_after, "{name}");
        }
    }
}

/// The certificate of the receiver is signed by no trusted authority.
#[actix::test]
async fn a_certificate_that_is_not_trusted_is_a_tls_error() {
    let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let server = actix_web::HttpServer::new(actix_web::App::new)
        .workers(1)
        .disable_signals()
        .bind_rustls_0_23(("127.0.0.1", 0), config)
        .unwrap();
    let port = server.addrs()[0].port();
    let server = server.run();
    let handle = server.handle();
    actix::spawn(server);
    let outcome = deliver(&format!("https://localhost:{port}/hook")).await;
    assert!(outcome.error().unwrap().starts_with("not sent: TLS with the receiver failed: "), "{outcome:?}");
    handle.stop(false).await;
}
