//! Look-ups for whoever asks what happened: one intent, its history, lists.

use rusqlite::types::{Type, Value};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::schedule::as_limit;
use super::{messages, webhooks};
use crate::domain::intent::{Intent, IntentId, IntentSeq, Status, TargetName};
use crate::domain::time::Timestamp;
use crate::store::{Attempt, History, IdRange, IntentPage, ListQuery, PageCursor, StoredIntent, columns};

/// The columns that [`intent_of`] reads, from `submission_intents i JOIN submission_contracts c`.
pub const INTENT_COLUMNS: &str = "i.intent_seq, i.intent_id, c.submission_target, i.created_at, i.status, \
     i.completed_at, i.rejected_reason, i.exhausted_reason, i.attempt_count, i.open_lease_epoch IS NOT NULL";
pub const INTENT_TABLES: &str = "submission_intents i JOIN submission_contracts c USING (contract_id)";

pub fn find(connection: &Connection, id: &IntentId) -> Result<Option<StoredIntent>, rusqlite::Error> {
    let sql = format!("SELECT {INTENT_COLUMNS}, i.payload_sha256 FROM {INTENT_TABLES} WHERE i.intent_id = ?1");
    connection
        .prepare_cached(&sql)?
        .query_row([id.as_str()], |row| Ok(StoredIntent { intent: intent_of(row)?, payload_sha256: row.get(10)? }))
        .optional()
}

pub fn history(connection: &mut Connection, id: &IntentId) -> Result<Option<History>, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    history_in(&snapshot, id)
}

/// The same within a snapshot that somebody else has.
pub fn history_in(snapshot: &Connection, id: &IntentId) -> Result<Option<History>, rusqlite::Error> {
    let Some(StoredIntent { intent, .. }) = find(snapshot, id)? else { return Ok(None) };
    let attempts = snapshot
        .prepare_cached(
            "SELECT attempt_number, started_at, finished_at, outcome_status, outcome_reason, error,
                 gateway_message_id, lease_epoch
             FROM submission_attempts WHERE intent_seq = ?1 ORDER BY attempt_number",
        )?
        .query_map([intent.seq.0], attempt_of)?
        .collect::<Result<_, _>>()?;
    let webhook = webhooks::history(snapshot, intent.seq)?;
    Ok(Some(History { intent, attempts, webhook }))
}

pub fn list(connection: &mut Connection, query: &ListQuery) -> Result<IntentPage, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let filters = Filters::of(&snapshot, query)?;
    let Some(text) = &query.prefix else {
        return Ok(IntentPage::of_newest(query, newest(&snapshot, query, filters)?));
    };
    let wanted = query.page_size().saturating_add(1);
    let before = match &query.behind {
        Some(PageCursor::Message { created_at, id }) => Some(seq_of(&snapshot, *created_at, id)?),
        Some(PageCursor::Id(_)) => None,
        Some(PageCursor::Newer { .. }) | None => Some(i64::MAX),
    };
    let (by_message, horizon) = match before {
        Some(before) => messages::find(&snapshot, text, before, &filters, wanted)?,
        None => (Vec::new(), None),
    };
    if by_message.len() >= wanted || horizon.is_some() {
        let horizon = horizon.map(|last| PageCursor::Message { created_at: last.created_at, id: last.id });
        return Ok(IntentPage::of_search(query, by_message, Vec::new(), horizon));
    }
    let (by_id, horizon) = by_id(&snapshot, query, text, &filters, wanted - by_message.len())?;
    Ok(IntentPage::of_search(query, by_message, by_id, horizon.map(PageCursor::Id)))
}

/// The number of an intent that was on a page. If it is gone meanwhile, of the first one after its moment: all of that
/// moment are shown, some of them again.
fn seq_of(snapshot: &Connection, created_at: Timestamp, id: &IntentId) -> Result<i64, rusqlite::Error> {
    match find(snapshot, id)? {
        Some(found) => Ok(found.intent.seq.0),
        None => first_seq_from(snapshot, next_moment(created_at)),
    }
}

/// Conditions and their values, in order.
#[derive(Clone, Default)]
pub struct Filters {
    conditions: Vec<&'static str>,
    pub values: Vec<Value>,
}

