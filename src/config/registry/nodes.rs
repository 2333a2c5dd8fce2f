//! Reads `management_nodes.json`: the nodes that jobs are sent to, the tenants that may use each, and the queues of each.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::contract::{attempt_timeout, gateway_url, policy, terminal_outcomes};
use crate::config::json_fields::{ErrorList, Fields, LocatedError};
use crate::domain::contract::{Contract, ContractSnapshot, GatewayType};
use crate::domain::intent::{TargetName, checked_name};
use crate::domain::node::{ManagementNode, NodeState, Queue};

type Nodes = HashMap<String, Arc<ManagementNode>>;

/// The target name of a node is this prefix and the node's id. No target in the registry may begin with it.
pub(super) const TARGET_PREFIX: &str = "node:";
/// With the prefix, an id of this length still fits into a target name.
const MAX_ID_CHARS: usize = 190;

/// Reads the text of the file.
pub(super) fn parse(text: &str) -> Result<Nodes, Vec<LocatedError>> {
    let document = super::document(text)?;
    let errors = ErrorList::default();
    let top = Fields::new(&document, "", &errors);
    let mut nodes = Nodes::new();
    let mut first_index = HashMap::new();
    for (index, fields) in top.objects("nodes", "list the management nodes there") {
        let id = unique_id(&fields, &mut first_index, index);
        if let Some(node) = node(&fields, id) {
            nodes.insert(node.id.clone(), Arc::new(node));
        }
        fields.reject_unknown_fields();
    }
    top.reject_unknown_fields();
    errors.into_result(nodes)
}

fn unique_id(fields: &Fields<'_>, first_index: &mut HashMap<String, usize>, index: usize) -> Option<String> {
    const NAME: &str = "managementNodeId";
    let id = name(fields, NAME, "name the node")?;
    if id.chars().count() > MAX_ID_CHARS {
        fields.error_at(NAME, format!("must have at most {MAX_ID_CHARS} characters"));
        return None;
    }
    if let Some(first) = first_index.insert(id.clone(), index) {
        fields.error_at(NAME, format!("{id:?} is already used by nodes[{first}]; ids must be unique"));
    }
    Some(id)
}

/// Reads a required string that follows the rules for names.
fn name(fields: &Fields<'_>, field: &'static str, hint: &str) -> Option<String> {
    let raw = fields.text(field, hint)?;
    let name = checked_name(raw).map_err(|error| fields.error_at(field, error.to_string())).ok()?;
    Some(name.to_string())
}

fn node(fields: &Fields<'_>, id: Option<String>) -> Option<ManagementNode> {
    let owner = name(fields, "ownerTenantId", "name the tenant that owns the node");
    let shared_with = fields.names("sharedWithTenantIds").into_iter().map(str::to_owned).collect();
    let state = state(fields);
    let gateway_url = gateway_url(fields);
    let policy = policy(fields);
    let terminal_outcomes = terminal_outcomes(fields, Some(GatewayType::Node));
    let queues = queues(fields);
    let attempt_timeout = attempt_timeout(fields);
    let id = id?;
    let contract = Contract {
        target: TargetName::parse(&format!("{TARGET_PREFIX}{id}")).ok()?,
        gateway_type: GatewayType::Node,
        gateway_url: gateway_url?,
        policy: policy?,
        terminal_outcomes: terminal_outcomes?,
        webhook: None,
    };
    let contract =
        ContractSnapshot::of(contract).map_err(|error| fields.error_at("managementNodeId", error.to_string())).ok()?;
    Some(ManagementNode {
        id,
        owner: owner?,
        shared_with,
        state: state?,
        contract: Arc::new(contract),
        queues,
        attempt_timeout,
    })
}

fn state(fields: &Fields<'_>) -> Option<NodeState> {
    match fields.text("state", "write active or draining")? {
        "active" => Some(NodeState::Active),
        "draining" => Some(NodeState::Draining),
        other => {
            fields.error_at("state", format!("must be active or draining, not {other:?}"));
            None
        }
    }
}

fn queues(fields: &Fields<'_>) -> Vec<Queue> {
    let mut queues: Vec<Queue> = Vec::new();
    for (_, fields) in fields.objects("queues", "list the queues that jobs may go to") {
        let queue = queue(&fields);
        fields.reject_unknown_fields();
        let Some(queue) = queue else { continue };
        if queues.iter().any(|known| known.name == queue.name) {
            fields.error_at("queueName", format!("duplicate value {:?}; names must be unique", queue.name));
        }
        queues.push(queue);
    }
    queues
}

