//! Reads the `webhook` of a contract: the URL that events are sent to, the headers, and the secret that signs them.
//!
//! Secrets are kept in environment variables. This module checks them, so that the service does not start without one,
//! but does not store them.

use std::collections::BTreeMap;

use actix_web::http::header::{HeaderName, HeaderValue};

use crate::config::json_fields::Fields;
use crate::config::variables::Variables;
use crate::domain::signature::Secret;
use crate::domain::webhook::{Webhook, WebhookUrl};

/// What applies to all webhooks of a file.
pub(super) struct Rules<'a> {
    /// Whether a webhook may have no secret.
    pub allow_unsigned: bool,
    pub variables: &'a Variables,
}

/// Headers that the service sets itself, for the HTTP request or its signature.
const RESERVED_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// Reads a `webhook` object.
pub(super) fn parse(fields: &Fields<'_>, rules: &Rules<'_>) -> Option<Webhook> {
    let url = fields.text("url", "write the URL that events are sent to").and_then(|raw| {
        let report = |problem| {
            fields.error_at("url", format!("must be an http or https URL with a host; this value {problem}"));
        };
        WebhookUrl::parse(raw).map_err(report).ok()
    });
    let mut names = Vec::new();
    let mut headers = BTreeMap::new();
    for (name, value) in fields.texts("headers") {
        let location = format!("headers.{name}");
        if HeaderValue::from_str(value).is_err() {
            fields.error_at(&location, "is not a valid header value");
        }
        check_name(fields, &location, name, &mut names);
        headers.insert(name.to_owned(), value.to_owned());
    }
    let mut headers_env = BTreeMap::new();
    for (name, variable) in fields.texts("headersEnv") {
        let location = format!("headersEnv.{name}");
        check_name(fields, &location, name, &mut names);
        match rules.variables.get(variable) {
            None => fields.error_at(&location, not_set(variable)),
            Some(value) if HeaderValue::from_str(&value).is_err() => {
                fields.error_at(
                    &location,
                    format!("the environment variable {variable} holds a value that a header cannot have"),
                );
            }
            Some(_) => drop(headers_env.insert(name.to_owned(), variable.to_owned())),
        }
    }
    let secret_env = fields.optional_text("secretEnv");
    match secret_env.map(|variable| (variable, rules.variables.get(variable))) {
        Some((variable, None)) => fields.error_at("secretEnv", not_set(variable)),
        Some((variable, Some(value))) => {
            if let Err(error) = Secret::parse_list(&value) {
                fields.error_at("secretEnv", format!("the environment variable {variable} {error}"));
            }
        }
        None if rules.allow_unsigned || fields.has("secretEnv") => {}
        None => fields.error_at(
            "secretEnv",
            "is missing; name the environment variable that holds the secret, or write \
             \"allowUnsignedWebhooks\": true at the top of the file",
        ),
    }
    fields.reject_unknown_fields();
    Some(Webhook { url: url?, headers, headers_env, secret_env: secret_env.map(str::to_owned) })
}

fn not_set(variable: &str) -> String {
    format!("the environment variable {variable} is not set; set it before you start the service")
}

fn check_name(fields: &Fields<'_>, location: &str, name: &str, names: &mut Vec<HeaderName>) {
    match HeaderName::from_bytes(name.as_bytes()) {
        Err(_) => fields.error_at(location, "is not a valid header name"),
        Ok(name) if RESERVED_HEADERS.contains(&name.as_str()) => {
            fields.error_at(location, "is set by the service; remove it")
        }
        Ok(name) if names.contains(&name) => fields.error_at(location, "is listed twice; remove one"),
        Ok(name) => names.push(name),
    }
}
