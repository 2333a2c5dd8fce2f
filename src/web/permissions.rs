//! Who may call what: one table of all routes of the API and the console, and the check that every request passes.
//!
//! Every resource is created by [`super::resource`] or one of its siblings, which wrap it in [`guarded`]. The check uses the
//! path pattern with which the resource was created, so no spelling of a path can avoid it. A route that is not in the
//! table answers 405, so a route cannot be added without saying who may call it. `tests/service/permissions.rs` calls
//! every route with every scope and role.

use std::rc::Rc;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::middleware::{Next, from_fn};
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse, Resource, web};

use super::error::ApiError;
use super::operator::Operator;
use super::{WebDeps, auth, origin};
use crate::domain::client::Scope;
use crate::domain::role::Role;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing. Health checks, metrics, descriptions of the API, and the pages of the console for signing in.
    Nothing,
    /// A request that a page of the console sent, whoever uses it. For signing in with a password and signing out.
    OwnPage,
    /// With `SM_AUTH=required` a token with this scope; with `SM_AUTH=off` a request that no page of another site sent.
    Scope(Scope),
    /// A token with this scope that is valid for the tenant of the job. The handler checks it: the tenant is in the request
    /// or in the store, and the order of its checks is part of the API.
    TenantScope(Scope),
    /// A signature of the body, which the handler checks.
    Signature,
    /// A person with at least this role. The guard of the console has established who it is.
    Role(Role),
}

/// A method of a path, and what it needs.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub needs: Needs,
}

const fn get(path: &'static str, needs: Needs) -> Route {
    Route { method: "GET", path, needs }
}

const fn post(path: &'static str, needs: Needs) -> Route {
    Route { method: "POST", path, needs }
}

const INTENTS_READ: Needs = Needs::Scope(Scope::IntentsRead);
const INTENTS_WRITE: Needs = Needs::Scope(Scope::IntentsWrite);
const INBOX_READ: Needs = Needs::Scope(Scope::InboxRead);
const INBOX_WRITE: Needs = Needs::Scope(Scope::InboxWrite);
const ADMIN_SCOPE: Needs = Needs::Scope(Scope::Admin);
const VIEWER: Needs = Needs::Role(Role::Viewer);
const OPERATOR: Needs = Needs::Role(Role::Operator);
const ADMIN: Needs = Needs::Role(Role::Admin);

