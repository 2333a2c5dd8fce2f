//! Sends a webhook request to its receiver and reads the answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::header;

use super::request::WebhookRequest;
use crate::domain::webhook::TryOutcome;
use crate::http_client::{Answer, CallError, HttpClient, LocalResourceError, one_line, quoted, retry_after};
use crate::telemetry::metrics::Metrics;

/// Resolves with the outcome of a try, or with an error if this machine lacked a resource and nothing was sent.
pub type Delivery = Pin<Box<dyn Future<Output = Result<TryOutcome, LocalResourceError>>>>;

/// Sends webhook requests. Tests use a sender of their own.
pub trait WebhookSender {
    /// Sends one request. Whatever fails at the receiver or on the way to it is an outcome.
    fn deliver(&self, webhook_request: &WebhookRequest) -> Delivery;
}

/// Sends webhook requests over HTTP.
pub struct HttpWebhookSender(HttpClient);

impl HttpWebhookSender {
    /// Must be called on the thread that will use the sender, because its connections belong to one thread.
    pub fn new(timeout: Duration, tls: Arc<rustls::ClientConfig>) -> Self {
        Self(HttpClient::new("receiver", timeout, tls))
    }

    /// Limits the connections, idle ones and those in use together.
    pub fn keeping(self, connections: usize) -> Self {
        Self(self.0.keeping(connections))
    }

    /// Counts and logs requests that could not be sent because this machine lacked a resource.
    pub fn reporting(self, metrics: &Metrics) -> Self {
        Self(self.0.reporting("webhook", metrics.local_resource_errors("webhook")))
    }
}

impl WebhookSender for HttpWebhookSender {
    fn deliver(&self, webhook_request: &WebhookRequest) -> Delivery {
        let mut request = self.0.post(&webhook_request.url);
        for (name, value) in &webhook_request.headers {
            request = request.header(name, value);
        }
        let call = self.0.send(request, webhook_request.body.clone());
        let secrets = webhook_request.secrets.clone();
        Box::pin(async move {
            match call.await {
                Ok(answer) => Ok(read(answer, &secrets)),
                Err(CallError::LocalResource(error)) => Err(error),
                Err(error) => Ok(TryOutcome::Error(one_line(&error))),
            }
        })
    }
}

/// Reads an answer. Only its status decides; a body that is too long or incomplete is mentioned in the remark.
fn read(answer: Answer, secrets: &[String]) -> TryOutcome {
    let shown = |bytes: &[u8]| quoted(without(secrets, bytes).as_bytes());
    let remark = match &answer.body {
        Err(no_body) => Some(format!("answered with {}", one_line(no_body))),
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

/// Returns a receiver's text with every secret replaced that it repeats, in upper or lower case. Of a secret of two words,
/// such as `Bearer` and a token, the second word alone is replaced too.
fn without(secrets: &[String], text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text).into_owned();
    let credentials = secrets.iter().filter_map(|secret| secret.split_once(' ')).map(|(_, credentials)| credentials);
    let mut hidden: Vec<&str> = secrets.iter().map(String::as_str).chain(credentials).map(str::trim).collect();
    hidden.retain(|secret| !secret.is_empty());
    // The longest first, so that no part of it remains.
    hidden.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    hidden.into_iter().fold(text, |text, secret| replace_ignoring_case(&text, secret, "…"))
}

/// Replaces a text regardless of the case of ASCII letters. Lowering ASCII letters changes no byte offset.
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
    fn secrets_that_a_receiver_repeats_are_hidden_in_any_case() {
        let secrets = ["Bearer AbC-123".to_owned(), "abc".to_owned(), "É".to_owned(), String::new()];
        for (text, kept) in [
            ("you sent bearer abc-123!", "you sent …!"),
            ("BEARER ABC-123", "…"),
            ("token=aBc-123", "token=…"),
            ("ABC Abc é É", "… … é …"),
            ("nothing of it", "nothing of it"),
            ("İ abc", "İ …"),
        ] {
            assert_eq!(without(&secrets, text.as_bytes()), kept, "{text}");
        }
        assert_eq!(without(&secrets, b"\xff ABC"), "\u{fffd} …");
    }
}
