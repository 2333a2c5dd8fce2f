//! Reads `submission_targets.json`: the contract and the limits of each target.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::contract::{attempt_timeout, gateway_url, policy, terminal_outcomes};
use super::nodes::TARGET_PREFIX;
use super::webhook::{self, Rules};
use crate::config::json_fields::{ErrorList, Fields, LocatedError, kind};
use crate::config::variables::Variables;
use crate::domain::contract::{Contract, ContractSnapshot, GatewayType};
use crate::domain::intent::TargetName;
use crate::domain::limits::{Rate, TargetLimits};

pub(super) type Targets = HashMap<TargetName, Target>;

/// A target as the file defines it.
#[derive(Debug)]
pub(super) struct Target {
    /// The contract, a copy of which is stored with each intent.
    pub snapshot: Arc<ContractSnapshot>,
    /// The limits of the target. They are not stored with intents, so a change applies to all of them.
    pub limits: TargetLimits,
}

/// Reads the text of the file, and checks the environment variables that its webhooks name.
pub(super) fn parse(text: &str, variables: &Variables) -> Result<Targets, Vec<LocatedError>> {
    let document = super::document(text)?;
    let errors = ErrorList::default();
    let top = Fields::new(&document, "", &errors);
    let rules = Rules { allow_unsigned: top.flag("allowUnsignedWebhooks"), variables };
    let mut targets = Targets::new();
    if let Some(entries) = top.list("targets", "list the contracts there") {
        if entries.is_empty() {
            top.error_at("targets", "must list at least one contract");
        }
        let mut names = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            let location = format!("targets[{index}]");
            let Value::Object(map) = entry else {
                errors.add(location, format!("must be an object, not {}", kind(entry)));
                continue;
            };
            let name = unique_name(&Fields::new(map, location.as_str(), &errors), &mut names, index);
            if let Some((contract, limits)) = contract(map, location, &errors, name, &rules) {
                match ContractSnapshot::of(contract) {
                    Ok(snapshot) => {
                        let name = snapshot.contract.target.clone();
                        targets.insert(name, Target { snapshot: Arc::new(snapshot), limits });
                    }
                    Err(error) => errors.add(format!("targets[{index}]"), error.to_string()),
                }
            }
        }
    }
    top.reject_unknown_fields();
    errors.into_result(targets)
}

fn unique_name(fields: &Fields<'_>, names: &mut HashMap<TargetName, usize>, index: usize) -> Option<TargetName> {
    let raw = fields.text("submissionTarget", "name the target")?;
    let name = match TargetName::parse(raw) {
        Ok(name) => name,
        Err(error) => {
            fields.error_at("submissionTarget", error.to_string());
            return None;
        }
    };
    if name.as_str().starts_with(TARGET_PREFIX) {
        let message =
            format!("must not begin with {TARGET_PREFIX:?}, which is reserved for management nodes; rename it");
        fields.error_at("submissionTarget", message);
    }
    if let Some(first) = names.insert(name.clone(), index) {
        fields.error_at(
            "submissionTarget",
            format!("{name:?} is already used by targets[{first}]; names must be unique"),
        );
    }
    Some(name)
}

fn contract(
    map: &Map<String, Value>,
    location: String,
    errors: &ErrorList,
    target: Option<TargetName>,
    rules: &Rules<'_>,
) -> Option<(Contract, TargetLimits)> {
    let fields = Fields::new(map, location, errors);
    fields.mark_known("submissionTarget");
    let gateway_type = gateway_type(&fields);
    let gateway_url = gateway_url(&fields);
    let policy = policy(&fields);
    let terminal_outcomes = terminal_outcomes(&fields, gateway_type);
    let webhook = fields.object("webhook").map(|fields| webhook::parse(&fields, rules));
    let max_in_flight = fields.optional_positive("maxInFlight");
    let rate = rate(&fields);
    let attempt_timeout = attempt_timeout(&fields);
    fields.reject_unknown_fields();
    let contract = Contract {
        target: target?,
        gateway_type: gateway_type?,
        gateway_url: gateway_url?,
        policy: policy?,
        terminal_outcomes: terminal_outcomes?,
        webhook: match webhook {
            Some(parsed) => Some(parsed?),
            None => None,
        },
    };
    Some((contract, TargetLimits { max_in_flight, rate, attempt_timeout }))
}

fn rate(fields: &Fields<'_>) -> Option<Rate> {
    let name = "ratePerSecond";
    let number = fields.optional_number(name)?;
    let rate = Rate::per_second(number);
    if rate.is_none() {
        fields.error_at(name, format!("must be from {} to {}, not {number}", Rate::SLOWEST, Rate::FASTEST));
    }
    rate
}

