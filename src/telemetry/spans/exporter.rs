//! Sends spans to a collector: all that came within a second, or a batch, in one request.
//!
//! A batch that cannot be delivered is gone. That is said in the log once, and once when it works again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::otlp::{self, Resource};
use super::{Posted, Span};
use crate::domain::contract::GatewayUrl;
use crate::http_client::{HttpClient, quoted};
use crate::telemetry::metrics::Metrics;

/// Spans in one request: about half a megabyte.
const MAX_BATCH: usize = 512;
/// How long the first of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where spans go, and who they are from.
pub struct Collector {
    /// `/v1/traces` is appended.
    pub endpoint: GatewayUrl,
    pub instance: String,
    pub tls: Arc<rustls::ClientConfig>,
}

/// Until everyone who could record a span is gone.
pub async fn run(collector: Collector, mut queue: mpsc::Receiver<Posted>, metrics: &Metrics) {
    let client = HttpClient::new("collector", TIMEOUT, collector.tls);
    let url = format!("{}/v1/traces", collector.endpoint);
    let resource = Resource { instance: collector.instance };
    let mut works = true;
    while let Some(first) = queue.recv().await {
        let (spans, flushed) = batch(first, &mut queue).await;
        if !spans.is_empty() {
            let sent = send(&client, &url, &resource, &spans).await;
            metrics.spans(if sent.is_ok() { "exported" } else { "failed" }, spans.len());
            match &sent {
                Err(why) if works => log::warn!("spans_not_exported collector={url} error={why:?}"),
                Ok(()) if !works => log::info!("spans_exported_again collector={url}"),
                _ => {}
            }
            works = sent.is_ok();
        }
        if let Some(done) = flushed {
            let _whoever_asked_may_be_gone = done.send(());
        }
    }
}

/// What goes into one request, and who waits for it.
async fn batch(first: Posted, queue: &mut mpsc::Receiver<Posted>) -> (Vec<Span>, Option<oneshot::Sender<()>>) {
    let mut spans = Vec::new();
    let mut next = Some(first);
    let full = tokio::time::sleep(LINGER);
    tokio::pin!(full);
    loop {
        match next {
            Some(Posted::Span(span)) => spans.push(*span),
            Some(Posted::Flush(done)) => return (spans, Some(done)),
            None => return (spans, None),
        }
        if spans.len() >= MAX_BATCH {
            return (spans, None);
        }
        next = tokio::select! {
            more = queue.recv() => more,
            () = &mut full => return (spans, None),
        };
    }
}

async fn send(client: &HttpClient, url: &str, resource: &Resource, spans: &[Span]) -> Result<(), String> {
    let body = otlp::request(resource, spans).to_string();
    let request = client.post(url).header("Content-Type", "application/json");
    match client.send(request, body.into()).await {
        Ok(answer) if (200..300).contains(&answer.status) => Ok(()),
        Ok(answer) => Err(format!("answered HTTP {}{}", answer.status, quoted(&answer.body.unwrap_or_default()))),
        Err(error) => Err(error.to_string()),
    }
}
