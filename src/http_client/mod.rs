//! The HTTP/1.1 client for calls to gateways, webhook receivers, trace collectors and the provider of sign-ins, over http
//! and https.
//!
//! [`HttpClient`] sends one request per call, and never repeats a request if any byte of it may have left this machine. The
//! result has four cases: a response arrived; the request was not sent; it was sent and no complete response arrived
//! ([`CallError::Unknown`]); or it was not sent because this machine ran out of a resource.
//!
//! `connect` opens connections, `connection` runs one request at a time on each, `pool` keeps idle connections, and `wire`
//! records which bytes passed over a connection.

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
use hyper::{Method, Request, Uri, Version};
use prometheus::IntCounter;
use tokio::time::Instant;

use self::connect::{Origin, connect};
use self::connection::{Broken, Connection};
use self::pool::Pool;
use self::shortage::ShortageReport;
use crate::platform::clock::monotonic;
use crate::platform::errors::{BoxError, Context, Described, full_text};

pub use self::shortage::LocalResourceError;
pub use self::tls::{CertificateError, tls_config};

/// Longer response bodies are not read to their end.
pub const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// How many characters of a response an error text quotes.
const SHOWN_CHARS: usize = 200;

/// The maximum length of an error text. Our own words before what others wrote are short.
const ERROR_CHARS: usize = 300;

/// The `User-Agent` of requests that do not set one.
const USER_AGENT: &str = concat!("submission-manager/", env!("CARGO_PKG_VERSION"));

/// Calls one kind of peer. A client and its connections belong to one thread.
pub struct HttpClient {
    shared: Rc<Shared>,
    timeout: Duration,
}

struct Shared {
    /// The name of the other side in error texts, such as `gateway`.
    peer: &'static str,
    tls: Arc<rustls::ClientConfig>,
    pool: Rc<Pool>,
    report: Option<ShortageReport>,
}

/// The method, URL, headers and timeout of a request.
pub struct OutgoingRequest {
    method: Method,
    url: String,
    headers: Vec<(String, String)>,
    timeout: Duration,
}

/// An HTTP response whose head arrived completely.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// The whole body, or why it could not be read.
    pub body: Result<Bytes, NoBody>,
    version: Version,
}

/// Why a call got no response. [`one_line`] shows it with its causes.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No byte of the request left this machine.
    #[error("not sent")]
    NotSent(#[source] BoxError),
    /// The request may have left this machine, in part or completely, and no complete response arrived.
    #[error("outcome unknown")]
    Unknown(#[source] BoxError),
    /// No byte of the request left this machine, because it ran out of file descriptors, ports or memory.
    #[error("not sent")]
    LocalResource(#[from] LocalResourceError),
}

impl CallError {
    fn not_sent(cause: impl Into<BoxError>) -> Self {
        Self::NotSent(cause.into())
    }

    fn unknown(cause: impl Into<BoxError>) -> Self {
        Self::Unknown(cause.into())
    }
}

/// Why the body of a response was not read to its end, although the head arrived.
#[derive(Debug, thiserror::Error)]
pub enum NoBody {
    #[error("more than {MAX_ANSWER_BYTES} bytes, which were not read")]
    TooLong,
    /// The connection failed before the end.
    #[error("a body that broke off after {read} bytes")]
    BrokeOff { read: usize, source: hyper::Error },
    /// It was not complete within the timeout.
    #[error("a body that did not end within {0:?}")]
    TooSlow(Duration),
}

/// The timeout of a call, and the moment when it passes.
#[derive(Clone, Copy)]
struct Budget {
    timeout: Duration,
    deadline: Instant,
}

impl OutgoingRequest {
    /// Sets a header. If a name is set twice, the last value is sent.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets a timeout for this request, instead of the client's.
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn build(self, body: Bytes) -> Result<(Origin, Request<Bytes>), BoxError> {
        let uri: Uri = self.url.parse().context(|| "its URL is invalid")?;
        let origin = Origin::of(&uri).context(|| "its URL is invalid")?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder().method(self.method).uri(path).body(body)?;
        let headers = request.headers_mut();
        let host = HeaderValue::try_from(origin.host_header())?;
        headers.insert(header::HOST, host);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        for (name, value) in self.headers {
            let invalid = || format!("the header {name:?} cannot be sent");
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid())?;
            headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?, value);
        }
        Ok((origin, request))
    }
}

impl HttpClient {
    /// Creates a client. Call this on the arbiter that uses it.
    pub fn new(peer: &'static str, timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        Self { shared: Rc::new(Shared { peer, tls, pool: Rc::default(), report: None }), timeout }
    }

