//! Gateways and clients that send anything that HTTP/1.1 allows, and malformed requests, at random and at the same
//! time, against a real instance. Each outcome must belong to its own attempt, nothing may be sent twice, and all other
//! clients must be served.
//!
//! `make attack` runs this for longer: `SM_ATTACK_SECONDS` sets the duration, and `SM_ATTACK_SEED` repeats a run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};
use submission_manager::domain::outcome::Contact;
use submission_manager::platform::clock::monotonic;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::raw_server::whole;
use crate::support::{Api, Instance, Site, site};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

fn seed() -> u64 {
    let seed = variable("SM_ATTACK_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("SM_ATTACK_SEED={seed}");
    seed
}

fn duration() -> Duration {
    Duration::from_secs(variable("SM_ATTACK_SECONDS").unwrap_or(4))
}

/// What a gateway answered to an attempt.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Accepted,
    Rejected,
    /// An answer that is neither.
    Nonsense,
    /// No complete answer.
    Nothing,
}

/// The attempts that reached the gateway, with the answer to each. More than one answer to an attempt is a failure.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Received>>);

type Received = HashMap<(String, u32), Vec<Told>>;

impl Record {
    fn note(&self, key: &str, attempt: u32, told: Told) {
        self.0.lock().unwrap().entry((key.to_owned(), attempt)).or_default().push(told);
    }

    fn sent_twice(&self) -> Vec<(String, u32)> {
        let record = self.0.lock().unwrap();
        record.iter().filter(|(_, told)| told.len() > 1).map(|(attempt, _)| attempt.clone()).collect()
    }

    fn told(&self, key: &str, attempt: u32) -> Option<Told> {
        self.0.lock().unwrap().get(&(key.to_owned(), attempt)).and_then(|told| told.first().cloned())
    }
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let value = head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    });
    value.unwrap_or_else(|| panic!("no {name} in {head}"))
}

fn message_id(key: &str, attempt: u32) -> String {
    format!("of {key} {attempt}")
}

/// One answer: its bytes, its meaning, and whether the connection stays open.
struct Reply {
    bytes: Vec<u8>,
    told: Told,
    keep: bool,
}

