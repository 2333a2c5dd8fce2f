//! Converts columns of rows to domain types, by name. An error names the column and the invalid value.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tiberius::{FromSql, Row};
use time::PrimitiveDateTime;

use crate::domain::contract::Contract;
use crate::domain::intent::{Intent, IntentId, IntentSeq, TargetName};
use crate::domain::schedule::{GatewayId, Lane, LaneId, Waiting};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;
use crate::platform::errors::Described;
use crate::store::{Attempt, OpenAttempt, StoreError, StoredIntent, column_values};

/// The columns that [`intent`] reads, of `submission_intents AS i` and `submission_contracts AS c`.
pub(super) const INTENT_COLUMNS: &str = "i.intent_seq, i.intent_id, c.submission_target, i.created_at, i.status, \
     i.completed_at, i.rejected_reason, i.exhausted_reason, i.attempt_count, i.open_lease_epoch, \
     (SELECT o.not_before FROM submission_intent_options AS o WHERE o.intent_seq = i.intent_seq) AS not_before, \
     (SELECT o.redrive_of FROM submission_intent_options AS o WHERE o.intent_seq = i.intent_seq) AS redrive_of";
/// Adds to [`INTENT_COLUMNS`] or their like what [`open_attempt`] reads besides.
pub(super) const GATEWAY_KEY: &str =
    "(SELECT o.gateway_key FROM submission_intent_options AS o WHERE o.intent_seq = i.intent_seq) AS gateway_key";
/// What the contract of an intent counts from is the later of `created_at` and this.
pub(super) const NOT_BEFORE: &str =
    "(SELECT o.not_before FROM submission_intent_options AS o WHERE o.intent_seq = i.intent_seq) AS not_before";

pub(super) fn get<'r, T: FromSql<'r>>(row: &'r Row, column: &'static str) -> Result<Option<T>, StoreError> {
    row.try_get(column).map_err(|error| StoreError::unexpected(Described::new(format!("column {column}"), error)))
}

pub(super) fn need<'r, T: FromSql<'r>>(row: &'r Row, column: &'static str) -> Result<T, StoreError> {
    get(row, column)?.ok_or_else(|| nonsense(column, "NULL"))
}

fn nonsense(column: &'static str, value: &str) -> StoreError {
    StoreError::unexpected(format!("column {column} holds {value:?}"))
}

pub(super) fn moment(row: &Row, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
    let Some(value) = get::<PrimitiveDateTime>(row, column)? else { return Ok(None) };
    let micros = value.assume_utc().unix_timestamp_nanos().div_euclid(1000);
    i64::try_from(micros).map(Timestamp::from_micros).map(Some).map_err(|_| nonsense(column, "a time out of range"))
}

pub(super) fn need_moment(row: &Row, column: &'static str) -> Result<Timestamp, StoreError> {
    moment(row, column)?.ok_or_else(|| nonsense(column, "NULL"))
}

pub(super) fn text(row: &Row, column: &'static str) -> Result<Option<String>, StoreError> {
    Ok(get::<&str>(row, column)?.map(str::to_owned))
}

pub(super) fn parsed<T>(row: &Row, column: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
    let value = need::<&str>(row, column)?;
    parse(value).ok_or_else(|| nonsense(column, value))
}

