//! `/ui/intents/{intentId}`: the page of one intent, with its status in a sentence, a timeline, all attempts and its webhook.
//! The payload is loaded only when the operator asks for it.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::nav::Nav;
use super::search::redirect;
use super::timeline::{self, Timeline};
use super::wording::{self, duration_text, intent_href};
use super::{Console, PageError, page, payload};
use crate::api::cancel;
use crate::config::settings::AuthMode;
use crate::config::settings::TRACE_ID;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::{Intent, IntentId};
use crate::domain::outcome::Contact;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{EventStatus, event_id};
use crate::store::{Cancellation, History, IntentDetail, Job, JobLookup, StoreError};
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/intent.html")]
struct IntentPage<'a> {
    nav: Nav,
    href: String,
    intent: &'a Intent,
    sentence: String,
    /// Why it is still pending, or what ended it.
    why: Option<String>,
    contract: String,
    duration: String,
    target_href: String,
    /// All intents of the chain of redrives that this one belongs to, the oldest first; empty without a redrive.
    chain: Vec<Link>,
    /// Whether it can be sent again.
    can_redrive: bool,
    /// The trace of the request that submitted it, and its address in the tracing system.
    trace: Option<(String, Option<String>)>,
    /// A command that reads the history of the intent.
    curl: String,
    /// The gateway that its attempts called.
    gateway: String,
    job: Option<Job>,
    timeline: Timeline,
    attempts: Vec<AttemptRow<'a>>,
    webhook: Option<WebhookSection<'a>>,
    /// Whether the page can still change.
    live: bool,
    payloads: bool,
}

/// An intent of a chain of redrives.
struct Link {
    id: IntentId,
    href: String,
    status: &'static str,
    created_at: Timestamp,
    is_this: bool,
}

struct AttemptRow<'a> {
    number: u32,
    started_at: Timestamp,
    finished_at: Timestamp,
    duration: String,
    kind: &'static str,
    /// The reason or error without details.
    cause: String,
    /// The reason or error in full.
    text: &'a str,
    message_id: Option<&'a str>,
    lease_epoch: i64,
    /// The instance that made it, if that is recorded.
    holder: Option<&'a str>,
    contact: &'static str,
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
    request: HttpRequest,
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
    let connection = request.connection_info().clone();
    let base = format!("{}://{}", connection.scheme(), connection.host());
    page(&IntentPage {
        target_href: wording::target_href(&intent.target),
        chain: chain(&deps, history).await?,
        can_redrive: intent.state.is_failed() && history.redriven_as.is_none() && job.is_none(),
        trace: detail.trace.map(|trace| {
            let href = console.trace_url.as_ref().map(|url| url.replace(TRACE_ID, &trace.trace_id()));
            (trace.trace_id(), href)
        }),
        curl: curl(&base, &intent.id, deps.auth == AuthMode::Required),
        gateway: detail.contract.gateway_url.to_string(),
        href: intent_href(&intent.id),
        sentence: wording::status_sentence(&detail),
        why: wording::why_pending(&detail).or(wording::why_exhausted(&detail)),
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

/// How many intents of a chain are followed in each direction.
const MOST_LINKS: usize = 10;

/// The intents that this one repeats, and those that repeat it.
async fn chain(deps: &WebDeps, history: &History) -> Result<Vec<Link>, StoreError> {
    let link = |intent: &Intent| Link {
        id: intent.id.clone(),
        href: intent_href(&intent.id),
        status: intent.state.status().as_str(),
        created_at: intent.created_at,
        is_this: intent.id == history.intent.id,
    };
    let mut chain = vec![link(&history.intent)];
    let mut earlier = history.intent.redrive_of.clone();
    while let Some(id) = earlier.take().filter(|_| chain.len() <= MOST_LINKS) {
        // An intent that retention has deleted ends the chain.
        if let Some(found) = deps.store.find(id).await? {
            chain.insert(0, link(&found.intent));
            earlier = found.intent.redrive_of;
        }
    }
    let mut later = history.redriven_as.clone();
    for _ in 0..MOST_LINKS {
        let Some(id) = later.take() else { break };
        if let Some(found) = deps.store.history(id).await? {
            chain.push(link(&found.intent));
            later = found.redriven_as;
        }
    }
    Ok(if chain.len() > 1 { chain } else { Vec::new() })
}

/// A command for a shell that reads the history of an intent.
fn curl(base: &str, id: &IntentId, with_token: bool) -> String {
    let token = if with_token { " -H \"Authorization: Bearer $TOKEN\"" } else { "" };
    let id = utf8_percent_encode(id.as_str(), NON_ALPHANUMERIC);
    let base = base.replace('\'', "");
    format!("curl -s '{base}/v1/intents/{id}/history'{token}")
}

fn attempts(detail: &IntentDetail) -> Vec<AttemptRow<'_>> {
    let rows = detail.history.attempts.iter().map(|attempt| AttemptRow {
        number: attempt.attempt_number,
        started_at: attempt.started_at,
        finished_at: attempt.finished_at,
        duration: duration_text(attempt.finished_at.since(attempt.started_at)),
        kind: attempt.outcome.kind(),
        cause: attempt.outcome.cause(),
        text: attempt.outcome.reason().or(attempt.outcome.error_text()).unwrap_or_default(),
        message_id: attempt.outcome.gateway_message_id(),
        lease_epoch: attempt.lease_epoch,
        holder: detail.holders.get(&attempt.lease_epoch).map(String::as_str),
        contact: match attempt.outcome.contact() {
            Contact::Answered => "the gateway answered",
            Contact::NotSent => "nothing was sent",
            Contact::Unknown => "it is not known whether the gateway processed the request",
        },
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

pub(super) fn parse_id(raw: &str) -> Result<IntentId, PageError> {
    IntentId::parse(raw).map_err(|_| no_such(raw))
}

pub(super) fn no_such(id: &str) -> PageError {
    PageError::NotFound(format!("There is no intent {id:?}. Ids are case-sensitive."))
}
