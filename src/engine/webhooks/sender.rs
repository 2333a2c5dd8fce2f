//! Takes a letter to its receiver: one request, and what was answered as a fact.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::header;

use super::request::WebhookRequest;
use crate::domain::webhook::TryOutcome;
use crate::http_client::{Answer, CallError, HttpClient, LocalResourceError, quoted, retry_after};
use crate::telemetry::metrics::Metrics;

/// A delivery's outcome, once the receiver has answered or the time is up.
pub type Delivering = Pin<Box<dyn Future<Output = Result<TryOutcome, LocalResourceError>>>>;

/// Delivers letters. Whatever goes wrong is an outcome that says what; only a shortage on this side is none,
/// because nothing was tried.
pub trait WebhookSender {
    fn deliver(&self, webhook_request: &WebhookRequest) -> Delivering;
}

/// The real one.
pub struct HttpWebhookSender(HttpClient);

impl HttpWebhookSender {
    /// Must be called on the arbiter that will use it: its connections belong to one thread.
    pub fn new(timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        Self(HttpClient::new("receiver", timeout, tls))
    }

    /// Keeps so many connections at most, idle or in use.
    pub fn keeping(self, connections: usize) -> Self {
        Self(self.0.keeping(connections))
    }

    /// Counts and logs deliveries that could not be made for want of a local resource.
    pub fn reporting(self, metrics: &Metrics) -> Self {
        Self(self.0.reporting("webhook", metrics.local_resource_errors("webhook")))
    }
}

impl WebhookSender for HttpWebhookSender {
    fn deliver(&self, webhook_request: &WebhookRequest) -> Delivering {
        let mut request = self.0.post(&webhook_request.url);
        for (name, value) in &webhook_request.headers {
            request = request.header(name, value);
        }
        let call = self.0.send(request, webhook_request.body.clone());
        let secrets = webhook_request.secrets.clone();
        Box::pin(async move {
            match call.await {
                Ok(answer) => Ok(read(answer, &secrets)),
                Err(CallError::LocalResource(text)) => Err(LocalResourceError(text)),
                Err(error) => Ok(TryOutcome::Error(error.to_string())),
            }
        })
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

/// What a receiver said, without secrets that it may have said back to us in upper or lower case. A secret of two
/// words, such as `Bearer` and a token, is also found without the first.
fn without(secrets: &[String], said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said).into_owned();
    let credentials = secrets.iter().filter_map(|secret| secret.split_once(' ')).map(|(_, credentials)| credentials);
    let mut hidden: Vec<&str> = secrets.iter().map(String::as_str).chain(credentials).map(str::trim).collect();
    hidden.retain(|secret| !secret.is_empty());
    // The longest first, so that no part of it remains.
    hidden.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    hidden.into_iter().fold(said, |said, secret| replace_ignoring_case(&said, secret, "…"))
}

/// ASCII letters are compared without case, which leaves every offset as it is.
fn replace_ignoring_case(text: &str, wanted: &str, with: &str) -> String {
    let (haystack, needle) = (text.to_ascii_lowercase(), wanted.to_ascii_lowercase());
    let mut replaced = String::with_capacity(text.len());
    let mut end = 0;
    for (start, _) in haystack.match_indices(&needle) {
        replaced.push_str(&text[end..start]);
        replaced.push_str(with);
        end = start + needle.len();
    }
    replaced.push_str(&text[end..]);
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_in_whatever_case_they_come_back() {
        let secrets = ["Bearer AbC-123".to_owned(), "abc".to_owned(), "É".to_owned(), String::new()];
        for (said, kept) in [
            ("you sent bearer abc-123!", "you sent …!"),
            ("BEARER ABC-123", "…"),
            ("token=aBc-123", "token=…"),
            ("ABC Abc é É", "… … é …"),
            ("nothing of it", "nothing of it"),
            ("İ abc", "İ …"),
        ] {
            assert_eq!(without(&secrets, said.as_bytes()), kept, "{said}");
        }
        assert_eq!(without(&secrets, b"\xff ABC"), "\u{fffd} …");
    }
}
