//! A job: a tenant's request to execute something on a management node, and how repeated requests are recognized.
//!
//! The API checks the strings of a command before it creates a [`JobCommand`].

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::intent::IntentId;
use super::trace::TraceContext;
use super::uuid_id::uuid_id;

uuid_id! {
    /// The id that the service gives to a job: a random UUID, opaque to clients.
    SubmissionId
}

/// A request to execute a job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCommand {
    #[schema(min_length = 1, max_length = 200)]
    pub tenant_id: String,
    #[schema(min_length = 1, max_length = 200)]
    pub workspace_id: String,
    #[schema(min_length = 1, max_length = 200)]
    pub job_id: String,
    #[schema(min_length = 1, max_length = 200)]
    pub idempotency_key: String,
    #[schema(min_length = 1, max_length = 200)]
    pub management_node_id: String,
    pub execution_profile: ExecutionProfile,
    pub resource_shape: ResourceShape,
    pub payload_ref: PayloadRef,
    pub requested_by: RequestedBy,
}

/// The queue of the node, and optionally the class of service and the account.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecutionProfile {
    #[schema(min_length = 1, max_length = 200)]
    pub queue_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub qos: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub account: Option<String>,
}

/// The resources that the job requests.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResourceShape {
    #[schema(value_type = u32, minimum = 1)]
    pub cpu: NonZeroU32,
    #[schema(value_type = u32, minimum = 1)]
    pub memory_mib: NonZeroU32,
    #[schema(value_type = u32, minimum = 1)]
    pub walltime_seconds: NonZeroU32,
}

/// Where the node reads the input of the job and writes its artifacts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PayloadRef {
    /// A URI with the scheme `s3`, `gs` or `https`, without user name and password.
    #[schema(max_length = 8192, example = "s3://acme-jobs/1001/input.json")]
    pub input_uri: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub artifact_bucket: Option<String>,
}

/// The user who requested the job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequestedBy {
    #[schema(min_length = 1, max_length = 200)]
    pub user_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub session_id: Option<String>,
}

impl fmt::Debug for JobCommand {
    /// Writes names only, because the URI of the input may be signed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobCommand({:?} of {:?}/{:?})", self.job_id, self.tenant_id, self.workspace_id)
    }
}

/// Identifies a job: a hash of tenant, workspace and idempotency key, which every store can index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobKey(pub [u8; 32]);

impl JobCommand {
    /// The key by which a repeated request is recognized.
    pub fn key(&self) -> JobKey {
        // None of the three contains a line feed, so different triples never give the same text.
        JobKey(Sha256::digest([&*self.tenant_id, &*self.workspace_id, &*self.idempotency_key].join("\n")).into())
    }

    /// The payload that is sent to the node: the command with the id that the service gave to the job.
    pub fn forwarded(&self, id: SubmissionId) -> Result<Vec<u8>, serde_json::Error> {
        #[derive(Serialize)]
        struct Forwarded<'a> {
            submission_id: String,
            #[serde(flatten)]
            command: &'a JobCommand,
        }
        serde_json::to_vec(&Forwarded { submission_id: id.to_string(), command: self })
    }

    /// Reads the command back from the payload that [`Self::forwarded`] made.
    pub fn of_forwarded(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The fields in which another command with the same key differs. `session_id` may differ, because it is only
    /// informative.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let (profile, shape) = (&self.execution_profile, &self.resource_shape);
        let (profile2, shape2) = (&other.execution_profile, &other.resource_shape);
        let fields = [
            ("job_id", self.job_id == other.job_id),
            ("management_node_id", self.management_node_id == other.management_node_id),
            ("execution_profile.queue_name", profile.queue_name == profile2.queue_name),
            ("execution_profile.qos", profile.qos == profile2.qos),
            ("execution_profile.account", profile.account == profile2.account),
            ("resource_shape.cpu", shape.cpu == shape2.cpu),
            ("resource_shape.memory_mib", shape.memory_mib == shape2.memory_mib),
            ("resource_shape.walltime_seconds", shape.walltime_seconds == shape2.walltime_seconds),
            ("payload_ref.input_uri", self.payload_ref.input_uri == other.payload_ref.input_uri),
            ("payload_ref.artifact_bucket", self.payload_ref.artifact_bucket == other.payload_ref.artifact_bucket),
            ("requested_by.user_id", self.requested_by.user_id == other.requested_by.user_id),
        ];
        fields.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    pub(crate) fn submission_id(number: u8) -> SubmissionId {
        SubmissionId::from_random([number; 16])
    }

    pub(crate) fn command(tenant: &str, workspace: &str, key: &str) -> JobCommand {
        let number = |n| NonZeroU32::new(n).unwrap();
        JobCommand {
            tenant_id: tenant.to_owned(),
            workspace_id: workspace.to_owned(),
            job_id: format!("job-of-{key}"),
            idempotency_key: key.to_owned(),
            management_node_id: "node-a".to_owned(),
            execution_profile: ExecutionProfile { queue_name: "short".to_owned(), qos: None, account: None },
            resource_shape: ResourceShape { cpu: number(2), memory_mib: number(512), walltime_seconds: number(60) },
            payload_ref: PayloadRef { input_uri: "s3://bucket/input".to_owned(), artifact_bucket: None },
            requested_by: RequestedBy { user_id: "u".to_owned(), session_id: None },
        }
    }
}

