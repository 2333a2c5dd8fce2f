//! Checks an ID token: its signature, who issued it, for whom, when, and for which sign-in.
//!
//! Nothing here reads a clock or calls the provider.

use std::time::Duration;

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

use super::refusal::Refusal;
use crate::config::identity::verification_key;
use crate::domain::time::Timestamp;

/// How far the clock of the provider may differ from this host's.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// A subject has at most 255 characters (OpenID Connect Core, section 2).
const MAX_SUBJECT_CHARS: usize = 255;

/// What an ID token must match.
pub(super) struct Expected<'a> {
    pub issuer: &'a str,
    pub client_id: &'a str,
    pub nonce: &'a str,
    pub now: Timestamp,
}

/// The keys that the provider signs with.
#[derive(Clone, Default)]
pub(super) struct KeySet(Vec<(Option<String>, DecodingKey, Algorithm)>);

/// An ID token whose header was read, and whose signature was not checked yet.
pub(super) struct Unverified<'a> {
    token: &'a str,
    kid: Option<String>,
}

impl KeySet {
    /// The keys of a JSON Web Key Set that can verify signatures. Keys of unknown kinds are left out.
    pub(super) fn of(keys: &[Value]) -> Self {
        let known = keys.iter().filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok());
        Self(known.filter_map(|jwk| verification_key(&jwk)).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key that signed the token: the one with its id, or the only one if the token names none.
    fn key_of(&self, token: &Unverified<'_>) -> Option<&(Option<String>, DecodingKey, Algorithm)> {
        match &token.kid {
            Some(kid) => self.0.iter().find(|(known, ..)| known.as_ref() == Some(kid)),
            None => self.0.first().filter(|_| self.0.len() == 1),
        }
    }

    pub(super) fn has_key_of(&self, token: &Unverified<'_>) -> bool {
        self.key_of(token).is_some()
    }
}

impl<'a> Unverified<'a> {
    /// Reads the header of a token.
    pub(super) fn read(token: &'a str) -> Result<Self, Refusal> {
        let header = decode_header(token).map_err(|error| invalid(format!("its header cannot be read: {error}")))?;
        // `crit` lists extensions that the verifier must support (RFC 7515, section 4.1.11). None is supported here.
        if header.crit.is_some() {
            return Err(invalid("its header has critical extensions"));
        }
        Ok(Self { token, kid: header.kid })
    }

    /// Checks the token and returns its claims. The checks are those of OpenID Connect Core, section 3.1.3.7.
    pub(super) fn verify(&self, keys: &KeySet, expected: &Expected<'_>) -> Result<Map<String, Value>, Refusal> {
        let (_, key, algorithm) = keys.key_of(self).ok_or(Refusal::UnknownKey)?;
        // Only the signature is checked here. The claims are checked below, each with an error of its own.
        let mut signature = Validation::new(*algorithm);
        signature.required_spec_claims.clear();
        (signature.validate_exp, signature.validate_aud) = (false, false);
        let decoded = decode::<Map<String, Value>>(self.token, key, &signature).map_err(|_| Refusal::BadSignature)?;
        check_claims(&decoded.claims, expected)?;
        Ok(decoded.claims)
    }
}

fn check_claims(claims: &Map<String, Value>, expected: &Expected<'_>) -> Result<(), Refusal> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(expected.issuer) {
        return Err(Refusal::WrongIssuer);
    }
    check_audience(claims, expected.client_id)?;
    check_times(claims, expected.now)?;
    let nonce = text("nonce").unwrap_or_default();
    if !bool::from(nonce.as_bytes().ct_eq(expected.nonce.as_bytes())) {
        return Err(Refusal::WrongNonce);
    }
    match text("sub").map(|subject| subject.chars().count()) {
        Some(1..=MAX_SUBJECT_CHARS) => Ok(()),
        _ => Err(invalid("it has no sub, or one that is too long")),
    }
}

