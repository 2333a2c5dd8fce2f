//! Reads `inbox_clients.json`: the clients of the inbox, their channels, and the names of the fields in their payloads.

use std::collections::HashMap;
use std::sync::Arc;

use super::InboxClients;
use crate::config::json_fields::{ErrorList, Fields, LocatedError};
use crate::config::variables::Variables;
use crate::domain::inbox::{Channel, FieldNames, InboxClient};
use crate::domain::intent::checked_name;
use crate::domain::signature::Secret;

const MAX_SLUG_CHARS: usize = 100;

/// Reads the text of the file, and checks that the environment variables it names hold secrets.
pub(super) fn parse(text: &str, variables: &Variables) -> Result<InboxClients, Vec<LocatedError>> {
    let document = super::document(text)?;
    let errors = ErrorList::default();
    let top = Fields::new(&document, "", &errors);
    let mut clients = InboxClients::new();
    let mut first_index = HashMap::new();
    for (index, fields) in top.objects("clients", "list the clients of the inbox") {
        let client = client(&fields, variables);
        fields.reject_unknown_fields();
        let Some(client) = client else { continue };
        if let Some(first) = first_index.insert(client.slug.clone(), index) {
            fields.error_at(
                "clientSlug",
                format!("{:?} is already used by clients[{first}]; slugs must be unique", client.slug),
            );
        }
        clients.insert(client.slug.clone(), Arc::new(client));
    }
    top.reject_unknown_fields();
    errors.into_result(clients)
}

fn client(fields: &Fields<'_>, variables: &Variables) -> Option<InboxClient> {
    let slug = fields.text("clientSlug", "name the client").and_then(|raw| slug(fields, raw));
    let channels = channels(fields);
    let own = fields.object("fields").map(|object| field_names(&object, &FieldNames::default())).unwrap_or_default();
    let by_channel = fields.object("fieldsByChannel");
    let mut channel_fields = Vec::new();
    for channel in Channel::ALL {
        let names = by_channel.as_ref().and_then(|object| object.object(channel.as_str()));
        let names = names.map(|object| field_names(&object, &own));
        match (channels.contains(&channel), names) {
            (true, names) => channel_fields.push((channel, names.unwrap_or_else(|| own.clone()))),
            (false, Some(_)) => {
                let location = format!("fieldsByChannel.{}", channel.as_str());
                fields.error_at(&location, "is not among the channels; add it there or remove it");
            }
            (false, None) => {}
        }
    }
    if let Some(object) = &by_channel {
        object.reject_unknown_fields();
    }
    let country = fields.optional_text("country").and_then(|code| {
        let parsed = code.parse().ok();
        if parsed.is_none() {
            fields.error_at("country", format!("must be a two-letter country code such as SE, not {code:?}"));
        }
        parsed
    });
    let hook_secret_env = fields.optional_text("hookSecretEnv").map(str::to_owned);
    if let Some(name) = &hook_secret_env {
        match variables.get(name).map(|text| Secret::parse_list(&text)) {
            None => {
                let message =
                    format!("the environment variable {name} is not set; set it before you start the service");
                fields.error_at("hookSecretEnv", message);
            }
            Some(Err(error)) => fields.error_at("hookSecretEnv", format!("the environment variable {name} {error}")),
            Some(Ok(_)) => {}
        }
    }
    Some(InboxClient { slug: slug?, channels: channel_fields, country, hook_secret_env })
}

fn slug(fields: &Fields<'_>, raw: &str) -> Option<String> {
    let name = checked_name(raw).map_err(|error| fields.error_at("clientSlug", error.to_string())).ok()?;
    if name.chars().count() > MAX_SLUG_CHARS {
        fields.error_at("clientSlug", format!("must have at most {MAX_SLUG_CHARS} characters"));
        return None;
    }
    Some(name.to_string())
}

fn channels(fields: &Fields<'_>) -> Vec<Channel> {
    let known = Channel::ALL.map(Channel::as_str).join(", ");
    let names = fields.names("channels");
    if names.is_empty() {
        fields.error_at("channels", format!("must list at least one of {known}"));
    }
    let mut channels = Vec::new();
    for name in names {
        match Channel::parse(name) {
            Some(channel) => channels.push(channel),
            None => fields.error_at("channels", format!("{name:?} is not a channel; known channels are {known}")),
        }
    }
    channels
}

/// The field names in the object, and the default for each that is absent.
fn field_names(fields: &Fields<'_>, defaults: &FieldNames) -> FieldNames {
    let name = |field: &'static str, default: &str| {
        let given = fields.optional_text(field).unwrap_or(default);
        if given.trim().is_empty() {
            fields.error_at(field, "must not be blank");
        }
        given.to_owned()
    };
    let names = FieldNames {
        email: name("email", &defaults.email),
        phone: name("phone", &defaults.phone),
        name: name("name", &defaults.name),
        message: name("message", &defaults.message),
    };
    fields.reject_unknown_fields();
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
            ("smallest", json!({ "clientSlug": "a", "channels": ["form"] }), true),
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
    fn all_errors_are_reported_at_once() {
        let document = json!({ "clients": [
            { "clientSlug": "a", "channels": ["form", "fax"], "country": "XX", "hookSecretEnv": "NOT_SET",
              "fieldsByChannel": { "sms": { "phone": "From" }, "fax": {} } },
            { "clientSlug": "a", "channels": ["form"], "hookSecretEnv": "SHORT", "fields": { "email": 7 } },
            { "channels": "form" },
        ]});
        assert_eq!(
            parse(&document).unwrap_err(),
            [
                "clients[0].channels: \"fax\" is not a channel; known channels are form, sms, voice, email",
                "clients[0].fieldsByChannel.sms: is not among the channels; add it there or remove it",
                "clients[0].fieldsByChannel.fax: unknown field; known fields are form, sms, voice, email",
                "clients[0].country: must be a two-letter country code such as SE, not \"XX\"",
                "clients[0].hookSecretEnv: the environment variable NOT_SET is not set; set it before you start the service",
                "clients[1].fields.email: must be a string, not a number",
                "clients[1].hookSecretEnv: the environment variable SHORT holds a secret of 5 bytes; it must have 24 to 64",
                "clients[1].clientSlug: \"a\" is already used by clients[0]; slugs must be unique",
                "clients[2].clientSlug: is missing; name the client",
                "clients[2].channels: must be a list, not a string",
                "clients[2].channels: must list at least one of form, sms, voice, email",
            ]
        );
    }
}
