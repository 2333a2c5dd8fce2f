//! Acquires, renews and releases the lease. Each call is one transaction and uses the store's clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::audit;
use super::connection::{begin_transaction, is_ahead, read_now};
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::IntentSeq;
use crate::domain::lease::{Lease, Term};
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::platform::mutated;
use crate::store::lease::KEPT_TERMS;
use crate::store::{LeaseRow, LeaseState};

/// Acquires the lease with the next epoch, if the last one has expired.
pub(super) fn acquire(
    connection: &mut Connection,
    clock: &WallClock,
    name: Arc<str>,
    holder: Arc<str>,
    duration: Duration,
) -> Result<Option<Lease>, rusqlite::Error> {
    // Followers request the lease every second. They read it first, so that they write only if it has expired. While the
    // store's clock is ahead of the host's they do write, because that clock advances only with transactions.
    let now = read_now(connection, clock)?;
    if latest(connection)?.expires_at > now && !is_ahead(now, clock.now()) && !mutated!(LeaseGivenEarly) {
        return Ok(None);
    }
    let (transaction, now) = begin_transaction(connection, clock)?;
    let latest = latest(&transaction)?;
    if latest.expires_at > now && !(mutated!(LeaseGivenEarly) && latest.expires_at < now + duration / 2) {
        transaction.commit()?;
        return Ok(None);
    }
    let epoch = latest.epoch + 1;
    let expires_at = now + duration;
    transaction
        .prepare_cached(
            "INSERT INTO submission_manager_leases
                (lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?4, ?5)
             ON CONFLICT (lease_name) DO UPDATE SET holder_id = excluded.holder_id, lease_epoch = excluded.lease_epoch,
                acquired_at = excluded.acquired_at, renewed_at = excluded.renewed_at, expires_at = excluded.expires_at",
        )?
        .execute(params![name, holder, epoch, now.micros(), expires_at.micros()])?;
    transaction.prepare_cached("DELETE FROM submission_manager_leases WHERE lease_name <> ?1")?.execute([&name])?;
    record_term(&transaction, epoch, &holder, now)?;
    transaction.commit()?;
    Ok(Some(Lease { term: Term { lease_name: name, holder_id: holder, epoch }, expires_at, now }))
}

/// Records who leads in the term with this epoch. Later terms are those of a lease that somebody deleted, so that epochs
/// begin again.
fn record_term(transaction: &Transaction<'_>, epoch: i64, holder: &str, now: Timestamp) -> Result<(), rusqlite::Error> {
    transaction.execute(
        "DELETE FROM submission_terms WHERE lease_epoch >= ?1 OR lease_epoch <= ?2",
        [epoch, epoch - KEPT_TERMS],
    )?;
    transaction.execute(
        "INSERT INTO submission_terms (lease_epoch, holder_id, acquired_at) VALUES (?1, ?2, ?3)",
        params![epoch, holder, now.micros()],
    )?;
    Ok(())
}

/// Returns who led in the terms of the attempts of an intent, by epoch, as far as that is recorded.
pub(super) fn holders_of(connection: &Connection, intent: IntentSeq) -> Result<BTreeMap<i64, String>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT lease_epoch, holder_id FROM submission_terms
             WHERE lease_epoch IN (SELECT lease_epoch FROM submission_attempts WHERE intent_seq = ?1)",
        )?
        .query_map([intent.0], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Extends the lease of a term; `None` if the term does not hold it any more.
pub(super) fn renew(
    connection: &mut Connection,
    clock: &WallClock,
    term: Term,
    duration: Duration,
) -> Result<Option<Lease>, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let expires_at = now + duration;
    let renewed = transaction
        .prepare_cached(
            "UPDATE submission_manager_leases SET renewed_at = ?4, expires_at = ?5
             WHERE lease_name = ?1 AND holder_id = ?2 AND lease_epoch = ?3 AND expires_at > ?4",
        )?
        .execute(params![term.lease_name, term.holder_id, term.epoch, now.micros(), expires_at.micros()])?;
    transaction.commit()?;
    Ok((renewed == 1).then_some(Lease { term, expires_at, now }))
}

/// Ends the lease of a term now, if the term still holds it.
pub(super) fn release(connection: &mut Connection, clock: &WallClock, term: &Term) -> Result<(), rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    transaction
        .prepare_cached(
            "UPDATE submission_manager_leases SET expires_at = ?4
             WHERE lease_name = ?1 AND holder_id = ?2 AND lease_epoch = ?3 AND expires_at > ?4",
        )?
        .execute(params![term.lease_name, term.holder_id, term.epoch, now.micros()])?;
    transaction.commit()
}

/// Reads the last lease.
pub(super) fn state(connection: &mut Connection, clock: &WallClock) -> Result<LeaseState, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let host = clock.now();
    let now = read_now(&snapshot, clock)?;
    let lease = snapshot
        .prepare_cached(
            "SELECT holder_id, lease_epoch, renewed_at, expires_at FROM submission_manager_leases
             ORDER BY lease_epoch DESC LIMIT 1",
        )?
        .query_row([], |row| {
            Ok(LeaseRow {
                holder_id: row.get(0)?,
                epoch: row.get(1)?,
                renewed_at: Timestamp::from_micros(row.get(2)?),
                expires_at: Timestamp::from_micros(row.get(3)?),
            })
        })
        .optional()?;
    Ok(LeaseState { lease, now, clock_ahead: now.since(host) })
}

/// Ends a lease that was not renewed since `renewed_at`. Returns whether it did.
pub(super) fn reset(
    connection: &mut Connection,
    clock: &WallClock,
    epoch: i64,
    renewed_at: Timestamp,
    by: &Actor,
) -> Result<bool, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let reset = transaction.execute(
        "UPDATE submission_manager_leases SET expires_at = ?3
         WHERE lease_epoch = ?1 AND renewed_at = ?2 AND expires_at > ?3",
        params![epoch, renewed_at.micros(), now.micros()],
    )?;
    if reset == 1 {
        audit::append(&transaction, &NewAuditEntry::reset_lease(by, epoch), now)?;
    }
    transaction.commit()?;
    Ok(reset == 1)
}

/// The fence: whether `term` holds the lease. Within a write transaction no other instance can acquire it before that
/// transaction commits.
pub(super) fn holds(transaction: &Transaction<'_>, term: &Term, now: Timestamp) -> Result<bool, rusqlite::Error> {
    if mutated!(NoFence, FenceOutsideTransaction) {
        return Ok(true);
    }
    transaction
        .prepare_cached(
            "SELECT 1 FROM submission_manager_leases
             WHERE lease_name = ?1 AND holder_id = ?2 AND lease_epoch = ?3 AND expires_at > ?4",
        )?
        .exists(params![term.lease_name, term.holder_id, term.epoch, now.micros()])
}

/// The highest epoch and the latest expiry of all leases. One store has one leader, even if instances are configured with
/// different lease names.
pub(super) struct Latest {
    pub(super) epoch: i64,
    expires_at: Timestamp,
}

pub(super) fn latest(connection: &Connection) -> Result<Latest, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT COALESCE(MAX(lease_epoch), 0), COALESCE(MAX(expires_at), 0) FROM submission_manager_leases",
        )?
        .query_row([], |row| Ok(Latest { epoch: row.get(0)?, expires_at: Timestamp::from_micros(row.get(1)?) }))
}
