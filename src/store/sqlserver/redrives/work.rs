//! Runs a redrive: creates new intents that repeat those of the plan, a few in each step.
//!
//! A step has two round trips, because this program derives the new ids from the old ones. The first one reads the next
//! items. The second one creates the intents and deletes the items in one transaction. So a step that is repeated,
//! because its answer was lost or because another leader took over, continues after the last committed step.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tiberius::Row;

use super::super::contracts::Contracts;
use super::super::database::{Batch, Database};
use super::super::read::{need_first, set};
use super::super::rows;
use super::super::script::{Column, Script, Values, json_text};
use crate::domain::contract::{Contract, Policy};
use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::lease::Term;
use crate::domain::redrive::{RedriveId, redriven_id};
use crate::domain::schedule::Lane;
use crate::store::redrive::Rooms;
use crate::store::{RedriveSeq, RedriveWork, RedriveWorked, StoreError};

/// A target of the redrive that is in the registry: the lane and the contract of its new intents.
struct Target {
    lane: Arc<Lane>,
    contract: Arc<Contract>,
}

/// Makes one step of a redrive. Returns `None` if the term is over.
pub(in crate::store::sqlserver) async fn run(
    database: &Database,
    contracts: &Contracts,
    term: &Term,
    work: &RedriveWork,
) -> Result<Option<RedriveWorked>, StoreError> {
    let mut targets = Vec::with_capacity(work.contracts.len());
    for contract in &work.contracts {
        targets.push(match contract {
            Some(snapshot) => {
                let lane = contracts.row(database, snapshot).await?.lane;
                Some(Target { lane, contract: Arc::clone(&snapshot.contract) })
            }
            None => None,
        });
    }
    let lanes = targets.iter().map(|target| target.as_ref().map(|target| &*target.lane));
    let mut rooms = Rooms::new(lanes, &*work.admission);
    let results = database.run(next_batch(work.seq, rooms.admitted(), work.limit)).await?;
    let mut items = set(&results, 0).iter().map(Item::read).collect::<Result<Vec<_>, _>>()?;
    items.retain(|item| usize::try_from(item.target).is_ok_and(|target| rooms.take(target)));
    if items.is_empty() && !rooms.all_admitted() {
        return Ok(Some(RedriveWorked::NOTHING));
    }
    let batch =
        create_batch(term, work, items.iter().enumerate().map(|(place, item)| item.input(place, work.id, &targets)));
    let results = database.run(batch).await?;
    let head = need_first(&results)?;
    if rows::need::<i64>(head, "held")? != 1 {
        return Ok(None);
    }
    let worked = set(&results, 1).first().ok_or_else(|| StoreError::unavailable("no answer to a step"))?;
    if rows::need::<i64>(worked, "running")? != 1 {
        return Ok(Some(RedriveWorked::NOTHING));
    }
    let count = |name| rows::need::<i64>(worked, name).map(|count| usize::try_from(count).unwrap_or(0));
    let (now_created, deleted) = (count("created")?, count("deleted")?);
    Ok(Some(RedriveWorked {
        now_created,
        now_skipped: deleted.saturating_sub(now_created),
        created: Some(rows::need::<i64>(worked, "created_count")?.unsigned_abs()),
        completed: rows::need::<i64>(worked, "completed")? == 1,
    }))
}

/// An intent of the plan that is still to be redriven.
struct Item {
    /// The number of its target in the plan.
    target: i64,
    position: i64,
    seq: IntentSeq,
    /// The id of the intent and that of the first intent of its chain; `None` if the intent was deleted.
    ids: Option<(IntentId, IntentId)>,
}

impl Item {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let id = |text: &str| IntentId::parse(text).ok();
        let ids = rows::optional(row, "intent_id", id)?.zip(rows::optional(row, "gateway_key", id)?);
        Ok(Self {
            target: rows::need(row, "target_number")?,
            position: rows::need(row, "position")?,
            seq: rows::seq(row)?,
            ids,
        })
    }

    /// The item as input of the transaction, which skips items without an id.
    fn input(&self, place: usize, redrive: RedriveId, targets: &[Option<Target>]) -> Json {
        let mut input = json!({
            "place": place, "target_number": self.target, "position": self.position, "old_seq": self.seq.0,
        });
        let target = usize::try_from(self.target).ok().and_then(|number| targets.get(number)?.as_ref());
        if let (Some((old, key)), Some(target), Some(fields)) = (&self.ids, target, input.as_object_mut()) {
            let id = redriven_id(old, &redrive.to_string());
            fields.insert("intent_id".to_owned(), json_text(id.as_str()).into());
            fields.insert("redrive_of".to_owned(), json_text(old.as_str()).into());
            fields.insert("gateway_key".to_owned(), json_text(key.as_str()).into());
            fields.insert("contract_id".to_owned(), target.lane.id.0.into());
            fields.insert("gateway_id".to_owned(), target.lane.gateway.0.into());
            if let Policy::Deadline { max_acceptance_seconds } = target.contract.policy {
                // DATEADD accepts only an INT as its number.
                let seconds = max_acceptance_seconds.get().min(i32::MAX as u32);
                fields.insert("deadline_seconds".to_owned(), seconds.into());
            }
        }
        input
    }
}