/// All routes. A row for GET also covers HEAD.
pub const ROUTES: &[Route] = &[
    get("/v1/intents", INTENTS_READ),
    post("/v1/intents", INTENTS_WRITE),
    post("/v1/intents/batch", INTENTS_WRITE),
    get("/v1/intents/{intentId}", INTENTS_READ),
    get("/v1/intents/{intentId}/history", INTENTS_READ),
    post("/v1/intents/{intentId}/webhook/redeliver", INTENTS_WRITE),
    post("/v1/intents/{intentId}/cancel", INTENTS_WRITE),
    post("/v1/intents/{intentId}/redrive", ADMIN_SCOPE),
    get("/v1/redrives", ADMIN_SCOPE),
    post("/v1/redrives", ADMIN_SCOPE),
    get("/v1/redrives/{redriveId}", ADMIN_SCOPE),
    post("/v1/redrives/{redriveId}/start", ADMIN_SCOPE),
    post("/v1/redrives/{redriveId}/pause", ADMIN_SCOPE),
    post("/v1/redrives/{redriveId}/resume", ADMIN_SCOPE),
    post("/v1/redrives/{redriveId}/cancel", ADMIN_SCOPE),
    get("/v1/targets", ADMIN_SCOPE),
    post("/v1/targets/{submissionTarget}/pause", ADMIN_SCOPE),
    post("/v1/targets/{submissionTarget}/resume", ADMIN_SCOPE),
    get("/v1/audit", ADMIN_SCOPE),
    get("/v1/events", INTENTS_READ),
    get("/v1/events/stream", INTENTS_READ),
    get("/v1/jobs", Needs::TenantScope(Scope::JobsRead)),
    post("/v1/jobs", Needs::TenantScope(Scope::JobsSubmit)),
    get("/v1/jobs/events", Needs::TenantScope(Scope::JobsRead)),
    get("/v1/jobs/events/stream", Needs::TenantScope(Scope::JobsRead)),
    get("/v1/jobs/{submission_id}", Needs::TenantScope(Scope::JobsRead)),
    get("/v1/jobs/{submission_id}/history", Needs::TenantScope(Scope::JobsRead)),
    post("/v1/jobs/{submission_id}/cancel", Needs::TenantScope(Scope::JobsSubmit)),
    get("/v1/inbox/submissions", INBOX_READ),
    post("/v1/inbox/submissions", INBOX_WRITE),
    post("/v1/inbox/submissions/reprocess", INBOX_WRITE),
    get("/v1/inbox/submissions/{id}", INBOX_READ),
    post("/v1/inbox/submissions/{id}/reprocess", INBOX_WRITE),
    get("/v1/inbox/contacts", INBOX_READ),
    get("/v1/inbox/messages", INBOX_READ),
    post("/v1/inbox/hooks/{client_slug}/{channel}", Needs::Signature),
    get("/healthz", Needs::Nothing),
    get("/readyz", Needs::Nothing),
    get("/metrics", Needs::Nothing),
    get("/openapi.json", Needs::Nothing),
    get("/docs", Needs::Nothing),
    get("/docs/{file:.*}", Needs::Nothing),
    post("/ui/history", INTENTS_READ),
    get("/", Needs::Nothing),
    get("/ui", VIEWER),
    get("/ui/search", VIEWER),
    get("/ui/failures", VIEWER),
    get("/ui/intents", VIEWER),
    get("/ui/intents/{intentId}", VIEWER),
    get("/ui/intents/{intentId}/payload", OPERATOR),
    get("/ui/intents/{intentId}/edit", OPERATOR),
    post("/ui/intents/{intentId}/redrive", OPERATOR),
    post("/ui/intents/{intentId}/redeliver", OPERATOR),
    post("/ui/intents/{intentId}/cancel", OPERATOR),
    get("/ui/export", VIEWER),
    post("/ui/cancel-intents", OPERATOR),
    post("/ui/redeliver-events", OPERATOR),
    get("/ui/redrives", VIEWER),
    post("/ui/redrives", OPERATOR),
    get("/ui/redrives/{redriveId}", VIEWER),
    post("/ui/redrives/{redriveId}/start", OPERATOR),
    post("/ui/redrives/{redriveId}/pause", OPERATOR),
    post("/ui/redrives/{redriveId}/resume", OPERATOR),
    post("/ui/redrives/{redriveId}/cancel", OPERATOR),
    get("/ui/jobs", VIEWER),
    get("/ui/inbox", VIEWER),
    post("/ui/inbox/reprocess", OPERATOR),
    get("/ui/inbox/submissions/{id}", VIEWER),
    get("/ui/inbox/submissions/{id}/payload", OPERATOR),
    post("/ui/inbox/submissions/{id}/reprocess", OPERATOR),
    post("/ui/inbox/clients/{slug}/reprocess", OPERATOR),
    get("/ui/inbox/contacts", VIEWER),
    get("/ui/inbox/contacts/{id}", VIEWER),
    get("/ui/targets", VIEWER),
    get("/ui/targets/{submissionTarget}", VIEWER),
    post("/ui/targets/{submissionTarget}/pause", OPERATOR),
    post("/ui/targets/{submissionTarget}/resume", OPERATOR),
    get("/ui/audit", ADMIN),
    get("/ui/assets/{name}", Needs::Nothing),
    get("/ui/sign-in", Needs::Nothing),
    get("/ui/sign-in/start", Needs::Nothing),
    get("/ui/sign-in/callback", Needs::Nothing),
    post("/ui/sign-in/password", Needs::OwnPage),
    get("/ui/sign-out", Needs::Nothing),
    post("/ui/sign-out", Needs::OwnPage),
];

/// The pages of the console that need nobody who is signed in.
#[cfg(test)]
const PUBLIC_PAGES: [&str; 3] = ["/ui/assets", "/ui/sign-in", "/ui/sign-out"];

