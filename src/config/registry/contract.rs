//! The parts of a contract that targets and management nodes have alike.

use std::collections::HashSet;

use crate::config::json_fields::{Fields, kind};
use crate::domain::contract::{GatewayType, GatewayUrl, Policy, TerminalOutcomes};
use crate::domain::limits::AttemptTimeout;

pub fn gateway_url(fields: &Fields<'_>) -> Option<GatewayUrl> {
    let raw = fields.text("gatewayUrl", "write the gateway's base URL")?;
    let fault = |what| fields.fault("gatewayUrl", format!("must be an http or https URL with a host; this {what}"));
    GatewayUrl::parse(raw).map_err(fault).ok()
}

pub fn policy(fields: &Fields<'_>) -> Option<Policy> {
    const NAMES: &str = "deadline, max_attempts or one_shot";
    let seconds = "maxAcceptanceSeconds";
    let attempts = "maxAttempts";
    fields.mention(seconds);
    fields.mention(attempts);
    let not_with = |name: &'static str, policy: &str| {
        if fields.has(name) {
            fields.fault(name, format!("does not belong to policy {policy}; leave it out"));
        }
    };
    match fields.text("policy", &format!("write {NAMES}"))? {
        "deadline" => {
            not_with(attempts, "deadline");
            let limit = fields.positive(seconds, "policy deadline needs the seconds until it passes, such as 30");
            limit.map(|max_acceptance_seconds| Policy::Deadline { max_acceptance_seconds })
        }
        "max_attempts" => {
            not_with(seconds, "max_attempts");
            let limit = fields.positive(attempts, "policy max_attempts needs how many, such as 3");
            limit.map(|max_attempts| Policy::MaxAttempts { max_attempts })
        }
        "one_shot" => {
            not_with(seconds, "one_shot");
            not_with(attempts, "one_shot");
            Some(Policy::OneShot)
        }
        other => {
            fields.fault("policy", format!("must be {NAMES}, this is {other:?}"));
            None
        }
    }
}

/// How long an attempt may take. Not part of the contract that an intent keeps.
pub fn attempt_timeout(fields: &Fields<'_>) -> Option<AttemptTimeout> {
    const NAME: &str = "attemptTimeoutSeconds";
    let seconds = fields.optional_positive(NAME)?.get();
    let timeout = AttemptTimeout::from_secs(seconds);
    if timeout.is_none() {
        let (shortest, longest) = (AttemptTimeout::SHORTEST, AttemptTimeout::LONGEST);
        fields.fault(NAME, format!("must be a whole number from {shortest} to {longest}, this is {seconds}"));
    }
    timeout
}

pub fn terminal_outcomes(fields: &Fields<'_>, gateway_type: Option<GatewayType>) -> Option<TerminalOutcomes> {
    const NAME: &str = "terminalOutcomes";
    let list = fields.list(NAME, "list the rejection reasons that end an intent")?;
    if list.is_empty() {
        fields.fault(NAME, "must hold at least one rejection reason");
    }
    let mut reasons = Vec::new();
    let mut seen = HashSet::new();
    for (index, value) in list.iter().enumerate() {
        let place = format!("{NAME}[{index}]");
        match value.as_str() {
            None => fields.fault(&place, format!("must be a string, this is {}", kind(value))),
            Some(reason) if reason.trim().is_empty() => fields.fault(&place, "must not be blank"),
            Some("accepted") => fields.fault(&place, "accepted always ends an intent; leave it out"),
            Some(reason) if !seen.insert(reason) => fields.fault(&place, format!("repeats {reason:?}")),
            Some(reason) => match gateway_type {
                Some(kind) if !kind.known_reasons().contains(&reason) => fields.fault(
                    &place,
                    format!(
                        "{reason:?} is not a reason of gateway type {}; known are {}",
                        kind.as_str(),
                        kind.known_reasons().join(", ")
                    ),
                ),
                _ => reasons.push(reason),
            },
        }
    }
    TerminalOutcomes::new(gateway_type?, reasons)
}