/// Like [`parsed`], for a column that may be NULL.
pub(super) fn optional<T>(
    row: &Row,
    column: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, StoreError> {
    match get::<&str>(row, column)? {
        None => Ok(None),
        Some(_) => parsed(row, column, parse).map(Some),
    }
}

/// From when the contract of an intent counts: the later of `created_at` and `not_before`.
pub(super) fn begins_at(row: &Row) -> Result<Timestamp, StoreError> {
    let created_at = need_moment(row, "created_at")?;
    Ok(moment(row, "not_before")?.map_or(created_at, |moment| moment.max(created_at)))
}

pub(super) fn attempts(row: &Row, column: &'static str) -> Result<u32, StoreError> {
    let count = need::<i64>(row, column)?;
    u32::try_from(count).map_err(|_| nonsense(column, &count.to_string()))
}

pub(super) fn seq(row: &Row) -> Result<IntentSeq, StoreError> {
    need(row, "intent_seq").map(IntentSeq)
}

pub(super) fn intent(row: &Row) -> Result<Intent, StoreError> {
    let status: &str = need(row, "status")?;
    let state = column_values::parse_state(
        status,
        moment(row, "completed_at")?,
        text(row, "rejected_reason")?,
        get(row, "exhausted_reason")?,
    );
    Ok(Intent {
        seq: seq(row)?,
        id: parsed(row, "intent_id", |text| IntentId::parse(text).ok())?,
        target: parsed(row, "submission_target", |text| TargetName::parse(text).ok())?,
        created_at: need_moment(row, "created_at")?,
        not_before: moment(row, "not_before")?,
        redrive_of: optional(row, "redrive_of", |text| IntentId::parse(text).ok())?,
        state: state.ok_or_else(|| nonsense("status", status))?,
        attempt_count: attempts(row, "attempt_count")?,
        attempt_open: get::<i64>(row, "open_lease_epoch")?.is_some(),
    })
}

pub(super) fn found(row: &Row) -> Result<StoredIntent, StoreError> {
    let hash: &[u8] = need(row, "payload_sha256")?;
    let payload_sha256 = hash.try_into().map_err(|_| nonsense("payload_sha256", "another number of bytes"))?;
    Ok(StoredIntent { intent: intent(row)?, payload_sha256 })
}

pub(super) fn attempt(row: &Row) -> Result<Attempt, StoreError> {
    let status: Option<&str> = get(row, "outcome_status")?;
    let outcome = column_values::parse_outcome(
        status,
        text(row, "outcome_reason")?,
        text(row, "error")?,
        text(row, "gateway_message_id")?,
    );
    Ok(Attempt {
        attempt_number: attempts(row, "attempt_number")?,
        lease_epoch: need(row, "lease_epoch")?,
        started_at: need_moment(row, "started_at")?,
        finished_at: need_moment(row, "finished_at")?,
        outcome: outcome.ok_or_else(|| nonsense("outcome_status", status.unwrap_or("NULL")))?,
    })
}

/// The lanes of the rows that were read so far, each created once.
pub(super) type Lanes = HashMap<LaneId, Arc<Lane>>;

pub(super) fn waiting(row: &Row, lanes: &mut Lanes) -> Result<Waiting, StoreError> {
    let id = LaneId(need(row, "contract_id")?);
    let lane = match lanes.get(&id) {
        Some(lane) => Arc::clone(lane),
        None => {
            let target = parsed(row, "submission_target", |text| TargetName::parse(text).ok())?;
            let lane = Arc::new(Lane { id, gateway: GatewayId(need(row, "gateway_id")?), target });
            lanes.insert(id, Arc::clone(&lane));
            lane
        }
    };
    Ok(Waiting {
        seq: seq(row)?,
        lane,
        due: need_moment(row, "next_attempt_at")?,
        attempt_count: attempts(row, "attempt_count")?,
    })
}

/// Reads an open attempt from a row. The caller provides its contract.
pub(super) fn open_attempt(
    row: &Row,
    contract: Arc<Contract>,
    trace: Option<TraceContext>,
) -> Result<OpenAttempt, StoreError> {
    Ok(OpenAttempt {
        seq: seq(row)?,
        intent_id: parsed(row, "intent_id", |text| IntentId::parse(text).ok())?,
        contract,
        begins_at: begins_at(row)?,
        attempt_number: attempts(row, "attempt_count")?,
        lease_epoch: need(row, "open_lease_epoch")?,
        started_at: need_moment(row, "open_started_at")?,
        idempotency_key: optional(row, "gateway_key", |text| IntentId::parse(text).ok())?,
        trace,
        job: None,
    })
}

/// Reads a trace context. One that cannot be parsed is ignored, because tracing is optional.
pub(super) fn trace(row: &Row) -> Result<Option<TraceContext>, StoreError> {
    Ok(get::<&str>(row, "traceparent")?.and_then(TraceContext::parse))
}

pub(super) fn contract(row: &Row) -> Result<Contract, StoreError> {
    parsed(row, "snapshot", |text| serde_json::from_str(text).ok())
}

pub(super) fn bytes(row: &Row, column: &'static str) -> Result<Option<Bytes>, StoreError> {
    Ok(get::<&[u8]>(row, column)?.map(Bytes::copy_from_slice))
}

/// The text of a time for JSON and for parameters.
pub(super) fn json_moment(moment: Timestamp) -> String {
    let mut text = moment.to_string();
    text.truncate(text.len() - 1); // The store's times are UTC; DATETIME2 has no zone.
    text
}