/// The token must be for this client. Of several audiences, `azp` says which one asked for it.
fn check_audience(claims: &Map<String, Value>, client_id: &str) -> Result<(), Refusal> {
    let (included, several) = match claims.get("aud") {
        Some(Value::String(audience)) => (audience == client_id, false),
        Some(Value::Array(list)) => (list.iter().any(|audience| audience == client_id), list.len() > 1),
        _ => (false, false),
    };
    let requested_here = match claims.get("azp") {
        Some(party) => party == client_id,
        None => !several,
    };
    if included && requested_here { Ok(()) } else { Err(Refusal::WrongAudience) }
}

fn check_times(claims: &Map<String, Value>, now: Timestamp) -> Result<(), Refusal> {
    let time = |name: &str| {
        // Whole seconds. Some providers send a fraction, which does not matter here.
        let seconds = claims.get(name)?.as_f64().filter(|seconds| (0.0..1e11).contains(seconds))?;
        Some(Timestamp::from_micros(0) + Duration::from_secs_f64(seconds))
    };
    let expires = time("exp").ok_or_else(|| invalid("it has no exp"))?;
    let issued = time("iat").ok_or_else(|| invalid("it has no iat"))?;
    let not_before = time("nbf").unwrap_or(issued);
    let ahead = issued.max(not_before).since(now);
    if ahead > CLOCK_SKEW {
        return Err(Refusal::ClockSkew { seconds: ahead.as_secs() });
    }
    if now.since(expires) >= CLOCK_SKEW { Err(Refusal::Expired) } else { Ok(()) }
}

