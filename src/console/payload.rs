//! A payload as part of a page, when it is asked for: never more than a page can bear.

use actix_web::HttpResponse;
use askama::Template;

use super::{Console, PageError, page};

/// More of a payload is not shown: a page is no place for megabytes.
const SHOWN_BYTES: usize = 64 * 1024;

#[derive(Template)]
#[template(
    ext = "html",
    source = "<pre>{{ text }}</pre>{% if cut %}<p class=\"quiet\">The rest of {{ length }} bytes is not shown.</p>{% endif %}"
)]
struct PayloadPart {
    text: String,
    length: usize,
    cut: bool,
}

/// Refused where payloads are not to be looked at.
pub fn allowed(console: &Console) -> Result<(), PageError> {
    if console.payloads {
        return Ok(());
    }
    Err(PageError::Refused("Payloads are not shown here: SM_CONSOLE_PAYLOADS is off.".to_owned()))
}

pub fn part(bytes: &[u8]) -> Result<HttpResponse, PageError> {
    let shown = bytes.get(..SHOWN_BYTES).unwrap_or(bytes);
    let text = if bytes.is_empty() { "(no payload)".into() } else { String::from_utf8_lossy(shown) };
    page(&PayloadPart { text: text.into_owned(), length: bytes.len(), cut: shown.len() < bytes.len() })
}