fn queue(fields: &Fields<'_>) -> Option<Queue> {
    let queue_name = name(fields, "queueName", "name the queue");
    let set = |field| fields.names(field).into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let (accounts, qos) = (set("accounts"), set("qos"));
    let max_cpu = fields.positive("maxCpu", "write how many CPUs a job may request");
    let max_memory_mib = fields.positive("maxMemoryMib", "write how much memory a job may request, in MiB");
    let max_walltime_seconds =
        fields.positive("maxWalltimeSeconds", "write how much walltime a job may request, in seconds");
    Some(Queue {
        name: queue_name?,
        accounts,
        qos,
        max_cpu: max_cpu?,
        max_memory_mib: max_memory_mib?,
        max_walltime_seconds: max_walltime_seconds?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(change: impl FnOnce(&mut Value)) -> String {
        let mut entry = json!({
            "managementNodeId": "node-a", "ownerTenantId": "acme", "state": "active",
            "gatewayUrl": "http://localhost:8083", "policy": "max_attempts", "maxAttempts": 5,
            "terminalOutcomes": ["invalid_request"],
            "queues": [{ "queueName": "short", "maxCpu": 1, "maxMemoryMib": 1, "maxWalltimeSeconds": 1 }],
        });
        change(&mut entry);
        json!({ "nodes": [entry] }).to_string()
    }

    #[test]
    fn the_sample_and_the_schema_agree_with_the_code() {
        let sample = include_str!("../../../registry/management_nodes.json");
        let schema: Value =
            serde_json::from_str(include_str!("../../../registry/management_nodes.schema.json")).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let nodes = parse(sample).unwrap();
        assert!(validator.is_valid(&sample.parse().unwrap()));
        let node = &nodes["node-a"];
        assert_eq!(node.contract.contract.target.as_str(), "node:node-a");
        assert!(node.is_open_to("acme") && node.is_open_to("globex") && !node.is_open_to("initech"));
        for (name, text, fine) in [
            ("good", entry(|_| ()), true),
            ("draining", entry(|e| e["state"] = "draining".into()), true),
            ("shared", entry(|e| e["sharedWithTenantIds"] = json!(["globex"])), true),
            (
                "one shot",
                entry(|e| {
                    e["policy"] = "one_shot".into();
                    e.as_object_mut().unwrap().remove("maxAttempts");
                }),
                true,
            ),
            ("timeout", entry(|e| e["attemptTimeoutSeconds"] = 120.into()), true),
            ("timeout of zero", entry(|e| e["attemptTimeoutSeconds"] = 0.into()), false),
            ("timeout too long", entry(|e| e["attemptTimeoutSeconds"] = 121.into()), false),
            ("no owner", entry(|e| drop(e.as_object_mut().unwrap().remove("ownerTenantId"))), false),
            ("unknown state", entry(|e| e["state"] = "up".into()), false),
            ("no queues", entry(|e| e["queues"] = json!([])), false),
            ("no limit", entry(|e| drop(e["queues"][0].as_object_mut().unwrap().remove("maxCpu"))), false),
            ("zero", entry(|e| e["queues"][0]["maxCpu"] = 0.into()), false),
            ("reason of sms", entry(|e| e["terminalOutcomes"] = json!(["invalid_recipient"])), false),
            ("unknown field", entry(|e| e["colour"] = 1.into()), false),
            ("webhook", entry(|e| e["webhook"] = json!({ "url": "https://x" })), false),
            ("empty", json!({ "nodes": [] }).to_string(), false),
        ] {
            assert_eq!(parse(&text).is_ok(), fine, "{name}: code {:?}", parse(&text).err());
            assert_eq!(validator.is_valid(&text.parse().unwrap()), fine, "{name}: schema");
        }
        for reason in GatewayType::Node.known_reasons() {
            let text = entry(|e| e["terminalOutcomes"] = json!([reason]));
            assert!(parse(&text).is_ok() && validator.is_valid(&text.parse().unwrap()), "{reason}");
        }
    }

    #[test]
    fn all_errors_are_reported_at_once_with_their_locations() {
        let text = json!({ "version": 1, "nodes": [
            { "managementNodeId": "a", "ownerTenantId": " ", "sharedWithTenantIds": ["x", "x", 7], "state": "up",
              "gatewayUrl": "ftp://x", "policy": "one_shot", "terminalOutcomes": ["invalid_recipient"],
              "queues": [{ "queueName": "q", "accounts": "all", "maxCpu": 0, "maxMemoryMib": 1, "maxWalltimeSeconds": 1 },
                         { "queueName": "q", "maxCpu": 1, "maxMemoryMib": 1, "maxWalltimeSeconds": 1, "gpu": 1 },
                         { "queueName": "q", "maxCpu": 1, "maxMemoryMib": 1, "maxWalltimeSeconds": 1 }] },
            { "managementNodeId": "a" },
        ]});
        let errors: Vec<String> = parse(&text.to_string()).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "nodes[0].ownerTenantId: must not be empty",
                "nodes[0].sharedWithTenantIds[1]: duplicate value \"x\"",
                "nodes[0].sharedWithTenantIds[2]: must be a string, not a number",
                "nodes[0].state: must be active or draining, not \"up\"",
                "nodes[0].gatewayUrl: must be an http or https URL with a host; this value has scheme \"ftp\"",
                "nodes[0].terminalOutcomes[0]: \"invalid_recipient\" is not a rejection reason of gateway type node; known reasons are \
                 invalid_request, duplicate_reference, queue_unavailable, quota_exceeded, node_failure",
                "nodes[0].queues[0].accounts: must be a list, not a string",
                "nodes[0].queues[0].maxCpu: must be a whole number from 1 to 4294967295, not 0",
                "nodes[0].queues[1].gpu: unknown field; known fields are queueName, accounts, qos, maxCpu, maxMemoryMib, \
                 maxWalltimeSeconds",
                "nodes[0].queues[2].queueName: duplicate value \"q\"; names must be unique",
                "nodes[1].managementNodeId: \"a\" is already used by nodes[0]; ids must be unique",
                "nodes[1].ownerTenantId: is missing; name the tenant that owns the node",
                "nodes[1].state: is missing; write active or draining",
                "nodes[1].gatewayUrl: is missing; write the gateway's base URL",
                "nodes[1].policy: is missing; write deadline, max_attempts or one_shot",
                "nodes[1].terminalOutcomes: is missing; list the rejection reasons that end an intent",
                "nodes[1].queues: is missing; list the queues that jobs may go to",
                "version: unknown field; known fields are nodes",
            ]
        );
    }
}
