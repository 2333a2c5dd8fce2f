//! Redrives: reads, changes and deletes the rows of redrives. [`plan`] makes plans, and [`work`] creates the new
//! intents.
//!
//! To prevent deadlocks, a transaction that also needs the lease, the clock or intents locks those before it changes
//! the row of a redrive.

pub(super) mod plan;
pub(super) mod work;

use std::time::Duration;

use tiberius::Row;

use super::audit::{VARIABLES, append};
use super::database::{Batch, Database};
use super::read::{all, need_first, set};
use super::rows::{self, INTENT_COLUMNS};
use super::script::{Fence, Values};
use super::statements::TICK;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::{IntentId, Status};
use crate::domain::lease::Term;
use crate::domain::redrive::{PLAN_LIFETIME, PlanSummary, RedriveChange, RedriveId, RedriveRate, RedriveState};
use crate::store::redrive::{ITEMS_EACH, STALE_PLANNING};
use crate::store::{
    ChangedRedrive, Redrive, RedriveOutcomes, RedrivePage, RedriveSeq, RedriveSource, RunningRedrive, StoreError,
};

const COLUMNS: &str = "r.redrive_id, r.state, r.planned_at, r.started_at, r.ended_at, r.filter, r.include_unknown, r.note, \
     r.rate_per_second, r.intent_count, r.created_count, r.skipped_count, r.plan_summary, r.outcomes";

/// The condition for redrives that users can see. Plans that are still being made and expired plans do not meet it.
fn seen() -> String {
    format!(
        "r.state <> 'planning' AND (r.state <> 'planned' OR r.planned_at > DATEADD(SECOND, -{}, SYSUTCDATETIME()))",
        PLAN_LIFETIME.as_secs()
    )
}

/// Reads an intent with everything that a redrive copies from it. Intents of jobs are not found.
pub(super) fn source_batch(id: &IntentId) -> Batch {
    let mut values = Values::default();
    let id = values.text(id.as_str());
    values.batch(format!(
        "SELECT {INTENT_COLUMNS}, i.payload, COALESCE((SELECT o.gateway_key FROM submission_intent_options AS o
    WHERE o.intent_seq = i.intent_seq), i.intent_id) AS gateway_key
FROM submission_intents AS i JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE i.intent_id = {id} AND i.intent_id NOT LIKE '{}%';",
        IntentId::OF_JOBS
    ))
}

pub(super) async fn source(database: &Database, id: IntentId) -> Result<Option<RedriveSource>, StoreError> {
    let results = database.run(source_batch(&id)).await?;
    let read = |row: &Row| {
        Ok(RedriveSource {
            intent: rows::intent(row)?,
            payload: rows::bytes(row, "payload")?.unwrap_or_default(),
            gateway_key: rows::parsed(row, "gateway_key", |text| IntentId::parse(text).ok())?,
        })
    };
    set(&results, 0).first().map(read).transpose()
}

/// Reads the chosen redrives. The second result counts the intents by status, for those redrives whose final outcomes
/// are not stored yet.
fn with_outcomes(chosen: &str) -> String {
    format!(
        "
DECLARE @chosen TABLE (redrive_seq BIGINT NOT NULL PRIMARY KEY);
INSERT INTO @chosen (redrive_seq) {chosen};
SELECT {COLUMNS} FROM @chosen AS h JOIN submission_redrives AS r ON r.redrive_seq = h.redrive_seq
ORDER BY r.redrive_seq DESC;
SELECT r.redrive_id, i.status, COUNT_BIG(*) AS intents
FROM @chosen AS h JOIN submission_redrives AS r ON r.redrive_seq = h.redrive_seq
JOIN submission_intent_options AS o ON o.redrive_id = r.redrive_id
JOIN submission_intents AS i ON i.intent_seq = o.intent_seq
WHERE r.outcomes IS NULL AND o.redrive_id IS NOT NULL GROUP BY r.redrive_id, i.status;"
    )
}

pub(super) fn find_batch(id: RedriveId) -> Batch {
    let mut values = Values::default();
    let id = values.code(id.to_string(), 36);
    let chosen = format!("SELECT r.redrive_seq FROM submission_redrives AS r WHERE r.redrive_id = {id} AND {}", seen());
    values.batch(with_outcomes(&chosen))
}

pub(super) fn list_batch(after: Option<RedriveId>, limit: usize) -> Batch {
    let mut values = Values::default();
    let limit = values.count(limit.saturating_add(1));
    let after = after.map(|id| {
        let id = values.code(id.to_string(), 36);
        format!(" AND r.redrive_seq < (SELECT a.redrive_seq FROM submission_redrives AS a WHERE a.redrive_id = {id})")
    });
    let chosen = format!(
        "SELECT TOP ({limit}) r.redrive_seq FROM submission_redrives AS r WHERE {}{}
ORDER BY r.redrive_seq DESC",
        seen(),
        after.unwrap_or_default()
    );
    values.batch(with_outcomes(&chosen))
}

