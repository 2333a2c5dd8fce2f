//! The contract of a target: its gateway, its policy, its terminal outcomes and its webhook.
//!
//! The types cannot hold an invalid contract, such as `max_attempts` without a limit or a terminal outcome that the gateway
//! type does not know. A copy of the contract is stored as JSON for its intents, so old JSON must stay readable: add fields
//! as optional, and never rename one.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use url::Url;

use super::intent::TargetName;
use super::webhook::Webhook;

/// The kind of a gateway. It determines the path that requests are sent to and the rejection reasons that a contract may
/// name. All kinds get the same request headers, and their responses are parsed the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayType {
    Sms,
    Push,
    /// A management node, which receives jobs. No target in the registry can have this type.
    Node,
}

impl GatewayType {
    /// The types that a target in the registry can have.
    pub const OF_TARGETS: [Self; 2] = [Self::Sms, Self::Push];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sms => "sms",
            Self::Push => "push",
            Self::Node => "node",
        }
    }

    /// Parses the `gatewayType` of a target in the registry.
    pub fn parse(text: &str) -> Option<Self> {
        Self::OF_TARGETS.into_iter().find(|kind| kind.as_str() == text)
    }

    /// The path of requests, which is appended to `gatewayUrl`.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Sms => "/sms/send",
            Self::Push => "/push/send",
            Self::Node => "/jobs/submit",
        }
    }

    /// The rejection reasons that gateways of this type document. A contract can make these terminal. A gateway may also
    /// respond with another reason, which never ends an intent.
    pub const fn known_reasons(self) -> &'static [&'static str] {
        match self {
            Self::Sms => {
                &["invalid_request", "duplicate_reference", "invalid_recipient", "invalid_message", "provider_failure"]
            }
            Self::Push => &["invalid_request", "duplicate_reference", "provider_failure", "unregistered_token"],
            Self::Node => {
                &["invalid_request", "duplicate_reference", "queue_unavailable", "quota_exceeded", "node_failure"]
            }
        }
    }
}

/// An http or https base URL with a host and no trailing slash.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GatewayUrl(Arc<str>);

