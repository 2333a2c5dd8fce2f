//! Protection against requests from web pages of other sites (cross-site request forgery and DNS rebinding).
//!
//! Every browser on the machine can reach a listener that needs no credentials, so a page of any site can send requests
//! to it. Two rules stop that. First, browsers say which site a page belongs to (`Origin`, `Sec-Fetch-Site`), and requests
//! from pages of other sites are refused. Second, a page can point its own host name at this address (DNS rebinding), and
//! the browser then treats the service as part of that site. Such requests carry the foreign name in `Host`, so a listener
//! on loopback accepts only names of its own machine. Programs send no `Origin`; the first rule does not affect them.

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderName};

use super::WebDeps;
use super::error::ApiError;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Where the service listens. Access depends on it.
#[derive(Clone)]
pub struct Listener {
    /// Whether only this machine can connect.
    loopback: bool,
    /// The host name of this machine, in lower case.
    host_name: Arc<str>,
}

impl Listener {
    pub fn new(address: IpAddr) -> Self {
        Self {
            loopback: address.is_loopback(),
            host_name: gethostname::gethostname().to_string_lossy().to_lowercase().into(),
        }
    }

    /// Whether a value of `Host` is a name of this machine: a loopback address, `localhost` or the host name.
    pub fn is_own_name(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name == "localhost"
            || name.ends_with(".localhost")
            || (!name.is_empty() && *name == *self.host_name)
            || address.is_ok_and(|address| address.is_loopback())
    }
}

/// Refuses requests from web pages of other sites. Used for calls that need no credentials.
pub fn check(request: &HttpRequest, deps: &WebDeps) -> Result<(), ApiError> {
    let host = host(request);
    if deps.listener.loopback && host.is_some_and(|host| !deps.listener.is_own_name(host)) {
        let text = "the service listens on loopback without authentication and accepts only names of this machine; \
                    use 127.0.0.1 or localhost in the URL, or set SM_AUTH=required";
        return Err(ApiError::Forbidden(text.to_owned()));
    }
    if is_foreign(request.method(), request.headers(), host) {
        let text = "the request comes from a web page of another site, which is refused while SM_AUTH is off; \
                    send it from a program, or set SM_AUTH=required and use a token";
        return Err(ApiError::Forbidden(text.to_owned()));
    }
    Ok(())
}

/// The host name under which the client called this service. Every browser sends one.
pub fn host(request: &HttpRequest) -> Option<&str> {
    let header = request.headers().get(header::HOST).map(|value| value.to_str().unwrap_or_default());
    header.or_else(|| request.uri().authority().map(|authority| authority.as_str()))
}

/// Whether a web page of another site sent this request. Following a link from another site is allowed, because the page
/// with the link does not see the response.
pub fn is_foreign(method: &Method, headers: &HeaderMap, host: Option<&str>) -> bool {
    match text(headers, SEC_FETCH_SITE) {
        Some("same-origin" | "none") => false,
        Some(_) => !(method.is_safe() && text(headers, SEC_FETCH_MODE) == Some("navigate")),
        None => headers.contains_key(header::ORIGIN) && !is_own_origin(headers, host),
    }
}

/// Whether a page of this service sent the request, according to its headers.
pub fn is_from_own_page(headers: &HeaderMap, host: Option<&str>) -> bool {
    match text(headers, SEC_FETCH_SITE) {
        Some(site) => site == "same-origin",
        None => is_own_origin(headers, host),
    }
}

fn is_own_origin(headers: &HeaderMap, host: Option<&str>) -> bool {
    let origin = text(headers, header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.zip(host).is_some_and(|((_, origin), host)| origin.eq_ignore_ascii_case(host))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
        pairs.collect()
    }

    #[test]
    fn pages_of_other_sites_are_told_from_our_own_and_from_programs() {
        let host = Some("a:1");
        for (pairs, foreign, ours) in [
            (vec![], false, false),
            (vec![("sec-fetch-site", "same-origin")], false, true),
            (vec![("sec-fetch-site", "none")], false, false),
            (vec![("sec-fetch-site", "same-site")], true, false),
            (vec![("sec-fetch-site", "cross-site"), ("origin", "http://a:1")], true, false),
            (vec![("origin", "http://a:1")], false, true),
            (vec![("origin", "https://A:1")], false, true),
            (vec![("origin", "http://a:2")], true, false),
            (vec![("origin", "http://b:1")], true, false),
            (vec![("origin", "null")], true, false),
            (vec![("origin", "")], true, false),
        ] {
            assert_eq!(is_foreign(&Method::POST, &headers(&pairs), host), foreign, "{pairs:?}");
            assert_eq!(is_foreign(&Method::GET, &headers(&pairs), host), foreign, "{pairs:?}");
            assert_eq!(is_from_own_page(&headers(&pairs), host), ours, "{pairs:?}");
        }
        let link = headers(&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]);
        assert!(!is_foreign(&Method::GET, &link, host), "a link");
        assert!(is_foreign(&Method::POST, &link, host), "a form");
        assert!(is_foreign(&Method::GET, &headers(&[("origin", "http://a:1")]), None), "nothing to compare with");
    }

    #[test]
    fn names_of_this_machine_and_others() {
        let listener = Listener { loopback: true, host_name: "build-7".into() };
        for (host, own) in [
            ("127.0.0.1:8082", true),
            ("127.0.0.1", true),
            ("localhost:8082", true),
            ("LOCALHOST", true),
            ("localhost.:8082", true),
            ("console.localhost", true),
            ("[::1]:8082", true),
            ("build-7:8082", true),
            ("Build-7", true),
            ("build-7.evil.example", false),
            ("evil.example:8082", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:8082", false),
            ("", false),
            (":8082", false),
        ] {
            assert_eq!(listener.is_own_name(host), own, "{host}");
        }
        let nameless = Listener { loopback: true, host_name: "".into() };
        assert!(!nameless.is_own_name("") && !nameless.is_own_name(":80"));
    }
}
