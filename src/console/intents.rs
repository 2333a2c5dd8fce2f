//! `/ui/intents`: the list of intents, with a filter by id, gateway message id, status, target and time.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;

use super::nav::Nav;
use super::query_form::QueryForm;
use super::wording::intent_href;
use super::{PageError, page};
use crate::api::intents::{cursor_text, list_query};
use crate::domain::intent::{Intent, Status};
use crate::store::IntentPage;
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/intents.html")]
struct IntentsPage {
    nav: Nav,
    filter: Filter,
    statuses: [&'static str; 4],
    targets: Vec<String>,
    error: Option<String>,
    rows: Vec<Row>,
    /// The URL that the page polls for changes; only on the first page.
    live: Option<String>,
    next: Option<String>,
}

/// The values of the filter form, as the operator typed them.
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

/// The list of intents.
pub(super) async fn show(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let text = request.query_string();
    let mut filter = Filter::default();
    let fields = &mut [
        ("q", &mut filter.q),
        ("status", &mut filter.status),
        ("submissionTarget", &mut filter.target),
        ("createdAfter", &mut filter.created_after),
        ("createdBefore", &mut filter.created_before),
    ];
    let form = QueryForm::read(text, fields);
    let (found, error) = match list_query(text) {
        Ok(query) => (deps.store.list(query).await?, None),
        Err(error) => (IntentPage { intents: Vec::new(), next: None }, Some(error.to_string())),
    };
    let next = found.next.map(|next| form.next_url("/ui/intents", &cursor_text(&next)));
    let mut targets: Vec<_> = deps.registry.get().contracts().map(|c| c.contract.target.to_string()).collect();
    targets.sort();
    targets.truncate(MAX_SUGGESTIONS);
    page(&IntentsPage {
        nav: Nav::new("intents", operator),
        filter,
        statuses: Status::ALL.map(Status::as_str),
        targets,
        live: form.live_url("/ui/intents").filter(|_| error.is_none()),
        error,
        rows: found.intents.into_iter().map(Row::of).collect(),
        next,
    })
}

/// How many targets the filter form suggests. A registry may have ten thousand.
const MAX_SUGGESTIONS: usize = 200;

impl Row {
    fn of(intent: Intent) -> Self {
        let reason = intent.state.rejected_reason().map(str::to_owned);
        let reason = reason.or(intent.state.exhausted_reason().map(|reason| reason.as_str().to_owned()));
        Self { href: intent_href(&intent.id), reason, intent }
    }
}
