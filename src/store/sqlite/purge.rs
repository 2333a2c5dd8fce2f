//! Deletes old terminal intents, in transactions that are shorter than an ordinary commit.
//!
//! Commits and purges take turns on the one connection that writes, so the time that a purge takes is time that
//! submissions wait. It therefore ends after half of what a commit took of late, however many intents that were: on a
//! busy store, where each commit carries many intents, each purge deletes as many. It is not synced to disk either:
//! what a power failure brings back is deleted again.

use std::time::Duration;

use rusqlite::{Connection, Transaction, params};

use super::connection::{self, begin};
use super::numbers::Numbers;
use super::schedule::as_limit;
use super::{leases, messages};
use crate::domain::intent::IntentSeq;
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::platform::clock::{WallClock, monotonic};
use crate::store::{PurgeCursor, PurgeRequest, Purged};

/// A purge takes at least this long, if there is enough to delete: less would be mostly overhead.
const SHORTEST: Duration = Duration::from_micros(300);
/// And at most this long, also when commits are slow: more would be felt by whoever submits.
const LONGEST: Duration = Duration::from_millis(3);

/// Pages that the deletion of one intent writes, about: its own, and one of the index of ids, where neighbours are others.
pub const PAGES_EACH: usize = 2;

/// Old intents in the order of completion, and whether a webhook event is pending for each.
pub const OLD: &str = "
    SELECT i.completed_at, i.intent_seq, EXISTS
        (SELECT 1 FROM submission_webhook_events w WHERE w.intent_seq = i.intent_seq AND w.status = 'pending')
    FROM submission_intents i
    WHERE i.completed_at < ?1 AND (i.completed_at, i.intent_seq) > (?2, ?3)
    ORDER BY i.completed_at, i.intent_seq LIMIT ?4";

/// Everything that belongs to intents with consecutive numbers, and the intents themselves last. Rows that refer to others
/// come first. A range costs a tenth of what its rows cost one by one: most intents have nothing in most of these tables.
pub const DELETIONS: [&str; 7] = [
    "DELETE FROM submission_jobs WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_traces WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_webhook_tries WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_webhook_events WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_attempts WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_payloads WHERE intent_seq BETWEEN ?1 AND ?2",
    "DELETE FROM submission_intents WHERE intent_seq BETWEEN ?1 AND ?2",
];

/// Intents that are deleted before the time is looked at again.
pub const CHUNK: usize = 32;

/// How long a purge may take on a store whose commits take so long.
pub fn slice(commit: Duration) -> Duration {
    (commit / 2).clamp(SHORTEST, LONGEST)
}

/// Deletes the oldest terminal intents, if they are old enough and no webhook event is pending for them.
pub fn run(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    request: &PurgeRequest,
    slice: Duration,
) -> Result<Option<Purged>, rusqlite::Error> {
    connection::set_durable(connection, false)?;
    let purged = purge(connection, clock, term, request, slice);
    connection::set_durable(connection, true)?;
    purged
}

fn purge(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    request: &PurgeRequest,
    slice: Duration,
) -> Result<Option<Purged>, rusqlite::Error> {
    let started = monotonic();
    let (transaction, now) = begin(connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    let old = examine(&transaction, now, request)?;
    Numbers::load(&transaction)?.keep(&transaction)?;
    let (mut intents, mut examined) = (0, 0);
    for chunk in old.chunks(CHUNK) {
        let mut doomed: Vec<i64> = chunk.iter().filter(|(_, is_owed)| !is_owed).map(|(old, _)| old.seq.0).collect();
        doomed.sort_unstable();
        messages::forget(&transaction, &doomed)?;
        delete(&transaction, &doomed)?;
        (intents, examined) = (intents + doomed.len(), examined + chunk.len());
        if monotonic().duration_since(started) >= slice {
            break;
        }
    }
    transaction.commit()?;
    let more = examined < old.len() || old.len() >= request.limit;
    let last = old.get(..examined).and_then(<[_]>::last).map(|(cursor, _)| *cursor);
    Ok(Some(Purged { intents, next: last.filter(|_| more), took: monotonic().duration_since(started) }))
}

fn examine(
    transaction: &Transaction<'_>,
    now: Timestamp,
    request: &PurgeRequest,
) -> Result<Vec<(PurgeCursor, bool)>, rusqlite::Error> {
    let age = i64::try_from(request.older_than.as_micros()).unwrap_or(i64::MAX);
    let before = now.micros().saturating_sub(age);
    let (completed_at, seq) =
        request.after.map_or((i64::MIN, i64::MIN), |after| (after.completed_at.micros(), after.seq.0));
    transaction
        .prepare_cached(OLD)?
        .query_map(params![before, completed_at, seq, as_limit(request.limit)], |row| {
            let cursor = PurgeCursor { completed_at: Timestamp::from_micros(row.get(0)?), seq: IntentSeq(row.get(1)?) };
            Ok((cursor, row.get(2)?))
        })?
        .collect()
}

/// Deletes intents, given in the order of their numbers.
fn delete(transaction: &Transaction<'_>, doomed: &[i64]) -> Result<(), rusqlite::Error> {
    for run in doomed.chunk_by(|one, next| next - one == 1) {
        if let (Some(first), Some(last)) = (run.first(), run.last()) {
            for sql in DELETIONS {
                transaction.prepare_cached(sql)?.execute([first, last])?;
            }
        }
    }
    Ok(())
}
