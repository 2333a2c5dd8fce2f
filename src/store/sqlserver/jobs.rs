//! Jobs on SQL Server: what is stored of them besides their intents, trace contexts, and which nodes do not answer.

use serde_json::json;
use sha2::{Digest, Sha256};
use tiberius::Row;

use super::database::{Batch, Database};
use super::rows::{self, INTENT_COLUMNS};
use super::script::{Column, Values, json_text, plain_text};
use crate::domain::contract::GatewayUrl;
use crate::domain::intent::IntentId;
use crate::domain::job::SubmissionId;
use crate::domain::node::{FAILURES_UNTIL_GONE, PROBE_INTERVAL};
use crate::store::{FoundJob, Job, JobFacts, JobLookup, JobPage, JobQuery, StoreError};

/// The additional columns of the list of new intents, if some of them belong to jobs.
pub(super) fn input_columns(hashes: &str) -> [Column<'static>; 7] {
    [
        Column::hash("key_sha256", hashes),
        Column::code("submission_id", 36),
        Column::text("tenant_id", 400),
        Column::text("workspace_id", 400),
        Column::text("job_id", 400),
        Column::text("idempotency_key", 400),
        Column::text("management_node_id", 400),
    ]
}

/// An additional condition for inserting intents, if some of them belong to jobs.
pub(super) const UNLESS_KEY_EXISTS: &str = "
    AND NOT EXISTS (SELECT 1 FROM submission_jobs AS b WHERE b.key_sha256 = n.key_sha256)";

/// Inserts the jobs of intents that this transaction created. Each transaction has its own timestamp, which identifies
/// them.
pub(super) const INSERT_JOBS: &str = "
INSERT INTO submission_jobs (intent_seq, key_sha256, submission_id, tenant_id, workspace_id, job_id, idempotency_key,
    management_node_id, accepted_at)
SELECT i.intent_seq, n.key_sha256, n.submission_id, n.tenant_id, n.workspace_id, n.job_id, n.idempotency_key,
    n.management_node_id, @now
FROM @new AS n JOIN submission_intents AS i ON i.intent_id = n.intent_id
WHERE n.place BETWEEN @first AND @last AND n.key_sha256 IS NOT NULL AND i.created_at = @now;";

pub(super) const INSERT_TRACES: &str = "
INSERT INTO submission_traces (intent_seq, traceparent)
SELECT i.intent_seq, n.traceparent FROM @new AS n JOIN submission_intents AS i ON i.intent_id = n.intent_id
WHERE n.place BETWEEN @first AND @last AND n.traceparent IS NOT NULL AND i.created_at = @now;";

/// Returns the query for the intents that have the keys of the submitted jobs.
pub(super) fn submitted() -> String {
    format!(
        "
SELECT {INTENT_COLUMNS}, b.key_sha256
FROM @new AS n
JOIN submission_jobs AS b ON b.key_sha256 = n.key_sha256
JOIN submission_intents AS i ON i.intent_seq = b.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE n.place BETWEEN @first AND @last;"
    )
}

/// Statements that count, for each node, attempts in a row that could not reach it. If an attempt of the batch reached
/// the node, the count is deleted, whatever the order within the batch was. `tried_at` is set by every failure until
/// the node counts as unreachable; after that only a probe sets it.
pub(super) fn count_reach() -> String {
    const FAILED: &str = "SELECT i.gateway_id, COUNT_BIG(*) AS failures FROM @done AS d
    JOIN submission_intents AS i ON i.intent_seq = d.intent_seq
    WHERE d.reached IS NOT NULL AND i.last_modified_at = @now GROUP BY i.gateway_id HAVING MAX(d.reached) = 0";
    format!(
        "
DELETE FROM submission_gateway_reach WHERE gateway_id IN (
    SELECT i.gateway_id FROM @done AS d JOIN submission_intents AS i ON i.intent_seq = d.intent_seq
    WHERE d.reached = 1 AND i.last_modified_at = @now);
UPDATE r SET unreachable = r.unreachable + n.failures,
    tried_at = CASE WHEN r.unreachable < {FAILURES_UNTIL_GONE} THEN @now ELSE r.tried_at END
FROM submission_gateway_reach AS r JOIN ({FAILED}) AS n ON n.gateway_id = r.gateway_id;
INSERT INTO submission_gateway_reach (gateway_id, unreachable, tried_at)
SELECT n.gateway_id, n.failures, @now FROM ({FAILED}) AS n
WHERE NOT EXISTS (SELECT 1 FROM submission_gateway_reach AS r WHERE r.gateway_id = n.gateway_id);"
    )
}

