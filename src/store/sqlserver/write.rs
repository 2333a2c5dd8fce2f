//! A batch of writes as one round trip: set-based statements over JSON, one transaction.
//!
//! If the server refuses a batch for what is in it, its items are done one by one, so that a bad
//! one fails alone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::BytesMut;
use serde_json::{Value as Json, json};
use tiberius::Row;

use super::contracts::{ContractRow, Contracts};
use super::database::{Batch, Database, ResultSets, Value};
use super::inbox;
use super::rows::{self, json_moment};
use super::statements::{self, Parts, json_text};
use crate::domain::contract::{Contract, GatewayType, Policy};
use crate::domain::intent::{Intent, IntentId, IntentSeq};
use crate::domain::lease::Term;
use crate::domain::policy;
use crate::domain::schedule::Waiting;
use crate::domain::time::Timestamp;
use crate::store::column_values::StateColumns;
use crate::store::{
    BatchResults, FencedError, FencedResults, FencedWrites, FinishAttempt, FinishResult, NewIntent, NewJob,
    PostponeAttempt, StartResult, StoreError, StoredIntent, Submitted, WriteBatch, minute_of,
};

pub async fn commit(database: &Database, contracts: &Contracts, batch: WriteBatch) -> Result<BatchResults, StoreError> {
    match try_commit(database, contracts, &batch).await {
        Err(StoreError::Unexpected(what)) => {
            log::warn!("batch_split store_error={what:?}");
            one_by_one(database, contracts, batch).await
        }
        result => result,
    }
}

/// Every item in a transaction of its own.
async fn one_by_one(database: &Database, contracts: &Contracts, batch: WriteBatch) -> Result<BatchResults, StoreError> {
    let mut submits = Vec::new();
    for new in batch.submits {
        let single = WriteBatch { submits: vec![new], ..WriteBatch::default() };
        submits.push(match try_commit(database, contracts, &single).await {
            Ok(receipt) => receipt.submits.into_iter().next().unwrap_or_else(|| Err(lost("submission"))),
            Err(error) => Err(error),
        });
    }
    let mut received = Vec::new();
    for new in batch.received {
        let single = WriteBatch { received: vec![new], ..WriteBatch::default() };
        received.push(match try_commit(database, contracts, &single).await {
            Ok(receipt) => receipt.received.into_iter().next().unwrap_or_else(|| Err(lost("submission"))),
            Err(error) => Err(error),
        });
    }
    let Some(writes) = batch.fenced else {
        return Ok(BatchResults { submits, received, started: Vec::new(), fenced: Ok(FencedResults::default()) });
    };
    let term = writes.term.clone();
    let none = || FencedWrites::new(&term);
    let alone = |fenced: FencedWrites| WriteBatch { fenced: Some(fenced), ..WriteBatch::default() };
    let mut all = FencedResults::default();
    for waiting in writes.starts {
        match try_commit(database, contracts, &alone(FencedWrites { starts: vec![waiting], ..none() })).await {
            Ok(BatchResults { fenced: Ok(done), .. }) => all.starts.extend(done.starts),
            Ok(BatchResults { fenced: Err(_), .. }) => {
                return Ok(BatchResults { submits, received, started: Vec::new(), fenced: Err(FencedError::TermOver) });
            }
            Err(error) => all.starts.push(Err(error)),
        }
    }
    for finish in writes.finishes {
        match try_commit(database, contracts, &alone(FencedWrites { finishes: vec![finish], ..none() })).await {
            Ok(BatchResults { fenced: Ok(done), .. }) => all.finishes.extend(done.finishes),
            Ok(BatchResults { fenced: Err(_), .. }) => {
                return Ok(BatchResults { submits, received, started: Vec::new(), fenced: Err(FencedError::TermOver) });
            }
            Err(error) => all.finishes.push(Err(error)),
        }
    }
    for postpone in writes.postpones {
        match try_commit(database, contracts, &alone(FencedWrites { postpones: vec![postpone], ..none() })).await {
            Ok(BatchResults { fenced: Ok(done), .. }) => all.postpones.extend(done.postpones),
            Ok(BatchResults { fenced: Err(_), .. }) => {
                return Ok(BatchResults { submits, received, started: Vec::new(), fenced: Err(FencedError::TermOver) });
            }
            Err(error) => all.postpones.push(Err(error)),
        }
    }
    if writes.expire.is_some() {
        match try_commit(database, contracts, &alone(FencedWrites { expire: writes.expire, ..none() })).await? {
            BatchResults { fenced: Ok(done), .. } => all.expired = done.expired,
            BatchResults { fenced: Err(_), .. } => {
                return Ok(BatchResults { submits, received, started: Vec::new(), fenced: Err(FencedError::TermOver) });
            }
        }
    }
    Ok(BatchResults { submits, received, started: Vec::new(), fenced: Ok(all) })
}

