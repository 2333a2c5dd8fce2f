//! Plans redrives: reads the failed intents that match, page by page, and stores the set in short transactions.
//!
//! Only the last transaction makes the plan visible. If planning is interrupted, the rows of the unfinished plan are
//! deleted later. Pages are read at different moments. That is harmless, because an intent that has failed does not
//! change any more.

use serde_json::{Value as Json, json};
use tiberius::Row;

use super::super::audit::{VARIABLES, append};
use super::super::database::{Batch, Database};
use super::super::failures;
use super::super::read::{need_first, set};
use super::super::rows;
use super::super::script::{Values, json_text, plain_text};
use super::super::statements::TICK;
use crate::domain::audit::NewAuditEntry;
use crate::domain::failure::failure_cause;
use crate::domain::intent::{IntentId, IntentSeq, TargetName};
use crate::domain::outcome::Contact;
use crate::domain::redrive::{
    Candidate, Conditions, FailedStatus, PlannedItem, PlannedSet, Planner, RedriveFilter, TooMany,
};
use crate::store::redrive::{ITEMS_EACH, plan_lost};
use crate::store::{NewRedrive, Planning, RedriveSeq, StoreError};

/// How many intents are read in one round trip.
const PAGE: usize = 20_000;

/// Plans a redrive.
pub(in crate::store::sqlserver) async fn run(database: &Database, new: NewRedrive) -> Result<Planning, StoreError> {
    let planner = Planner::new(new.registered.clone(), new.include_unknown);
    let Ok(set_of_plan) = select(database, &new.filter, planner).await? else { return Ok(Planning::TooMany) };
    let sample = database.run(sample_batch(set_of_plan.sample())).await?;
    let sample = set(&sample, 0).iter().map(|row| rows::need::<&str>(row, "intent_id").map(str::to_owned));
    let summary = set_of_plan.summary(sample.collect::<Result<_, _>>()?);
    let summary = serde_json::to_string(&summary).map_err(StoreError::unexpected)?;
    let begun = database.run(begin_batch(&new)).await?;
    let seq = RedriveSeq(rows::need(need_first(&begun)?, "redrive_seq")?);
    let mut position = 0;
    for items in set_of_plan.items.chunks(ITEMS_EACH) {
        let inserted = database.run(insert_batch(seq, position, items)).await?;
        if set(&inserted, 0).is_empty() {
            return Err(plan_lost());
        }
        position += items.len();
    }
    database.run(finish_batch(seq, position, &summary, &new.audit_entry(position))).await?;
    super::find(database, new.id).await?.map(Box::new).map(Planning::Planned).ok_or_else(plan_lost)
}

