//! Bearer tokens: who is calling, and whether that may be done.
//!
//! With `SM_AUTH=required` every `/v1` call needs a token with its scope. While it is off, requests that pages of
//! other sites send are refused instead. Jobs always need a token, and check tenants besides: that is theirs.

use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::http::header;

use super::error::ApiError;
use super::{WebDeps, origin};
use crate::config::registry::Registry;
use crate::config::settings::AuthMode;
use crate::domain::client::{ApiClient, Scope};

/// Whoever's token stands in the request.
pub fn caller(request: &HttpRequest, registry: &Registry) -> Result<Arc<ApiClient>, ApiError> {
    let identities = registry.identities.as_ref().ok_or(ApiError::Unauthorized)?;
    let token = bearer(request).ok_or(ApiError::Unauthorized)?;
    identities.identify(token).ok_or(ApiError::Unauthorized)
}

fn bearer(request: &HttpRequest) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Whether the caller may do what needs this scope. While no tokens are asked for, every program may, and pages of other
/// sites may not.
pub fn allow(request: &HttpRequest, deps: &WebDeps, scope: Scope) -> Result<(), ApiError> {
    match deps.auth {
        AuthMode::Off => origin::check(request, deps),
        AuthMode::Required => in_scope(caller(request, &deps.registry.get())?.as_ref(), scope),
    }
}

pub fn in_scope(client: &ApiClient, scope: Scope) -> Result<(), ApiError> {
    if client.may(scope) {
        return Ok(());
    }
    Err(ApiError::Forbidden(format!("this token has no scope {}", scope.as_str())))
}
