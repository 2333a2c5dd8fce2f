//! Who may see the console, and what browsers are told about its pages.
//!
//! Open where only this machine can reach it; elsewhere a user and a password (basic auth, the
//! password as bcrypt), or nobody. Pages may load nothing from elsewhere, run no inline script and
//! stand in no frame but those that are configured. A form is taken only from our own pages.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{Error, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::Console;
use super::notice;

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

/// A user and a hashed password, as a line of `htpasswd -B` has them.
pub struct Login {
    user: String,
    hash: String,
    /// The credentials that were last found to be right, hashed: bcrypt takes its time.
    known: RwLock<Option<[u8; 32]>>,
    /// One look at a password at a time, so that guessing costs this machine little.
    checking: Mutex<()>,
}

impl Clone for Login {
    fn clone(&self) -> Self {
        Self::new(self.user.clone(), self.hash.clone())
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.user)
    }
}

impl Login {
    fn new(user: String, hash: String) -> Self {
        Self { user, hash, known: RwLock::default(), checking: Mutex::default() }
    }

    /// `user:$2y$…`; an error repeats nothing of it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fault = || "must be a line as 'htpasswd -nB user' prints it: user:$2y$…".to_owned();
        let (user, hash) = text.trim().split_once(':').ok_or_else(fault)?;
        let known = hash.parse::<bcrypt::HashParts>().is_ok();
        if user.is_empty() || !known { Err(fault()) } else { Ok(Self::new(user.to_owned(), hash.to_owned())) }
    }

    async fn admits(self: &Arc<Self>, authorization: Option<&HeaderValue>) -> bool {
        let Some(encoded) = authorization.and_then(|value| value.to_str().ok()?.strip_prefix("Basic ")) else {
            return false;
        };
        let Some(given) = STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok()) else {
            return false;
        };
        let fingerprint: [u8; 32] = Sha256::digest(given.as_bytes()).into();
        if *self.known.read().unwrap_or_else(PoisonError::into_inner) == Some(fingerprint) {
            return true;
        }
        let _alone = self.checking.lock().await;
        let login = Arc::clone(self);
        let right = web::block(move || {
            let (user, password) = given.split_once(':').unwrap_or_default();
            // The password is looked at also for a wrong user, so that both take as long.
            let matches = bcrypt::verify(password, &login.hash).unwrap_or(false);
            matches && user == login.user
        });
        let right = right.await.unwrap_or(false);
        if right {
            *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(fingerprint);
        }
        right
    }
}

/// Stands before every page of the console.
pub async fn guard(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let Some(console) = request.app_data::<web::Data<Console>>().cloned() else {
        return Err(actix_web::error::ErrorInternalServerError("the console is not set up"));
    };
    let refusal = match &console.access {
        Access::Open => (!asked_for_on_loopback(request.headers())).then(closed),
        Access::Closed => Some(closed()),
        Access::Password(login) => {
            let admitted = login.admits(request.headers().get(header::AUTHORIZATION)).await;
            (!admitted).then(unauthorized)
        }
    };
    let refusal = refusal.or_else(|| (!from_our_pages(request.method(), request.headers())).then(foreign));
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

/// Whether the browser knows this as a name of its own machine. A page from elsewhere may give its
/// own name our address, and then read what we answer; it cannot change the name that is asked for.
fn asked_for_on_loopback(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || name.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Browsers say from where a request comes. One that changes something and does not say so, or
/// comes from elsewhere, is not taken.
fn from_our_pages(method: &Method, headers: &HeaderMap) -> bool {
    if method.is_safe() {
        return true;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site")) {
        return site == "same-origin";
    }
    let origin_host = text(header::ORIGIN).and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    origin_host.is_some() && origin_host == text(header::HOST)
}

fn closed() -> HttpResponse {
    let text = "This instance can be reached from other machines, or under a name of one, so its console needs a password: \
                set SM_CONSOLE_AUTH to a line of 'htpasswd -nB user' and start again.";
    notice(StatusCode::FORBIDDEN, "The console is closed", text)
}

fn foreign() -> HttpResponse {
    notice(StatusCode::FORBIDDEN, "Not done", "This request did not come from a page of this console.")
}

fn unauthorized() -> HttpResponse {
    let mut response = notice(StatusCode::UNAUTHORIZED, "Who are you?", "Name and password are needed.");
    let challenge = HeaderValue::from_static("Basic realm=\"submission manager\", charset=\"UTF-8\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_that_are_none() {
        let hash = bcrypt::hash("secret", 4).unwrap();
        assert!(Login::parse(&format!("ops:{hash}")).is_ok());
        for text in ["", "ops", "ops:secret", &format!(":{hash}"), "ops:$apr1$x$y"] {
            let fault = Login::parse(text).unwrap_err();
            assert!(fault.contains("htpasswd -nB") && !fault.contains("secret"), "{text}: {fault}");
        }
    }

    #[actix_web::test]
    async fn a_login_admits_its_user_and_nobody_else() {
        let hash = bcrypt::hash("se:cret é", 4).unwrap();
        let login = Arc::new(Login::parse(&format!("ops:{hash}")).unwrap());
        let basic = |given: &str| HeaderValue::try_from(format!("Basic {}", STANDARD.encode(given))).unwrap();
        for _ in 0..2 {
            assert!(login.admits(Some(&basic("ops:se:cret é"))).await);
            for wrong in ["ops:se:cret", "root:se:cret é", "ops:", "ops", ""] {
                assert!(!login.admits(Some(&basic(wrong))).await, "{wrong}");
            }
            assert!(!login.admits(None).await);
            assert!(!login.admits(Some(&HeaderValue::from_static("Bearer x"))).await);
        }
    }

    #[test]
    fn changes_are_taken_from_our_own_pages_only() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
            pairs.collect::<HeaderMap>()
        };
        for (pairs, taken) in [
            (vec![("sec-fetch-site", "same-origin")], true),
            (vec![("sec-fetch-site", "cross-site"), ("host", "a"), ("origin", "http://a")], false),
            (vec![("sec-fetch-site", "none")], false),
            (vec![("host", "a:1"), ("origin", "http://a:1")], true),
            (vec![("host", "a:1"), ("origin", "http://b:1")], false),
            (vec![("host", "a:1"), ("origin", "null")], false),
            (vec![("host", "a:1")], false),
        ] {
            assert_eq!(from_our_pages(&Method::POST, &headers(&pairs)), taken, "{pairs:?}");
            assert!(from_our_pages(&Method::GET, &headers(&pairs)));
        }
    }

    #[test]
    fn names_of_this_machine_and_others() {
        for (host, here) in [
            ("127.0.0.1:8082", true),
            ("127.0.0.1", true),
            ("localhost:8082", true),
            ("console.localhost", true),
            ("[::1]:8082", true),
            ("evil.example:8082", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:8082", false),
            ("", false),
        ] {
            let headers = [(header::HOST, HeaderValue::from_static(host))].into_iter().collect();
            assert_eq!(asked_for_on_loopback(&headers), here, "{host}");
        }
    }

    #[test]
    fn the_console_is_open_on_the_loopback_only() {
        for (address, open) in [("127.0.0.1", true), ("::1", true), ("0.0.0.0", false), ("10.0.0.1", false)] {
            assert_eq!(matches!(Access::new(None, address.parse().unwrap()), Access::Open), open, "{address}");
        }
    }
}
