//! A receiver for the demo and for tests: verifies what arrives, answers as it is told to, and
//! keeps a record.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use bytes::Bytes;
use serde_json::Value;

use crate::domain::signature::{self, Secret, TOLERANCE_SECONDS};
use crate::platform::clock::WallClock;

/// One event as it arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The `webhook-id`.
    pub id: String,
    /// The signature is one of ours and the timestamp is recent.
    pub verified: bool,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

/// How many arrivals are kept: more than anybody looks at.
const KEPT: usize = 100_000;

type Listener = Box<dyn Fn(&Arrived) + Send + Sync>;

struct Record {
    secrets: Vec<Secret>,
    arrived: Mutex<VecDeque<Arrived>>,
    status: Mutex<StatusCode>,
    listener: Listener,
}

pub struct Sink {
    pub url: String,
    record: Arc<Record>,
    handle: ServerHandle,
}

impl Sink {
    /// Starts one on a free port of the loopback; `listener` hears of everything that arrives.
    pub fn start(secrets: Vec<Secret>, listener: Listener) -> std::io::Result<Self> {
        let status = Mutex::new(StatusCode::NO_CONTENT);
        let record = Arc::new(Record { secrets, arrived: Mutex::default(), status, listener });
        let shared = Arc::clone(&record);
        let server = HttpServer::new(move || {
            let record = Arc::clone(&shared);
            App::new().default_service(web::to(move |request: HttpRequest, body: Bytes| {
                let record = Arc::clone(&record);
                async move { record.take(request.headers(), &body) }
            }))
        })
        .workers(1)
        .disable_signals()
        .shutdown_timeout(0)
        .bind((Ipv4Addr::LOCALHOST, 0))?;
        let url = format!("http://{}/events", server.addrs()[0]);
        let server = server.run();
        let handle = server.handle();
        actix::spawn(server);
        Ok(Self { url, record, handle })
    }

    /// From now on everything is answered with this.
    pub fn answer_with(&self, status: StatusCode) {
        *lock(&self.record.status) = status;
    }

    pub fn arrived(&self) -> Vec<Arrived> {
        lock(&self.record.arrived).iter().cloned().collect()
    }

    pub fn stop(&self) -> impl Future<Output = ()> + use<> {
        self.handle.stop(false)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Record {
    fn take(&self, headers: &HeaderMap, body: &[u8]) -> HttpResponse {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp").parse().unwrap_or(0));
        let now = WallClock::system().now().micros() / 1_000_000;
        let recent = (now - timestamp).abs() <= TOLERANCE_SECONDS;
        let arrived = Arrived {
            id: id.to_owned(),
            verified: recent && signature::verify(&self.secrets, id, timestamp, body, header("webhook-signature")),
            headers: headers
                .iter()
                .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
                .collect(),
            body: serde_json::from_slice(body).unwrap_or_default(),
        };
        (self.listener)(&arrived);
        let mut all = lock(&self.arrived);
        if all.len() == KEPT {
            all.pop_front();
        }
        all.push_back(arrived);
        HttpResponse::new(*lock(&self.status))
    }
}
