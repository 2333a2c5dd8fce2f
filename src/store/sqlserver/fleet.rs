//! The instances of the fleet and its activity by minute on SQL Server, for the console.

use serde_json::json;

use super::console::sum;
use super::counts::THIS_MINUTE;
use super::database::{Batch, Database};
use super::read::{all, need_first, set};
use super::rows::{self, json_moment};
use super::script::Values;
use super::statements::TICK;
use crate::domain::intent::Status;
use crate::store::{
    Activity, EndedInMinute, FORGET_INSTANCES_AFTER, FleetMinute, GatewayHold, Instance, InstanceReport, KEPT_MINUTES,
    StoreError, TIMED_INTENTS, TimeToTerminal,
};

/// Records that an instance runs, and adds what it took in since its last report to the current minute.
pub(super) fn record_batch(report: &InstanceReport) -> Batch {
    let mut values = Values::default();
    let (id, holder) = (values.code(&*report.instance_id, 36), values.text(&*report.holder_id));
    let version = values.text(&*report.version);
    let submitted = values.number(i64::try_from(report.submitted).unwrap_or(i64::MAX));
    // A negative number stands for none, because parameters cannot be NULL.
    let waiting = report.leading.as_ref().map_or(-1, |leading| i64::try_from(leading.waiting).unwrap_or(i64::MAX));
    let waiting = format!("NULLIF({}, -1)", values.number(waiting));
    let forgotten = FORGET_INSTANCES_AFTER.as_secs();
    let holds = match &report.leading {
        Some(leading) => {
            let holds = leading.holds.iter();
            let holds = holds.map(|(gateway, until)| json!({ "gateway": gateway.0, "until": json_moment(*until) }));
            let holds = values.json(holds.collect());
            format!(
                "
DELETE FROM submission_gateway_holds;
INSERT INTO submission_gateway_holds (gateway_id, held_until)
SELECT j.gateway, j.until FROM OPENJSON({holds}) WITH (gateway BIGINT, until DATETIME2(6)) AS j;"
            )
        }
        None => String::new(),
    };
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @minute BIGINT = {THIS_MINUTE}, @added BIGINT, @submitted BIGINT = {submitted},
    @waiting BIGINT = {waiting};
BEGIN TRANSACTION;{TICK}
SET @added = @submitted - COALESCE((SELECT submitted FROM submission_instances WHERE instance_id = {id}), 0);
UPDATE submission_instances SET seen_at = @now, submitted = @submitted WHERE instance_id = {id};
INSERT INTO submission_instances (instance_id, holder_id, version, started_at, seen_at, submitted)
SELECT {id}, {holder}, {version}, @now, @now, @submitted
WHERE NOT EXISTS (SELECT 1 FROM submission_instances AS i WHERE i.instance_id = {id});
DELETE FROM submission_instances WHERE seen_at < DATEADD(SECOND, -{forgotten}, @now);
UPDATE submission_fleet_minutes SET submitted = submitted + @added, waiting = COALESCE(@waiting, waiting)
WHERE minute = @minute;
INSERT INTO submission_fleet_minutes (minute, submitted, waiting)
SELECT @minute, @added, @waiting
WHERE NOT EXISTS (SELECT 1 FROM submission_fleet_minutes AS m WHERE m.minute = @minute);
DELETE FROM submission_fleet_minutes WHERE minute < @minute - {KEPT_MINUTES};{holds}
COMMIT TRANSACTION;"
    ))
}

pub(super) fn forget_batch(instance_id: &str) -> Batch {
    let mut values = Values::default();
    let id = values.code(instance_id, 36);
    values.batch(format!("DELETE FROM submission_instances WHERE instance_id = {id};"))
}

pub(super) fn activity_batch(minutes: i64) -> Batch {
    let mut values = Values::default();
    let minutes = values.number(minutes);
    values.batch(format!(
        "
DECLARE @first BIGINT = {THIS_MINUTE} - {minutes} + 1;
SELECT SYSUTCDATETIME() AS now_at;
SELECT holder_id, version, started_at, seen_at FROM submission_instances ORDER BY holder_id, started_at;
SELECT g.gateway_url, h.held_until FROM submission_gateway_holds AS h
JOIN submission_gateways AS g ON g.gateway_id = h.gateway_id
WHERE h.held_until > SYSUTCDATETIME() ORDER BY g.gateway_url;
SELECT minute, submitted, waiting FROM submission_fleet_minutes WHERE minute >= @first ORDER BY minute;
SELECT minute, status, CAST(SUM(attempts) AS BIGINT) AS intents FROM submission_minutes
WHERE minute >= @first AND status <> 'pending' GROUP BY minute, status ORDER BY minute, status;
SELECT TOP ({TIMED_INTENTS}) i.created_at, i.completed_at, (SELECT o.not_before FROM submission_intent_options AS o
    WHERE o.intent_seq = i.intent_seq) AS not_before
FROM submission_intents AS i WHERE i.completed_at IS NOT NULL ORDER BY i.last_modified_at DESC, i.intent_seq DESC;"
    ))
}

pub(super) async fn record(database: &Database, report: InstanceReport) -> Result<(), StoreError> {
    database.run(record_batch(&report)).await.map(drop)
}

pub(super) async fn forget(database: &Database, instance_id: String) -> Result<(), StoreError> {
    database.run(forget_batch(&instance_id)).await.map(drop)
}

pub(super) async fn activity(database: &Database, minutes: i64) -> Result<Activity, StoreError> {
    let results = database.run(activity_batch(minutes)).await?;
    let timed = all(set(&results, 5), |row| Ok((rows::begins_at(row)?, rows::need_moment(row, "completed_at")?)))?;
    Ok(Activity {
        now: rows::need_moment(need_first(&results)?, "now_at")?,
        instances: all(set(&results, 1), |row| {
            Ok(Instance {
                holder_id: rows::need::<&str>(row, "holder_id")?.to_owned(),
                version: rows::need::<&str>(row, "version")?.to_owned(),
                started_at: rows::need_moment(row, "started_at")?,
                seen_at: rows::need_moment(row, "seen_at")?,
            })
        })?,
        holds: all(set(&results, 2), |row| {
            let gateway = rows::need::<&str>(row, "gateway_url")?.to_owned();
            Ok(GatewayHold { gateway, until: rows::need_moment(row, "held_until")? })
        })?,
        minutes: all(set(&results, 3), |row| {
            Ok(FleetMinute {
                minute: rows::need(row, "minute")?,
                submitted: sum(row, "submitted")?,
                waiting: rows::get::<i64>(row, "waiting")?.map(i64::unsigned_abs),
            })
        })?,
        ended: all(set(&results, 4), |row| {
            Ok(EndedInMinute {
                minute: rows::need(row, "minute")?,
                status: rows::parsed(row, "status", Status::parse)?,
                intents: sum(row, "intents")?,
            })
        })?,
        time_to_terminal: TimeToTerminal::of(&timed),
    })
}
