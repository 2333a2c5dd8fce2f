//! The gateway client over HTTP: sends one request per attempt and turns the response into an outcome.
//!
//! It never repeats a request, so an attempt number reaches the gateway at most once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{Attempting, Gateway, answer};
use crate::domain::attempt::OpenAttempt;
use crate::domain::intent::IntentId;
use crate::domain::outcome::Outcome;
use crate::http_client::{Answer, CallError, HttpClient, NoBody, one_line, retry_after};
use crate::telemetry::metrics::Metrics;

/// The characters of an intent id that are percent-encoded in the `Idempotency-Key` header, in addition to non-ASCII ones.
/// The percent sign is among them, because otherwise `a b` and `a%20b` would become the same key.
const ENCODED_IN_KEY: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Calls gateways over HTTP.
pub struct HttpGateway(HttpClient);

impl HttpGateway {
    /// Call this on the arbiter that uses the client, because its connections belong to one thread.
    pub fn new(timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        Self(HttpClient::new("gateway", timeout, tls))
    }

    /// Limits the connections, idle ones and those in use together.
    pub fn keeping(self, connections: usize) -> Self {
        Self(self.0.keeping(connections))
    }

    /// Counts and logs attempts that could not be made because a local resource ran out.
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
            .header("Idempotency-Key", idempotency_key(attempt.idempotency_key.as_ref().unwrap_or(&attempt.intent_id)))
            .header("X-Submission-Attempt", attempt.attempt_number.to_string())
            .within(timeout);
        if let Some(trace) = attempt.trace {
            request = request.header("traceparent", trace.to_string());
        }
        let call = self.0.send(request, payload);
        Box::pin(async move {
            match call.await {
                Ok(answer) => Ok(outcome(answer)),
                Err(CallError::NotSent(cause)) => Ok(Outcome::not_sent(one_line(cause.as_ref()))),
                Err(CallError::Unknown(cause)) => Ok(Outcome::unknown(one_line(cause.as_ref()))),
                Err(CallError::LocalResource(error)) => Err(error),
            }
        })
    }
}

fn outcome(answer: Answer) -> Outcome {
    let status = answer.status;
    let retry_after = matches!(status, 429 | 503).then(|| retry_after(&answer.headers)).flatten();
    let outcome = match answer.body {
        Ok(body) => answer::read(status, &body),
        // Without a body, the status still says that the gateway did not accept.
        Err(no_body) if !(200..300).contains(&status) => {
            Outcome::error(format!("gateway answered HTTP {status} with {}", one_line(&no_body)))
        }
        Err(NoBody::TooSlow(timeout)) => Outcome::unknown(format!("timed out: no complete answer within {timeout:?}")),
        Err(no_body) => Outcome::unknown(format!("gateway answered HTTP {status} with {}", one_line(&no_body))),
    };
    outcome.with_retry_after(retry_after)
}

/// The key that identifies the intent to the gateway, the same in every attempt: the id that the client chose, or for a
/// job the id that the service assigned.
fn idempotency_key(id: &IntentId) -> String {
    match id.submission_id() {
        Some(job) => job.to_string(),
        None => utf8_percent_encode(id.as_str(), ENCODED_IN_KEY).to_string(),
    }
}
