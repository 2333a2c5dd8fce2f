//! Sends spans to a collector in batches: one request a second, or earlier if a batch is full.
//!
//! A batch that cannot be delivered is dropped. The first failure is logged, and so is the first success after it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::otlp::{self, Resource};
use super::{QueueItem, Span};
use crate::domain::contract::GatewayUrl;
use crate::http_client::{HttpClient, one_line, quoted};
use crate::platform::errors::BoxError;
use crate::telemetry::metrics::Metrics;

/// Spans in one request: about half a megabyte.
const MAX_BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// The timeout of one request to the collector.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where spans are sent, and the instance that sends them.
pub struct Collector {
    /// The base URL, to which `/v1/traces` is appended.
    pub endpoint: GatewayUrl,
    pub instance: String,
    pub tls: Arc<rustls::ClientConfig>,
}

/// Sends spans from the queue until all its senders are dropped.
pub(super) async fn run(collector: Collector, mut queue: mpsc::Receiver<QueueItem>, metrics: &Metrics) {
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
                Err(error) if works => {
                    log::warn!("spans_not_exported collector={url} error={:?}", one_line(error.as_ref()));
                }
                Ok(()) if !works => log::info!("spans_exported_again collector={url}"),
                _ => {}
            }
            works = sent.is_ok();
        }
        if let Some(done) = flushed {
            // The caller of `flush` may have stopped waiting.
            let _ignored = done.send(());
        }
    }
}

/// Collects the spans of one request. Also returns the reply channel of a flush, if one ended the batch.
async fn batch(first: QueueItem, queue: &mut mpsc::Receiver<QueueItem>) -> (Vec<Span>, Option<oneshot::Sender<()>>) {
    let mut spans = Vec::new();
    let mut next = Some(first);
    let linger = tokio::time::sleep(LINGER);
    tokio::pin!(linger);
    loop {
        match next {
            Some(QueueItem::Span(span)) => spans.push(*span),
            Some(QueueItem::Flush(done)) => return (spans, Some(done)),
            None => return (spans, None),
        }
        if spans.len() >= MAX_BATCH {
            return (spans, None);
        }
        next = tokio::select! {
            more = queue.recv() => more,
            () = &mut linger => return (spans, None),
        };
    }
}

async fn send(client: &HttpClient, url: &str, resource: &Resource, spans: &[Span]) -> Result<(), BoxError> {
    let body = otlp::request(resource, spans).to_string();
    let request = client.post(url).header("Content-Type", "application/json");
    match client.send(request, body.into()).await {
        Ok(answer) if (200..300).contains(&answer.status) => Ok(()),
        Ok(answer) => {
            Err(format!("answered HTTP {}{}", answer.status, quoted(&answer.body.unwrap_or_default())).into())
        }
        Err(error) => Err(error.into()),
    }
}
