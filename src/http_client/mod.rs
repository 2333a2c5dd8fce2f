//! Outgoing HTTP/1.1 calls, http and https, to gateways, webhook receivers and trace collectors.
//!
//! [`HttpClient`] makes one request per call and never repeats one of which a byte may have left. Its result says
//! which of four cases it was: answered, not sent, sent without a complete answer ([`CallError::Unknown`]), or
//! not sent because this machine lacked a resource. `connect` opens connections, `connection` carries one
//! exchange at a time, `pool` keeps idle connections, `wire` records what passed over one.

mod connect;
mod connection;
mod pool;
mod shortage;
mod tls;
mod wire;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix_web::http::header::HttpDate;
use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Uri, Version};
use prometheus::IntCounter;
use tokio::time::Instant;

use self::connect::{Origin, connect};
use self::connection::{Broken, Connection};
use self::pool::Pool;
use self::shortage::ShortageReport;
use crate::domain::outcome::Contact;
use crate::platform::clock::monotonic;

pub use self::shortage::LocalResourceError;
pub use self::tls::{CertificateError, tls_config};

/// Answers longer than this are not read to their end.
pub const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// How much of somebody else's words an error text repeats.
const SHOWN_CHARS: usize = 200;

/// Sent unless a request names another.
const USER_AGENT: &str = concat!("submission-manager/", env!("CARGO_PKG_VERSION"));

/// Makes calls to one kind of peer. Its connections belong to one thread, and so does this.
pub struct HttpClient {
    shared: Rc<Shared>,
    timeout: Duration,
}

struct Shared {
    /// What the other side is called in error texts.
    peer: &'static str,
    tls: Arc<rustls::ClientConfig>,
    pool: Rc<Pool>,
    report: Option<ShortageReport>,
}

/// A request to be made, without its body.
pub struct OutgoingRequest {
    url: String,
    headers: Vec<(String, String)>,
    timeout: Duration,
}

/// An HTTP response: its head is complete, its body as far as it came.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// The whole body, or why there is none.
    pub body: Result<Bytes, NoBody>,
    version: Version,
}

/// Why there is no answer. Each text says what happened, in one line.
#[derive(Debug)]
pub enum CallError {
    /// Nothing of the request left this machine.
    NotSent(String),
    /// Some or all of the request may have left, and no complete answer came.
    Unknown(String),
    /// Nothing of the request left, because this machine or process is short of something.
    LocalResource(String),
}

/// With the words that tell the cases apart wherever the text is kept or shown.
impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (contact, text) = match self {
            Self::NotSent(text) | Self::LocalResource(text) => (Contact::NotSent, text),
            Self::Unknown(text) => (Contact::Unknown, text),
        };
        write!(f, "{}{text}", contact.prefix())
    }
}

/// Why a body was not read to its end, though the head of the answer arrived.
#[derive(Debug)]
pub enum NoBody {
    TooLong,
    BrokeOff(String),
    /// Not complete within the timeout.
    TooSlow(Duration),
}

impl std::fmt::Display for NoBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong => write!(f, "more than {MAX_ANSWER_BYTES} bytes, which were not read"),
            Self::BrokeOff(what) => write!(f, "a body that broke off{what}"),
            Self::TooSlow(timeout) => write!(f, "a body that did not end within {timeout:?}"),
        }
    }
}

/// How long a call may take, and until when that is.
#[derive(Clone, Copy)]
struct Budget {
    whole: Duration,
    deadline: Instant,
}

impl OutgoingRequest {
    /// Sets a header; the last one of a name counts.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Allows this call another time than the caller's others.
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn build(self, body: Bytes) -> Result<(Origin, Request<Bytes>), String> {
        let uri: Uri = self.url.parse().map_err(|error| format!("its URL cannot be used: {error}"))?;
        let origin = Origin::of(&uri).map_err(|what| format!("its URL cannot be used: {what}"))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::post(path).body(body).map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        let host = HeaderValue::try_from(origin.host_header()).map_err(|error| error.to_string())?;
        headers.insert(header::HOST, host);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        for (name, value) in self.headers {
            let cannot = |_| format!("the header {name:?} cannot be sent");
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| cannot(()))?;
            headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| cannot(()))?, value);
        }
        Ok((origin, request))
    }
}

