//! Jobs: what they are besides intents, the traces of submissions, and which nodes are gone.

use bytes::Bytes;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tiberius::Row;

use super::database::{Batch, Database, Value};
use super::rows::{self, INTENT_COLUMNS, json_moment};
use super::statements::{json_text, numbered, text};
use crate::domain::contract::GatewayUrl;
use crate::domain::intent::IntentId;
use crate::domain::job::SubmissionId;
use crate::domain::node::{FAILURES_UNTIL_GONE, REST_BEFORE_PROBE};
use crate::store::{FoundJob, Job, JobFacts, JobLookup, JobPage, JobQuery, StoreError};

/// Ends the condition of inserted intents, if some are jobs.
pub const UNLESS_KEY_EXISTS: &str = "
    AND NOT EXISTS (SELECT 1 FROM submission_jobs AS b WHERE b.key_sha256 = SUBSTRING(@value3, j.key_from, 32))";

/// No two transactions share a timestamp, so it tells which intents this one created.
pub const INSERT_JOBS: &str = concat!(
    "
INSERT INTO submission_jobs (intent_seq, key_sha256, submission_id, tenant_id, workspace_id, job_id, idempotency_key,
    management_node_id, accepted_at)
SELECT i.intent_seq, SUBSTRING(@value3, j.key_from, 32), j.submission, ",
    text!("j.tenant"),
    ", ",
    text!("j.workspace"),
    ", ",
    text!("j.job"),
    ", ",
    text!("j.job_key"),
    ", ",
    text!("j.node"),
    ", @now
FROM OPENJSON(@value0) WITH (id NVARCHAR(400), key_from BIGINT, submission VARCHAR(36), tenant NVARCHAR(400),
    workspace NVARCHAR(400), job NVARCHAR(400), job_key NVARCHAR(400), node NVARCHAR(400)) AS j
JOIN submission_intents AS i ON i.intent_id = ",
    text!("j.id"),
    "
WHERE j.key_from IS NOT NULL AND i.created_at = @now;"
);

pub const INSERT_TRACES: &str = concat!(
    "
INSERT INTO submission_traces (intent_seq, traceparent)
SELECT i.intent_seq, j.trace FROM OPENJSON(@value0) WITH (id NVARCHAR(400), trace VARCHAR(60)) AS j
JOIN submission_intents AS i ON i.intent_id = ",
    text!("j.id"),
    "
WHERE j.trace IS NOT NULL AND i.created_at = @now;"
);

/// The intents that have the keys of the submitted jobs.
pub fn submitted() -> String {
    format!(
        "
SELECT {INTENT_COLUMNS}, b.key_sha256
FROM OPENJSON(@value0) WITH (key_from BIGINT) AS j
JOIN submission_jobs AS b ON b.key_sha256 = SUBSTRING(@value3, j.key_from, 32)
JOIN submission_intents AS i ON i.intent_seq = b.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id;"
    )
}

/// Counts the attempts that could not reach nodes, until one does; which came first in a batch is not looked at.
/// How long a node has been gone counts from when that is said of it, whatever is tried meanwhile.
pub fn count_reach() -> String {
    COUNT_REACH.replace("{FAILURES}", &FAILURES_UNTIL_GONE.to_string())
}

const COUNT_REACH: &str = "
DELETE FROM submission_gateway_reach WHERE @held = 1 AND gateway_id IN (
    SELECT i.gateway_id FROM OPENJSON(@value0) WITH (seq BIGINT, reached BIGINT) AS j
    JOIN submission_intents AS i ON i.intent_seq = j.seq WHERE j.reached = 1 AND i.last_modified_at = @now);
UPDATE r SET unreachable = r.unreachable + n.failures,
    tried_at = CASE WHEN r.unreachable < {FAILURES} THEN @now ELSE r.tried_at END
FROM submission_gateway_reach AS r JOIN (
    SELECT i.gateway_id, COUNT_BIG(*) AS failures FROM OPENJSON(@value0) WITH (seq BIGINT, reached BIGINT) AS j
    JOIN submission_intents AS i ON i.intent_seq = j.seq WHERE j.reached IS NOT NULL AND i.last_modified_at = @now
    GROUP BY i.gateway_id HAVING MAX(j.reached) = 0) AS n ON n.gateway_id = r.gateway_id
WHERE @held = 1;
INSERT INTO submission_gateway_reach (gateway_id, unreachable, tried_at)
SELECT n.gateway_id, n.failures, @now FROM (
    SELECT i.gateway_id, COUNT_BIG(*) AS failures FROM OPENJSON(@value0) WITH (seq BIGINT, reached BIGINT) AS j
    JOIN submission_intents AS i ON i.intent_seq = j.seq WHERE j.reached IS NOT NULL AND i.last_modified_at = @now
    GROUP BY i.gateway_id HAVING MAX(j.reached) = 0) AS n
WHERE @held = 1 AND NOT EXISTS (SELECT 1 FROM submission_gateway_reach AS r WHERE r.gateway_id = n.gateway_id);";

/// Whether a node answers, as far as is known, or may be tried now. Values: the hash of its URL, the
/// failures until it counts as gone, and how many seconds it is then left alone, as a negative number.
pub const ADMITS: &str = "
DECLARE @taken BIGINT;
UPDATE r SET tried_at = SYSUTCDATETIME()
FROM submission_gateway_reach AS r JOIN submission_gateways AS g ON g.gateway_id = r.gateway_id
WHERE g.url_sha256 = @P1 AND r.unreachable >= @P2 AND r.tried_at <= DATEADD(SECOND, @P3, SYSUTCDATETIME());
SET @taken = @@ROWCOUNT;
SELECT CAST(CASE WHEN @taken > 0 OR NOT EXISTS (SELECT 1 FROM submission_gateway_reach AS r
    JOIN submission_gateways AS g ON g.gateway_id = r.gateway_id
    WHERE g.url_sha256 = @P1 AND r.unreachable >= @P2) THEN 1 ELSE 0 END AS BIGINT) AS admitted;";

