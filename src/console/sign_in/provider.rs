//! Calls the OpenID Connect provider: its configuration (discovery), its keys, and the exchange of a code for an ID token.
//!
//! Configuration and keys are kept for an hour. A token with an unknown key causes the keys to be read again, because
//! providers replace their keys. The rate of these reads is limited, so that tokens with invented key ids cannot cause
//! many calls.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use url::{Url, form_urlencoded};

use super::id_token::{KeySet, Unverified};
use super::refusal::Refusal;
use crate::config::registry::{OidcConfig, provider_url};
use crate::http_client::{Answer, HttpClient, OutgoingRequest, one_line, shown};
use crate::platform::clock::monotonic;

/// The timeout of one call. It is short, because a person waits for the call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the configuration and the keys of the provider are used before they are read again. A key that the provider
/// has withdrawn is accepted for at most this long.
const FRESH: Duration = Duration::from_secs(3600);
/// How soon the keys may be read again because of a token with an unknown key.
const BETWEEN_KEY_READS: Duration = Duration::from_secs(30);
/// After a failed read of configuration or keys, sign-ins that need them fail immediately for this long, so that they
/// do not all wait for a provider that is down.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// The maximum number of calls at the same time. Each has a connection of its own; as many file descriptors are
/// reserved.
pub const MAX_CALLS: usize = 16;
/// The path of the configuration below the issuer (OpenID Connect Discovery, section 4).
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// What the provider publishes about itself.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    issuer: String,
    pub authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    pub end_session_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

impl Metadata {
    /// Checks the `iss` of an answer, which tells answers of different providers apart (RFC 9207).
    pub(super) fn check_answer_issuer(&self, iss: Option<&str>) -> Result<(), Refusal> {
        match iss {
            Some(iss) if iss != self.issuer => Err(Refusal::WrongIssuer),
            None if self.authorization_response_iss_parameter_supported => Err(Refusal::WrongIssuer),
            _ => Ok(()),
        }
    }

    /// Whether the client secret goes into the header `Authorization`, which is the default, and not into the form.
    fn takes_basic(&self) -> bool {
        let methods = self.token_endpoint_auth_methods_supported.as_deref();
        methods.is_none_or(|methods| methods.iter().any(|method| method == "client_secret_basic"))
    }

    fn check(&self, issuer: &str) -> Result<(), Refusal> {
        if self.issuer != issuer {
            return Err(Refusal::WrongIssuer);
        }
        let required = [&self.authorization_endpoint, &self.token_endpoint, &self.jwks_uri];
        for url in required.into_iter().chain(&self.end_session_endpoint) {
            provider_url(url).map_err(|problem| unusable(format!("its configuration has a URL that {problem}")))?;
        }
        Ok(())
    }
}

/// A code of the provider, and what else the exchange needs.
pub(super) struct Exchange<'a> {
    pub code: &'a str,
    pub verifier: &'a str,
    pub redirect_uri: &'a str,
    pub client_secret: &'a str,
}

/// The provider that people sign in with. All workers of the server share it.
pub(super) struct Provider {
    tls: Arc<rustls::ClientConfig>,
    calls: Semaphore,
    known: Mutex<Known>,
}

/// What is known about the provider.
#[derive(Default)]
struct Known {
    /// The issuer to which the other fields belong. A reload of the registry files can change it.
    issuer: String,
    metadata: Option<(Arc<Metadata>, Instant)>,
    keys: Option<(KeySet, Instant)>,
    /// When the keys were last read because of a token with an unknown key.
    reread: Option<Instant>,
    failed: Option<(Refusal, Instant)>,
}

/// Returns the value of a pair unless it is older than `age`.
fn fresh<T>(known: &Option<(T, Instant)>, age: Duration) -> Option<&T> {
    known.as_ref().filter(|(_, since)| monotonic() < *since + age).map(|(value, _)| value)
}

impl Known {
    /// Fails with the error of the last call, if that failed within [`AFTER_FAILURE`].
    fn has_not_just_failed(&self) -> Result<(), Refusal> {
        fresh(&self.failed, AFTER_FAILURE).map_or(Ok(()), |refusal| Err(refusal.clone()))
    }

    fn remember_failure<T>(&mut self, result: Result<T, Refusal>) -> Result<T, Refusal> {
        if let Err(refusal) = &result {
            self.failed = Some((refusal.clone(), monotonic()));
        }
        result
    }
}

impl Provider {
    pub(super) fn new(tls: Arc<rustls::ClientConfig>) -> Self {
        Self { tls, calls: Semaphore::new(MAX_CALLS), known: Mutex::default() }
    }