fn redrive(row: &Row, counted: &[Row]) -> Result<Redrive, StoreError> {
    let count = |name| rows::need::<i64>(row, name).map(i64::unsigned_abs);
    let rate = rows::get::<i64>(row, "rate_per_second")?.and_then(|rate| u32::try_from(rate).ok());
    let mut redrive = Redrive {
        id: rows::parsed(row, "redrive_id", RedriveId::parse)?,
        state: rows::parsed(row, "state", RedriveState::parse)?,
        planned_at: rows::need_moment(row, "planned_at")?,
        started_at: rows::moment(row, "started_at")?,
        ended_at: rows::moment(row, "ended_at")?,
        filter: rows::need::<&str>(row, "filter")?.to_owned(),
        include_unknown: rows::need::<i64>(row, "include_unknown")? == 1,
        note: rows::text(row, "note")?,
        rate: rate.and_then(RedriveRate::new),
        count: count("intent_count")?,
        created: count("created_count")?,
        skipped: count("skipped_count")?,
        plan: rows::parsed(row, "plan_summary", |text| serde_json::from_str(text).ok())?,
        outcomes: rows::optional(row, "outcomes", RedriveOutcomes::of_text)?.unwrap_or_default(),
    };
    for row in counted {
        if rows::parsed(row, "redrive_id", RedriveId::parse)? == redrive.id {
            let intents = rows::need::<i64>(row, "intents")?.unsigned_abs();
            redrive.outcomes.add(rows::parsed(row, "status", Status::parse)?, intents);
        }
    }
    Ok(redrive)
}

async fn read(database: &Database, batch: Batch) -> Result<Vec<Redrive>, StoreError> {
    let results = database.run(batch).await?;
    all(set(&results, 0), |row| redrive(row, set(&results, 1)))
}

pub(super) async fn find(database: &Database, id: RedriveId) -> Result<Option<Redrive>, StoreError> {
    Ok(read(database, find_batch(id)).await?.pop())
}

pub(super) async fn list(
    database: &Database,
    after: Option<RedriveId>,
    limit: usize,
) -> Result<RedrivePage, StoreError> {
    Ok(RedrivePage::of(read(database, list_batch(after, limit)).await?, limit))
}

/// Changes a redrive if it is still in the state `from`. The result is the number of changed rows.
pub(super) fn change_batch(
    id: RedriveId,
    from: RedriveState,
    to: RedriveState,
    change: RedriveChange,
    by: &Actor,
) -> Batch {
    let mut values = Values::default();
    let entry = append(&mut values, &NewAuditEntry::change_redrive(by, id, change));
    let rate = match change {
        RedriveChange::Start { rate } => Some(rate),
        _ => None,
    };
    let id = values.code(id.to_string(), 36);
    let (from, to) = (values.code(from.as_str(), 10), values.code(to.as_str(), 10));
    // 0 stands for no rate, because parameters cannot be NULL.
    let rate = values.number(rate.map_or(0, |rate| i64::from(rate.per_second())));
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @changed BIGINT, {VARIABLES};
BEGIN TRANSACTION;{TICK}
UPDATE submission_redrives SET state = {to}, rate_per_second = COALESCE(NULLIF({rate}, 0), rate_per_second),
    started_at = CASE WHEN {rate} > 0 THEN SYSUTCDATETIME() ELSE started_at END,
    ended_at = CASE WHEN {to} = 'cancelled' THEN SYSUTCDATETIME() END
WHERE redrive_id = {id} AND state = {from};
SET @changed = @@ROWCOUNT;
IF @changed > 0
BEGIN{entry}
END;
COMMIT TRANSACTION;
SELECT @changed AS changed;"
    ))
}

pub(super) async fn change(
    database: &Database,
    id: RedriveId,
    change: RedriveChange,
    by: &Actor,
) -> Result<ChangedRedrive, StoreError> {
    // If another request changes the redrive between the read and the change, read it again.
    const TRIES: usize = 5;
    for _ in 0..TRIES {
        let Some(found) = find(database, id).await? else { return Ok(ChangedRedrive::NotFound) };
        let state = match change.apply(found.state, found.count) {
            Ok(state) => state,
            Err(refusal) => return Ok(ChangedRedrive::Refused(refusal)),
        };
        let results = database.run(change_batch(id, found.state, state, change, by)).await?;
        if rows::need::<i64>(need_first(&results)?, "changed")? == 1 {
            let changed = find(database, id).await?;
            return Ok(changed.map_or(ChangedRedrive::NotFound, |changed| ChangedRedrive::Changed(Box::new(changed))));
        }
    }
    Err(StoreError::unavailable("the redrive kept changing"))
}

pub(super) fn running_batch() -> Batch {
    Batch::new(
        "
SELECT r.redrive_seq, r.redrive_id, r.rate_per_second, r.created_count, r.plan_summary
FROM submission_redrives AS r WHERE r.state = 'running' ORDER BY r.started_at, r.redrive_seq;",
        Vec::new(),
    )
}