const JOB_COLUMNS: &str = "b.submission_id, b.tenant_id, b.workspace_id, b.job_id, b.idempotency_key, \
     b.management_node_id, t.traceparent";
const JOB_TABLES: &str = "submission_jobs AS b
JOIN submission_intents AS i ON i.intent_seq = b.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
LEFT JOIN submission_traces AS t ON t.intent_seq = b.intent_seq";

fn find_by(condition: &str) -> String {
    format!("SELECT {INTENT_COLUMNS}, {JOB_COLUMNS}, i.payload FROM {JOB_TABLES} WHERE {condition} = @P1;")
}

pub fn find_by_key() -> String {
    find_by("b.key_sha256")
}

pub fn find_by_id() -> String {
    find_by("i.intent_id")
}

pub async fn find(database: &Database, by: JobLookup) -> Result<Option<FoundJob>, StoreError> {
    let (sql, value) = match by {
        JobLookup::Key(key) => (find_by_key(), Value::Bytes(Bytes::copy_from_slice(&key.0))),
        JobLookup::Id(id) => (find_by_id(), Value::Text(IntentId::of_job(id).to_string())),
    };
    let results = database.run(Batch { sql: sql.into(), values: vec![value] }).await?;
    let Some(row) = results.iter().flatten().next() else { return Ok(None) };
    Ok(Some(FoundJob { job: job(row)?, payload: rows::bytes(row, "payload")?.unwrap_or_default() }))
}

fn job(row: &Row) -> Result<Job, StoreError> {
    let text = |column| rows::need::<&str>(row, column).map(str::to_owned);
    Ok(Job {
        intent: rows::intent(row)?,
        id: rows::parsed(row, "submission_id", SubmissionId::parse)?,
        facts: JobFacts {
            tenant_id: text("tenant_id")?,
            workspace_id: text("workspace_id")?,
            job_id: text("job_id")?,
            idempotency_key: text("idempotency_key")?,
            management_node_id: text("management_node_id")?,
        },
        trace: rows::trace(row)?,
    })
}

/// Which filters a list has.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListParts {
    pub tenant: bool,
    pub workspaces: bool,
    pub job_id: bool,
    pub status: bool,
    pub behind: bool,
}

/// A page of jobs, newest first. The first value is the limit, then those of the filters.
pub fn list_statement(parts: ListParts) -> String {
    const WORKSPACES: &str = concat!(
        "b.workspace_id IN (SELECT ",
        text!("j.name"),
        " FROM OPENJSON(@value0) WITH (name NVARCHAR(400)) AS j)"
    );
    let conditions = numbered([
        (parts.tenant, "b.tenant_id = @value0"),
        (parts.workspaces, WORKSPACES),
        (parts.job_id, "b.job_id = @value0"),
        (parts.status, "i.status = @value0"),
        (parts.behind, "b.accepted_at <= @value0 AND (b.accepted_at < @value0 OR b.submission_id < @value1)"),
    ]);
    let filter = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
    format!(
        "SELECT TOP (@P1) {INTENT_COLUMNS}, {JOB_COLUMNS} FROM {JOB_TABLES} {filter}
ORDER BY b.accepted_at DESC, b.submission_id DESC;"
    )
}

pub async fn list(database: &Database, query: &JobQuery) -> Result<JobPage, StoreError> {
    let limit = query.limit.max(1);
    let mut values = vec![Value::Number(i64::try_from(limit + 1).unwrap_or(i64::MAX))];
    values.extend(query.tenant.clone().map(Value::Text));
    values.extend(query.workspaces.as_ref().map(|names| {
        let names = names.iter().map(|name| json!({ "name": json_text(name) })).collect();
        Value::Text(Json::Array(names).to_string())
    }));
    values.extend(query.job_id.clone().map(Value::Text));
    values.extend(query.status.map(|status| Value::Text(status.as_str().to_owned())));
    if let Some(place) = &query.after {
        values.extend([Value::Text(json_moment(place.accepted_at)), Value::Text(place.id.to_string())]);
    }
    let parts = ListParts {
        tenant: query.tenant.is_some(),
        workspaces: query.workspaces.is_some(),
        job_id: query.job_id.is_some(),
        status: query.status.is_some(),
        behind: query.after.is_some(),
    };
    let results = database.run(Batch { sql: list_statement(parts).into(), values }).await?;
    let jobs = results.iter().flatten().map(job).collect::<Result<_, _>>()?;
    Ok(JobPage::of(limit, jobs))
}

pub async fn admits(database: &Database, gateway: &GatewayUrl) -> Result<bool, StoreError> {
    let rest = i64::try_from(REST_BEFORE_PROBE.as_secs()).unwrap_or(i64::MAX);
    let values = vec![
        Value::Bytes(Bytes::copy_from_slice(&Sha256::digest(gateway.as_str()))),
        Value::Number(FAILURES_UNTIL_GONE),
        Value::Number(-rest),
    ];
    let results = database.run(Batch { sql: ADMITS.into(), values }).await?;
    let row = results.iter().flatten().next().ok_or_else(|| StoreError::Unavailable("no answer".to_owned()))?;
    Ok(rows::need::<i64>(row, "admitted")? == 1)
}