    /// Limits the connections, idle ones and those in use together, to the number of calls in flight.
    pub fn keeping(self, connections: usize) -> Self {
        let Shared { peer, tls, .. } = &*self.shared;
        let pool = Rc::new(Pool::of(connections));
        let shared = Shared { peer, tls: Arc::clone(tls), pool, report: None };
        Self { shared: Rc::new(shared), timeout: self.timeout }
    }

    /// Counts calls that failed because a local resource ran out with `counter`, and logs them as `kind`.
    pub fn reporting(self, kind: &'static str, counter: IntCounter) -> Self {
        let Shared { peer, tls, pool, .. } = &*self.shared;
        let report = Some(ShortageReport::new(kind, counter));
        let shared = Shared { peer, tls: Arc::clone(tls), pool: Rc::clone(pool), report };
        Self { shared: Rc::new(shared), timeout: self.timeout }
    }

    /// A POST request to the URL, with the client's timeout and no headers yet.
    pub fn post(&self, url: &str) -> OutgoingRequest {
        self.request(Method::POST, url)
    }

    /// A GET request to the URL, with the client's timeout and no headers yet. It is sent with an empty body.
    pub fn get(&self, url: &str) -> OutgoingRequest {
        self.request(Method::GET, url)
    }

    fn request(&self, method: Method, url: &str) -> OutgoingRequest {
        OutgoingRequest { method, url: url.to_owned(), headers: Vec::new(), timeout: self.timeout }
    }

    /// Sends a request and reads the response. The timeout covers everything, from the name lookup to the last byte.
    pub fn send(
        &self,
        request: OutgoingRequest,
        body: Bytes,
    ) -> impl Future<Output = Result<Answer, CallError>> + use<> {
        let shared = Rc::clone(&self.shared);
        async move {
            let result = shared.call(request, body).await;
            if let (Err(CallError::LocalResource(error)), Some(report)) = (&result, &shared.report) {
                report.shortage(error);
            }
            result
        }
    }
}

impl Shared {
    async fn call(&self, request: OutgoingRequest, body: Bytes) -> Result<Answer, CallError> {
        let budget = Budget { timeout: request.timeout, deadline: monotonic() + request.timeout };
        let (origin, request) = request.build(body).map_err(|problem| self.not_sent(problem))?;
        let _call = self.pool.count_call();
        // If an idle connection turns out to be closed before a byte is written, another one can be tried safely.
        while let Some(connection) = self.pool.take(&origin) {
            match self.exchange(&origin, connection, request.clone(), budget).await {
                Err(Broken::Unsent(_)) => {}
                Err(Broken::Failed(error)) => return Err(error),
                Ok(answer) => return Ok(answer),
            }
        }
        self.pool.make_room();
        let stream = connect(self.peer, &origin, &self.tls, budget.deadline).await?;
        let connection = Connection::open(stream).await.map_err(|error| self.not_sent(error))?;
        self.exchange(&origin, connection, request, budget).await.map_err(|broken| match broken {
            Broken::Unsent(error) => {
                CallError::not_sent(Described::new(format!("connection to the {} closed", self.peer), error))
            }
            Broken::Failed(error) => error,
        })
    }

    /// Sends one request on a connection, and puts the connection into the pool if it can safely be used again.
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

    fn not_sent(&self, problem: impl Into<BoxError>) -> CallError {
        CallError::not_sent(Described::new(format!("cannot make the request to the {}", self.peer), problem))
    }
}

/// The delay that a response requests with `Retry-After`, in seconds or as a date. A date is compared with the `Date` of the
/// same response, so that the local clock does not matter; without a `Date` there is no delay.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let value = text(header::RETRY_AFTER)?;
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| text.parse::<HttpDate>().ok().map(SystemTime::from);
    date(value)?.duration_since(date(text(header::DATE)?)?).ok()
}

/// The beginning of a body for an error text, after a colon; empty if the body is blank.
pub fn quoted(body: &[u8]) -> String {
    let text = shown(String::from_utf8_lossy(body).trim());
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// The beginning of a text from outside, on one line and without control characters, so that it is safe in a log.
pub fn shown(text: &str) -> String {
    cut(text, SHOWN_CHARS)
}

/// An error and its causes as one line without control characters. Causes may quote what a peer sent.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    cut(&full_text(error), ERROR_CHARS)
}

fn cut(text: &str, chars: usize) -> String {
    let mut kept: String = text.chars().take(chars).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars).is_some() {
        kept.push('…');
    }
    kept
}
