//! A stand-in gateway: real HTTP, behaves as the message asks, and keeps a ledger of what it got.
//!
//! For the demo and the tests. The payload's `simulate` field says what to do:
//! `accept` (also if it is absent), `reject` or `reject:<reason>`, `fail` (HTTP 500) or `fail:<n>`
//! (the first n attempts), `busy:<seconds>` (HTTP 429 with `Retry-After` to the first attempt), `hang`, `slow:<milliseconds>`, `lie` (a status that does not exist),
//! `garbage` (no JSON at all), `redirect`, `flood` (an answer without end).

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::http::header;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::Instant;

use crate::platform::clock::monotonic;

/// One request as the gateway saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub at: Instant,
    pub path: String,
    pub idempotency_key: String,
    pub attempt: u32,
    pub traceparent: String,
    pub body: Bytes,
}

#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<Received>>>);

impl Ledger {
    pub fn entries(&self) -> Vec<Received> {
        self.lock().clone()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// When the first request after `since` came.
    pub fn first_after(&self, since: Instant) -> Option<Instant> {
        let entries = self.lock();
        entries.get(entries.partition_point(|entry| entry.at < since)).map(|entry| entry.at)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Received>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running stand-in; stops when it is told to or its system ends.
pub struct StandIn {
    pub url: String,
    pub ledger: Ledger,
    keep: bool,
    address: SocketAddr,
    handle: ServerHandle,
}

impl StandIn {
    /// Starts one on a free port of the loopback. With `keep` false the ledger stays empty, so
    /// that a long demo does not grow.
    pub fn start(keep: bool) -> std::io::Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), keep, Ledger::default())
    }

    /// Starts one that keeps nothing, at an address as settings write it.
    pub fn listen(address: &str) -> std::io::Result<Self> {
        let nowhere = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
        let address = address.to_socket_addrs()?.next().ok_or_else(nowhere)?;
        Self::start_at(address, false, Ledger::default())
    }

    /// A stopped one, running again where it was, with the same ledger.
    pub fn restarted(&self) -> std::io::Result<Self> {
        Self::start_at(self.address, self.keep, self.ledger.clone())
    }

    fn start_at(address: SocketAddr, keep: bool, ledger: Ledger) -> std::io::Result<Self> {
        let kept = keep.then(|| ledger.clone());
        let server = HttpServer::new(move || {
            let kept = kept.clone();
            let answer = move |request: HttpRequest, body: Bytes| {
                let kept = kept.clone();
                async move { answer(&request, body, kept.as_ref()).await }
            };
            App::new()
                .app_data(web::PayloadConfig::new(16 * 1024 * 1024))
                .route("/sms/send", web::post().to(answer.clone()))
                .route("/push/send", web::post().to(answer.clone()))
                .route("/jobs/submit", web::post().to(answer))
        })
        .workers(1)
        .disable_signals()
        .shutdown_timeout(0)
        .bind(address)?;
        let address = server.addrs()[0];
        let server = server.run();
        let handle = server.handle();
        actix::spawn(server);
        Ok(Self { url: format!("http://{address}"), ledger, keep, address, handle })
    }

    /// Where it is, and what it got.
    pub fn witness(&self) -> (String, Ledger) {
        (self.url.clone(), self.ledger.clone())
    }

    /// Ends it at once, whatever is under way.
    pub fn stop(&self) -> impl Future<Output = ()> + use<> {
        self.handle.stop(false)
    }
}

#[derive(Default, Deserialize)]
struct Message {
    simulate: Option<String>,
}

async fn answer(request: &HttpRequest, body: Bytes, ledger: Option<&Ledger>) -> HttpResponse {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let attempt = header("X-Submission-Attempt").parse().unwrap_or(0);
    let idempotency_key = header("Idempotency-Key").to_owned();
    let message: Message = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(ledger) = ledger {
        let path = request.path().to_owned();
        let mut entries = ledger.lock();
        let traceparent = header("traceparent").to_owned();
        let idempotency_key = idempotency_key.clone();
        entries.push(Received { at: monotonic(), path, idempotency_key, attempt, traceparent, body });
    }
    let wish = message.simulate.unwrap_or_default();
    let (kind, detail) = wish.split_once(':').unwrap_or((wish.as_str(), ""));
    let accepted = || {
        let id = format!("gw-{idempotency_key}-{attempt}");
        HttpResponse::Ok().json(serde_json::json!({ "status": "accepted", "gatewayMessageId": id }))
    };
    match kind {
        "reject" => {
            let reason = if detail.is_empty() { "provider_failure" } else { detail };
            HttpResponse::Ok().json(serde_json::json!({ "status": "rejected", "reason": reason }))
        }
        "fail" if detail.parse().is_ok_and(|times: u32| attempt > times) => accepted(),
        "fail" => HttpResponse::InternalServerError().body("simulated failure"),
        "busy" if attempt == 1 => HttpResponse::TooManyRequests()
            .insert_header((header::RETRY_AFTER, detail.parse().unwrap_or(1)))
            .body("simulated haste"),
        "hang" => std::future::pending().await,
        "slow" => {
            tokio::time::sleep(Duration::from_millis(detail.parse().unwrap_or(1000))).await;
            accepted()
        }
        "lie" => HttpResponse::Ok().json(serde_json::json!({ "status": "definitely" })),
        "garbage" => HttpResponse::Ok().body("<html>all is well</html>"),
        "redirect" => HttpResponse::Found().insert_header((header::LOCATION, "/sms/send")).finish(),
        "flood" => {
            let chunk = Ok::<_, actix_web::Error>(Bytes::from_static(&[b' '; 4096]));
            HttpResponse::Ok().streaming(futures_util::stream::repeat_with(move || {
                chunk.as_ref().map(Bytes::clone).map_err(|_| actix_web::error::ErrorInternalServerError(""))
            }))
        }
        _ => accepted(),
    }
}
