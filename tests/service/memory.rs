//! How much memory clients can use: with heads that do not end, requests sent ahead, and answers that are not read. All
//! connections together have one limit.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use submission_manager::platform::clock::monotonic;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use crate::events::Stream;
use crate::support::{Instance, site};

/// The limit of 64 MiB, plus the buffers of its data and the memory of the connections themselves.
const ALLOWED: u64 = 110 * 1024 * 1024;

/// Returns the peak memory of the process since the last call.
fn peak(instance: &Instance) -> u64 {
    let own = format!("/proc/{}", instance.pid());
    let status = std::fs::read_to_string(format!("{own}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    std::fs::write(format!("{own}/clear_refs"), "5").unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// A client whose kernel buffers almost nothing of the answers.
async fn connect_narrow(instance: &Instance) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(instance.url.trim_start_matches("http://").parse().unwrap()).await.unwrap()
}

/// Sends these bytes over each of `connections` connections and reads nothing. Returns when the service has read what
/// it accepts and still answers other clients.
async fn send_and_hold(instance: &Instance, connections: usize, bytes: &str) -> Vec<TcpStream> {
    let mut streams = join_all((0..connections).map(|_| connect_narrow(instance))).await;
    join_all(streams.iter_mut().map(|stream| async {
        // The service may close the connection before all bytes are sent.
        let _refused = tokio::time::timeout(Duration::from_secs(2), stream.write_all(bytes.as_bytes())).await;
    }))
    .await;
    for number in 0..20 {
        // A new client each time, so that it opens a new connection.
        let api = instance.api();
        let answer = api.submit(&format!("{connections}-{number}"), "once", json!({}), "?waitSeconds=30").await;
        assert_eq!(answer.json()["status"], "accepted", "{}", answer.text());
    }
    streams
}

#[actix::test]
async fn clients_cannot_use_up_memory_whatever_they_send_or_leave_unread() {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}", "a".repeat(125_000));
    // The first answer is not read, so the other requests wait. They are as many as one read returns.
    let ahead = format!("{}{}", get("/docs/swagger-ui-bundle.js"), get("/").repeat(600));
    let unread = get("/openapi.json").repeat(40);
    let large = get("/docs/swagger-ui-bundle.js");
    for (name, connections, bytes) in [
        ("heads that do not end", 1500, head),
        ("requests sent ahead", 300, ahead),
        ("answers that nobody reads", 1000, unread),
        ("large answers that nobody reads", 500, large),
    ] {
        let (site, _gateway) = site();
        let instance = site.start();
        instance.api().get("/docs/swagger-ui-bundle.js").await;
        let before = peak(&instance);
        let streams = send_and_hold(&instance, connections, &bytes).await;
        let grown = peak(&instance).saturating_sub(before);
        println!("{name}: {} MiB more", grown / 1024 / 1024);
        assert!(grown < ALLOWED, "{name}: {} MiB more", grown / 1024 / 1024);
        drop(streams);
    }
}

/// A head that follows a whole request in one packet has the time limit of a head, not that of an idle connection.
#[actix::test]
async fn a_second_head_in_the_packet_of_the_first_request_has_a_limit_of_its_own() {
    let (site, _gateway) = site();
    let instance = site.start();
    let mut stream = crate::attack::connect(&instance).await;
    let packet = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nX: ";
    stream.write_all(packet.as_bytes()).await.unwrap();
    // Well below the 75 s that an idle connection may last.
    let text = tokio::time::timeout(Duration::from_secs(30), crate::attack::rest(&mut stream)).await;
    assert!(text.expect("it is closed").starts_with("HTTP/1.1 200 OK"));
    let metrics = instance.api().get("/metrics").await.text();
    assert!(metrics.contains("submission_http_connections_closed_total{reason=\"slow_head\"} 1\n"), "{metrics}");
}

/// How many streams of events one instance has at least, and the memory that they may take while they are idle.
const STREAMS: usize = 1000;
const ALLOWED_FOR_STREAMS: u64 = 50 * 1024 * 1024;

/// Returns the processor time that the process has used.
fn processor_time(instance: &Instance) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", instance.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[actix::test]
async fn a_thousand_idle_streams_of_events_cost_little() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    api.submit("warm", "once", json!({}), "?waitSeconds=30").await;
    peak(&instance);
    let before = peak(&instance);
    let open = || Stream::open(&instance.url, "/v1/events/stream?after=now", &[]);
    let mut streams = join_all((0..STREAMS).map(|_| open())).await.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    // The first comment comes at once, and the others after fifteen seconds each.
    let comment = async |stream: &mut Stream| assert_eq!(stream.block().await.unwrap().unwrap().comments, 1);
    for _ in 0..2 {
        join_all(streams.iter_mut().map(&comment)).await;
    }
    let (since, used) = (monotonic(), processor_time(&instance));
    join_all(streams.iter_mut().map(&comment)).await;
    let share = (processor_time(&instance) - used).as_secs_f64() / monotonic().duration_since(since).as_secs_f64();
    let grown = peak(&instance).saturating_sub(before);
    println!("{STREAMS} idle streams: {} KiB more, {:.1} % of a core", grown / 1024, share * 100.0);
    assert!(grown < ALLOWED_FOR_STREAMS, "{} MiB more", grown / 1024 / 1024);
    // All of them are alive.
    api.submit("a", "once", json!({}), "?waitSeconds=30").await;
    let events =
        join_all(streams.iter_mut().map(async |stream| stream.event().await.json()["intent"]["intentId"].clone()));
    assert!(events.await.iter().all(|id| id == "a"));
    assert!(api.get("/metrics").await.text().contains(&format!("\nsubmission_event_streams {STREAMS}\n")));
}
