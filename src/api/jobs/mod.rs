//! The second front door: a backend with a tenant's token submits an execution request for a management
//! node. A job is an intent with a tenant; from its acceptance on the same leader executes it.
//!
//! Checks in this order, and nothing is touched before the tenant's have passed: 401, 400, 403, 404, 409,
//! 422, 503. To whoever may not see a job it does not exist.

pub mod command;
mod json;
mod look;
mod submit;

use actix_web::http::StatusCode;
use actix_web::http::header::HeaderName;
use actix_web::{HttpRequest, HttpResponse, Resource, ResponseError, web};

use crate::domain::trace::TraceContext;
use crate::web::error::ApiError;
use crate::web::trace::{TRACEPARENT, child, given_or_new};
use crate::web::{read, with_and_without_slash};

pub use self::json::*;
pub use self::look::*;
pub use self::submit::*;

pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(resource("/v1/jobs", "GET, HEAD, POST").route(read().to(list)).route(web::post().to(submit)))
        .service(resource("/v1/jobs/{submission_id}", "GET, HEAD").route(read().to(get)))
        .service(resource("/v1/jobs/{submission_id}/history", "GET, HEAD").route(read().to(history)))
        .service(web::resource("/v1/jobs/{path:.*}").to(|request: HttpRequest| async move {
            within(given_or_new(&request), Err(ApiError::NotFound("there is nothing at this path".to_owned())))
        }));
}

/// A resource that answers other methods in our format, within their trace.
fn resource(path: &str, allowed: &'static str) -> Resource {
    let refuse = move |request: HttpRequest| async move {
        within(given_or_new(&request), Err(ApiError::MethodNotAllowed { allowed }))
    };
    web::resource(with_and_without_slash(path)).default_service(web::to(refuse))
}

/// An error of this door: says in which trace it happened.
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

/// An answer, whatever it is, that says in which trace it was given.
fn within(trace: TraceContext, answer: Result<HttpResponse, ApiError>) -> Result<HttpResponse, JobError> {
    let mut response = answer.map_err(|error| JobError { error, trace })?;
    if let Ok(value) = child(trace).to_string().parse() {
        response.headers_mut().insert(HeaderName::from_static(TRACEPARENT), value);
    }
    Ok(response)
}

/// This door is closed while there are no nodes, or nobody can be known.
fn closed() -> ApiError {
    ApiError::NotFound("there is nothing at this path: jobs need SM_NODES and SM_API_CLIENTS".to_owned())
}