/// Why a request is refused.
#[derive(Debug)]
pub enum Refusal {
    /// The caller is not known, or may not call this.
    Caller(ApiError),
    /// The person does not have this role.
    Role(Role),
    /// The table has no such method of this path.
    Method,
}

impl Refusal {
    /// The refusal as an error of the API. `allowed` lists the methods of the path.
    pub fn into_api_error(self, allowed: &'static str) -> ApiError {
        match self {
            Self::Caller(error) => error,
            Self::Role(role) => ApiError::Forbidden(format!("this needs the role {}", role.as_str())),
            Self::Method => ApiError::MethodNotAllowed { allowed },
        }
    }
}

/// The service of a resource that checks every request. An alias for the bounds that actix needs.
pub trait GuardedService:
    ServiceFactory<ServiceRequest, Config = (), Response = ServiceResponse, Error = Error, InitError = ()> + 'static
{
}

impl<T> GuardedService for T where
    T: ServiceFactory<ServiceRequest, Config = (), Response = ServiceResponse, Error = Error, InitError = ()> + 'static
{
}

/// Wraps a resource with this path, so that every request is checked first. `refuse` makes the response to a refused one.
pub fn guarded<F>(resource: Resource, path: &str, refuse: F) -> Resource<impl GuardedService + use<F>>
where
    F: Fn(&HttpRequest, Refusal) -> HttpResponse + 'static,
{
    let routes: Rc<[Route]> = ROUTES.iter().filter(|route| route.path == path).copied().collect();
    let refuse = Rc::new(refuse);
    resource.wrap(from_fn(move |request: ServiceRequest, next: Next<BoxBody>| {
        let (routes, refuse) = (Rc::clone(&routes), Rc::clone(&refuse));
        async move {
            match check(&routes, request.request()) {
                Ok(()) => next.call(request).await,
                Err(refusal) => {
                    let response = refuse(request.request(), refusal);
                    Ok(request.into_response(response))
                }
            }
        }
    }))
}

fn check(routes: &[Route], request: &HttpRequest) -> Result<(), Refusal> {
    let method = if *request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let route = routes.iter().find(|route| route.method == method).ok_or(Refusal::Method)?;
    match route.needs {
        Needs::Nothing | Needs::TenantScope(_) | Needs::Signature => Ok(()),
        Needs::OwnPage => {
            if origin::is_from_own_page(request.headers(), origin::host(request)) {
                return Ok(());
            }
            let text = "this request did not come from a page of this console";
            Err(Refusal::Caller(ApiError::Forbidden(text.to_owned())))
        }
        Needs::Scope(scope) => {
            let deps = request.app_data::<web::Data<WebDeps>>().ok_or(Refusal::Caller(ApiError::Internal))?;
            auth::authorize(request, deps, scope).map_err(Refusal::Caller)
        }
        Needs::Role(needed) => {
            let has = request.extensions().get::<Operator>().is_some_and(|operator| operator.role.includes(needed));
            if has { Ok(()) } else { Err(Refusal::Role(needed)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_method_of_a_path_is_there_once() {
        let routes: BTreeSet<_> = ROUTES.iter().map(|route| (route.path, route.method)).collect();
        assert_eq!(routes.len(), ROUTES.len());
    }

    /// Only posts change anything, so only they need the protection against forged requests, which the guard of the console
    /// gives to all methods that are not safe.
    #[test]
    fn pages_that_only_show_something_are_gets() {
        for route in ROUTES {
            assert!(["GET", "POST"].contains(&route.method), "{route:?}");
            let public = PUBLIC_PAGES.iter().any(|page| route.path.starts_with(page)) || route.path == "/ui/history";
            assert_eq!(route.path.starts_with("/ui"), matches!(route.needs, Needs::Role(_)) || public, "{route:?}");
            if public {
                let safe = if route.method == "GET" { Needs::Nothing } else { Needs::OwnPage };
                assert!(route.needs == safe || route.path == "/ui/history", "{route:?}");
            }
        }
    }
}
