//! Failed intents by cause on SQL Server. The counts come from the counts by minute; lists by cause examine the newest
//! intents with the status.

use std::collections::HashMap;

use serde_json::json;
use tiberius::Row;

use super::counts::THIS_MINUTE;
use super::database::{Batch, Database};
use super::read::{need_first, set};
use super::rows::{self, INTENT_COLUMNS};
use super::script::Values;
use super::statements::{Part, selection};
use crate::domain::failure::{Ending, cause_of_failure};
use crate::domain::intent::{Intent, IntentSeq, Status, TargetName};
use crate::domain::redrive::FailedStatus;
use crate::store::failures::{Counted, FailureCounter, SAMPLED};
use crate::store::intents::ExaminedPart;
use crate::store::{FailureQuery, FailureReport, IntentPage, ListQuery, StoreError};

/// How many intents of each status one page of a list examines.
const MAX_EXAMINED: usize = if cfg!(test) { 3 } else { 4_000 };

/// Joins the attempt that ended an intent, if one did.
pub(super) const ENDING: &str = "
LEFT JOIN submission_attempts AS a ON a.intent_seq = i.intent_seq AND a.attempt_number = i.attempt_count
    AND a.finished_at = i.completed_at";
/// The columns that [`ending`] reads, as a continuation of a list of columns.
pub(super) const ENDING_COLUMNS: &str = ", a.outcome_reason AS ending_reason, a.error AS ending_error";

/// Reads the attempt that ended an intent.
pub(super) fn ending(row: &Row) -> Result<Option<Ending>, StoreError> {
    let ending = Ending { reason: rows::text(row, "ending_reason")?, error: rows::text(row, "ending_error")? };
    Ok((ending != Ending::default()).then_some(ending))
}

/// The condition that an intent may have failed with this cause: one of its texts begins with it. Whether it did is
/// decided by [`cause_of_failure`].
pub(super) fn may_have_cause(values: &mut Values, cause: &str) -> String {
    // In this collation LEFT counts UTF-16 units, in others it may count characters. It may cut a character in two, which does
    // no harm because the result is only compared.
    let length = values.count(cause.encode_utf16().count());
    let cause = values.text(cause);
    let begins = |column: &str| format!("LEFT({column} COLLATE Latin1_General_100_BIN2, {length}) = {cause}");
    let columns = ["i.rejected_reason", "a.outcome_reason", "a.error", "CAST(i.exhausted_reason AS NVARCHAR(20))"];
    format!("({})", columns.map(begins).join(" OR "))
}

pub(super) fn report_batch(query: &FailureQuery) -> Batch {
    let mut values = Values::default();
    let (minutes, slice) = (values.number(query.minutes.max(1)), values.number(query.slice_minutes()));
    let of_target = match &query.target {
        Some(target) => format!(" AND c.submission_target = {}", values.text(target.as_str())),
        None => String::new(),
    };
    values.batch(format!(
        "
DECLARE @first BIGINT = {THIS_MINUTE} - {minutes} + 1, @slice BIGINT = {slice};
SELECT SYSUTCDATETIME() AS now_at, @first AS first_minute;
SELECT c.submission_target, m.status, m.cause, (m.minute - @first) / @slice AS slice, MIN(m.minute) AS first_minute,
    MAX(m.minute) AS last_minute, CAST(SUM(m.attempts) AS BIGINT) AS intents
FROM submission_minutes AS m JOIN submission_contracts AS c ON c.contract_id = m.contract_id
WHERE m.minute >= @first AND m.status IN ('rejected', 'exhausted'){of_target}
GROUP BY c.submission_target, m.status, m.cause, (m.minute - @first) / @slice;"
    ))
}

/// Reads the newest failures with this status.
pub(super) fn newest_batch(status: FailedStatus) -> Batch {
    let mut values = Values::default();
    let limit = values.count(SAMPLED);
    let status = match status {
        FailedStatus::Rejected => Status::Rejected,
        FailedStatus::Exhausted => Status::Exhausted,
    };
    let query = ListQuery { status: Some(status), ..ListQuery::default() };
    let (from, conditions, order) = selection(&mut values, &query, &Part::All);
    values.batch(format!(
        "
SELECT TOP ({limit}) {INTENT_COLUMNS}{ENDING_COLUMNS} FROM {from}
JOIN submission_contracts AS c ON c.contract_id = i.contract_id{ENDING}
WHERE {conditions} ORDER BY {order};"
    ))
}