impl GatewayUrl {
    /// Parses a base URL. The error completes a sentence that begins with "this value".
    pub fn parse(raw: &str) -> Result<Self, String> {
        let url = http_url(raw)?;
        if url.query().is_some() {
            return Err("has a query".to_owned());
        }
        Ok(Self(url.as_str().trim_end_matches('/').into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Parses an http or https URL with a host, without credentials and without a fragment. The error completes a sentence that
/// begins with "this value".
pub fn http_url(raw: &str) -> Result<Url, String> {
    let url = Url::parse(raw.trim()).map_err(|error| format!("is not a URL ({error})"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("has scheme {:?}", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("has no host".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("has a user name or password in it".to_owned());
    }
    if url.fragment().is_some() {
        return Err("has a fragment".to_owned());
    }
    Ok(url)
}

impl fmt::Display for GatewayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for GatewayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// When attempts stop if the gateway neither accepts the intent nor rejects it with a terminal reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Deadline { max_acceptance_seconds: NonZeroU32 },
    MaxAttempts { max_attempts: NonZeroU32 },
    OneShot,
}

/// The rejection reasons that end an intent. There is at least one, and the gateway type knows all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminalOutcomes(BTreeSet<&'static str>);

impl TerminalOutcomes {
    /// `None` if `reasons` is empty or contains a reason that the gateway type does not know.
    pub fn new<'a>(kind: GatewayType, reasons: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let known = kind.known_reasons();
        let reasons: Option<BTreeSet<_>> =
            reasons.into_iter().map(|reason| known.iter().copied().find(|name| *name == reason)).collect();
        reasons.filter(|set| !set.is_empty()).map(Self)
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().copied()
    }

    pub fn contains(&self, reason: &str) -> bool {
        self.0.contains(reason)
    }
}

/// The contract of one target. Its JSON form is the snapshot that is stored for intents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Snapshot", into = "Snapshot")]
pub struct Contract {
    pub target: TargetName,
    pub gateway_type: GatewayType,
    pub gateway_url: GatewayUrl,
    pub policy: Policy,
    pub terminal_outcomes: TerminalOutcomes,
    /// Where an event is sent when an intent ends, if anywhere.
    pub webhook: Option<Webhook>,
}

/// A contract together with the JSON that is stored for it. The JSON is made once, when the registry is loaded.
#[derive(Clone, Debug)]
pub struct ContractSnapshot {
    pub contract: Arc<Contract>,
    pub json: Arc<str>,
}

impl ContractSnapshot {
    /// Writes the JSON of a contract.
    pub fn of(contract: Contract) -> Result<Self, serde_json::Error> {
        let json = serde_json::to_string(&contract)?.into();
        Ok(Self { contract: Arc::new(contract), json })
    }
}

/// The JSON of a stored contract, with the field names of the registry.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Snapshot {
    submission_target: String,
    gateway_type: GatewayType,
    gateway_url: String,
    policy: PolicyName,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_acceptance_seconds: Option<NonZeroU32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<NonZeroU32>,
    terminal_outcomes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    webhook: Option<Webhook>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PolicyName {
    Deadline,
    MaxAttempts,
    OneShot,
}

impl From<Contract> for Snapshot {
    fn from(contract: Contract) -> Self {
        let (policy, max_acceptance_seconds, max_attempts) = match contract.policy {
            Policy::Deadline { max_acceptance_seconds } => (PolicyName::Deadline, Some(max_acceptance_seconds), None),
            Policy::MaxAttempts { max_attempts } => (PolicyName::MaxAttempts, None, Some(max_attempts)),
            Policy::OneShot => (PolicyName::OneShot, None, None),
        };
        Self {
            submission_target: contract.target.to_string(),
            gateway_type: contract.gateway_type,
            gateway_url: contract.gateway_url.to_string(),
            policy,
            max_acceptance_seconds,
            max_attempts,
            terminal_outcomes: contract.terminal_outcomes.names().map(str::to_owned).collect(),
            webhook: contract.webhook,
        }
    }
}

impl TryFrom<Snapshot> for Contract {
    type Error = String;

    fn try_from(snapshot: Snapshot) -> Result<Self, String> {
        let policy = match (snapshot.policy, snapshot.max_acceptance_seconds, snapshot.max_attempts) {
            (PolicyName::Deadline, Some(max_acceptance_seconds), None) => Policy::Deadline { max_acceptance_seconds },
            (PolicyName::MaxAttempts, None, Some(max_attempts)) => Policy::MaxAttempts { max_attempts },
            (PolicyName::OneShot, None, None) => Policy::OneShot,
            _ => return Err("the policy and its limit do not fit together".to_owned()),
        };
        let reasons = snapshot.terminal_outcomes.iter().map(String::as_str);
        Ok(Self {
            target: TargetName::parse(&snapshot.submission_target).map_err(|error| error.to_string())?,
            gateway_type: snapshot.gateway_type,
            gateway_url: GatewayUrl::parse(&snapshot.gateway_url)?,
            policy,
            terminal_outcomes: TerminalOutcomes::new(snapshot.gateway_type, reasons)
                .ok_or("the terminal outcomes are empty or unknown to the gateway type")?,
            webhook: snapshot.webhook,
        })
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;
    use crate::domain::webhook::WebhookUrl;

    /// An `sms` contract named after its policy; `invalid_recipient` is its one terminal outcome.
    pub(crate) fn contract(policy: Policy) -> Contract {
        let target = match policy {
            Policy::Deadline { .. } => "sms.deadline",
            Policy::MaxAttempts { .. } => "sms.max_attempts",
            Policy::OneShot => "sms.one_shot",
        };
        Contract {
            target: TargetName::parse(target).unwrap(),
            gateway_type: GatewayType::Sms,
            gateway_url: GatewayUrl::parse("http://gateway.test").unwrap(),
            policy,
            terminal_outcomes: TerminalOutcomes::new(GatewayType::Sms, ["invalid_recipient"]).unwrap(),
            webhook: None,
        }
    }

    /// The contract with an unsigned webhook to `url`.
    pub(crate) fn with_webhook(url: &str, contract: Contract) -> Contract {
        let url = WebhookUrl::parse(url).unwrap();
        let (headers, headers_env) = Default::default();
        Contract { webhook: Some(Webhook { url, headers, headers_env, secret_env: None }), ..contract }
    }

    pub(crate) fn deadline(seconds: u32) -> Contract {
        contract(Policy::Deadline { max_acceptance_seconds: NonZeroU32::new(seconds).unwrap() })
    }

    pub(crate) fn max_attempts(limit: u32) -> Contract {
        contract(Policy::MaxAttempts { max_attempts: NonZeroU32::new(limit).unwrap() })
    }

    pub(crate) fn one_shot() -> Contract {
        contract(Policy::OneShot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_urls_are_http_or_https_and_lose_their_trailing_slashes() {
        for (raw, expected) in [
            ("http://localhost:8080", Some("http://localhost:8080")),
            ("https://gw.example/base//", Some("https://gw.example/base")),
            (" http://[::1]:1/ ", Some("http://[::1]:1")),
            ("ftp://x", None),
            ("http://", None),
            ("localhost:8080", None),
            ("http://user:pw@x", None),
            ("http://x/?a=1", None),
            ("", None),
        ] {
            assert_eq!(GatewayUrl::parse(raw).ok().as_ref().map(GatewayUrl::as_str), expected, "{raw}");
        }
    }

    #[test]
    fn snapshots_survive_a_round_trip_and_invalid_ones_are_rejected() {
        let full: Webhook =
            serde_json::from_str(r#"{"url":"https://x/y","headers":{"a":"b"},"headersEnv":{"c":"D"},"secretEnv":"S"}"#)
                .unwrap();
        for contract in [
            fixtures::deadline(30),
            fixtures::max_attempts(3),
            fixtures::one_shot(),
            fixtures::with_webhook("http://x", fixtures::one_shot()),
            Contract { webhook: Some(full), ..fixtures::one_shot() },
        ] {
            let json = serde_json::to_string(&contract).unwrap();
            assert_eq!(serde_json::from_str::<Contract>(&json).unwrap(), contract);
        }
        let before_webhooks = r#"{"submissionTarget":"t","gatewayType":"sms","gatewayUrl":"http://x","policy":"one_shot",
            "terminalOutcomes":["invalid_request"]}"#;
        assert_eq!(serde_json::from_str::<Contract>(before_webhooks).unwrap().webhook, None);
        let nonsense = r#"{"submissionTarget":"t","gatewayType":"sms","gatewayUrl":"http://x","policy":"max_attempts",
            "terminalOutcomes":["invalid_request"]}"#;
        assert!(serde_json::from_str::<Contract>(nonsense).is_err());
    }

    #[test]
    fn terminal_outcomes_must_be_known_to_the_gateway_type() {
        assert!(TerminalOutcomes::new(GatewayType::Sms, []).is_none());
        assert!(TerminalOutcomes::new(GatewayType::Sms, ["unregistered_token"]).is_none());
        assert!(TerminalOutcomes::new(GatewayType::Push, ["unregistered_token"]).is_some());
        for kind in [GatewayType::Sms, GatewayType::Push, GatewayType::Node] {
            assert!(TerminalOutcomes::new(kind, ["accepted"]).is_none());
        }
    }
}
