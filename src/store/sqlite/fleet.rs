//! The instances of the fleet and its activity by minute, for the console.

use rusqlite::{Connection, OptionalExtension, params};

use super::connection::{begin_transaction, read_now};
use super::console;
use super::schedule::as_limit;
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::{
    Activity, FORGET_INSTANCES_AFTER, FleetMinute, GatewayHold, Instance, InstanceReport, KEPT_MINUTES, LeaderReport,
    TIMED_INTENTS, TimeToTerminal, minute_of,
};

/// Records that an instance runs, and adds what it took in since its last report to the current minute.
pub(super) fn record(
    connection: &mut Connection,
    clock: &WallClock,
    report: &InstanceReport,
) -> Result<(), rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let before: Option<i64> = transaction
        .prepare_cached("SELECT submitted FROM submission_instances WHERE instance_id = ?1")?
        .query_row([&report.instance_id], |row| row.get(0))
        .optional()?;
    let submitted = i64::try_from(report.submitted).unwrap_or(i64::MAX);
    transaction
        .prepare_cached(
            "INSERT INTO submission_instances (instance_id, holder_id, version, started_at, seen_at, submitted)
             VALUES (?1, ?2, ?3, ?4, ?4, ?5)
             ON CONFLICT DO UPDATE SET seen_at = excluded.seen_at, submitted = excluded.submitted",
        )?
        .execute(params![report.instance_id, report.holder_id, report.version, now.micros(), submitted])?;
    transaction
        .prepare_cached("DELETE FROM submission_instances WHERE seen_at < ?1")?
        .execute([(now - FORGET_INSTANCES_AFTER).micros()])?;
    let waiting = report.leading.as_ref().map(|leading| i64::try_from(leading.waiting).unwrap_or(i64::MAX));
    transaction
        .prepare_cached(
            "INSERT INTO submission_fleet_minutes (minute, submitted, waiting) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET submitted = submitted + excluded.submitted,
                 waiting = coalesce(excluded.waiting, waiting)",
        )?
        .execute(params![minute_of(now), (submitted - before.unwrap_or(0)).max(0), waiting])?;
    transaction
        .prepare_cached("DELETE FROM submission_fleet_minutes WHERE minute < ?1")?
        .execute([minute_of(now) - KEPT_MINUTES])?;
    if let Some(LeaderReport { holds, .. }) = &report.leading {
        transaction.prepare_cached("DELETE FROM submission_gateway_holds")?.execute([])?;
        for (gateway, until) in holds {
            transaction
                .prepare_cached("INSERT INTO submission_gateway_holds (gateway_id, held_until) VALUES (?1, ?2)")?
                .execute(params![gateway.0, until.micros()])?;
        }
    }
    transaction.commit()
}

/// Deletes the row of an instance that stops.
pub(super) fn forget(connection: &Connection, instance_id: &str) -> Result<(), rusqlite::Error> {
    connection.execute("DELETE FROM submission_instances WHERE instance_id = ?1", [instance_id]).map(drop)
}

/// Reads the instances, and the activity of the last minutes.
pub(super) fn activity(
    connection: &mut Connection,
    clock: &WallClock,
    minutes: i64,
) -> Result<Activity, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let first = minute_of(now) - minutes + 1;
    let instances = snapshot
        .prepare_cached(
            "SELECT holder_id, version, started_at, seen_at FROM submission_instances ORDER BY holder_id, started_at",
        )?
        .query_map([], |row| {
            Ok(Instance {
                holder_id: row.get(0)?,
                version: row.get(1)?,
                started_at: Timestamp::from_micros(row.get(2)?),
                seen_at: Timestamp::from_micros(row.get(3)?),
            })
        })?
        .collect::<Result<_, _>>()?;
    let holds = snapshot
        .prepare_cached(
            "SELECT g.gateway_url, h.held_until FROM submission_gateway_holds h JOIN submission_gateways g USING (gateway_id)
             WHERE h.held_until > ?1 ORDER BY g.gateway_url",
        )?
        .query_map([now.micros()], |row| {
            Ok(GatewayHold { gateway: row.get(0)?, until: Timestamp::from_micros(row.get(1)?) })
        })?
        .collect::<Result<_, _>>()?;
    let fleet = snapshot
        .prepare_cached(
            "SELECT minute, submitted, waiting FROM submission_fleet_minutes WHERE minute >= ?1 ORDER BY minute",
        )?
        .query_map([first], |row| {
            Ok(FleetMinute {
                minute: row.get(0)?,
                submitted: row.get::<_, i64>(1)?.unsigned_abs(),
                waiting: row.get::<_, Option<i64>>(2)?.map(i64::unsigned_abs),
            })
        })?
        .collect::<Result<_, _>>()?;
    let timed: Vec<_> = snapshot
        .prepare_cached(
            "SELECT max(i.created_at, coalesce((SELECT o.not_before FROM submission_intent_options o
                 WHERE o.intent_seq = i.intent_seq), 0)), i.completed_at
             FROM submission_intents i INDEXED BY submission_intents_ended WHERE i.completed_at IS NOT NULL
             ORDER BY i.last_modified_at DESC LIMIT ?1",
        )?
        .query_map([as_limit(TIMED_INTENTS)], |row| {
            Ok((Timestamp::from_micros(row.get(0)?), Timestamp::from_micros(row.get(1)?)))
        })?
        .collect::<Result<_, rusqlite::Error>>()?;
    Ok(Activity {
        now,
        instances,
        holds,
        minutes: fleet,
        ended: console::ended(&snapshot, first)?,
        time_to_terminal: TimeToTerminal::of(&timed),
    })
}
