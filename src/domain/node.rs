//! A management node: the tenants that may use it, the rules for its jobs, and when it counts as unreachable.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::contract::ContractSnapshot;
use super::job::JobCommand;
use super::limits::AttemptTimeout;

/// After this many connection failures in a row a node counts as unreachable, and new jobs for it are rejected.
pub const FAILURES_UNTIL_GONE: i64 = 5;
/// While a node is unreachable, one new job is accepted for it at this interval, to find out whether the node is back.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A management node as the registry defines it.
#[derive(Clone, Debug)]
pub struct ManagementNode {
    pub id: String,
    /// The tenant that owns the node.
    pub owner: String,
    /// Other tenants that may use the node.
    pub shared_with: BTreeSet<String>,
    pub state: NodeState,
    pub contract: Arc<ContractSnapshot>,
    pub queues: Vec<Queue>,
    /// The timeout of attempts, if the node has one of its own.
    pub attempt_timeout: Option<AttemptTimeout>,
}

/// Whether a node accepts new jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    Active,
    /// The node accepts no new jobs, and finishes those that it has.
    Draining,
}

/// A queue of a node, with the accounts and classes of service that jobs may name and the most that a job may request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    pub name: String,
    pub accounts: BTreeSet<String>,
    pub qos: BTreeSet<String>,
    pub max_cpu: NonZeroU32,
    pub max_memory_mib: NonZeroU32,
    pub max_walltime_seconds: NonZeroU32,
}

/// A rule of a node that a command violates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    pub field: &'static str,
    pub rule: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.rule)
    }
}

impl ManagementNode {
    /// Whether the tenant owns the node or the node is shared with it.
    pub fn is_open_to(&self, tenant: &str) -> bool {
        self.owner == tenant || self.shared_with.contains(tenant)
    }

    /// Every rule that a command violates.
    pub fn breaches(&self, command: &JobCommand) -> Vec<Breach> {
        let profile = &command.execution_profile;
        let Some(queue) = self.queues.iter().find(|queue| queue.name == profile.queue_name) else {
            let names: Vec<_> = self.queues.iter().map(|queue| queue.name.as_str()).collect();
            let rule = format!("must be one of {}", names.join(", "));
            return vec![Breach { field: "execution_profile.queue_name", rule }];
        };
        let shape = &command.resource_shape;
        [
            check_name("execution_profile.account", profile.account.as_deref(), &queue.accounts, &queue.name),
            check_name("execution_profile.qos", profile.qos.as_deref(), &queue.qos, &queue.name),
            check_maximum("resource_shape.cpu", shape.cpu, queue.max_cpu, &queue.name),
            check_maximum("resource_shape.memory_mib", shape.memory_mib, queue.max_memory_mib, &queue.name),
            check_maximum(
                "resource_shape.walltime_seconds",
                shape.walltime_seconds,
                queue.max_walltime_seconds,
                &queue.name,
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn check_name(field: &'static str, name: Option<&str>, allowed: &BTreeSet<String>, queue: &str) -> Option<Breach> {
    let name = name?;
    if allowed.contains(name) {
        return None;
    }
    let rule = if allowed.is_empty() {
        format!("must be left out in queue {queue:?}")
    } else {
        let names: Vec<_> = allowed.iter().map(String::as_str).collect();
        format!("must be one of {} in queue {queue:?}", names.join(", "))
    };
    Some(Breach { field, rule })
}

fn check_maximum(field: &'static str, requested: NonZeroU32, most: NonZeroU32, queue: &str) -> Option<Breach> {
    (requested > most).then(|| Breach { field, rule: format!("must be at most {most} in queue {queue:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::contract::fixtures::one_shot;
    use crate::domain::job::fixtures::command;

    fn node() -> ManagementNode {
        let number = |n| NonZeroU32::new(n).unwrap();
        let queue = |name: &str, accounts: &[&str]| Queue {
            name: name.to_owned(),
            accounts: accounts.iter().map(|name| (*name).to_owned()).collect(),
            qos: BTreeSet::new(),
            max_cpu: number(4),
            max_memory_mib: number(1024),
            max_walltime_seconds: number(3600),
        };
        ManagementNode {
            id: "node-a".to_owned(),
            owner: "acme".to_owned(),
            shared_with: ["globex".to_owned()].into(),
            state: NodeState::Active,
            contract: Arc::new(ContractSnapshot::of(one_shot()).unwrap()),
            attempt_timeout: None,
            queues: vec![queue("short", &["research"]), queue("long", &[])],
        }
    }

    #[test]
    fn a_node_is_open_to_its_owner_and_those_it_is_shared_with() {
        for (tenant, open) in [("acme", true), ("globex", true), ("initech", false), ("ACME", false), ("", false)] {
            assert_eq!(node().is_open_to(tenant), open, "{tenant}");
        }
    }

    #[test]
    fn every_violated_rule_is_reported() {
        let breaches = |change: fn(&mut JobCommand)| {
            let mut command = command("acme", "w1", "k");
            change(&mut command);
            node().breaches(&command).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(breaches(|_| ()).is_empty());
        assert!(breaches(|c| c.execution_profile.account = Some("research".to_owned())).is_empty());
        assert_eq!(
            breaches(|c| c.execution_profile.queue_name = "night".to_owned()),
            ["execution_profile.queue_name must be one of short, long"]
        );
        assert_eq!(
            breaches(|c| {
                c.execution_profile.account = Some("secret".to_owned());
                c.execution_profile.qos = Some("high".to_owned());
                c.resource_shape.cpu = NonZeroU32::new(5).unwrap();
                c.resource_shape.memory_mib = NonZeroU32::new(1025).unwrap();
                c.resource_shape.walltime_seconds = NonZeroU32::new(3601).unwrap();
            }),
            [
                "execution_profile.account must be one of research in queue \"short\"",
                "execution_profile.qos must be left out in queue \"short\"",
                "resource_shape.cpu must be at most 4 in queue \"short\"",
                "resource_shape.memory_mib must be at most 1024 in queue \"short\"",
                "resource_shape.walltime_seconds must be at most 3600 in queue \"short\"",
            ]
        );
    }
}
