//! Reads `console_users.json`: who may use the console, with which password or through which provider, and in which role.
//!
//! The file contains bcrypt hashes of passwords and never a password.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::oidc::{self, OidcConfig};
use crate::config::json_fields::{ErrorList, Fields, LocatedError};
use crate::config::variables::Variables;
use crate::domain::intent::checked_name;
use crate::domain::role::Role;

/// The costs of hashes in the file. Below 10, a stolen hash is guessed too quickly; above 15, a check takes seconds.
const COSTS: RangeInclusive<u32> = 10..=15;

/// A user of the console who signs in with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct ConsoleUser {
    pub name: Arc<str>,
    /// The bcrypt hash of the password, as `htpasswd -nB` prints it.
    pub password_hash: Arc<str>,
    pub role: Role,
}

impl fmt::Debug for ConsoleUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConsoleUser({:?}, {:?})", self.name, self.role)
    }
}

/// A text that is no line of `htpasswd`. The error repeats nothing of it.
#[derive(Debug, thiserror::Error)]
#[error("must be a line as 'htpasswd -nB user' prints it: user:$2y$…")]
pub struct InvalidHtpasswd;

impl ConsoleUser {
    /// Parses a line of `htpasswd -nB`, `user:$2y$…`, as the one administrator that `SM_CONSOLE_AUTH` names.
    pub fn of_htpasswd(text: &str) -> Result<Self, InvalidHtpasswd> {
        let (name, hash) = text.trim().split_once(':').ok_or(InvalidHtpasswd)?;
        if name.is_empty() || cost(hash).is_none() {
            return Err(InvalidHtpasswd);
        }
        Ok(Self { name: name.into(), password_hash: hash.into(), role: Role::Admin })
    }
}

/// The cost of a bcrypt hash; `None` if the text is no such hash.
fn cost(hash: &str) -> Option<u32> {
    hash.parse::<bcrypt::HashParts>().ok().map(|parts| parts.get_cost())
}

/// What the file says: users with passwords, a provider that people sign in with, or both.
#[derive(Debug)]
pub(super) struct ConsoleUsers {
    pub users: Option<Arc<[ConsoleUser]>>,
    pub oidc: Option<Arc<OidcConfig>>,
}

/// Reads the text of the file. An environment variable that it names and that is not set is among the errors.
pub(super) fn parse(text: &str, variables: &Variables) -> Result<ConsoleUsers, Vec<LocatedError>> {
    let document = super::document(text)?;
    let errors = ErrorList::default();
    let top = Fields::new(&document, "", &errors);
    let oidc = top.object("oidc").and_then(|fields| oidc::parse(&fields, variables)).map(Arc::new);
    let users = if top.has("users") || !top.has("oidc") { Some(users(&top)) } else { None };
    top.mark_known("users");
    top.reject_unknown_fields();
    errors.into_result(ConsoleUsers { users, oidc })
}

fn users(top: &Fields<'_>) -> Arc<[ConsoleUser]> {
    let mut users = Vec::new();
    let mut names = HashMap::new();
    for (index, fields) in
        top.objects("users", "list the users of the console, or write with \"oidc\" how people sign in")
    {
        let name = name(&fields);
        let password_hash = password_hash(&fields);
        let role = role(&fields);
        fields.reject_unknown_fields();
        let Some(name) = name else { continue };
        if let Some(first) = names.insert(Arc::clone(&name), index) {
            fields.error_at("name", format!("{name:?} is already used by users[{first}]; names must be unique"));
        }
        let (Some(password_hash), Some(role)) = (password_hash, role) else { continue };
        users.push(ConsoleUser { name, password_hash, role });
    }
    users.into()
}

fn name(fields: &Fields<'_>) -> Option<Arc<str>> {
    let raw = fields.text("name", "name the user")?;
    match checked_name(raw) {
        Ok(name) if name.contains(':') => {
            fields.error_at("name", "must not contain a colon, which ends a user name when browsers send it");
            None
        }
        Ok(name) => Some(name),
        Err(error) => {
            fields.error_at("name", error.to_string());
            None
        }
    }
}