    /// The configuration of the provider.
    pub(super) async fn metadata(&self, oidc: &OidcConfig) -> Result<Arc<Metadata>, Refusal> {
        let mut known = self.known.lock().await;
        self.metadata_in(&mut known, oidc).await
    }

    async fn metadata_in(&self, known: &mut Known, oidc: &OidcConfig) -> Result<Arc<Metadata>, Refusal> {
        if known.issuer != oidc.issuer {
            *known = Known { issuer: oidc.issuer.clone(), ..Known::default() };
        }
        if let Some(metadata) = fresh(&known.metadata, FRESH) {
            return Ok(Arc::clone(metadata));
        }
        known.has_not_just_failed()?;
        let url = format!("{}{DISCOVERY_PATH}", oidc.issuer.trim_end_matches('/'));
        let read =
            self.get::<Metadata>(&url).await.and_then(|metadata| metadata.check(&oidc.issuer).map(|()| metadata));
        let metadata = Arc::new(known.remember_failure(read)?);
        known.metadata = Some((Arc::clone(&metadata), monotonic()));
        Ok(metadata)
    }

    /// The keys of the provider, read again if they lack the one that signed the token.
    pub(super) async fn keys_for(&self, oidc: &OidcConfig, token: &Unverified<'_>) -> Result<KeySet, Refusal> {
        let mut known = self.known.lock().await;
        let metadata = self.metadata_in(&mut known, oidc).await?;
        if let Some(keys) = fresh(&known.keys, FRESH) {
            let recently = known.reread.is_some_and(|last| monotonic() < last + BETWEEN_KEY_READS);
            if keys.has_key_of(token) || recently {
                return Ok(keys.clone());
            }
            known.reread = Some(monotonic());
        }
        known.has_not_just_failed()?;
        let read = self.read_keys(&metadata).await;
        let keys = known.remember_failure(read)?;
        known.keys = Some((keys.clone(), monotonic()));
        Ok(keys)
    }

    async fn read_keys(&self, metadata: &Metadata) -> Result<KeySet, Refusal> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let document: Document = self.get(&metadata.jwks_uri).await?;
        let keys = KeySet::of(&document.keys);
        if keys.is_empty() { Err(unusable("its key set has no RS256 or ES256 key")) } else { Ok(keys) }
    }

    /// Exchanges a code for an ID token.
    pub(super) async fn exchange(
        &self,
        oidc: &OidcConfig,
        metadata: &Metadata,
        exchange: &Exchange<'_>,
    ) -> Result<String, Refusal> {
        #[derive(Deserialize)]
        struct Tokens {
            id_token: String,
        }
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", exchange.code)
            .append_pair("redirect_uri", exchange.redirect_uri)
            .append_pair("code_verifier", exchange.verifier);
        let client = self.client();
        let mut request = client.post(&metadata.token_endpoint);
        if metadata.takes_basic() {
            request = request.header("Authorization", basic(&oidc.client_id, exchange.client_secret));
        } else {
            form.append_pair("client_id", &oidc.client_id).append_pair("client_secret", exchange.client_secret);
        }
        let request =
            request.header("Content-Type", "application/x-www-form-urlencoded").header("Accept", "application/json");
        let (answer, body) = self.call(&client, request, form.finish().into()).await?;
        if answer.status == 200 {
            return parsed::<Tokens>(&body, "the answer of its token endpoint").map(|tokens| tokens.id_token);
        }
        Err(refused_exchange(answer.status, &body))
    }

    async fn get<T: for<'de> Deserialize<'de>>(&self, url: &str) -> Result<T, Refusal> {
        let client = self.client();
        let request = client.get(url).header("Accept", "application/json");
        let (answer, body) = self.call(&client, request, Bytes::new()).await?;
        if answer.status != 200 {
            return Err(Refusal::ProviderDown(format!("{} answered HTTP {}", without_query(url), answer.status)));
        }
        parsed(&body, &without_query(url))
    }

    /// A client for one call. Sign-ins are rare, so no connection is kept open between them.
    fn client(&self) -> HttpClient {
        HttpClient::new("identity provider", TIMEOUT, Arc::clone(&self.tls)).keeping(1)
    }

    async fn call(
        &self,
        client: &HttpClient,
        request: OutgoingRequest,
        body: Bytes,
    ) -> Result<(Answer, Bytes), Refusal> {
        let down = |what: String| Refusal::ProviderDown(what);
        let busy = || down(format!("more than {MAX_CALLS} calls at the same time"));
        let permit = tokio::time::timeout(TIMEOUT, self.calls.acquire()).await;
        let _permit = permit.ok().and_then(Result::ok).ok_or_else(busy)?;
        let mut answer = client.send(request, body).await.map_err(|error| down(one_line(&error)))?;
        let status = answer.status;
        let body = std::mem::replace(&mut answer.body, Ok(Bytes::new()));
        let body = body.map_err(|error| down(format!("HTTP {status} with {}", one_line(&error))))?;
        if status >= 500 || status == 429 {
            Err(down(format!("it answered HTTP {status}")))
        } else {
            Ok((answer, body))
        }
    }
}

