//! A webhook receiver for the demo and the tests. It verifies the signature of each event, records the event, and responds
//! with a configurable status.

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

/// An event that the sink received.
#[derive(Clone, Debug)]
pub struct ReceivedEvent {
    /// The value of the `webhook-id` header.
    pub id: String,
    /// Whether the signature was made with a known secret and the timestamp is recent.
    pub verified: bool,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

/// The sink keeps this many events and then forgets the oldest ones.
const MAX_EVENTS: usize = 100_000;

type Listener = Box<dyn Fn(&ReceivedEvent) + Send + Sync>;

struct State {
    secrets: Vec<Secret>,
    events: Mutex<VecDeque<ReceivedEvent>>,
    status: Mutex<StatusCode>,
    listener: Listener,
}

/// A running webhook sink.
pub struct Sink {
    pub url: String,
    state: Arc<State>,
    handle: ServerHandle,
}

impl Sink {
    /// Starts a sink on a free loopback port. It calls `listener` for each event.
    pub fn start(secrets: Vec<Secret>, listener: Listener) -> std::io::Result<Self> {
        let status = Mutex::new(StatusCode::NO_CONTENT);
        let state = Arc::new(State { secrets, events: Mutex::default(), status, listener });
        let shared = Arc::clone(&state);
        let server = HttpServer::new(move || {
            let state = Arc::clone(&shared);
            App::new().default_service(web::to(move |request: HttpRequest, body: Bytes| {
                let state = Arc::clone(&state);
                async move { state.receive(request.headers(), &body) }
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
        Ok(Self { url, state, handle })
    }

    /// Sets the status that the sink responds with from now on.
    pub fn answer_with(&self, status: StatusCode) {
        *lock(&self.state.status) = status;
    }

    /// All events that were received so far, oldest first.
    pub fn arrived(&self) -> Vec<ReceivedEvent> {
        lock(&self.state.events).iter().cloned().collect()
    }

    pub fn stop(&self) -> impl Future<Output = ()> + use<> {
        self.handle.stop(false)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Verifies and records one event.
    fn receive(&self, headers: &HeaderMap, body: &[u8]) -> HttpResponse {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp").parse().unwrap_or(0));
        let now = WallClock::system().now().micros() / 1_000_000;
        let recent = (now - timestamp).abs() <= TOLERANCE_SECONDS;
        let event = ReceivedEvent {
            id: id.to_owned(),
            verified: recent && signature::verify(&self.secrets, id, timestamp, body, header("webhook-signature")),
            headers: headers
                .iter()
                .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
                .collect(),
            body: serde_json::from_slice(body).unwrap_or_default(),
        };
        (self.listener)(&event);
        let mut events = lock(&self.events);
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
        HttpResponse::new(*lock(&self.status))
    }
}
