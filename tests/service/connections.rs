//! How long connections are kept, and how many: no client can keep a connection for ever, or use all of them.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use actix_web::http::StatusCode;
use futures_util::future::{LocalBoxFuture, join_all};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::attack::connect;
use crate::support::{BINARY, Instance, PATIENCE, Site, site};

/// A connection that sends very little, to stay open.
struct Shape {
    name: &'static str,
    /// The bytes that it sends first.
    first: String,
    /// The bytes that it sends again and again.
    then: &'static str,
    /// The reason in the metrics, if the server closes the connection by force.
    reason: Option<&'static str>,
}

fn shapes() -> Vec<Shape> {
    let to = |path: &str, headers: &str| format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n");
    let large = format!("{}{}", to("/v1/intents", "Content-Length: 10000000"), "a".repeat(400_000));
    let chunked = to("/v1/intents", "Transfer-Encoding: chunked");
    let large_chunk = format!("{chunked}{:x}\r\n{}\r\n", 400_000, "a".repeat(400_000));
    let nowhere = to("/nowhere", "Transfer-Encoding: chunked");
    let whole = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    let shape = |name, first, then, reason| Shape { name, first, then, reason };
    vec![
        shape("nothing", String::new(), "", None),
        shape("a head that trickles", "GET /healthz HTTP/1.1\r\nX: ".to_owned(), "a", None),
        shape("empty lines", String::new(), "\r\n", None),
        shape("a second head that trickles", format!("{whole}GET /"), "a", Some("slow_head")),
        shape("chunks after a 404", nowhere.clone(), "1\r\na\r\n", Some("unread_body")),
        shape("nothing after a 404 to chunks", nowhere, "", Some("unread_body")),
        shape("a body after a 404", to("/nowhere", "Content-Length: 100000"), "a", None),
        shape("a body after a 413", large, "a", None),
        shape("chunks after a 413", large_chunk, "1\r\na\r\n", Some("unread_body")),
        shape("a body that trickles", to("/v1/intents", "Content-Length: 100000"), " ", None),
        shape("a chunk extension that does not end", format!("{chunked}1;"), "a", Some("unread_body")),
        shape("trailers that do not end", format!("{chunked}1\r\n{{\r\n0\r\n"), "X: a\r\n", Some("unread_body")),
        shape("a tunnel", "CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), "a", None),
        shape(
            "an upgrade",
            whole.replace("\r\n\r\n", "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
            "a",
            None,
        ),
    ]
}

/// Sends the bytes of a shape until the server has closed the connection.
async fn until_closed(shape: Shape, stream: impl AsyncRead + AsyncWrite) -> &'static str {
    let (mut reader, mut writer) = tokio::io::split(Box::pin(stream));
    let sending = async {
        let _refused = writer.write_all(shape.first.as_bytes()).await;
        let mut pace = tokio::time::interval(Duration::from_millis(500));
        loop {
            pace.tick().await;
            if writer.write_all(shape.then.as_bytes()).await.is_err() || writer.flush().await.is_err() {
                // The connection is closed, and the reader notices it too.
                std::future::pending::<()>().await;
            }
        }
    };
    let reading = async {
        let mut piece = vec![0; 64 * 1024];
        while let Ok(1..) = reader.read(&mut piece).await {}
    };
    let closed = async {
        tokio::select! { () = sending => {}, () = reading => {} }
    };
    tokio::time::timeout(PATIENCE, closed).await.unwrap_or_else(|_| panic!("{} is never closed", shape.name));
    shape.name
}

/// Sends requests and reads no answer, until the server closes the connection.
async fn never_reads(mut stream: TcpStream) -> &'static str {
    let requests = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let sending = async { while stream.write_all(requests.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, sending).await.expect("a client that never reads is never closed");
    "no reading"
}

fn closed(metrics: &str, reason: &str) -> u64 {
    let series = format!("submission_http_connections_closed_total{{reason=\"{reason}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

#[actix::test]
async fn every_connection_that_makes_no_progress_is_closed() {
    let (site, _gateway) = site();
    let (plain, encrypted) = (site.start(), site_with_tls());
    let tls = encrypted.connector.clone();
    let mut all: Vec<LocalBoxFuture<&str>> = vec![Box::pin(never_reads(connect(&plain).await))];
    for shape in shapes() {
        all.push(Box::pin(until_closed(shape, connect(&plain).await)));
    }
    // A handshake that never starts, and one that stops.
    for first in ["", "\u{16}\u{3}\u{1}"] {
        let shape = Shape { name: "no handshake", first: first.to_owned(), then: "", reason: None };
        all.push(Box::pin(until_closed(shape, encrypted.connect().await)));
    }
    for shape in shapes() {
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let stream = tls.connect(name, encrypted.connect().await).await.unwrap();
        all.push(Box::pin(until_closed(shape, stream)));
    }
    let serving = async {
        for number in 0..20 {
            let answer = plain.api().submit(&format!("a{number}"), "once", json!({}), "?waitSeconds=30").await;
            assert_eq!(answer.json()["status"], "accepted");
        }
    };
    tokio::join!(join_all(all), serving);
    let metrics = plain.api().get("/metrics").await.text();
    for reason in ["slow_head", "unread_body"] {
        let expected = shapes().iter().filter(|shape| shape.reason == Some(reason)).count();
        assert!(closed(&metrics, reason) >= expected.try_into().unwrap(), "{reason}: {metrics}");
    }
    assert_eq!(closed(&metrics, "slow_reader"), 1, "{metrics}");
}

/// An instance that serves https.
struct Encrypted {
    _site: Site,
    instance: Instance,
    connector: tokio_rustls::TlsConnector,
}

fn site_with_tls() -> Encrypted {
    let (site, _gateway) = site();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| site.directory.path().join(name));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut command = site.command();
    command.env("SM_TLS_CERT", &certificate).env("SM_TLS_KEY", &key);
    let instance = Instance::start(command);
    let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let tls = submission_manager::http_client::tls_config(Some(&certificate)).unwrap();
    Encrypted { _site: site, instance, connector: tls.into() }
}

impl Encrypted {
    async fn connect(&self) -> TcpStream {
        connect(&self.instance).await
    }
}

/// Runs the binary in a shell that first sets limits of open files.
fn limited(site: &Site, limits: &str) -> Command {
    limited_to(site, limits, "serve")
}

fn limited_to(site: &Site, limits: &str, what: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits}; exec {BINARY} {what}")]);
    site.settings(&mut command);
    command
}

#[actix::test]
async fn more_idle_connections_than_open_files_are_allowed_delay_no_client_and_no_attempt() {
    // The hard limit is as low, so it cannot be raised.
    let (site, gateway) = site();
    let mut command = limited(&site, "ulimit -n 1024");
    // As with a proxy in front: one address may have all connections.
    command.env("SM_MAX_CONNECTIONS_PER_ADDRESS", "10000");
    let instance = Instance::start(command);
    instance.wait_for_log("few_files limit=1024 wanted_connections=10000 connections=");
    instance.wait_for_log("leader_ready");
    // Fifty clients are connected already, and fifty connect when no more files can be opened.
    let clients: Vec<_> = (0..100).map(|_| instance.api()).collect();
    for client in &clients[..50] {
        assert_eq!(client.get("/healthz").await.status, StatusCode::OK);
    }
    let silent: Vec<_> = join_all((0..1200).map(|_| connect(&instance))).await;
    let calls = join_all(clients.iter().enumerate().map(|(number, client)| async move {
        let payload = json!({ "simulate": "slow:200" });
        client.submit(&format!("a{number}"), "once", payload, "?waitSeconds=30").await
    }));
    for answer in calls.await {
        assert_eq!((answer.status, &answer.json()["status"]), (StatusCode::OK, &json!("accepted")));
    }
    assert_eq!(gateway.ledger.len(), 100);
    let metrics = instance.api().get("/metrics").await.text();
    assert!(closed(&metrics, "replaced") > 0, "{metrics}");
    drop(silent);
}

#[actix::test]
async fn the_limit_of_open_files_is_raised_if_allowed_and_a_too_low_one_is_refused() {
    let (site, _gateway) = site();
    let instance = Instance::start(limited(&site, "ulimit -Sn 64"));
    let own = std::fs::read_to_string(format!("/proc/{}/limits", instance.pid())).unwrap();
    let line = own.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().skip(3);
    let (soft, hard) = (numbers.next().unwrap(), numbers.next().unwrap());
    assert!(soft == hard || soft == "1048576", "{line}");

    for command in ["serve", "check"] {
        let output = limited_to(&site, "ulimit -n 450", command).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("can open 450 files"), "{error}");
        assert!(error.contains("SM_MAX_IN_FLIGHT"), "{error}");
    }
    let fewer = Instance::start({
        let mut command = limited(&site, "ulimit -n 450");
        command.env("SM_MAX_IN_FLIGHT", "10");
        command
    });
    fewer.wait_for_log("few_files limit=450");
}

