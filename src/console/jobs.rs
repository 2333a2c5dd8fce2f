//! `/ui/jobs`: the list of jobs of all tenants, newest first.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;

use super::nav::Nav;
use super::query_form::QueryForm;
use super::wording::intent_href;
use super::{PageError, page};
use crate::api::jobs::{cursor_text, list_query};
use crate::domain::intent::Status;
use crate::store::{Job, JobPage};
use crate::web::WebDeps;
use crate::web::operator::Operator;

#[derive(Template)]
#[template(path = "console/jobs.html")]
struct JobsPage {
    nav: Nav,
    filter: Filter,
    statuses: [&'static str; 4],
    error: Option<String>,
    rows: Vec<Row>,
    /// Whether jobs are enabled.
    enabled: bool,
    /// The URL that the page polls for changes; only on the first page.
    live: Option<String>,
    first: Option<String>,
    next: Option<String>,
}

/// The values of the filter form, as the operator typed them.
#[derive(Default)]
struct Filter {
    tenant: String,
    workspace: String,
    job_id: String,
    status: String,
}

struct Row {
    href: String,
    job: Job,
}

/// The list of jobs.
pub(super) async fn show(
    request: HttpRequest,
    deps: web::Data<WebDeps>,
    operator: Operator,
) -> Result<HttpResponse, PageError> {
    let text = request.query_string();
    let mut filter = Filter::default();
    let fields = &mut [
        ("tenant_id", &mut filter.tenant),
        ("workspace_id", &mut filter.workspace),
        ("job_id", &mut filter.job_id),
        ("status", &mut filter.status),
    ];
    let form = QueryForm::read(text, fields);
    let (found, error) = match list_query(text) {
        Ok(query) => (deps.store.list_jobs(query).await?, None),
        Err(error) => (JobPage { jobs: Vec::new(), next: None }, Some(error.to_string())),
    };
    page(&JobsPage {
        nav: Nav::new("jobs", operator).at(deps.clock.now()),
        filter,
        statuses: Status::ALL.map(Status::as_str),
        live: form.live_url("/ui/jobs").filter(|_| error.is_none()),
        error,
        enabled: deps.registry.get().takes_jobs(),
        first: form.first_url("/ui/jobs"),
        next: found.next.map(|next| form.next_url("/ui/jobs", &cursor_text(&next))),
        rows: found.jobs.into_iter().map(|job| Row { href: intent_href(&job.intent.id), job }).collect(),
    })
}
