//! The cookies of the console: their names and attributes, and how they are read from a request.
//!
//! Over https the names begin with `__Host-`. Browsers accept such a cookie only from https, with `Secure`, and for
//! this host alone, so no other host of the same domain can set it.

use std::time::Duration;

use actix_web::http::header::{self, HeaderMap, HeaderValue};

const SESSION: &str = "sm-session";
const TRANSACTION: &str = "sm-sign-in-";
/// How much of the state is part of the name of a transaction's cookie: enough to tell the tabs of a browser apart.
const STATE_CHARS: usize = 16;

/// The cookies of one kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cookies {
    /// Whether the browser uses https.
    pub https: bool,
}

impl Cookies {
    fn prefix(self) -> &'static str {
        if self.https { "__Host-" } else { "" }
    }

    pub(super) fn session_name(self) -> String {
        format!("{}{SESSION}", self.prefix())
    }

    /// The name of the cookie of the sign-in with this state. Several tabs can sign in at the same time.
    pub(super) fn transaction_name(self, state: &str) -> String {
        let part: String = state.chars().filter(char::is_ascii_alphanumeric).take(STATE_CHARS).collect();
        format!("{}{TRANSACTION}{part}", self.prefix())
    }

    /// The names of all cookies of sign-ins that the request has.
    pub(super) fn transaction_names(self, headers: &HeaderMap) -> Vec<String> {
        let prefix = format!("{}{TRANSACTION}", self.prefix());
        pairs(headers).map(|(name, _)| name).filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
    }

    /// Sets a cookie for this host that scripts cannot read and that other sites send only with links. Without `age` it ends
    /// with the browser. `None` if the name or the value cannot be sent.
    pub(super) fn set(self, name: &str, value: &str, age: Option<Duration>) -> Option<HeaderValue> {
        let age = age.map(|age| format!("; Max-Age={}", age.as_secs())).unwrap_or_default();
        let secure = if self.https { "; Secure" } else { "" };
        HeaderValue::try_from(format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}{age}")).ok()
    }

    /// Makes the browser forget a cookie.
    pub(super) fn remove(self, name: &str) -> Option<HeaderValue> {
        self.set(name, "", Some(Duration::ZERO))
    }
}

/// The values of all cookies of this name. There can be several, set for different paths.
pub(super) fn values<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    pairs(headers).filter(move |(found, _)| *found == name).map(|(_, value)| value)
}

fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(header::COOKIE).filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_for_this_host_only() {
        let text = |header: Option<HeaderValue>| header.unwrap().to_str().unwrap().to_owned();
        let (https, http) = (Cookies { https: true }, Cookies { https: false });
        assert_eq!(
            text(https.set(&https.session_name(), "v", None)),
            "__Host-sm-session=v; Path=/; HttpOnly; SameSite=Lax; Secure"
        );
        assert_eq!(
            text(http.set(&http.session_name(), "v", Some(Duration::from_secs(600)))),
            "sm-session=v; Path=/; HttpOnly; SameSite=Lax; Max-Age=600"
        );
        assert_eq!(text(http.remove("a")), "a=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0");
        assert_eq!(https.transaction_name("ab-c_d;0123456789012345678"), "__Host-sm-sign-in-abcd012345678901");
        assert!(https.set("a", "b\r\nc", None).is_none());
    }

    #[test]
    fn all_cookies_of_a_name_are_found() {
        let mut headers = HeaderMap::new();
        for line in ["a=1; sm-session=x;sm-sign-in-1=t", "sm-session=y=z; broken; __Host-sm-session=w"] {
            headers.append(header::COOKIE, HeaderValue::from_static(line));
        }
        let http = Cookies { https: false };
        assert_eq!(values(&headers, &http.session_name()).collect::<Vec<_>>(), ["x", "y=z"]);
        assert_eq!(values(&headers, &Cookies { https: true }.session_name()).collect::<Vec<_>>(), ["w"]);
        assert_eq!(http.transaction_names(&headers), ["sm-sign-in-1"]);
    }
}
