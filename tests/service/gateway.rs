//! The real gateway client against real sockets that misbehave: each case ends as an attempt error whose text tells an
//! operator what happened.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use bytes::Bytes;
use serde_json::json;
use submission_manager::devtools::stand_in_gateway::StandIn;
use submission_manager::domain::contract::Contract;
use submission_manager::domain::intent::{IntentId, IntentSeq};
use submission_manager::domain::outcome::Outcome;
use submission_manager::domain::time::Timestamp;
use submission_manager::gateway::Gateway;
use submission_manager::gateway::client::HttpGateway;
use submission_manager::http_client::tls_config;
use submission_manager::store::OpenAttempt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const TIMEOUT: Duration = Duration::from_millis(400);

fn gateway(ca: Option<&std::path::Path>) -> HttpGateway {
    let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    HttpGateway::new(TIMEOUT, tls_config(ca).unwrap())
}

fn attempt(url: &str) -> OpenAttempt {
    let contract: Contract = serde_json::from_value(json!({
        "submissionTarget": "t", "gatewayType": "sms", "gatewayUrl": url, "policy": "one_shot",
        "terminalOutcomes": ["invalid_recipient"],
    }))
    .unwrap();
    OpenAttempt {
        seq: IntentSeq(1),
        intent_id: IntentId::parse("id").unwrap(),
        contract: Arc::new(contract),
        begins_at: Timestamp::from_micros(0),
        attempt_number: 1,
        lease_epoch: 1,
        started_at: Timestamp::from_micros(0),
        idempotency_key: None,
        trace: None,
        job: None,
    }
}

async fn call(gateway: &HttpGateway, url: &str, payload: &str) -> Outcome {
    gateway.attempt(&attempt(url), Bytes::copy_from_slice(payload.as_bytes()), TIMEOUT).await.unwrap()
}

/// Reads the body, as a server that keeps its connections does.
async fn accept(_body: Bytes) -> HttpResponse {
    HttpResponse::Ok().json(json!({ "status": "accepted" }))
}

fn accepted() -> Outcome {
    Outcome::Accepted { gateway_message_id: None }
}

async fn error(url: &str, payload: &str) -> String {
    match call(&gateway(None), url, payload).await {
        Outcome::Error { text, .. } => text,
        other => panic!("{url} {payload}: {other:?}"),
    }
}

/// A server that reads a request and answers each connection with these bytes, then closes it.
async fn raw_server(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    actix::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _read = socket.read(&mut request).await;
            let _client_may_be_gone = socket.write_all(answer).await;
        }
    });
    url
}

#[actix::test]
async fn errors_of_a_stand_in_gateway_become_attempt_errors() {
    let standin = StandIn::start(true).unwrap();
    for (wish, expected) in [
        ("fail", "gateway answered HTTP 500: simulated failure"),
        ("hang", "outcome unknown: timed out: no complete answer within 400ms"),
        ("lie", "gateway answered with unknown status \"definitely\""),
        ("garbage", "gateway's answer is not the expected JSON"),
        ("redirect", "gateway answered HTTP 302"),
        ("flood", "outcome unknown: gateway answered HTTP 200 with more than 65536 bytes, which were not read"),
    ] {
        let text = error(&standin.url, &json!({ "simulate": wish }).to_string()).await;
        assert!(text.starts_with(expected), "{wish}: {text}");
    }
    assert_eq!(standin.ledger.len(), 6, "each was sent once, and a redirect was not followed");
}

#[actix::test]
async fn errors_of_sockets_become_attempt_errors() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let short = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"status\":".as_slice();
    let endless = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n".as_slice();
    let cases = [
        (closed, "not sent: cannot connect to the gateway: "),
        ("http://no-such-host.invalid".to_owned(), "not sent: cannot find the gateway's host: "),
        (raw_server(b"").await, "outcome unknown: connection lost after sending: "),
        (raw_server(b"SSH-2.0-OpenSSH\r\n\r\n").await, "outcome unknown: gateway's answer is not HTTP: "),
        (
            raw_server(short).await,
            "outcome unknown: gateway answered HTTP 200 with a body that broke off after 10 bytes",
        ),
        (
            raw_server(endless).await,
            "outcome unknown: gateway answered HTTP 200 with a body that broke off after 0 bytes",
        ),
        (raw_server(b"HTTP/1.1 204 No Content\r\n\r\n").await, "gateway answered with an empty body"),
    ];
    for (url, expected) in cases {
        let text = error(&url, "{}").await;
        assert!(text.starts_with(expected) && !text.is_empty(), "{url}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[actix::test]
async fn a_slow_answer_is_cut_off_by_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    actix::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n").await.unwrap();
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        while socket.write_all(b" ").await.is_ok() {
            pace.tick().await;
        }
    });
    assert_eq!(error(&url, "{}").await, "outcome unknown: timed out: no complete answer within 400ms");
}

#[actix::test]
async fn connections_are_reused() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let server = HttpServer::new(|| App::new().route("/sms/send", web::post().to(accept)))
        .workers(1)
        .on_connect(move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .bind("127.0.0.1:0")
        .unwrap();
    let url = format!("http://{}", server.addrs()[0]);
    actix::spawn(server.run());
    let gateway = gateway(None);
    for _ in 0..20 {
        assert_eq!(call(&gateway, &url, "{}").await, accepted());
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[actix::test]
async fn https_is_verified() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut pem = tempfile::NamedTempFile::new().unwrap();
    pem.write_all(issued.cert.pem().as_bytes()).unwrap();
    let trusting = gateway(Some(pem.path()));
    let key = rustls::pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let server = HttpServer::new(|| App::new().route("/sms/send", web::post().to(accept)))
        .workers(1)
        .on_connect(move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .bind_rustls_0_23("127.0.0.1:0", tls)
        .unwrap();
    let port = server.addrs()[0].port();
    actix::spawn(server.run());
    let url = format!("https://localhost:{port}");
    for _ in 0..5 {
        assert_eq!(call(&trusting, &url, "{}").await, accepted());
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1, "TLS connections are used again too");
    let text = error(&url, "{}").await;
    assert!(text.starts_with("not sent: TLS with the gateway failed: "), "an unknown issuer is refused: {text}");
    let plain = error(&format!("http://localhost:{port}"), "{}").await;
    assert!(plain.starts_with("outcome unknown: "), "{plain}");
}
