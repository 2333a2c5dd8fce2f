//! How much memory clients can use: with heads that do not end, requests sent ahead, and answers that are not read. All
//! connections together have one limit.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

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