async fn try_commit(
    database: &Database,
    contracts: &Contracts,
    batch: &WriteBatch,
) -> Result<BatchResults, StoreError> {
    let fenced = batch.fenced.as_ref();
    let parts = Parts {
        fenced: fenced.is_some(),
        submits: !batch.submits.is_empty(),
        starts: fenced.is_some_and(|writes| !writes.starts.is_empty()),
        finishes: fenced.is_some_and(|writes| !writes.finishes.is_empty()),
        postpones: fenced.is_some_and(|writes| !writes.postpones.is_empty()),
        expire: fenced.is_some_and(|writes| writes.expire.is_some()),
        exhaust: false,
        received: !batch.received.is_empty(),
        jobs: batch.submits.iter().any(|new| new.job.is_some()),
        traces: batch.submits.iter().any(|new| new.trace.is_some()),
        nodes: fenced.is_some_and(|writes| writes.finishes.iter().any(|finish| is_of_node(finish))),
    };
    let mut values = term_values(fenced.map(|writes| &writes.term));
    if parts.submits {
        values.extend(submit_values(database, contracts, &batch.submits).await?);
    }
    if parts.received {
        values.extend(inbox::receive_values(&batch.received));
    }
    if let Some(writes) = fenced {
        if parts.starts {
            values.push(begin_value(&writes.starts));
        }
        if parts.finishes {
            values.push(finish_value(&writes.finishes));
        }
        if parts.postpones {
            values.push(postpone_value(&writes.postpones));
        }
        values.extend(writes.expire.map(|limit| Value::Number(i64::try_from(limit).unwrap_or(i64::MAX))));
    }
    let results = database.run(Batch { sql: statements::writes(parts).into(), values }).await?;
    let mut results = Results::new(results)?;
    let submits = if parts.submits {
        let rows = results.next()?;
        let jobs = if parts.jobs { results.next()? } else { Vec::new() };
        submitted(&batch.submits, &rows, &jobs, results.now)?
    } else {
        Vec::new()
    };
    let received = if parts.received { inbox::received(&batch.received, &results.next()?)? } else { Vec::new() };
    let Some(writes) = fenced else {
        return Ok(BatchResults { submits, received, started: Vec::new(), fenced: Ok(FencedResults::default()) });
    };
    if !results.held {
        return Ok(BatchResults { submits, received, started: Vec::new(), fenced: Err(FencedError::TermOver) });
    }
    let starts = if parts.starts {
        let rows = results.next()?;
        begun(database, contracts, &writes.term, &writes.starts, &rows, results.now).await?
    } else {
        Vec::new()
    };
    let finishes = if parts.finishes {
        finished(writes.finishes.iter().map(|finish| finish.attempt.seq), &results.next()?)?
    } else {
        Vec::new()
    };
    let postpones = if parts.postpones {
        finished(writes.postpones.iter().map(|postpone| postpone.seq), &results.next()?)?
    } else {
        Vec::new()
    };
    let expired = if parts.expire { intents(&results.next()?)? } else { Vec::new() };
    let fenced = Ok(FencedResults { starts, finishes, postpones, expired });
    Ok(BatchResults { submits, received, started: Vec::new(), fenced })
}

/// The result sets of a batch of writes, taken in order.
struct Results {
    now: Timestamp,
    held: bool,
    sets: std::vec::IntoIter<Vec<Row>>,
}

