//! Counts of a list by status. For each status it examines a bounded number of intents in the order of one index, and counts
//! those that meet the other conditions.

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::filters::{Filters, NumberRange, OF_TARGET};
use crate::domain::intent::Status;
use crate::store::{BoundedCount, ListQuery, StatusCounts};

/// Counts the intents of a list by status.
pub(super) fn count(connection: &mut Connection, query: &ListQuery) -> Result<StatusCounts, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    StatusCounts::count(|status| {
        let mut queries = ListQuery { status: Some(status), ..query.clone() }.examined_queries();
        queries.pop().map_or(Ok(BoundedCount::default()), |query| count_status(&snapshot, status, &query))
    })
}

fn count_status(snapshot: &Connection, status: Status, query: &ListQuery) -> Result<BoundedCount, rusqlite::Error> {
    let mut wanted = Filters::of(snapshot, &ListQuery { status: None, ..query.clone() })?;
    // The sources of other statuses have no others. To check it again would need the row, which the index does not have.
    if status == Status::Accepted || query.redrive.is_some() {
        wanted.add("i.status = ?", Value::Text(status.as_str().to_owned()));
    }
    if let Some(min) = query.examined.min_attempts {
        wanted.add("i.attempt_count >= ?", Value::Integer(min.into()));
    }
    if let Some(since) = query.examined.ended_since {
        wanted.add("i.completed_at >= ?", Value::Integer(since.micros()));
    }
    if let Some(before) = query.examined.ended_before {
        wanted.add("i.completed_at < ?", Value::Integer(before.micros()));
    }
    let (source, values) = source(snapshot, status, query)?;
    let sql = format!(
        "SELECT count(*), coalesce(sum(matches), 0) FROM (SELECT ({}) AS matches FROM {source} LIMIT ?)",
        wanted.sql()
    );
    let limit = BoundedCount::limit(query, status);
    let examined = Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1));
    let values = wanted.values().into_iter().chain(values).chain([examined]);
    let (examined, matched): (i64, i64) =
        snapshot.prepare_cached(&sql)?.query_row(params_from_iter(values), |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(BoundedCount::of(limit, examined.unsigned_abs(), matched.unsigned_abs()))
}

/// The intents to examine for a status, as a table with an index and a condition that the index supports, and its values.
fn source(snapshot: &Connection, status: Status, query: &ListQuery) -> Result<(String, Vec<Value>), rusqlite::Error> {
    if let Some(redrive) = query.redrive {
        let of_redrive = "submission_intent_options o INDEXED BY submission_intent_options_redrive
             CROSS JOIN submission_intents i ON i.intent_seq = o.intent_seq WHERE o.redrive_id = ?";
        return Ok((of_redrive.to_owned(), vec![Value::Text(redrive.to_string())]));
    }
    let target = query.target.as_ref().map(|target| Value::Text(target.to_string()));
    let numbers = NumberRange::of(snapshot, query)?;
    let (in_range, values) = (numbers.sql(), numbers.values());
    let of_status = |index: &str| {
        format!(
            "submission_intents i INDEXED BY {index} WHERE i.status = '{}' AND {in_range} ORDER BY i.intent_seq DESC",
            status.as_str()
        )
    };
    Ok(match (status, target) {
        // This index has the contract and the number, so its entries are enough.
        (Status::Pending, target) => {
            let of_target = if target.is_some() { format!(" AND {OF_TARGET}") } else { String::new() };
            let index = "submission_intents i INDEXED BY submission_intents_pending";
            (format!("{index} WHERE i.status = 'pending'{of_target}"), target.into_iter().collect())
        }
        (Status::Rejected, _) => (of_status("submission_intents_rejected"), values.collect()),
        (Status::Exhausted, _) => (of_status("submission_intents_exhausted"), values.collect()),
        // Accepted intents have no index of their own, because nearly all intents are accepted.
        (Status::Accepted, None) => {
            (format!("submission_intents i WHERE {in_range} ORDER BY i.intent_seq DESC"), values.collect())
        }
        (Status::Accepted, Some(target)) => {
            let index = "submission_intents i INDEXED BY submission_intents_by_contract";
            (format!("{index} WHERE {OF_TARGET} AND {in_range}"), [target].into_iter().chain(values).collect())
        }
    })
}
