//! Access to the console, and the security headers of its pages.
//!
//! On loopback the console needs no login. On other addresses it needs a user and a password (basic auth, see
//! `login.rs`); without a configured login it is disabled. Pages load nothing from other hosts, run no inline script
//! and can be framed only by configured origins. Forms are accepted only from pages of this console.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{Error, HttpResponse, web};

use super::Console;
use super::login::{Admission, Login};
use super::notice;
use crate::web::{WebDeps, origin};

/// Who may use the console.
#[derive(Clone)]
pub enum Access {
    /// Everyone who can connect, which is only this machine.
    Open,
    /// No one: other machines can connect, and no login is configured.
    Closed,
    /// Everyone who knows the user and the password.
    Password(Arc<Login>),
}

impl Access {
    /// Without a login the console is open on loopback and closed on other addresses.
    pub fn new(login: Option<Login>, listens_on: IpAddr) -> Self {
        match login {
            Some(login) => Self::Password(Arc::new(login)),
            None if listens_on.is_loopback() => Self::Open,
            None => Self::Closed,
        }
    }
}

/// Middleware of all console pages: checks access and adds the security headers.
pub async fn guard(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let console = request.app_data::<web::Data<Console>>().cloned();
    let deps = request.app_data::<web::Data<WebDeps>>().cloned();
    let Some((console, deps)) = console.zip(deps) else {
        return Err(actix_web::error::ErrorInternalServerError("the console is not set up"));
    };
    let host = origin::host(request.request()).map(str::to_owned);
    let refusal = match &console.access {
        Access::Open => (!host.as_deref().is_some_and(|host| deps.listener.is_own_name(host))).then(closed),
        Access::Closed => Some(closed()),
        Access::Password(login) => {
            // The address of the connection and not of a proxy header, because a client that guesses passwords could
            // forge the header.
            let address = request.peer_addr().map_or(IpAddr::from([0; 4]), |peer| peer.ip());
            let admission = login.admit(request.headers().get(header::AUTHORIZATION), address).await;
            let counted = |result, refusal| {
                deps.metrics.console_login(result);
                refusal
            };
            match admission {
                Admission::Known => None,
                Admission::Missing => Some(unauthorized()),
                Admission::Right => counted("right", None),
                Admission::Wrong => counted("wrong", Some(unauthorized())),
                Admission::Limited(retry_after) => counted("limited", Some(limited(retry_after))),
            }
        }
    };
    let refusal =
        refusal.or_else(|| (!is_allowed_origin(request.method(), request.headers(), host.as_deref())).then(foreign));
    let mut response = match refusal {
        Some(refusal) => request.into_response(refusal).map_into_right_body(),
        None => next.call(request).await?.map_into_left_body(),
    };
    let frames = if console.frames.is_empty() { "'none'" } else { &console.frames };
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors {frames}"
    );
    let headers = response.headers_mut();
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
    Ok(response)
}

/// Links from any site may open a page, but a form must be sent from a page of this console.
fn is_allowed_origin(method: &Method, headers: &HeaderMap, host: Option<&str>) -> bool {
    if method.is_safe() { !origin::is_foreign(method, headers, host) } else { origin::is_from_own_page(headers, host) }
}

fn closed() -> HttpResponse {
    let text = "Other machines can reach this instance, or it was called by a host name that is not its own, so the \
                console needs a password. Set SM_CONSOLE_AUTH to the output of 'htpasswd -nB user' and restart the service.";
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
    let challenge = HeaderValue::from_static("Basic realm=\"submission manager\", charset=\"UTF-8\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_login_the_console_is_open_on_loopback_only() {
        for (address, open) in [("127.0.0.1", true), ("::1", true), ("0.0.0.0", false), ("10.0.0.1", false)] {
            assert_eq!(matches!(Access::new(None, address.parse().unwrap()), Access::Open), open, "{address}");
        }
    }
}
