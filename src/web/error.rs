//! The errors of the API: the message, code, HTTP status and JSON body of each. This is the only place that maps errors to
//! statuses.
//!
//! Codes are part of the API and never change. Messages are for people and may change.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};
use serde_json::{Value, json};

use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::{IntentId, Status};
use crate::domain::job::SubmissionId;
use crate::domain::node::{Breach, PROBE_INTERVAL};
use crate::domain::redrive::Refusal;
use crate::store::{Conflict, StoreError};

/// Every error that a client of the API can get.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{0}")]
    InvalidRequest(String),
    #[error("{0}")]
    NotFound(String),
    #[error("method not allowed; this path supports {allowed}")]
    MethodNotAllowed { allowed: &'static str },
    #[error("intent {:?} already exists with a different {}", conflict.existing.id, conflicting_fields(conflict).join(" and "))]
    IdempotencyConflict { conflict: Box<Conflict> },
    #[error("missing or invalid bearer token")]
    Unauthorized,
    /// An inbound webhook whose signature is missing or invalid, or whose timestamp is too far from now.
    #[error("missing, invalid or expired webhook signature")]
    NotSigned,
    #[error("{0}")]
    Forbidden(String),
    /// The node does not exist, or the tenant may not use it. Both get the same message, so that a tenant cannot find out
    /// which nodes others have.
    #[error("no such management node")]
    ManagementNodeNotFound,
    #[error("this idempotency_key was already used for a command with a different {}", fields.join(", "))]
    JobConflict { id: SubmissionId, fields: Vec<&'static str>, status: Status },
    /// The key of an inbox submission: its `Idempotency-Key` header, or the `webhook-id` of a webhook.
    #[error("this {header} was already used with a different request; see inbox submission {id}")]
    KeyConflict { header: &'static str, id: InboxSubmissionId },
    #[error("inbox submission {id} has already been processed")]
    AlreadyProcessed { id: InboxSubmissionId },
    #[error("the management node does not allow this job: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    PolicyRejected(Vec<Breach>),
    #[error("the management node {0}; try again later")]
    ExecutionUnavailable(&'static str),
    #[error(
        "events after this cursor were deleted; omit the parameter after to start at the oldest event that is kept"
    )]
    CursorExpired,
    #[error("intent {id:?} is still pending; it has no webhook event yet")]
    NotTerminal { id: IntentId },
    #[error("attempt {attempt} is in progress; try again when it has finished, or set afterAttempt=true")]
    AttemptInProgress { attempt: u32 },
    #[error("cannot cancel: already ended with the status {}", status.as_str())]
    AlreadyTerminal { status: Status },
    #[error("{}", refused_change(change, *refusal))]
    InvalidRedriveState { change: &'static str, refusal: Refusal },
    #[error("only an intent that was rejected or exhausted can be redriven; this one is {}", status.as_str())]
    NotFailed { status: Status },
    #[error("the intent was already redriven as {redriven_as:?}; if that one failed too, redrive that one")]
    AlreadyRedriven { redriven_as: IntentId },
    #[error("the {what} is too large; the limit is {limit} bytes")]
    PayloadTooLarge { what: &'static str, limit: usize },
    #[error("the request body is incomplete or not framed correctly; check Content-Length or the chunked encoding")]
    BrokenBody,
    #[error("the request body did not arrive in time; send it faster or make it smaller")]
    RequestTimeout,
    #[error("the request headers did not arrive within {seconds} s")]
    HeadTimeout { seconds: u64 },
    #[error("the request headers are too large; send fewer or shorter headers")]
    HeadTooLarge,
    #[error("the service is overloaded; try again in a moment")]
    Overloaded,
    #[error("the store did not respond in time; it is safe to send the same request again")]
    StoreUnavailable,
    #[error("internal error; the log of the service has the details")]
    Internal,
}

/// The `Retry-After` of `overloaded` and `store_unavailable`. It is short because a commit takes milliseconds.
const RETRY_AFTER_SECONDS: u32 = 1;

/// The fields in which a submission differs from the intent that already has its id.
fn conflicting_fields(conflict: &Conflict) -> Vec<&'static str> {
    let fields = [
        conflict.target_differs.then_some("submissionTarget"),
        conflict.payload_differs.then_some("payload"),
        conflict.not_before_differs.then_some("notBefore"),
    ];
    fields.into_iter().flatten().collect()
}

/// Why a redrive was not changed.
fn refused_change(change: &str, refusal: Refusal) -> String {
    match refusal {
        Refusal::WrongState(state) => format!("cannot {change} a redrive that is {}", state.as_str()),
        Refusal::EmptyPlan => "the plan has no intents, so there is nothing to start; plan another filter".to_owned(),
    }
}

impl ApiError {
    /// The code of the error, for programs.
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
            Self::CursorExpired => "cursor_expired",
            Self::NotTerminal { .. } => "not_terminal",
            Self::AttemptInProgress { .. } => "attempt_in_progress",
            Self::AlreadyTerminal { .. } => "already_terminal",
            Self::InvalidRedriveState { .. } | Self::NotFailed { .. } => "invalid_state",
            Self::AlreadyRedriven { .. } => "already_redriven",
            Self::PayloadTooLarge { .. } => "payload_too_large",
            Self::RequestTimeout | Self::HeadTimeout { .. } => "request_timeout",
            Self::HeadTooLarge => "headers_too_large",
            Self::Overloaded => "overloaded",
            Self::StoreUnavailable => "store_unavailable",
            Self::Internal => "internal_error",
        }
    }

    /// The details for programs, besides the code.
    fn details(&self) -> Option<Value> {
        match self {
            Self::IdempotencyConflict { conflict } => Some(json!({
                "conflictingFields": conflicting_fields(conflict),
                "existingStatus": conflict.existing.state.status().as_str(),
            })),
            Self::JobConflict { fields, status, .. } => {
                Some(json!({ "conflicting_fields": fields, "existing_status": status.as_str() }))
            }
            Self::PolicyRejected(breaches) => {
                let violations = breaches.iter().map(|breach| json!({ "field": breach.field, "rule": breach.rule }));
                Some(json!({ "violations": violations.collect::<Vec<_>>() }))
            }
            Self::InvalidRedriveState { refusal: Refusal::WrongState(state), .. } => {
                Some(json!({ "state": state.as_str() }))
            }
            Self::AlreadyRedriven { redriven_as } => Some(json!({ "redrivenAs": redriven_as.as_str() })),
            Self::NotFailed { status } | Self::AlreadyTerminal { status } => Some(json!({ "status": status.as_str() })),
            Self::PayloadTooLarge { limit, .. } => Some(json!({ "maxBytes": limit })),
            _ => None,
        }
    }

    /// The token does not cover the tenant and workspace. The message is the same whether or not that tenant exists.
    pub fn not_for_that_tenant() -> Self {
        Self::Forbidden("this token is not valid for this tenant and workspace".to_owned())
    }

    /// The JSON body of the response.
    pub fn json(&self) -> Value {
        let mut error = json!({ "code": self.code(), "message": self.to_string() });
        if let Some(details) = self.details() {
            error["details"] = details;
        }
        json!({ "error": error })
    }

    /// The response with its status and headers, still without a body.
    pub fn head(&self) -> HttpResponseBuilder {
        let mut response = HttpResponse::build(self.status_code());
        match self {
            Self::Overloaded | Self::StoreUnavailable => {
                response.insert_header((header::RETRY_AFTER, RETRY_AFTER_SECONDS));
            }
            Self::ExecutionUnavailable(_) => {
                response.insert_header((header::RETRY_AFTER, PROBE_INTERVAL.as_secs()));
            }
            Self::Unauthorized => {
                response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
            }
            Self::MethodNotAllowed { allowed } => {
                response.insert_header((header::ALLOW, *allowed));
            }
            // The rest of the body was not read, so the connection cannot be used for another request.
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
            | Self::AttemptInProgress { .. }
            | Self::AlreadyTerminal { .. }
            | Self::InvalidRedriveState { .. }
            | Self::NotFailed { .. }
            | Self::AlreadyRedriven { .. }
            | Self::JobConflict { .. }
            | Self::KeyConflict { .. }
            | Self::AlreadyProcessed { .. } => StatusCode::CONFLICT,
            Self::CursorExpired => StatusCode::GONE,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_wrong_inside_is_not_told() {
        for (error, status, code) in [
            (StoreError::unexpected("no such table: secrets"), 500, "internal_error"),
            (StoreError::unavailable("login failed for sa"), 503, "store_unavailable"),
            (StoreError::Overloaded, 503, "overloaded"),
        ] {
            let error = ApiError::from(error);
            let json = error.json();
            assert_eq!((error.status_code().as_u16(), &json["error"]["code"]), (status, &code.into()));
            assert!(json["error"].get("details").is_none(), "absent details are left out: {json}");
            assert!(!json.to_string().contains("secrets") && !json.to_string().contains("sa\""), "{json}");
        }
    }
}
