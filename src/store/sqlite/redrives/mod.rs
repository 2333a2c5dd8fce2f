//! Redrives: reads, changes and deletes the rows of redrives. [`plan`] makes plans, and [`work`] creates the new
//! intents.

pub(super) mod plan;
pub(super) mod work;

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::connection::{begin_transaction, read_now};
use super::read::{INTENT_COLUMNS, INTENT_TABLES, INTENT_WIDTH, intent_of, optional, parsed};
use super::schedule::as_limit;
use super::{audit, leases};
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::{IntentId, Status};
use crate::domain::lease::Term;
use crate::domain::redrive::{PLAN_LIFETIME, PlanSummary, RedriveChange, RedriveId, RedriveRate, RedriveState};
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::redrive::{ITEMS_EACH, STALE_PLANNING};
use crate::store::{ChangedRedrive, Redrive, RedriveOutcomes, RedrivePage, RedriveSeq, RedriveSource, RunningRedrive};

const COLUMNS: &str = "redrive_id, state, planned_at, started_at, ended_at, filter, include_unknown, note, rate_per_second, \
     intent_count, created_count, skipped_count, plan_summary, outcomes";

/// The condition for redrives that users can see. Plans that are still being made and expired plans do not meet it.
/// `?1` is [`oldest_plan`].
const SEEN: &str = "state <> 'planning' AND (state <> 'planned' OR planned_at > ?1)";

/// A plan that was made at this time or earlier has expired.
fn oldest_plan(now: Timestamp) -> i64 {
    before(now, PLAN_LIFETIME)
}

fn before(now: Timestamp, duration: Duration) -> i64 {
    now.micros().saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
}

/// Reads an intent with everything that a redrive copies from it. Intents of jobs are not found.
pub(super) fn source(connection: &mut Connection, id: &IntentId) -> Result<Option<RedriveSource>, rusqlite::Error> {
    let sql = format!(
        "SELECT {INTENT_COLUMNS}, (SELECT p.payload FROM submission_payloads p WHERE p.intent_seq = i.intent_seq),
             coalesce((SELECT o.gateway_key FROM submission_intent_options o WHERE o.intent_seq = i.intent_seq), i.intent_id)
         FROM {INTENT_TABLES} WHERE i.intent_id = ?1 AND i.intent_seq >= 0"
    );
    connection
        .prepare_cached(&sql)?
        .query_row([id.as_str()], |row| {
            Ok(RedriveSource {
                intent: intent_of(row)?,
                payload: row.get::<_, Vec<u8>>(INTENT_WIDTH)?.into(),
                gateway_key: parsed(row, INTENT_WIDTH + 1, |text| IntentId::parse(text).ok())?,
            })
        })
        .optional()
}

/// Reads a redrive.
pub(super) fn find(
    connection: &mut Connection,
    clock: &WallClock,
    id: RedriveId,
) -> Result<Option<Redrive>, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    find_in(&snapshot, id, now)
}

fn find_in(snapshot: &Connection, id: RedriveId, now: Timestamp) -> Result<Option<Redrive>, rusqlite::Error> {
    let sql = format!("SELECT {COLUMNS} FROM submission_redrives WHERE redrive_id = ?2 AND {SEEN}");
    let found =
        snapshot.prepare_cached(&sql)?.query_row(params![oldest_plan(now), id.to_string()], redrive_of).optional()?;
    found.map(|found| found.with_outcomes(snapshot)).transpose()
}

/// Reads a page of redrives, the newest first. If the one before the page was deleted meanwhile, the page is empty.
pub(super) fn list(
    connection: &mut Connection,
    clock: &WallClock,
    after: Option<RedriveId>,
    limit: usize,
) -> Result<RedrivePage, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let sql = format!(
        "SELECT {COLUMNS} FROM submission_redrives
         WHERE {SEEN} AND (?2 IS NULL OR redrive_seq < (SELECT redrive_seq FROM submission_redrives WHERE redrive_id = ?2))
         ORDER BY redrive_seq DESC LIMIT ?3"
    );
    let rows = snapshot
        .prepare_cached(&sql)?
        .query_map(
            params![oldest_plan(now), after.map(|id| id.to_string()), as_limit(limit.saturating_add(1))],
            redrive_of,
        )?
        .collect::<Result<Vec<_>, _>>()?;
    let redrives = rows.into_iter().map(|row| row.with_outcomes(&snapshot)).collect::<Result<_, _>>()?;
    Ok(RedrivePage::of(redrives, limit))
}

