//! `/ui/cancel-intents` and `/ui/redeliver-events`: cancel selected intents, and redeliver their webhook events.

use actix_web::{HttpResponse, web};

use crate::api::cancel;
use crate::console::bulk::{Action, BulkPage, Selected, selected, tally};
use crate::console::form::Form;
use crate::console::nav::Nav;
use crate::console::wording::intent_href;
use crate::console::{PageError, page};
use crate::domain::actor::Actor;
use crate::domain::intent::{Intent, IntentId, Status};
use crate::store::{Cancellation, Redelivery};
use crate::web::WebDeps;
use crate::web::operator::Operator;

static CANCEL: Action = Action {
    title: "Cancel intents",
    path: "/ui/cancel-intents",
    field: "intentId",
    list: "/ui/intents",
    ends_something: true,
    headings: ["Intent", "Target", "Created", "Attempts"],
};

static REDELIVER: Action = Action {
    title: "Redeliver webhook events",
    path: "/ui/redeliver-events",
    field: "intentId",
    list: "/ui/intents",
    ends_something: false,
    headings: ["Intent", "Target", "Created", "Webhook event"],
};

/// Shows the selected intents that are pending, or cancels them once that is confirmed.
pub(in crate::console) async fn cancel_selected(
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    operator: Operator,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let form = Form::read(&deps, payload).await?;
    let ids = selected(&form, &CANCEL, |text| IntentId::parse(text).ok())?;
    let nav = Nav::new("intents", operator).at(deps.clock.now());
    if form.has("confirmed") {
        return page(&BulkPage::results(nav, &CANCEL, &form, cancel_all(&deps, ids, &by).await?));
    }
    let (mut rows, mut ended, mut gone) = (Vec::new(), 0, 0);
    for id in ids {
        match deps.store.find(id).await?.map(|found| found.intent) {
            Some(intent) if intent.state.status() == Status::Pending => {
                let open = if intent.attempt_open { ", one in progress" } else { "" };
                let attempts = format!("{}{open}", intent.attempt_count);
                rows.push(row(&intent, attempts));
            }
            Some(_) => ended += 1,
            None => gone += 1,
        }
    }
    let left_out = tally([(ended, "already ended"), (gone, "no longer there")]);
    page(&BulkPage::preview(nav, &CANCEL, &form, ["cancel", "intent"], rows, left_out))
}

/// Shows the selected intents that have a webhook event, or redelivers the events once that is confirmed.
pub(in crate::console) async fn redeliver_selected(
    payload: web::Payload,
    deps: web::Data<WebDeps>,
    operator: Operator,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let form = Form::read(&deps, payload).await?;
    let ids = selected(&form, &REDELIVER, |text| IntentId::parse(text).ok())?;
    let nav = Nav::new("intents", operator).at(deps.clock.now());
    if form.has("confirmed") {
        return page(&BulkPage::results(nav, &REDELIVER, &form, redeliver_all(&deps, ids, &by).await?));
    }
    let (mut rows, mut pending, mut without, mut gone) = (Vec::new(), 0, 0, 0);
    for id in ids {
        match deps.store.history(id).await? {
            Some(history) if !history.intent.state.is_terminal() => pending += 1,
            Some(history) => match &history.webhook {
                Some(webhook) => {
                    let tries = if webhook.tries.len() == 1 { "try" } else { "tries" };
                    let state = format!("{} after {} {tries}", webhook.status.as_str(), webhook.tries.len());
                    rows.push(row(&history.intent, state));
                }
                None => without += 1,
            },
            None => gone += 1,
        }
    }
    let left_out = tally([
        (pending, "still pending, so without an event yet"),
        (without, "without a webhook"),
        (gone, "no longer there"),
    ]);
    page(&BulkPage::preview(nav, &REDELIVER, &form, ["redeliver", "webhook event"], rows, left_out))
}

fn row(intent: &Intent, state: String) -> Selected {
    Selected {
        id: intent.id.to_string(),
        href: intent_href(&intent.id),
        of: intent.target.to_string(),
        at: intent.created_at,
        state,
    }
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
    Ok(tally([
        (cancelled, "cancelled"),
        (later, "to be cancelled after the attempt that is in progress"),
        (ended, "had ended already"),
        (gone, "no longer there"),
    ]))
}

/// Makes the events due one after the other, and returns the results in words.
async fn redeliver_all(deps: &WebDeps, ids: Vec<IntentId>, by: &Actor) -> Result<Vec<String>, PageError> {
    let (mut due, mut pending, mut without, mut gone) = (0, 0, 0, 0);
    for id in ids {
        match deps.store.redeliver_webhook(id.clone(), by.clone()).await? {
            Redelivery::Pending => {
                log::info!("webhook_redelivered intent_id={id:?}");
                due += 1;
            }
            Redelivery::NotEnded => pending += 1,
            Redelivery::NoWebhook => without += 1,
            Redelivery::NoIntent => gone += 1,
        }
    }
    Ok(tally([
        (due, "to be delivered now"),
        (pending, "still pending, so without an event yet"),
        (without, "without a webhook"),
        (gone, "no longer there"),
    ]))
}
