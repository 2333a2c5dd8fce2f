//! A stand-in gateway for the demo and the tests. It is a real HTTP server that behaves as the payload requests, and it
//! records the requests that it received.
//!
//! The field `simulate` of the payload says what to do:
//! - `accept`, or no such field: accept the message
//! - `reject` or `reject:<reason>`: reject it
//! - `fail`: respond with HTTP 500; `fail:<n>` does so for the first n attempts only
//! - `busy:<seconds>`: respond to the first attempt with HTTP 429 and `Retry-After`
//! - `hang`: never respond
//! - `slow:<milliseconds>`: accept after this time
//! - `lie`: respond with a status that does not exist
//! - `garbage`: respond with something that is not JSON
//! - `redirect`: respond with a redirect
//! - `flood`: respond with a body that never ends

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

/// One request that the gateway received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub at: Instant,
    pub path: String,
    pub idempotency_key: String,
    pub attempt: u32,
    pub traceparent: String,
    pub body: Bytes,
}

/// The requests that a gateway received, in order.
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

    /// When the first request after `since` arrived.
    pub fn first_after(&self, since: Instant) -> Option<Instant> {
        let entries = self.lock();
        entries.get(entries.partition_point(|entry| entry.at < since)).map(|entry| entry.at)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Received>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running stand-in gateway. It runs until [`StandIn::stop`] is called or its actix system ends.
pub struct StandIn {
    pub url: String,
    pub ledger: Ledger,
    keep_ledger: bool,
    address: SocketAddr,
    handle: ServerHandle,
}

impl StandIn {
    /// Starts a gateway on a free loopback port. Without `keep_ledger` it records nothing, so that the memory of a long
    /// demo does not grow.
    pub fn start(keep_ledger: bool) -> std::io::Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), keep_ledger, Ledger::default())
    }

    /// Starts a gateway on the given address and port. It records nothing.
    pub fn listen(address: &str) -> std::io::Result<Self> {
        let no_address = || std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address");
        let address = address.to_socket_addrs()?.next().ok_or_else(no_address)?;
        Self::start_at(address, false, Ledger::default())
    }

    /// Starts a gateway on the address of this one, which must be stopped, with the same ledger.
    pub fn restarted(&self) -> std::io::Result<Self> {
        Self::start_at(self.address, self.keep_ledger, self.ledger.clone())
    }

    fn start_at(address: SocketAddr, keep_ledger: bool, ledger: Ledger) -> std::io::Result<Self> {
        let recorded = keep_ledger.then(|| ledger.clone());
        let server = HttpServer::new(move || {
            let recorded = recorded.clone();
            let handler = move |request: HttpRequest, body: Bytes| {
                let recorded = recorded.clone();
                async move { respond(&request, body, recorded.as_ref()).await }
            };
            App::new()
                .app_data(web::PayloadConfig::new(16 * 1024 * 1024))
                .route("/sms/send", web::post().to(handler.clone()))
                .route("/push/send", web::post().to(handler.clone()))
                .route("/jobs/submit", web::post().to(handler))
        })
        .workers(1)
        .disable_signals()
        .shutdown_timeout(0)
        .bind(address)?;
        let address = server.addrs()[0];
        let server = server.run();
        let handle = server.handle();
        actix::spawn(server);
        Ok(Self { url: format!("http://{address}"), ledger, keep_ledger, address, handle })
    }

    /// The URL and the ledger, for comparing what the service recorded with what the gateway received.
    pub fn witness(&self) -> (String, Ledger) {
        (self.url.clone(), self.ledger.clone())
    }

    /// Stops the gateway without waiting for open requests.
    pub fn stop(&self) -> impl Future<Output = ()> + use<> {
        self.handle.stop(false)
    }
}

#[derive(Default, Deserialize)]
struct Message {
    simulate: Option<String>,
}

async fn respond(request: &HttpRequest, body: Bytes, ledger: Option<&Ledger>) -> HttpResponse {
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
    let simulate = message.simulate.unwrap_or_default();
    let (kind, detail) = simulate.split_once(':').unwrap_or((simulate.as_str(), ""));
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
            .body("simulated overload"),
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
