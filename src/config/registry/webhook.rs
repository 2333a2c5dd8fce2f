//! The `webhook` of a contract: where its outcome is told, with which headers and which secret.
//!
//! Secrets stand in environment variables. They are looked at here, so that a missing one keeps the
//! service from starting, and forgotten again.

use std::collections::BTreeMap;

use actix_web::http::header::{HeaderName, HeaderValue};

use crate::config::json_fields::Fields;
use crate::config::variables::Variables;
use crate::domain::signature::Secret;
use crate::domain::webhook::{Webhook, WebhookUrl};

/// What holds for all webhooks of a file.
pub struct Rules<'a> {
    pub allow_unsigned: bool,
    pub variables: &'a Variables,
}

/// Headers that belong to the request as such, or to its signature.
const OWN: [&str; 10] = [
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

pub fn parse(fields: &Fields<'_>, rules: &Rules<'_>) -> Option<Webhook> {
    let url = fields.text("url", "write where events are to be sent").and_then(|raw| {
        let fault = |what| fields.fault("url", format!("must be an http or https URL with a host; this {what}"));
        WebhookUrl::parse(raw).map_err(fault).ok()
    });
    let mut names = Vec::new();
    let mut headers = BTreeMap::new();
    for (name, value) in fields.texts("headers") {
        let place = format!("headers.{name}");
        if HeaderValue::from_str(value).is_err() {
            fields.fault(&place, "is not a value that a header can have");
        }
        check_name(fields, &place, name, &mut names);
        headers.insert(name.to_owned(), value.to_owned());
    }
    let mut headers_env = BTreeMap::new();
    for (name, variable) in fields.texts("headersEnv") {
        let place = format!("headersEnv.{name}");
        check_name(fields, &place, name, &mut names);
        match rules.variables.get(variable) {
            None => fields.fault(&place, not_set(variable)),
            Some(value) if HeaderValue::from_str(&value).is_err() => {
                fields.fault(&place, format!("the environment variable {variable} holds what a header cannot have"));
            }
            Some(_) => drop(headers_env.insert(name.to_owned(), variable.to_owned())),
        }
    }
    let secret_env = fields.optional_text("secretEnv");
    match secret_env.map(|variable| (variable, rules.variables.get(variable))) {
        Some((variable, None)) => fields.fault("secretEnv", not_set(variable)),
        Some((variable, Some(value))) => {
            if let Err(fault) = Secret::parse_list(&value) {
                fields.fault("secretEnv", format!("the environment variable {variable} {fault}"));
            }
        }
        None if rules.allow_unsigned || fields.has("secretEnv") => {}
        None => fields.fault(
            "secretEnv",
            "is missing; name the environment variable that holds the secret, or write \
             \"allowUnsignedWebhooks\": true at the top",
        ),
    }
    fields.no_others();
    Some(Webhook { url: url?, headers, headers_env, secret_env: secret_env.map(str::to_owned) })
}

fn not_set(variable: &str) -> String {
    format!("the environment variable {variable} is not set; set it before the start")
}

fn check_name(fields: &Fields<'_>, place: &str, name: &str, names: &mut Vec<HeaderName>) {
    match HeaderName::from_bytes(name.as_bytes()) {
        Err(_) => fields.fault(place, "is not the name of a header"),
        Ok(name) if OWN.contains(&name.as_str()) => fields.fault(place, "is set by the service; leave it out"),
        Ok(name) if names.contains(&name) => fields.fault(place, "is named twice; leave one out"),
        Ok(name) => names.push(name),
    }
}
