//! `/ui/intents/{intentId}`: the page of one intent, with its status in a sentence, a timeline, all attempts and its webhook.
//! The payload is loaded only when the operator asks for it.

use actix_web::{HttpResponse, web};
use askama::Template;

use super::nav::Nav;
use super::search::redirect;
use super::timeline::{self, Timeline};
use super::wording::{self, duration_text, intent_href};
use super::{Console, PageError, page, payload};
use crate::api::cancel;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::{Intent, IntentId};
use crate::domain::time::Timestamp;
use crate::domain::webhook::{EventStatus, event_id};
use crate::store::{Cancellation, IntentDetail, Job, JobLookup};
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/intent.html")]
struct IntentPage<'a> {
    nav: Nav,
    href: String,
    intent: &'a Intent,
    sentence: String,
    why_pending: Option<String>,
    contract: String,
    duration: String,
    /// The intent that this one repeats, and the one that repeats it, each with the path of its page.
    redrive_of: Option<(&'a IntentId, String)>,
    redriven_as: Option<(&'a IntentId, String)>,
    job: Option<Job>,
    timeline: Timeline,
    attempts: Vec<AttemptRow<'a>>,
    webhook: Option<WebhookSection<'a>>,
    /// Whether the page can still change.
    live: bool,
    payloads: bool,
}

struct AttemptRow<'a> {
    number: u32,
    started_at: Timestamp,
    duration: String,
    kind: &'static str,
    reason: &'a str,
    message_id: Option<&'a str>,
}

struct WebhookSection<'a> {
    status: &'static str,
    sentence: String,
    event_id: String,
    tries: Vec<TryRow<'a>>,
}

struct TryRow<'a> {
    number: u32,
    started_at: Timestamp,
    duration: String,
    http_status: Option<u16>,
    error: &'a str,
}

/// The page of one intent.
pub(super) async fn show(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let id = parse_id(&path)?;
    let detail = deps.store.detail(id.clone()).await?.ok_or_else(|| no_such(&path))?;
    let job = match id.submission_id() {
        Some(id) => deps.store.find_job(JobLookup::Id(id)).await?.map(|found| found.job),
        None => None,
    };
    let nav = Nav::new(if job.is_some() { "jobs" } else { "intents" }, operator).at(detail.now);
    let history = &detail.history;
    let intent = &history.intent;
    let completed_at = intent.state.completed_at();
    let event_pending = history.webhook.as_ref().is_some_and(|webhook| webhook.status == EventStatus::Pending);
    page(&IntentPage {
        redrive_of: intent.redrive_of.as_ref().map(|id| (id, intent_href(id))),
        redriven_as: history.redriven_as.as_ref().map(|id| (id, intent_href(id))),
        href: intent_href(&intent.id),
        sentence: wording::status_sentence(&detail),
        why_pending: wording::why_pending(&detail),
        contract: wording::contract(&detail.contract),
        duration: completed_at.map(|at| duration_text(at.since(intent.created_at))).unwrap_or_default(),
        payloads: console.payloads && nav.may_act(),
        nav,
        job,
        timeline: timeline::of(&detail),
        attempts: attempts(&detail),
        webhook: webhook(&detail),
        live: completed_at.is_none() || event_pending,
        intent,
    })
}

fn attempts(detail: &IntentDetail) -> Vec<AttemptRow<'_>> {
    let rows = detail.history.attempts.iter().map(|attempt| AttemptRow {
        number: attempt.attempt_number,
        started_at: attempt.started_at,
        duration: duration_text(attempt.finished_at.since(attempt.started_at)),
        kind: attempt.outcome.kind(),
        reason: attempt.outcome.reason().or(attempt.outcome.error_text()).unwrap_or_default(),
        message_id: attempt.outcome.gateway_message_id(),
    });
    rows.collect()
}

fn webhook(detail: &IntentDetail) -> Option<WebhookSection<'_>> {
    let webhook = detail.history.webhook.as_ref()?;
    let tries = webhook.tries.iter().map(|tried| TryRow {
        number: tried.number,
        started_at: tried.started_at,
        duration: duration_text(tried.finished_at.since(tried.started_at)),
        http_status: tried.http_status,
        error: tried.error.as_deref().unwrap_or_default(),
    });
    Some(WebhookSection {
        status: webhook.status.as_str(),
        sentence: wording::webhook_sentence(detail, webhook),
        event_id: event_id(&detail.history.intent),
        tries: tries.collect(),
    })
}

/// The payload of an intent as a fragment of its page.
pub(super) async fn payload(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    payload::require_enabled(&console)?;
    let id = parse_id(&path)?;
    let bytes = deps.store.payload(id.clone()).await?.ok_or_else(|| no_such(&path))?;
    deps.store.append_audit(NewAuditEntry::show_payload_of_intent(&by, &id)).await?;
    log::info!("payload_shown intent_id={id:?}");
    payload::fragment(&bytes)
}

/// Handles the button that redelivers the webhook event, and redirects to the page of the intent.
pub(super) async fn redeliver(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let id = parse_id(&path)?;
    deps.store.redeliver_webhook(id.clone(), by).await?;
    log::info!("webhook_redelivered intent_id={id:?}");
    Ok(redirect(&intent_href(&id)))
}

/// Handles the button that cancels the intent, after its attempt if one is in progress, and redirects to its page. The page
/// shows the result, also if the intent has ended in the meantime.
pub(super) async fn cancel(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    by: Actor,
) -> Result<HttpResponse, PageError> {
    let id = parse_id(&path)?;
    if cancel::cancel(&deps, id.clone(), true, by).await? == Cancellation::NotFound {
        return Err(no_such(&path));
    }
    Ok(redirect(&intent_href(&id)))
}

fn parse_id(raw: &str) -> Result<IntentId, PageError> {
    IntentId::parse(raw).map_err(|_| no_such(raw))
}

fn no_such(id: &str) -> PageError {
    PageError::NotFound(format!("There is no intent {id:?}. Ids are case-sensitive."))
}
