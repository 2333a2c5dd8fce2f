//! Reads intents: one intent, its history, and lists.

use rusqlite::types::{Type, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::filters::{Filters, direction};
use super::schedule::as_limit;
use super::{failures, messages, options, webhooks};
use crate::domain::intent::{Intent, IntentId, IntentSeq, Status, TargetName};
use crate::domain::time::Timestamp;
use crate::store::{Attempt, History, IdRange, IntentPage, ListQuery, PageCursor, StoredIntent, column_values};

/// The columns that [`intent_of`] reads, from `submission_intents i JOIN submission_contracts c`. The last two are NULL for
/// nearly all intents, which have no options.
pub(super) const INTENT_COLUMNS: &str = "i.intent_seq, i.intent_id, c.submission_target, i.created_at, i.status, \
     i.completed_at, i.rejected_reason, i.exhausted_reason, i.attempt_count, i.open_lease_epoch IS NOT NULL, \
     (SELECT o.not_before FROM submission_intent_options o WHERE o.intent_seq = i.intent_seq), \
     (SELECT o.redrive_of FROM submission_intent_options o WHERE o.intent_seq = i.intent_seq)";
/// The number of [`INTENT_COLUMNS`]: the index of the first column after them.
pub(super) const INTENT_WIDTH: usize = 12;
/// The tables of [`INTENT_COLUMNS`].
pub(super) const INTENT_TABLES: &str = "submission_intents i JOIN submission_contracts c USING (contract_id)";

/// Reads an intent by its id.
pub(super) fn find(connection: &Connection, id: &IntentId) -> Result<Option<StoredIntent>, rusqlite::Error> {
    let sql = format!("SELECT {INTENT_COLUMNS}, i.payload_sha256 FROM {INTENT_TABLES} WHERE i.intent_id = ?1");
    connection
        .prepare_cached(&sql)?
        .query_row([id.as_str()], |row| {
            Ok(StoredIntent { intent: intent_of(row)?, payload_sha256: row.get(INTENT_WIDTH)? })
        })
        .optional()
}

/// Reads an intent with its attempts and its webhook event.
pub(super) fn history(connection: &mut Connection, id: &IntentId) -> Result<Option<History>, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    history_in(&snapshot, id)
}

/// Reads a history within a snapshot of the caller.
pub(super) fn history_in(snapshot: &Connection, id: &IntentId) -> Result<Option<History>, rusqlite::Error> {
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
    let redriven_as = options::redriven_as(snapshot, id)?;
    Ok(Some(History { intent, attempts, webhook, redriven_as }))
}

