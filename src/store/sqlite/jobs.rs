//! Jobs: what is stored of them besides their intents, trace contexts, and which nodes do not answer.

use bytes::Bytes;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params, params_from_iter};

use super::connection::{begin_transaction, read_now};
use super::read::{INTENT_COLUMNS, INTENT_WIDTH, intent_of, parsed};
use super::schedule::as_limit;
use crate::domain::contract::{GatewayType, GatewayUrl};
use crate::domain::intent::{Intent, IntentId, IntentSeq};
use crate::domain::job::{JobKey, SubmissionId};
use crate::domain::node::{FAILURES_UNTIL_GONE, PROBE_INTERVAL};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::platform::clock::WallClock;
use crate::store::{FinishAttempt, FoundJob, Job, JobFacts, JobLookup, JobPage, JobQuery, NewJob};

/// The columns that [`job_of`] reads after those of the intent, of `submission_jobs b` and `submission_traces t`.
pub(super) const JOB_COLUMNS: &str = "b.submission_id, b.tenant_id, b.workspace_id, b.job_id, b.idempotency_key, \
     b.management_node_id, t.traceparent";
const JOB_TABLES: &str = "submission_jobs b JOIN submission_intents i USING (intent_seq) \
     JOIN submission_contracts c USING (contract_id) LEFT JOIN submission_traces t USING (intent_seq)";

/// Finds the intent of the job with this key.
pub(super) fn by_key(transaction: &Transaction<'_>, key: &JobKey) -> Result<Option<Intent>, rusqlite::Error> {
    let sql = format!("SELECT {INTENT_COLUMNS} FROM {JOB_TABLES} WHERE b.key_sha256 = ?1");
    transaction.prepare_cached(&sql)?.query_row([key.0], intent_of).optional()
}

/// Stores the job of a new intent.
pub(super) fn insert(
    transaction: &Transaction<'_>,
    seq: IntentSeq,
    job: &NewJob,
    now: Timestamp,
) -> Result<(), rusqlite::Error> {
    let NewJob { id, key, facts } = job;
    transaction
        .prepare_cached(
            "INSERT INTO submission_jobs (intent_seq, key_sha256, submission_id, tenant_id, workspace_id, job_id,
                 idempotency_key, management_node_id, accepted_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            seq.0,
            key.0,
            id.to_string(),
            facts.tenant_id,
            facts.workspace_id,
            facts.job_id,
            facts.idempotency_key,
            facts.management_node_id,
            now.micros()
        ])
        .map(drop)
}

/// Stores the trace context of a submission.
pub(super) fn insert_trace(
    transaction: &Transaction<'_>,
    seq: IntentSeq,
    trace: TraceContext,
) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached("INSERT INTO submission_traces (intent_seq, traceparent) VALUES (?1, ?2)")?
        .execute(params![seq.0, trace.to_string()])
        .map(drop)
}

/// Reads a job with its payload.
pub(super) fn find(connection: &mut Connection, by: JobLookup) -> Result<Option<FoundJob>, rusqlite::Error> {
    let (condition, value) = match by {
        JobLookup::Key(key) => ("b.key_sha256 = ?1", Value::Blob(key.0.to_vec())),
        JobLookup::Id(id) => ("i.intent_id = ?1", Value::Text(IntentId::of_job(id).to_string())),
    };
    let sql = format!(
        "SELECT {INTENT_COLUMNS}, {JOB_COLUMNS}, p.payload FROM {JOB_TABLES} JOIN submission_payloads p USING (intent_seq)
         WHERE {condition}"
    );
    let found = |row: &Row<'_>| {
        Ok(FoundJob { job: job_of(row)?, payload: Bytes::from(row.get::<_, Vec<u8>>(INTENT_WIDTH + 7)?) })
    };
    connection.prepare_cached(&sql)?.query_row([value], found).optional()
}

pub(super) fn job_of(row: &Row<'_>) -> Result<Job, rusqlite::Error> {
    Ok(Job {
        intent: intent_of(row)?,
        id: parsed(row, INTENT_WIDTH, SubmissionId::parse)?,
        facts: JobFacts {
            tenant_id: row.get(INTENT_WIDTH + 1)?,
            workspace_id: row.get(INTENT_WIDTH + 2)?,
            job_id: row.get(INTENT_WIDTH + 3)?,
            idempotency_key: row.get(INTENT_WIDTH + 4)?,
            management_node_id: row.get(INTENT_WIDTH + 5)?,
        },
        trace: trace_of(row, INTENT_WIDTH + 6)?,
    })
}

/// Reads a trace context. One that cannot be parsed is ignored, because tracing is optional.
pub(super) fn trace_of(row: &Row<'_>, column: usize) -> Result<Option<TraceContext>, rusqlite::Error> {
    let text: Option<String> = row.get(column)?;
    Ok(text.as_deref().and_then(TraceContext::parse))
}

