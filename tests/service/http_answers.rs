//! All kinds of HTTP/1.1 answers, from servers that write every byte themselves: the outcome of the attempt, and whether its
//! connection is used for another request.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use submission_manager::domain::contract::Contract;
use submission_manager::domain::intent::{IntentId, IntentSeq};
use submission_manager::domain::outcome::{Contact, Outcome};
use submission_manager::domain::time::Timestamp;
use submission_manager::domain::webhook::TryOutcome;
use submission_manager::engine::webhooks::WebhookRequest;
use submission_manager::engine::webhooks::sender::{HttpWebhookSender, WebhookSender};
use submission_manager::gateway::Gateway;
use submission_manager::gateway::client::HttpGateway;
use submission_manager::http_client::tls_config;
use submission_manager::platform::errors::full_text;
use submission_manager::store::OpenAttempt;
use submission_manager::telemetry::metrics::Metrics;
use tokio::net::TcpListener;

use crate::raw_server::{Server, Step, send, whole};
use crate::support::Site;

/// Longer than any answer here takes.
const LONG: Duration = Duration::from_secs(30);
/// The timeout for answers that never come.
const SHORT: Duration = Duration::from_millis(300);

fn answer(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn acceptance(id: &str) -> String {
    answer(&json!({ "status": "accepted", "gatewayMessageId": id }).to_string())
}

fn accepted(id: &str) -> Outcome {
    Outcome::Accepted { gateway_message_id: Some(id.to_owned()) }
}

fn gateway() -> HttpGateway {
    let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    HttpGateway::new(LONG, tls_config(None).unwrap())
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

async fn call_with(gateway: &HttpGateway, url: &str, payload: Bytes, timeout: Duration) -> Outcome {
    gateway.attempt(&attempt(url), payload, timeout).await.unwrap()
}

async fn call(gateway: &HttpGateway, url: &str) -> Outcome {
    call_with(gateway, url, Bytes::from_static(b"{}"), LONG).await
}

/// More than the buffers of both sockets hold.
fn large_payload() -> Bytes {
    Bytes::from(vec![b' '; 32 * 1024 * 1024])
}

/// How an attempt must end.
enum End {
    Accepted,
    Error(Contact, &'static str),
}

#[actix::test]
async fn each_answer_belongs_to_its_request() {
    use Contact::{Answered, Unknown};
    use End::{Accepted, Error};
    use Step::{Close, Gap, Hang, Read, Reset};
    let interim = |text: &str| format!("HTTP/1.1 {text}\r\n\r\n");
    let long_header = format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\n", "x".repeat(200_000));
    let many_headers = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X-One: 1\r\n".repeat(200));
    let body = json!({ "status": "accepted", "gatewayMessageId": "first" }).to_string();
    let size = body.len();
    let chunks = format!("5\r\n{}\r\n{:x}\r\n{}\r\n", &body[..5], size - 5, &body[5..]);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n";
    let final_answer = || send(acceptance("first"));
    // Name, what the server does, the expected outcome, and whether the connection is used for the next request.
    let cases: Vec<(&str, Vec<Step>, End, bool)> = vec![
        ("plain", vec![Read, final_answer()], Accepted, true),
        ("100 in one segment", vec![Read, send(interim("100 Continue") + &acceptance("first"))], Accepted, true),
        ("103 apart", vec![Read, send(interim("103 Early Hints")), Gap, final_answer()], Accepted, true),
        (
            "several interim",
            vec![
                Read,
                send(interim("100 Continue") + &interim("102 Processing\r\nX: y")),
                Gap,
                send(interim("103 Early Hints\r\nLink: </x>")),
                Gap,
                send(interim("199 Odd") + &acceptance("first")),
            ],
            Accepted,
            true,
        ),
        (
            "interim and nothing else",
            vec![Read, send(interim("100 Continue")), Close],
            Error(Unknown, "connection lost after sending: "),
            false,
        ),
        (
            "101",
            vec![Read, send(interim("101 Switching Protocols\r\nUpgrade: x")), Hang],
            Error(Unknown, "gateway answered HTTP 101"),
            false,
        ),
        ("bytes after it", vec![Read, send(acceptance("first") + "\r\n")], Accepted, false),
        ("a second answer after it", vec![Read, send(acceptance("first") + &acceptance("stray"))], Accepted, false),
        ("closed without an answer", vec![Read, Close], Error(Unknown, "connection lost after sending: "), false),
        ("reset", vec![Read, Reset], Error(Unknown, "connection lost after sending: "), false),
        (
            "not HTTP",
            vec![Read, send("SSH-2.0-OpenSSH\r\n\r\n"), Hang],
            Error(Unknown, "gateway's answer is not HTTP: "),
            false,
        ),
        (
            "HTTP/2",
            vec![Read, send("HTTP/2 200 OK\r\n\r\n"), Hang],
            Error(Unknown, "gateway's answer is not HTTP: "),
            false,
        ),
        ("chunked", vec![Read, send(format!("{chunked}\r\n{chunks}0\r\n\r\n"))], Accepted, true),
        (
            "chunked with trailers",
            vec![Read, send(format!("{chunked}Trailer: X\r\n\r\n{chunks}0\r\nX: y\r\n\r\n"))],
            Accepted,
            true,
        ),
        (
            "chunked and apart",
            vec![Read, send(format!("{chunked}\r\n")), Gap, send(chunks.clone()), Gap, send("0\r\n\r\n")],
            Accepted,
            true,
        ),
        (
            "chunked and cut",
            vec![Read, send(format!("{chunked}\r\n{chunks}")), Close],
            Error(Unknown, "gateway answered HTTP 200 with a body that broke off after "),
            false,
        ),
        (
            "bad chunk",
            vec![Read, send(format!("{chunked}\r\nxyz\r\n")), Hang],
            Error(Unknown, "gateway answered HTTP 200 with a body that broke off after 0 bytes"),
            false,
        ),
        (
            "length and chunks",
            vec![Read, send(format!("{chunked}Content-Length: {size}\r\n\r\n{chunks}0\r\n\r\n"))],
            Accepted,
            false,
        ),
        (
            "bad length",
            vec![Read, send(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}x\r\n\r\n{body}")), Hang],
            Error(Unknown, "gateway's answer is not HTTP: "),
            false,
        ),
        (
            "two lengths",
            vec![
                Read,
                send(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nContent-Length: 2\r\n\r\n{body}")),
                Hang,
            ],
            Error(Unknown, "gateway's answer is not HTTP: "),
            false,
        ),
        (
            "a length that is too long",
            vec![Read, send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", size + 1)), Close],
            Error(Unknown, "gateway answered HTTP 200 with a body that broke off after "),
            false,
        ),
        (
            "a length that is too short",
            vec![Read, send(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{body}")), Hang],
            Error(Answered, "gateway's answer is not the expected JSON"),
            false,
        ),
        (
            "HTTP/1.0",
            vec![Read, send(format!("HTTP/1.0 200 OK\r\nContent-Length: {size}\r\n\r\n{body}"))],
            Accepted,
            false,
        ),
        (
            "HTTP/1.0 with keep-alive",
            vec![
                Read,
                send(format!("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: {size}\r\n\r\n{body}")),
            ],
            Accepted,
            false,
        ),
        (
            "Connection: close",
            vec![
                Read,
                send(format!(
                    "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nConnection: keep-alive\r\nContent-Length: {size}\r\n\r\n{body}"
                )),
            ],
            Accepted,
            false,
        ),
        ("until it closes", vec![Read, send(format!("HTTP/1.1 200 OK\r\n\r\n{body}")), Close], Accepted, false),
        (
            "204",
            vec![Read, send("HTTP/1.1 204 No Content\r\n\r\n")],
            Error(Answered, "gateway answered with an empty body"),
            true,
        ),
        (
            "500",
            vec![Read, send("HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops")],
            Error(Answered, "gateway answered HTTP 500: oops"),
            true,
        ),
        (
            "500 and cut",
            vec![Read, send("HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\noops"), Close],
            Error(Answered, "gateway answered HTTP 500 with a body that broke off after 4 bytes"),
            false,
        ),
        ("long header", vec![Read, send(long_header), Hang], Error(Unknown, "gateway's answer is not HTTP: "), false),
        ("many headers", vec![Read, send(many_headers), Hang], Error(Unknown, "gateway's answer is not HTTP: "), false),
        (
            "long body",
            vec![Read, send(format!("HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n{}", " ".repeat(70_000))), Hang],
            Error(Unknown, "gateway answered HTTP 200 with more than 65536 bytes"),
            false,
        ),
        ("closed right after it", vec![Read, final_answer(), Close], Accepted, false),
    ];
    for (name, steps, end, reused) in cases {
        let server = Server::start(vec![steps, vec![Read, send(acceptance("second"))]]).await;
        let gateway = gateway();
        let first = call(&gateway, &server.url).await;
        match end {
            Accepted => assert_eq!(first, accepted("first"), "{name}"),
            Error(contact, text) => {
                assert_eq!(first.contact(), contact, "{name}: {first:?}");
                let expected = format!("{}{text}", contact.prefix());
                assert!(first.error_text().is_some_and(|text| text.starts_with(&expected)), "{name}: {first:?}");
                assert_eq!(first.error_text().map(Contact::of_text), Some(contact), "{name}: it is known again");
            }
        }
        if name == "closed right after it" {
            // Only then the end of the connection has surely arrived here.
            server.until_closed().await;
        }
        assert_eq!(call(&gateway, &server.url).await, accepted("second"), "{name}: the next one");
        assert_eq!(server.connections(), [1, if reused { 1 } else { 2 }], "{name}: connections");
    }
}

#[actix::test]
async fn an_answer_that_does_not_end_has_an_unknown_outcome() {
    use Step::{Hang, Read};
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{";
    let slow = std::iter::repeat_n([send(" "), Step::Gap], 100).flatten();
    let slow = [Read, send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")].into_iter().chain(slow).chain([Hang]);
    let cases = [
        ("nothing", vec![Read, Hang]),
        ("half a head", vec![Read, send("HTTP/1.1 200 OK\r\nX: "), Hang]),
        ("interim only", vec![Read, send("HTTP/1.1 100 Continue\r\n\r\n"), Hang]),
        ("half a body", vec![Read, send(half), Hang]),
        ("a body that trickles", slow.collect()),
    ];
    for (name, steps) in cases {
        let server = Server::start(vec![steps, vec![Read, send(acceptance("second"))]]).await;
        let gateway = gateway();
        let first = call_with(&gateway, &server.url, Bytes::from_static(b"{}"), SHORT).await;
        assert_eq!(first, Outcome::unknown("timed out: no complete answer within 300ms"), "{name}");
        assert_eq!(first.contact(), Contact::Unknown, "{name}");
        assert_eq!(call(&gateway, &server.url).await, accepted("second"), "{name}");
        assert_eq!(server.connections(), [1, 2], "{name}");
    }
}

#[actix::test]
async fn an_answer_without_a_request_belongs_to_no_request() {
    use Step::Read;
    for stray in
        ["HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", "\r\n", "HTTP/1.1 103 Early Hints\r\n\r\n"]
    {
        let scripts = vec![vec![Read, send(acceptance("first"))], vec![Read, send(acceptance("second"))]];
        let server = Server::start(scripts).await;
        let gateway = gateway();
        assert_eq!(call(&gateway, &server.url).await, accepted("first"));
        server.send_unsolicited(stray).await;
        assert_eq!(call(&gateway, &server.url).await, accepted("second"), "{stray:?}");
        assert_eq!(server.connections(), [1, 2], "{stray:?}");
    }
}

/// The server runs in a thread of its own, and this thread blocks until it is done. So the runtime cannot have noticed that
/// something arrived; only the operating system knows.
#[actix::test]
async fn bytes_that_arrived_before_the_request_are_seen_before_the_runtime_reports_them() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let respond = |id: &str| {
            let (mut socket, _) = listener.accept().unwrap();
            let mut read = Vec::new();
            while !whole(&read) {
                let mut part = [0; 4096];
                let length = socket.read(&mut part).unwrap();
                read.extend_from_slice(&part[..length]);
            }
            socket.write_all(acceptance(id).as_bytes()).unwrap();
            socket
        };
        let mut first = respond("first");
        asked.recv().unwrap();
        first.write_all(acceptance("stray").as_bytes()).unwrap();
        tell.send(()).unwrap();
        respond("second")
    });
    let gateway = gateway();
    assert_eq!(call(&gateway, &url).await, accepted("first"));
    ask.send(()).unwrap();
    told.recv().unwrap();
    assert_eq!(call(&gateway, &url).await, accepted("second"));
    drop(server.join().unwrap());
}

#[actix::test]
async fn an_answer_before_the_request_was_written_ends_the_connection() {
    use Step::{Hang, Read, ReadHead};
    let refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n";
    let server = Server::start(vec![
        vec![ReadHead, send(refusal), Hang],
        vec![Read, send(acceptance("second"))],
        vec![ReadHead, send(acceptance("of another")), Hang],
        vec![Read, send(acceptance("fourth"))],
    ])
    .await;
    let gateway = gateway();
    let first = call_with(&gateway, &server.url, large_payload(), LONG).await;
    assert_eq!(first, Outcome::error("gateway answered HTTP 413"), "on a fresh connection it can only be its answer");
    assert_eq!(call(&gateway, &server.url).await, accepted("second"));
    let third = call_with(&gateway, &server.url, large_payload(), LONG).await;
    assert_eq!(third, Outcome::unknown("gateway answered HTTP 200 before it had the whole request"));
    assert_eq!(call(&gateway, &server.url).await, accepted("fourth"));
    assert_eq!(server.connections(), [1, 2, 2, 3]);
}

/// The server closes an idle connection: the request uses another one, and no attempt fails.
#[actix::test]
async fn a_connection_that_was_closed_while_idle_fails_no_attempt() {
    use Step::Read;
    let server = Server::start(vec![
        vec![Read, send(acceptance("first")), Step::Gap, Step::Close],
        vec![Read, send(acceptance("second"))],
    ])
    .await;
    let gateway = gateway();
    assert_eq!(call(&gateway, &server.url).await, accepted("first"));
    server.until_closed().await;
    assert_eq!(call(&gateway, &server.url).await, accepted("second"));
    assert_eq!(server.connections(), [1, 2]);
}

#[actix::test]
async fn connections_are_used_for_an_hour_and_idle_for_four_seconds() {
    const CALLS: usize = 1850;
    let scripts = (0..CALLS + 2).map(|_| vec![Step::Read, send(acceptance("x"))]).collect();
    let server = Server::start(scripts).await;
    let gateway = gateway();
    let pass = async |span: Duration| {
        tokio::time::pause();
        tokio::time::advance(span).await;
        tokio::time::resume();
    };
    for _ in 0..CALLS {
        assert_eq!(call(&gateway, &server.url).await, accepted("x"));
        pass(Duration::from_secs(2)).await;
    }
    let connections = server.connections();
    let uses = connections.iter().filter(|number| **number == 1).count();
    assert!(uses <= 1800, "{uses} uses of the first, one every two seconds");
    assert!(connections.iter().all(|number| *number <= 2) && connections.last() == Some(&2));
    assert_eq!(call(&gateway, &server.url).await, accepted("x"));
    pass(Duration::from_millis(4100)).await;
    assert_eq!(call(&gateway, &server.url).await, accepted("x"));
    assert_eq!(server.connections()[CALLS..], [2, 3]);
}

/// A server that is gone before anything could be sent, and one that cannot be reached at all.
#[actix::test]
async fn an_attempt_that_was_not_sent_has_an_outcome_that_says_so() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let gateway = gateway();
    for (url, text) in [
        (closed.as_str(), "not sent: cannot connect to the gateway: "),
        ("http://no-such-host.invalid", "not sent: cannot find the gateway's host: "),
        (&closed.replace("http", "https"), "not sent: cannot connect to the gateway: "),
    ] {
        let outcome = call(&gateway, url).await;
        assert_eq!(outcome.contact(), Contact::NotSent, "{outcome:?}");
        assert!(outcome.error_text().unwrap().starts_with(text), "{outcome:?}");
    }
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let outcome = call_with(&gateway, &url, Bytes::from_static(b"{}"), SHORT).await;
    assert_eq!(outcome, Outcome::not_sent("timed out while connecting to the gateway"), "TLS that does not come about");
}

/// Runs in a process of its own, because it uses up all file descriptors of the process.
#[actix::test]
async fn a_lack_of_file_descriptors_is_no_attempt() {
    const CHILD: &str = "SM_TEST_WITHOUT_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new("sh");
        child
            .arg("-c")
            .arg("ulimit -n 200 && exec \"$0\" --exact http_answers::a_lack_of_file_descriptors_is_no_attempt");
        let output = child.arg(std::env::current_exe().unwrap()).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        return assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
    let scripts = ["first", "second"].map(|id| vec![Step::Read, send(acceptance(id))]);
    let server = Server::start(scripts.to_vec()).await;
    let metrics = Arc::new(Metrics::new().unwrap());
    let gateway = gateway().reporting(&metrics);
    let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let named = server.url.replace("127.0.0.1", "localhost");
    for url in [&server.url, &named] {
        let failed = gateway.attempt(&attempt(url), Bytes::from_static(b"{}"), LONG).await.unwrap_err();
        assert!(full_text(&failed).contains("this process has too many open files"), "{url}: {failed}");
    }
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    assert!(text.contains("submission_local_resource_errors_total{kind=\"gateway\"} 2\n"), "{text}");
    let webhook_request =
        WebhookRequest { url: named, headers: Vec::new(), secrets: Vec::new(), body: Bytes::from_static(b"{}") };
    assert!(HttpWebhookSender::new(LONG, tls_config(None).unwrap()).deliver(&webhook_request).await.is_err());
    drop(taken);
    assert_eq!(call(&gateway, &server.url).await, accepted("first"));
}

#[actix::test]
async fn webhooks_read_answers_in_the_same_way() {
    use Step::Read;
    let server = Server::start(vec![
        vec![Read, send("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n")],
        vec![Read, send("HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n")],
        vec![Read, send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")],
        vec![Read, Step::Close],
    ])
    .await;
    let _may_be_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let courier = HttpWebhookSender::new(LONG, tls_config(None).unwrap());
    let webhook_request = WebhookRequest {
        url: server.url.clone(),
        headers: Vec::new(),
        secrets: Vec::new(),
        body: Bytes::from_static(b"{}"),
    };
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(courier.deliver(&webhook_request).await.unwrap().http_status());
    }
    assert_eq!(statuses, [Some(500), Some(204), Some(200)]);
    assert_eq!(server.connections(), [1, 1, 2]);
    let TryOutcome::Error(text) = courier.deliver(&webhook_request).await.unwrap() else {
        panic!("there was no answer")
    };
    assert!(text.starts_with("outcome unknown: connection lost after sending: "), "{text}");
}

/// Tests the whole service: an interim response must not shift answers from one intent to the next.
#[actix::test]
async fn an_interim_response_does_not_give_one_intents_outcome_to_another() {
    use Step::Read;
    let rejection = answer(r#"{"status":"rejected","reason":"invalid_recipient"}"#);
    let server = Server::start(vec![
        vec![Read, send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"), Step::Gap, send(acceptance("of a"))],
        vec![Read, send("HTTP/1.1 100 Continue\r\n\r\n"), Step::Gap, send(rejection)],
        vec![Read, Step::Close],
    ])
    .await;
    let site = Site::new(&server.url);
    let instance = site.start();
    let api = instance.api();
    let submit = async |id: &str| {
        api.submit(id, "once", json!({}), "?waitSeconds=30").await;
        api.get(&format!("/v1/intents/{id}/history")).await.json()
    };
    let a = submit("a").await;
    assert_eq!(a["intent"]["status"], "accepted", "{a}");
    assert_eq!(a["attempts"][0]["gatewayMessageId"], "of a", "{a}");
    let b = submit("b").await;
    assert_eq!(b["intent"]["status"], "rejected", "{b}");
    assert_eq!(server.connections(), [1, 1]);
    let c = submit("c").await;
    assert_eq!(c["intent"]["status"], "exhausted", "{c}");
    let text = c["attempts"][0]["error"].as_str().unwrap();
    assert!(text.starts_with("outcome unknown: connection lost after sending: "), "{text}");
    let metrics = api.get("/metrics").await.text();
    for (contact, count) in [("not_sent", 0), ("answered", 0), ("unknown", 1)] {
        let line = format!("submission_attempt_errors_total{{contact=\"{contact}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}
