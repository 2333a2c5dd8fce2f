//! `traceparent` in and out: the trace that a request belongs to, made if it brings none.

use actix_web::HttpRequest;

use crate::core::trace::TraceContext;

pub const TRACEPARENT: &str = "traceparent";

/// What the request says.
pub fn given(request: &HttpRequest) -> Option<TraceContext> {
    request.headers().get(TRACEPARENT)?.to_str().ok().and_then(TraceContext::parse)
}

/// What the request says, or a trace of its own.
pub fn given_or_new(request: &HttpRequest) -> TraceContext {
    given(request).unwrap_or_else(new)
}

fn new() -> TraceContext {
    const SAMPLED: u8 = 1;
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
