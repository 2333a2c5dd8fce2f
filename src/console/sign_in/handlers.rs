//! The pages and redirects of sign-in and sign-out.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, ContentType, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, ResponseError, web};
use askama::Template;
use serde_json::{Map, Value};
use url::{Url, form_urlencoded};

use super::id_token::{Expected, Unverified};
use super::provider::Exchange;
use super::refusal::Refusal;
use super::sealed::Purpose;
use super::session::Who;
use super::transaction::{self, Transaction};
use super::{PATH, SignIn, add_cookies, cookies, events, sign_in_url};
use crate::config::registry::OidcConfig;
use crate::console::access::address_of;
use crate::console::nav::Nav;
use crate::console::passwords::Admission;
use crate::console::search::redirect;
use crate::console::{Console, PageError};
use crate::http_client::shown;
use crate::web::WebDeps;
use crate::web::operator::{KnownBy, Operator};

/// The maximum size of the form with name and password.
const MAX_FORM_BYTES: usize = 4 * 1024;
/// The maximum number of sign-ins that are in progress in one browser, each with a cookie. A further one replaces them,
/// so that the cookies of abandoned sign-ins do not fill the head of every request.
const MOST_TRANSACTIONS: usize = 5;

const START: &str = "/ui/sign-in/start";
const CALLBACK: &str = "/ui/sign-in/callback";
const SIGN_OUT: &str = "/ui/sign-out";

/// The page of sign-in and of its errors.
#[derive(Template)]
#[template(path = "console/sign_in.html")]
struct SignInPage<'a> {
    nav: Nav,
    title: &'a str,
    /// An error or a hint; empty if there is none.
    text: &'a str,
    link: Option<Link>,
    /// If present, the page has the form for name and password. After the sign-in, the browser is sent to this page.
    form: Option<&'a str>,
}

struct Link {
    href: String,
    text: String,
}

impl SignInPage<'_> {
    fn respond(&self, status: StatusCode) -> HttpResponse {
        let html = self.render().unwrap_or_else(|_| self.title.to_owned());
        HttpResponse::build(status).content_type(ContentType::html()).body(html)
    }
}

/// The parameters of a query string, or of the form, as they were typed: a password may begin or end with a blank.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn of(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    fn of_query(request: &HttpRequest) -> Self {
        Self::of(request.query_string().as_bytes())
    }

    fn get(&self, wanted: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    }

    /// The page to show after the sign-in.
    fn return_to(&self) -> &str {
        transaction::local_path(self.get("return").unwrap_or_default())
    }
}

/// The provider. Fails with a page if none is configured.
fn provider_of(deps: &WebDeps) -> Result<Arc<OidcConfig>, PageError> {
    let text = "This console has no identity provider. If it needs a password, the browser asks for it.";
    deps.registry.get().oidc.clone().ok_or_else(|| PageError::NotFound(text.to_owned()))
}

/// The name under which pages show the provider: its host.
fn host_of(url: &str) -> String {
    Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}

fn link_to_provider(oidc: &OidcConfig, return_to: &str) -> Link {
    Link { href: sign_in_url(START, return_to), text: format!("Sign in with {}", host_of(&oidc.issuer)) }
}