/// A connection from another address of the loopback.
async fn connect_from(address: [u8; 4], instance: &Instance) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::from(address), 0).into()).unwrap();
    socket.connect(instance.url.trim_start_matches("http://").parse().unwrap()).await.unwrap()
}

#[actix::test]
async fn one_address_has_a_limit_of_connections_and_replaces_its_own_idle_ones() {
    let (site, _gateway) = site();
    let mut command = site.command();
    command.env("SM_MAX_CONNECTIONS_PER_ADDRESS", "10");
    let instance = Instance::start(command);
    let ask = async |stream: &mut TcpStream, path: &str| {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap_or(0);
        String::from_utf8_lossy(&answer[..read]).into_owned()
    };
    let mut other = connect_from([127, 0, 0, 2], &instance).await;
    assert!(ask(&mut other, "/healthz").await.starts_with("HTTP/1.1 200"));
    // Ten idle connections, then twenty active ones: each is served, and the idle ones are closed for them.
    let mut quiet = join_all((0..10).map(|_| connect_from([127, 0, 0, 3], &instance))).await;
    let mut kept = Vec::new();
    for _ in 0..20 {
        let mut stream = connect_from([127, 0, 0, 3], &instance).await;
        assert!(ask(&mut stream, "/healthz").await.starts_with("HTTP/1.1 200"));
        kept.push(stream);
    }
    let mut byte = [0];
    for stream in &mut quiet {
        assert!(matches!(tokio::time::timeout(PATIENCE, stream.read(&mut byte)).await.unwrap(), Ok(0) | Err(_)));
    }
    // With ten requests under way, no further connection of this address is served, but those of other addresses are.
    let mut busy = join_all((0..10).map(|_| connect_from([127, 0, 0, 4], &instance))).await;
    for (number, stream) in busy.iter_mut().enumerate() {
        let body = json!({ "intentId": format!("b{number}"), "submissionTarget": "attempts", "payload": { "simulate": "hang" } });
        let head = "POST /v1/intents?waitSeconds=30 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        let body = body.to_string();
        stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
        instance.api().until(&format!("/v1/intents/b{number}"), |answer| answer.status.is_success()).await;
    }
    let mut refused = connect_from([127, 0, 0, 4], &instance).await;
    let mut text = String::new();
    let _reset = tokio::time::timeout(PATIENCE, refused.read_to_string(&mut text)).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("\"overloaded\""), "{text}");
    assert!(ask(&mut other, "/healthz").await.starts_with("HTTP/1.1 200"), "it was there all the time");
    let metrics = instance.api().get("/metrics").await.text();
    assert!(closed(&metrics, "refused") >= 1 && closed(&metrics, "replaced") >= 10, "{metrics}");
}
