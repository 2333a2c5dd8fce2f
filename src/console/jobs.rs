//! `/ui/jobs`: the jobs of all tenants, newest first. Operators see whose each is.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;

use super::asked::Asked;
use super::words::intent_href;
use super::{PageError, page};
use crate::api::jobs::{cursor_text, list_query};
use crate::domain::intent::Status;
use crate::store::{Job, JobPage};
use crate::web::WebDeps;

#[derive(Template)]
#[template(path = "console/jobs.html")]
struct JobsPage {
    place: &'static str,
    filter: Filter,
    statuses: [&'static str; 4],
    fault: Option<String>,
    rows: Vec<Row>,
    /// Jobs are taken here.
    open: bool,
    /// What to ask for again and again; a page further on stays as it is.
    live: Option<String>,
    next: Option<String>,
}

/// What was asked for, as it was written.
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

pub async fn show(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, PageError> {
    let text = request.query_string();
    let mut filter = Filter::default();
    let fields = &mut [
        ("tenant_id", &mut filter.tenant),
        ("workspace_id", &mut filter.workspace),
        ("job_id", &mut filter.job_id),
        ("status", &mut filter.status),
    ];
    let asked = Asked::read(text, fields);
    let (found, fault) = match list_query(text) {
        Ok(query) => (deps.store.list_jobs(query).await?, None),
        Err(fault) => (JobPage { jobs: Vec::new(), next: None }, Some(fault.to_string())),
    };
    page(&JobsPage {
        place: "jobs",
        filter,
        statuses: Status::ALL.map(Status::as_str),
        live: asked.live("/ui/jobs").filter(|_| fault.is_none()),
        fault,
        open: deps.registry.get().takes_jobs(),
        next: found.next.map(|next| asked.next("/ui/jobs", &cursor_text(&next))),
        rows: found.jobs.into_iter().map(|job| Row { href: intent_href(&job.intent.id), job }).collect(),
    })
}
