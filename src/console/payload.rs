//! Shows a payload as a fragment of a page, when the operator asks for it. Large payloads are cut off.

use actix_web::HttpResponse;
use askama::Template;

use super::{Console, PageError, page};

/// How many bytes of a payload are shown.
const SHOWN_BYTES: usize = 64 * 1024;

#[derive(Template)]
#[template(
    ext = "html",
    source = "<pre>{{ text }}</pre>{% if cut %}<p class=\"quiet\">The payload has {{ length }} bytes; only the first part is shown.</p>{% endif %}"
)]
struct PayloadFragment {
    text: String,
    length: usize,
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
    let text = if bytes.is_empty() { "(no payload)".into() } else { String::from_utf8_lossy(shown) };
    page(&PayloadFragment { text: text.into_owned(), length: bytes.len(), cut: shown.len() < bytes.len() })
}
