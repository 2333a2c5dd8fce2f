//! Parses the response of a gateway: JSON with the fields `status`, `reason` and `gatewayMessageId`.
//!
//! A response that is neither a clear acceptance nor a clear rejection is an error that quotes it. All other fields are
//! ignored, whatever they contain: an acceptance that cannot be parsed would be sent again.

use serde_json::value::RawValue;

use crate::domain::outcome::Outcome;
use crate::domain::raw_json::{Object, text_of};
use crate::http_client::{quoted, shown};

/// How much of a value is kept. Known reasons and usual ids are far shorter, and a history of thousands of attempts with values as
/// long as a response may be would not fit into memory.
const MAX_VALUE_CHARS: usize = 1000;

/// The outcome that a response means.
pub fn read(http_status: u16, body: &[u8]) -> Outcome {
    if !(200..300).contains(&http_status) {
        return Outcome::error(format!("gateway answered HTTP {http_status}{}", quoted(body)));
    }
    if body.is_empty() {
        return Outcome::error("gateway answered with an empty body");
    }
    let unexpected = |problem: &str| {
        Outcome::error(format!("gateway's answer is not the expected JSON ({}){}", shown(problem), quoted(body)))
    };
    let text = String::from_utf8_lossy(body);
    let raw: &RawValue = match serde_json::from_str(text.trim_start_matches('\u{feff}')) {
        Ok(raw) => raw,
        Err(error) => return unexpected(&error.to_string()),
    };
    let Some(answer) = Object::of(raw) else { return unexpected("not an object") };
    let gateway_message_id = non_blank_text(answer.get("gatewayMessageId"));
    match (non_blank_text(answer.get("status")).as_deref(), non_blank_text(answer.get("reason"))) {
        (Some("accepted"), _) => Outcome::Accepted { gateway_message_id },
        (Some("rejected"), Some(reason)) => Outcome::Rejected { reason, gateway_message_id },
        (Some("rejected"), None) => Outcome::error("gateway rejected without giving a reason"),
        (Some(other), _) => Outcome::error(format!("gateway answered with unknown status {:?}", shown(other))),
        (None, _) => Outcome::error(format!("gateway's answer has no status{}", quoted(body))),
    }
}

