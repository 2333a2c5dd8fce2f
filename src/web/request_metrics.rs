//! Measures every request: how many there are, how long they take, and with which status they end. The label is the
//! route (`/v1/intents/{intentId}`), not the path, so ids never become labels.
//!
//! If trace spans are recorded, every request that belongs to a sampled trace gets a server span.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, web};

use super::WebDeps;
use super::trace::{self, RequestSpan};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::platform::clock::monotonic;
use crate::telemetry::spans::{Attribute, Kind, Span};

/// Middleware that measures requests and records their trace spans.
pub(super) async fn record(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let started = monotonic();
    let deps = request.app_data::<web::Data<WebDeps>>().cloned();
    let route = request.match_pattern().unwrap_or_else(|| "other".to_owned());
    let span = deps.as_ref().and_then(|deps| OpenSpan::start(&request, deps));
    let response = next.call(request).await;
    if let Some(deps) = deps {
        let status = match &response {
            Ok(response) => response.status(),
            Err(error) => error.as_response_error().status_code(),
        };
        deps.metrics.request_answered(&route, status.as_u16(), monotonic().duration_since(started));
        if let Some(span) = span {
            span.finish(&deps, route, status);
        }
    }
    response
}

/// The trace span of a request that is being handled.
struct OpenSpan {
    parent: Option<TraceContext>,
    context: TraceContext,
    method: Method,
    started: Timestamp,
}

impl OpenSpan {
    /// `None` if spans are not recorded, or the request belongs to no sampled trace.
    fn start(request: &ServiceRequest, deps: &WebDeps) -> Option<Self> {
        if !deps.tracer.is_on() {
            return None;
        }
        let parent = trace::from_header(request.request());
        let context = match parent {
            Some(parent) => deps.tracer.begin(parent)?,
            // Every job belongs to a trace, even if its client sent no `traceparent`.
            None if request.method() == Method::POST && request.path().trim_end_matches('/') == "/v1/jobs" => {
                trace::new()
            }
            None => return None,
        };
        request.extensions_mut().insert(RequestSpan(context));
        Some(Self { parent, context, method: request.method().clone(), started: deps.clock.now() })
    }

    fn finish(self, deps: &WebDeps, route: String, status: StatusCode) {
        let Self { parent, context, method, started } = self;
        deps.tracer.record(Span {
            name: format!("{method} {route}"),
            kind: Kind::Server,
            context,
            parent,
            started,
            ended: deps.clock.now(),
            error: status.is_server_error().then(|| format!("HTTP {}", status.as_u16())),
            attributes: vec![
                ("http.request.method", Attribute::Text(method.to_string())),
                ("http.route", Attribute::Text(route)),
                ("http.response.status_code", Attribute::Number(status.as_u16().into())),
            ],
        });
    }
}
