//! The real gateway client, over awc: keep-alive, HTTP/1.1, http and https, no redirects.
//!
//! One timeout covers the whole attempt, from connecting to the last byte of the answer. Never
//! repeats a request by itself: an attempt number reaches the gateway at most once.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::header;
use awc::{Client, Connector};
use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::Gateway;
use super::answer::{self, MAX_ANSWER_BYTES};
use crate::core::outcome::Outcome;
use crate::store::OpenAttempt;

/// Idle connections are dropped before most servers would drop them (Node's default is 5 s): a
/// request on a connection that the server is just closing fails, and that costs an attempt.
const KEEP_ALIVE: Duration = Duration::from_secs(4);

/// What is not visible ASCII, besides the control and non-ASCII bytes that are always encoded; and
/// the percent sign, without which `a b` and `a%20b` would be one key to a gateway.
const INVISIBLE: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

pub struct HttpGateway {
    client: Client,
    timeout: Duration,
}

impl HttpGateway {
    /// Must be called on the arbiter that will use it: awc's connections live on one thread.
    pub fn new(timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        let connector = Connector::new()
            .rustls_0_23(tls)
            .timeout(timeout)
            .handshake_timeout(timeout)
            // No limit here: the schedule bounds attempts, in all and per gateway.
            .limit(0)
            .conn_keep_alive(KEEP_ALIVE)
            .conn_lifetime(Duration::from_secs(3600));
        let client = Client::builder().connector(connector).disable_timeout().disable_redirects().finish();
        Self { client, timeout }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use {path} as certificates for gateways: {what}; name a PEM file with --gateway-ca or SM_GATEWAY_CA")]
pub struct CertificateError {
    path: String,
    what: String,
}

/// The public certificate authorities, and those of a PEM file for gateways inside the house.
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

impl Gateway for HttpGateway {
    fn attempt(&self, attempt: &OpenAttempt, payload: Bytes) -> Pin<Box<dyn Future<Output = Outcome>>> {
        let contract = &attempt.contract;
        let request = self
            .client
            .post(format!("{}{}", contract.gateway_url, contract.gateway_type.path()))
            .insert_header((header::CONTENT_TYPE, "application/json"))
            .insert_header((header::ACCEPT, "application/json"))
            .insert_header(("Idempotency-Key", header_value(attempt.intent_id.as_str())))
            .insert_header(("X-Submission-Attempt", attempt.attempt_number.to_string()))
            .no_decompress();
        let timeout = self.timeout;
        let call = async move {
            let mut response = match request.send_body(payload).await {
                Ok(response) => response,
                Err(error) => return Outcome::error(describe(&error)),
            };
            let status = response.status().as_u16();
            let announced = content_length(response.headers());
            match response.body().limit(MAX_ANSWER_BYTES).await {
                // awc takes the end of the connection for the end of the answer.
                Ok(body) if announced.is_some_and(|length| body.len() < length) => {
                    Outcome::error(format!("gateway's answer (HTTP {status}) broke off after {} bytes", body.len()))
                }
                Ok(body) => answer::read(status, &body),
                Err(PayloadError::Overflow) => Outcome::error(format!(
                    "gateway answered HTTP {status} with more than {MAX_ANSWER_BYTES} bytes, which were not read"
                )),
                Err(error) => Outcome::error(format!(
                    "gateway's answer (HTTP {status}) broke off: {}",
                    answer::shown(&error.to_string())
                )),
            }
        };
        Box::pin(async move {
            match tokio::time::timeout(timeout, call).await {
                Ok(outcome) => outcome,
                Err(_) => Outcome::error(format!("timed out: no complete answer within {timeout:?}")),
            }
        })
    }
}

fn content_length(headers: &header::HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn header_value(text: &str) -> String {
    utf8_percent_encode(text, INVISIBLE).to_string()
}

/// What went wrong before there was an answer, in words that say where to look.
fn describe(error: &SendRequestError) -> String {
    let said = answer::shown(&error.to_string());
    match error {
        SendRequestError::Connect(ConnectError::Resolver(error)) => {
            format!("cannot find the gateway's host: {}", answer::shown(&error.to_string()))
        }
        SendRequestError::Connect(ConnectError::NoRecords) => "cannot find the gateway's host: no address".to_owned(),
        SendRequestError::Connect(ConnectError::Timeout) => "timed out while connecting to the gateway".to_owned(),
        SendRequestError::Connect(ConnectError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            format!("TLS with the gateway failed: {error}")
        }
        SendRequestError::Connect(ConnectError::Io(error)) => format!("cannot connect to the gateway: {error}"),
        SendRequestError::Connect(error) => {
            format!("cannot connect to the gateway: {}", answer::shown(&error.to_string()))
        }
        SendRequestError::Send(error) => format!("connection to the gateway broke while sending: {error}"),
        SendRequestError::Response(error) => format!("gateway's answer is not HTTP: {error}"),
        SendRequestError::Timeout => "timed out while waiting for the gateway".to_owned(),
        _ => format!("request to the gateway failed: {said}"),
    }
}
