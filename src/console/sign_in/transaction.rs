//! One sign-in in progress, between the redirect to the provider and its answer. The browser keeps it in a sealed
//! cookie, so any instance of a fleet can finish a sign-in that another one began.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use url::Url;

use super::refusal::Refusal;
use crate::config::registry::OidcConfig;
use crate::domain::time::Timestamp;

/// How long a sign-in may take. It is long, because people may have to look for their second factor.
pub(super) const MAX_AGE: Duration = Duration::from_secs(600);
/// Longer paths are replaced by the overview, because the cookie has a limit of 4096 bytes.
const MAX_PATH_BYTES: usize = 1000;
const OVERVIEW: &str = "/ui";

/// A sign-in in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Transaction {
    /// Comes back with the answer, which proves that the answer belongs to this browser.
    pub state: String,
    /// Comes back inside the ID token, which proves that the token was issued for this sign-in.
    pub nonce: String,
    /// Proves to the provider that the code is exchanged by the client that requested it (PKCE, RFC 7636).
    pub verifier: String,
    pub redirect_uri: String,
    /// The page to show afterwards.
    pub return_to: String,
    began: i64,
}

impl Transaction {
    /// Begins a sign-in. Fails if the system has no random numbers.
    pub(super) fn begin(redirect_uri: String, return_to: &str, now: Timestamp) -> Result<Self, getrandom::Error> {
        Ok(Self {
            state: random()?,
            nonce: random()?,
            verifier: random()?,
            redirect_uri,
            return_to: local_path(return_to).to_owned(),
            began: now.micros(),
        })
    }

    /// The URL of the provider at which the person signs in. With `again` the provider asks who it is, even if it knows the
    /// browser.
    pub(super) fn authorization_url(&self, endpoint: &str, oidc: &OidcConfig, again: bool) -> Result<String, Refusal> {
        let mut url = Url::parse(endpoint).map_err(|error| Refusal::ProviderAnswer(error.to_string()))?;
        let scopes: Vec<_> =
            ["openid", "profile", "email"].into_iter().chain(oidc.scopes.iter().map(String::as_str)).collect();
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &oidc.client_id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("scope", &scopes.join(" "))
            .append_pair("state", &self.state)
            .append_pair("nonce", &self.nonce)
            .append_pair("code_challenge", &URL_SAFE_NO_PAD.encode(Sha256::digest(&self.verifier)))
            .append_pair("code_challenge_method", "S256");
        if again {
            url.query_pairs_mut().append_pair("prompt", "login");
        }
        Ok(url.into())
    }

    /// Checks that an answer with this state belongs to this sign-in and comes in time.
    pub(super) fn check(&self, state: &str, now: Timestamp) -> Result<(), Refusal> {
        if !bool::from(self.state.as_bytes().ct_eq(state.as_bytes())) {
            return Err(Refusal::StateMismatch);
        }
        if now.since(Timestamp::from_micros(self.began)) > MAX_AGE { Err(Refusal::TooSlow) } else { Ok(()) }
    }
}

/// 32 random bytes as text.
fn random() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Returns the path if it belongs to this console and can be shown after a sign-in, else that of the overview. So
/// nobody can make a link to the console that leads to another site.
pub(super) fn local_path(path: &str) -> &str {
    let (only_path, _) = path.split_once('?').unwrap_or((path, ""));
    let rest = only_path.strip_prefix(OVERVIEW).unwrap_or("x");
    let fine = (rest.is_empty() || rest.starts_with('/'))
        && path.len() <= MAX_PATH_BYTES
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\' && byte != b'#')
        && !rest.split('/').any(|segment| matches!(segment, "." | ".."))
        && !rest.to_ascii_lowercase().contains("%2e")
        && !["/sign-in", "/sign-out"].iter().any(|own| rest.starts_with(own));
    if fine { path } else { OVERVIEW }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_console_are_returned_to() {
        let long = format!("/ui/{}", "x".repeat(MAX_PATH_BYTES));
        for path in ["/ui", "/ui/", "/ui?a=b", "/ui/intents/a%20b?q=..&x=//y", "/ui/intents/a..b"] {
            assert_eq!(local_path(path), path);
        }
        for path in [
            "",
            "/",
            "ui",
            "//evil.test",
            "//evil.test/ui",
            "https://evil.test/ui",
            "https:/ui",
            "/uix",
            "/ui@evil.test",
            "/ui\\@evil.test",
            "/\\evil.test",
            "/ui/../v1/intents",
            "/ui/%2E%2e/x",
            "/ui/\r\nSet-Cookie: a=b",
            "/ui/é",
            "/ui#x",
            "/ui/sign-in?return=/ui",
            "/ui/sign-out",
            "javascript:alert(1)",
            &long,
        ] {
            assert_eq!(local_path(path), OVERVIEW, "{path}");
        }
    }

    #[test]
    fn an_answer_must_have_the_state_and_come_in_time() {
        let now = Timestamp::from_micros(0);
        let begin = || Transaction::begin("http://127.0.0.1/ui/sign-in/callback".to_owned(), "//x", now).unwrap();
        let (one, other) = (begin(), begin());
        assert_eq!((one.return_to.as_str(), one.state.len()), ("/ui", 43));
        assert!(one.state != other.state && one.nonce != other.nonce && one.verifier != other.verifier);
        assert_eq!(one.check(&one.state, now + MAX_AGE), Ok(()));
        assert_eq!(one.check(&one.state, now + MAX_AGE + Duration::from_secs(1)), Err(Refusal::TooSlow));
        for state in [other.state.as_str(), "", &one.state[..42]] {
            assert_eq!(one.check(state, now), Err(Refusal::StateMismatch));
        }
    }
}
