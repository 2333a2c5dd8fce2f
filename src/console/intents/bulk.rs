//! `/ui/cancel-intents`: cancels selected intents. The first request shows what would be cancelled, the second one does it.

use actix_web::{HttpResponse, web};
use askama::Template;

use crate::api::cancel;
use crate::console::form::Form;
use crate::console::nav::Nav;
use crate::console::wording::intent_href;
use crate::console::{PageError, page};
use crate::domain::actor::Actor;
use crate::domain::intent::{Intent, IntentId, Status};
use crate::store::Cancellation;
use crate::web::WebDeps;
use crate::web::operator::Operator;

/// How many intents can be cancelled at once: the store is called for each of them.
const MAX_CANCELLED: usize = 200;

#[derive(Template)]
#[template(path = "console/cancel.html")]
struct CancelPage {
    nav: Nav,
    /// The intents that would be cancelled.
    rows: Vec<Listed>,
    /// How many of the selected intents have ended already.
    ended: usize,
    /// The results in words; empty in the preview.
    done: Vec<String>,
}

/// An intent that would be cancelled.
struct Listed {
    href: String,
    intent: Intent,
}

/// Shows the selected intents, or cancels them once that is confirmed.
pub(in crate::console) async fn cancel_selected(
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    operator: Operator,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let form = Form::read(&deps, payload).await?;
    let ids: Vec<_> = form.all("intentId").filter_map(|text| IntentId::parse(text).ok()).collect();
    if ids.is_empty() || ids.len() > MAX_CANCELLED {
        let text = format!("Select 1 to {MAX_CANCELLED} pending intents and try again; {} are selected.", ids.len());
        return Err(PageError::NotDone(text));
    }
    let nav = Nav::new("intents", operator).at(deps.clock.now());
    if form.has("confirmed") {
        let done = cancel_all(&deps, ids, &by).await?;
        return page(&CancelPage { nav, rows: Vec::new(), ended: 0, done });
    }
    let (mut rows, mut ended) = (Vec::new(), 0);
    for id in ids {
        match deps.store.find(id).await? {
            Some(found) if found.intent.state.status() == Status::Pending => {
                rows.push(Listed { href: intent_href(&found.intent.id), intent: found.intent })
            }
            Some(_) => ended += 1,
            None => {}
        }
    }
    page(&CancelPage { nav, rows, ended, done: Vec::new() })
}

/// Cancels the intents one after the other, and returns the results in words.
async fn cancel_all(deps: &WebDeps, ids: Vec<IntentId>, by: &Actor) -> Result<Vec<String>, PageError> {
    let (mut cancelled, mut later, mut ended, mut gone) = (0, 0, 0, 0);
    for id in ids {
        match cancel::cancel(deps, id, true, by.clone()).await? {
            Cancellation::Cancelled(_) | Cancellation::CancelledBefore(_) => cancelled += 1,
            Cancellation::AfterAttempt(_) | Cancellation::AttemptInProgress(_) => later += 1,
            Cancellation::AlreadyTerminal(_) => ended += 1,
            Cancellation::NotFound => gone += 1,
        }
    }
    let counts = [
        (cancelled, "cancelled"),
        (later, "to be cancelled after the attempt that is in progress"),
        (ended, "had ended already"),
        (gone, "no longer there"),
    ];
    Ok(counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect())
}
