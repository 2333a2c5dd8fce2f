//! Spans of requests and attempts, for whoever follows a submission through several services.
//!
//! Only of traces that their client chose to sample, and only while a collector is named: otherwise a [`Tracer`]
//! is an empty option, and nothing is made, kept or sent. Spans go through a bounded queue to [`exporter`], which
//! sends them as OTLP ([`otlp`]). What does not fit or arrive is counted and gone: a trace is a help, not a promise,
//! and never holds up what it is about.

mod exporter;
mod otlp;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use self::exporter::Collector;
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::telemetry::metrics::Metrics;

/// Spans that may wait to be sent: a few seconds' worth at full speed.
const MAX_WAITING: usize = 16 * 1024;
/// How long a stopping service waits for its last spans to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Something that was done in a trace, with a beginning and an end.
#[derive(Clone, Debug)]
pub struct Span {
    pub name: String,
    pub kind: Kind,
    /// Its own id, in the trace that it belongs to.
    pub context: TraceContext,
    /// What it was done for, if that is known.
    pub parent: Option<TraceContext>,
    pub started: Timestamp,
    pub ended: Timestamp,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Why it did not go well, if it did not.
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that was answered.
    Server,
    /// One that was made.
    Client,
}

#[derive(Clone, Debug)]
pub enum Attribute {
    Text(String),
    Number(i64),
}

enum Posted {
    Span(Box<Span>),
    /// Everything before this is to be sent now; told when it was.
    Flush(oneshot::Sender<()>),
}

/// Where spans are given to; cheap to clone, and to ask while there is no collector.
#[derive(Clone, Default)]
pub struct Tracer(Option<Queue>);

#[derive(Clone)]
struct Queue {
    sender: mpsc::Sender<Posted>,
    metrics: Arc<Metrics>,
}

impl Tracer {
    /// Starts sending to a collector, on a thread of its own.
    pub fn start(collector: Collector, metrics: Arc<Metrics>) -> Self {
        let (sender, queue) = mpsc::channel(MAX_WAITING);
        let counted = Arc::clone(&metrics);
        actix::Arbiter::new().spawn_fn(move || {
            actix::spawn(async move { exporter::run(collector, queue, &counted).await });
        });
        Self(Some(Queue { sender, metrics }))
    }

    /// A span of its own for something that is done for `parent`, if anybody wants to see that.
    pub fn begin(&self, parent: TraceContext) -> Option<TraceContext> {
        (self.0.is_some() && parent.is_sampled()).then(|| parent.child(fastrand::u64(..)))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub fn record(&self, span: Span) {
        if let Some(Queue { sender, metrics }) = &self.0
            && sender.try_send(Posted::Span(Box::new(span))).is_err()
        {
            metrics.spans("dropped", 1);
        }
    }

    /// Resolves when what was recorded has been sent, or could not be within a moment.
    pub async fn flush(&self) {
        let Some(Queue { sender, .. }) = &self.0 else { return };
        let (done, sent) = oneshot::channel();
        let flush = async {
            if sender.send(Posted::Flush(done)).await.is_ok() {
                let _or_the_exporter_died = sent.await;
            }
        };
        let _in_time_or_not = tokio::time::timeout(LAST_WORDS, flush).await;
    }
}