impl Filters {
    /// What is asked for besides ids.
    fn of(snapshot: &Connection, query: &ListQuery) -> Result<Self, rusqlite::Error> {
        let mut filters = Self::default();
        // Those of jobs are below zero.
        filters.conditions.push("i.intent_seq >= 0");
        if let Some(target) = &query.target {
            filters.add(
                "i.contract_id IN (SELECT contract_id FROM submission_contracts WHERE submission_target = ?)",
                Value::Text(target.to_string()),
            );
        }
        if let Some(moment) = query.created_after {
            let first = first_seq_from(snapshot, next_moment(moment))?;
            filters.add("i.intent_seq >= ?", Value::Integer(first));
        }
        if let Some(moment) = query.created_before {
            filters.add("i.intent_seq < ?", Value::Integer(first_seq_from(snapshot, moment)?));
        }
        // Not a parameter: only of a constant can be seen that an index of some statuses will do.
        filters.conditions.extend(query.status.map(|status| match status {
            Status::Pending => "i.status = 'pending'",
            Status::Accepted => "i.status = 'accepted'",
            Status::Rejected => "i.status = 'rejected'",
            Status::Exhausted => "i.status = 'exhausted'",
        }));
        Ok(filters)
    }

    fn add(&mut self, condition: &'static str, value: Value) {
        self.conditions.push(condition);
        self.values.push(value);
    }

    pub fn sql(&self) -> String {
        self.conditions.join(" AND ")
    }
}

fn next_moment(moment: Timestamp) -> Timestamp {
    Timestamp::from_micros(moment.micros().saturating_add(1))
}

/// The newest first, one more than asked for.
fn newest(snapshot: &Connection, query: &ListQuery, mut filters: Filters) -> Result<Vec<Intent>, rusqlite::Error> {
    if let Some(PageCursor::Newer { created_at, id }) = &query.behind {
        filters.add("i.intent_seq < ?", Value::Integer(seq_of(snapshot, *created_at, id)?));
    }
    // What has a status that is rare is found by that, and put in order: also if it is of a target that is
    // common. What is pending may be few and old, or a million, but is all in one index.
    let by_status = match query.status {
        Some(Status::Pending) => Some("submission_intents_pending"),
        Some(Status::Rejected) => Some("submission_intents_rejected"),
        Some(Status::Exhausted) => Some("submission_intents_exhausted"),
        Some(Status::Accepted) | None => None,
    };
    const ORDER: &str = "ORDER BY i.intent_seq DESC";
    let filter = filters.sql();
    let sql = match by_status {
        Some(index) => {
            let found = format!(
                "SELECT i.intent_seq FROM submission_intents i INDEXED BY {index} WHERE {filter} {ORDER} LIMIT ?"
            );
            format!("SELECT {INTENT_COLUMNS} FROM {INTENT_TABLES} WHERE i.intent_seq IN ({found}) {ORDER}")
        }
        None => format!("SELECT {INTENT_COLUMNS} FROM {INTENT_TABLES} WHERE {filter} {ORDER} LIMIT ?"),
    };
    filters.values.push(Value::Integer(as_limit(query.page_size().saturating_add(1))));
    snapshot.prepare_cached(&sql)?.query_map(params_from_iter(filters.values), intent_of)?.collect()
}

/// Those whose ids begin so and that are not found by a gateway's id, in their order, at most so many; and up to where was
/// looked, if that is not the end.
fn by_id(
    snapshot: &Connection,
    query: &ListQuery,
    prefix: &str,
    filters: &Filters,
    wanted: usize,
) -> Result<(Vec<Intent>, Option<IntentId>), rusqlite::Error> {
    let mut intents = Vec::new();
    let mut passed_over = 0;
    for range in IdRange::of(prefix, query.behind.as_ref()) {
        let horizon = if query.filters() { horizon(snapshot, &range)? } else { None };
        let mut filters = filters.clone();
        let IdRange { from, behind, before } = range;
        filters.add(if behind { "i.intent_id > ?" } else { "i.intent_id >= ?" }, Value::Text(from));
        match (&horizon, before) {
            (Some(horizon), _) => filters.add("i.intent_id <= ?", Value::Text(horizon.to_string())),
            (None, Some(before)) => filters.add("i.intent_id < ?", Value::Text(before)),
            (None, None) => {}
        }
        let sql = format!(
            "SELECT {INTENT_COLUMNS}, {}
             FROM submission_intents i INDEXED BY sqlite_autoindex_submission_intents_1
                 JOIN submission_contracts c USING (contract_id) WHERE {} ORDER BY i.intent_id",
            messages::HAS_MESSAGE,
            filters.sql()
        );
        let values = messages::has_message(prefix).into_iter().chain(filters.values);
        let mut statement = snapshot.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let intent = intent_of(row)?;
            if row.get::<_, bool>(10)? {
                passed_over += 1;
                if passed_over >= EXAMINED {
                    return Ok((intents, Some(intent.id)));
                }
                continue;
            }
            intents.push(intent);
            if intents.len() >= wanted {
                return Ok((intents, None));
            }
        }
        if horizon.is_some() {
            return Ok((intents, horizon));
        }
    }
    Ok((intents, None))
}

