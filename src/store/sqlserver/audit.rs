//! The audit log on SQL Server: statements that append entries in the transaction of their action, and reading and purging.
//!
//! An append first changes the row of the newest entry, which keeps it locked until the commit, so instances append one after
//! the other. Every transaction that appends has locked the row of the clock before, so the order of locks does not matter.

use tiberius::Row;

use super::database::{Batch, Database, Repeat};
use super::read::{all, need_first, set};
use super::rows;
use super::script::{Fence, Values};
use super::statements::TICK;
use crate::domain::actor::Actor;
use crate::domain::audit::{AuditEntry, ChainHash, ChainLink, NewAuditEntry};
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::store::{AuditChain, AuditPage, AuditPurge, AuditPurged, AuditQuery, StoreError};

const COLUMNS: &str = "a.entry_id, a.recorded_at, a.actor_kind, a.actor_name, a.address, a.action, a.subject, a.details, \
     a.previous_hash, a.hash";

/// The variables of [`append`], for the declaration of a batch.
pub(super) const VARIABLES: &str = "@audit_id BIGINT, @audit_before BINARY(32), @audit_hash BINARY(32)";

/// Returns the statements that append an entry. They belong into a transaction whose time is `@now`. The hash is that of
/// [`entry_hash`](crate::domain::audit::entry_hash).
pub(super) fn append(values: &mut Values, entry: &NewAuditEntry) -> String {
    let kind = values.code(entry.actor.kind().as_str(), 20);
    let name = values.text(entry.actor.name().unwrap_or_default());
    let address = values.code(entry.address(), 64);
    let action = values.code(entry.action.as_str(), 40);
    let (subject, details) = (values.text(&entry.subject), values.text(&entry.details));
    let content = values.code(ChainHash(entry.content_hash()).to_string(), 64);
    // Not every server can concatenate binary values or show them as text, but all convert 8 bytes to a number.
    let number =
        |from: usize| format!("CAST(CAST(SUBSTRING(@audit_before, {from}, 8) AS BIGINT) AS VARCHAR(20)) + ' '");
    let before = [1, 9, 17, 25].map(number).join(" +\n    ");
    format!(
        "
UPDATE submission_audit_head SET last_id = last_id + 1 WHERE only_row = 1;
SELECT @audit_id = last_id, @audit_before = last_hash FROM submission_audit_head WHERE only_row = 1;
SET @audit_hash = CAST(HASHBYTES('SHA2_256', {before} +
    CAST(@audit_id AS VARCHAR(20)) + ' ' +
    CAST(DATEDIFF_BIG(MICROSECOND, CAST('1970-01-01T00:00:00' AS DATETIME2(6)), @now) AS VARCHAR(20)) + ' ' +
    {content}) AS BINARY(32));
INSERT INTO submission_audit_log (entry_id, recorded_at, actor_kind, actor_name, address, action, subject, details,
    previous_hash, hash)
SELECT @audit_id, @now, {kind}, {name}, {address}, {action}, {subject}, {details}, @audit_before, @audit_hash;
UPDATE submission_audit_head SET last_hash = @audit_hash WHERE only_row = 1;"
    )
}

/// Builds the batch that appends an entry of an action that writes nothing else.
pub(super) fn append_batch(entry: &NewAuditEntry) -> Batch {
    let mut values = Values::default();
    let append = append(&mut values, entry);
    let batch = values.batch(format!(
        "DECLARE @now DATETIME2(6), {VARIABLES};
BEGIN TRANSACTION;{TICK}{append}
COMMIT TRANSACTION;"
    ));
    Batch { repeat: Repeat::IfRolledBack, ..batch }
}

pub(super) async fn append_alone(database: &Database, entry: NewAuditEntry) -> Result<(), StoreError> {
    database.run(append_batch(&entry)).await.map(drop)
}

/// Builds the query for a page of entries. Entries are numbered in the order of their times.
pub(super) fn list_batch(query: &AuditQuery) -> Batch {
    let mut values = Values::default();
    let limit = values.count(query.limit.max(1).saturating_add(1));
    let older_than = values.number(query.older_than.unwrap_or(i64::MAX));
    let mut conditions = format!("a.entry_id < {older_than}");
    let first_from = |compared: &str, moment: &str| {
        format!(
            "(SELECT TOP (1) b.entry_id FROM submission_audit_log AS b WHERE b.recorded_at {compared} {moment}
    ORDER BY b.recorded_at, b.entry_id)"
        )
    };
    if let Some(after) = query.after {
        let after = values.moment(after);
        conditions += &format!("\n    AND a.entry_id >= {}", first_from(">", &after));
    }
    if let Some(before) = query.before {
        let before = values.moment(before);
        let end = first_from(">=", &before);
        conditions += &format!("\n    AND a.entry_id < COALESCE({end}, CAST(9223372036854775807 AS BIGINT))");
    }
    if let Some(action) = query.action {
        conditions += &format!("\n    AND a.action = {}", values.code(action.as_str(), 40));
    }
    if let Some(actor) = &query.actor {
        conditions += &format!("\n    AND a.actor_name = {}", values.text(actor.name()));
        if let Some(kind) = actor.kind() {
            conditions += &format!(" AND a.actor_kind = {}", values.code(kind.as_str(), 20));
        }
    }
    values.batch(format!(
        "SELECT TOP ({limit}) {COLUMNS} FROM submission_audit_log AS a WHERE {conditions}
ORDER BY a.entry_id DESC;"
    ))
}

