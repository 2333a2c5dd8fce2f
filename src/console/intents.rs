//! `/ui/intents`: find an intent by its id, how that begins, its status, target or time.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;

use super::asked::Asked;
use super::words::intent_href;
use super::{PageError, page};
use crate::api::intents::{cursor_text, list_query};
use crate::domain::intent::{Intent, Status};
use crate::store::IntentPage;
use crate::web::WebDeps;

#[derive(Template)]
#[template(path = "console/intents.html")]
struct IntentsPage {
    place: &'static str,
    filter: Filter,
    statuses: [&'static str; 4],
    targets: Vec<String>,
    fault: Option<String>,
    rows: Vec<Row>,
    /// What to ask for again and again; a page further on stays as it is.
    live: Option<String>,
    next: Option<String>,
}

/// What was asked for, as it was written.
#[derive(Default)]
struct Filter {
    q: String,
    status: String,
    target: String,
    created_after: String,
    created_before: String,
}

struct Row {
    href: String,
    reason: Option<String>,
    intent: Intent,
}

pub async fn show(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, PageError> {
    let text = request.query_string();
    let mut filter = Filter::default();
    let fields = &mut [
        ("q", &mut filter.q),
        ("status", &mut filter.status),
        ("submissionTarget", &mut filter.target),
        ("createdAfter", &mut filter.created_after),
        ("createdBefore", &mut filter.created_before),
    ];
    let asked = Asked::read(text, fields);
    let (found, fault) = match list_query(text) {
        Ok(query) => (deps.store.list(query).await?, None),
        Err(fault) => (IntentPage { intents: Vec::new(), next: None }, Some(fault.to_string())),
    };
    let next = found.next.map(|next| asked.next("/ui/intents", &cursor_text(&next)));
    let mut targets: Vec<_> = deps.registry.get().contracts().map(|c| c.contract.target.to_string()).collect();
    targets.sort();
    targets.truncate(MAX_HINTS);
    page(&IntentsPage {
        place: "intents",
        filter,
        statuses: Status::ALL.map(Status::as_str),
        targets,
        live: asked.live("/ui/intents").filter(|_| fault.is_none()),
        fault,
        rows: found.intents.into_iter().map(Row::of).collect(),
        next,
    })
}

/// Targets that the input offers: a registry may have ten thousand.
const MAX_HINTS: usize = 200;

impl Row {
    fn of(intent: Intent) -> Self {
        let reason = intent.state.rejected_reason().map(str::to_owned);
        let reason = reason.or(intent.state.exhausted_reason().map(|reason| reason.as_str().to_owned()));
        Self { href: intent_href(&intent.id), reason, intent }
    }
}
