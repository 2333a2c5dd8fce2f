//! Sign-in with OpenID Connect, sessions, and sign-out.
//!
//! A sign-in begins with a redirect to the provider ([`handlers::start`]) and ends with its answer
//! ([`handlers::callback`]). The answer contains an authorization code, which is exchanged for an ID token. The session
//! that follows is a sealed cookie. Users with passwords, if there are any, sign in with the form of the sign-in page
//! or with basic auth.

mod cookies;
pub(super) mod events;
pub(super) mod handlers;
mod id_token;
mod provider;
mod refusal;
mod sealed;
mod session;
mod transaction;

use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderMap, HeaderValue};
use url::form_urlencoded;

use self::cookies::Cookies;
use self::events::Refusals;
pub use self::provider::MAX_CALLS;
use self::provider::Provider;
use self::sealed::{Purpose, Sealer};
use self::session::{Lifetimes, Session, Who};
use super::notice;
use super::passwords::Users;
use super::search::redirect;
use crate::config::registry::OidcConfig;
use crate::config::session_key::SessionSecrets;
use crate::config::settings::{ConfigError, ConsoleConfig};
use crate::domain::time::Timestamp;
use crate::web::operator::Operator;
use crate::web::origin;

pub(super) const PATH: &str = "/ui/sign-in";
/// The maximum size of a cookie's value. Browsers refuse cookies of more than 4096 bytes, including name and
/// attributes.
const MAX_COOKIE_BYTES: usize = 3900;

/// What sign-ins and sessions need. All workers of the server share it.
pub(super) struct SignIn {
    sealer: Sealer,
    lifetimes: Lifetimes,
    provider: Provider,
    refusals: Refusals,
    /// `SM_CONSOLE_URL`.
    url: Option<String>,
    /// Whether this instance itself serves https.
    https: bool,
}

/// A person with a session, and the renewed cookie if it is time for one.
pub(super) struct SignedIn {
    pub operator: Operator,
    pub renewed: Option<HeaderValue>,
}

impl SignIn {
    pub(super) fn new(
        config: &ConsoleConfig,
        https: bool,
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self, ConfigError> {
        let secrets = match config.session_secrets()? {
            Some(secrets) => secrets,
            None => SessionSecrets::random()?,
        };
        Ok(Self {
            sealer: Sealer::new(&secrets)?,
            lifetimes: Lifetimes { idle: config.session_idle, most: config.session_lifetime },
            provider: Provider::new(tls),
            refusals: Refusals::default(),
            url: config.console_url.clone(),
            https,
        })
    }

    /// Whether browsers use https, as far as the configuration tells.
    pub(super) fn uses_https(&self) -> bool {
        self.cookies().https
    }

    /// Records refused sign-ins.
    pub(super) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The URL under which the browser reaches the console, without a path.
    fn base_url(&self, request: &HttpRequest) -> String {
        self.url.clone().unwrap_or_else(|| {
            let scheme = if self.https { "https" } else { "http" };
            format!("{scheme}://{}", origin::host(request).unwrap_or_default())
        })
    }

    /// The cookies of browsers that use this instance, directly or through the proxy of `SM_CONSOLE_URL`.
    fn cookies(&self) -> Cookies {
        Cookies { https: self.url.as_ref().map_or(self.https, |url| url.starts_with("https:")) }
    }

    /// Whose session the request has. The refresh of a page does not count as activity of its user.
    pub(super) fn signed_in(
        &self,
        request: &HttpRequest,
        users: &Users,
        oidc: Option<&OidcConfig>,
        now: Timestamp,
    ) -> Option<SignedIn> {
        let name = self.cookies().session_name();
        let found = cookies::values(request.headers(), &name).find_map(|value| {
            let session: Session = self.sealer.open(Purpose::Session, value)?;
            let operator = session.operator(now, self.lifetimes, users, oidc)?;
            Some((session, operator))
        });
        let (session, operator) = found?;
        let renewed = session.renewed(now, self.lifetimes).filter(|_| !is_part(request.headers()));
        let renewed = renewed.and_then(|session| self.session_cookie(&session));
        Some(SignedIn { operator, renewed })
    }

    /// The cookie of a new session.
    fn begin_session(&self, who: Who, now: Timestamp) -> Option<HeaderValue> {
        self.session_cookie(&Session::new(who, now))
    }

    fn session_cookie(&self, session: &Session) -> Option<HeaderValue> {
        let sealed = self.sealer.seal(Purpose::Session, session).filter(|sealed| sealed.len() <= MAX_COOKIE_BYTES)?;
        self.cookies().set(&self.cookies().session_name(), &sealed, None)
    }
}

/// Whether the script of a page sent the request to refresh or to complete the page.
fn is_part(headers: &HeaderMap) -> bool {
    headers.contains_key("x-refresh") || headers.contains_key("hx-request")
}

/// The URL of the sign-in page. After the sign-in, the browser returns to the page `return_to`.
fn sign_in_url(path: &str, return_to: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("return", transaction::local_path(return_to));
    format!("{path}?{}", query.finish())
}

/// The response to a request without a session. A page is redirected to the sign-in page. A request for a part of a
/// page makes the script of the page go there. All others get 401.
pub(super) fn sign_in_first(request: &HttpRequest, users: &Users) -> HttpResponse {
    let headers = request.headers();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if is_part(headers) {
        let page = text("hx-current-url").and_then(|url| url::Url::parse(url).ok());
        let page = page.map(|url| url[url::Position::BeforePath..url::Position::AfterQuery].to_owned());
        let target = sign_in_url(PATH, page.as_deref().unwrap_or_default());
        return HttpResponse::Unauthorized().insert_header(("HX-Redirect", target)).finish();
    }
    let navigates = match text("sec-fetch-mode") {
        Some(mode) => mode == "navigate",
        None => text("accept").is_some_and(|accept| accept.contains("text/html")),
    };
    if navigates && request.method().is_safe() {
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        return redirect(&sign_in_url(PATH, path));
    }
    let what = "Your session has ended, so nothing was done. Open the console again to sign in.";
    let mut response = notice(StatusCode::UNAUTHORIZED, "Sign in", what);
    // A browser would ask for a password that the person may not have. Programs send no such header.
    if !users.is_empty() && text("sec-fetch-mode").is_none() {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, super::access::BASIC_CHALLENGE);
    }
    response
}

fn add_cookies(headers: &mut HeaderMap, cookies: impl IntoIterator<Item = HeaderValue>) {
    cookies.into_iter().for_each(|cookie| headers.append(header::SET_COOKIE, cookie));
}
