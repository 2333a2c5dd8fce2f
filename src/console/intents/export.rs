//! `/ui/export`: the intents of a list as CSV or NDJSON, sent page by page while they are read.

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use url::form_urlencoded;

use super::filter::Filter;
use crate::console::PageError;
use crate::domain::intent::Intent;
use crate::store::{ListQuery, StoreError};
use crate::web::WebDeps;

/// How many intents an export has at most.
const MAX_EXPORTED: usize = 10_000;
/// How many intents are read at a time.
const PAGE: usize = 200;
const HEADINGS: &str = "intentId,status,reason,submissionTarget,createdAt,completedAt,attempts\r\n";

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Csv,
    Ndjson,
}

/// The part of the export that is still to be sent; `None` once everything is sent.
type Rest = Option<(web::Data<WebDeps>, ListQuery, usize)>;

/// Exports the list that the query string describes.
pub(in crate::console) async fn export(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, PageError> {
    let text = request.query_string();
    let (filter, query) = Filter::parse(text, deps.clock.now());
    if !filter.is_valid() {
        return Err(PageError::NotDone("The filter is invalid. Correct it in the list of intents first.".to_owned()));
    }
    let ndjson = form_urlencoded::parse(text.as_bytes()).any(|(name, value)| name == "format" && value == "ndjson");
    let (format, content_type, name) = match ndjson {
        true => (Format::Ndjson, "application/x-ndjson", "intents.ndjson"),
        false => (Format::Csv, "text/csv; charset=utf-8", "intents.csv"),
    };
    let first: Rest = Some((deps, ListQuery { limit: PAGE, after: None, ..query }, 0));
    let pages = stream::try_unfold(first, move |rest| async move {
        let Some((deps, query, sent)) = rest else { return Ok::<_, StoreError>(None) };
        let page = deps.store.list(query.clone()).await?;
        let mut text = if query.after.is_none() && format == Format::Csv { HEADINGS.to_owned() } else { String::new() };
        page.intents.iter().take(MAX_EXPORTED - sent).for_each(|intent| text += &line(intent, format));
        let sent = sent + page.intents.len();
        let rest = page.next.filter(|_| sent < MAX_EXPORTED);
        let rest = rest.map(|next| (deps, ListQuery { after: Some(next), ..query }, sent));
        Ok(Some((Bytes::from(text), rest)))
    });
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, content_type))
        .insert_header((header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")))
        .streaming(pages))
}

fn line(intent: &Intent, format: Format) -> String {
    let reason = intent.state.rejected_reason().or(intent.state.exhausted_reason().map(|reason| reason.as_str()));
    let status = intent.state.status().as_str();
    let completed_at = intent.state.completed_at().map(|at| at.to_string());
    match format {
        Format::Ndjson => {
            let line = json!({
                "intentId": intent.id.as_str(), "status": status, "reason": reason,
                "submissionTarget": intent.target.as_str(), "createdAt": intent.created_at.to_string(),
                "completedAt": completed_at, "attempts": intent.attempt_count,
            });
            format!("{line}\n")
        }
        Format::Csv => {
            let cells = [
                intent.id.as_str(),
                status,
                reason.unwrap_or_default(),
                intent.target.as_str(),
                &intent.created_at.to_string(),
                &completed_at.unwrap_or_default(),
                &intent.attempt_count.to_string(),
            ];
            format!("{}\r\n", cells.map(cell).join(","))
        }
    }
}

/// A cell of CSV. Text that a spreadsheet would take for a formula gets an apostrophe.
fn cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r', ';']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        for (text, shown) in [
            ("order-1", "order-1"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
            ("-1,2", "\"'-1,2\""),
            ("", ""),
        ] {
            assert_eq!(cell(text), shown);
        }
    }
}