/// Builds the query that returns whether a job may be sent to a node: the node is not known to be unreachable, or this
/// caller may probe it now.
pub(super) fn admits_batch(url_sha256: &[u8; 32]) -> Batch {
    let mut values = Values::default();
    let url = values.hash(url_sha256);
    let failures = values.number(FAILURES_UNTIL_GONE);
    let rest = values.number(-i64::try_from(PROBE_INTERVAL.as_secs()).unwrap_or(i64::MAX));
    values.batch(format!(
        "
DECLARE @taken BIGINT;
UPDATE r SET tried_at = SYSUTCDATETIME()
FROM submission_gateway_reach AS r JOIN submission_gateways AS g ON g.gateway_id = r.gateway_id
WHERE g.url_sha256 = {url} AND r.unreachable >= {failures} AND r.tried_at <= DATEADD(SECOND, {rest}, SYSUTCDATETIME());
SET @taken = @@ROWCOUNT;
SELECT CAST(CASE WHEN @taken > 0 OR NOT EXISTS (SELECT 1 FROM submission_gateway_reach AS r
    JOIN submission_gateways AS g ON g.gateway_id = r.gateway_id
    WHERE g.url_sha256 = {url} AND r.unreachable >= {failures}) THEN 1 ELSE 0 END AS BIGINT) AS admitted;"
    ))
}

/// The columns that [`job`] reads besides those of the intent, of `submission_jobs AS b` and `submission_traces AS t`.
pub(super) const JOB_COLUMNS: &str = "b.submission_id, b.tenant_id, b.workspace_id, b.job_id, b.idempotency_key, \
     b.management_node_id, t.traceparent";
const JOB_TABLES: &str = "submission_jobs AS b
JOIN submission_intents AS i ON i.intent_seq = b.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
LEFT JOIN submission_traces AS t ON t.intent_seq = b.intent_seq";

pub(super) fn find_batch(by: &JobLookup) -> Batch {
    let mut values = Values::default();
    let condition = match by {
        JobLookup::Key(key) => format!("b.key_sha256 = {}", values.hash(&key.0)),
        JobLookup::Id(id) => format!("i.intent_id = {}", values.text(IntentId::of_job(*id).to_string())),
    };
    values.batch(format!("SELECT {INTENT_COLUMNS}, {JOB_COLUMNS}, i.payload FROM {JOB_TABLES} WHERE {condition};"))
}

pub(super) async fn find(database: &Database, by: JobLookup) -> Result<Option<FoundJob>, StoreError> {
    let results = database.run(find_batch(&by)).await?;
    let Some(row) = results.iter().flatten().next() else { return Ok(None) };
    Ok(Some(FoundJob { job: job(row)?, payload: rows::bytes(row, "payload")?.unwrap_or_default() }))
}

pub(super) fn job(row: &Row) -> Result<Job, StoreError> {
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

/// Builds the query for a page of jobs, newest first.
pub(super) fn list_batch(query: &JobQuery) -> Batch {
    let mut values = Values::default();
    let limit = values.count(query.limit.max(1).saturating_add(1));
    let mut conditions = Vec::new();
    if let Some(tenant) = &query.tenant {
        conditions.push(format!("b.tenant_id = {}", values.text(tenant)));
    }
    if let Some(names) = &query.workspaces {
        let names = values.json(names.iter().map(|name| json!({ "name": json_text(name) })).collect());
        conditions.push(format!(
            "b.workspace_id IN (SELECT {} FROM OPENJSON({names}) WITH (name NVARCHAR(800)) AS j)",
            plain_text("j.name")
        ));
    }
    if let Some(job_id) = &query.job_id {
        conditions.push(format!("b.job_id = {}", values.text(job_id)));
    }
    if let Some(status) = query.status {
        conditions.push(format!("i.status = {}", values.code(status.as_str(), 10)));
    }
    if let Some(place) = &query.after {
        let (at, id) = (values.moment(place.accepted_at), values.code(place.id.to_string(), 36));
        conditions.push(format!("b.accepted_at <= {at} AND (b.accepted_at < {at} OR b.submission_id < {id})"));
    }
    let filter = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
    values.batch(format!(
        "SELECT TOP ({limit}) {INTENT_COLUMNS}, {JOB_COLUMNS} FROM {JOB_TABLES} {filter}
ORDER BY b.accepted_at DESC, b.submission_id DESC;"
    ))
}

pub(super) async fn list(database: &Database, query: &JobQuery) -> Result<JobPage, StoreError> {
    let results = database.run(list_batch(query)).await?;
    let jobs = results.iter().flatten().map(job).collect::<Result<_, _>>()?;
    Ok(JobPage::of(query.limit.max(1), jobs))
}

pub(super) async fn admits(database: &Database, gateway: &GatewayUrl) -> Result<bool, StoreError> {
    let results = database.run(admits_batch(&Sha256::digest(gateway.as_str()).into())).await?;
    let row = results.iter().flatten().next().ok_or_else(|| StoreError::unavailable("the server returned no rows"))?;
    Ok(rows::need::<i64>(row, "admitted")? == 1)
}