/// A random answer to an attempt. From the second attempt on it is an acceptance, so that intents end.
fn reply(random: &mut Rng, key: &str, attempt: u32) -> Reply {
    let accepted = json!({ "status": "accepted", "gatewayMessageId": message_id(key, attempt) }).to_string();
    let (body, told) = match if attempt > 1 { 0 } else { random.u8(0..10) } {
        0..=5 => (accepted, Told::Accepted),
        6 => (r#"{"status":"rejected","reason":"invalid_recipient"}"#.to_owned(), Told::Rejected),
        7 => (r#"{"status":"queued"}"#.to_owned(), Told::Nonsense),
        8 => ("<html>".to_owned(), Told::Nonsense),
        _ => (String::new(), Told::Nonsense),
    };
    let mut bytes = Vec::new();
    for _ in 0..random.usize(0..3) {
        let interim = ["100 Continue", "102 Processing", "103 Early Hints\r\nLink: </x>"];
        bytes.extend(format!("HTTP/1.1 {}\r\n\r\n", interim[random.usize(0..3)]).bytes());
    }
    let mut keep = true;
    match random.u8(0..6) {
        0 => {
            bytes.extend(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut rest = body.as_bytes();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(random.usize(1..=rest.len()));
                bytes.extend(format!("{:x};x=y\r\n", piece.len()).bytes());
                bytes.extend(piece.iter().chain(b"\r\n"));
                rest = after;
            }
            bytes.extend(b"0\r\nX-Trailer: 1\r\n\r\n");
        }
        1 => {
            bytes.extend(format!("HTTP/1.1 200 OK\r\n\r\n{body}").bytes());
            keep = false;
        }
        2 => {
            bytes.extend(format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).bytes());
            keep = false;
        }
        kind => {
            let connection = if kind == 3 { "Connection: close\r\n" } else { "" };
            let head = format!("HTTP/1.1 202 Fine\r\n{connection}Content-Length: {}\r\n\r\n", body.len());
            bytes.extend(format!("{head}{body}").bytes());
            keep = kind != 3;
        }
    }
    // An additional answer without a request. It must not be taken for the answer to the next request.
    if keep && random.u8(0..4) == 0 {
        let stray = json!({ "status": "accepted", "gatewayMessageId": "stray" }).to_string();
        bytes.extend(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{stray}", stray.len()).bytes());
    }
    if attempt == 1 && random.u8(0..8) == 0 {
        // The answer is cut off at a random position.
        let answer = bytes.len();
        bytes.truncate(random.usize(0..answer));
        return Reply { bytes, told: Told::Nothing, keep: false };
    }
    Reply { bytes, told, keep }
}

/// A gateway that answers at random.
async fn hostile_gateway(seed: u64, record: Record) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    actix::spawn(async move {
        let mut random = Rng::with_seed(seed);
        while let Ok((socket, _)) = listener.accept().await {
            socket.set_nodelay(true).unwrap();
            actix::spawn(serve(socket, random.fork(), record.clone()));
        }
    });
    url
}

async fn serve(mut socket: TcpStream, mut random: Rng, record: Record) {
    loop {
        let mut read = Vec::new();
        while !whole(&read) {
            match socket.read_buf(&mut read).await {
                Ok(1..) => {}
                _ => return,
            }
        }
        let text = String::from_utf8_lossy(&read).into_owned();
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        let key = percent_decode_str(header(head, "idempotency-key")).decode_utf8().unwrap().into_owned();
        let attempt = header(head, "x-submission-attempt").parse().unwrap();
        if attempt == 1 && random.u8(0..20) == 0 {
            record.note(&key, attempt, Told::Nothing);
            match random.u8(0..3) {
                0 => socket.set_zero_linger().unwrap(),
                1 => while matches!(socket.read(&mut [0; 64]).await, Ok(1..)) {},
                _ => {}
            }
            return;
        }
        let Reply { bytes, told, keep } = reply(&mut random, &key, attempt);
        // This is recorded before the answer is sent, because the service may read it immediately.
        record.note(&key, attempt, told);
        let mut rest = bytes.as_slice();
        // An additional answer must arrive together with the end of the answer before it.
        let pieces = if random.bool() && !bytes.windows(5).any(|window| window == b"stray") { 3 } else { 0 };
        for _ in 0..pieces {
            let (piece, after) = rest.split_at(random.usize(0..=rest.len()));
            let _gone = socket.write_all(piece).await;
            tokio::task::yield_now().await;
            rest = after;
        }
        if socket.write_all(rest).await.is_err() || !keep {
            return;
        }
    }
}

/// Valid requests with a few random changes.
fn nearly_a_request(random: &mut Rng) -> Vec<u8> {
    let body = json!({ "intentId": format!("odd-{}", random.u16(..)), "submissionTarget": "once" }).to_string();
    let requests = [
        "GET /v1/intents?limit=3 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
        format!("POST /v1/intents HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
        format!(
            "POST /v1/intents HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        ),
        "GET /metrics HTTP/1.0\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n".to_owned(),
    ];
    let mut bytes = Vec::new();
    for _ in 0..random.usize(1..5) {
        bytes.extend(requests[random.usize(0..requests.len())].bytes());
    }
    for _ in 0..random.usize(0..6) {
        let place = random.usize(0..bytes.len());
        match random.u8(0..4) {
            0 => bytes[place] = random.u8(..),
            1 => drop(bytes.remove(place)),
            2 => bytes.insert(place, *random.choice(b"\r\n \0:,;\x80".iter()).unwrap()),
            _ => {
                let again = bytes[place..(place + random.usize(1..40)).min(bytes.len())].to_vec();
                bytes.splice(place..place, again);
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

/// Sends changed requests in pieces until the time is over. It may or may not read the answer, and may close or reset
/// the connection.
async fn hostile_client(instance: &Instance, mut random: Rng, until: tokio::time::Instant) {
    while monotonic() < until {
        let Ok(mut stream) = TcpStream::connect(instance.url.trim_start_matches("http://")).await else { continue };
        let bytes = nearly_a_request(&mut random);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(random.usize(1..=rest.len()));
            if stream.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
            rest = after;
        }
        match random.u8(0..4) {
            0 => stream.set_zero_linger().unwrap(),
            1 => drop(stream.shutdown().await),
            _ => {}
        }
        if random.bool() {
            let mut room = [0; 4096];
            let _whatever = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut room)).await;
        }
    }
}

/// Submits intents one after the other, and returns their ids.
async fn honest_client(api: Api, number: usize, until: tokio::time::Instant) -> Vec<String> {
    let mut ids = Vec::new();
    while monotonic() < until {
        let id = format!("{number}/{} é", ids.len());
        let target = if ids.len() % 4 == 0 { "attempts" } else { "once" };
        let answer = api.submit(&id, target, json!({ "n": number }), "?waitSeconds=30").await;
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.text());
        ids.push(id);
    }
    ids
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Compares the stored outcome of an attempt with the answer of its gateway.
fn compare(id: &str, attempt: &Value, told: Option<Told>) {
    let number = u32::try_from(attempt["attemptNumber"].as_u64().unwrap()).unwrap();
    let stored = attempt["outcomeStatus"].as_str();
    let here = format!("{id:?}: the gateway told {told:?}, stored is {attempt}");
    match (&told, stored) {
        (Some(Told::Accepted), Some("accepted")) => {
            assert_eq!(attempt["gatewayMessageId"], message_id(id, number), "{here}");
        }
        (Some(Told::Rejected), Some("rejected")) => assert_eq!(attempt["outcomeReason"], "invalid_recipient", "{here}"),
        // The answer was cut off after the part that the service needs.
        (Some(Told::Nothing), Some("accepted")) => {
            assert_eq!(attempt["gatewayMessageId"], message_id(id, number), "{here}");
        }
        (Some(Told::Nothing), Some("rejected")) => {}
        (Some(Told::Nonsense | Told::Nothing), None) => {
            let contact = Contact::of_text(attempt["error"].as_str().unwrap());
            assert_ne!(contact, Contact::NotSent, "{here}");
            assert!(told == Some(Told::Nothing) || contact == Contact::Answered, "{here}");
        }
        (None, None) => {
            assert_eq!(Contact::of_text(attempt["error"].as_str().unwrap()), Contact::NotSent, "{here}");
        }
        _ => panic!("{here}"),
    }
}

#[actix::test]
async fn whatever_gateways_and_clients_do_every_outcome_is_its_own() {
    let mut random = Rng::with_seed(seed());
    let record = Record::default();
    let url = hostile_gateway(random.u64(..), record.clone()).await;
    let site = Site::new(&url);
    let mut command = site.command();
    command.env("SM_ATTEMPT_TIMEOUT", "1s");
    let mut instance = Instance::start(command);
    instance.wait_for_log("leader_ready");
    let until = monotonic() + duration();
    let hostile = join_all((0..8).map(|_| hostile_client(&instance, random.fork(), until)));
    let honest = join_all((0..24).map(|number| honest_client(instance.api(), number, until)));
    let (_, submitted) = tokio::join!(hostile, honest);
    let ids: Vec<_> = submitted.into_iter().flatten().collect();
    let api = instance.api();
    api.until_nothing_is_pending().await;
    assert_eq!(record.sent_twice(), [], "an attempt number reaches a gateway once");
    for id in &ids {
        let history = api.history(&encoded(id)).await;
        assert_ne!(history["intent"]["status"], "pending", "{history}");
        for attempt in history["attempts"].as_array().unwrap() {
            let number = u32::try_from(attempt["attemptNumber"].as_u64().unwrap()).unwrap();
            compare(id, attempt, record.told(id, number));
        }
    }
    println!("{} intents, {} attempts", ids.len(), record.0.lock().unwrap().len());
    assert!(ids.len() > 50, "only {}", ids.len());
    assert_eq!(instance.ended(), None);
    let log = instance.log_lines();
    assert!(!log.iter().any(|line| line.contains("panic")), "{log:#?}");
    assert_eq!(log.iter().filter(|line| line.contains("leader_lost")).count(), 0, "{log:#?}");
}

/// A random id of up to 200 characters of any kind.
fn odd_id(random: &mut Rng) -> String {
    let kinds: [&[char]; 4] = [
        &['a', 'Z', '9', '-', '_', '~'],
        &['/', '?', '#', '%', '&', '=', '+', ' ', '.', ':', ';', ',', '\\', '"', '\'', '<', '>', '`', '{', '|'],
        &['é', 'e', '\u{301}', 'ß', 'İ', 'ı', '\u{feff}', '\u{200b}', '\u{202e}', '中', '한'],
        &['😀', '\u{10ffff}', '\u{fffd}', '\u{e000}', '𝔸'],
    ];
    let length = if random.u8(0..10) == 0 { 200 } else { random.usize(1..20) };
    let mut id: String = (0..length)
        .map(|_| {
            let kind = kinds[random.usize(0..kinds.len())];
            kind[random.usize(0..kind.len())]
        })
        .collect();
    // Blanks around an id are trimmed.
    if id.trim() != id || id.trim().is_empty() {
        id = format!("x{}y", id.chars().take(198).collect::<String>());
    }
    id
}

#[actix::test]
async fn ids_of_any_kind_are_found_again() {
    let (site, gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let mut random = Rng::with_seed(seed());
    let fixed = [
        ".",
        "..",
        "/",
        "a",
        "a/history",
        "a/",
        "history",
        "%2F",
        "a%2Fhistory",
        "?",
        "null",
        "sm-job",
        "0",
        "ä",
        "a\u{308}",
    ];
    let mut ids: Vec<_> = fixed.map(str::to_owned).to_vec();
    while ids.len() < 150 {
        let id = odd_id(&mut random);
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    for id in &ids {
        let answer = api.submit(id, "once", json!({ "id": id }), "?waitSeconds=30").await;
        assert_eq!(answer.status.as_u16(), 200, "{id:?}: {}", answer.text());
        assert_eq!(answer.header("idempotent-replayed"), None, "{id:?} is another one");
    }
    for id in &ids {
        let path = format!("/v1/intents/{}", encoded(id));
        let intent = api.get(&path).await.json();
        assert_eq!((&intent["intentId"], &intent["status"]), (&json!(id), &json!("accepted")), "{id:?}");
        let history = api.get(&format!("{path}/history")).await.json();
        assert_eq!(history["intent"], intent, "{id:?}");
        let found = api.get(&format!("/v1/intents?q={}&limit=1", encoded(id))).await.json();
        assert_eq!(found["intents"][0]["intentId"], json!(id), "the shortest that begins so comes first: {found}");
        let page = api.get(&format!("/ui/intents/{}", encoded(id))).await;
        assert!(page.text().contains("Accepted by the gateway"), "{id:?}: {}", page.text());
        let fragment = api.call("POST", "/ui/history", format!("intentId={}", encoded(id))).await;
        assert!(fragment.status.is_success() && fragment.text().contains("status-accepted"), "{id:?}");
    }
    let mut keys: Vec<_> = gateway.ledger.entries().into_iter().map(|received| received.idempotency_key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), ids.len(), "a key of its own each");
}
