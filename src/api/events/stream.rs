//! Server-sent events: the response of the streams.
//!
//! Each event has the cursor after it as its `id`, so a client that reconnects with `Last-Event-ID` misses nothing.
//! While there are no events, a comment keeps the connection open. It has an `id` too, so that the cursor of a client
//! whose filter excludes nearly all events does not become older than what retention keeps.

use std::fmt::Write;
use std::time::Duration;

use actix_web::http::header;
use actix_web::web::Bytes;
use actix_web::{Error, HttpResponse};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::reader::{FeedReader, ReadError, SentEvent};
use crate::platform::clock::monotonic;
use crate::telemetry::metrics::Metrics;
use crate::web::WebDeps;
use crate::web::error::ApiError;
use crate::web::streams::StreamSlot;

/// The time between two comments. Many proxies close connections without data after about a minute.
const COMMENT_INTERVAL: Duration = Duration::from_secs(15);
/// How long one stream lasts. Clients then connect again, perhaps to an instance that started later.
const MAX_DURATION: Duration = Duration::from_secs(60 * 60);
/// How many events are sent at once.
const PAGE: usize = 100;
/// How long clients wait before they reconnect, in milliseconds. The time is random, so that the clients of an instance
/// that stops do not all reconnect at the same moment.
const RECONNECT_MILLIS: std::ops::Range<u32> = 500..2500;

/// Responds with a stream of events. The first page is read before the response starts, so that an invalid cursor gets
/// an error response. The response to a HEAD has no body. `is_allowed` returns whether the client may still read the
/// feed; it is called repeatedly while the stream is open.
pub(in crate::api) async fn respond(
    deps: &WebDeps,
    is_head: bool,
    mut reader: FeedReader,
    event_type: &'static str,
    is_allowed: impl Fn() -> bool + 'static,
) -> Result<HttpResponse, ApiError> {
    let slot = deps.streams.take()?;
    let first = reader.page(PAGE).await?;
    let mut response = HttpResponse::Ok();
    response
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-store"))
        // Tells nginx not to collect the response before it passes it on.
        .insert_header(("X-Accel-Buffering", "no"));
    if is_head {
        return Ok(response.finish());
    }
    let now = monotonic();
    let mut stream = EventStream {
        reader,
        event_type,
        is_allowed: Box::new(is_allowed),
        first: None,
        comment_at: now + COMMENT_INTERVAL,
        end_at: now + MAX_DURATION,
        metrics: std::sync::Arc::clone(&deps.metrics),
        _slot: slot,
    };
    let begin = format!("retry: {}\n", fastrand::u32(RECONNECT_MILLIS));
    stream.first = Some(
        [Bytes::from(begin), if first.is_empty() { stream.comment() } else { stream.text(&first) }].concat().into(),
    );
    let body = futures_util::stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<_, Error>(bytes), stream))
    });
    Ok(response.streaming(body))
}

/// A server-sent event. The OpenAPI document describes its fields with this type.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only describes the events, which are written field by field")]
pub(in crate::api) struct SentEventJson {
    /// The cursor after this event. A comment, which comes while there are no events, has nothing else.
    #[schema(example = "e65c0b2f3c5d40")]
    id: Option<String>,
    /// The type of the event.
    #[schema(example = "intent.terminal")]
    event: Option<String>,
    /// The event as JSON, in the form that the page of events has.
    data: Option<String>,
    /// How many milliseconds to wait before connecting again.
    retry: Option<u32>,
}

/// One stream of events to a client.
struct EventStream {
    reader: FeedReader,
    event_type: &'static str,
    is_allowed: Box<dyn Fn() -> bool>,
    first: Option<Bytes>,
    comment_at: Instant,
    end_at: Instant,
    metrics: std::sync::Arc<Metrics>,
    _slot: StreamSlot,
}

impl EventStream {
    /// The next bytes; `None` at the end. The server asks for them when the client has read what came before.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            let Ok(read) = tokio::time::timeout_at(self.comment_at, self.reader.next(PAGE)).await else {
                let now = monotonic();
                self.comment_at = now + COMMENT_INTERVAL;
                return (now < self.end_at && (self.is_allowed)()).then(|| self.comment());
            };
            match read {
                Ok(events) if events.is_empty() => {}
                Ok(events) => return Some(self.text(&events)),
                Err(ReadError::TooSlow) => {
                    self.metrics.event_streams_dropped.inc();
                    return None;
                }
                Err(ReadError::Api(error)) => {
                    log::debug!("event_stream_ended error={error}");
                    return None;
                }
                Err(ReadError::Closed) => return None,
            }
        }
    }

    fn text(&self, events: &[SentEvent]) -> Bytes {
        let mut text = String::new();
        for SentEvent { cursor, json } in events {
            // Writing to a string cannot fail.
            let _infallible = write!(text, "id: {cursor}\nevent: {}\ndata: {json}\n\n", self.event_type);
        }
        text.into()
    }

    fn comment(&mut self) -> Bytes {
        format!(": no events\nid: {}\n\n", self.reader.cursor()).into()
    }
}
