//! Reads the fields of a contract that targets and management nodes have in common.

use std::collections::HashSet;

use crate::config::json_fields::{Fields, kind};
use crate::domain::contract::{GatewayType, GatewayUrl, Policy, TerminalOutcomes};
use crate::domain::limits::AttemptTimeout;

/// Reads `gatewayUrl`.
pub(super) fn gateway_url(fields: &Fields<'_>) -> Option<GatewayUrl> {
    let raw = fields.text("gatewayUrl", "write the gateway's base URL")?;
    let report = |problem| {
        fields.error_at("gatewayUrl", format!("must be an http or https URL with a host; this value {problem}"));
    };
    GatewayUrl::parse(raw).map_err(report).ok()
}

/// Reads `policy` and the limit that belongs to it: `maxAcceptanceSeconds` or `maxAttempts`.
pub(super) fn policy(fields: &Fields<'_>) -> Option<Policy> {
    const NAMES: &str = "deadline, max_attempts or one_shot";
    let seconds = "maxAcceptanceSeconds";
    let attempts = "maxAttempts";
    fields.mark_known(seconds);
    fields.mark_known(attempts);
    let reject_with = |name: &'static str, policy: &str| {
        if fields.has(name) {
            fields.error_at(name, format!("is not used by policy {policy}; remove it"));
        }
    };
    match fields.text("policy", &format!("write {NAMES}"))? {
        "deadline" => {
            reject_with(attempts, "deadline");
            let limit = fields.positive(seconds, "policy deadline needs the seconds until the deadline, such as 30");
            limit.map(|max_acceptance_seconds| Policy::Deadline { max_acceptance_seconds })
        }
        "max_attempts" => {
            reject_with(seconds, "max_attempts");
            let limit = fields.positive(attempts, "policy max_attempts needs the number of attempts, such as 3");
            limit.map(|max_attempts| Policy::MaxAttempts { max_attempts })
        }
        "one_shot" => {
            reject_with(seconds, "one_shot");
            reject_with(attempts, "one_shot");
            Some(Policy::OneShot)
        }
        other => {
            fields.error_at("policy", format!("must be {NAMES}, not {other:?}"));
            None
        }
    }
}

/// Reads `attemptTimeoutSeconds`, which is optional. It is not part of the contract that is stored with an intent, so a
/// change also applies to stored intents.
pub(super) fn attempt_timeout(fields: &Fields<'_>) -> Option<AttemptTimeout> {
    const NAME: &str = "attemptTimeoutSeconds";
    let seconds = fields.optional_positive(NAME)?.get();
    let timeout = AttemptTimeout::from_secs(seconds);
    if timeout.is_none() {
        let (shortest, longest) = (AttemptTimeout::SHORTEST, AttemptTimeout::LONGEST);
        fields.error_at(NAME, format!("must be a whole number from {shortest} to {longest}, not {seconds}"));
    }
    timeout
}

/// Reads `terminalOutcomes`: the rejection reasons that end an intent. Each must be one that the gateway type knows.
pub(super) fn terminal_outcomes(fields: &Fields<'_>, gateway_type: Option<GatewayType>) -> Option<TerminalOutcomes> {
    const NAME: &str = "terminalOutcomes";
    let list = fields.list(NAME, "list the rejection reasons that end an intent")?;
    if list.is_empty() {
        fields.error_at(NAME, "must list at least one rejection reason");
    }
    let mut reasons = Vec::new();
    let mut seen = HashSet::new();
    for (index, value) in list.iter().enumerate() {
        let location = format!("{NAME}[{index}]");
        match value.as_str() {
            None => fields.error_at(&location, format!("must be a string, not {}", kind(value))),
            Some(reason) if reason.trim().is_empty() => fields.error_at(&location, "must not be blank"),
            Some("accepted") => fields.error_at(&location, "accepted always ends an intent; remove it"),
            Some(reason) if !seen.insert(reason) => fields.error_at(&location, format!("duplicate value {reason:?}")),
            Some(reason) => match gateway_type {
                Some(kind) if !kind.known_reasons().contains(&reason) => fields.error_at(
                    &location,
                    format!(
                        "{reason:?} is not a rejection reason of gateway type {}; known reasons are {}",
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
