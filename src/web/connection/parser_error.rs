//! Errors that actix's HTTP parser answers by itself: a status and no body. Here they get the JSON body that every other
//! error has.
//!
//! actix has no hook for them, so they are recognised in what it writes: an empty answer with one of four statuses that
//! lacks the header which every answer of the application has.

use actix_web::ResponseError;
use bytes::Bytes;

use super::HEAD_LIMIT;
use crate::web::error::ApiError;
use crate::web::server::NOSNIFF;

/// More than the head of such an answer has.
const LONGEST: usize = 256;

/// Where in `written` such an answer stands, always at its end, and what to write in its place.
pub(super) fn find(written: &[u8]) -> Option<(usize, Bytes)> {
    if !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    let from = written.len().saturating_sub(LONGEST);
    let start = from + written[from..].windows(7).rposition(|window| window == b"HTTP/1.")?;
    let head = std::str::from_utf8(&written[start..]).ok()?;
    let (status_line, headers) = head.split_once("\r\n")?;
    let status = status_line.split(' ').nth(1)?;
    let is = |name: &str, line: &str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
    if !headers.lines().any(|line| line == "content-length: 0") || headers.lines().any(|line| is(NOSNIFF.0, line)) {
        return None;
    }
    let error = match status {
        "400" => ApiError::InvalidRequest("the request is not valid HTTP; check its head and framing".to_owned()),
        "408" => ApiError::HeadTimeout { seconds: HEAD_LIMIT.as_secs() },
        "431" => ApiError::HeadTooLarge,
        "500" => ApiError::Internal,
        _ => return None,
    };
    debug_assert_eq!(error.status_code().as_str(), status);
    let body = error.json().to_string();
    let date: String = headers.lines().filter(|line| is("date", line)).map(|line| format!("{line}\r\n")).collect();
    let answer = format!(
        "{status_line}\r\ncontent-length: {}\r\nconnection: close\r\ncontent-type: application/json\r\n{}: {}\r\n{date}\r\n{body}",
        body.len(),
        NOSNIFF.0.to_lowercase(),
        NOSNIFF.1,
    );
    Some((start, Bytes::from(answer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n";

    fn answer(written: &str) -> Option<(usize, String)> {
        find(written.as_bytes()).map(|(start, answer)| (start, String::from_utf8(answer.to_vec()).unwrap()))
    }

    #[test]
    fn a_bare_error_gets_a_body_and_keeps_its_date() {
        let (start, text) = answer(BARE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(start, 0);
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{text}");
        assert!(head.ends_with("date: Thu, 01 Jan 1970 00:00:00 GMT"), "{text}");
        assert!(body.starts_with(r#"{"error":{"code":"invalid_request""#), "{text}");
    }

    #[test]
    fn it_is_found_behind_other_answers_and_nothing_else_is_taken_for_it() {
        let before = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        assert_eq!(answer(&format!("{before}{BARE}")).unwrap().0, before.len());
        assert_eq!(answer(before), None);
        assert_eq!(answer("HTTP/1.1 100 Continue\r\n\r\n"), None);
        assert_eq!(answer(&BARE.replace("date:", "x-content-type-options: nosniff\r\ndate:")), None, "ours");
        assert_eq!(answer(&BARE.replace("length: 0", "length: 90")), None, "to a HEAD request");
        assert_eq!(answer(&BARE.replace("400", "204")), None);
        assert_eq!(answer("\r\n\r\n"), None);
    }
}
