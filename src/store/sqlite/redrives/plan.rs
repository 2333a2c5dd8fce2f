//! Plans redrives: reads the failed intents that match, and stores the set.
//!
//! The intents are read on a connection for reading, so that even a large plan delays no write. Then the set is
//! inserted in short transactions. Only the last of them is synced, and it makes the plan visible. If planning is
//! interrupted, the rows of the unfinished plan are deleted later.

use std::collections::HashMap;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::super::audit;
use super::super::connection::{self, begin_transaction};
use super::super::failures;
use super::super::read::{first_seq_from, next_moment, parsed};
use super::super::{SqliteStore, Writer};
use crate::domain::failure::failure_cause;
use crate::domain::intent::{IntentSeq, TargetName};
use crate::domain::redrive::{
    Candidate, Conditions, FailedStatus, PlannedItem, PlannedSet, Planner, RedriveFilter, TooMany,
};
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::platform::mutated;
use crate::store::redrive::{ITEMS_EACH, is_unknown, plan_lost};
use crate::store::{NewRedrive, Planning, Redrive, RedriveSeq, StoreError};

/// Plans a redrive.
pub(in crate::store::sqlite) async fn run(store: SqliteStore, new: NewRedrive) -> Result<Planning, StoreError> {
    let filter = (new.filter.clone(), Planner::new(new.registered.clone(), new.include_unknown));
    let selected = store.read(move |connection, _| select(connection, &filter.0, filter.1)).await?;
    let Ok((set, sample)) = selected else { return Ok(Planning::TooMany) };
    let id = new.id;
    let summary = serde_json::to_string(&set.summary(sample));
    let summary = summary.map_err(StoreError::unexpected)?;
    let entry = new.audit_entry(set.items.len());
    let seq = store.write(move |writer, clock| begin(writer, clock, &new)).await?;
    let mut next = 0;
    for items in set.items.chunks(ITEMS_EACH) {
        let (first, items) = (next, items.to_vec());
        next += items.len();
        let inserted = store.write(move |writer, clock| insert(writer, clock, seq, first, &items)).await?;
        if !inserted {
            return Err(plan_lost());
        }
    }
    let finish = move |writer: &mut Writer, clock: &WallClock| {
        let (transaction, now) = begin_transaction(&mut writer.connection, clock)?;
        let planned = transaction.execute(
            "UPDATE submission_redrives SET state = 'planned', planned_at = ?2, intent_count = ?3, plan_summary = ?4
             WHERE redrive_seq = ?1 AND state = 'planning'",
            params![seq.0, now.micros(), i64::try_from(next).unwrap_or(i64::MAX), summary],
        )?;
        if planned == 1 {
            audit::append(&transaction, &entry, now)?;
        }
        let planned: Option<Redrive> = super::find_in(&transaction, id, now)?;
        transaction.commit()?;
        Ok(planned)
    };
    store.write(finish).await?.map(Box::new).map(Planning::Planned).ok_or_else(plan_lost)
}

/// Inserts the row of a plan that is not visible yet.
fn begin(writer: &mut Writer, clock: &WallClock, new: &NewRedrive) -> Result<RedriveSeq, rusqlite::Error> {
    let (transaction, now) = begin_transaction(&mut writer.connection, clock)?;
    transaction.execute(
        "INSERT INTO submission_redrives (redrive_id, state, planned_at, filter, include_unknown, note, intent_count,
             created_count, skipped_count, plan_summary)
         VALUES (?1, 'planning', ?2, ?3, ?4, ?5, 0, 0, 0, '')",
        params![new.id.to_string(), now.micros(), new.filter_json, new.include_unknown, new.note],
    )?;
    let seq = RedriveSeq(transaction.last_insert_rowid());
    transaction.commit()?;
    Ok(seq)
}

/// Inserts some of the items of a plan. `first` is the position of the first of them. Returns `false` if the row of the
/// plan was deleted meanwhile.
fn insert(
    writer: &mut Writer,
    clock: &WallClock,
    seq: RedriveSeq,
    first: usize,
    items: &[PlannedItem],
) -> Result<bool, rusqlite::Error> {
    connection::set_durable(&writer.connection, false)?;
    let inserted = insert_unsynced(&mut writer.connection, clock, seq, first, items);
    connection::set_durable(&writer.connection, true)?;
    inserted
}