fn gateway_type(fields: &Fields<'_>) -> Option<GatewayType> {
    let names = GatewayType::OF_TARGETS.map(GatewayType::as_str).join(" or ");
    let raw = fields.text("gatewayType", &format!("write {names}"))?;
    let parsed = GatewayType::parse(raw);
    if parsed.is_none() {
        fields.error_at("gatewayType", format!("must be {names}, not {raw:?}"));
    }
    parsed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Targets, Vec<LocatedError>> {
        let variables = Variables::from_fn(|name| match name {
            "SECRET" => Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()),
            "SHORT" => Some("whsec_c2hvcnQ=".to_owned()),
            "TOKEN" => Some("Bearer t".to_owned()),
            "LINES" => Some("a\nb".to_owned()),
            _ => None,
        });
        super::parse(text, &variables)
    }

    fn errors(text: &str) -> Vec<String> {
        parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    fn entry(change: impl FnOnce(&mut Map<String, Value>)) -> String {
        let mut entry = serde_json::json!({
            "submissionTarget": "t", "gatewayType": "sms", "gatewayUrl": "http://x",
            "policy": "one_shot", "terminalOutcomes": ["invalid_request"],
        });
        change(entry.as_object_mut().unwrap());
        serde_json::json!({ "targets": [entry] }).to_string()
    }

    #[test]
    fn the_sample_and_the_schema_agree_with_the_code() {
        let sample = include_str!("../../../registry/submission_targets.json");
        assert!(parse(sample).unwrap().len() >= 3);
        let schema: Value =
            serde_json::from_str(include_str!("../../../registry/submission_targets.schema.json")).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert!(validator.is_valid(&serde_json::from_str(sample).unwrap()));
        for (name, text, fine) in [
            ("good", entry(|_| ()), true),
            ("no policy", entry(|e| drop(e.remove("policy"))), false),
            ("limit of another policy", entry(|e| drop(e.insert("maxAttempts".into(), 3.into()))), false),
            ("unknown field", entry(|e| drop(e.insert("color".into(), 3.into()))), false),
            (
                "reason of another type",
                entry(|e| e["terminalOutcomes"] = "[\"unregistered_token\"]".parse().unwrap()),
                false,
            ),
            ("no outcomes", entry(|e| e["terminalOutcomes"] = "[]".parse().unwrap()), false),
            ("empty", r#"{"targets": []}"#.to_owned(), false),
            ("name of a node", entry(|e| e["submissionTarget"] = "node:a".into()), false),
            ("name of a node after a blank", entry(|e| e["submissionTarget"] = " node:a".into()), false),
            ("name of no node", entry(|e| e["submissionTarget"] = "my-node:a".into()), true),
            ("limits", entry(|e| e.extend(limits(3.into(), 0.5.into()))), true),
            ("shortest timeout", entry(|e| drop(e.insert("attemptTimeoutSeconds".into(), 1.into()))), true),
            ("longest timeout", entry(|e| drop(e.insert("attemptTimeoutSeconds".into(), 120.into()))), true),
            ("timeout of zero", entry(|e| drop(e.insert("attemptTimeoutSeconds".into(), 0.into()))), false),
            ("timeout too long", entry(|e| drop(e.insert("attemptTimeoutSeconds".into(), 121.into()))), false),
            ("part of a second", entry(|e| drop(e.insert("attemptTimeoutSeconds".into(), 1.5.into()))), false),
            ("no slots", entry(|e| e.extend(limits(0.into(), 1.into()))), false),
            ("half a slot", entry(|e| e.extend(limits(0.5.into(), 1.into()))), false),
            ("too slow", entry(|e| e.extend(limits(1.into(), 0.009.into()))), false),
            ("too fast", entry(|e| e.extend(limits(1.into(), 10_001.into()))), false),
            ("webhook", with_webhook(serde_json::json!({ "url": "https://x/y", "secretEnv": "SECRET" })), true),
            (
                "full webhook",
                with_webhook(serde_json::json!({ "url": "https://x", "secretEnv": "SECRET",
                    "headers": { "X-A": "b" }, "headersEnv": { "Authorization": "TOKEN" } })),
                true,
            ),
            ("webhook without url", with_webhook(serde_json::json!({ "secretEnv": "SECRET" })), false),
            (
                "webhook with another scheme",
                with_webhook(serde_json::json!({ "url": "mailto:x", "secretEnv": "SECRET" })),
                false,
            ),
            (
                "webhook with a secret in it",
                with_webhook(serde_json::json!({ "url": "https://x", "secret": "s" })),
                false,
            ),
        ] {
            assert_eq!(parse(&text).is_ok(), fine, "{name}: code");
            assert_eq!(validator.is_valid(&text.parse().unwrap()), fine, "{name}: schema");
        }
        for kind in GatewayType::OF_TARGETS {
            for reason in kind.known_reasons() {
                let text = entry(|e| {
                    e["gatewayType"] = kind.as_str().into();
                    e["terminalOutcomes"] = vec![*reason].into();
                });
                assert!(parse(&text).is_ok() && validator.is_valid(&text.parse().unwrap()), "{reason}");
            }
        }
    }

    fn limits(max_in_flight: Value, rate: Value) -> [(String, Value); 2] {
        [("maxInFlight".to_owned(), max_in_flight), ("ratePerSecond".to_owned(), rate)]
    }

    #[test]
    fn limits_belong_to_the_target_and_not_to_its_contract() {
        let target = |text: &str| parse(text).unwrap().remove(&TargetName::parse("t").unwrap()).unwrap();
        let limited = target(&entry(|e| {
            e.extend(limits(2.into(), 7.5.into()));
            e.insert("attemptTimeoutSeconds".into(), 90.into());
        }));
        let free = target(&entry(|_| ()));
        assert_eq!(limited.limits.attempt_timeout.map(|timeout| timeout.as_duration().as_secs()), Some(90));
        assert_eq!(limited.limits.max_in_flight.map(|most| most.get()), Some(2));
        assert_eq!(limited.limits.rate.map(Rate::as_per_second), Some(7.5));
        assert_eq!((free.limits, &limited.snapshot.json), (TargetLimits::default(), &free.snapshot.json));
    }

    #[test]
    fn all_errors_are_reported_at_once_with_their_locations() {
        let text = r#"{"version": 1, "targets": [
            {"submissionTarget": "a", "gatewayType": "sms", "gatewayUrl": "http://x/", "policy": "deadline",
             "terminalOutcomes": ["invalid_request", "invalid_request", " ", "accepted", "unregistered_token", 7]},
            7,
            {"submissionTarget": "a", "gatewayType": "fax", "gatewayUrl": "ftp://x", "policy": "max_attempts",
             "maxAttempts": 0, "maxAcceptanceSeconds": 3, "terminalOutcomes": [], "colour": "red"},
            {"submissionTarget": " ", "policy": "forever", "terminalOutcomes": "invalid_request",
             "maxInFlight": -1, "ratePerSecond": "fast"},
            {"submissionTarget": "node:b", "gatewayType": "sms", "gatewayUrl": "http://x", "policy": "one_shot",
             "terminalOutcomes": ["invalid_request"], "ratePerSecond": 0, "attemptTimeoutSeconds": 121}
        ]}"#;
        assert_eq!(
            errors(text),
            [
                "targets[0].maxAcceptanceSeconds: is missing; policy deadline needs the seconds until the deadline, such as 30",
                "targets[0].terminalOutcomes[1]: duplicate value \"invalid_request\"",
                "targets[0].terminalOutcomes[2]: must not be blank",
                "targets[0].terminalOutcomes[3]: accepted always ends an intent; remove it",
                "targets[0].terminalOutcomes[4]: \"unregistered_token\" is not a rejection reason of gateway type sms; known reasons are \
                 invalid_request, duplicate_reference, invalid_recipient, invalid_message, provider_failure",
                "targets[0].terminalOutcomes[5]: must be a string, not a number",
                "targets[1]: must be an object, not a number",
                "targets[2].submissionTarget: \"a\" is already used by targets[0]; names must be unique",
                "targets[2].gatewayType: must be sms or push, not \"fax\"",
                "targets[2].gatewayUrl: must be an http or https URL with a host; this value has scheme \"ftp\"",
                "targets[2].maxAcceptanceSeconds: is not used by policy max_attempts; remove it",
                "targets[2].maxAttempts: must be a whole number from 1 to 4294967295, not 0",
                "targets[2].terminalOutcomes: must list at least one rejection reason",
                "targets[2].colour: unknown field; known fields are submissionTarget, gatewayType, gatewayUrl, \
                 maxAcceptanceSeconds, maxAttempts, policy, terminalOutcomes, webhook, \
                 maxInFlight, ratePerSecond, attemptTimeoutSeconds",
                "targets[3].submissionTarget: must not be empty",
                "targets[3].gatewayType: is missing; write sms or push",
                "targets[3].gatewayUrl: is missing; write the gateway's base URL",
                "targets[3].policy: must be deadline, max_attempts or one_shot, not \"forever\"",
                "targets[3].terminalOutcomes: must be a list, not a string",
                "targets[3].maxInFlight: must be a whole number from 1 to 4294967295, not -1",
                "targets[3].ratePerSecond: must be a number, not a string",
                "targets[4].submissionTarget: must not begin with \"node:\", which is reserved for management nodes; rename it",
                "targets[4].ratePerSecond: must be from 0.01 to 10000, not 0",
                "targets[4].attemptTimeoutSeconds: must be a whole number from 1 to 120, not 121",
                "version: unknown field; known fields are allowUnsignedWebhooks, targets",
            ]
        );
    }

    fn with_webhook(webhook: Value) -> String {
        entry(|e| drop(e.insert("webhook".into(), webhook)))
    }

    #[test]
    fn errors_in_webhooks_have_a_location_and_contain_no_secret() {
        let webhook = serde_json::json!({
            "url": "https://u:p@x", "secretEnv": "SHORT", "retries": 3,
            "headers": { "Content-Length": "1", "bad name": "x", "X-Line": "a\nb", "x-twice": "1", "X-Number": 7 },
            "headersEnv": { "X-Missing": "NOT_SET", "X-Twice": "TOKEN", "X-Lines": "LINES", "Webhook-Id": "TOKEN" },
        });
        assert_eq!(
            errors(&with_webhook(webhook)),
            [
                "targets[0].webhook.url: must be an http or https URL with a host; this value has a user name or password in \
                 it",
                "targets[0].webhook.headers.X-Number: must be a string, not a number",
                "targets[0].webhook.headers.Content-Length: is set by the service; remove it",
                "targets[0].webhook.headers.X-Line: is not a valid header value",
                "targets[0].webhook.headers.bad name: is not a valid header name",
                "targets[0].webhook.headersEnv.Webhook-Id: is set by the service; remove it",
                "targets[0].webhook.headersEnv.X-Lines: the environment variable LINES holds a value that a header cannot have",
                "targets[0].webhook.headersEnv.X-Missing: the environment variable NOT_SET is not set; set it before you start the service",
                "targets[0].webhook.headersEnv.X-Twice: is listed twice; remove one",
                "targets[0].webhook.secretEnv: the environment variable SHORT holds a secret of 5 bytes; it must have 24 to 64",
                "targets[0].webhook.retries: unknown field; known fields are url, headers, headersEnv, secretEnv",
            ]
        );
        let unset = serde_json::json!({ "url": "https://x", "secretEnv": "NOT_SET" });
        assert_eq!(
            errors(&with_webhook(unset)),
            [
                "targets[0].webhook.secretEnv: the environment variable NOT_SET is not set; set it before you start the service"
            ]
        );
        assert_eq!(errors(&with_webhook(7.into())), ["targets[0].webhook: must be an object, not a number"]);
    }

    #[test]
    fn webhooks_need_a_secret_unless_unsigned_ones_are_allowed() {
        let unsigned = serde_json::json!({ "url": "https://x" });
        assert_eq!(
            errors(&with_webhook(unsigned.clone())),
            [
                "targets[0].webhook.secretEnv: is missing; name the environment variable that holds the secret, or write \
              \"allowUnsignedWebhooks\": true at the top of the file"
            ]
        );
        let mut document: Value = with_webhook(unsigned).parse().unwrap();
        document["allowUnsignedWebhooks"] = true.into();
        let targets = parse(&document.to_string()).unwrap();
        let webhook = targets[&TargetName::parse("t").unwrap()].snapshot.contract.webhook.clone().unwrap();
        assert_eq!((webhook.url.as_str(), webhook.secret_env), ("https://x/", None));
        document["allowUnsignedWebhooks"] = "yes".into();
        assert_eq!(errors(&document.to_string())[0], "allowUnsignedWebhooks: must be true or false, not a string");
    }

    #[test]
    fn a_snapshot_contains_the_names_of_environment_variables_but_not_their_values() {
        let webhook = serde_json::json!({ "url": "https://x", "secretEnv": "SECRET", "headersEnv": { "A": "TOKEN" } });
        let targets = parse(&with_webhook(webhook)).unwrap();
        let json = &targets[&TargetName::parse("t").unwrap()].snapshot.json;
        assert!(json.contains("SECRET") && json.contains("TOKEN"), "{json}");
        assert!(!json.contains("whsec") && !json.contains("Bearer"), "{json}");
    }

    #[test]
    fn documents_that_are_not_a_registry_are_rejected() {
        assert_eq!(errors("[]"), ["must be a JSON object, not a list"]);
        assert_eq!(errors("{}"), ["targets: is missing; list the contracts there"]);
        assert_eq!(errors(r#"{"targets": []}"#), ["targets: must list at least one contract"]);
        assert_eq!(errors("{\"targets\": [\n}"), ["line 2 column 1: not valid JSON: expected value"]);
        assert_eq!(errors("{} x"), ["line 1 column 4: not valid JSON: trailing characters"]);
    }

    #[test]
    fn a_trailing_slash_and_surrounding_blanks_are_removed() {
        let text = entry(|e| {
            e["gatewayUrl"] = "http://x/base/".into();
            e["submissionTarget"] = " t ".into();
        });
        let targets = parse(&text).unwrap();
        let contract = &targets[&TargetName::parse("t").unwrap()].snapshot.contract;
        assert_eq!(contract.gateway_url.as_str(), "http://x/base");
    }
}
