//! Reads `oidc` of `console_users.json`: the OpenID Connect provider that people sign in with, and the roles that its claims
//! give.
//!
//! The client secret is kept in an environment variable. This module checks that it is set, but does not store it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use url::{Host, Url};

use super::console_users::role_named;
use crate::config::json_fields::Fields;
use crate::config::variables::Variables;
use crate::domain::contract::http_url;
use crate::domain::role::Role;

/// A session keeps the claim value that gave the role, and a cookie has room for 4096 bytes.
const MAX_CLAIM_VALUE_CHARS: usize = 256;

/// How people sign in to the console with OpenID Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer, exactly as its tokens name it.
    pub issuer: String,
    pub client_id: String,
    /// The environment variable that holds the client secret.
    pub client_secret_env: String,
    /// The scopes to request besides `openid`, `profile` and `email`.
    pub scopes: Vec<String>,
    /// The claim of the ID token that decides about roles: its name, or a path of names separated by dots.
    pub role_claim: String,
    /// The roles by value of that claim.
    roles: BTreeMap<String, Role>,
}

impl OidcConfig {
    /// The role that a value of the claim gives.
    pub fn role_of(&self, value: &str) -> Option<Role> {
        self.roles.get(value).copied()
    }

    /// The highest role that the claims of an ID token give, with the claim value that gives it.
    pub fn role_in<'a>(&self, claims: &'a Map<String, Value>) -> Option<(&'a str, Role)> {
        // An address that the provider has not verified may belong to somebody else.
        if self.role_claim == "email" && claims.get("email_verified") != Some(&Value::Bool(true)) {
            return None;
        }
        let values = match claim(claims, &self.role_claim)? {
            Value::String(text) => vec![text.as_str()],
            Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
            _ => return None,
        };
        values.into_iter().filter_map(|value| Some((value, self.role_of(value)?))).max_by_key(|(_, role)| *role)
    }
}

/// A claim by its name, or else by the path of names in nested objects that the dots separate.
fn claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        claim(claims.get(first)?.as_object()?, rest)
    })
}

/// Parses a URL of the provider. It is https, or http to this machine. The error completes a sentence that begins with "this
/// value".
pub fn provider_url(raw: &str) -> Result<Url, String> {
    let url = http_url(raw)?;
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if url.scheme() == "https" || is_loopback { Ok(url) } else { Err("is http and not on this machine".to_owned()) }
}

/// Reads the `oidc` object.
pub(super) fn parse(fields: &Fields<'_>, variables: &Variables) -> Option<OidcConfig> {
    let issuer = issuer(fields);
    let client_id = not_blank(fields, "clientId", "write the id that the provider gave to the console");
    let client_secret_env = client_secret_env(fields, variables);
    let scopes = scopes(fields);
    let role_claim = not_blank(fields, "roleClaim", "name the claim of the ID token that decides about roles");
    let roles = roles(fields);
    fields.reject_unknown_fields();
    Some(OidcConfig {
        issuer: issuer?,
        client_id: client_id?,
        client_secret_env: client_secret_env?,
        scopes,
        role_claim: role_claim?,
        roles,
    })
}

fn issuer(fields: &Fields<'_>) -> Option<String> {
    let raw = fields.text("issuer", "write the URL of the provider, as its ID tokens name it in iss")?;
    let problem = match provider_url(raw) {
        Ok(url) if url.query().is_some() => "has a query".to_owned(),
        Ok(_) if raw.trim() != raw => "begins or ends with a blank".to_owned(),
        Ok(_) => return Some(raw.to_owned()),
        Err(problem) => problem,
    };
    fields.error_at("issuer", format!("must be an https URL; this value {problem}"));
    None
}

fn not_blank(fields: &Fields<'_>, name: &'static str, hint: &str) -> Option<String> {
    let raw = fields.text(name, hint)?;
    if raw.trim().is_empty() {
        fields.error_at(name, "must not be blank");
        return None;
    }
    Some(raw.to_owned())
}

fn client_secret_env(fields: &Fields<'_>, variables: &Variables) -> Option<String> {
    const NAME: &str = "clientSecretEnv";
    let variable = fields.text(NAME, "name the environment variable that holds the client secret")?;
    let problem = match variables.get(variable) {
        None => "is not set; set it before you start the service",
        Some(value) if value.trim().is_empty() => "is empty; set it to the client secret",
        Some(_) => return Some(variable.to_owned()),
    };
    fields.error_at(NAME, format!("the environment variable {variable} {problem}"));
    None
}

