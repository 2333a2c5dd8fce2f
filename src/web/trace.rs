//! `traceparent` in and out: the trace that a request belongs to, made if it brings none.

use actix_web::{HttpMessage, HttpRequest};

use crate::domain::trace::{SAMPLED, TraceContext};

pub const TRACEPARENT: &str = "traceparent";

/// The span that a request is answered in, where spans are recorded.
#[derive(Clone, Copy)]
pub struct Answering(pub TraceContext);

/// The trace that a request belongs to: that of its span, or what it says.
pub fn given(request: &HttpRequest) -> Option<TraceContext> {
    request.extensions().get::<Answering>().map(|Answering(span)| *span).or_else(|| said(request))
}

/// What the request says.
pub fn said(request: &HttpRequest) -> Option<TraceContext> {
    request.headers().get(TRACEPARENT)?.to_str().ok().and_then(TraceContext::parse)
}

/// The same, or a trace of its own.
pub fn given_or_new(request: &HttpRequest) -> TraceContext {
    given(request).unwrap_or_else(new)
}

pub fn new() -> TraceContext {
    loop {
        if let Some(context) = TraceContext::new(fastrand::u128(..), fastrand::u64(..), SAMPLED) {
            return context;
        }
    }
}

/// The same trace with a new id for what is done in it here.
pub fn child(context: TraceContext) -> TraceContext {
    context.child(fastrand::u64(..))
}
