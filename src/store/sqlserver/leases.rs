//! Acquires, renews, releases, reads and resets the lease.

use std::sync::Arc;
use std::time::Duration;

use super::audit::{VARIABLES, append};
use super::database::{Batch, Database};
use super::read::{first, need_first, set};
use super::rows;
use super::script::Values;
use super::statements::TICK;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::lease::{Lease, Term};
use crate::domain::time::Timestamp;
use crate::platform::clock::{StoreTime, monotonic};
use crate::store::lease::KEPT_TERMS;
use crate::store::{LeaseRow, LeaseState, StoreError};

/// Converts a duration to milliseconds for DATEADD, which takes an INT.
fn millis(duration: Duration) -> i64 {
    i64::from(i32::try_from(duration.as_millis()).unwrap_or(i32::MAX))
}

/// Builds the batch that acquires the lease.
///
/// One store has one leader, even if instances are configured with different lease names. The transaction therefore
/// first changes all rows of leases and the clock's row, which locks them until the commit. It gives the new lease the
/// highest epoch so far plus one, deletes leases with other names, and records who leads in the new term. It reads the time after it has these locks, when
/// no other transaction can write.
pub(super) fn acquire_batch(name: &str, holder: &str, duration: Duration) -> Batch {
    let mut values = Values::default();
    let (name, holder) = (values.text(name), values.text(holder));
    let duration = values.number(millis(duration));
    values.batch(format!(
        "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME(), @taken BIGINT = 0, @epoch BIGINT;
IF NOT EXISTS (SELECT 1 FROM submission_manager_leases WHERE expires_at > @now)
BEGIN
    BEGIN TRANSACTION;
    UPDATE submission_manager_leases SET fenced_writes = fenced_writes + 1;{TICK}
    SET @now = SYSUTCDATETIME();
    IF NOT EXISTS (SELECT 1 FROM submission_manager_leases WHERE expires_at > @now)
    BEGIN
        SET @epoch = (SELECT COALESCE(MAX(lease_epoch), 0) + 1 FROM submission_manager_leases);
        UPDATE submission_manager_leases SET holder_id = {holder}, lease_epoch = @epoch, acquired_at = @now,
            renewed_at = @now, expires_at = DATEADD(MILLISECOND, {duration}, @now)
        WHERE lease_name = {name};
        SET @taken = @@ROWCOUNT;
        IF @taken = 0
        BEGIN
            INSERT INTO submission_manager_leases
                (lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at)
            SELECT {name}, {holder}, @epoch, @now, @now, DATEADD(MILLISECOND, {duration}, @now)
            WHERE NOT EXISTS (SELECT 1 FROM submission_manager_leases WHERE lease_name = {name});
            SET @taken = @@ROWCOUNT;
        END;
        DELETE FROM submission_manager_leases WHERE lease_name <> {name};
        DELETE FROM submission_terms WHERE lease_epoch >= @epoch;
        DELETE FROM submission_terms WHERE lease_epoch <= @epoch - {KEPT_TERMS};
        INSERT INTO submission_terms (lease_epoch, holder_id, acquired_at) VALUES (@epoch, {holder}, @now);
    END;
    COMMIT TRANSACTION;
END;
SELECT lease_epoch, expires_at, @now AS now_at FROM submission_manager_leases
WHERE @taken = 1 AND lease_name = {name} AND holder_id = {holder} AND lease_epoch = @epoch;"
    ))
}

/// Returns the condition that selects the lease's row if this term holds the lease at `@now`.
fn held_by(values: &mut Values, term: &Term) -> String {
    let (name, holder) = (values.text(&*term.lease_name), values.text(&*term.holder_id));
    let epoch = values.number(term.epoch);
    format!("lease_name = {name} AND holder_id = {holder} AND lease_epoch = {epoch} AND expires_at > @now")
}

pub(super) fn renew_batch(term: &Term, duration: Duration) -> Batch {
    let mut values = Values::default();
    let held = held_by(&mut values, term);
    let duration = values.number(millis(duration));
    values.batch(format!(
        "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME(), @held BIGINT;
UPDATE submission_manager_leases SET renewed_at = @now, expires_at = DATEADD(MILLISECOND, {duration}, @now)
WHERE {held};
SET @held = @@ROWCOUNT;
SELECT @held AS held, DATEADD(MILLISECOND, {duration}, @now) AS expires_at, @now AS now_at;"
    ))
}

