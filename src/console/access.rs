//! Access to the console, and the security headers of its pages.
//!
//! The guard finds out who sent a request, and adds that [`Operator`] to it. [`crate::web::permissions`] then checks
//! for each route what the role may call. While neither a user nor a provider is configured, the console needs no login
//! on loopback, and is disabled on other addresses. Pages load nothing from other hosts, run no inline script and can
//! be shown in a frame only by configured origins. Forms are accepted only from pages of this console.

use std::net::IpAddr;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse, ResponseError, web};

use super::passwords::{Admission, named_user};
use super::sign_in::{SignedIn, events, sign_in_first};
use super::{Console, PageError, notice};
use crate::web::operator::Operator;
use crate::web::{WebDeps, origin};

/// The challenge that makes browsers ask for a user name and a password.
pub(super) const BASIC_CHALLENGE: HeaderValue =
    HeaderValue::from_static("Basic realm=\"submission manager\", charset=\"UTF-8\"");

/// A person who may use the console, and a cookie to send with the response, if there is one.
struct Admitted {
    operator: Operator,
    cookie: Option<HeaderValue>,
}

impl From<Operator> for Admitted {
    fn from(operator: Operator) -> Self {
        Self { operator, cookie: None }
    }
}

/// Middleware of all pages that need a person who is known: checks access and adds the security headers.
pub(super) async fn guard(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let (console, deps) = deps_of(&request)?;
    let admitted = match operator_of(&request, &console, &deps).await {
        Ok(_) if !is_allowed_origin(&request) => Err(foreign()),
        result => result,
    };
    let mut response = match admitted {
        Ok(Admitted { operator, cookie }) => {
            request.extensions_mut().insert(operator);
            let mut response = next.call(request).await?.map_into_left_body();
            if let Some(cookie) = cookie {
                response.headers_mut().append(header::SET_COOKIE, cookie);
            }
            response
        }
        Err(refusal) => request.into_response(refusal).map_into_right_body(),
    };
    add_headers(response.headers_mut(), &console);
    Ok(response)
}

/// Middleware of the pages that anyone may see: sign-in, sign-out and assets. Adds the security headers.
pub(super) async fn public(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let (console, _) = deps_of(&request)?;
    let mut response = if is_allowed_origin(&request) {
        next.call(request).await?.map_into_left_body()
    } else {
        request.into_response(foreign()).map_into_right_body()
    };
    add_headers(response.headers_mut(), &console);
    Ok(response)
}

fn deps_of(request: &ServiceRequest) -> Result<(web::Data<Console>, web::Data<WebDeps>), Error> {
    let console = request.app_data::<web::Data<Console>>().cloned();
    let deps = request.app_data::<web::Data<WebDeps>>().cloned();
    console.zip(deps).ok_or_else(|| actix_web::error::ErrorInternalServerError("the console is not set up"))
}

/// The address of the connection, not of a proxy header: an attacker could forge the header.
pub(super) fn address_of(request: &HttpRequest) -> IpAddr {
    request.peer_addr().map_or(IpAddr::from([0; 4]), |peer| peer.ip())
}

/// The person who sent the request, or the response that refuses it.
async fn operator_of(request: &ServiceRequest, console: &Console, deps: &WebDeps) -> Result<Admitted, HttpResponse> {
    let registry = deps.registry.get();
    let (users, oidc) = (console.users(&registry), registry.oidc.as_deref());
    if users.is_empty() && oidc.is_none() {
        let own_name = origin::host(request.request()).is_some_and(|host| deps.listener.is_own_name(host));
        return if console.on_loopback && own_name { Ok(Operator::ON_LOOPBACK.into()) } else { Err(closed()) };
    }
    if let Some(oidc) = oidc {
        let signed_in = console.sign_in.signed_in(request.request(), &users, Some(oidc), deps.clock.now());
        if let Some(SignedIn { operator, renewed }) = signed_in {
            return Ok(Admitted { operator, cookie: renewed });
        }
    }
    let address = address_of(request.request());
    let authorization = request.headers().get(header::AUTHORIZATION);
    let admission = console.passwords.admit(&users, authorization, address).await;
    let user = named_user(&users, authorization);
    console.sign_in.refusals().password(deps, &admission, user, address).await;
    match admission {
        Admission::Known(operator) => Ok(operator.into()),
        Admission::Right(operator) => {
            let recorded = events::signed_in(deps, &console.passwords, &operator, address).await;
            recorded.map_err(|error| PageError::from(error).error_response())?;
            Ok(operator.into())
        }
        Admission::Missing if oidc.is_some() => Err(sign_in_first(request.request(), &users)),
        Admission::Missing | Admission::Wrong => Err(unauthorized()),
        Admission::Limited(retry_after) => Err(limited(retry_after)),
    }
}

fn add_headers(headers: &mut HeaderMap, console: &Console) {
    let frames = if console.frames.is_empty() { "'none'" } else { &console.frames };
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors {frames}"
    );
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in [
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Links from any site may open a page, but a form must be sent from a page of this console.
fn is_allowed_origin(request: &ServiceRequest) -> bool {
    let (method, headers, host): (&Method, _, _) =
        (request.method(), request.headers(), origin::host(request.request()));
    if method.is_safe() { !origin::is_foreign(method, headers, host) } else { origin::is_from_own_page(headers, host) }
}

fn closed() -> HttpResponse {
    let text = "Other machines can reach this instance, or it was called by a host name that is not its own, so the \
                console needs users. Name the file with them in SM_CONSOLE_USERS, or set SM_CONSOLE_AUTH to the output of \
                'htpasswd -nB user', and restart the service.";
    notice(StatusCode::FORBIDDEN, "The console is disabled", text)
}

fn foreign() -> HttpResponse {
    notice(StatusCode::FORBIDDEN, "Request refused", "This request did not come from a page of this console.")
}

fn limited(retry_after: Duration) -> HttpResponse {
    let seconds = retry_after.as_secs().max(1);
    let text = format!("There were too many wrong passwords. Try again in {seconds} s.");
    let mut response = notice(StatusCode::TOO_MANY_REQUESTS, "Too many login attempts", &text);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

fn unauthorized() -> HttpResponse {
    let mut response = notice(StatusCode::UNAUTHORIZED, "Sign in", "The console needs a user name and a password.");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, BASIC_CHALLENGE);
    response
}
