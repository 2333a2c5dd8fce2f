//! `/ui/intents/{intentId}`: what happened to this message? In words first, then to scale, then in
//! full; its payload only when asked for.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, web};
use askama::Template;

use super::timeline::{self, Timeline};
use super::words::{self, intent_href, span};
use super::{Console, PageError, page, payload};
use crate::domain::intent::{Intent, IntentId};
use crate::domain::time::Timestamp;
use crate::domain::webhook::{EventStatus, event_id};
use crate::store::{IntentDetail, Job, JobLookup};
use crate::web::WebDeps;

#[derive(Template)]
#[template(path = "console/intent.html")]
struct IntentPage<'a> {
    place: &'static str,
    href: String,
    intent: &'a Intent,
    sentence: String,
    why: Option<String>,
    contract: String,
    lasted: String,
    job: Option<Job>,
    timeline: Timeline,
    attempts: Vec<AttemptRow<'a>>,
    webhook: Option<WebhookPart<'a>>,
    /// Something may still change.
    live: bool,
    payloads: bool,
}

struct AttemptRow<'a> {
    number: u32,
    started_at: Timestamp,
    took: String,
    kind: &'static str,
    said: &'a str,
    message_id: Option<&'a str>,
}

struct WebhookPart<'a> {
    status: &'static str,
    sentence: String,
    event_id: String,
    tries: Vec<TryRow<'a>>,
}

struct TryRow<'a> {
    number: u32,
    started_at: Timestamp,
    took: String,
    http_status: Option<u16>,
    said: &'a str,
}

pub async fn show(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
) -> Result<HttpResponse, PageError> {
    let id = known(&path)?;
    let detail = deps.store.detail(id.clone()).await?.ok_or_else(|| no_such(&path))?;
    let job = match id.submission_id() {
        Some(id) => deps.store.find_job(JobLookup::Id(id)).await?.map(|found| found.job),
        None => None,
    };
    let history = &detail.history;
    let intent = &history.intent;
    let ended = intent.state.completed_at();
    let owed = history.webhook.as_ref().is_some_and(|webhook| webhook.status == EventStatus::Pending);
    page(&IntentPage {
        href: intent_href(&intent.id),
        sentence: words::sentence(&detail),
        why: words::why(&detail),
        contract: words::contract(&detail.contract),
        lasted: ended.map(|at| span(at.since(intent.created_at))).unwrap_or_default(),
        place: if job.is_some() { "jobs" } else { "intents" },
        job,
        timeline: timeline::of(&detail),
        attempts: attempts(&detail),
        webhook: webhook(&detail),
        live: ended.is_none() || owed,
        payloads: console.payloads,
        intent,
    })
}

fn attempts(detail: &IntentDetail) -> Vec<AttemptRow<'_>> {
    let rows = detail.history.attempts.iter().map(|attempt| AttemptRow {
        number: attempt.attempt_number,
        started_at: attempt.started_at,
        took: span(attempt.finished_at.since(attempt.started_at)),
        kind: attempt.outcome.kind(),
        said: attempt.outcome.reason().or(attempt.outcome.error_text()).unwrap_or_default(),
        message_id: attempt.outcome.gateway_message_id(),
    });
    rows.collect()
}

fn webhook(detail: &IntentDetail) -> Option<WebhookPart<'_>> {
    let webhook = detail.history.webhook.as_ref()?;
    let tries = webhook.tries.iter().map(|tried| TryRow {
        number: tried.number,
        started_at: tried.started_at,
        took: span(tried.finished_at.since(tried.started_at)),
        http_status: tried.http_status,
        said: tried.error.as_deref().unwrap_or_default(),
    });
    Some(WebhookPart {
        status: webhook.status.as_str(),
        sentence: words::webhook(detail, webhook),
        event_id: event_id(&detail.history.intent),
        tries: tries.collect(),
    })
}

pub async fn payload(
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
    console: web::Data<Console>,
) -> Result<HttpResponse, PageError> {
    payload::allowed(&console)?;
    let id = known(&path)?;
    let bytes = deps.store.payload(id.clone()).await?.ok_or_else(|| no_such(&path))?;
    log::info!("payload_shown intent_id={id:?}");
    payload::part(&bytes)
}

/// The button: asks for the event once more and shows the page again.
pub async fn redeliver(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, PageError> {
    let id = known(&path)?;
    deps.store.redeliver_webhook(id.clone()).await?;
    log::info!("webhook_redelivered intent_id={id:?}");
    let back = (header::LOCATION, intent_href(&id));
    Ok(HttpResponse::build(StatusCode::SEE_OTHER).insert_header(back).finish())
}

fn known(raw: &str) -> Result<IntentId, PageError> {
    IntentId::parse(raw).map_err(|_| no_such(raw))
}

fn no_such(id: &str) -> PageError {
    PageError::NotFound(format!("There is no intent {id:?}. Ids are compared letter by letter, and case matters."))
}