pub(super) fn release_batch(term: &Term) -> Batch {
    let mut values = Values::default();
    let held = held_by(&mut values, term);
    values.batch(format!(
        "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME();
UPDATE submission_manager_leases SET expires_at = @now WHERE {held};"
    ))
}

pub(super) fn state_batch() -> Batch {
    Batch::new(
        "
SELECT last_at, SYSUTCDATETIME() AS now_at FROM submission_clock;
SELECT TOP (1) holder_id, lease_epoch, renewed_at, expires_at FROM submission_manager_leases ORDER BY lease_epoch DESC;",
        Vec::new(),
    )
}

pub(super) fn reset_batch(epoch: i64, renewed_at: Timestamp, by: &Actor) -> Batch {
    let mut values = Values::default();
    let entry = append(&mut values, &NewAuditEntry::reset_lease(by, epoch));
    let (epoch, renewed_at) = (values.number(epoch), values.moment(renewed_at));
    values.batch(format!(
        "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME(), @count BIGINT, {VARIABLES};
BEGIN TRANSACTION;
UPDATE submission_manager_leases SET expires_at = @now
WHERE lease_epoch = {epoch} AND renewed_at = {renewed_at} AND expires_at > @now;
SET @count = @@ROWCOUNT;
IF @count > 0
BEGIN{TICK}{entry}
END;
COMMIT TRANSACTION;
SELECT @count AS reset;"
    ))
}

pub(super) async fn acquire(
    database: &Database,
    time: &StoreTime,
    name: Arc<str>,
    holder: Arc<str>,
    duration: Duration,
) -> Result<Option<Lease>, StoreError> {
    let requested_at = monotonic();
    let results = database.run(acquire_batch(&name, &holder, duration)).await?;
    let Some(row) = first(&results) else { return Ok(None) };
    let term = Term { lease_name: name, holder_id: holder, epoch: rows::need(row, "lease_epoch")? };
    let (expires_at, now) = (rows::need_moment(row, "expires_at")?, rows::need_moment(row, "now_at")?);
    time.observe(requested_at, now);
    Ok(Some(Lease { term, expires_at, now }))
}

pub(super) async fn renew(
    database: &Database,
    time: &StoreTime,
    term: Term,
    duration: Duration,
) -> Result<Option<Lease>, StoreError> {
    let requested_at = monotonic();
    let results = database.run(renew_batch(&term, duration)).await?;
    let row = need_first(&results)?;
    let held = rows::need::<i64>(row, "held")? == 1;
    let (expires_at, now) = (rows::need_moment(row, "expires_at")?, rows::need_moment(row, "now_at")?);
    time.observe(requested_at, now);
    Ok(held.then_some(Lease { term, expires_at, now }))
}

pub(super) async fn release(database: &Database, term: Term) -> Result<(), StoreError> {
    database.run(release_batch(&term)).await.map(drop)
}

pub(super) async fn state(database: &Database) -> Result<LeaseState, StoreError> {
    let results = database.run(state_batch()).await?;
    let clock = need_first(&results)?;
    let (now, last_at) = (rows::need_moment(clock, "now_at")?, rows::need_moment(clock, "last_at")?);
    let lease = set(&results, 1).first().map(|row| {
        Ok::<_, StoreError>(LeaseRow {
            holder_id: rows::need::<&str>(row, "holder_id")?.to_owned(),
            epoch: rows::need(row, "lease_epoch")?,
            renewed_at: rows::need_moment(row, "renewed_at")?,
            expires_at: rows::need_moment(row, "expires_at")?,
        })
    });
    let lease = lease.transpose()?;
    let latest = lease.as_ref().map_or(last_at, |lease| last_at.max(lease.renewed_at));
    Ok(LeaseState { lease, now, clock_ahead: latest.since(now) })
}

pub(super) async fn reset(
    database: &Database,
    epoch: i64,
    renewed_at: Timestamp,
    by: &Actor,
) -> Result<bool, StoreError> {
    let results = database.run(reset_batch(epoch, renewed_at, by)).await?;
    Ok(rows::need::<i64>(need_first(&results)?, "reset")? == 1)
}
