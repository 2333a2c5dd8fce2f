//! Reads the event feed: intents that have ended, in the order of the transactions that ended them.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::jobs::{JOB_COLUMNS, job_of};
use super::read::{INTENT_COLUMNS, INTENT_WIDTH, intent_of};
use super::schedule::as_limit;
use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::job::SubmissionId;
use crate::domain::time::Timestamp;
use crate::platform::mutated;
use crate::store::events::FeedBounds;
use crate::store::{Event, EventFilter, EventPage, EventPosition, EventQuery, EventRead, EventSubject, EventsAfter};

const BOUNDS: &str = "SELECT c.last_at, f.ended_at, f.intent_seq FROM submission_clock c, submission_feed_start f";

/// Where the tables of the feed come together. The index decides the order, so rows are read one after the other.
const TABLES: &str = "submission_intents i INDEXED BY submission_intents_ended
    JOIN submission_contracts c USING (contract_id)
    LEFT JOIN submission_jobs b USING (intent_seq) LEFT JOIN submission_traces t USING (intent_seq)";

const AFTER: &str = "i.completed_at IS NOT NULL AND (i.last_modified_at, i.intent_seq) > (?1, ?2)
    ORDER BY i.last_modified_at, i.intent_seq LIMIT ?3";

/// The columns of [`TABLES`] that [`subject_of`] and [`is_included`] read by number: after those of an intent.
const TENANT: usize = INTENT_WIDTH + 1;
const WORKSPACE: usize = INTENT_WIDTH + 2;
const ENDED_AT: usize = INTENT_WIDTH + 7;

/// Reads a page of the feed, as of one moment.
pub(super) fn read(connection: &mut Connection, query: &EventQuery) -> Result<EventRead, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let bounds = snapshot.prepare_cached(BOUNDS)?.query_row([], |row| {
        let deleted = EventPosition { at: Timestamp::from_micros(row.get(1)?), seq: IntentSeq(row.get(2)?) };
        Ok(FeedBounds { last_at: Timestamp::from_micros(row.get(0)?), deleted })
    })?;
    let after = match query.after {
        EventsAfter::Oldest => EventPosition::START,
        EventsAfter::Now => bounds.end(),
        EventsAfter::Position(position) => position,
        EventsAfter::Job(id) => match of_job(&snapshot, id)? {
            Some(position) => position,
            None => return Ok(EventRead::Expired),
        },
    };
    match bounds.refusal(after) {
        Some(refusal) => Ok(refusal),
        None => page(&snapshot, query, after, bounds).map(|page| EventRead::Page(page.after(bounds.deleted))),
    }
}

/// Reads the events after a position until the page is full, enough events were examined, or there are no more.
fn page(
    snapshot: &Connection,
    query: &EventQuery,
    after: EventPosition,
    bounds: FeedBounds,
) -> Result<EventPage, rusqlite::Error> {
    let sql = format!("SELECT {INTENT_COLUMNS}, {JOB_COLUMNS}, i.last_modified_at FROM {TABLES} WHERE {AFTER}");
    let mut statement = snapshot.prepare_cached(&sql)?;
    let mut rows = statement.query(params![after.at.micros(), after.seq.0, as_limit(query.examine)])?;
    let (mut events, mut examined, mut last) = (Vec::new(), 0, after);
    while events.len() < query.limit
        && let Some(row) = rows.next()?
    {
        let position = EventPosition { at: Timestamp::from_micros(row.get(ENDED_AT)?), seq: IntentSeq(row.get(0)?) };
        (examined, last) = (examined + 1, position);
        if !is_included(row, &query.filter)? {
            continue;
        }
        match subject_of(row, position.seq) {
            Ok(subject) => events.push(Event { position, subject }),
            Err(error) => log::error!("event_unreadable intent_seq={} error={error:?}", position.seq.0),
        }
    }
    let at_end = events.len() < query.limit && examined < query.examine;
    let end = if mutated!(FeedAheadOfCommits) {
        EventPosition::after_all(bounds.last_at + Duration::from_secs(1))
    } else {
        bounds.end()
    };
    let last = if mutated!(FeedSkipsPage) { bounds.end() } else { last };
    Ok(EventPage { events, next: if at_end { end } else { last }, at_end })
}

/// Whether the filter includes the event of a row. The numbers of jobs are below zero.
fn is_included(row: &Row<'_>, filter: &EventFilter) -> Result<bool, rusqlite::Error> {
    let is_job = row.get::<_, i64>(0)? < 0;
    let text = |column| row.get_ref(column).and_then(|value| Ok(value.as_str()?));
    Ok(match filter {
        EventFilter::All => true,
        EventFilter::Intents { target: None } => !is_job,
        EventFilter::Intents { target: Some(target) } => !is_job && text(2)? == target.as_str(),
        EventFilter::Jobs { tenant, workspaces } => {
            is_job && text(TENANT)? == tenant && {
                let workspace = text(WORKSPACE)?;
                workspaces.as_ref().is_none_or(|names| names.iter().any(|name| name == workspace))
            }
        }
    })
}

fn subject_of(row: &Row<'_>, seq: IntentSeq) -> Result<EventSubject, rusqlite::Error> {
    Ok(if seq.0 < 0 { EventSubject::Job(Box::new(job_of(row)?)) } else { EventSubject::Intent(intent_of(row)?) })
}

/// The position of the event of a job; `None` if the job has been deleted, or has no event.
fn of_job(snapshot: &Connection, id: SubmissionId) -> Result<Option<EventPosition>, rusqlite::Error> {
    snapshot
        .prepare_cached(
            "SELECT last_modified_at, intent_seq FROM submission_intents
             WHERE intent_id = ?1 AND completed_at IS NOT NULL",
        )?
        .query_row([IntentId::of_job(id).as_str()], |row| {
            Ok(EventPosition { at: Timestamp::from_micros(row.get(0)?), seq: IntentSeq(row.get(1)?) })
        })
        .optional()
}