fn insert_unsynced(
    connection: &mut Connection,
    clock: &WallClock,
    seq: RedriveSeq,
    first: usize,
    items: &[PlannedItem],
) -> Result<bool, rusqlite::Error> {
    let (transaction, _) = begin_transaction(connection, clock)?;
    let planning = "SELECT 1 FROM submission_redrives WHERE redrive_seq = ?1 AND state = 'planning'";
    if !transaction.prepare_cached(planning)?.exists([seq.0])? {
        return Ok(false);
    }
    {
        let mut insert = transaction.prepare_cached(
            "INSERT INTO submission_redrive_items (redrive_seq, target_number, position, intent_seq) VALUES (?1, ?2, ?3, ?4)",
        )?;
        for (position, item) in (first..).zip(items) {
            insert.execute(params![seq.0, item.target, i64::try_from(position).unwrap_or(i64::MAX), item.seq.0])?;
        }
    }
    transaction.commit()?;
    Ok(true)
}

type Selected = Result<(PlannedSet, Vec<String>), TooMany>;

/// Reads the failed intents that match, in one snapshot.
fn select(
    connection: &mut Connection,
    filter: &RedriveFilter,
    mut planner: Planner,
) -> Result<Selected, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let mut reader = Reader::new(&snapshot)?;
    match filter {
        RedriveFilter::Ids(ids) => {
            for id in ids {
                // Intents of jobs have negative numbers and are not redriven.
                let values = vec![Value::Text(id.to_string())];
                let by_id = "i.intent_id = ? AND i.intent_seq >= 0";
                for status in FailedStatus::ALL {
                    if reader.read(status, "", by_id, values.clone(), None, &mut planner)?.is_err() {
                        return Ok(Err(TooMany));
                    }
                }
            }
        }
        RedriveFilter::Matching(conditions) => {
            for status in FailedStatus::ALL.into_iter().filter(|status| conditions.wants(*status)) {
                let (sql, values) = matching(&snapshot, status, conditions)?;
                let cause = conditions.cause.as_deref();
                if reader.read(status, index_of(status), &sql, values, cause, &mut planner)?.is_err() {
                    return Ok(Err(TooMany));
                }
            }
        }
    }
    let set = planner.finish();
    let mut id_of = snapshot.prepare_cached("SELECT intent_id FROM submission_intents WHERE intent_seq = ?1")?;
    let sample = set.sample().map(|seq| id_of.query_row([seq.0], |row| row.get(0))).collect::<Result<_, _>>()?;
    Ok(Ok((set, sample)))
}

/// The partial index of the intents with this status, in the order of their numbers.
fn index_of(status: FailedStatus) -> &'static str {
    match status {
        FailedStatus::Rejected => "INDEXED BY submission_intents_rejected",
        FailedStatus::Exhausted => "INDEXED BY submission_intents_exhausted",
    }
}

/// The column with the reason for this status.
fn reason_of(status: FailedStatus) -> &'static str {
    match status {
        FailedStatus::Rejected => "i.rejected_reason",
        FailedStatus::Exhausted => "i.exhausted_reason",
    }
}

