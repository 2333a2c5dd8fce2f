//! Reads `console_users.json`: who may use the console, with which password and in which role.
//!
//! The file contains bcrypt hashes of passwords and never a password.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::config::json_fields::{ErrorList, Fields, LocatedError};
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

/// Reads the text of the file.
pub(super) fn parse(text: &str) -> Result<Arc<[ConsoleUser]>, Vec<LocatedError>> {
    let document = super::document(text)?;
    let errors = ErrorList::default();
    let top = Fields::new(&document, "", &errors);
    let mut users = Vec::new();
    let mut names = HashMap::new();
    for (index, fields) in top.objects("users", "list the users of the console") {
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
    top.reject_unknown_fields();
    errors.into_result(users.into())
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
    let role = Role::parse(raw);
    if role.is_none() {
        fields.error_at("role", format!("{raw:?} is not a role; roles are {known}"));
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

    fn errors(document: &Value) -> Vec<String> {
        parse(&document.to_string()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_sample_and_the_schema_agree_with_the_code() {
        let sample = include_str!("../../../registry/console_users.json");
        let schema: Value = serde_json::from_str(include_str!("../../../registry/console_users.schema.json")).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let roles: Vec<_> = parse(sample).unwrap().iter().map(|user| user.role).collect();
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
        ] {
            let parsed = parse(&document.to_string());
            assert_eq!(parsed.is_ok(), fine, "{name}: code {parsed:?}");
            assert_eq!(validator.is_valid(&document), fine, "{name}: schema");
        }
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
                "more: unknown field; known fields are users",
            ]
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
