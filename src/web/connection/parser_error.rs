//! Gives the error responses of actix's HTTP parser the JSON body that all other errors have.
//!
//! For a malformed request the parser sends a status without a body, and actix has no hook to change that. So this module
//! detects those responses in the bytes that actix writes: an empty response with one of four statuses that lacks the
//! `X-Content-Type-Options` header, which every response of the application has.

use actix_web::ResponseError;
use bytes::Bytes;

use super::HEAD_LIMIT;
use crate::web::error::ApiError;
use crate::web::server::NOSNIFF;

/// An upper bound for the length of a parser's error response.
const MAX_HEAD_BYTES: usize = 256;

/// Finds a parser's error response at the end of `written`. Returns where it starts and the response to write instead.
pub(super) fn find(written: &[u8]) -> Option<(usize, Bytes)> {
    if !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    let from = written.len().saturating_sub(MAX_HEAD_BYTES);
    let start = from + written[from..].windows(7).rposition(|window| window == b"HTTP/1.")?;
    let head = std::str::from_utf8(&written[start..]).ok()?;
    let (status_line, headers) = head.split_once("\r\n")?;
    let status = status_line.split(' ').nth(1)?;
    let is = |name: &str, line: &str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
    if !headers.lines().any(|line| line == "content-length: 0") || headers.lines().any(|line| is(NOSNIFF.0, line)) {
        return None;
    }
    let error = match status {
        "400" => ApiError::InvalidRequest("the request is not valid HTTP; check its headers and framing".to_owned()),
        "408" => ApiError::HeadTimeout { seconds: HEAD_LIMIT.as_secs() },
        "431" => ApiError::HeadTooLarge,
        "500" => ApiError::Internal,
        _ => return None,
    };
    debug_assert_eq!(error.status_code().as_str(), status);
    let body = error.json().to_string();
    let date: String = headers.lines().filter(|line| is("date", line)).map(|line| format!("{line}\r\n")).collect();
    let response = format!(
        "{status_line}\r\ncontent-length: {}\r\nconnection: close\r\ncontent-type: application/json\r\n{}: {}\r\n{date}\r\n{body}",
        body.len(),
        NOSNIFF.0.to_lowercase(),
        NOSNIFF.1,
    );
    Some((start, Bytes::from(response)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n";

    fn replacement(written: &str) -> Option<(usize, String)> {
        find(written.as_bytes()).map(|(start, response)| (start, String::from_utf8(response.to_vec()).unwrap()))
    }

    #[test]
    fn an_error_without_a_body_gets_one_and_keeps_its_date() {
        let (start, text) = replacement(BARE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(start, 0);
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{text}");
        assert!(head.ends_with("date: Thu, 01 Jan 1970 00:00:00 GMT"), "{text}");
        assert!(body.starts_with(r#"{"error":{"code":"invalid_request""#), "{text}");
    }

    #[test]
    fn only_parser_errors_are_replaced_even_after_other_responses() {
        let before = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        assert_eq!(replacement(&format!("{before}{BARE}")).unwrap().0, before.len());
        assert_eq!(replacement(before), None);
        assert_eq!(replacement("HTTP/1.1 100 Continue\r\n\r\n"), None);
        assert_eq!(replacement(&BARE.replace("date:", "x-content-type-options: nosniff\r\ndate:")), None, "ours");
        assert_eq!(replacement(&BARE.replace("length: 0", "length: 90")), None, "to a HEAD request");
        assert_eq!(replacement(&BARE.replace("400", "204")), None);
        assert_eq!(replacement("\r\n\r\n"), None);
    }
}