/// The SQL of the conditions, and their values in the same order.
fn matching(
    snapshot: &Connection,
    status: FailedStatus,
    conditions: &Conditions,
) -> Result<(String, Vec<Value>), rusqlite::Error> {
    let Conditions { target, reason, created_after, created_before, completed_after, completed_before, .. } =
        conditions;
    // Numbers are in the order of creation, so a condition on the creation time becomes a range of numbers, which the
    // index has.
    let from = created_after.map(|moment| first_seq_from(snapshot, next_moment(moment))).transpose()?;
    let mut sql = "i.intent_seq >= ?".to_owned();
    let mut values = vec![Value::Integer(from.unwrap_or(0))];
    let mut add = |condition: &str, value: Value| {
        sql += condition;
        values.push(value);
    };
    // An intent that completed before a moment was also created before it.
    let before = [*created_before, *completed_before].into_iter().flatten().min();
    if let Some(moment) = before {
        add(" AND i.intent_seq < ?", Value::Integer(first_seq_from(snapshot, moment)?));
    }
    let micros = |moment: &Timestamp| Value::Integer(moment.micros());
    if let Some(moment) = completed_after {
        add(" AND i.completed_at > ?", micros(moment));
    }
    if let Some(moment) = completed_before {
        add(" AND i.completed_at < ?", micros(moment));
    }
    if let Some(target) = target {
        let of_target =
            " AND i.contract_id IN (SELECT contract_id FROM submission_contracts WHERE submission_target = ?)";
        add(of_target, Value::Text(target.to_string()));
    }
    if let Some(reason) = reason {
        add(&format!(" AND {} = ?", reason_of(status)), Value::Text(reason.clone()));
    }
    Ok((sql, values))
}

/// Reads candidates within a snapshot.
struct Reader<'a> {
    snapshot: &'a Connection,
    targets: HashMap<i64, TargetName>,
}

impl<'a> Reader<'a> {
    fn new(snapshot: &'a Connection) -> Result<Self, rusqlite::Error> {
        let targets = snapshot
            .prepare_cached("SELECT contract_id, submission_target FROM submission_contracts")?
            .query_map([], |row| Ok((row.get(0)?, parsed(row, 1, |text| TargetName::parse(text).ok())?)))?
            .collect::<Result<_, _>>()?;
        Ok(Self { snapshot, targets })
    }

    /// Passes the intents with this status that meet the conditions, and have this cause if there is one, to the planner.
    fn read(
        &mut self,
        status: FailedStatus,
        index: &str,
        conditions: &str,
        values: Vec<Value>,
        cause: Option<&str>,
        planner: &mut Planner,
    ) -> Result<Result<(), TooMany>, rusqlite::Error> {
        // The status is a constant and not a parameter, because SQLite uses a partial index only for a constant.
        let sql = format!(
            "SELECT i.intent_seq, i.contract_id, i.completed_at, {},
                 EXISTS (SELECT 1 FROM submission_intent_options o WHERE o.redrive_of = i.intent_id)
             FROM submission_intents i {index} WHERE i.status = '{}' AND {conditions}",
            reason_of(status),
            status.as_str()
        );
        let mut error_of = self.snapshot.prepare_cached(
            "SELECT error FROM submission_attempts WHERE intent_seq = ?1 ORDER BY attempt_number DESC LIMIT 1",
        )?;
        let mut statement = self.snapshot.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let seq: i64 = row.get(0)?;
            if let Some(cause) = cause {
                let ending = failures::ending_of(self.snapshot, IntentSeq(seq))?;
                let reason = row.get_ref(3)?.as_str().unwrap_or_default();
                if failure_cause(status, reason, ending.as_ref()) != cause {
                    continue;
                }
            }
            let target = self.targets.get(&row.get(1)?).ok_or(rusqlite::Error::QueryReturnedNoRows)?;
            let candidate = Candidate {
                seq: IntentSeq(seq),
                target,
                status,
                reason: row.get_ref(3)?.as_str().unwrap_or_default(),
                completed_at: Timestamp::from_micros(row.get(2)?),
                redriven: row.get(4)?,
            };
            let mut unknown = || match status {
                _ if mutated!(UnknownRedriven) => Ok(false),
                // The gateway rejected the last attempt, so its outcome is known.
                FailedStatus::Rejected => Ok(false),
                FailedStatus::Exhausted => {
                    let error: Option<Option<String>> = error_of.query_row([seq], |row| row.get(0)).optional()?;
                    Ok::<_, rusqlite::Error>(is_unknown(error.flatten().as_deref()))
                }
            };
            if planner.add(candidate, &mut unknown)?.is_err() {
                return Ok(Err(TooMany));
            }
        }
        Ok(Ok(()))
    }
}