/// Which intents to read.
pub(in crate::store::sqlserver) enum Page<'a> {
    /// These ids.
    Ids(&'a [IntentId]),
    /// Intents with this status that meet the conditions and have a number greater than this one, in the order of
    /// numbers.
    Matching(FailedStatus, &'a Conditions, IntentSeq),
}

/// Reads failed intents, and for each whether it was already redriven and whether the outcome of its last attempt is
/// unknown.
pub(in crate::store::sqlserver) fn page_batch(page: &Page<'_>) -> Batch {
    let mut values = Values::default();
    let mut ending = String::new();
    let (from, conditions) = match page {
        Page::Ids(ids) => {
            let ids = values.json(ids.iter().map(|id| json!({ "id": json_text(id.as_str()) })).collect());
            let from = format!(
                "OPENJSON({ids}) WITH (id NVARCHAR(800)) AS j JOIN submission_intents AS i ON i.intent_id = {}",
                plain_text("j.id")
            );
            (from, "i.status IN ('rejected', 'exhausted')".to_owned())
        }
        Page::Matching(status, conditions, after) => {
            let after = values.number(after.0);
            let mut sql = format!("i.status = '{}' AND i.intent_seq > {after}", status.as_str());
            let Conditions { target, reason, created_after, created_before, completed_after, completed_before, .. } =
                conditions;
            for (moment, column, compared) in [
                (created_after, "created_at", ">"),
                (created_before, "created_at", "<"),
                (completed_after, "completed_at", ">"),
                (completed_before, "completed_at", "<"),
            ] {
                if let Some(moment) = moment {
                    sql += &format!(" AND i.{column} {compared} {}", values.moment(*moment));
                }
            }
            if let Some(target) = target {
                sql += &format!(" AND c.submission_target = {}", values.text(target.as_str()));
            }
            if let Some(reason) = reason {
                sql += &match status {
                    FailedStatus::Rejected => {
                        format!(" AND i.rejected_reason COLLATE Latin1_General_100_BIN2 = {}", values.text(reason))
                    }
                    FailedStatus::Exhausted => format!(" AND i.exhausted_reason = {}", values.code(reason, 20)),
                };
            }
            if let Some(cause) = &conditions.cause {
                ending = failures::ENDING_COLUMNS.to_owned();
                sql += &format!(" AND {}", failures::may_have_cause(&mut values, cause));
                (format!("submission_intents AS i {}", failures::ENDING), sql)
            } else {
                ("submission_intents AS i".to_owned(), sql)
            }
        }
    };
    let limit = values.count(PAGE);
    values.batch(format!(
        "
SELECT TOP ({limit}) i.intent_seq, c.submission_target, i.status, i.completed_at, i.rejected_reason, i.exhausted_reason{ending},
    CASE WHEN EXISTS (SELECT 1 FROM submission_intent_options AS o WHERE o.redrive_of = i.intent_id)
        THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS redriven,
    COALESCE((SELECT TOP (1) CASE WHEN a.error IS NULL OR {} THEN CAST(0 AS BIGINT) ELSE CAST(1 AS BIGINT) END
        FROM submission_attempts AS a WHERE a.intent_seq = i.intent_seq ORDER BY a.attempt_number DESC),
        CAST(0 AS BIGINT)) AS outcome_unknown
FROM {from}
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE {conditions} AND i.intent_id NOT LIKE '{}%'
ORDER BY i.intent_seq;",
        known_contact(),
        IntentId::OF_JOBS
    ))
}

/// The condition for errors after which it is known whether the gateway processed the request. It agrees with
/// [`Contact::of_text`](crate::domain::outcome::Contact::of_text).
fn known_contact() -> String {
    let begins = |text: &str| format!("a.error LIKE N'{text}%' COLLATE Latin1_General_100_BIN2");
    format!("{} OR {}", begins(Contact::NotSent.prefix()), begins(Contact::ANSWERED_TEXT))
}

async fn select(
    readers: &Database,
    filter: &RedriveFilter,
    mut planner: Planner,
) -> Result<Result<PlannedSet, TooMany>, StoreError> {
    match filter {
        RedriveFilter::Ids(ids) => {
            let results = readers.run(page_batch(&Page::Ids(ids))).await?;
            if add(&mut planner, set(&results, 0), None)?.is_err() {
                return Ok(Err(TooMany));
            }
        }
        RedriveFilter::Matching(conditions) => {
            for status in FailedStatus::ALL.into_iter().filter(|status| conditions.wants(*status)) {
                let mut after = IntentSeq(0);
                loop {
                    let results = readers.run(page_batch(&Page::Matching(status, conditions, after))).await?;
                    let page = set(&results, 0);
                    if add(&mut planner, page, conditions.cause.as_deref())?.is_err() {
                        return Ok(Err(TooMany));
                    }
                    match page.last().filter(|_| page.len() >= PAGE) {
                        Some(last) => after = rows::seq(last)?,
                        None => break,
                    }
                }
            }
        }
    }
    Ok(Ok(planner.finish()))
}

/// Passes the intents of a page, and of these only those with this cause if there is one, to the planner.
fn add(planner: &mut Planner, page: &[Row], cause: Option<&str>) -> Result<Result<(), TooMany>, StoreError> {
    for row in page {
        let target = rows::parsed(row, "submission_target", |text| TargetName::parse(text).ok())?;
        let status = rows::parsed(row, "status", FailedStatus::parse)?;
        let reason = match status {
            FailedStatus::Rejected => rows::get(row, "rejected_reason")?,
            FailedStatus::Exhausted => rows::get(row, "exhausted_reason")?,
        };
        let reason: &str = reason.unwrap_or_default();
        if let Some(cause) = cause
            && failure_cause(status, reason, failures::ending(row)?.as_ref()) != cause
        {
            continue;
        }
        let candidate = Candidate {
            seq: rows::seq(row)?,
            target: &target,
            status,
            reason,
            completed_at: rows::need_moment(row, "completed_at")?,
            redriven: rows::need::<i64>(row, "redriven")? == 1,
        };
        let unknown = || rows::need::<i64>(row, "outcome_unknown").map(|unknown| unknown == 1);
        if planner.add(candidate, unknown)?.is_err() {
            return Ok(Err(TooMany));
        }
    }
    Ok(Ok(()))
}

/// Reads the ids of the first intents of a plan, in the order of the plan.
pub(in crate::store::sqlserver) fn sample_batch(sample: impl Iterator<Item = IntentSeq>) -> Batch {
    let mut values = Values::default();
    let seqs: Vec<Json> = sample.enumerate().map(|(place, seq)| json!({ "place": place, "seq": seq.0 })).collect();
    let seqs = values.json(seqs);
    values.batch(format!(
        "
SELECT i.intent_id FROM OPENJSON({seqs}) WITH (place BIGINT, seq BIGINT) AS j
JOIN submission_intents AS i ON i.intent_seq = j.seq ORDER BY j.place;"
    ))
}

/// Inserts the row of a plan that is not visible yet, and returns its number.
pub(in crate::store::sqlserver) fn begin_batch(new: &NewRedrive) -> Batch {
    let mut values = Values::default();
    let id = values.code(new.id.to_string(), 36);
    let (filter, unknown) = (values.text(&new.filter_json), values.number(i64::from(new.include_unknown)));
    // An empty text stands for no note, because parameters cannot be NULL.
    let note = values.text(new.note.clone().unwrap_or_default());
    values.batch(format!(
        "
INSERT INTO submission_redrives (redrive_id, state, planned_at, filter, include_unknown, note, intent_count, created_count,
    skipped_count, plan_summary)
SELECT {id}, 'planning', SYSUTCDATETIME(), {filter}, {unknown}, NULLIF({note}, N''), 0, 0, 0, N''
WHERE NOT EXISTS (SELECT 1 FROM submission_redrives AS r WHERE r.redrive_id = {id});
SELECT r.redrive_seq FROM submission_redrives AS r WHERE r.redrive_id = {id};"
    ))
}

/// Inserts some of the items of a plan. The result has a row unless the row of the plan was deleted meanwhile.
pub(in crate::store::sqlserver) fn insert_batch(seq: RedriveSeq, first: usize, items: &[PlannedItem]) -> Batch {
    let mut values = Values::default();
    let item = |(place, item): (usize, &PlannedItem)| json!({ "t": item.target, "p": place, "s": item.seq.0 });
    let items = values.json((first..).zip(items).map(item).collect());
    let seq = values.number(seq.0);
    values.batch(format!(
        "
INSERT INTO submission_redrive_items (redrive_seq, target_number, position, intent_seq)
SELECT {seq}, j.t, j.p, j.s FROM OPENJSON({items}) WITH (t BIGINT, p BIGINT, s BIGINT) AS j
WHERE EXISTS (SELECT 1 FROM submission_redrives AS r WHERE r.redrive_seq = {seq} AND r.state = 'planning')
    AND NOT EXISTS (SELECT 1 FROM submission_redrive_items AS t
        WHERE t.redrive_seq = {seq} AND t.target_number = j.t AND t.position = j.p);
SELECT r.redrive_seq FROM submission_redrives AS r WHERE r.redrive_seq = {seq} AND r.state = 'planning';"
    ))
}

/// Makes the plan visible.
pub(in crate::store::sqlserver) fn finish_batch(
    seq: RedriveSeq,
    count: usize,
    summary: &str,
    entry: &NewAuditEntry,
) -> Batch {
    let mut values = Values::default();
    let entry = append(&mut values, entry);
    let (seq, count, summary) = (values.number(seq.0), values.count(count), values.text(summary));
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @planned BIGINT, {VARIABLES};
BEGIN TRANSACTION;{TICK}
UPDATE submission_redrives SET state = 'planned', planned_at = SYSUTCDATETIME(), intent_count = {count},
    plan_summary = {summary}
WHERE redrive_seq = {seq} AND state = 'planning';
SET @planned = @@ROWCOUNT;
IF @planned > 0
BEGIN{entry}
END;
COMMIT TRANSACTION;"
    ))
}