impl Results {
    fn new(results: ResultSets) -> Result<Self, StoreError> {
        let mut sets = results.into_iter();
        let first = sets.next().ok_or_else(|| lost("time"))?;
        let row = first.first().ok_or_else(|| lost("time"))?;
        Ok(Self { now: rows::need_moment(row, "now_at")?, held: rows::need::<i64>(row, "held")? == 1, sets })
    }

    fn next(&mut self) -> Result<Vec<Row>, StoreError> {
        self.sets.next().ok_or_else(|| lost("result"))
    }
}

fn lost(what: &str) -> StoreError {
    StoreError::Unavailable(format!("the server did not say the {what} of a batch"))
}

pub fn term_values(term: Option<&Term>) -> Vec<Value> {
    match term {
        Some(term) => vec![
            Value::Text(term.lease_name.to_string()),
            Value::Text(term.holder_id.to_string()),
            Value::Number(term.epoch),
        ],
        None => vec![Value::Text(String::new()), Value::Text(String::new()), Value::Number(0)],
    }
}

/// The intents as JSON, their payloads and their hashes, and the hashes of jobs' keys if there are jobs. Of
/// several with one id or key only the first is written; the others are compared with it afterwards.
async fn submit_values(
    database: &Database,
    contracts: &Contracts,
    submits: &[NewIntent],
) -> Result<Vec<Value>, StoreError> {
    let mut items = Vec::with_capacity(submits.len());
    let mut payloads = BytesMut::with_capacity(submits.iter().map(|new| new.payload.bytes().len()).sum());
    let mut hashes = BytesMut::with_capacity(submits.len() * 32);
    let mut keys = BytesMut::new();
    let (mut ids, mut job_keys) = (HashSet::new(), HashSet::new());
    let mut is_first =
        |new: &&NewIntent| ids.insert(new.id.clone()) && new.job.as_ref().is_none_or(|job| job_keys.insert(job.key));
    for new in submits.iter().filter(|new| is_first(new)) {
        let ContractRow { contract_id, gateway_id } = contracts.row(database, &new.contract).await?;
        let seconds = match new.contract.contract.policy {
            // DATEADD takes an INT: 68 years are as good as any more.
            Policy::Deadline { max_acceptance_seconds } => Some(max_acceptance_seconds.get().min(i32::MAX as u32)),
            Policy::MaxAttempts { .. } | Policy::OneShot => None,
        };
        items.push(json!({
            "id": json_text(new.id.as_str()), "contract": contract_id, "gateway": gateway_id, "seconds": seconds,
            "payload_from": payloads.len() + 1, "payload_length": new.payload.bytes().len(),
            "hash_from": hashes.len() + 1, "trace": new.trace.map(|trace| trace.to_string()),
        }));
        if let (Some(job), Some(item)) = (&new.job, items.last_mut().and_then(Json::as_object_mut)) {
            item.extend(job_fields(job, keys.len() + 1));
            keys.extend_from_slice(&job.key.0);
        }
        payloads.extend_from_slice(new.payload.bytes());
        hashes.extend_from_slice(new.payload.sha256());
    }
    let mut values = vec![
        Value::Text(Json::Array(items).to_string()),
        Value::Bytes(payloads.freeze()),
        Value::Bytes(hashes.freeze()),
    ];
    if !keys.is_empty() {
        values.push(Value::Bytes(keys.freeze()));
    }
    Ok(values)
}