/// Reads the next items of the targets for which intents may be created now, in the order of the plan, with the ids of
/// their intents.
pub(in crate::store::sqlserver) fn next_batch(
    seq: RedriveSeq,
    targets: impl Iterator<Item = (usize, usize)>,
    limit: usize,
) -> Batch {
    let mut values = Values::default();
    let targets =
        values.json(targets.map(|(number, room)| json!({ "number": number, "room": room.min(limit) })).collect());
    let (seq, limit) = (values.number(seq.0), values.count(limit));
    values.batch(format!(
        "
SELECT n.target_number, n.position, n.intent_seq, i.intent_id, COALESCE(o.gateway_key, i.intent_id) AS gateway_key
FROM (SELECT TOP ({limit}) t.target_number, t.position, t.intent_seq
    FROM OPENJSON({targets}) WITH (number BIGINT, room BIGINT) AS j
    CROSS APPLY (SELECT TOP ({limit}) e.target_number, e.position, e.intent_seq,
            ROW_NUMBER() OVER (ORDER BY e.position) AS place FROM submission_redrive_items AS e
        WHERE e.redrive_seq = {seq} AND e.target_number = j.number ORDER BY e.position) AS t
    WHERE t.place <= j.room ORDER BY t.position) AS n
LEFT JOIN submission_intents AS i ON i.intent_seq = n.intent_seq
LEFT JOIN submission_intent_options AS o ON o.intent_seq = n.intent_seq
ORDER BY n.position;"
    ))
}

/// Creates the intents of items that still exist, and deletes the items. Every write of an intent locks the row of the
/// clock, so no other transaction can redrive one of them meanwhile.
pub(in crate::store::sqlserver) fn create_batch(
    term: &Term,
    work: &RedriveWork,
    items: impl Iterator<Item = Json>,
) -> Batch {
    let mut script = Script::default();
    let columns = [
        Column::key("place"),
        Column::of("target_number", "BIGINT"),
        Column::of("position", "BIGINT"),
        Column::of("old_seq", "BIGINT"),
        Column::text("intent_id", 400),
        Column::text("redrive_of", 400),
        Column::text("gateway_key", 400),
        Column::of("contract_id", "BIGINT"),
        Column::of("gateway_id", "BIGINT"),
        Column::of("deadline_seconds", "INT"),
    ];
    script.input("next", items.collect(), columns);
    script.fence(term);
    let seq = script.values.number(work.seq.0);
    let id = script.values.code(work.id.to_string(), 36);
    script.variable("@running BIGINT = 0, @created BIGINT = 0, @deleted BIGINT = 0");
    // The first update locks the row until the commit, so that the redrive cannot be paused or cancelled in between. It
    // must be a real change to lock the row, so a later update takes it back.
    script.fenced_change(&format!(
        "
UPDATE submission_redrives SET created_count = created_count + 1 WHERE redrive_seq = {seq} AND state = 'running';
SET @running = @@ROWCOUNT;
IF @running = 1
BEGIN
    INSERT INTO submission_intents (intent_id, contract_id, gateway_id, payload, payload_sha256, status, attempt_count,
        next_attempt_at, deadline_at, created_at, last_modified_at)
    SELECT n.intent_id, n.contract_id, n.gateway_id, i.payload, i.payload_sha256, 'pending', 0,
        @now, DATEADD(SECOND, n.deadline_seconds, @now), @now, @now
    FROM @next AS n
    JOIN submission_redrive_items AS t
        ON t.redrive_seq = {seq} AND t.target_number = n.target_number AND t.position = n.position
    JOIN submission_intents AS i ON i.intent_seq = n.old_seq
    WHERE n.place BETWEEN @first AND @last AND n.intent_id IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM submission_intents AS e WHERE e.intent_id = n.intent_id)
        AND NOT EXISTS (SELECT 1 FROM submission_intent_options AS o WHERE o.redrive_of = n.redrive_of)
    ORDER BY n.place;
    SET @created = @@ROWCOUNT;
    INSERT INTO submission_intent_options (intent_seq, redrive_of, redrive_id, gateway_key)
    SELECT i.intent_seq, n.redrive_of, {id}, n.gateway_key
    FROM @next AS n JOIN submission_intents AS i ON i.intent_id = n.intent_id
    WHERE n.place BETWEEN @first AND @last AND i.created_at = @now;
    DELETE FROM submission_redrive_items WHERE redrive_seq = {seq} AND EXISTS (SELECT 1 FROM @next AS n
        WHERE n.target_number = submission_redrive_items.target_number
            AND n.position = submission_redrive_items.position AND n.place BETWEEN @first AND @last);
    SET @deleted = @@ROWCOUNT;
    UPDATE submission_redrives SET created_count = created_count + @created - 1,
        skipped_count = skipped_count + @deleted - @created
    WHERE redrive_seq = {seq};
    UPDATE submission_redrives SET state = 'completed', ended_at = @now
    WHERE redrive_seq = {seq}
        AND NOT EXISTS (SELECT 1 FROM submission_redrive_items AS t WHERE t.redrive_seq = {seq});
END;"
    ));
    script.answer(&format!(
        "
SELECT @running AS running, @created AS created, @deleted AS deleted, r.created_count,
    CASE WHEN r.state = 'completed' THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END AS completed
FROM submission_redrives AS r WHERE r.redrive_seq = {seq};"
    ));
    script.batch()
}
