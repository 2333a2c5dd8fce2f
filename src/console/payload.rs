//! Shows a payload as a fragment of a page, when the operator asks for it: formatted and as it is, with its size and hash. Large
//! payloads are cut off.

use actix_web::HttpResponse;
use askama::Template;
use sha2::{Digest, Sha256};

use super::{Console, PageError, page};

/// How many bytes of a payload are shown.
const SHOWN_BYTES: usize = 64 * 1024;

#[derive(Template)]
#[template(path = "console/payload.html")]
struct PayloadFragment {
    text: String,
    /// The payload with line breaks and indentation, if it is JSON and has none of its own.
    formatted: Option<String>,
    length: usize,
    sha256: String,
    cut: bool,
}

/// Fails if `SM_CONSOLE_PAYLOADS` is off.
pub(super) fn require_enabled(console: &Console) -> Result<(), PageError> {
    if console.payloads {
        return Ok(());
    }
    Err(PageError::Refused("Payloads are not shown here: SM_CONSOLE_PAYLOADS is off.".to_owned()))
}

/// The HTML of a payload. Bytes that are not UTF-8 are replaced.
pub(super) fn fragment(bytes: &[u8]) -> Result<HttpResponse, PageError> {
    let shown = bytes.get(..SHOWN_BYTES).unwrap_or(bytes);
    let cut = shown.len() < bytes.len();
    let text = String::from_utf8_lossy(shown).into_owned();
    page(&PayloadFragment {
        formatted: if cut { None } else { formatted(&text).filter(|formatted| *formatted != text) },
        length: bytes.len(),
        sha256: Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect(),
        text,
        cut,
    })
}

/// How deep JSON may be nested to be formatted. Clients choose the payload, and every level indents each line further.
const MAX_DEPTH: usize = 32;
/// How long formatted JSON may be: indentation can make it much longer than the payload.
const MAX_FORMATTED: usize = 4 * SHOWN_BYTES;

/// JSON with line breaks and indentation; `None` if the text is not JSON, or nested too deeply to be shown in this way. Names,
/// values and their order stay as they are, so numbers keep their digits.
pub(super) fn formatted(text: &str) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let (mut shown, mut depth, mut in_string, mut escaped) = (String::new(), 0_usize, false, false);
    let mut rest = text.trim().chars().filter(|c| !c.is_control()).peekable();
    let line = |shown: &mut String, depth: usize| {
        shown.push('\n');
        shown.extend(std::iter::repeat_n("  ", depth));
    };
    while let Some(c) = rest.next() {
        if depth > MAX_DEPTH || shown.len() > MAX_FORMATTED {
            return None;
        }
        if in_string {
            shown.push(c);
            in_string = c != '"' || escaped;
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            ' ' => {}
            '"' => {
                in_string = true;
                shown.push(c);
            }
            '{' | '[' => {
                shown.push(c);
                while rest.next_if_eq(&' ').is_some() {}
                match rest.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => shown.push(end),
                    None => {
                        depth += 1;
                        line(&mut shown, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut shown, depth);
                shown.push(c);
            }
            ',' => {
                shown.push(c);
                line(&mut shown, depth);
            }
            ':' => shown.push_str(": "),
            _ => shown.push(c),
        }
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_formatted_without_changing_its_values() {
        for (text, shown) in [
            (
                r#"{"b":1.50,"a":[ 1,{} , []],"t":"x: {\" , é"}"#,
                Some("{\n  \"b\": 1.50,\n  \"a\": [\n    1,\n    {},\n    []\n  ],\n  \"t\": \"x: {\\\" , é\"\n}"),
            ),
            ("{\n \"a\" : \"\\\\\"\n}", Some("{\n  \"a\": \"\\\\\"\n}")),
            ("12345678901234567890.0", Some("12345678901234567890.0")),
            ("not JSON", None),
            (&format!("{}{}", "[".repeat(20_000), "]".repeat(20_000)), None),
            (&format!("{}{}{}", "[".repeat(30), "1,".repeat(20_000) + "1", "]".repeat(30)), None),
            ("", None),
        ] {
            assert_eq!(formatted(text).as_deref(), shown, "{text}");
        }
    }
}
