//! The real gateway client: one attempt, one request, and its answer as an outcome.
//!
//! Never repeats a request by itself: an attempt number reaches the gateway at most once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{Attempting, Gateway, LocalResourceError, answer};
use crate::domain::attempt::OpenAttempt;
use crate::domain::intent::IntentId;
use crate::domain::outcome::Outcome;
use crate::http_client::{Answer, CallError, HttpClient, NoBody, retry_after};
use crate::telemetry::metrics::Metrics;

/// What is not visible ASCII, besides the control and non-ASCII bytes that are always encoded; and
/// the percent sign, without which `a b` and `a%20b` would be one key to a gateway.
const INVISIBLE: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

pub struct HttpGateway(HttpClient);

impl HttpGateway {
    /// Must be called on the arbiter that will use it: its connections belong to one thread.
    pub fn new(timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        Self(HttpClient::new("gateway", timeout, tls))
    }

    /// Keeps so many connections at most, idle or in use.
    pub fn keeping(self, connections: usize) -> Self {
        Self(self.0.keeping(connections))
    }

    /// Counts and logs attempts that could not be made for want of a local resource.
    pub fn reporting(self, metrics: &Metrics) -> Self {
        Self(self.0.reporting("gateway", metrics.local_resource_errors("gateway")))
    }
}

impl Gateway for HttpGateway {
    fn attempt(&self, attempt: &OpenAttempt, payload: Bytes, timeout: Duration) -> Attempting {
        let contract = &attempt.contract;
        let mut request = self
            .0
            .post(&format!("{}{}", contract.gateway_url, contract.gateway_type.path()))
            .header("Content-Type", "application/json")
            .header("Accept", "application/json")
            .header("Idempotency-Key", idempotency_key(&attempt.intent_id))
            .header("X-Submission-Attempt", attempt.attempt_number.to_string())
            .within(timeout);
        if let Some(trace) = attempt.trace {
            request = request.header("traceparent", trace.to_string());
        }
        let call = self.0.send(request, payload);
        Box::pin(async move {
            match call.await {
                Ok(answer) => Ok(outcome(answer)),
                Err(CallError::NotSent(text)) => Ok(Outcome::not_sent(text)),
                Err(CallError::Unknown(text)) => Ok(Outcome::unknown(text)),
                Err(CallError::LocalResource(text)) => Err(LocalResourceError(text)),
            }
        })
    }
}

fn outcome(answer: Answer) -> Outcome {
    let status = answer.status;
    let retry_after = matches!(status, 429 | 503).then(|| retry_after(&answer.headers)).flatten();
    let outcome = match answer.body {
        Ok(body) => answer::read(status, &body),
        // The status alone says that it was not accepted.
        Err(no_body) if !(200..300).contains(&status) => {
            Outcome::error(format!("gateway answered HTTP {status} with {no_body}"))
        }
        Err(NoBody::TooSlow(timeout)) => Outcome::unknown(format!("timed out: no complete answer within {timeout:?}")),
        Err(no_body) => Outcome::unknown(format!("gateway answered HTTP {status} with {no_body}")),
    };
    outcome.with_retry_after(retry_after)
}

/// The id that the client, or for a job the service, gave: the same in every attempt.
fn idempotency_key(id: &IntentId) -> String {
    match id.submission_id() {
        Some(job) => job.to_string(),
        None => utf8_percent_encode(id.as_str(), INVISIBLE).to_string(),
    }
}