/// Lists jobs.
pub(super) fn list(connection: &mut Connection, query: &JobQuery) -> Result<JobPage, rusqlite::Error> {
    let mut conditions = Vec::new();
    let mut values = Vec::new();
    let mut condition = |sql: &'static str, parameters: Vec<Value>| {
        conditions.push(sql);
        values.extend(parameters);
    };
    if let Some(tenant) = &query.tenant {
        condition("b.tenant_id = ?", vec![Value::Text(tenant.clone())]);
    }
    if let Some(workspaces) = &query.workspaces {
        let names = serde_json::Value::from(workspaces.clone()).to_string();
        condition("b.workspace_id IN (SELECT value FROM json_each(?))", vec![Value::Text(names)]);
    }
    if let Some(job_id) = &query.job_id {
        condition("b.job_id = ?", vec![Value::Text(job_id.clone())]);
    }
    if let Some(status) = query.status {
        condition("i.status = ?", vec![Value::Text(status.as_str().to_owned())]);
    }
    if let Some(cursor) = &query.after {
        let cursor = vec![Value::Integer(cursor.accepted_at.micros()), Value::Text(cursor.id.to_string())];
        condition("(b.accepted_at, b.submission_id) < (?, ?)", cursor);
    }
    let limit = query.limit.max(1);
    values.push(Value::Integer(as_limit(limit.saturating_add(1))));
    let filter = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
    let index = match (&query.tenant, &query.job_id) {
        (Some(_), Some(_)) => "submission_jobs_by_job",
        (Some(_), None) => "submission_jobs_of_tenant",
        (None, _) => "submission_jobs_by_time",
    };
    let tables = JOB_TABLES.replacen("submission_jobs b", &format!("submission_jobs b INDEXED BY {index}"), 1);
    let sql = format!(
        "SELECT {INTENT_COLUMNS}, {JOB_COLUMNS} FROM {tables} {filter}
         ORDER BY b.accepted_at DESC, b.submission_id DESC LIMIT ?"
    );
    let jobs =
        connection.prepare_cached(&sql)?.query_map(params_from_iter(values), job_of)?.collect::<Result<_, _>>()?;
    Ok(JobPage::of(limit, jobs))
}

/// Counts attempts in a row that could not reach a node. `tried_at` is set by every failure until the node counts as gone;
/// after that only a probe sets it.
pub(super) fn count_reach(
    transaction: &Transaction<'_>,
    finish: &FinishAttempt,
    now: Timestamp,
) -> Result<(), rusqlite::Error> {
    let Some(reached) =
        finish.outcome.contact().reached().filter(|_| finish.attempt.contract.gateway_type == GatewayType::Node)
    else {
        return Ok(());
    };
    let seq = finish.attempt.seq.0;
    if reached {
        const ANSWERS: &str = "DELETE FROM submission_gateway_reach
            WHERE gateway_id = (SELECT gateway_id FROM submission_intents WHERE intent_seq = ?1)";
        transaction.prepare_cached(ANSWERS)?.execute([seq]).map(drop)
    } else {
        const IS_SILENT: &str = "INSERT INTO submission_gateway_reach (gateway_id, unreachable, tried_at)
            SELECT gateway_id, 1, ?2 FROM submission_intents WHERE intent_seq = ?1
            ON CONFLICT (gateway_id) DO UPDATE SET unreachable = unreachable + 1,
                tried_at = iif(unreachable + 1 <= ?3, ?2, tried_at)";
        transaction.prepare_cached(IS_SILENT)?.execute(params![seq, now.micros(), FAILURES_UNTIL_GONE]).map(drop)
    }
}

/// Whether a gateway answers, as far as is known.
pub(super) enum Reach {
    Answers,
    /// The gateway does not answer.
    Gone,
    /// The gateway does not answer, and it is time to try it again: [`take_probe`] decides who does.
    GoneForLong,
}

/// Returns whether a gateway answers.
pub(super) fn reach(
    connection: &Connection,
    clock: &WallClock,
    gateway: &GatewayUrl,
) -> Result<Reach, rusqlite::Error> {
    let Some(tried_at) = tried_at(connection, gateway)? else { return Ok(Reach::Answers) };
    let probe_is_due = read_now(connection, clock)?.since(tried_at) >= PROBE_INTERVAL;
    Ok(if probe_is_due { Reach::GoneForLong } else { Reach::Gone })
}

/// Returns whether the caller may try a gateway that does not answer. One caller may at each probe interval. All callers
/// may if the gateway has answered since [`reach`] was called.
pub(super) fn take_probe(
    connection: &mut Connection,
    clock: &WallClock,
    gateway: &GatewayUrl,
) -> Result<bool, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let interval = i64::try_from(PROBE_INTERVAL.as_micros()).unwrap_or(i64::MAX);
    let taken = transaction
        .prepare_cached(
            "UPDATE submission_gateway_reach SET tried_at = ?2
             WHERE gateway_id = (SELECT gateway_id FROM submission_gateways WHERE gateway_url = ?1)
                 AND unreachable >= ?4 AND tried_at <= ?3",
        )?
        .execute(params![gateway.as_str(), now.micros(), now.micros().saturating_sub(interval), FAILURES_UNTIL_GONE])?;
    let admitted = taken > 0 || tried_at(&transaction, gateway)?.is_none();
    transaction.commit()?;
    Ok(admitted)
}

/// Returns when a gateway that does not answer was last tried; `None` if the gateway answers.
fn tried_at(connection: &Connection, gateway: &GatewayUrl) -> Result<Option<Timestamp>, rusqlite::Error> {
    let tried_at = connection
        .prepare_cached(
            "SELECT tried_at FROM submission_gateway_reach JOIN submission_gateways USING (gateway_id)
             WHERE gateway_url = ?1 AND unreachable >= ?2",
        )?
        .query_row(params![gateway.as_str(), FAILURES_UNTIL_GONE], |row| row.get(0))
        .optional()?;
    Ok(tried_at.map(Timestamp::from_micros))
}
