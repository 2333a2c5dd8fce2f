//! `inbox_clients.json`: whose forms, texts, calls and mails are taken, and where in them things stand.

use std::collections::HashMap;
use std::sync::Arc;

use super::InboxClients;
use crate::config::json_fields::{ErrorList, Fields, LocatedError};
use crate::config::variables::Variables;
use crate::domain::inbox::{Channel, FieldNames, InboxClient};
use crate::domain::intent::checked_name;
use crate::domain::signature::Secret;

const MAX_SLUG_CHARS: usize = 100;

pub fn parse(text: &str, variables: &Variables) -> Result<InboxClients, Vec<LocatedError>> {
    let document = super::document(text)?;
    let errors = ErrorList::default();
    let top = Fields::new(&document, "", &errors);
    let mut clients = InboxClients::new();
    let mut places = HashMap::new();
    for (index, fields) in top.objects("clients", "list the clients of the inbox") {
        let client = client(&fields, variables);
        fields.no_others();
        let Some(client) = client else { continue };
        if let Some(first) = places.insert(client.slug.clone(), index) {
            fields.fault("clientSlug", format!("{:?} is also clients[{first}]; slugs must be unique", client.slug));
        }
        clients.insert(client.slug.clone(), Arc::new(client));
    }
    top.no_others();
    errors.into_result(clients)
}

fn client(fields: &Fields<'_>, variables: &Variables) -> Option<InboxClient> {
    let slug = fields.text("clientSlug", "name the client").and_then(|raw| slug(fields, raw));
    let channels = channels(fields);
    let own = fields.object("fields").map(|object| names_of(&object, &FieldNames::default())).unwrap_or_default();
    let by_channel = fields.object("fieldsByChannel");
    let mut with_names = Vec::new();
    for channel in Channel::ALL {
        let names = by_channel.as_ref().and_then(|object| object.object(channel.as_str()));
        let names = names.map(|object| names_of(&object, &own));
        match (channels.contains(&channel), names) {
            (true, names) => with_names.push((channel, names.unwrap_or_else(|| own.clone()))),
            (false, Some(_)) => {
                let place = format!("fieldsByChannel.{}", channel.as_str());
                fields.fault(&place, "is not among the channels; add it there or leave it out");
            }
            (false, None) => {}
        }
    }
    if let Some(object) = &by_channel {
        object.no_others();
    }
    let country = fields.optional_text("country").and_then(|code| {
        let parsed = code.parse().ok();
        if parsed.is_none() {
            fields.fault("country", format!("must be a country such as SE, this is {code:?}"));
        }
        parsed
    });
    let hook_secret_env = fields.optional_text("hookSecretEnv").map(str::to_owned);
    if let Some(name) = &hook_secret_env {
        match variables.get(name).map(|text| Secret::parse_list(&text)) {
            None => {
                let text = format!("the environment variable {name} is not set; set it before the start");
                fields.fault("hookSecretEnv", text);
            }
            Some(Err(fault)) => fields.fault("hookSecretEnv", format!("the environment variable {name} {fault}")),
            Some(Ok(_)) => {}
        }
    }
    Some(InboxClient { slug: slug?, channels: with_names, country, hook_secret_env })
}

fn slug(fields: &Fields<'_>, raw: &str) -> Option<String> {
    let name = checked_name(raw).map_err(|fault| fields.fault("clientSlug", fault.to_string())).ok()?;
    if name.chars().count() > MAX_SLUG_CHARS {
        fields.fault("clientSlug", format!("must have at most {MAX_SLUG_CHARS} characters"));
        return None;
    }
    Some(name.to_string())
}

fn channels(fields: &Fields<'_>) -> Vec<Channel> {
    let known = Channel::ALL.map(Channel::as_str).join(", ");
    let names = fields.names("channels");
    if names.is_empty() {
        fields.fault("channels", format!("must list at least one of {known}"));
    }
    let mut channels = Vec::new();
    for name in names {
        match Channel::parse(name) {
            Some(channel) => channels.push(channel),
            None => fields.fault("channels", format!("{name:?} is not a channel; known are {known}")),
        }
    }
    channels
}