pub(super) fn causes_batch(intents: &[IntentSeq]) -> Batch {
    let mut values = Values::default();
    let seqs = values.json(intents.iter().map(|seq| json!({ "seq": seq.0 })).collect());
    values.batch(format!(
        "
SELECT {INTENT_COLUMNS}{ENDING_COLUMNS} FROM OPENJSON({seqs}) WITH (seq BIGINT) AS j
JOIN submission_intents AS i ON i.intent_seq = j.seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id{ENDING}
WHERE i.status IN ('rejected', 'exhausted');"
    ))
}

/// Examines the newest intents that pass the filters of a query. The second result is the last of them, if there may be
/// more.
pub(super) fn examine_batch(query: &ListQuery) -> Batch {
    let mut values = Values::default();
    let (limit, last) = (values.count(MAX_EXAMINED), values.count(MAX_EXAMINED - 1));
    let (from, conditions, order) = selection(&mut values, query, &Part::All);
    let mut checked = Vec::new();
    if let Some(min) = query.examined.min_attempts {
        checked.push(format!("i.attempt_count >= {}", values.number(i64::from(min))));
    }
    if let Some(since) = query.examined.ended_since {
        checked.push(format!("i.completed_at >= {}", values.moment(since)));
    }
    if let Some(before) = query.examined.ended_before {
        checked.push(format!("i.completed_at < {}", values.moment(before)));
    }
    if let Some(cause) = &query.examined.cause {
        checked.push(may_have_cause(&mut values, cause));
    }
    let checked = checked.join(" AND ");
    values.batch(format!(
        "
SELECT {INTENT_COLUMNS}{ENDING_COLUMNS} FROM (
    SELECT TOP ({limit}) i.intent_seq FROM {from}
    JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE {conditions} ORDER BY {order}) AS e
JOIN submission_intents AS i ON i.intent_seq = e.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id{ENDING}
WHERE {checked} ORDER BY {order};
SELECT {INTENT_COLUMNS} FROM {from}
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE {conditions}
ORDER BY {order} OFFSET {last} ROWS FETCH NEXT 1 ROWS ONLY;"
    ))
}

fn failed(rows: &[Row]) -> Result<Vec<(Intent, String)>, StoreError> {
    let mut failed = Vec::with_capacity(rows.len());
    for row in rows {
        let intent = rows::intent(row)?;
        if let Some(cause) = cause_of_failure(&intent.state, ending(row)?.as_ref()) {
            failed.push((intent, cause));
        }
    }
    Ok(failed)
}

/// Counts the failures of a period by target and cause.
pub(super) async fn report(database: &Database, query: FailureQuery) -> Result<FailureReport, StoreError> {
    let results = database.run(report_batch(&query)).await?;
    let now = rows::need_moment(need_first(&results)?, "now_at")?;
    let mut counter = FailureCounter::new();
    for row in set(&results, 1) {
        counter.add(Counted {
            target: rows::parsed(row, "submission_target", |text| TargetName::parse(text).ok())?,
            status: rows::parsed(row, "status", FailedStatus::parse)?,
            cause: rows::need(row, "cause")?,
            slice: rows::need(row, "slice")?,
            first_minute: rows::need(row, "first_minute")?,
            last_minute: rows::need(row, "last_minute")?,
            intents: rows::need::<i64>(row, "intents")?.unsigned_abs(),
        });
    }
    let mut newest = Vec::new();
    for status in FailedStatus::ALL {
        newest.extend(failed(set(&database.run(newest_batch(status)).await?, 0))?);
    }
    Ok(counter.report(&query, now, |target| Some(target.clone()), &newest))
}

/// Returns the causes of those of these intents that have failed.
pub(super) async fn causes(
    database: &Database,
    intents: &[IntentSeq],
) -> Result<HashMap<IntentSeq, String>, StoreError> {
    let results = database.run(causes_batch(intents)).await?;
    Ok(failed(set(&results, 0))?.into_iter().map(|(intent, cause)| (intent.seq, cause)).collect())
}

/// Reads a page of a list with conditions that no index supports.
pub(super) async fn examine(database: &Database, query: &ListQuery) -> Result<IntentPage, StoreError> {
    let mut parts = Vec::new();
    for query in query.examined_queries() {
        let results = database.run(examine_batch(&query)).await?;
        let mut intents = Vec::new();
        for row in set(&results, 0) {
            let intent = rows::intent(row)?;
            if query.examined.admits(&intent, || ending(row))? {
                intents.push(intent);
            }
        }
        let horizon = set(&results, 1).first().map(rows::intent).transpose()?;
        parts.push(ExaminedPart { intents, horizon });
    }
    Ok(IntentPage::of_examined(query, parts))
}