/// The sign-in page. If there are no users with passwords, it redirects to the provider.
pub(in crate::console) async fn show(
    request: HttpRequest,
    console: web::Data<Console>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, PageError> {
    let oidc = provider_of(&deps)?;
    let parameters = Parameters::of_query(&request);
    let return_to = parameters.return_to();
    if console.users(&deps.registry.get()).is_empty() {
        return Ok(redirect(&sign_in_url(START, return_to)));
    }
    let link = Some(link_to_provider(&oidc, return_to));
    let page = SignInPage { nav: Nav::of_nobody(), title: "Sign in", text: "", link, form: Some(return_to) };
    Ok(page.respond(StatusCode::OK))
}

/// Begins a sign-in with the provider. With `again` the provider asks who the person is, even if it knows the browser.
pub(in crate::console) async fn start(
    request: HttpRequest,
    console: web::Data<Console>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, PageError> {
    let oidc = provider_of(&deps)?;
    match begin(&request, &console, &deps, &oidc).await {
        Ok(response) => Ok(response),
        Err(refusal) => Ok(refused(&request, &console, &deps, &refusal).await),
    }
}

async fn begin(
    request: &HttpRequest,
    console: &Console,
    deps: &WebDeps,
    oidc: &OidcConfig,
) -> Result<HttpResponse, Refusal> {
    let sign_in = &console.sign_in;
    let metadata = sign_in.provider.metadata(oidc).await?;
    let parameters = Parameters::of_query(request);
    let redirect_uri = format!("{}{CALLBACK}", sign_in.base_url(request));
    let transaction =
        Transaction::begin(redirect_uri, parameters.return_to(), deps.clock.now()).map_err(|_| Refusal::Internal)?;
    let again = parameters.get("again").is_some();
    let url = transaction.authorization_url(&metadata.authorization_endpoint, oidc, again)?;
    let cookies = sign_in.cookies();
    let sealed = sign_in.sealer.seal(Purpose::Transaction, &transaction).ok_or(Refusal::Internal)?;
    let name = cookies.transaction_name(&transaction.state);
    let cookie = cookies.set(&name, &sealed, Some(transaction::MAX_AGE)).ok_or(Refusal::Internal)?;
    let mut response = redirect(&url);
    let abandoned = cookies.transaction_names(request.headers());
    if abandoned.len() >= MOST_TRANSACTIONS {
        add_cookies(response.headers_mut(), abandoned.iter().filter_map(|name| cookies.remove(name)));
    }
    add_cookies(response.headers_mut(), [cookie]);
    Ok(response)
}

/// Handles the answer of the provider. Whether it is good or bad, the sign-in that it belongs to is over.
pub(in crate::console) async fn callback(
    request: HttpRequest,
    console: web::Data<Console>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, PageError> {
    let oidc = provider_of(&deps)?;
    let parameters = Parameters::of_query(&request);
    let cookies = console.sign_in.cookies();
    let mut response = match finish(&request, &parameters, &console, &deps, &oidc).await {
        Ok(response) => response,
        Err(refusal) => refused(&request, &console, &deps, &refusal).await,
    };
    let name = cookies.transaction_name(parameters.get("state").unwrap_or_default());
    add_cookies(response.headers_mut(), cookies.remove(&name));
    Ok(response)
}

async fn finish(
    request: &HttpRequest,
    parameters: &Parameters,
    console: &Console,
    deps: &WebDeps,
    oidc: &OidcConfig,
) -> Result<HttpResponse, Refusal> {
    let sign_in = &console.sign_in;
    let transaction = transaction_of(request, parameters, sign_in, deps)?;
    let claims = claims_of(parameters, &transaction, sign_in, deps, oidc).await?;
    let (operator, who) = person_of(&claims, oidc)?;
    let session = sign_in.begin_session(who, deps.clock.now()).ok_or(Refusal::Internal)?;
    let recorded = events::signed_in(deps, &console.passwords, &operator, address_of(request)).await;
    recorded.map_err(|_| Refusal::StoreDown)?;
    let mut response = redirect(&transaction.return_to);
    add_cookies(response.headers_mut(), [session]);
    Ok(response)
}

/// The sign-in of this browser that the answer belongs to.
fn transaction_of(
    request: &HttpRequest,
    parameters: &Parameters,
    sign_in: &SignIn,
    deps: &WebDeps,
) -> Result<Transaction, Refusal> {
    let state = parameters.get("state").ok_or(Refusal::StateMismatch)?;
    let name = sign_in.cookies().transaction_name(state);
    let transaction: Transaction = cookies::values(request.headers(), &name)
        .find_map(|value| sign_in.sealer.open(Purpose::Transaction, value))
        .ok_or(Refusal::StateMismatch)?;
    transaction.check(state, deps.clock.now())?;
    Ok(transaction)
}

/// Exchanges the code of the answer for an ID token, and returns its claims.
async fn claims_of(
    parameters: &Parameters,
    transaction: &Transaction,
    sign_in: &SignIn,
    deps: &WebDeps,
    oidc: &OidcConfig,
) -> Result<Map<String, Value>, Refusal> {
    let metadata = sign_in.provider.metadata(oidc).await?;
    metadata.check_answer_issuer(parameters.get("iss"))?;
    if let Some(error) = parameters.get("error") {
        return Err(Refusal::Denied(shown(error)));
    }
    let code = parameters.get("code").ok_or_else(|| Refusal::ProviderAnswer("it sent no code".to_owned()))?;
    let secret = deps.variables.get(&oidc.client_secret_env);
    let secret = secret.ok_or_else(|| Refusal::ClientRefused(format!("{} is not set", oidc.client_secret_env)))?;
    let (verifier, redirect_uri) = (&transaction.verifier, &transaction.redirect_uri);
    let exchange = Exchange { code, verifier, redirect_uri, client_secret: secret.trim() };
    let token = sign_in.provider.exchange(oidc, &metadata, &exchange).await?;
    let token = Unverified::read(&token)?;
    let keys = sign_in.provider.keys_for(oidc, &token).await?;
    let (issuer, client_id, nonce) = (&oidc.issuer, &oidc.client_id, &transaction.nonce);
    token.verify(&keys, &Expected { issuer, client_id, nonce, now: deps.clock.now() })
}

/// The person whom the claims of an ID token describe.
fn person_of(claims: &Map<String, Value>, oidc: &OidcConfig) -> Result<(Operator, Who), Refusal> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let subject = text("sub").unwrap_or_default().to_owned();
    let name = shown(["preferred_username", "email", "name"].into_iter().find_map(text).unwrap_or(&subject));
    let Some((claim_value, role)) = oidc.role_in(claims) else { return Err(Refusal::NoRole { name, subject }) };
    let known_by = KnownBy::Provider { subject: subject.as_str().into() };
    let operator = Operator { name: Some(name.as_str().into()), role, known_by };
    let (issuer, client_id) = (oidc.issuer.clone(), oidc.client_id.clone());
    Ok((operator, Who::Person { issuer, client_id, subject, name, claim_value: claim_value.to_owned() }))
}

/// The page of a refused sign-in.
async fn refused(request: &HttpRequest, console: &Console, deps: &WebDeps, refusal: &Refusal) -> HttpResponse {
    console.sign_in.refusals.provider(deps, refusal, address_of(request)).await;
    let link = match refusal {
        // The provider knows the browser and would send the same person again.
        Refusal::NoRole { .. } => Link { href: format!("{START}?again="), text: "Sign in as somebody else".to_owned() },
        _ => Link { href: PATH.to_owned(), text: "Sign in again".to_owned() },
    };
    let (title, text) = (refusal.title(), refusal.text());
    SignInPage { nav: Nav::of_nobody(), title, text: &text, link: Some(link), form: None }.respond(refusal.status())
}

/// The form of the sign-in page: a user signs in with a password.
pub(in crate::console) async fn password(
    request: HttpRequest,
    payload: web::Payload,
    console: web::Data<Console>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, PageError> {
    let oidc = provider_of(&deps)?;
    let (form, _reservation) = match deps.bodies.read(payload, MAX_FORM_BYTES).await {
        Ok(read) => read,
        Err(error) => return Ok(error.error_response()),
    };
    let form = Parameters::of(&form);
    let (users, address) = (console.users(&deps.registry.get()), address_of(&request));
    let (name, given) = (form.get("name").unwrap_or_default(), form.get("password").unwrap_or_default());
    let admission = console.passwords.check(&users, name, given, address).await;
    let user = users.find(name).map(|user| &*user.name);
    console.sign_in.refusals.password(&deps, &admission, user, address).await;
    let (status, text, retry_after) = match &admission {
        Admission::Known(operator) | Admission::Right(operator) => {
            let user = operator.name.as_deref().and_then(|name| users.find(name));
            let session = user.and_then(|user| console.sign_in.begin_session(Who::of_user(user), deps.clock.now()));
            if let Some(session) = session {
                events::signed_in(&deps, &console.passwords, operator, address).await?;
                let mut response = redirect(form.return_to());
                add_cookies(response.headers_mut(), [session]);
                return Ok(response);
            }
            (StatusCode::INTERNAL_SERVER_ERROR, "Internal error: the session cannot be started.".to_owned(), None)
        }
        Admission::Limited(after) => {
            let seconds = after.as_secs().max(1);
            let text = format!("There were too many wrong passwords. Try again in {seconds} s.");
            (StatusCode::TOO_MANY_REQUESTS, text, Some(seconds))
        }
        Admission::Wrong | Admission::Missing => {
            (StatusCode::FORBIDDEN, "The name or the password is wrong.".to_owned(), None)
        }
    };
    let return_to = form.return_to();
    let link = Some(link_to_provider(&oidc, return_to));
    let page = SignInPage { nav: Nav::of_nobody(), title: "Sign in", text: &text, link, form: Some(return_to) };
    let mut response = page.respond(status);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

/// Ends the session in this browser, and at the provider if it offers that.
pub(in crate::console) async fn sign_out(
    request: HttpRequest,
    console: web::Data<Console>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, PageError> {
    let oidc = provider_of(&deps)?;
    let users = console.users(&deps.registry.get());
    let sign_in = &console.sign_in;
    let signed_in = sign_in.signed_in(&request, &users, Some(&oidc), deps.clock.now());
    let mut response = redirect(SIGN_OUT);
    if let Some(signed_in) = signed_in {
        events::signed_out(&deps, &signed_in.operator, address_of(&request)).await;
        if matches!(signed_in.operator.known_by, KnownBy::Provider { .. })
            && let Some(url) = end_session_url(&request, &console, &oidc).await
        {
            response = leave(&oidc, url);
        }
    }
    let cookies = sign_in.cookies();
    add_cookies(response.headers_mut(), cookies.remove(&cookies.session_name()));
    Ok(response)
}

/// The URL that ends the session at the provider (OpenID Connect RP-Initiated Logout), if the provider has one.
async fn end_session_url(request: &HttpRequest, console: &Console, oidc: &OidcConfig) -> Option<String> {
    let metadata = console.sign_in.provider.metadata(oidc).await.ok()?;
    let mut url = Url::parse(metadata.end_session_endpoint.as_deref()?).ok()?;
    let back = format!("{}{SIGN_OUT}", console.sign_in.base_url(request));
    url.query_pairs_mut().append_pair("client_id", &oidc.client_id).append_pair("post_logout_redirect_uri", &back);
    Some(url.into())
}

/// A page that forwards the browser to the provider. A redirect would not work: the content security policy lets the
/// sign-out form lead only to this console, and that includes redirects.
fn leave(oidc: &OidcConfig, url: String) -> HttpResponse {
    let host = host_of(&oidc.issuer);
    let text = format!("You are signed out of the console. You are now being signed out of {host}, too.");
    let refresh = HeaderValue::try_from(format!("0; url={url}"));
    let link = Some(Link { href: url, text: format!("Sign out of {host}") });
    let page = SignInPage { nav: Nav::of_nobody(), title: "Signing out", text: &text, link, form: None };
    let mut response = page.respond(StatusCode::OK);
    if let Ok(refresh) = refresh {
        response.headers_mut().insert(header::REFRESH, refresh);
    }
    response
}

/// The page after a sign-out.
pub(in crate::console) async fn signed_out(
    request: HttpRequest,
    console: web::Data<Console>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, PageError> {
    let oidc = provider_of(&deps)?;
    let users = console.users(&deps.registry.get());
    if console.sign_in.signed_in(&request, &users, Some(&oidc), deps.clock.now()).is_some() {
        return Ok(redirect("/ui"));
    }
    let link = Some(Link { href: PATH.to_owned(), text: "Sign in".to_owned() });
    let title = "You are signed out";
    Ok(SignInPage { nav: Nav::of_nobody(), title, text: "", link, form: None }.respond(StatusCode::OK))
}
