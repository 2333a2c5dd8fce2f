//! Takes a letter to its receiver: one request, and what was answered as a fact.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use awc::http::header;

use super::letter::Letter;
use crate::core::webhook::TryOutcome;
use crate::outgoing::{Answer, Caller, quoted, retry_after};

/// Delivers letters. Always ends with an outcome: whatever goes wrong is one that says what.
pub trait Courier {
    fn deliver(&self, letter: Letter) -> Pin<Box<dyn Future<Output = TryOutcome>>>;
}

/// The real one.
pub struct HttpCourier(Caller);

impl HttpCourier {
    /// Must be called on the arbiter that will use it: awc's connections live on one thread.
    pub fn new(timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        Self(Caller::new("receiver", timeout, tls))
    }
}

impl Courier for HttpCourier {
    fn deliver(&self, letter: Letter) -> Pin<Box<dyn Future<Output = TryOutcome>>> {
        let Letter { url, headers, secrets, body } = letter;
        let mut request = self.0.post(&url);
        for (name, value) in headers {
            request = request.insert_header((name, value));
        }
        let call = self.0.send(request, body);
        Box::pin(
            async move { call.await.map_or_else(|none| TryOutcome::Error(none.text), |answer| read(answer, &secrets)) },
        )
    }
}

/// The status decides. A body that is too long or does not end is only remarked on.
fn read(answer: Answer, secrets: &[String]) -> TryOutcome {
    let shown = |bytes: &[u8]| quoted(without(secrets, bytes).as_bytes());
    let remark = match &answer.body {
        Err(no_body) => Some(format!("answered with {no_body}")),
        Ok(_) if (200..300).contains(&answer.status) => None,
        Ok(body) => {
            let location = answer.headers.get(header::LOCATION).map(|value| value.as_bytes());
            match location.filter(|_| (300..400).contains(&answer.status)) {
                Some(location) => Some(format!("answered with a redirect, which is not followed{}", shown(location))),
                None => Some(format!("answered HTTP {}{}", answer.status, shown(body))),
            }
        }
    };
    TryOutcome::Answered { status: answer.status, retry_after: retry_after(&answer.headers), remark }
}

/// What a receiver said, without secrets that it may have said back to us.
fn without(secrets: &[String], said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said).into_owned();
    secrets.iter().filter(|secret| !secret.is_empty()).fold(said, |said, secret| said.replace(secret.as_str(), "…"))
}
