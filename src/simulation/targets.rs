//! The registries of a simulated fleet: two versions of the same targets with different contracts.

use std::sync::Arc;

use crate::config::registry::Registry;
use crate::config::variables::Variables;
use crate::domain::intent::TargetName;

/// A target, and its entry in both versions of the registry.
pub(super) struct Target {
    pub(super) name: &'static str,
    entries: [&'static str; 2],
}

/// All targets. They share three gateways and two webhook receivers.
pub(super) const TARGETS: [Target; 6] = [
    Target {
        name: "deadline.short",
        entries: [
            r#""gatewayUrl":"http://a.test","policy":"deadline","maxAcceptanceSeconds":6,"webhook":{"url":"http://one.test"}"#,
            r#""gatewayUrl":"http://a.test","policy":"deadline","maxAcceptanceSeconds":9,"webhook":{"url":"http://one.test"}"#,
        ],
    },
    Target {
        name: "deadline.long",
        entries: [
            r#""gatewayUrl":"http://b.test","policy":"deadline","maxAcceptanceSeconds":20"#,
            r#""gatewayUrl":"http://c.test","policy":"deadline","maxAcceptanceSeconds":20,"webhook":{"url":"http://two.test"}"#,
        ],
    },
    Target {
        name: "attempts.few",
        entries: [
            r#""gatewayUrl":"http://a.test","policy":"max_attempts","maxAttempts":3,"webhook":{"url":"http://two.test"}"#,
            r#""gatewayUrl":"http://a.test","policy":"one_shot","webhook":{"url":"http://two.test"}"#,
        ],
    },
    Target {
        name: "attempts.many",
        entries: [
            r#""gatewayUrl":"http://c.test","policy":"max_attempts","maxAttempts":5,"ratePerSecond":4,"maxInFlight":2"#,
            r#""gatewayUrl":"http://c.test","policy":"max_attempts","maxAttempts":5,"ratePerSecond":1"#,
        ],
    },
    Target {
        name: "once",
        entries: [
            r#""gatewayUrl":"http://b.test","policy":"one_shot","webhook":{"url":"http://one.test"}"#,
            r#""gatewayUrl":"http://b.test","policy":"max_attempts","maxAttempts":2,"attemptTimeoutSeconds":1"#,
        ],
    },
    Target {
        name: "once.limited",
        entries: [
            r#""gatewayUrl":"http://c.test","policy":"one_shot","maxInFlight":1"#,
            r#""gatewayUrl":"http://c.test","policy":"one_shot","maxInFlight":1"#,
        ],
    },
];

impl Target {
    pub(super) fn parsed_name(&self) -> TargetName {
        TargetName::parse(self.name).unwrap()
    }
}

thread_local! {
    static REGISTRIES: [Arc<Registry>; 2] = [0, 1].map(|version| Arc::new(parsed(version)));
}

/// Returns a version of the registry.
pub(super) fn registry(version: usize) -> Arc<Registry> {
    REGISTRIES.with(|registries| Arc::clone(&registries[version]))
}

fn parsed(version: usize) -> Registry {
    let entry = |target: &Target| {
        let (name, rest) = (target.name, target.entries[version]);
        format!(
            r#"{{"submissionTarget":"{name}","gatewayType":"sms","terminalOutcomes":["invalid_recipient"],{rest}}}"#
        )
    };
    let entries = TARGETS.iter().map(entry).collect::<Vec<_>>().join(",");
    let text = format!(r#"{{"allowUnsignedWebhooks":true,"targets":[{entries}]}}"#);
    let variables = Variables::from_fn(|_| None);
    let registry = Registry::parse(&text, &variables).and_then(|registry| registry.with_jobs(NODES, &api_clients()));
    registry.and_then(|registry| registry.with_inbox(INBOX_CLIENTS, &variables)).unwrap()
}

/// The node of all jobs. It shares a gateway with targets.
const NODES: &str = r#"{"nodes":[{"managementNodeId":"node-a","ownerTenantId":"acme","state":"active",
    "gatewayUrl":"http://a.test","policy":"max_attempts","maxAttempts":3,"terminalOutcomes":["invalid_request"],
    "queues":[{"queueName":"short","maxCpu":64,"maxMemoryMib":262144,"maxWalltimeSeconds":3600}]}]}"#;

/// A file with clients is required for jobs. The tenants of the simulation need no token; see [`super::jobs`].
fn api_clients() -> String {
    let token = "0".repeat(64);
    format!(
        r#"{{"clients":[{{"clientId":"nobody","tokenSha256":"{token}","scopes":["jobs:submit"],
            "tenants":[{{"tenantId":"acme","workspaceIds":["*"]}}]}}]}}"#
    )
}

const INBOX_CLIENTS: &str =
    r#"{"clients":[{"clientSlug":"acme","channels":["form"]},{"clientSlug":"globex","channels":["form"]}]}"#;
