//! Trace context of requests: reads the W3C `traceparent` header and creates a new trace for requests without one.

use actix_web::{HttpMessage, HttpRequest};

use crate::domain::trace::{SAMPLED, TraceContext};

/// The name of the W3C trace context header.
pub const TRACEPARENT: &str = "traceparent";

/// The trace span in which a request is handled. A request has it as an extension if its span is being recorded.
#[derive(Clone, Copy)]
pub struct RequestSpan(pub TraceContext);

/// The trace context of a request: its recorded span if there is one, otherwise its `traceparent` header.
pub fn of_request(request: &HttpRequest) -> Option<TraceContext> {
    request.extensions().get::<RequestSpan>().map(|RequestSpan(span)| *span).or_else(|| from_header(request))
}

/// The trace context in the `traceparent` header, if the header is there and valid.
pub fn from_header(request: &HttpRequest) -> Option<TraceContext> {
    request.headers().get(TRACEPARENT)?.to_str().ok().and_then(TraceContext::parse)
}

/// The trace context of a request, or a new one if it has none.
pub fn of_request_or_new(request: &HttpRequest) -> TraceContext {
    of_request(request).unwrap_or_else(new)
}

/// A new trace with random ids that is marked as sampled.
pub fn new() -> TraceContext {
    loop {
        // An id of zero is invalid; the next iteration makes another one.
        if let Some(context) = TraceContext::new(fastrand::u128(..), fastrand::u64(..), SAMPLED) {
            return context;
        }
    }
}

/// The same trace with a new random span id.
pub fn child(context: TraceContext) -> TraceContext {
    context.child(fastrand::u64(..))
}