impl HttpClient {
    /// Must be called on the arbiter that will use it.
    pub fn new(peer: &'static str, timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        Self { shared: Rc::new(Shared { peer, tls, pool: Rc::default(), report: None }), timeout }
    }

    /// Keeps so many connections at most, idle or in use: as many as there are calls at once.
    pub fn keeping(self, connections: usize) -> Self {
        let Shared { peer, tls, .. } = &*self.shared;
        let pool = Rc::new(Pool::of(connections));
        let shared = Shared { peer, tls: Arc::clone(tls), pool, report: None };
        Self { shared: Rc::new(shared), timeout: self.timeout }
    }

    /// Counts calls that failed for want of a local resource with `counter`, and logs them as `kind`.
    pub fn reporting(self, kind: &'static str, counter: IntCounter) -> Self {
        let Shared { peer, tls, pool, .. } = &*self.shared;
        let report = Some(ShortageReport::new(kind, counter));
        let shared = Shared { peer, tls: Arc::clone(tls), pool: Rc::clone(pool), report };
        Self { shared: Rc::new(shared), timeout: self.timeout }
    }

    pub fn post(&self, url: &str) -> OutgoingRequest {
        OutgoingRequest { url: url.to_owned(), headers: Vec::new(), timeout: self.timeout }
    }

    /// Sends it. One timeout covers everything, from looking up the name to the last byte of the answer.
    pub fn send(
        &self,
        request: OutgoingRequest,
        body: Bytes,
    ) -> impl Future<Output = Result<Answer, CallError>> + use<> {
        let shared = Rc::clone(&self.shared);
        async move {
            let result = shared.call(request, body).await;
            if let (Err(CallError::LocalResource(what)), Some(report)) = (&result, &shared.report) {
                report.shortage(what);
            }
            result
        }
    }
}

impl Shared {
    async fn call(&self, request: OutgoingRequest, body: Bytes) -> Result<Answer, CallError> {
        let budget = Budget { whole: request.timeout, deadline: monotonic() + request.timeout };
        let (origin, request) = request.build(body).map_err(|what| self.not_sent(&what))?;
        let _call = self.pool.count_call();
        // A connection that turns out to be closed before a byte was written costs nothing.
        while let Some(connection) = self.pool.take(&origin) {
            match self.exchange(&origin, connection, request.clone(), budget).await {
                Err(Broken::Unsent(_)) => {}
                Err(Broken::Failed(error)) => return Err(error),
                Ok(answer) => return Ok(answer),
            }
        }
        self.pool.make_room();
        let stream = connect(self.peer, &origin, &self.tls, budget.deadline).await?;
        let connection = Connection::open(stream).await.map_err(|error| self.not_sent(&error.to_string()))?;
        self.exchange(&origin, connection, request, budget).await.map_err(|broken| match broken {
            Broken::Unsent(what) => CallError::NotSent(format!("connection to the {} closed: {what}", self.peer)),
            Broken::Failed(error) => error,
        })
    }

    /// One exchange; the connection is kept for another only if this one left nothing behind.
    async fn exchange(
        &self,
        origin: &Origin,
        mut connection: Connection,
        request: Request<Bytes>,
        budget: Budget,
    ) -> Result<Answer, Broken> {
        let answer = connection.exchange(self.peer, request, budget).await?;
        if connection.is_clean_after(&answer).await {
            self.pool.put(origin, connection);
        }
        Ok(answer)
    }

    fn not_sent(&self, what: &str) -> CallError {
        CallError::NotSent(format!("cannot make the request to the {}: {}", self.peer, shown(what)))
    }
}

/// How long whoever answered wants to be left alone: `Retry-After` in seconds, or as a date, which counts from
/// the date of the answer; what only another clock could tell is not known.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let wish = text(header::RETRY_AFTER)?;
    if let Ok(seconds) = wish.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| text.parse::<HttpDate>().ok().map(SystemTime::from);
    date(wish)?.duration_since(date(text(header::DATE)?)?).ok()
}

/// The beginning of a body for an error text, without anything that could disturb a log.
pub fn quoted(body: &[u8]) -> String {
    let text = shown(String::from_utf8_lossy(body).trim());
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// The beginning of somebody else's words, on one line.
pub fn shown(text: &str) -> String {
    let mut kept: String = text.chars().take(SHOWN_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        kept.push('…');
    }
    kept
}
