//! Calls out: HTTP/1.1 over awc with keep-alive, http and https, one timeout, no redirects.
//!
//! What gateways and webhook receivers have in common. A call ends with what was answered or with
//! one line that tells an operator what happened; it is never repeated here.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix_web::http::header::HttpDate;
use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::header::{self, HeaderMap};
use awc::{Client, ClientRequest, Connector};
use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::clock::monotonic;

/// Idle connections are dropped before most servers would drop them (Node's default is 5 s): a
/// request on a connection that the server is just closing fails, and that costs an attempt.
const KEEP_ALIVE: Duration = Duration::from_secs(4);

/// Answers longer than this are not read to their end.
pub const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// How much of somebody else's words an error text repeats.
const SHOWN_CHARS: usize = 200;

/// Makes calls to one kind of peer. awc's connections live on one thread, and so does this.
pub struct Caller {
    client: Client,
    timeout: Duration,
    /// What the other side is called in error texts.
    peer: &'static str,
}

/// What came back, as far as it came.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// The whole body, or why there is none.
    pub body: Result<Bytes, NoBody>,
}

/// Why there is no answer at all.
#[derive(Debug)]
pub struct NoAnswer {
    /// What happened, in one line.
    pub text: String,
    /// Whether there was a connection.
    pub connected: bool,
}

impl NoAnswer {
    fn of(peer: &str, error: &SendRequestError) -> Self {
        Self { text: describe(peer, error), connected: !matches!(error, SendRequestError::Connect(_)) }
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

impl Caller {
    /// Must be called on the arbiter that will use it.
    pub fn new(peer: &'static str, timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        let connector = Connector::new()
            .rustls_0_23(tls)
            // A little less than for all of it, so that it is known what was waited for.
            .timeout(timeout * 9 / 10)
            .handshake_timeout(timeout * 9 / 10)
            // No limit here: whoever calls bounds its calls, in all and per peer.
            .limit(0)
            .conn_keep_alive(KEEP_ALIVE)
            .conn_lifetime(Duration::from_secs(3600));
        let client = Client::builder().connector(connector).disable_timeout().disable_redirects().finish();
        Self { client, timeout, peer }
    }

    pub fn post(&self, url: &str) -> ClientRequest {
        self.client.post(url).no_decompress()
    }

    /// Sends it. One timeout covers everything, from connecting to the last byte of the answer.
    pub fn send(&self, request: ClientRequest, body: Bytes) -> impl Future<Output = Result<Answer, NoAnswer>> + use<> {
        let (timeout, peer) = (self.timeout, self.peer);
        async move {
            let until = monotonic() + timeout;
            let mut response = match tokio::time::timeout_at(until, request.send_body(body)).await {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => return Err(NoAnswer::of(peer, &error)),
                Err(_) => {
                    let text = format!("timed out: no complete answer within {timeout:?}");
                    return Err(NoAnswer { text, connected: true });
                }
            };
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let announced = content_length(&headers);
            let body = match tokio::time::timeout_at(until, response.body().limit(MAX_ANSWER_BYTES)).await {
                // awc takes the end of the connection for the end of the answer.
                Ok(Ok(body)) if announced.is_some_and(|length| body.len() < length) => {
                    Err(NoBody::BrokeOff(format!(" after {} bytes", body.len())))
                }
                Ok(Ok(body)) => Ok(body),
                Ok(Err(PayloadError::Overflow)) => Err(NoBody::TooLong),
                Ok(Err(error)) => Err(NoBody::BrokeOff(format!(": {}", shown(&error.to_string())))),
                Err(_) => Err(NoBody::TooSlow(timeout)),
            };
            Ok(Answer { status, headers, body })
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use {path} as certificates for gateways and webhooks: {what}; name a PEM file with --gateway-ca or SM_GATEWAY_CA"
)]
pub struct CertificateError {
    path: String,
    what: String,
}

/// The public certificate authorities, and those of a PEM file for servers inside the house.
pub fn tls_config(extra: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, CertificateError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = extra {
        let fault = |what: String| CertificateError { path: path.display().to_string(), what };
        let mut added = 0;
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| fault(error.to_string()))? {
            let certificate = certificate.map_err(|error| fault(error.to_string()))?;
            roots.add(certificate).map_err(|error| fault(error.to_string()))?;
            added += 1;
        }
        if added == 0 {
            return Err(fault("there is no certificate in it".to_owned()));
        }
    }
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    // No HTTP/2: nothing here gains from it, and awc's implementation is dated.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
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

fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// What went wrong before there was an answer, in words that say where to look.
fn describe(peer: &str, error: &SendRequestError) -> String {
    match error {
        SendRequestError::Connect(ConnectError::Resolver(error)) => {
            format!("cannot find the {peer}'s host: {}", shown(&error.to_string()))
        }
        SendRequestError::Connect(ConnectError::NoRecords) => format!("cannot find the {peer}'s host: no address"),
        SendRequestError::Connect(ConnectError::Timeout) => format!("timed out while connecting to the {peer}"),
        SendRequestError::Connect(ConnectError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            format!("TLS with the {peer} failed: {error}")
        }
        SendRequestError::Connect(ConnectError::Io(error)) => format!("cannot connect to the {peer}: {error}"),
        SendRequestError::Connect(error) => format!("cannot connect to the {peer}: {}", shown(&error.to_string())),
        SendRequestError::Send(error) => format!("connection to the {peer} broke while sending: {error}"),
        SendRequestError::Response(error) => format!("{peer}'s answer is not HTTP: {error}"),
        SendRequestError::Timeout => format!("timed out while waiting for the {peer}"),
        _ => format!("request to the {peer} failed: {}", shown(&error.to_string())),
    }
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