pub(super) async fn list(database: &Database, query: AuditQuery) -> Result<AuditPage, StoreError> {
    let results = database.run(list_batch(&query)).await?;
    Ok(AuditPage::of(all(set(&results, 0), entry)?, query.limit.max(1)))
}

/// Builds the query for the next entries of the chain. The newest entry is read first: all entries up to it are committed.
pub(super) fn chain_batch(after: i64, limit: usize) -> Batch {
    let mut values = Values::default();
    let (after, limit) = (values.number(after), values.count(limit));
    values.batch(format!(
        "SELECT h.last_id, h.last_hash, SYSUTCDATETIME() AS now_at FROM submission_audit_head AS h;
SELECT TOP ({limit}) {COLUMNS} FROM submission_audit_log AS a WHERE a.entry_id > {after} ORDER BY a.entry_id;"
    ))
}

pub(super) async fn chain(database: &Database, after: i64, limit: usize) -> Result<AuditChain, StoreError> {
    read_chain(database, after, limit).await.map(|(chain, _)| chain)
}

/// Returns the next entries of the chain, and the time of the database.
async fn read_chain(database: &Database, after: i64, limit: usize) -> Result<(AuditChain, Timestamp), StoreError> {
    let results = database.run(chain_batch(after, limit)).await?;
    let row = need_first(&results)?;
    let head = ChainLink { id: rows::need(row, "last_id")?, hash: hash(row, "last_hash")? };
    Ok((AuditChain { entries: all(set(&results, 1), entry)?, head }, rows::need_moment(row, "now_at")?))
}

/// Builds the batch that deletes all entries up to `last`, unless that has been done, and appends an entry that says so.
pub(super) fn purge_batch(term: &Term, last: ChainLink, before: Timestamp) -> Batch {
    let mut values = Values::default();
    let Fence { sql: fence, .. } = values.fence(term);
    let append = append(&mut values, &NewAuditEntry::purge(&Actor::service(&term.holder_id), &last, before));
    let last = values.number(last.id);
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @held BIGINT = 0, @deleted BIGINT = 0, {VARIABLES};
BEGIN TRANSACTION;{fence}{TICK}
IF @held = 1
BEGIN
    DELETE FROM submission_audit_log WHERE entry_id <= {last};
    SET @deleted = @@ROWCOUNT;
END;
IF @deleted > 0
BEGIN{append}
END;
COMMIT TRANSACTION;
SELECT @held AS held, @deleted AS deleted;"
    ))
}

pub(super) async fn purge(
    database: &Database,
    term: &Term,
    request: &AuditPurge,
) -> Result<Option<AuditPurged>, StoreError> {
    let (oldest, now) = read_chain(database, i64::MIN, request.limit).await?;
    let last = match request.last_to_delete(oldest.entries, now) {
        Ok(Some(last)) => last,
        Ok(None) => return Ok(Some(AuditPurged::Deleted(0))),
        Err(broken) => return Ok(Some(AuditPurged::Broken(broken))),
    };
    let results = database.run(purge_batch(term, last, request.before(now))).await?;
    let row = need_first(&results)?;
    if rows::need::<i64>(row, "held")? != 1 {
        return Ok(None);
    }
    let deleted = usize::try_from(rows::need::<i64>(row, "deleted")?).unwrap_or(0);
    Ok(Some(AuditPurged::Deleted(deleted)))
}

fn entry(row: &Row) -> Result<AuditEntry, StoreError> {
    let text = |column| rows::need::<&str>(row, column).map(str::to_owned);
    Ok(AuditEntry {
        id: rows::need(row, "entry_id")?,
        at: rows::need_moment(row, "recorded_at")?,
        actor_kind: text("actor_kind")?,
        actor_name: text("actor_name")?,
        address: text("address")?,
        action: text("action")?,
        subject: text("subject")?,
        details: text("details")?,
        previous_hash: hash(row, "previous_hash")?,
        hash: hash(row, "hash")?,
    })
}

fn hash(row: &Row, column: &'static str) -> Result<ChainHash, StoreError> {
    rows::need::<&[u8]>(row, column).map(ChainHash::of_stored)
}
