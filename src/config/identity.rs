//! Authentication: finds the [`ApiClient`] that a bearer token belongs to.
//!
//! There are two kinds of tokens. An opaque token is known by its SHA-256 only, which is compared with every known hash
//! in constant time. A signed token (JWT) is checked against a key set, an issuer and an audience; its claims name the
//! tenant, the workspaces and the scopes. No token is stored, logged or returned.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::domain::client::{ApiClient, Scope, Workspaces};

/// All callers that may use the API.
#[derive(Default)]
pub struct Identities {
    pub tokens: Vec<KnownToken>,
    /// `None` if signed tokens are not accepted.
    pub jwt: Option<JwtVerifier>,
}

/// The SHA-256 of an opaque token, and the client that it belongs to.
pub struct KnownToken {
    pub sha256: [u8; 32],
    pub client: Arc<ApiClient>,
}

impl Identities {
    /// The number of opaque tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The client that a token belongs to. Compares with every known hash even after a match, so that the duration does
    /// not reveal which one matched.
    pub fn identify(&self, token: &str) -> Option<Arc<ApiClient>> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let matching = self.tokens.iter().filter(|known| bool::from(known.sha256.ct_eq(&hash)));
        let found = matching.fold(None, |_, known| Some(Arc::clone(&known.client)));
        found.or_else(|| self.jwt.as_ref()?.identify(token).map(Arc::new))
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identities({} tokens, JWT {})", self.tokens.len(), self.jwt.is_some())
    }
}

/// The names of the claims that hold the tenant, the workspaces and the scopes of a signed token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimNames {
    pub tenant: String,
    pub workspaces: String,
    pub scopes: String,
}

impl Default for ClaimNames {
    fn default() -> Self {
        Self { tenant: "tenant_id".to_owned(), workspaces: "workspace_ids".to_owned(), scopes: "scope".to_owned() }
    }
}

/// Verifies signed tokens (JWT) of one issuer for one audience.
pub struct JwtVerifier {
    keys: HashMap<String, (DecodingKey, Validation)>,
    claims: ClaimNames,
}

impl JwtVerifier {
    /// Reads a JSON Web Key Set and keeps its RS256 and ES256 keys that have a `kid`. Fails if there is no such key. The
    /// error completes a sentence that begins with the name of the file.
    pub fn new(key_set: &str, issuer: &str, audience: &str, claims: ClaimNames) -> Result<Self, String> {
        let set: JwkSet =
            serde_json::from_str(key_set).map_err(|error| format!("is not a JSON Web Key Set: {error}"))?;
        let mut keys = HashMap::new();
        for jwk in &set.keys {
            let Some((Some(kid), key, algorithm)) = verification_key(jwk) else { continue };
            let mut validation = Validation::new(algorithm);
            validation.set_issuer(&[issuer]);
            validation.set_audience(&[audience]);
            validation.set_required_spec_claims(&["exp", "iss", "aud"]);
            validation.validate_nbf = true;
            keys.insert(kid, (key, validation));
        }
        if keys.is_empty() {
            return Err("contains no RS256 or ES256 key with a kid".to_owned());
        }
        Ok(Self { keys, claims })
    }

    fn identify(&self, token: &str) -> Option<ApiClient> {
        let header = decode_header(token).ok()?;
        // `crit` lists extensions that the verifier must support (RFC 7515, section 4.1.11). None is supported here.
        if header.crit.is_some() {
            return None;
        }
        let (key, validation) = self.keys.get(&header.kid?)?;
        let claims = decode::<Map<String, Value>>(token, key, validation).ok()?.claims;
        let tenant = claims.get(&self.claims.tenant)?.as_str()?;
        let workspaces = Workspaces::of(words(claims.get(&self.claims.workspaces)?))?;
        Some(ApiClient {
            id: claims.get("sub").and_then(Value::as_str).unwrap_or("jwt").to_owned(),
            scopes: words(claims.get(&self.claims.scopes)?).into_iter().filter_map(Scope::parse).collect(),
            tenants: BTreeMap::from([(tenant.to_owned(), workspaces)]),
        })
    }
}

/// The id, key and algorithm of a JSON Web Key, if signatures can be verified with it: RS256 or ES256.
pub fn verification_key(jwk: &Jwk) -> Option<(Option<String>, DecodingKey, Algorithm)> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Algorithm::ES256,
        _ => return None,
    };
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    let stated = jwk.common.key_algorithm.map(|stated| stated.to_string());
    let matches = stated.is_none_or(|stated| stated == format!("{algorithm:?}"));
    Some((jwk.common.key_id.clone(), key, algorithm)).filter(|_| matches)
}

