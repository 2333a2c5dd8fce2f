//! Who may see the console, and what browsers are told about its pages.
//!
//! Open where only this machine can reach it; elsewhere a user and a password (basic auth, see [`super::login`]), or
//! nobody. Pages load nothing from other hosts, run no inline script and stand in no frame but those that are
//! configured. A form is taken only from our own pages.

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

#[derive(Clone)]
pub enum Access {
    /// Whoever reaches it: only this machine does.
    Open,
    /// Nobody, because anybody could.
    Closed,
    Password(Arc<Login>),
}

impl Access {
    /// Without a login the console is open on the loopback and closed elsewhere.
    pub fn new(login: Option<Login>, listens_on: IpAddr) -> Self {
        match login {
            Some(login) => Self::Password(Arc::new(login)),
            None if listens_on.is_loopback() => Self::Open,
            None => Self::Closed,
        }
    }
}

/// Stands before every page of the console.
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
            // Not what a proxy says: whoever guesses could say so, too.
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
    let refusal = refusal.or_else(|| (!may_come(request.method(), request.headers(), host.as_deref())).then(foreign));
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

/// Pages may be opened by a link from anywhere. A button must be pressed on one of our own.
fn may_come(method: &Method, headers: &HeaderMap, host: Option<&str>) -> bool {
    if method.is_safe() { !origin::is_foreign(method, headers, host) } else { origin::is_from_own_page(headers, host) }
}

fn closed() -> HttpResponse {
    let text = "This instance can be reached from other machines, or under a name of one, so its console needs a password: \
                set SM_CONSOLE_AUTH to a line of 'htpasswd -nB user' and start again.";
    notice(StatusCode::FORBIDDEN, "The console is closed", text)
}

fn foreign() -> HttpResponse {
    notice(StatusCode::FORBIDDEN, "Not done", "This request did not come from a page of this console.")
}

fn limited(retry_after: Duration) -> HttpResponse {
    let seconds = retry_after.as_secs().max(1);
    let text = format!("There were too many wrong passwords. Try again in {seconds} s.");
    let mut response = notice(StatusCode::TOO_MANY_REQUESTS, "Too many passwords", &text);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

fn unauthorized() -> HttpResponse {
    let mut response = notice(StatusCode::UNAUTHORIZED, "Sign in", "A user and a password are needed.");
    let challenge = HeaderValue::from_static("Basic realm=\"submission manager\", charset=\"UTF-8\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_open_on_the_loopback_only() {
        for (address, open) in [("127.0.0.1", true), ("::1", true), ("0.0.0.0", false), ("10.0.0.1", false)] {
            assert_eq!(matches!(Access::new(None, address.parse().unwrap()), Access::Open), open, "{address}");
        }
    }
}
