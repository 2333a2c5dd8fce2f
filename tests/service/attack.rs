//! Malicious requests: ambiguous framing, endless parts, abuse of keep-alive. None is answered as two requests, none keeps a
//! connection for ever, and each refusal has the usual format of errors.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{Instance, PATIENCE, site};

pub(crate) async fn connect(instance: &Instance) -> TcpStream {
    TcpStream::connect(instance.url.trim_start_matches("http://")).await.unwrap()
}

/// Returns everything that the server sends until it closes the connection.
pub(crate) async fn rest(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        let mut piece = [0; 4096];
        // A reset ends the connection too.
        while let Ok(1..) = stream.read(&mut piece).await.inspect(|read| bytes.extend_from_slice(&piece[..*read])) {}
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("the server closes it");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends bytes and returns all that comes back until the server closes.
async fn answer_to(instance: &Instance, request: &str) -> String {
    let mut stream = connect(instance).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    rest(&mut stream).await
}

/// Asserts that there is only one answer, and returns its status, headers and JSON.
fn only_error(text: &str) -> (u16, String, Value) {
    assert_eq!(text.matches("HTTP/1.").count(), 1, "{text}");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let json: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(head.contains("content-type: application/json"), "{text}");
    assert!(head.contains("connection: close"), "{text}");
    assert!(!json["error"]["message"].as_str().unwrap().is_empty(), "{text}");
    (status, json["error"]["code"].as_str().unwrap().to_owned(), json)
}

/// Returns a request with these framing headers and this body.
fn post(headers: &str, body: &str) -> String {
    format!("POST /v1/intents HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}")
}

/// The request that an attacker would smuggle.
const INNER: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[actix::test]
async fn ambiguous_and_malformed_requests_are_refused_once_in_json_and_the_connection_is_closed() {
    let (site, _gateway) = site();
    let instance = site.start();
    let get = |rest: &str| format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n");
    let many: String = (0..200).map(|number| format!("X-{number}: 1\r\n")).collect();
    let cases = [
        (
            "both lengths",
            400,
            post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", &format!("0\r\n\r\n{INNER}")),
        ),
        (
            "both lengths, turned",
            400,
            post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", &format!("0\r\n\r\n{INNER}")),
        ),
        ("two lengths", 400, post("Content-Length: 0\r\nContent-Length: 44\r\n", INNER)),
        ("two equal lengths", 400, post("Content-Length: 2\r\nContent-Length: 2\r\n", &format!("{{}}{INNER}"))),
        ("a list of lengths", 400, post("Content-Length: 2, 2\r\n", &format!("{{}}{INNER}"))),
        ("a signed length", 400, post("Content-Length: +2\r\n", &format!("{{}}{INNER}"))),
        ("a negative length", 400, post("Content-Length: -1\r\n", INNER)),
        ("a huge length", 400, post("Content-Length: 99999999999999999999999\r\n", INNER)),
        ("two encodings", 400, post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", INNER)),
        ("a list of encodings", 400, post("Transfer-Encoding: gzip, chunked\r\n", &format!("0\r\n\r\n{INNER}"))),
        ("an unknown encoding", 400, post("Transfer-Encoding: xchunked\r\n", &format!("0\r\n\r\n{INNER}"))),
        ("a hidden encoding", 400, post("Transfer-Encoding: \u{b}chunked\r\n", &format!("0\r\n\r\n{INNER}"))),
        ("encoding in 1.0", 400, "POST /v1/intents HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned()),
        ("a space before the colon", 400, get(&format!("Content-Length : {}\r\n", INNER.len()))),
        ("a folded header", 400, get("X: a\r\n Transfer-Encoding: chunked\r\n")),
        ("a bare CR in a header", 400, get("X: a\rb\r\n")),
        ("a NUL in a header", 400, get("X: a\0b\r\n")),
        ("no host", 400, "GET /healthz HTTP/1.1\r\n\r\n".to_owned()),
        ("two hosts", 400, get("Host: y\r\n")),
        ("HTTP/2", 400, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        ("HTTP/1.2", 400, "GET /healthz HTTP/1.2\r\nHost: localhost\r\n\r\n".to_owned()),
        ("TLS on a plain port", 400, "\u{16}\u{3}\u{1}\0\u{1}\r\n\r\n".to_owned()),
        ("a NUL in the path", 400, "GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned()),
        ("no version", 400, "GET /healthz\r\n\r\n".to_owned()),
        ("a bad chunk size", 400, post("Transfer-Encoding: chunked\r\n", &format!("zz\r\n{INNER}"))),
        ("a negative chunk size", 400, post("Transfer-Encoding: chunked\r\n", &format!("-1\r\n{INNER}"))),
        (
            "a chunk size that overflows",
            400,
            post("Transfer-Encoding: chunked\r\n", &format!("10000000000000000\r\n{INNER}")),
        ),
        (
            "a chunk that is longer than it says",
            400,
            post("Transfer-Encoding: chunked\r\n", &format!("1\r\n{{}}\r\n0\r\n\r\n{INNER}")),
        ),
        ("too many headers", 431, get(&many)),
        ("a header that is too large", 431, get(&format!("X: {}", "a".repeat(140_000)))),
        (
            "an upgrade that nobody offers",
            400,
            post("Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n", "{}"),
        ),
        ("a tunnel", 404, "CONNECT other.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned()),
        ("everything", 404, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned()),
        (
            "a mirror",
            405,
            "TRACE /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: secret\r\n\r\n".to_owned(),
        ),
    ];
    for (name, expected, request) in &cases {
        let mut stream = connect(&instance).await;
        // The server may refuse it before it is complete.
        let _all_of_it = stream.write_all(request.as_bytes()).await;
        let _half_closed = stream.shutdown().await;
        let text = rest(&mut stream).await;
        let (status, code, _) = only_error(&text);
        assert_eq!(status, *expected, "{name}: {text}");
        let codes = match status {
            404 => "not_found",
            405 => "method_not_allowed",
            431 => "headers_too_large",
            _ => "invalid_request",
        };
        assert_eq!(code, codes, "{name}: {text}");
        assert!(!text.contains("secret"), "{name}: {text}");
    }
    assert_eq!(instance.api().get("/healthz").await.status.as_u16(), 200);
}

#[actix::test]
async fn pipelined_requests_are_answered_in_order_and_an_invalid_one_only_stops_later_ones() {
    let (site, _gateway) = site();
    let instance = site.start();
    let submit = |number: usize| {
        let body = json!({ "intentId": format!("p{number}"), "submissionTarget": "once" }).to_string();
        // Every other request has chunks with an extension and a trailer, which are ignored.
        if number.is_multiple_of(2) {
            post(&format!("Content-Length: {}\r\n", body.len()), &body)
        } else {
            let chunks = format!("{:x};extension=\"1\"\r\n{body}\r\n0\r\nX-Trailer: 1\r\n\r\n", body.len());
            post("Transfer-Encoding: chunked\r\n", &chunks)
        }
    };
    let all: String = (0..40).map(submit).collect();
    let text = answer_to(&instance, &format!("{all}GARBAGE\r\n\r\n")).await;
    let answers: Vec<_> = text.split("HTTP/1.1 ").skip(1).collect();
    assert_eq!(answers.len(), 41, "{text}");
    for (number, answer) in answers[..40].iter().enumerate() {
        assert!(answer.starts_with("200 ") && answer.contains(&format!("\"p{number}\"")), "{answer}");
    }
    assert!(answers[40].starts_with("400 ") && answers[40].contains("invalid_request"), "{}", answers[40]);
}

#[actix::test]
async fn half_closed_connections_and_clients_that_expect_100_continue_are_answered() {
    let (site, _gateway) = site();
    let instance = site.start();
    let body = json!({ "intentId": "half", "submissionTarget": "once" }).to_string();
    let mut stream = connect(&instance).await;
    stream.write_all(post(&format!("Content-Length: {}\r\n", body.len()), &body).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let text = rest(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\"half\""), "{text}");

    // A body that ends with the connection is not complete.
    let mut stream = connect(&instance).await;
    stream.write_all(post("Content-Length: 1000\r\n", &body).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let (status, code, _) = only_error(&rest(&mut stream).await);
    assert_eq!((status, code.as_str()), (400, "invalid_request"));

    let body = body.replace("half", "leave");
    let headers = format!("Expect: 100-continue\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    let mut stream = connect(&instance).await;
    stream.write_all(post(&headers, "").as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut go_on)).await.unwrap().unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).await.unwrap();
    let text = rest(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\"leave\""), "{text}");
}

/// A connection with a small receive buffer, so that few bytes are in transit.
async fn connect_narrow(instance: &Instance) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(instance.url.trim_start_matches("http://").parse().unwrap()).await.unwrap()
}

#[actix::test]
async fn the_server_stops_reading_from_a_client_that_does_not_read() {
    // Answers of 200 bytes, together more than twice the buffers of the kernel.
    const TOO_MANY: u64 = 100_000;
    let (site, _gateway) = site();
    let instance = site.start();
    let mut stream = connect_narrow(&instance).await;
    // A redirect has no body, and actix does not limit how many such answers wait to be written.
    let requests = "GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
    let sending = async { while stream.write_all(requests.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, sending).await.expect("the server closes it");
    let metrics = instance.api().get("/metrics").await.text();
    let series = "submission_http_requests_total{route=\"/docs\",status_class=\"3xx\"} ";
    let handled: u64 = metrics.lines().find_map(|line| line.strip_prefix(series)).unwrap().parse().unwrap();
    assert!(handled < TOO_MANY, "{handled} requests were handled, and not one answer was read");
}

#[actix::test]
async fn answers_continue_when_a_slow_client_reads_again() {
    let (site, _gateway) = site();
    let instance = site.start();
    const ASKED: usize = 200;
    let (mut reader, mut writer) = connect_narrow(&instance).await.into_split();
    // Far more than the buffers of both sides.
    let requests = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(ASKED - 1);
    let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    writer.write_all(format!("{requests}{last}").as_bytes()).await.unwrap();
    instance.api().until("/healthz", |answer| answer.status.is_success()).await;
    let text = rest(&mut reader).await;
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), ASKED);
}