/// Intents that are looked at for one page, when few of those with the id may pass the other filters.
pub const EXAMINED: usize = if cfg!(test) { 3 } else { 4_000 };

/// Up to where a page looks; the next one looks further. `None` if that is to the end.
fn horizon(connection: &Connection, ids: &IdRange) -> Result<Option<IntentId>, rusqlite::Error> {
    let from = if ids.behind { ">" } else { ">=" };
    let sql = format!(
        "SELECT intent_id FROM submission_intents WHERE intent_id {from} ?1 AND (?2 IS NULL OR intent_id < ?2)
         ORDER BY intent_id LIMIT 1 OFFSET ?3"
    );
    connection
        .prepare_cached(&sql)?
        .query_row(params![ids.from, ids.before, as_limit(EXAMINED - 1)], |row| {
            parsed(row, 0, |text| IntentId::parse(text).ok())
        })
        .optional()
}

/// The first intent created at or after `moment`.
///
/// `created_at` grows with `intent_seq` (the store's clock never goes back), so a search by halves
/// finds it without an index that every submission would have to keep up. Not those of jobs.
fn first_seq_from(connection: &Connection, moment: Timestamp) -> Result<i64, rusqlite::Error> {
    let mut ends = connection.prepare_cached(
        "SELECT coalesce((SELECT min(intent_seq) FROM submission_intents WHERE intent_seq >= 0), 0),
                coalesce((SELECT max(intent_seq) FROM submission_intents), 0)",
    )?;
    let mut at_or_after = connection.prepare_cached(
        "SELECT intent_seq, created_at FROM submission_intents WHERE intent_seq >= ?1 ORDER BY intent_seq LIMIT 1",
    )?;
    let (mut low, last): (i64, i64) = ends.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut high = last + 1;
    while low < high {
        let middle = low + (high - low) / 2;
        let found: Option<(i64, i64)> =
            at_or_after.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        match found {
            Some((seq, created_at)) if created_at < moment.micros() => low = seq + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

pub fn intent_of(row: &Row<'_>) -> Result<Intent, rusqlite::Error> {
    let status: String = row.get(4)?;
    let completed_at = row.get::<_, Option<i64>>(5)?.map(Timestamp::from_micros);
    let exhausted_reason: Option<String> = row.get(7)?;
    let state = columns::state(&status, completed_at, row.get(6)?, exhausted_reason.as_deref());
    Ok(Intent {
        seq: IntentSeq(row.get(0)?),
        id: parsed(row, 1, |text| IntentId::parse(text).ok())?,
        target: parsed(row, 2, |text| TargetName::parse(text).ok())?,
        created_at: Timestamp::from_micros(row.get(3)?),
        state: state.ok_or_else(|| unreadable(4, &status))?,
        attempt_count: row.get(8)?,
        attempt_open: row.get(9)?,
    })
}

fn attempt_of(row: &Row<'_>) -> Result<Attempt, rusqlite::Error> {
    let status: Option<String> = row.get(3)?;
    let outcome = columns::outcome(status.as_deref(), row.get(4)?, row.get(5)?, row.get(6)?);
    Ok(Attempt {
        attempt_number: row.get(0)?,
        lease_epoch: row.get(7)?,
        started_at: Timestamp::from_micros(row.get(1)?),
        finished_at: Timestamp::from_micros(row.get(2)?),
        outcome: outcome.ok_or_else(|| unreadable(3, status.as_deref().unwrap_or("no status")))?,
    })
}

/// A text column as one of our types; an error if the database holds what those do not allow.
pub fn parsed<T>(row: &Row<'_>, column: usize, parse: impl Fn(&str) -> Option<T>) -> Result<T, rusqlite::Error> {
    let text = row.get_ref(column)?.as_str().map_err(|_| unreadable(column, "not text"))?;
    parse(text).ok_or_else(|| unreadable(column, text))
}

fn unreadable(column: usize, text: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, format!("unexpected value {text:?}").into())
}
