//! Builds the HTTP request of a webhook event: its JSON body, its headers and its signature.
//!
//! Secrets are read from the environment here and put into the headers of one request. They are not kept anywhere else.

use bytes::Bytes;

use crate::config::variables::Variables;
use crate::domain::event_json::EventJson;
use crate::domain::signature::{self, Secret};
use crate::domain::time::Timestamp;
use crate::store::OpenWebhookTry;

/// The HTTP request of one webhook try.
pub struct WebhookRequest {
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// The header values that are secret. They are removed from what the receiver answers before it is stored.
    pub secrets: Vec<String>,
    pub body: Bytes,
}

/// Builds the request of a try at `now`. It fails if a variable with a secret is not set or not valid.
pub(super) fn build(open: &OpenWebhookTry, variables: &Variables, now: Timestamp) -> Result<WebhookRequest, String> {
    let webhook = open.contract.webhook.as_ref().ok_or("the contract has no webhook")?;
    let event = EventJson::from(&open.intent);
    let body = Bytes::from(serde_json::to_vec(&event).map_err(|error| error.to_string())?);
    let id = event.event_id;
    let timestamp = now.micros().div_euclid(1_000_000);
    let not_set = |name: &str| format!("not sent: the environment variable {name} is not set");
    let mut headers = vec![
        ("Content-Type".to_owned(), "application/json".to_owned()),
        ("User-Agent".to_owned(), concat!("submission-manager/", env!("CARGO_PKG_VERSION")).to_owned()),
        ("webhook-id".to_owned(), id.clone()),
        ("webhook-timestamp".to_owned(), timestamp.to_string()),
    ];
    headers.extend(webhook.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    let mut secrets = Vec::new();
    for (name, variable) in &webhook.headers_env {
        let value = variables.get(variable).ok_or_else(|| not_set(variable))?;
        secrets.push(value.clone());
        headers.push((name.clone(), value));
    }
    if let Some(variable) = &webhook.secret_env {
        let text = variables.get(variable).ok_or_else(|| not_set(variable))?;
        let keys = Secret::parse_list(&text)
            .map_err(|error| format!("not sent: the environment variable {variable} {error}"))?;
        headers.push(("webhook-signature".to_owned(), signature::sign(&keys, &id, timestamp, &body)));
    }
    Ok(WebhookRequest { url: webhook.url.as_str().to_owned(), headers, secrets, body })
}
