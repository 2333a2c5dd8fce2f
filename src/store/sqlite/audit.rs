//! The audit log: appends entries in the transaction of their action, and reads and purges them.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params, params_from_iter};

use super::connection::begin_transaction;
use super::leases;
use super::read::next_moment;
use super::schedule::as_limit;
use crate::domain::actor::Actor;
use crate::domain::audit::{AuditEntry, ChainHash, ChainLink, NewAuditEntry, entry_hash};
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::{AuditChain, AuditPage, AuditPurge, AuditPurged, AuditQuery};

const COLUMNS: &str =
    "entry_id, recorded_at, actor_kind, actor_name, address, action, subject, details, previous_hash, hash";

/// Appends an entry as a part of this transaction, whose time is `now`.
pub(super) fn append(
    transaction: &Transaction<'_>,
    entry: &NewAuditEntry,
    now: Timestamp,
) -> Result<(), rusqlite::Error> {
    let previous = head(transaction)?;
    let id = previous.id + 1;
    let hash = entry_hash(previous.hash, id, now, &entry.content_hash());
    transaction
        .prepare_cached(&format!(
            "INSERT INTO submission_audit_log ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
        ))?
        .execute(params![
            id,
            now.micros(),
            entry.actor.kind().as_str(),
            entry.actor.name().unwrap_or_default(),
            entry.address(),
            entry.action.as_str(),
            entry.subject,
            entry.details,
            previous.hash.0,
            hash.0
        ])?;
    transaction
        .prepare_cached("UPDATE submission_audit_head SET last_id = ?1, last_hash = ?2")?
        .execute(params![id, hash.0])
        .map(drop)
}

/// Appends an entry of an action that writes nothing else.
pub(super) fn append_alone(
    connection: &mut Connection,
    clock: &WallClock,
    entry: &NewAuditEntry,
) -> Result<(), rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    append(&transaction, entry, now)?;
    transaction.commit()
}

fn head(connection: &Connection) -> Result<ChainLink, rusqlite::Error> {
    connection
        .prepare_cached("SELECT last_id, last_hash FROM submission_audit_head")?
        .query_row([], |row| Ok(ChainLink { id: row.get(0)?, hash: hash_of(row, 1)? }))
}

fn hash_of(row: &Row<'_>, column: usize) -> Result<ChainHash, rusqlite::Error> {
    row.get::<_, Vec<u8>>(column).map(|bytes| ChainHash::of_stored(&bytes))
}

fn entry_of(row: &Row<'_>) -> Result<AuditEntry, rusqlite::Error> {
    Ok(AuditEntry {
        id: row.get(0)?,
        at: Timestamp::from_micros(row.get(1)?),
        actor_kind: row.get(2)?,
        actor_name: row.get(3)?,
        address: row.get(4)?,
        action: row.get(5)?,
        subject: row.get(6)?,
        details: row.get(7)?,
        previous_hash: hash_of(row, 8)?,
        hash: hash_of(row, 9)?,
    })
}

/// Returns the number of the first entry from this moment on. Entries are numbered in the order of their times.
fn first_from(connection: &Connection, moment: Timestamp) -> Result<Option<i64>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT entry_id FROM submission_audit_log INDEXED BY submission_audit_log_time
             WHERE recorded_at >= ?1 ORDER BY recorded_at LIMIT 1",
        )?
        .query_row([moment.micros()], |row| row.get(0))
        .optional()
}

