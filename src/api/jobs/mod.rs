//! `/v1/jobs`: a backend with a tenant's token submits a job (an execution request) for a management node.
//!
//! A job is an intent with a tenant; once accepted, the leader executes it like any other intent. Submissions are checked
//! in the order 401, 400, 403, 404, 409, 422, 503, and the store is not read before the tenant's rights are checked. A job
//! that the caller may not see gets the same 404 as one that does not exist.

pub(super) mod cancel;
pub mod command;
pub(super) mod events;
pub mod json;
pub(super) mod queries;
pub(crate) mod submit;

use actix_web::http::StatusCode;
use actix_web::http::header::HeaderName;
use actix_web::{HttpRequest, HttpResponse, Resource, ResponseError, web};

use crate::config::registry::Registry;
use crate::domain::trace::TraceContext;
use crate::web::error::ApiError;
use crate::web::permissions::{GuardedService, guarded};
use crate::web::trace::{TRACEPARENT, child, of_request_or_new};
use crate::web::{get_or_head, with_and_without_slash};

pub use self::queries::{cursor_text, list_query};

/// Registers the routes of jobs.
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            resource("/v1/jobs", "GET, HEAD, POST")
                .route(get_or_head().to(queries::list))
                .route(web::post().to(submit::submit)),
        )
        .service(resource("/v1/jobs/events", "GET, HEAD").route(get_or_head().to(events::list)))
        .service(resource("/v1/jobs/events/stream", "GET, HEAD").route(get_or_head().to(events::stream)))
        .service(resource("/v1/jobs/{submission_id}", "GET, HEAD").route(get_or_head().to(queries::get)))
        .service(resource("/v1/jobs/{submission_id}/history", "GET, HEAD").route(get_or_head().to(queries::history)))
        .service(resource("/v1/jobs/{submission_id}/cancel", "POST").route(web::post().to(cancel::cancel_job)))
        .service(web::resource("/v1/jobs/{path:.*}").to(|request: HttpRequest| async move {
            with_trace(of_request_or_new(&request), Err(ApiError::NotFound("no such path".to_owned())))
        }));
}

/// A resource at `path`, with or without a slash at the end. Methods other than `allowed` get a 405 with a trace id.
fn resource(path: &str, allowed: &'static str) -> Resource<impl GuardedService> {
    guarded(web::resource(with_and_without_slash(path)), path, move |request, refusal| {
        JobError { error: refusal.into_api_error(allowed), trace: of_request_or_new(request) }.error_response()
    })
}

/// An error of the jobs API. Its response has the trace id of the request.
#[derive(Debug)]
pub struct JobError {
    error: ApiError,
    trace: TraceContext,
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl ResponseError for JobError {
    fn status_code(&self) -> StatusCode {
        self.error.status_code()
    }

    fn error_response(&self) -> HttpResponse {
        let mut body = self.error.json();
        body["trace_id"] = self.trace.trace_id().into();
        self.error.head().insert_header((TRACEPARENT, child(self.trace).to_string())).json(body)
    }
}

/// Adds the trace of the request to a response or an error.
fn with_trace(trace: TraceContext, result: Result<HttpResponse, ApiError>) -> Result<HttpResponse, JobError> {
    let mut response = result.map_err(|error| JobError { error, trace })?;
    if let Ok(value) = child(trace).to_string().parse() {
        response.headers_mut().insert(HeaderName::from_static(TRACEPARENT), value);
    }
    Ok(response)
}

/// Fails with 404 if jobs are not enabled, that is, no management nodes or no API clients are configured.
fn require_enabled(registry: &Registry) -> Result<(), ApiError> {
    if registry.takes_jobs() {
        return Ok(());
    }
    Err(ApiError::NotFound("jobs are not enabled; set SM_NODES and SM_API_CLIENTS".to_owned()))
}
