//! Every error a client can see, its status and its JSON. The only place that maps one to the other.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};
use serde_json::{Value, json};

use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::{IntentId, Status};
use crate::domain::job::SubmissionId;
use crate::domain::node::{Breach, REST_BEFORE_PROBE};
use crate::store::{Conflict, StoreError};

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{0}")]
    InvalidRequest(String),
    #[error("{0}")]
    NotFound(String),
    #[error("this path takes {allowed}")]
    MethodNotAllowed { allowed: &'static str },
    #[error("intent {:?} exists with {}", conflict.existing.id, different(conflict))]
    IdempotencyConflict { conflict: Box<Conflict> },
    #[error("a known bearer token is needed")]
    Unauthorized,
    #[error("the webhook is not signed with this client's secret, or not recently")]
    NotSigned,
    #[error("{0}")]
    Forbidden(String),
    #[error("there is no such management node")]
    ManagementNodeNotFound,
    #[error("this idempotency_key was used for a command with another {}", fields.join(", "))]
    JobConflict { id: SubmissionId, fields: Vec<&'static str>, status: Status },
    #[error("this Idempotency-Key came before with something else, which is submission {id}")]
    KeyConflict { id: InboxSubmissionId },
    #[error("submission {id} is processed; there is nothing to do again")]
    AlreadyProcessed { id: InboxSubmissionId },
    #[error("the node does not allow it: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    PolicyRejected(Vec<Breach>),
    #[error("the management node {0}; try again later")]
    ExecutionUnavailable(&'static str),
    #[error("intent {id:?} has not ended; its event is owed when it does")]
    NotTerminal { id: IntentId },
    #[error("the {what} must have at most {limit} bytes")]
    PayloadTooLarge { what: &'static str, limit: usize },
    #[error("the request body broke off or is framed wrongly; check Content-Length or the chunks")]
    BrokenBody,
    #[error("the request body did not arrive in time; send it faster or in smaller parts")]
    RequestTimeout,
    #[error("the head of the request did not arrive within {seconds} s; send it at once")]
    HeadTimeout { seconds: u64 },
    #[error("the head of the request is too large; send fewer or shorter headers")]
    HeadTooLarge,
    #[error("too much is waiting already; try again in a moment")]
    Overloaded,
    #[error("the store did not answer in time; send the same again, which is safe")]
    StoreUnavailable,
    #[error("something went wrong here; the log of the service says what")]
    Internal,
}

/// When a client may try again after `overloaded`: a commit takes milliseconds, so soon.
const RETRY_AFTER_SECONDS: u32 = 1;

fn different(conflict: &Conflict) -> &'static str {
    match (conflict.target_differs, conflict.payload_differs) {
        (true, true) => "another submissionTarget and another payload",
        (true, false) => "another submissionTarget",
        _ => "another payload",
    }
}

impl ApiError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidRequest(_) | Self::BrokenBody => "invalid_request",
            Self::NotFound(_) => "not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::IdempotencyConflict { .. } => "idempotency_conflict",
            Self::Unauthorized | Self::NotSigned => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::ManagementNodeNotFound => "management_node_not_found",
            Self::JobConflict { .. } | Self::KeyConflict { .. } => "idempotency_conflict",
            Self::AlreadyProcessed { .. } => "already_processed",
            Self::PolicyRejected(_) => "policy_rejected",
            Self::ExecutionUnavailable(_) => "execution_unavailable",
            Self::NotTerminal { .. } => "not_terminal",
            Self::PayloadTooLarge { .. } => "payload_too_large",
            Self::RequestTimeout | Self::HeadTimeout { .. } => "request_timeout",
            Self::HeadTooLarge => "headers_too_large",
            Self::Overloaded => "overloaded",
            Self::StoreUnavailable => "store_unavailable",
            Self::Internal => "internal_error",
        }
    }

    fn details(&self) -> Option<Value> {
        match self {
            Self::IdempotencyConflict { conflict } => {
                let fields: Vec<_> = [
                    conflict.target_differs.then_some("submissionTarget"),
                    conflict.payload_differs.then_some("payload"),
                ]
                .into_iter()
                .flatten()
                .collect();
                Some(json!({
                    "conflictingFields": fields,
                    "existingStatus": conflict.existing.state.status().as_str(),
                }))
            }
            Self::JobConflict { fields, status, .. } => {
                Some(json!({ "conflicting_fields": fields, "existing_status": status.as_str() }))
            }
            Self::PolicyRejected(breaches) => {
                let violations = breaches.iter().map(|breach| json!({ "field": breach.field, "rule": breach.rule }));
                Some(json!({ "violations": violations.collect::<Vec<_>>() }))
            }
            Self::PayloadTooLarge { limit, .. } => Some(json!({ "maxBytes": limit })),
            _ => None,
        }
    }

    /// Whether or not there is such a tenant.
    pub fn not_for_that_tenant() -> Self {
        Self::Forbidden("this token is not for that tenant and workspace".to_owned())
    }

    /// The body of the answer.
    pub fn json(&self) -> Value {
        let mut error = json!({ "code": self.code(), "message": self.to_string() });
        if let Some(details) = self.details() {
            error["details"] = details;
        }
        json!({ "error": error })
    }

    /// The answer without its body.
    pub fn head(&self) -> HttpResponseBuilder {
        let mut response = HttpResponse::build(self.status_code());
        match self {
            Self::Overloaded | Self::StoreUnavailable => {
                response.insert_header((header::RETRY_AFTER, RETRY_AFTER_SECONDS));
            }
            Self::ExecutionUnavailable(_) => {
                response.insert_header((header::RETRY_AFTER, REST_BEFORE_PROBE.as_secs()));
            }
            Self::Unauthorized => {
                response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
            }
            Self::MethodNotAllowed { allowed } => {
                response.insert_header((header::ALLOW, *allowed));
            }
            // What is left of the body was not read; the connection cannot be used again.
            Self::PayloadTooLarge { .. } | Self::RequestTimeout | Self::BrokenBody => {
                response.force_close();
            }
            _ => {}
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Overloaded => Self::Overloaded,
            StoreError::Unavailable(what) => {
                log::warn!("request_failed store_error={what:?}");
                Self::StoreUnavailable
            }
            StoreError::Unexpected(what) => {
                log::error!("request_failed store_error={what:?}");
                Self::Internal
            }
        }
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::InvalidRequest(_) | Self::BrokenBody => StatusCode::BAD_REQUEST,
            Self::Unauthorized | Self::NotSigned => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) | Self::ManagementNodeNotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::IdempotencyConflict { .. }
            | Self::NotTerminal { .. }
            | Self::JobConflict { .. }
            | Self::KeyConflict { .. }
            | Self::AlreadyProcessed { .. } => StatusCode::CONFLICT,
            Self::PolicyRejected(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::PayloadTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RequestTimeout | Self::HeadTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Overloaded | Self::StoreUnavailable | Self::ExecutionUnavailable(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        self.head().json(self.json())
    }
}