/// Returns a page of entries, the newest first.
pub(super) fn list(connection: &mut Connection, query: &AuditQuery) -> Result<AuditPage, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let limit = query.limit.max(1);
    let mut conditions = "entry_id < ?".to_owned();
    let mut values = vec![Value::Integer(query.older_than.unwrap_or(i64::MAX))];
    let mut add = |condition: &str, value: Value| {
        conditions += condition;
        values.push(value);
    };
    if let Some(after) = query.after {
        let Some(first) = first_from(&snapshot, next_moment(after))? else {
            return Ok(AuditPage::of(Vec::new(), limit));
        };
        add(" AND entry_id >= ?", Value::Integer(first));
    }
    if let Some(before) = query.before
        && let Some(end) = first_from(&snapshot, before)?
    {
        add(" AND entry_id < ?", Value::Integer(end));
    }
    let mut index = "";
    if let Some(action) = query.action {
        index = "INDEXED BY submission_audit_log_action";
        add(" AND action = ?", Value::Text(action.as_str().to_owned()));
    }
    if let Some(actor) = &query.actor {
        index = "INDEXED BY submission_audit_log_actor";
        add(" AND actor_name = ?", Value::Text(actor.name().to_owned()));
        if let Some(kind) = actor.kind() {
            add(" AND actor_kind = ?", Value::Text(kind.as_str().to_owned()));
        }
    }
    values.push(Value::Integer(as_limit(limit.saturating_add(1))));
    let sql =
        format!("SELECT {COLUMNS} FROM submission_audit_log {index} WHERE {conditions} ORDER BY entry_id DESC LIMIT ?");
    let entries =
        snapshot.prepare_cached(&sql)?.query_map(params_from_iter(values), entry_of)?.collect::<Result<_, _>>()?;
    Ok(AuditPage::of(entries, limit))
}

/// Returns the next entries of the chain after this number, the oldest first, and the newest entry.
pub(super) fn chain(connection: &mut Connection, after: i64, limit: usize) -> Result<AuditChain, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    Ok(AuditChain { entries: oldest(&snapshot, after, limit)?, head: head(&snapshot)? })
}

fn oldest(connection: &Connection, after: i64, limit: usize) -> Result<Vec<AuditEntry>, rusqlite::Error> {
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM submission_audit_log WHERE entry_id > ?1 ORDER BY entry_id LIMIT ?2"
        ))?
        .query_map(params![after, as_limit(limit)], entry_of)?
        .collect()
}

/// Deletes the oldest entries that need not be kept, and appends an entry that says so. Returns `None` if the term is over.
pub(super) fn purge(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    request: &AuditPurge,
) -> Result<Option<AuditPurged>, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    let last = match request.last_to_delete(oldest(&transaction, i64::MIN, request.limit)?, now) {
        Ok(Some(last)) => last,
        Ok(None) => return Ok(Some(AuditPurged::Deleted(0))),
        Err(broken) => return Ok(Some(AuditPurged::Broken(broken))),
    };
    let deleted =
        transaction.prepare_cached("DELETE FROM submission_audit_log WHERE entry_id <= ?1")?.execute([last.id])?;
    let entry = NewAuditEntry::purge(&Actor::service(&term.holder_id), &last, request.before(now));
    append(&transaction, &entry, now)?;
    transaction.commit()?;
    Ok(Some(AuditPurged::Deleted(deleted)))
}

#[cfg(test)]
mod tests {
    use crate::domain::actor::fixtures::somebody;
    use crate::domain::intent::TargetName;
    use crate::platform::clock::WallClock;
    use crate::store::sqlite::SqliteStore;
    use crate::store::{AuditQuery, AuditStore, TargetStore};

    #[tokio::test]
    async fn an_action_that_cannot_be_recorded_is_not_done() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        SqliteStore::migrate(&path).unwrap();
        let store = SqliteStore::open(&path, WallClock::system()).unwrap();
        let connection = rusqlite::Connection::open(&path).unwrap();
        let refuse = "CREATE TRIGGER refuse BEFORE UPDATE ON submission_audit_head
            BEGIN SELECT RAISE(ABORT, 'refused by the test'); END";
        connection.execute_batch(refuse).unwrap();
        let target = TargetName::parse("sms.x").unwrap();
        assert!(store.pause_target(target.clone(), None, somebody()).await.is_err());
        assert!(store.targets().await.unwrap().is_empty(), "the target is not paused");
        connection.execute_batch("DROP TRIGGER refuse").unwrap();
        store.pause_target(target, None, somebody()).await.unwrap();
        let entries = store.list_audit(AuditQuery::default()).await.unwrap().entries;
        assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [1]);
    }
}