fn password_hash(fields: &Fields<'_>) -> Option<Arc<str>> {
    const NAME: &str = "passwordHash";
    let raw = fields.text(NAME, "make one with 'htpasswd -nBC 12 user'; it is what follows the colon")?;
    match cost(raw) {
        Some(cost) if COSTS.contains(&cost) => Some(raw.into()),
        Some(cost) => {
            let (least, most) = (COSTS.start(), COSTS.end());
            fields.error_at(
                NAME,
                format!("has the cost {cost}; make one with a cost from {least} to {most}: 'htpasswd -nBC 12 user'"),
            );
            None
        }
        None => {
            fields.error_at(NAME, "must be a bcrypt hash, $2y$…, as 'htpasswd -nBC 12 user' prints it after the colon");
            None
        }
    }
}

fn role(fields: &Fields<'_>) -> Option<Role> {
    let known = Role::ALL.map(Role::as_str).join(", ");
    let raw = fields.text("role", &format!("write what the user may do: {known}"))?;
    role_named(fields, "role", raw)
}

/// The role of this name. Any other name is an error at `location`.
pub(super) fn role_named(fields: &Fields<'_>, location: &str, name: &str) -> Option<Role> {
    let role = Role::parse(name);
    if role.is_none() {
        let known = Role::ALL.map(Role::as_str).join(", ");
        fields.error_at(location, format!("{name:?} is not a role; roles are {known}"));
    }
    role
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A hash of no known password, with this cost.
    fn hash(cost: u32) -> String {
        format!("$2y${cost:02}$L6Bc/AlTQHyd9liGgGEZyOFLPHNgyxeEPfgYfBCVxJ7JIlwxyVU3u")
    }

    /// Reads a file with the client secret in `SECRET`.
    fn parse(text: &str) -> Result<ConsoleUsers, Vec<LocatedError>> {
        let variables = Variables::from_fn(|name| match name {
            "SECRET" => Some("s".to_owned()),
            "EMPTY" => Some(" ".to_owned()),
            _ => None,
        });
        super::parse(text, &variables)
    }

    fn errors(document: &Value) -> Vec<String> {
        parse(&document.to_string()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    fn oidc(change: fn(&mut Value)) -> Value {
        let mut oidc = json!({ "issuer": "https://idp.test", "clientId": "console", "clientSecretEnv": "SECRET",
            "roleClaim": "roles", "roles": { "ops": "operator" } });
        change(&mut oidc);
        json!({ "oidc": oidc })
    }

    #[test]
    fn the_sample_and_the_schema_agree_with_the_code() {
        let sample = include_str!("../../../registry/console_users.json");
        let schema: Value = serde_json::from_str(include_str!("../../../registry/console_users.schema.json")).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let roles: Vec<_> = parse(sample).unwrap().users.unwrap().iter().map(|user| user.role).collect();
        assert_eq!(roles, Role::ALL);
        assert!(validator.is_valid(&sample.parse().unwrap()));
        let entry = |change: fn(&mut Value)| {
            let mut entry = json!({ "name": "ada", "passwordHash": hash(12), "role": "viewer" });
            change(&mut entry);
            json!({ "users": [entry] })
        };
        for (name, document, fine) in [
            ("good", entry(|_| ()), true),
            ("no name", entry(|e| drop(e.as_object_mut().unwrap().remove("name"))), false),
            ("a colon", entry(|e| e["name"] = "a:b".into()), false),
            ("no hash", entry(|e| drop(e.as_object_mut().unwrap().remove("passwordHash"))), false),
            ("the password itself", entry(|e| e["passwordHash"] = "secret".into()), false),
            ("another hash", entry(|e| e["passwordHash"] = "$apr1$x$y".into()), false),
            ("a cheap hash", entry(|e| e["passwordHash"] = hash(9).into()), false),
            ("a cost of 10", entry(|e| e["passwordHash"] = hash(10).into()), true),
            ("a cost of 15", entry(|e| e["passwordHash"] = hash(15).into()), true),
            ("a dear hash", entry(|e| e["passwordHash"] = hash(16).into()), false),
            ("no role", entry(|e| drop(e.as_object_mut().unwrap().remove("role"))), false),
            ("unknown role", entry(|e| e["role"] = "root".into()), false),
            ("unknown field", entry(|e| e["password"] = "secret".into()), false),
            ("no users", json!({ "users": [] }), false),
            ("nothing", json!({}), false),
            ("a provider", oidc(|_| ()), true),
            ("a provider on this machine", oidc(|o| o["issuer"] = "http://127.0.0.1:8080/x".into()), true),
            ("more scopes", oidc(|o| o["scopes"] = json!(["groups"])), true),
            ("no issuer", oidc(|o| drop(o.as_object_mut().unwrap().remove("issuer"))), false),
            ("an issuer that is no URL", oidc(|o| o["issuer"] = "idp.test".into()), false),
            ("no client", oidc(|o| drop(o.as_object_mut().unwrap().remove("clientId"))), false),
            ("the client secret itself", oidc(|o| o["clientSecret"] = "s".into()), false),
            ("no claim", oidc(|o| o["roleClaim"] = "".into()), false),
            ("no roles", oidc(|o| o["roles"] = json!({})), false),
            ("unknown role of a claim value", oidc(|o| o["roles"]["ops"] = "root".into()), false),
            ("a provider twice", json!({ "oidc": [oidc(|_| ())["oidc"]] }), false),
        ] {
            let parsed = parse(&document.to_string());
            assert_eq!(parsed.is_ok(), fine, "{name}: code {parsed:?}");
            assert_eq!(validator.is_valid(&document), fine, "{name}: schema");
        }
        let mut both = entry(|_| ());
        both["oidc"] = oidc(|_| ())["oidc"].clone();
        let parsed = parse(&both.to_string()).unwrap();
        assert!(parsed.users.is_some() && parsed.oidc.is_some() && validator.is_valid(&both));
        for role in Role::ALL {
            let mut document = entry(|_| ());
            document["users"][0]["role"] = json!(role.as_str());
            assert!(parse(&document.to_string()).is_ok() && validator.is_valid(&document));
        }
    }

    #[test]
    fn all_errors_are_reported_at_once_and_no_hash_is_repeated() {
        let document = json!({ "users": [
            { "name": "ada", "passwordHash": hash(12), "role": "admin" },
            { "name": "ada", "passwordHash": hash(4), "role": "root", "colour": 1 },
            { "name": " ", "passwordHash": 7 },
            7,
        ], "more": 1 });
        assert_eq!(
            errors(&document),
            [
                "users[3]: must be an object, not a number",
                "users[1].passwordHash: has the cost 4; make one with a cost from 10 to 15: 'htpasswd -nBC 12 user'",
                "users[1].role: \"root\" is not a role; roles are viewer, operator, admin",
                "users[1].colour: unknown field; known fields are name, passwordHash, role",
                "users[1].name: \"ada\" is already used by users[0]; names must be unique",
                "users[2].name: must not be empty",
                "users[2].passwordHash: must be a string, not a number",
                "users[2].role: is missing; write what the user may do: viewer, operator, admin",
                "more: unknown field; known fields are oidc, users",
            ]
        );
        assert_eq!(
            errors(&json!({ "oidc": { "issuer": "http://idp.test", "clientId": " ", "clientSecretEnv": "NOT_SET",
                "scopes": ["a b"], "roles": { "ops": "root", "chiefs": 7 }, "colour": 1 } })),
            [
                "oidc.issuer: must be an https URL; this value is http and not on this machine",
                "oidc.clientId: must not be blank",
                "oidc.clientSecretEnv: the environment variable NOT_SET is not set; set it before you start the service",
                "oidc.scopes: \"a b\" is not a scope; list one scope an entry",
                "oidc.roleClaim: is missing; name the claim of the ID token that decides about roles",
                "oidc.roles.chiefs: must be a string, not a number",
                "oidc.roles.ops: \"root\" is not a role; roles are viewer, operator, admin",
                "oidc.colour: unknown field; known fields are issuer, clientId, clientSecretEnv, scopes, roleClaim, roles",
            ]
        );
        let empty = errors(&oidc(|o| o["clientSecretEnv"] = "EMPTY".into()));
        assert_eq!(
            empty,
            ["oidc.clientSecretEnv: the environment variable EMPTY is empty; set it to the client secret"]
        );
        assert!(!format!("{:?}", parse(&json!({ "users": [document["users"][0]] }).to_string())).contains("$2y$"));
    }

    #[test]
    fn a_line_of_htpasswd_is_one_administrator() {
        let user = ConsoleUser::of_htpasswd(&format!(" ops:{}\n", hash(5))).unwrap();
        assert_eq!((&*user.name, user.role), ("ops", Role::Admin));
        for text in ["", "ops", "ops:secret", &format!(":{}", hash(12)), "ops:$apr1$x$y"] {
            let error = ConsoleUser::of_htpasswd(text).unwrap_err().to_string();
            assert!(error.contains("htpasswd -nB") && !error.contains("secret"), "{text}: {error}");
        }
    }
}
