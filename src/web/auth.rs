//! Authentication by bearer token, and authorization by the scopes of that token.
//!
//! With `SM_AUTH=required` every call under `/v1` needs a token with the right scope. With `SM_AUTH=off` no token is
//! needed, but requests from web pages of other sites are refused. [`super::permissions`] says which scope a call needs.
//! Jobs always need a token; `src/api/jobs` also checks that the token is for the tenant.

use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::http::header;

use super::error::ApiError;
use super::{WebDeps, origin};
use crate::config::registry::Registry;
use crate::config::settings::AuthMode;
use crate::domain::client::{ApiClient, Scope};

/// The client whose bearer token the request carries. Fails with `Unauthorized` if the token is missing or unknown.
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

/// Checks that the caller may make a call that needs this scope. With `SM_AUTH=off` every program may, and web pages of
/// other sites may not.
pub fn authorize(request: &HttpRequest, deps: &WebDeps, scope: Scope) -> Result<(), ApiError> {
    match deps.auth {
        AuthMode::Off => origin::check(request, deps),
        AuthMode::Required => require_scope(caller(request, &deps.registry.get())?.as_ref(), scope),
    }
}

/// Fails with `Forbidden` if the client's token does not have this scope.
pub fn require_scope(client: &ApiClient, scope: Scope) -> Result<(), ApiError> {
    if client.may(scope) {
        return Ok(());
    }
    Err(ApiError::Forbidden(format!("this token does not have the scope {}", scope.as_str())))
}