/// Reads a page of intents.
pub(super) fn list(connection: &mut Connection, query: &ListQuery) -> Result<IntentPage, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let filters = Filters::of(&snapshot, query)?;
    let Some(text) = &query.prefix else {
        // Failures of all targets are in one index, so those of a target are looked for among a bounded number.
        let failed = matches!(query.status, Some(Status::Rejected | Status::Exhausted));
        if !query.examined.is_empty() || failed && query.target.is_some() && query.redrive.is_none() {
            return failures::examine(&snapshot, query);
        }
        return Ok(IntentPage::of_list(query, page(&snapshot, query, filters)?));
    };
    let wanted = query.page_size().saturating_add(1);
    let before = match &query.after {
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

/// Returns the number of an intent that was the last of a page. If it was deleted meanwhile, the result is the number of
/// the first intent after its creation time, so that some intents of that time may be listed twice but none is left out.
fn seq_of(snapshot: &Connection, created_at: Timestamp, id: &IntentId) -> Result<i64, rusqlite::Error> {
    match find(snapshot, id)? {
        Some(found) => Ok(found.intent.seq.0),
        None => first_seq_from(snapshot, next_moment(created_at)),
    }
}

pub(super) fn next_moment(moment: Timestamp) -> Timestamp {
    Timestamp::from_micros(moment.micros().saturating_add(1))
}

/// Returns the intents of a page, and one more.
pub(super) fn page(
    snapshot: &Connection,
    query: &ListQuery,
    mut filters: Filters,
) -> Result<Vec<Intent>, rusqlite::Error> {
    filters.continue_page(snapshot, query)?;
    // Intents with a rare status are found by the index of that status and then sorted, even if the query has a target too.
    // Pending intents may be few and old or very many; all of them are in one index.
    let by_status = match query.status {
        Some(Status::Pending) => Some("submission_intents_pending"),
        Some(Status::Rejected) => Some("submission_intents_rejected"),
        Some(Status::Exhausted) => Some("submission_intents_exhausted"),
        Some(Status::Accepted) | None => None,
    };
    let direction = direction(query.order);
    let order = format!("ORDER BY i.intent_seq {direction}");
    let filter = filters.sql();
    let mut values = filters.values();
    let sql = match by_status {
        _ if query.redrive.is_some() => {
            let redrive = query.redrive.map(|id| id.to_string()).unwrap_or_default();
            values.insert(0, Value::Text(redrive));
            let found = format!(
                "SELECT o.intent_seq FROM submission_intent_options o INDEXED BY submission_intent_options_redrive
                     CROSS JOIN submission_intents i ON i.intent_seq = o.intent_seq
                 WHERE o.redrive_id = ? AND {filter} ORDER BY o.intent_seq {direction} LIMIT ?"
            );
            format!("SELECT {INTENT_COLUMNS} FROM {INTENT_TABLES} WHERE i.intent_seq IN ({found}) {order}")
        }
        Some(index) => {
            let found = format!(
                "SELECT i.intent_seq FROM submission_intents i INDEXED BY {index} WHERE {filter} {order} LIMIT ?"
            );
            format!("SELECT {INTENT_COLUMNS} FROM {INTENT_TABLES} WHERE i.intent_seq IN ({found}) {order}")
        }
        None => format!("SELECT {INTENT_COLUMNS} FROM {INTENT_TABLES} WHERE {filter} {order} LIMIT ?"),
    };
    values.push(Value::Integer(as_limit(query.page_size().saturating_add(1))));
    snapshot.prepare_cached(&sql)?.query_map(params_from_iter(values), intent_of)?.collect()
}

/// Returns up to `wanted` intents whose id starts with `prefix`, in the order of their ids, without those that a search
/// finds by a gateway's message id. Also returns the id up to which it searched, if that is not the end.
fn by_id(
    snapshot: &Connection,
    query: &ListQuery,
    prefix: &str,
    filters: &Filters,
    wanted: usize,
) -> Result<(Vec<Intent>, Option<IntentId>), rusqlite::Error> {
    let mut intents = Vec::new();
    let mut skipped = 0;
    for range in IdRange::of(prefix, query.after.as_ref()) {
        let horizon = if query.filters() { horizon(snapshot, &range)? } else { None };
        let mut filters = filters.clone();
        let IdRange { from, excludes_from, before } = range;
        filters.add(if excludes_from { "i.intent_id > ?" } else { "i.intent_id >= ?" }, Value::Text(from));
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
        let values = messages::has_message(prefix).into_iter().chain(filters.values());
        let mut statement = snapshot.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let intent = intent_of(row)?;
            if row.get::<_, bool>(INTENT_WIDTH)? {
                skipped += 1;
                if skipped >= MAX_EXAMINED {
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

/// How many intents one page examines at most, because few of those with a matching id may pass the other filters.
pub(super) const MAX_EXAMINED: usize = if cfg!(test) { 3 } else { 4_000 };

/// Returns the id up to which a page searches; the next page continues there. `None` if the page searches to the end.
fn horizon(connection: &Connection, ids: &IdRange) -> Result<Option<IntentId>, rusqlite::Error> {
    let from = if ids.excludes_from { ">" } else { ">=" };
    // Only a plain comparison ends the scan of the index.
    let before = if ids.before.is_some() { "intent_id < ?2" } else { "?2 IS NULL" };
    let sql = format!(
        "SELECT intent_id FROM submission_intents WHERE intent_id {from} ?1 AND {before} ORDER BY intent_id LIMIT 1 OFFSET ?3"
    );
    connection
        .prepare_cached(&sql)?
        .query_row(params![ids.from, ids.before, as_limit(MAX_EXAMINED - 1)], |row| {
            parsed(row, 0, |text| IntentId::parse(text).ok())
        })
        .optional()
}

/// Returns the number of the first intent that was created at or after `moment`.
///
/// `created_at` grows with `intent_seq`, because the store's clock never goes back. So a binary search finds the intent
/// without an index on `created_at`, which every insert would have to update. Intents of jobs are left out.
pub(super) fn first_seq_from(connection: &Connection, moment: Timestamp) -> Result<i64, rusqlite::Error> {
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

/// Reads an intent from a row with [`INTENT_COLUMNS`].
pub(super) fn intent_of(row: &Row<'_>) -> Result<Intent, rusqlite::Error> {
    let status: String = row.get(4)?;
    let completed_at = row.get::<_, Option<i64>>(5)?.map(Timestamp::from_micros);
    let exhausted_reason: Option<String> = row.get(7)?;
    let state = column_values::parse_state(&status, completed_at, row.get(6)?, exhausted_reason.as_deref());
    Ok(Intent {
        seq: IntentSeq(row.get(0)?),
        id: parsed(row, 1, |text| IntentId::parse(text).ok())?,
        target: parsed(row, 2, |text| TargetName::parse(text).ok())?,
        created_at: Timestamp::from_micros(row.get(3)?),
        not_before: row.get::<_, Option<i64>>(10)?.map(Timestamp::from_micros),
        redrive_of: optional(row, 11, |text| IntentId::parse(text).ok())?,
        state: state.ok_or_else(|| unreadable(4, &status))?,
        attempt_count: row.get(8)?,
        attempt_open: row.get(9)?,
    })
}

fn attempt_of(row: &Row<'_>) -> Result<Attempt, rusqlite::Error> {
    let status: Option<String> = row.get(3)?;
    let outcome = column_values::parse_outcome(status.as_deref(), row.get(4)?, row.get(5)?, row.get(6)?);
    Ok(Attempt {
        attempt_number: row.get(0)?,
        lease_epoch: row.get(7)?,
        started_at: Timestamp::from_micros(row.get(1)?),
        finished_at: Timestamp::from_micros(row.get(2)?),
        outcome: outcome.ok_or_else(|| unreadable(3, status.as_deref().unwrap_or("no status")))?,
    })
}

/// Parses a text column. It fails if the column has a value that the type does not allow.
pub(super) fn parsed<T>(row: &Row<'_>, column: usize, parse: impl Fn(&str) -> Option<T>) -> Result<T, rusqlite::Error> {
    let text = row.get_ref(column)?.as_str().map_err(|_| unreadable(column, "not text"))?;
    parse(text).ok_or_else(|| unreadable(column, text))
}

/// Parses a text column that may be NULL.
pub(super) fn optional<T>(
    row: &Row<'_>,
    column: usize,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, rusqlite::Error> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => parsed(row, column, parse).map(Some),
    }
}

fn unreadable(column: usize, text: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, format!("unexpected value {text:?}").into())
}