fn invalid(what: impl Into<String>) -> Refusal {
    Refusal::InvalidToken(what.into())
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_790_000_000;
    type Change<'a> = &'a dyn Fn(&mut Value);

    /// A new key of the provider, and its public half as an entry of the key set.
    fn pair(kid: Option<&str>) -> (EncodingKey, Value) {
        let key = EncodingKey::from_ec_der(&rcgen::KeyPair::generate().unwrap().serialize_der());
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap()).unwrap();
        if let Some(kid) = kid {
            jwk["kid"] = kid.into();
        }
        (key, jwk)
    }

    fn claims(change: Change<'_>) -> Value {
        let mut claims = json!({ "iss": "https://idp.test", "aud": "console", "sub": "1", "nonce": "n", "exp": NOW + 300,
            "iat": NOW });
        change(&mut claims);
        claims
    }

    fn signed(key: &EncodingKey, kid: Option<&str>, claims: &Value) -> String {
        encode(&Header { kid: kid.map(str::to_owned), ..Header::new(Algorithm::ES256) }, claims, key).unwrap()
    }

    fn verify(token: &str, keys: &KeySet) -> Result<Map<String, Value>, &'static str> {
        let now = Timestamp::from_micros(NOW * 1_000_000);
        let expected = Expected { issuer: "https://idp.test", client_id: "console", nonce: "n", now };
        let verified = Unverified::read(token).and_then(|token| token.verify(keys, &expected));
        verified.map_err(|refusal| refusal.reason())
    }

    #[test]
    fn each_claim_is_checked() {
        let (key, public) = pair(Some("a"));
        let keys = KeySet::of(&[public]);
        let cases: [(&str, Change<'_>, Result<(), &str>); 25] = [
            ("fine", &|_| (), Ok(())),
            ("another issuer", &|c| c["iss"] = "https://evil.test".into(), Err("wrong_issuer")),
            ("the issuer with a slash", &|c| c["iss"] = "https://idp.test/".into(), Err("wrong_issuer")),
            ("no issuer", &|c| drop(c.as_object_mut().unwrap().remove("iss")), Err("wrong_issuer")),
            ("another audience", &|c| c["aud"] = "other".into(), Err("wrong_audience")),
            ("no audience", &|c| c["aud"] = json!([]), Err("wrong_audience")),
            ("a list", &|c| c["aud"] = json!(["console"]), Ok(())),
            ("several audiences, no azp", &|c| c["aud"] = json!(["console", "x"]), Err("wrong_audience")),
            ("several audiences", &|c| (c["aud"], c["azp"]) = (json!(["x", "console"]), "console".into()), Ok(())),
            ("requested by another client", &|c| c["azp"] = "x".into(), Err("wrong_audience")),
            ("another nonce", &|c| c["nonce"] = "m".into(), Err("wrong_nonce")),
            ("no nonce", &|c| drop(c.as_object_mut().unwrap().remove("nonce")), Err("wrong_nonce")),
            ("just expired", &|c| c["exp"] = (NOW - 59).into(), Ok(())),
            ("expired", &|c| c["exp"] = (NOW - 60).into(), Err("expired")),
            ("no expiry", &|c| drop(c.as_object_mut().unwrap().remove("exp")), Err("invalid_token")),
            ("an expiry that is a text", &|c| c["exp"] = "9999999999".into(), Err("invalid_token")),
            ("an absurd expiry", &|c| c["exp"] = json!(-1e300), Err("invalid_token")),
            ("a clock that is a little ahead", &|c| c["iat"] = (NOW + 60).into(), Ok(())),
            ("a clock that is ahead", &|c| c["iat"] = (NOW + 61).into(), Err("clock_skew")),
            ("not yet valid", &|c| c["nbf"] = (NOW + 61).into(), Err("clock_skew")),
            ("no time of issue", &|c| drop(c.as_object_mut().unwrap().remove("iat")), Err("invalid_token")),
            ("no subject", &|c| drop(c.as_object_mut().unwrap().remove("sub")), Err("invalid_token")),
            ("an empty subject", &|c| c["sub"] = "".into(), Err("invalid_token")),
            ("the longest subject", &|c| c["sub"] = "é".repeat(255).into(), Ok(())),
            ("a longer subject", &|c| c["sub"] = "é".repeat(256).into(), Err("invalid_token")),
        ];
        for (what, change, expected) in cases {
            let token = signed(&key, Some("a"), &claims(change));
            assert_eq!(verify(&token, &keys).map(drop), expected, "{what}");
        }
    }

    #[test]
    fn only_a_signature_with_a_key_of_the_provider_counts() {
        let ((key, public), (other, _)) = (pair(Some("a")), pair(Some("a")));
        let (old, old_public) = pair(Some("b"));
        let strange = json!({ "kty": "AKP", "kid": "pq", "alg": "ML-DSA-44", "pub": "x" });
        let keys = KeySet::of(&[strange, public.clone(), old_public]);
        let fine = claims(&|_| ());
        assert!(verify(&signed(&key, Some("a"), &fine), &keys).is_ok());
        assert!(verify(&signed(&old, Some("b"), &fine), &keys).is_ok());
        let shared = EncodingKey::from_secret(public.to_string().as_bytes());
        let header = Header { kid: Some("a".to_owned()), ..Header::new(Algorithm::HS256) };
        let valid = signed(&key, Some("a"), &fine);
        let unsigned = format!("{}.", valid.rsplit_once('.').unwrap().0);
        for (what, token, expected) in [
            ("another key", signed(&other, Some("a"), &fine), "bad_signature"),
            ("the id of another key", signed(&key, Some("b"), &fine), "bad_signature"),
            ("an unknown id", signed(&key, Some("c"), &fine), "unknown_key"),
            ("no id, with several keys", signed(&key, None, &fine), "unknown_key"),
            ("the public key as a shared secret", encode(&header, &fine, &shared).unwrap(), "bad_signature"),
            ("no signature", unsigned, "bad_signature"),
            ("no token", "x".to_owned(), "invalid_token"),
            (
                "a critical extension",
                {
                    let crit = Some(vec!["exp".to_owned()]);
                    let header = Header { kid: Some("a".to_owned()), crit, ..Header::new(Algorithm::ES256) };
                    encode(&header, &fine, &key).unwrap()
                },
                "invalid_token",
            ),
        ] {
            assert_eq!(verify(&token, &keys).map(drop), Err(expected), "{what}");
        }
        let (only, public) = pair(None);
        let keys = KeySet::of(&[public]);
        assert!(verify(&signed(&only, None, &fine), &keys).is_ok(), "the only key needs no id");
        assert!(KeySet::of(&[json!({ "kty": "oct", "k": "AAAA" })]).is_empty());
    }
}