pub(super) async fn running(database: &Database) -> Result<Vec<RunningRedrive>, StoreError> {
    let results = database.run(running_batch()).await?;
    all(set(&results, 0), |row| {
        let rate = u32::try_from(rows::need::<i64>(row, "rate_per_second")?).unwrap_or(1);
        let plan = rows::parsed(row, "plan_summary", |text| serde_json::from_str::<PlanSummary>(text).ok())?;
        Ok(RunningRedrive {
            seq: RedriveSeq(rows::need(row, "redrive_seq")?),
            id: rows::parsed(row, "redrive_id", RedriveId::parse)?,
            rate: RedriveRate::new(rate).unwrap_or(RedriveRate::DEFAULT),
            created: rows::need::<i64>(row, "created_count")?.unsigned_abs(),
            targets: plan.targets,
        })
    })
}

/// Deletes items of redrives that have ended and of expired plans. When none of these are left, it stores the final
/// outcomes of redrives that have ended and of which no intent is pending, and deletes expired plans and old redrives.
pub(super) fn tidy_batch(term: &Term, keep_for: Option<Duration>) -> Batch {
    let mut values = Values::default();
    let Fence { sql: fence, .. } = values.fence(term);
    let gone = format!(
        "(r.state = 'planning' AND r.planned_at <= DATEADD(SECOND, -{}, SYSUTCDATETIME()))
    OR (r.state = 'planned' AND r.planned_at <= DATEADD(SECOND, -{}, SYSUTCDATETIME()))",
        STALE_PLANNING.as_secs(),
        PLAN_LIFETIME.as_secs()
    );
    let old = keep_for.map(|keep_for| {
        // DATEADD accepts only an INT as its number.
        let age = values.number(-i64::from(i32::try_from(keep_for.as_secs()).unwrap_or(i32::MAX)));
        format!("\n    OR (r.outcomes IS NOT NULL AND r.ended_at < DATEADD(SECOND, {age}, SYSUTCDATETIME()))")
    });
    let limit = values.count(ITEMS_EACH);
    let counted = |status: &str| {
        format!(
            "(SELECT CAST(COUNT_BIG(*) AS VARCHAR(20)) FROM submission_intent_options AS o
        JOIN submission_intents AS i ON i.intent_seq = o.intent_seq
        WHERE o.redrive_id = submission_redrives.redrive_id AND o.redrive_id IS NOT NULL AND i.status = '{status}')"
        )
    };
    values.batch(format!(
        "DECLARE @held BIGINT = 0, @deleted BIGINT = 0;
DECLARE @over TABLE (redrive_seq BIGINT NOT NULL, target_number BIGINT NOT NULL, position BIGINT NOT NULL,
    PRIMARY KEY (redrive_seq, target_number, position));
BEGIN TRANSACTION;{fence}
IF @held = 1
BEGIN
    INSERT INTO @over (redrive_seq, target_number, position)
    SELECT TOP ({limit}) t.redrive_seq, t.target_number, t.position
    FROM submission_redrives AS r JOIN submission_redrive_items AS t ON t.redrive_seq = r.redrive_seq
    WHERE r.state IN ('completed', 'cancelled') OR {gone};
    SET @deleted = @@ROWCOUNT;
    DELETE FROM submission_redrive_items WHERE EXISTS (SELECT 1 FROM @over AS v
        WHERE v.redrive_seq = submission_redrive_items.redrive_seq
            AND v.target_number = submission_redrive_items.target_number
            AND v.position = submission_redrive_items.position);
END;
IF @held = 1 AND @deleted < {limit}
BEGIN
    UPDATE submission_redrives SET outcomes = {} + ' ' + {} + ' ' + {}
    WHERE ended_at IS NOT NULL AND outcomes IS NULL AND NOT EXISTS (SELECT 1 FROM submission_intent_options AS o
        JOIN submission_intents AS i ON i.intent_seq = o.intent_seq
        WHERE o.redrive_id = submission_redrives.redrive_id AND o.redrive_id IS NOT NULL AND i.status = 'pending');
    DELETE FROM submission_redrives WHERE redrive_seq IN (SELECT r.redrive_seq FROM submission_redrives AS r WHERE {gone}{});
END;
COMMIT TRANSACTION;
SELECT @held AS held, CASE WHEN @deleted < {limit} THEN CAST(0 AS BIGINT) ELSE CAST(1 AS BIGINT) END AS more;",
        counted("accepted"),
        counted("rejected"),
        counted("exhausted"),
        old.unwrap_or_default()
    ))
}

/// Runs [`tidy_batch`]. Returns whether more items are left to delete; `None` if the term is over.
pub(super) async fn tidy(
    database: &Database,
    term: &Term,
    keep_for: Option<Duration>,
) -> Result<Option<bool>, StoreError> {
    let results = database.run(tidy_batch(term, keep_for)).await?;
    let row = need_first(&results)?;
    Ok(match rows::need::<i64>(row, "held")? {
        1 => Some(rows::need::<i64>(row, "more")? == 1),
        _ => None,
    })
}
