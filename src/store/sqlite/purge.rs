//! Deletes old terminal intents, in transactions that are shorter than an ordinary commit.
//!
//! Commits and purges use the same connection, so submissions wait while a purge runs. A purge therefore ends after half of
//! the average duration of recent commits, however many intents it has deleted by then. On a busy store, where each commit
//! inserts many intents, each purge also deletes many. A purge is not synced to disk: if a power failure brings intents
//! back, they are deleted again.

use std::time::Duration;

use rusqlite::{Connection, Transaction, params};

use super::connection::{self, begin_transaction};
use super::numbers::Numbers;
use super::schedule::as_limit;
use super::{leases, messages};
use crate::domain::intent::IntentSeq;
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::platform::clock::{WallClock, monotonic};
use crate::platform::mutated;
use crate::store::{PurgeCursor, PurgeRequest, Purged};

/// The shortest time limit of a purge. Below it most of the time would be overhead.
const MIN_DURATION: Duration = Duration::from_micros(300);
/// The longest time limit of a purge, even when commits are slow, because clients wait for it.
const MAX_DURATION: Duration = Duration::from_millis(3);

/// About how many pages the deletion of one intent writes: one of the table, which it shares with its neighbours, and one
/// of the index of ids, where it has other neighbours.
pub(super) const PAGES_EACH: usize = 2;

/// Old intents in the order of the event feed, and whether a webhook event is pending for each.
pub(super) const OLD: &str = "
    SELECT i.last_modified_at, i.intent_seq, EXISTS
        (SELECT 1 FROM submission_webhook_events w WHERE w.intent_seq = i.intent_seq AND w.status = 'pending')
    FROM submission_intents i
    WHERE i.completed_at < ?1 AND i.last_modified_at < ?1 AND (i.last_modified_at, i.intent_seq) > (?2, ?3)
    ORDER BY i.last_modified_at, i.intent_seq LIMIT ?4";

/// Records the last event of the feed that is deleted.
const DELETED: &str = "
    UPDATE submission_feed_start SET ended_at = ?1, intent_seq = ?2 WHERE (ended_at, intent_seq) < (?1, ?2)";

/// Deletes intents with consecutive numbers and everything that belongs to them. Rows that refer to others are deleted
/// first, and the intents last. A range takes a tenth of the time of its single rows, because most intents have no rows in
/// most tables.
pub(super) const DELETIONS: [&str; 8] = [
    "DELETE FROM submission_jobs WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_traces WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_intent_options WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_webhook_tries WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_webhook_events WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_attempts WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_payloads WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_intents WHERE intent_seq BETWEEN ?1 AND ?2",
];

/// Intents that are deleted before the time limit is checked again.
pub(super) const CHUNK: usize = 32;

/// Returns the time limit of a purge on a store with this average duration of a commit.
pub(super) fn time_limit(commit: Duration) -> Duration {
    (commit / 2).clamp(MIN_DURATION, MAX_DURATION)
}

/// Deletes the oldest terminal intents, if they are old enough and no webhook event is pending for them.
pub(super) fn run(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    request: &PurgeRequest,
    time_limit: Duration,
) -> Result<Option<Purged>, rusqlite::Error> {
    connection::set_durable(connection, false)?;
    let purged = purge(connection, clock, term, request, time_limit);
    connection::set_durable(connection, true)?;
    purged
}

fn purge(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    request: &PurgeRequest,
    time_limit: Duration,
) -> Result<Option<Purged>, rusqlite::Error> {
    let started = monotonic();
    let (transaction, now) = begin_transaction(connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    let old = examine(&transaction, now, request)?;
    Numbers::load(&transaction)?.store(&transaction)?;
    let (mut intents, mut examined) = (0, 0);
    for chunk in old.chunks(CHUNK) {
        let mut deletable: Vec<i64> =
            chunk.iter().filter(|(_, is_pending)| !is_pending).map(|(old, _)| old.seq.0).collect();
        deletable.sort_unstable();
        messages::delete(&transaction, &deletable)?;
        delete(&transaction, &deletable)?;
        if let Some((last, _)) = chunk.iter().rfind(|(_, is_pending)| !is_pending) {
            transaction.prepare_cached(DELETED)?.execute(params![last.ended_at.micros(), last.seq.0])?;
        }
        (intents, examined) = (intents + deletable.len(), examined + chunk.len());
        if monotonic().duration_since(started) >= time_limit {
            break;
        }
    }
    transaction.commit()?;
    let more = examined < old.len() || old.len() >= request.limit;
    let last = old.get(..examined).and_then(<[_]>::last).map(|(cursor, _)| *cursor);
    Ok(Some(Purged { intents, next: last.filter(|_| more), took: monotonic().duration_since(started) }))
}

/// Reads the next old intents, and whether a webhook event is pending for each.
fn examine(
    transaction: &Transaction<'_>,
    now: Timestamp,
    request: &PurgeRequest,
) -> Result<Vec<(PurgeCursor, bool)>, rusqlite::Error> {
    let age = if mutated!(PurgeTooEarly) { Duration::ZERO } else { request.older_than };
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    let before = now.micros().saturating_sub(age);
    let (ended_at, seq) = request.after.map_or((i64::MIN, i64::MIN), |after| (after.ended_at.micros(), after.seq.0));
    transaction
        .prepare_cached(OLD)?
        .query_map(params![before, ended_at, seq, as_limit(request.limit)], |row| {
            let cursor = PurgeCursor { ended_at: Timestamp::from_micros(row.get(0)?), seq: IntentSeq(row.get(1)?) };
            Ok((cursor, row.get(2)?))
        })?
        .collect()
}

/// Deletes intents. They must be in the order of their numbers.
fn delete(transaction: &Transaction<'_>, deletable: &[i64]) -> Result<(), rusqlite::Error> {
    for run in deletable.chunk_by(|one, next| next - one == 1) {
        if let (Some(first), Some(last)) = (run.first(), run.last()) {
            for sql in DELETIONS {
                transaction.prepare_cached(sql)?.execute([first, last])?;
            }
        }
    }
    Ok(())
}