/// The names of a job, for log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    pub tenant_id: String,
    pub workspace_id: String,
    pub job_id: String,
    pub idempotency_key: String,
    pub management_node_id: String,
}

impl JobFacts {
    /// Reads the names from the payload of an intent; `None` if the intent is not a job.
    pub fn of_payload(id: &IntentId, payload: &[u8]) -> Option<Self> {
        id.submission_id()?;
        JobCommand::of_forwarded(payload).map(|command| Self::from(&command))
    }

    /// The `key=value` pairs of every log line about a job. Values that are not known are empty.
    pub fn tags(&self, trace: Option<TraceContext>, id: Option<SubmissionId>) -> String {
        format!(
            "trace_id={} tenant_id={:?} workspace_id={:?} job_id={:?} submission_id={:?} management_node_id={:?} \
             idempotency_key={:?}",
            trace.map(|trace| trace.trace_id()).unwrap_or_default(),
            self.tenant_id,
            self.workspace_id,
            self.job_id,
            id.map(|id| id.to_string()).unwrap_or_default(),
            self.management_node_id,
            self.idempotency_key
        )
    }
}

impl From<&JobCommand> for JobFacts {
    fn from(command: &JobCommand) -> Self {
        Self {
            tenant_id: command.tenant_id.clone(),
            workspace_id: command.workspace_id.clone(),
            job_id: command.job_id.clone(),
            idempotency_key: command.idempotency_key.clone(),
            management_node_id: command.management_node_id.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{command, submission_id};
    use super::*;
    use crate::domain::intent::IntentId;

    #[test]
    fn the_intent_id_of_a_job_contains_its_submission_id_and_other_ids_contain_none() {
        let id = submission_id(7);
        let intent = IntentId::of_job(id);
        assert_eq!(IntentId::parse(intent.as_str()), Ok(intent.clone()));
        assert_eq!(intent.submission_id(), Some(id));
        for text in [
            "sm-job:1",
            "order",
            "sm-job:07070707-0707-1707-8707-070707070707",
            "sm-job:0707070707074707870707070707070a",
            "sm-job:0707070A-0707-4707-8707-070707070707",
            &id.to_string(),
        ] {
            assert_eq!(IntentId::parse(text).unwrap().submission_id(), None, "{text}");
        }
    }

    #[test]
    fn the_same_idempotency_key_in_another_workspace_is_another_job() {
        let key = |tenant, workspace, key| command(tenant, workspace, key).key();
        assert_eq!(key("a", "w", "k"), key("a", "w", "k"));
        for other in
            [key("b", "w", "k"), key("a", "v", "k"), key("a", "w", "l"), key("aw", "", "k"), key("a", "wk", "")]
        {
            assert_ne!(key("a", "w", "k"), other);
        }
    }

    #[test]
    fn a_forwarded_command_is_read_back_unchanged() {
        let mut full = command("acme", "w1", "k");
        full.execution_profile.qos = Some("normal".to_owned());
        full.requested_by.session_id = Some("s".to_owned());
        let bytes = full.forwarded(submission_id(1)).unwrap();
        assert!(bytes.starts_with(br#"{"submission_id":"01010101-0101-4101-8101-010101010101","tenant_id":"acme","#));
        let back = JobCommand::of_forwarded(&bytes).unwrap();
        assert!(back == full);
        full.requested_by.session_id = None;
        assert!(back.differences(&full).is_empty(), "a session may differ");
        full.execution_profile.qos = None;
        full.resource_shape.cpu = NonZeroU32::new(3).unwrap();
        assert_eq!(back.differences(&full), ["execution_profile.qos", "resource_shape.cpu"]);
    }
}