/// What the item of an intent has besides, if it is a job.
fn job_fields(job: &NewJob, key_from: usize) -> serde_json::Map<String, Json> {
    let NewJob { id, facts, .. } = job;
    let fields = [
        ("key_from", Json::from(key_from)),
        ("submission", Json::from(id.to_string())),
        ("tenant", Json::from(json_text(&facts.tenant_id))),
        ("workspace", Json::from(json_text(&facts.workspace_id))),
        ("job", Json::from(json_text(&facts.job_id))),
        ("job_key", Json::from(json_text(&facts.idempotency_key))),
        ("node", Json::from(json_text(&facts.management_node_id))),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

fn is_of_node(finish: &FinishAttempt) -> bool {
    finish.attempt.contract.gateway_type == GatewayType::Node
}

fn submitted(
    submits: &[NewIntent],
    rows: &[Row],
    jobs: &[Row],
    now: Timestamp,
) -> Result<Vec<Result<Submitted, StoreError>>, StoreError> {
    let found: HashMap<IntentId, StoredIntent> = rows
        .iter()
        .map(|row| rows::found(row).map(|found| (found.intent.id.clone(), found)))
        .collect::<Result<_, _>>()?;
    let by_key: HashMap<Vec<u8>, Intent> = jobs
        .iter()
        .map(|row| Ok((rows::need::<&[u8]>(row, "key_sha256")?.to_vec(), rows::intent(row)?)))
        .collect::<Result<_, StoreError>>()?;
    let mut first = HashSet::new();
    let answers = submits.iter().map(|new| {
        if let Some(job) = &new.job {
            let intent = by_key.get(job.key.0.as_slice()).cloned().ok_or_else(|| lost("job"))?;
            let created = intent.id == new.id && intent.created_at == now;
            return Ok(if created { Submitted::Created(intent) } else { Submitted::Existing(intent) });
        }
        let found = found.get(&new.id).cloned().ok_or_else(|| lost("submission"))?;
        // No two transactions share a timestamp, so this one tells what was created here.
        if found.intent.created_at == now && first.insert(&new.id) {
            return Ok(Submitted::Created(found.intent));
        }
        Ok(found.resubmitted(&new.contract.contract.target, &new.payload))
    });
    Ok(answers.collect())
}

fn begin_value(starts: &[Waiting]) -> Value {
    let items = starts.iter().map(|waiting| json!({ "seq": waiting.seq.0, "attempts": waiting.attempt_count }));
    Value::Text(Json::Array(items.collect()).to_string())
}

async fn begun(
    database: &Database,
    contracts: &Contracts,
    term: &Term,
    starts: &[Waiting],
    rows: &[Row],
    now: Timestamp,
) -> Result<Vec<Result<StartResult, StoreError>>, StoreError> {
    let contract_ids = rows.iter().map(|row| rows::need(row, "contract_id")).collect::<Result<Vec<i64>, _>>()?;
    let known = contracts.by_id(database, contract_ids.into_iter()).await?;
    let by_seq: HashMap<IntentSeq, &Row> =
        rows.iter().map(|row| rows::seq(row).map(|seq| (seq, row))).collect::<Result<_, _>>()?;
    let mut answers: Vec<Result<StartResult, StoreError>> = starts
        .iter()
        .map(|waiting| match by_seq.get(&waiting.seq) {
            Some(row) => classify(waiting, row, &known, now),
            None => Ok(StartResult::Stale),
        })
        .collect();
    end_what_may_not_start(database, term, starts, &by_seq, &known, now, &mut answers).await?;
    Ok(answers)
}

/// What a row says about an intent that was to be begun at `now`.
fn classify(
    waiting: &Waiting,
    row: &Row,
    known: &HashMap<i64, Arc<Contract>>,
    now: Timestamp,
) -> Result<StartResult, StoreError> {
    if rows::moment(row, "open_started_at")? == Some(now) {
        let id: i64 = rows::need(row, "contract_id")?;
        let contract = known.get(&id).cloned();
        let contract = contract.ok_or_else(|| StoreError::Unexpected(format!("contract {id} cannot be read")))?;
        let payload = rows::bytes(row, "payload")?.unwrap_or_default();
        let attempt = rows::open_attempt(row, contract, rows::trace(row)?)?;
        return Ok(StartResult::Started { attempt, payload, due: waiting.due });
    }
    match rows::moment(row, "next_attempt_at")? {
        Some(due) if rows::attempts(row, "attempt_count")? == waiting.attempt_count && due > now => {
            Ok(StartResult::NotDue { due, now })
        }
        _ => Ok(StartResult::Stale),
    }
}

/// Intents that wait and are due, but were not begun: those that may not start by policy are ended, the others
/// are of paused targets.
async fn end_what_may_not_start(
    database: &Database,
    term: &Term,
    starts: &[Waiting],
    by_seq: &HashMap<IntentSeq, &Row>,
    known: &HashMap<i64, Arc<Contract>>,
    now: Timestamp,
    answers: &mut [Result<StartResult, StoreError>],
) -> Result<(), StoreError> {
    let mut items = Vec::new();
    for (waiting, answer) in starts.iter().zip(answers.iter_mut()) {
        let Some(row) = by_seq.get(&waiting.seq).filter(|_| matches!(answer, Ok(StartResult::Stale))) else { continue };
        let waits = rows::moment(row, "next_attempt_at")?.is_some();
        if !waits || rows::attempts(row, "attempt_count")? != waiting.attempt_count {
            continue;
        }
        let contract = known.get(&rows::need::<i64>(row, "contract_id")?);
        let created_at = rows::need_moment(row, "created_at")?;
        match contract.map(|contract| policy::may_start(contract, created_at, waiting.attempt_count, now)) {
            Some(Err(reason)) => items
                .push(json!({ "seq": waiting.seq.0, "attempts": waiting.attempt_count, "reason": reason.as_str() })),
            // Nothing else keeps one from beginning that waits, is due and may start.
            Some(Ok(())) => *answer = Ok(StartResult::Paused),
            None => {}
        }
    }
    if items.is_empty() {
        return Ok(());
    }
    let mut values = term_values(Some(term));
    values.push(Value::Text(Json::Array(items).to_string()));
    let sql = statements::writes(Parts { fenced: true, exhaust: true, ..Parts::default() });
    let mut results = Results::new(database.run(Batch { sql: sql.into(), values }).await?)?;
    let ended = intents(&results.next()?)?;
    for (waiting, answer) in starts.iter().zip(answers) {
        if let Some(intent) = ended.iter().find(|intent| intent.seq == waiting.seq) {
            *answer = Ok(StartResult::Ended(intent.clone()));
        }
    }
    Ok(())
}

fn finish_value(finishes: &[Arc<FinishAttempt>]) -> Value {
    let items = finishes.iter().map(|finish| {
        let FinishAttempt { attempt, finished_at, outcome, .. } = finish.as_ref();
        let state = StateColumns::from(finish.as_ref());
        json!({
            "seq": attempt.seq.0, "number": attempt.attempt_number, "epoch": attempt.lease_epoch,
            "started": json_moment(attempt.started_at), "finished": json_moment(*finished_at),
            "outcome": outcome.status(), "reason": outcome.reason().map(json_text), "error": outcome.error_text().map(json_text),
            "message_id": outcome.gateway_message_id().map(json_text),
            "found_by": outcome.searchable_message_id().filter(|_| !attempt.intent_id.is_reserved()).map(json_text), "status": state.status,
            "due": state.next_attempt_at.map(json_moment), "completed": state.completed_at.map(json_moment),
            "rejected": state.rejected_reason, "exhausted": state.exhausted_reason,
            "minute": minute_of(*finished_at), "kind": outcome.kind(), "cause": json_text(&outcome.cause()),
            "reached": outcome.contact().reached().filter(|_| is_of_node(finish)).map(i64::from),
            "took": u64::try_from(finished_at.since(attempt.started_at).as_micros()).unwrap_or(u64::MAX),
        })
    });
    Value::Text(Json::Array(items.collect()).to_string())
}

fn postpone_value(postpones: &[PostponeAttempt]) -> Value {
    let items = postpones.iter().map(|postpone| {
        json!({ "seq": postpone.seq.0, "number": postpone.attempt_number, "due": json_moment(postpone.due) })
    });
    Value::Text(Json::Array(items.collect()).to_string())
}

/// Which of these attempts were open and are not any more.
fn finished(
    attempts: impl Iterator<Item = IntentSeq>,
    rows: &[Row],
) -> Result<Vec<Result<FinishResult, StoreError>>, StoreError> {
    let recorded: HashSet<IntentSeq> = rows.iter().map(rows::seq).collect::<Result<_, _>>()?;
    let answer = |seq| if recorded.contains(&seq) { FinishResult::Recorded } else { FinishResult::NotOpen };
    Ok(attempts.map(|seq| Ok(answer(seq))).collect())
}

fn intents(rows: &[Row]) -> Result<Vec<Intent>, StoreError> {
    rows.iter().map(rows::intent).collect()
}
