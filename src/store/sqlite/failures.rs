//! Failed intents by cause. The counts come from the counts by minute; lists by cause examine intents one by one.

use std::collections::HashMap;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::connection::read_now;
use super::filters::{Filters, direction};
use super::read::{self, INTENT_COLUMNS, INTENT_TABLES, MAX_EXAMINED, intent_of, parsed};
use super::schedule::as_limit;
use crate::domain::failure::{Ending, cause_of_failure};
use crate::domain::intent::{IntentSeq, Status, TargetName};
use crate::domain::redrive::FailedStatus;
use crate::platform::clock::WallClock;
use crate::store::failures::{Counted, FailureCounter, SAMPLED};
use crate::store::intents::ExaminedPart;
use crate::store::{FailureQuery, FailureReport, IntentPage, ListQuery};

/// Counts the failures of a period by target and cause.
pub(super) fn report(
    connection: &mut Connection,
    clock: &WallClock,
    query: &FailureQuery,
) -> Result<FailureReport, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let (first, slice) = (query.first_minute(now), query.slice_minutes());
    let mut counter = FailureCounter::new();
    let mut counts = snapshot.prepare_cached(
        "SELECT contract_id, status, cause, minute, attempts FROM submission_minutes
         WHERE minute >= ?1 AND status IN ('rejected', 'exhausted')",
    )?;
    let mut rows = counts.query([first])?;
    while let Some(row) = rows.next()? {
        let minute: i64 = row.get(3)?;
        counter.add(Counted {
            target: row.get::<_, i64>(0)?,
            status: parsed(row, 1, FailedStatus::parse)?,
            cause: row.get_ref(2)?.as_str()?,
            slice: (minute - first) / slice,
            first_minute: minute,
            last_minute: minute,
            intents: row.get::<_, i64>(4)?.unsigned_abs(),
        });
    }
    let wanted = |target: &TargetName| query.target.as_ref().is_none_or(|wanted| wanted == target);
    let targets: HashMap<i64, TargetName> = snapshot
        .prepare_cached("SELECT contract_id, submission_target FROM submission_contracts")?
        .query_map([], |row| Ok((row.get(0)?, parsed(row, 1, |text| TargetName::parse(text).ok())?)))?
        .collect::<Result<_, _>>()?;
    let mut failed = Vec::new();
    for status in [Status::Rejected, Status::Exhausted] {
        let newest = ListQuery { status: Some(status), limit: SAMPLED, ..ListQuery::default() };
        for intent in read::page(&snapshot, &newest, Filters::of(&snapshot, &newest)?)? {
            if let Some(cause) = cause_of_failure(&intent.state, ending_of(&snapshot, intent.seq)?.as_ref()) {
                failed.push((intent, cause));
            }
        }
    }
    let name = |contract: &i64| targets.get(contract).filter(|target| wanted(target)).cloned();
    Ok(counter.report(query, now, name, &failed))
}

/// Returns the attempt that ended an intent; `None` if it has not ended or ended while it waited.
pub(super) fn ending_of(connection: &Connection, seq: IntentSeq) -> Result<Option<Ending>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT a.outcome_reason, a.error FROM submission_intents i JOIN submission_attempts a
                 ON a.intent_seq = i.intent_seq AND a.attempt_number = i.attempt_count
                     AND a.finished_at = i.completed_at
             WHERE i.intent_seq = ?1",
        )?
        .query_row([seq.0], |row| Ok(Ending { reason: row.get(0)?, error: row.get(1)? }))
        .optional()
}

/// Returns the causes of those of these intents that have failed.
pub(super) fn causes(
    connection: &mut Connection,
    intents: &[IntentSeq],
) -> Result<HashMap<IntentSeq, String>, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let sql = format!("SELECT {INTENT_COLUMNS} FROM {INTENT_TABLES} WHERE i.intent_seq = ?1");
    let mut causes = HashMap::new();
    for seq in intents {
        let intent = snapshot.prepare_cached(&sql)?.query_row(params![seq.0], intent_of).optional()?;
        let Some(intent) = intent else { continue };
        let ending = ending_of(&snapshot, *seq)?;
        causes.extend(cause_of_failure(&intent.state, ending.as_ref()).map(|cause| (*seq, cause)));
    }
    Ok(causes)
}

/// Reads a page of a list with conditions that no index supports. It may be short, and there may be a next page even if it is
/// empty.
pub(super) fn examine(snapshot: &Connection, query: &ListQuery) -> Result<IntentPage, rusqlite::Error> {
    let mut parts = Vec::new();
    for query in query.examined_queries() {
        parts.push(examine_status(snapshot, &query)?);
    }
    Ok(IntentPage::of_examined(query, parts))
}

fn examine_status(snapshot: &Connection, query: &ListQuery) -> Result<ExaminedPart, rusqlite::Error> {
    let failed = matches!(query.status, Some(Status::Rejected | Status::Exhausted));
    // The indexes of failures do not have the target, so it must not decide how many intents are examined.
    let target = query.target.as_ref().filter(|_| failed);
    let indexed = ListQuery { target: query.target.clone().filter(|_| !failed), ..query.clone() };
    let mut filters = Filters::of(snapshot, &indexed)?;
    filters.continue_page(snapshot, query)?;
    let index = match query.status {
        Some(Status::Pending) => "INDEXED BY submission_intents_pending",
        Some(Status::Rejected) => "INDEXED BY submission_intents_rejected",
        Some(Status::Exhausted) => "INDEXED BY submission_intents_exhausted",
        Some(Status::Accepted) | None => "",
    };
    let direction = direction(query.order);
    let sql = format!(
        "SELECT {INTENT_COLUMNS} FROM {INTENT_TABLES} WHERE i.intent_seq IN (
             SELECT i.intent_seq FROM submission_intents i {index} WHERE {} ORDER BY i.intent_seq {direction} LIMIT ?)
         ORDER BY i.intent_seq {direction}",
        filters.sql()
    );
    let mut values = filters.values();
    values.push(Value::Integer(as_limit(MAX_EXAMINED)));
    let mut statement = snapshot.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let (mut intents, mut examined) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let intent = intent_of(row)?;
        let seq = intent.seq;
        examined += 1;
        let last = examined == MAX_EXAMINED;
        let of_target = target.is_none_or(|target| *target == intent.target);
        let admitted = of_target && query.examined.admits(&intent, || ending_of(snapshot, seq))?;
        let horizon = last.then(|| intent.clone());
        if admitted {
            intents.push(intent);
        }
        if last || intents.len() > query.page_size() {
            return Ok(ExaminedPart { intents, horizon });
        }
    }
    Ok(ExaminedPart { intents, horizon: None })
}