fn scopes(fields: &Fields<'_>) -> Vec<String> {
    let scopes = fields.names("scopes");
    for scope in scopes.iter().filter(|scope| !scope.bytes().all(|byte| byte.is_ascii_graphic())) {
        fields.error_at("scopes", format!("{scope:?} is not a scope; list one scope an entry"));
    }
    scopes.into_iter().map(str::to_owned).collect()
}

fn roles(fields: &Fields<'_>) -> BTreeMap<String, Role> {
    const NAME: &str = "roles";
    if !fields.has(NAME) {
        fields.error_at(
            NAME,
            "is missing; write a role for each value of the claim, such as {\"operators\": \"operator\"}",
        );
    }
    let texts = fields.texts(NAME);
    if fields.has(NAME) && texts.is_empty() {
        fields.error_at(NAME, "must have a role for at least one value of the claim");
    }
    let mut roles = BTreeMap::new();
    for (value, name) in texts {
        let location = format!("{NAME}.{value}");
        if value.chars().count() > MAX_CLAIM_VALUE_CHARS {
            fields.error_at(&location, format!("must have at most {MAX_CLAIM_VALUE_CHARS} characters"));
        }
        if let Some(role) = role_named(fields, &location, name) {
            roles.insert(value.to_owned(), role);
        }
    }
    roles
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(claim: &str) -> OidcConfig {
        let roles = [("readers", Role::Viewer), ("ops", Role::Operator), ("chiefs", Role::Admin)];
        OidcConfig {
            issuer: "https://idp.test".to_owned(),
            client_id: "console".to_owned(),
            client_secret_env: "SECRET".to_owned(),
            scopes: Vec::new(),
            role_claim: claim.to_owned(),
            roles: roles.map(|(value, role)| (value.to_owned(), role)).into(),
        }
    }

    #[test]
    fn the_highest_role_of_the_claim_counts() {
        for (claim, claims, expected) in [
            ("roles", json!({ "roles": "ops" }), Some(("ops", Role::Operator))),
            ("roles", json!({ "roles": ["readers", "chiefs", "ops"] }), Some(("chiefs", Role::Admin))),
            ("roles", json!({ "roles": ["nobody", 7, null, "readers"] }), Some(("readers", Role::Viewer))),
            ("roles", json!({ "roles": "readers ops" }), None),
            ("roles", json!({ "roles": [] }), None),
            ("roles", json!({ "roles": { "ops": true } }), None),
            ("roles", json!({ "groups": ["ops"] }), None),
            ("realm_access.roles", json!({ "realm_access": { "roles": ["ops"] } }), Some(("ops", Role::Operator))),
            ("a.b.c", json!({ "a": { "b.c": "ops" } }), Some(("ops", Role::Operator))),
            ("https://x.test/roles", json!({ "https://x.test/roles": ["ops"] }), Some(("ops", Role::Operator))),
            ("a.b", json!({ "a": "ops" }), None),
        ] {
            let claims = claims.as_object().unwrap().clone();
            assert_eq!(config(claim).role_in(&claims), expected, "{claim} {claims:?}");
        }
    }

    #[test]
    fn an_unverified_address_gives_no_role() {
        let mut config = config("email");
        config.roles.insert("ada@example.com".to_owned(), Role::Admin);
        for (verified, expected) in
            [(json!(true), true), (json!(false), false), (json!("true"), false), (json!(null), false)]
        {
            let claims = json!({ "email": "ada@example.com", "email_verified": verified });
            assert_eq!(config.role_in(claims.as_object().unwrap()).is_some(), expected, "{verified}");
        }
        assert!(config.role_in(json!({ "email": "ada@example.com" }).as_object().unwrap()).is_none());
    }

    #[test]
    fn only_this_machine_may_be_called_without_tls() {
        for (url, fine) in [
            ("https://idp.test/realms/a", true),
            ("http://127.0.0.1:8080", true),
            ("http://localhost:8080/x", true),
            ("http://[::1]:8080/x", true),
            ("http://idp.test", false),
            ("http://127.0.0.1.idp.test", false),
            ("http://localhost.idp.test", false),
            ("ftp://localhost", false),
            ("https://user@idp.test", false),
            ("idp.test", false),
        ] {
            assert_eq!(provider_url(url).is_ok(), fine, "{url}");
        }
    }
}
