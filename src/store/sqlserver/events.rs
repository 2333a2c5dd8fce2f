//! Reads the event feed on SQL Server, in one round trip.

use serde_json::json;
use tiberius::Row;

use super::database::{Batch, Database};
use super::jobs::{JOB_COLUMNS, job};
use super::read::{need_first, set};
use super::rows::{self, INTENT_COLUMNS};
use super::script::{Values, json_text, plain_text};
use super::statements::READ_CLOCK;
use crate::domain::intent::{IntentId, IntentSeq};
use crate::store::events::FeedBounds;
use crate::store::{
    Event, EventFilter, EventPage, EventPosition, EventQuery, EventRead, EventSubject, EventsAfter, StoreError,
};

/// Builds the query for a page of the feed.
///
/// Events are read only up to the clock: everything up to it is committed, and later ends have later times. What retention
/// has deleted is read last. A deletion meanwhile may remove events that belong to the page, and then the position of the
/// reader is expired.
pub(super) fn batch(query: &EventQuery) -> Batch {
    let mut values = Values::default();
    let start = match query.after {
        EventsAfter::Now => None,
        EventsAfter::Oldest => Some(of_position(&mut values, EventPosition::START)),
        EventsAfter::Position(position) => Some(of_position(&mut values, position)),
        EventsAfter::Job(id) => Some(format!(
            "
SELECT @at = last_modified_at, @seq = intent_seq FROM submission_intents
WHERE intent_id = {} AND completed_at IS NOT NULL;",
            values.text(IntentId::of_job(id).to_string())
        )),
    };
    let Some(start) = start else { return values.batch(READ_CLOCK) };
    let (examine, limit) = (values.count(query.examine), values.count(query.limit));
    let condition = condition(&mut values, &query.filter);
    values.batch(format!(
        "DECLARE @at DATETIME2(6), @seq BIGINT;
DECLARE @page TABLE (intent_seq BIGINT NOT NULL PRIMARY KEY, ended_at DATETIME2(6) NOT NULL);{READ_CLOCK}{start}
INSERT INTO @page (intent_seq, ended_at)
SELECT TOP ({examine}) i.intent_seq, i.last_modified_at FROM submission_intents AS i
WHERE i.completed_at IS NOT NULL AND i.last_modified_at >= @at AND i.last_modified_at <= @last_at
    AND (i.last_modified_at > @at OR i.intent_seq > @seq)
ORDER BY i.last_modified_at, i.intent_seq;
SELECT TOP ({limit}) {INTENT_COLUMNS}, {JOB_COLUMNS}, p.ended_at FROM @page AS p
JOIN submission_intents AS i ON i.intent_seq = p.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
LEFT JOIN submission_jobs AS b ON b.intent_seq = p.intent_seq
LEFT JOIN submission_traces AS t ON t.intent_seq = p.intent_seq{condition}
ORDER BY p.ended_at, p.intent_seq;
SELECT TOP (1) p.ended_at, p.intent_seq, (SELECT COUNT_BIG(*) FROM @page) AS examined
FROM @page AS p ORDER BY p.ended_at DESC, p.intent_seq DESC;
SELECT ended_at, intent_seq, @at AS after_at, @seq AS after_seq FROM submission_feed_start;"
    ))
}

fn of_position(values: &mut Values, position: EventPosition) -> String {
    let (at, seq) = (values.moment(position.at), values.number(position.seq.0));
    format!("\nSELECT @at = {at}, @seq = {seq};")
}

fn condition(values: &mut Values, filter: &EventFilter) -> String {
    match filter {
        EventFilter::All => String::new(),
        EventFilter::Intents { target } => {
            let target = target.as_ref().map(|target| values.text(target.as_str()));
            let target = target.map(|target| format!(" AND c.submission_target = {target}")).unwrap_or_default();
            format!("\nWHERE b.intent_seq IS NULL{target}")
        }
        EventFilter::Jobs { tenant, workspaces } => {
            let tenant = values.text(tenant);
            let workspaces = workspaces.as_ref().map(|names| {
                let names = values.json(names.iter().map(|name| json!({ "name": json_text(name) })).collect());
                let name = plain_text("j.name");
                format!(" AND b.workspace_id IN (SELECT {name} FROM OPENJSON({names}) WITH (name NVARCHAR(800)) AS j)")
            });
            format!("\nWHERE b.tenant_id = {tenant}{}", workspaces.unwrap_or_default())
        }
    }
}

pub(super) async fn read(database: &Database, query: EventQuery) -> Result<EventRead, StoreError> {
    let results = database.run(batch(&query)).await?;
    let last_at = rows::need_moment(need_first(&results)?, "last_at")?;
    if query.after == EventsAfter::Now {
        let page = EventPage { events: Vec::new(), next: EventPosition::after_all(last_at), at_end: true };
        return Ok(EventRead::Page(page));
    }
    let start = need_first(results.get(3..).unwrap_or_default())?;
    let Some(at) = rows::moment(start, "after_at")? else { return Ok(EventRead::Expired) };
    let after = EventPosition { at, seq: IntentSeq(rows::need(start, "after_seq")?) };
    let bounds = FeedBounds { last_at, deleted: position(start)? };
    if let Some(refusal) = bounds.refusal(after) {
        return Ok(refusal);
    }
    let rows = set(&results, 1);
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        let position = position(row)?;
        match subject(row) {
            Ok(subject) => events.push(Event { position, subject }),
            Err(error) => log::error!("event_unreadable intent_seq={} store_error={error:?}", position.seq.0),
        }
    }
    let full = rows.len() >= query.limit;
    let examined = set(&results, 2).first();
    let count = examined.map(|row| rows::need::<i64>(row, "examined")).transpose()?.unwrap_or(0);
    let last = if full { rows.last() } else { examined };
    let at_end = !full && usize::try_from(count).unwrap_or(usize::MAX) < query.examine;
    let next = last.filter(|_| !at_end).map(position).transpose()?.unwrap_or_else(|| bounds.end());
    Ok(EventRead::Page(EventPage { events, next, at_end }.after(bounds.deleted)))
}

fn position(row: &Row) -> Result<EventPosition, StoreError> {
    Ok(EventPosition { at: rows::need_moment(row, "ended_at")?, seq: rows::seq(row)? })
}

fn subject(row: &Row) -> Result<EventSubject, StoreError> {
    Ok(match rows::get::<&str>(row, "submission_id")? {
        Some(_) => EventSubject::Job(Box::new(job(row)?)),
        None => EventSubject::Intent(rows::intent(row)?),
    })
}