/// A redrive as it is stored in its row.
struct Stored {
    redrive: Redrive,
    /// Whether the outcomes in the row are final. Otherwise they are counted from the intents.
    is_final: bool,
}

impl Stored {
    fn with_outcomes(self, snapshot: &Connection) -> Result<Redrive, rusqlite::Error> {
        let Self { redrive, is_final } = self;
        match is_final || redrive.created == 0 {
            true => Ok(redrive),
            false => Ok(Redrive { outcomes: outcomes(snapshot, redrive.id)?, ..redrive }),
        }
    }
}

fn redrive_of(row: &Row<'_>) -> Result<Stored, rusqlite::Error> {
    let moment = |column| row.get::<_, Option<i64>>(column).map(|micros| micros.map(Timestamp::from_micros));
    let outcomes = optional(row, 13, RedriveOutcomes::of_text)?;
    let redrive = Redrive {
        id: parsed(row, 0, RedriveId::parse)?,
        state: parsed(row, 1, RedriveState::parse)?,
        planned_at: Timestamp::from_micros(row.get(2)?),
        started_at: moment(3)?,
        ended_at: moment(4)?,
        filter: row.get(5)?,
        include_unknown: row.get(6)?,
        note: row.get(7)?,
        rate: row.get::<_, Option<u32>>(8)?.and_then(RedriveRate::new),
        count: count(row, 9)?,
        created: count(row, 10)?,
        skipped: count(row, 11)?,
        plan: parsed(row, 12, |text| serde_json::from_str(text).ok())?,
        outcomes: outcomes.unwrap_or_default(),
    };
    Ok(Stored { redrive, is_final: outcomes.is_some() })
}

fn count(row: &Row<'_>, column: usize) -> Result<u64, rusqlite::Error> {
    row.get(column).map(i64::unsigned_abs)
}

/// Counts the intents that a redrive created, by status.
fn outcomes(snapshot: &Connection, id: RedriveId) -> Result<RedriveOutcomes, rusqlite::Error> {
    let mut outcomes = RedriveOutcomes::default();
    let mut statement = snapshot.prepare_cached(OUTCOMES)?;
    let mut rows = statement.query([id.to_string()])?;
    while let Some(row) = rows.next()? {
        outcomes.add(parsed(row, 0, Status::parse)?, count(row, 1)?);
    }
    Ok(outcomes)
}

/// The number of intents that a redrive created, by status.
pub(super) const OUTCOMES: &str = "
    SELECT i.status, count(*)
    FROM submission_intent_options o INDEXED BY submission_intent_options_redrive
        JOIN submission_intents i ON i.intent_seq = o.intent_seq
    WHERE o.redrive_id = ?1 GROUP BY i.status";

/// Starts, pauses, resumes or cancels a redrive.
pub(super) fn change(
    connection: &mut Connection,
    clock: &WallClock,
    id: RedriveId,
    change: RedriveChange,
    by: &Actor,
) -> Result<ChangedRedrive, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let Some(found) = find_in(&transaction, id, now)? else { return Ok(ChangedRedrive::NotFound) };
    let state = match change.apply(found.state, found.count) {
        Ok(state) => state,
        Err(refusal) => return Ok(ChangedRedrive::Refused(refusal)),
    };
    let rate = match change {
        RedriveChange::Start { rate } => Some(rate.per_second()),
        _ => None,
    };
    transaction.execute(
        "UPDATE submission_redrives SET state = ?2, rate_per_second = coalesce(?3, rate_per_second),
             started_at = iif(?3 IS NULL, started_at, ?4), ended_at = iif(?2 = 'cancelled', ?4, NULL)
         WHERE redrive_id = ?1",
        params![id.to_string(), state.as_str(), rate, now.micros()],
    )?;
    let changed = find_in(&transaction, id, now)?;
    audit::append(&transaction, &NewAuditEntry::change_redrive(by, id, change), now)?;
    transaction.commit()?;
    Ok(changed.map_or(ChangedRedrive::NotFound, |changed| ChangedRedrive::Changed(Box::new(changed))))
}