/// The names that are given, and the defaults for the others.
fn names_of(fields: &Fields<'_>, defaults: &FieldNames) -> FieldNames {
    let name = |field: &'static str, default: &str| {
        let given = fields.optional_text(field).unwrap_or(default);
        if given.trim().is_empty() {
            fields.fault(field, "must not be blank");
        }
        given.to_owned()
    };
    let names = FieldNames {
        email: name("email", &defaults.email),
        phone: name("phone", &defaults.phone),
        name: name("name", &defaults.name),
        message: name("message", &defaults.message),
    };
    fields.no_others();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(document: &Value) -> Result<InboxClients, Vec<String>> {
        let variables = Variables::from_fn(|name| match name {
            "SECRET" => Some(Secret::text_of(&[1; 32])),
            "SHORT" => Some("whsec_c2hvcnQ=".to_owned()),
            _ => None,
        });
        super::parse(&document.to_string(), &variables)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_sample_and_the_schema_agree_with_the_code() {
        let sample: Value = include_str!("../../../registry/inbox_clients.json").parse().unwrap();
        let schema: Value = include_str!("../../../registry/inbox_clients.schema.json").parse().unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert!(validator.is_valid(&sample));
        let acme = Arc::clone(&parse(&sample).unwrap()["acme"]);
        assert_eq!(acme.fields(Channel::Form), Some(&FieldNames::default()));
        assert_eq!(acme.fields(Channel::Voice), None);
        for (name, entry, fine) in [
            ("least", json!({ "clientSlug": "a", "channels": ["form"] }), true),
            (
                "full",
                json!({ "clientSlug": "a", "channels": ["form", "sms"], "fields": { "email": "mail" }, "country": "SE",
                    "fieldsByChannel": { "sms": { "phone": "From", "message": "data.text" } },
                    "hookSecretEnv": "SECRET" }),
                true,
            ),
            ("no channels", json!({ "clientSlug": "a", "channels": [] }), false),
            ("channel", json!({ "clientSlug": "a", "channels": ["fax"] }), false),
            ("no slug", json!({ "channels": ["form"] }), false),
            ("field", json!({ "clientSlug": "a", "channels": ["form"], "fields": { "age": "age" } }), false),
            ("blank", json!({ "clientSlug": "a", "channels": ["form"], "fields": { "email": "" } }), false),
            ("secret", json!({ "clientSlug": "a", "channels": ["form"], "hookSecret": "whsec_x" }), false),
            ("country", json!({ "clientSlug": "a", "channels": ["form"], "country": "Sweden" }), false),
        ] {
            let document = json!({ "clients": [entry] });
            assert_eq!(parse(&document).is_ok(), fine, "{name}: code {:?}", parse(&document));
            assert_eq!(validator.is_valid(&document), fine, "{name}: schema");
        }
        let full = json!({ "clients": [{ "clientSlug": "a", "channels": ["form", "sms"], "fields": { "email": "mail" },
            "fieldsByChannel": { "sms": { "phone": "From" } } }]});
        let client = Arc::clone(&parse(&full).unwrap()["a"]);
        let names = client.fields(Channel::Sms).unwrap();
        assert_eq!((names.email.as_str(), names.phone.as_str(), names.name.as_str()), ("mail", "From", "name"));
        assert_eq!(client.fields(Channel::Form).unwrap().phone, "phone");
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let document = json!({ "clients": [
            { "clientSlug": "a", "channels": ["form", "fax"], "country": "XX", "hookSecretEnv": "NOT_SET",
              "fieldsByChannel": { "sms": { "phone": "From" }, "fax": {} } },
            { "clientSlug": "a", "channels": ["form"], "hookSecretEnv": "SHORT", "fields": { "email": 7 } },
            { "channels": "form" },
        ]});
        assert_eq!(
            parse(&document).unwrap_err(),
            [
                "clients[0].channels: \"fax\" is not a channel; known are form, sms, voice, email",
                "clients[0].fieldsByChannel.sms: is not among the channels; add it there or leave it out",
                "clients[0].fieldsByChannel.fax: is not a field here; known are form, sms, voice, email",
                "clients[0].country: must be a country such as SE, this is \"XX\"",
                "clients[0].hookSecretEnv: the environment variable NOT_SET is not set; set it before the start",
                "clients[1].fields.email: must be a string, this is a number",
                "clients[1].hookSecretEnv: the environment variable SHORT holds a secret of 5 bytes; it must have 24 to 64",
                "clients[1].clientSlug: \"a\" is also clients[0]; slugs must be unique",
                "clients[2].clientSlug: is missing; name the client",
                "clients[2].channels: must be a list, this is a string",
                "clients[2].channels: must list at least one of form, sms, voice, email",
            ]
        );
    }
}
