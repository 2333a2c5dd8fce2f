//! `/ui/intents/{intentId}/redrive` and `/edit`: sends one failed intent again, with its payload or with an edited one.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;

use super::form::Form;
use super::intent::{no_such, parse_id};
use super::nav::Nav;
use super::search::redirect;
use super::wording::intent_href;
use super::{Console, PageError, page, payload};
use crate::api::redrives::single::redrive_intent;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::{IntentId, Payload};
use crate::web::WebDeps;
use crate::web::operator::Operator;
use crate::web::trace;

/// The largest payload that can be edited in a page.
const MAX_EDITED: usize = 64 * 1024;

#[derive(Template)]
#[template(path = "console/edit.html")]
struct EditPage {
    nav: Nav,
    id: IntentId,
    href: String,
    text: String,
    /// Why the payload cannot be edited here.
    problem: Option<&'static str>,
}

/// The form to edit the payload of an intent before it is sent again.
pub(super) async fn edit(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
    operator: Operator,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    payload::require_enabled(&console)?;
    let id = parse_id(&path)?;
    let bytes = deps.store.payload(id.clone()).await?.ok_or_else(|| no_such(&path))?;
    deps.store.append_audit(NewAuditEntry::show_payload_of_intent(&by, &id)).await?;
    log::info!("payload_shown intent_id={id:?}");
    let text = std::str::from_utf8(&bytes).ok().filter(|text| !text.contains('\r'));
    let problem = match text {
        _ if bytes.len() > MAX_EDITED => Some("The payload is larger than 64 KiB. Redrive it with the API instead."),
        None => Some("The payload is not plain text. Redrive it with the API instead."),
        Some(_) => None,
    };
    let text = text.filter(|_| problem.is_none()).unwrap_or_default().to_owned();
    page(&EditPage {
        nav: Nav::new("intents", operator).at(deps.clock.now()),
        href: intent_href(&id),
        text: payload::formatted(&text).unwrap_or(text),
        problem,
        id,
    })
}

/// Handles the buttons that send an intent again, and redirects to the page of the new intent. Without a payload in the form,
/// the new intent has that of the old one.
pub(super) async fn redrive(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let id = parse_id(&path)?;
    let form = Form::read(&deps, body).await?;
    let edited = match form.all("payload").next() {
        Some(text) => {
            payload::require_enabled(&console)?;
            Some(edited_payload(text, deps.max_payload_bytes)?)
        }
        None => None,
    };
    let created = redrive_intent(&deps, id, edited, trace::of_request(&request), &by).await?;
    Ok(redirect(&intent_href(&created.id)))
}

/// The payload that somebody typed: any JSON. Browsers send line ends as CR LF.
fn edited_payload(text: &str, limit: usize) -> Result<Payload, PageError> {
    let text = text.replace("\r\n", "\n");
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&text) {
        return Err(PageError::NotDone(format!("The payload is not JSON: {error}. Nothing was sent.")));
    }
    if text.len() > limit {
        return Err(PageError::NotDone(format!("The payload has more than {limit} bytes. Nothing was sent.")));
    }
    Ok(Payload::new(text.into_bytes().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edited_payload_is_json_within_the_limit() {
        let payload = edited_payload("{\r\n  \"a\": 1\r\n}", 100).ok().unwrap();
        assert_eq!(payload.bytes().as_ref(), b"{\n  \"a\": 1\n}");
        for (text, limit) in [("{", 100), ("", 100), ("{} x", 100), ("[1,2,3]", 3)] {
            assert!(edited_payload(text, limit).is_err(), "{text}");
        }
    }
}