/// The words of a claim, which is either a list of strings or one string with words separated by spaces.
fn words(claim: &Value) -> Vec<&str> {
    match claim {
        Value::String(text) => text.split_ascii_whitespace().collect(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_known_by_its_hash() {
        let client = |id: &str| {
            Arc::new(ApiClient { id: id.to_owned(), scopes: [Scope::Admin].into(), tenants: BTreeMap::new() })
        };
        let known = |token: &str, id| KnownToken { sha256: Sha256::digest(token).into(), client: client(id) };
        let identities = Identities { tokens: vec![known("one", "a"), known("two", "b")], jwt: None };
        for (token, id) in [("one", Some("a")), ("two", Some("b")), ("One", None), ("", None), ("on", None)] {
            assert_eq!(identities.identify(token).map(|client| client.id.clone()).as_deref(), id, "{token}");
        }
        assert_eq!(format!("{identities:?}"), "Identities(2 tokens, JWT false)");
    }

    /// A new key pair: the private key for the issuer, and the public key as an entry of its key set.
    fn pair(kid: &str, algorithm: Algorithm) -> (EncodingKey, Value) {
        let key = match algorithm {
            Algorithm::RS256 => {
                let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
                // The key is serialized as PKCS #8: a header of this length, then the PKCS #1 key that is needed here.
                const PKCS8_HEADER_BYTES: usize = 26;
                EncodingKey::from_rsa_der(&key.serialize_der()[PKCS8_HEADER_BYTES..])
            }
            _ => EncodingKey::from_ec_der(&rcgen::KeyPair::generate().unwrap().serialize_der()),
        };
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&key, algorithm).unwrap()).unwrap();
        jwk["kid"] = kid.into();
        (key, jwk)
    }

    #[test]
    fn a_valid_signed_token_identifies_its_client_and_others_are_rejected() {
        let (rsa, rsa_public) = pair("r", Algorithm::RS256);
        let (ec, ec_public) = pair("e", Algorithm::ES256);
        let (unknown_key, _) = pair("e", Algorithm::ES256);
        let set = json!({ "keys": [rsa_public, ec_public] }).to_string();
        let jwt = JwtVerifier::new(&set, "https://idp.test", "submission-manager", ClaimNames::default()).unwrap();
        let identities = Identities { tokens: Vec::new(), jwt: Some(jwt) };
        type Change<'a> = &'a dyn Fn(&mut Value);
        let now = get_current_timestamp();
        let claims = |change: Change<'_>| {
            let mut claims = json!({ "iss": "https://idp.test", "aud": ["submission-manager", "x"], "sub": "bff",
                "exp": now + 600, "tenant_id": "acme", "workspace_ids": ["w1", "w2"],
                "scope": "openid jobs:submit jobs:read" });
            change(&mut claims);
            claims
        };
        let signed = |key: &EncodingKey, algorithm, kid: Option<&str>, claims: &Value| {
            let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
            encode(&header, claims, key).unwrap()
        };
        for (key, algorithm, kid) in [(&rsa, Algorithm::RS256, "r"), (&ec, Algorithm::ES256, "e")] {
            let client = identities.identify(&signed(key, algorithm, Some(kid), &claims(&|_| ()))).unwrap();
            assert_eq!((client.id.as_str(), client.scopes.len()), ("bff", 2));
            assert!(client.may(Scope::JobsSubmit) && client.acts_for("acme", "w2"));
            assert!(!client.acts_for("acme", "w3") && !client.acts_for("globex", "w1"));
        }
        let all = identities.identify(&signed(
            &ec,
            Algorithm::ES256,
            Some("e"),
            &claims(&|c| c["workspace_ids"] = "*".into()),
        ));
        assert!(all.unwrap().acts_for("acme", "anything"));
        let changes: [(&str, Change<'_>); 8] = [
            ("expired", &|c| c["exp"] = (now - 3600).into()),
            ("without expiry", &|c| drop(c.as_object_mut().unwrap().remove("exp"))),
            ("not yet valid", &|c| c["nbf"] = (now + 3600).into()),
            ("from another issuer", &|c| c["iss"] = "https://evil.test".into()),
            ("for another audience", &|c| c["aud"] = "other".into()),
            ("without audience", &|c| drop(c.as_object_mut().unwrap().remove("aud"))),
            ("without tenant", &|c| drop(c.as_object_mut().unwrap().remove("tenant_id"))),
            ("without workspaces", &|c| c["workspace_ids"] = json!([])),
        ];
        for (what, change) in changes {
            let token = signed(&ec, Algorithm::ES256, Some("e"), &claims(change));
            assert_eq!(identities.identify(&token), None, "{what}");
        }
        for (what, token) in [
            ("signed with an unknown key", signed(&unknown_key, Algorithm::ES256, Some("e"), &claims(&|_| ()))),
            ("with the wrong key id", signed(&rsa, Algorithm::RS256, Some("e"), &claims(&|_| ()))),
            ("without key id", signed(&ec, Algorithm::ES256, None, &claims(&|_| ()))),
            ("with an unknown key id", signed(&ec, Algorithm::ES256, Some("x"), &claims(&|_| ()))),
            (
                "signed with the public key set as a shared secret",
                signed(&EncodingKey::from_secret(set.as_bytes()), Algorithm::HS256, Some("e"), &claims(&|_| ())),
            ),
            ("with a critical extension", {
                let crit = Some(vec!["exp".to_owned()]);
                let header = Header { kid: Some("e".to_owned()), crit, ..Header::new(Algorithm::ES256) };
                encode(&header, &claims(&|_| ()), &ec).unwrap()
            }),
            ("without signature", {
                let token = signed(&ec, Algorithm::ES256, Some("e"), &claims(&|_| ()));
                format!("{}.", token.rsplit_once('.').unwrap().0)
            }),
        ] {
            assert_eq!(identities.identify(&token), None, "{what}");
        }
    }

    #[test]
    fn key_sets_without_a_usable_key_are_rejected() {
        let new = |text: &str| JwtVerifier::new(text, "i", "a", ClaimNames::default()).err().unwrap();
        assert!(new("x").contains("is not a JSON Web Key Set"));
        for useless in [json!([]), json!([{ "kty": "oct", "kid": "k", "k": "AAAA" }])] {
            assert!(new(&json!({ "keys": useless }).to_string()).contains("no RS256 or ES256 key"), "{useless}");
        }
    }
}
