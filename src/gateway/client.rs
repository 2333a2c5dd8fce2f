//! The real gateway client: one attempt, one request, and its answer as an outcome.
//!
//! Never repeats a request by itself: an attempt number reaches the gateway at most once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use awc::http::header;
use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{Gateway, answer};
use crate::core::intent::IntentId;
use crate::core::outcome::Outcome;
use crate::outgoing::{Caller, NoAnswer, NoBody, retry_after};
use crate::store::OpenAttempt;

/// What is not visible ASCII, besides the control and non-ASCII bytes that are always encoded; and
/// the percent sign, without which `a b` and `a%20b` would be one key to a gateway.
const INVISIBLE: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

pub struct HttpGateway(Caller);

impl HttpGateway {
    /// Must be called on the arbiter that will use it: awc's connections live on one thread.
    pub fn new(timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        Self(Caller::new("gateway", timeout, tls))
    }
}

impl Gateway for HttpGateway {
    fn attempt(&self, attempt: &OpenAttempt, payload: Bytes) -> Pin<Box<dyn Future<Output = Outcome>>> {
        let contract = &attempt.contract;
        let mut request = self
            .0
            .post(&format!("{}{}", contract.gateway_url, contract.gateway_type.path()))
            .insert_header((header::CONTENT_TYPE, "application/json"))
            .insert_header((header::ACCEPT, "application/json"))
            .insert_header(("Idempotency-Key", idempotency_key(&attempt.intent_id)))
            .insert_header(("X-Submission-Attempt", attempt.attempt_number.to_string()));
        if let Some(trace) = attempt.trace {
            request = request.insert_header(("traceparent", trace.to_string()));
        }
        let call = self.0.send(request, payload);
        Box::pin(async move {
            let answer = match call.await {
                Ok(answer) => answer,
                Err(NoAnswer { text, connected: false }) => return Outcome::unreachable(text),
                Err(NoAnswer { text, connected: true }) => return Outcome::unheard(text),
            };
            let status = answer.status;
            let retry_after = matches!(status, 429 | 503).then(|| retry_after(&answer.headers)).flatten();
            let outcome = match answer.body {
                Ok(body) => answer::read(status, &body),
                Err(NoBody::TooSlow(timeout)) => {
                    Outcome::error(format!("timed out: no complete answer within {timeout:?}"))
                }
                Err(NoBody::BrokeOff(what)) => {
                    Outcome::error(format!("gateway's answer (HTTP {status}) broke off{what}"))
                }
                Err(too_long) => Outcome::error(format!("gateway answered HTTP {status} with {too_long}")),
            };
            outcome.with_retry_after(retry_after)
        })
    }
}

/// The id that the client, or for a job the service, gave: the same in every attempt.
fn idempotency_key(id: &IntentId) -> String {
    match id.submission_id() {
        Some(job) => job.to_string(),
        None => utf8_percent_encode(id.as_str(), INVISIBLE).to_string(),
    }
}