/// Returns the running redrives, the oldest first.
pub(super) fn running(connection: &Connection) -> Result<Vec<RunningRedrive>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT redrive_seq, redrive_id, rate_per_second, created_count, plan_summary FROM submission_redrives
             WHERE state = 'running' ORDER BY started_at, redrive_seq",
        )?
        .query_map([], |row| {
            Ok(RunningRedrive {
                seq: RedriveSeq(row.get(0)?),
                id: parsed(row, 1, RedriveId::parse)?,
                rate: RedriveRate::new(row.get(2)?).unwrap_or(RedriveRate::DEFAULT),
                created: count(row, 3)?,
                targets: parsed(row, 4, |text| serde_json::from_str::<PlanSummary>(text).ok())?.targets,
            })
        })?
        .collect()
}

/// Deletes the items of redrives that have ended and of expired plans. When none of these are left, it stores the final
/// outcomes of redrives whose intents have all ended, and deletes expired plans and old redrives. Returns whether more
/// items are left to delete; `None` if the term is over.
pub(super) fn tidy(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    keep_for: Option<Duration>,
) -> Result<Option<bool>, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    let items = transaction
        .prepare_cached(
            "DELETE FROM submission_redrive_items WHERE (redrive_seq, target_number, position) IN (
                 SELECT t.redrive_seq, t.target_number, t.position
                 FROM submission_redrives r CROSS JOIN submission_redrive_items t ON t.redrive_seq = r.redrive_seq
                 WHERE r.state IN ('completed', 'cancelled') OR (r.state = 'planning' AND r.planned_at <= ?1)
                     OR (r.state = 'planned' AND r.planned_at <= ?2)
                 LIMIT ?3)",
        )?
        .execute(params![before(now, STALE_PLANNING), oldest_plan(now), as_limit(ITEMS_EACH)])?;
    let more = items >= ITEMS_EACH;
    if !more {
        keep_outcomes(&transaction)?;
        transaction
            .prepare_cached(
                "DELETE FROM submission_redrives
                 WHERE (state = 'planning' AND planned_at <= ?1) OR (state = 'planned' AND planned_at <= ?2)
                     OR (ended_at < ?3 AND outcomes IS NOT NULL)",
            )?
            .execute(params![
                before(now, STALE_PLANNING),
                oldest_plan(now),
                keep_for.map(|keep_for| before(now, keep_for))
            ])?;
    }
    transaction.commit()?;
    Ok(Some(more))
}

/// Stores the outcomes of each redrive that has ended and of which no intent is pending, because retention may delete
/// the intents before the redrive.
fn keep_outcomes(transaction: &Transaction<'_>) -> Result<(), rusqlite::Error> {
    let open: Vec<RedriveId> = transaction
        .prepare_cached("SELECT redrive_id FROM submission_redrives WHERE ended_at IS NOT NULL AND outcomes IS NULL")?
        .query_map([], |row| parsed(row, 0, RedriveId::parse))?
        .collect::<Result<_, _>>()?;
    for id in open {
        let waits: bool = transaction.prepare_cached(WAITS)?.exists([id.to_string()])?;
        if !waits {
            let outcomes = outcomes(transaction, id)?.to_text();
            transaction.execute(
                "UPDATE submission_redrives SET outcomes = ?2 WHERE redrive_id = ?1",
                params![id.to_string(), outcomes],
            )?;
        }
    }
    Ok(())
}

/// Finds a pending intent of a redrive. It looks at the newest intents first, because they end last.
const WAITS: &str = "
    SELECT 1 FROM submission_intent_options o INDEXED BY submission_intent_options_redrive
        JOIN submission_intents i ON i.intent_seq = o.intent_seq
    WHERE o.redrive_id = ?1 AND i.status = 'pending' ORDER BY o.intent_seq DESC LIMIT 1";