/// Reads the error of a token endpoint (RFC 6749, section 5.2).
fn refused_exchange(status: u16, body: &[u8]) -> Refusal {
    #[derive(Deserialize)]
    struct TokenError {
        error: String,
    }
    let error = serde_json::from_slice::<TokenError>(body).map(|body| shown(&body.error)).unwrap_or_default();
    match error.as_str() {
        "invalid_grant" => Refusal::CodeRefused,
        "invalid_client" | "unauthorized_client" => Refusal::ClientRefused(format!("the token endpoint said {error}")),
        _ if status == 401 => Refusal::ClientRefused("the token endpoint answered HTTP 401".to_owned()),
        _ => unusable(format!("its token endpoint answered HTTP {status} {error}").trim_end()),
    }
}

/// The value of `Authorization` for a client. Both parts are encoded first (RFC 6749, section 2.3.1).
fn basic(client_id: &str, secret: &str) -> String {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    format!("Basic {}", STANDARD.encode(format!("{}:{}", encoded(client_id), encoded(secret))))
}

fn parsed<T: for<'de> Deserialize<'de>>(body: &[u8], what: &str) -> Result<T, Refusal> {
    // The error of a parser may quote a token.
    serde_json::from_slice(body).map_err(|error| {
        unusable(format!("{what} is not the expected JSON (line {} column {})", error.line(), error.column()))
    })
}

fn unusable(what: impl Into<String>) -> Refusal {
    Refusal::ProviderAnswer(what.into())
}

fn without_query(url: &str) -> String {
    Url::parse(url).map(|url| format!("{}{}", url.origin().ascii_serialization(), url.path())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(change: fn(&mut Value)) -> Metadata {
        let mut document = json!({ "issuer": "https://idp.test", "authorization_endpoint": "https://idp.test/a",
            "token_endpoint": "https://idp.test/t", "jwks_uri": "https://idp.test/j" });
        change(&mut document);
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_configuration_must_be_that_of_the_issuer_and_use_https() {
        let check = |change| metadata(change).check("https://idp.test").map_err(|refusal| refusal.reason());
        assert_eq!(check(|_| ()), Ok(()));
        assert_eq!(check(|m| m["issuer"] = "https://idp.test/".into()), Err("wrong_issuer"));
        assert_eq!(check(|m| m["token_endpoint"] = "http://idp.test/t".into()), Err("provider_answer"));
        assert_eq!(check(|m| m["end_session_endpoint"] = "javascript:alert(1)".into()), Err("provider_answer"));
        assert_eq!(check(|m| m["jwks_uri"] = "http://localhost:1/j".into()), Ok(()));
    }

    #[test]
    fn the_issuer_of_an_answer_is_checked_if_there_is_one_or_must_be_one() {
        let plain = metadata(|_| ());
        let strict = metadata(|m| m["authorization_response_iss_parameter_supported"] = true.into());
        for (metadata, iss, fine) in [
            (&plain, None, true),
            (&plain, Some("https://idp.test"), true),
            (&plain, Some("https://evil.test"), false),
            (&strict, None, false),
            (&strict, Some("https://idp.test"), true),
        ] {
            assert_eq!(metadata.check_answer_issuer(iss).is_ok(), fine, "{iss:?}");
        }
    }

    #[test]
    fn the_secret_goes_where_the_provider_expects_it() {
        for (methods, header) in [
            (Value::Null, true),
            (json!(["client_secret_post", "client_secret_basic"]), true),
            (json!(["client_secret_post"]), false),
        ] {
            let mut found = metadata(|_| ());
            found.token_endpoint_auth_methods_supported = serde_json::from_value(methods.clone()).unwrap();
            assert_eq!(found.takes_basic(), header, "{methods}");
        }
        assert_eq!(basic("a:b", "s e+"), format!("Basic {}", STANDARD.encode("a%3Ab:s+e%2B")));
    }

    #[test]
    fn errors_of_the_token_endpoint_are_told_apart() {
        for (status, body, expected) in [
            (400, r#"{"error":"invalid_grant","error_description":"used"}"#, "code_refused"),
            (400, r#"{"error":"invalid_client"}"#, "client_refused"),
            (401, "", "client_refused"),
            (400, r#"{"error":"invalid_request"}"#, "provider_answer"),
            (404, "<html>", "provider_answer"),
        ] {
            assert_eq!(refused_exchange(status, body.as_bytes()).reason(), expected, "{body}");
        }
    }
}
