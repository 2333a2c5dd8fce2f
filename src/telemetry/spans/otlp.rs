//! Writes spans as OTLP in JSON: ids in hex, times in nanoseconds as strings, attributes as tagged values.
//!
//! This is written by hand because it is short, and the crates for OTLP bring a second HTTP stack and gRPC.

use serde_json::{Value, json};

use super::{Attribute, Kind, Span};
use crate::domain::time::Timestamp;

/// The instance that the spans come from.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub instance: String,
}

/// The body of an export request.
pub(super) fn request(resource: &Resource, spans: &[Span]) -> Value {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let version = env!("CARGO_PKG_VERSION");
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            text("service.name", env!("CARGO_PKG_NAME")),
            text("service.version", version),
            text("service.instance.id", &resource.instance),
        ]},
        "scopeSpans": [{
            "scope": { "name": env!("CARGO_PKG_NAME"), "version": version },
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }]})
}

fn span(span: &Span) -> Value {
    let kind = match span.kind {
        Kind::Server => 2,
        Kind::Client => 3,
    };
    let status = match &span.error {
        Some(error) => json!({ "code": 2, "message": error }),
        None => json!({}),
    };
    json!({
        "traceId": span.context.trace_id(),
        "spanId": span.context.span_id(),
        "parentSpanId": span.parent.map(|parent| parent.span_id()).unwrap_or_default(),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": nanos(span.started),
        "endTimeUnixNano": nanos(span.ended.max(span.started)),
        "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
        "status": status,
    })
}

fn attribute((key, value): &(&'static str, Attribute)) -> Value {
    let value = match value {
        Attribute::Text(text) => json!({ "stringValue": text }),
        Attribute::Number(number) => json!({ "intValue": number.to_string() }),
    };
    json!({ "key": key, "value": value })
}

fn nanos(moment: Timestamp) -> String {
    (i128::from(moment.micros()) * 1000).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::trace::TraceContext;

    #[test]
    fn spans_are_written_as_the_protocol_requires() {
        let parent = TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        let spans = [Span {
            name: "POST /v1/intents".to_owned(),
            kind: Kind::Server,
            context: parent.child(7),
            parent: Some(parent),
            started: Timestamp::from_micros(1_790_000_000_000_001),
            ended: Timestamp::from_micros(1_790_000_000_000_000),
            attributes: vec![
                ("http.response.status_code", Attribute::Number(503)),
                ("http.route", Attribute::Text("/v1/intents".to_owned())),
            ],
            error: Some("HTTP 503".to_owned()),
        }];
        let resource = Resource { instance: "me".to_owned() };
        let written = request(&resource, &spans);
        assert_eq!(written["resourceSpans"][0]["resource"]["attributes"][2]["value"]["stringValue"], "me");
        assert_eq!(
            written["resourceSpans"][0]["scopeSpans"][0]["spans"][0],
            json!({
                "traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "0000000000000007",
                "parentSpanId": "00f067aa0ba902b7", "name": "POST /v1/intents", "kind": 2,
                "startTimeUnixNano": "1790000000000001000", "endTimeUnixNano": "1790000000000001000",
                "attributes": [
                    { "key": "http.response.status_code", "value": { "intValue": "503" } },
                    { "key": "http.route", "value": { "stringValue": "/v1/intents" } },
                ],
                "status": { "code": 2, "message": "HTTP 503" },
            }),
            "and a span never ends before it starts"
        );
    }
}
