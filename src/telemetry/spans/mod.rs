//! Trace spans of requests and attempts.
//!
//! A span is recorded only if the client sampled its trace and a collector is configured. Spans go through a bounded queue
//! to [`exporter`], which sends them as OTLP ([`otlp`]). Spans that do not fit into the queue or cannot be delivered are
//! counted and dropped, so that tracing never delays the work that it describes.

mod exporter;
mod otlp;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use self::exporter::Collector;
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::telemetry::metrics::Metrics;

/// Spans that may wait to be sent: those of a few seconds at full load.
const MAX_WAITING: usize = 16 * 1024;
/// How long [`Tracer::flush`] waits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// One operation in a trace, with its start and its end.
#[derive(Clone, Debug)]
pub struct Span {
    pub name: String,
    pub kind: Kind,
    /// The id of the trace and the id of this span.
    pub context: TraceContext,
    /// The span that caused this one, if it is known.
    pub parent: Option<TraceContext>,
    pub started: Timestamp,
    pub ended: Timestamp,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Why the operation failed, if it did.
    pub error: Option<String>,
}

/// The side of a request that a span is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that the service received.
    Server,
    /// A request that the service sent.
    Client,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum Attribute {
    Text(String),
    Number(i64),
}

enum QueueItem {
    Span(Box<Span>),
    /// Asks for everything before it to be sent now, and to reply when that is done.
    Flush(oneshot::Sender<()>),
}

/// Records spans. It is cheap to clone, and does nothing if no collector is configured.
#[derive(Clone, Default)]
pub struct Tracer(Option<Queue>);

#[derive(Clone)]
struct Queue {
    sender: mpsc::Sender<QueueItem>,
    metrics: Arc<Metrics>,
}

impl Tracer {
    /// Starts an exporter for the collector, on a thread of its own.
    pub fn start(collector: Collector, metrics: Arc<Metrics>) -> Self {
        let (sender, queue) = mpsc::channel(MAX_WAITING);
        let exporter_metrics = Arc::clone(&metrics);
        actix::Arbiter::new().spawn_fn(move || {
            actix::spawn(async move { exporter::run(collector, queue, &exporter_metrics).await });
        });
        Self(Some(Queue { sender, metrics }))
    }

    /// The ids of a new span with the given parent, or `None` if the trace is not sampled or there is no collector.
    pub fn begin(&self, parent: TraceContext) -> Option<TraceContext> {
        (self.0.is_some() && parent.is_sampled()).then(|| parent.child(fastrand::u64(..)))
    }

    /// Whether a collector is configured.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Queues a span for the collector. Drops it if the queue is full.
    pub fn record(&self, span: Span) {
        if let Some(Queue { sender, metrics }) = &self.0
            && sender.try_send(QueueItem::Span(Box::new(span))).is_err()
        {
            metrics.spans("dropped", 1);
        }
    }

    /// Waits until all spans recorded so far are sent, but not longer than [`FLUSH_TIMEOUT`].
    pub async fn flush(&self) {
        let Some(Queue { sender, .. }) = &self.0 else { return };
        let (done, sent) = oneshot::channel();
        let flush = async {
            if sender.send(QueueItem::Flush(done)).await.is_ok() {
                // An error means that the exporter stopped, so there is nothing to wait for.
                let _ignored = sent.await;
            }
        };
        // Spans that are not sent in time are lost.
        let _ignored = tokio::time::timeout(FLUSH_TIMEOUT, flush).await;
    }
}