/// The text of a string or number, shortened to [`MAX_VALUE_CHARS`], or `None` if it is blank. Control characters become
/// spaces, because not every store can store them.
fn non_blank_text(value: Option<&RawValue>) -> Option<String> {
    let text = text_of(value?)?.replace(char::is_control, " ");
    let kept: String = text.trim().chars().take(MAX_VALUE_CHARS).collect();
    Some(kept).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn rejected(reason: &str, gateway_message_id: Option<String>) -> Outcome {
        Outcome::Rejected { reason: reason.to_owned(), gateway_message_id }
    }

    #[test]
    fn responses_become_outcomes() {
        let accepted = |gateway_message_id| Outcome::Accepted { gateway_message_id };
        let error = |text: &str| Outcome::error(text);
        let cases: Vec<(u16, &str, Outcome)> = vec![
            (200, r#"{"status":"accepted"}"#, accepted(None)),
            (202, r#"{"status":" accepted ","gatewayMessageId":" m1 ","x":[1]}"#, accepted(id("m1"))),
            (200, r#"{"status":"accepted","reason":"ignored","gatewayMessageId":" "}"#, accepted(None)),
            (200, r#"{"status":"rejected","reason":" invalid_recipient "}"#, rejected("invalid_recipient", None)),
            (200, r#"{"status":"rejected","reason":"new","gatewayMessageId":"m"}"#, rejected("new", id("m"))),
            (200, r#"{"status":"rejected","reason":"a\u0000b"}"#, rejected("a b", None)),
            (200, r#"{"status":"accepted","gatewayMessageId":12345}"#, accepted(id("12345"))),
            (200, r#"{"status":"accepted","gatewayMessageId":{"a":1}}"#, accepted(None)),
            (200, r#"{"status":"rejected"}"#, error("gateway rejected without giving a reason")),
            (200, r#"{"status":"rejected","reason":"  "}"#, error("gateway rejected without giving a reason")),
            (200, r#"{"status":"Accepted"}"#, error(r#"gateway answered with unknown status "Accepted""#)),
            (200, r#"{"status":"queued"}"#, error(r#"gateway answered with unknown status "queued""#)),
            (200, r#"{"state":"accepted"}"#, error(r#"gateway's answer has no status: {"state":"accepted"}"#)),
            (200, r#"{"status":null}"#, error(r#"gateway's answer has no status: {"status":null}"#)),
            (200, "", error("gateway answered with an empty body")),
            (500, r#"{"status":"accepted"}"#, error(r#"gateway answered HTTP 500: {"status":"accepted"}"#)),
            (302, "", error("gateway answered HTTP 302")),
            (503, "try\nlater\u{1b}", error("gateway answered HTTP 503: try later ")),
        ];
        for (status, body, expected) in cases {
            assert_eq!(read(status, body.as_bytes()), expected, "{status} {body}");
        }
    }

    #[test]
    fn other_fields_are_ignored_whatever_they_contain() {
        let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
        for odd in [r#""cut \ud83d""#, r#""\udc00\ud800""#, "1e999", "-1e-999", &deep, &deep.replace("[]", "[{}]")] {
            let body =
                format!(r#"{{"a":{odd},"status":"accepted","b":{{"status":{odd}}},"gatewayMessageId":"m","c":{odd}}}"#);
            assert_eq!(read(200, body.as_bytes()), Outcome::Accepted { gateway_message_id: id("m") }, "{odd:.40}");
        }
        let latin = b"\xef\xbb\xbf{\"status\":\"accepted\",\"text\":\"caf\xe9\"}";
        assert_eq!(read(200, latin), Outcome::Accepted { gateway_message_id: None });
        for (body, expected) in [
            (r#"{"status":"rejected","reason":"cut \ud83d"}"#, rejected("cut \u{fffd}\u{fffd}\u{fffd}", None)),
            (r#"{"status":"queued","status":"accepted"}"#, Outcome::Accepted { gateway_message_id: None }),
            (r#"{"\u0073tatus":"accepted"}"#, Outcome::Accepted { gateway_message_id: None }),
            (
                r#"{"status":"accepted","gatewayMessageId":1e999}"#,
                Outcome::Accepted { gateway_message_id: id("1e999") },
            ),
        ] {
            assert_eq!(read(200, body.as_bytes()), expected, "{body}");
        }
        for body in [r#"{"status":"accepted"} {}"#, r#"{"status":"accepted","x":[}"#, r#"{"status":"accepted""#] {
            assert!(matches!(read(200, body.as_bytes()), Outcome::Error { .. }), "{body}");
        }
    }

    #[test]
    fn long_values_are_shortened() {
        let long = "é".repeat(30_000);
        let kept = "é".repeat(MAX_VALUE_CHARS);
        let body = format!(r#"{{"status":"rejected","reason":"{long}","gatewayMessageId":"{long}"}}"#);
        assert_eq!(read(200, body.as_bytes()), rejected(&kept, Some(kept.clone())));
    }

    #[test]
    fn an_unexpected_response_is_quoted_only_in_part() {
        let Outcome::Error { text, .. } = read(200, "<html>".repeat(1000).as_bytes()) else { panic!("not an error") };
        assert!(text.starts_with("gateway's answer is not the expected JSON (") && text.ends_with('…'), "{text}");
        assert!(text.chars().count() < 400);
        assert!(matches!(read(200, b"\xff\xfe{}"), Outcome::Error { .. }));
        assert!(matches!(read(200, br#"{"status":7}"#), Outcome::Error { .. }));
        assert!(matches!(read(200, br#"["accepted",null,"x"]"#), Outcome::Error { .. }));
        assert!(matches!(read(200, br#"{"status":"accepted"} x"#), Outcome::Error { .. }));
    }
}
