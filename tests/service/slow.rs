//! Many slow and idle clients: other clients are served as usual.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use actix_web::http::StatusCode;
use serde_json::json;

use crate::support::site;

/// Connections of each kind, each of which sends very little: more than the number of requests that can be handled at
/// the same time.
const EACH: usize = 700;

fn connections(address: &str, first: &str) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(first.as_bytes()).unwrap();
        stream
    };
    (0..EACH).map(open).collect()
}

#[actix::test]
async fn slow_heads_slow_bodies_and_idle_connections_delay_no_other_client() {
    let (site, _gateway) = site();
    let instance = site.start();
    let api = instance.api();
    let address = instance.url.trim_start_matches("http://").to_owned();
    let started = {
        let address = address.clone();
        actix_web::rt::task::spawn_blocking(move || {
            let head = "POST /v1/intents HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
            let idle = connections(&address, "");
            let heads = connections(&address, "POST /v1/intents HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
            let bodies: Vec<_> = connections(&address, head).into_iter().chain(connections(&address, head)).collect();
            (idle, heads, bodies)
        })
    };
    let (idle, mut heads, mut bodies) = started.await.unwrap();
    for number in 0..20 {
        let answer = api.submit(&format!("a{number}"), "once", json!({}), "?waitSeconds=30").await;
        assert_eq!((answer.status, &answer.json()["status"]), (StatusCode::OK, &json!("accepted")));
    }
    assert_eq!(api.get("/readyz").await.status, StatusCode::OK);
    // In the end the server answers and closes them.
    let told = actix_web::rt::task::spawn_blocking(move || {
        let last_words = |streams: &mut Vec<TcpStream>| {
            let stream = &mut streams[0];
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut text = String::new();
            let _may_be_reset = stream.read_to_string(&mut text);
            text
        };
        let told = (last_words(&mut heads), last_words(&mut bodies));
        drop(idle);
        told
    });
    let (head, body) = told.await.unwrap();
    assert!(head.contains(" 408 "), "{head}");
    assert!(body.contains(" 408 ") && body.contains("request_timeout"), "{body}");
}
