//! Webhook events on SQL Server: due events, their tries, and redelivery on request. The module `counts` inserts an
//! event in the transaction that ends its intent.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tiberius::Row;

use super::audit::{VARIABLES, append};
use super::contracts::Contracts;
use super::database::{Batch, Database, Repeat};
use super::read::{all, first, need_first, set};
use super::rows::{self, INTENT_COLUMNS, json_moment};
use super::script::{Column, Script, Values, json_text};
use super::statements::TICK;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::contract::Contract;
use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{EventStatus, INTERRUPTED, ReceiverId, Round, UNREADABLE, Verdict};
use crate::store::{
    DueWebhook, DueWebhooks, DueWebhooksQuery, FinishWebhookTry, OpenWebhookTry, PUT_OFF, Redelivery, StoreError,
    WebhookHistory, WebhookTry,
};

/// Builds the query for due events: the earliest of every receiver, within the limit of the receiver and the limit of
/// all.
pub(super) fn due_batch(look: &DueWebhooksQuery) -> Batch {
    let mut values = Values::default();
    let (limit, each) = (values.count(look.limit), values.count(look.per_receiver));
    let except = look.except.iter().map(|(receiver, places)| json!({ "receiver": receiver.0, "places": places }));
    let except = values.json(except.collect());
    values.batch(format!(
        "
SELECT CASE WHEN SYSUTCDATETIME() > last_at THEN SYSUTCDATETIME() ELSE last_at END AS now_at FROM submission_clock;
SELECT TOP ({limit}) p.intent_seq, p.receiver_id, p.next_try_at
FROM submission_webhook_receivers AS r
LEFT JOIN OPENJSON({except}) WITH (receiver BIGINT, places BIGINT) AS x ON x.receiver = r.receiver_id
CROSS APPLY (SELECT TOP ({each}) w.intent_seq, w.receiver_id, w.next_try_at,
        ROW_NUMBER() OVER (ORDER BY w.next_try_at, w.intent_seq) AS place
    FROM submission_webhook_events AS w WHERE w.receiver_id = r.receiver_id AND w.next_try_at IS NOT NULL
    ORDER BY w.next_try_at, w.intent_seq) AS p
WHERE p.place <= COALESCE(x.places, {each})
ORDER BY p.next_try_at, p.intent_seq;"
    ))
}

/// Starts a script for writes of the leader to the events of a list, which is `@events`.
fn fenced(term: &Term, items: Vec<Json>, columns: impl IntoIterator<Item = Column<'static>>) -> (Script, String) {
    let mut script = Script::default();
    let epoch = script.fence(term);
    script.input("events", items, columns);
    (script, epoch)
}

/// Converts events to items of a list.
fn seqs(events: &[IntentSeq]) -> Vec<Json> {
    events.iter().map(|seq| json!({ "intent_seq": seq.0 })).collect()
}

pub(super) fn begin_batch(term: &Term, events: &[IntentSeq]) -> Batch {
    let (mut script, epoch) = fenced(term, seqs(&first_of_each(events)), [Column::key("intent_seq")]);
    script.starts_attempts();
    script.fenced_change(&format!(
        "
UPDATE w SET tries = w.tries + 1, next_try_at = NULL, open_lease_epoch = {epoch}, open_started_at = @now
FROM submission_webhook_events AS w JOIN @events AS e ON w.intent_seq = e.intent_seq
WHERE w.next_try_at <= @now;"
    ));
    script.answer(&format!(
        "
SELECT {INTENT_COLUMNS}, i.contract_id, w.receiver_id, w.tries, w.tries_before, w.owed_since
FROM @events AS e
JOIN submission_webhook_events AS w ON w.intent_seq = e.intent_seq
JOIN submission_intents AS i ON i.intent_seq = w.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE w.open_started_at = @now;"
    ));
    script.batch()
}

fn first_of_each(events: &[IntentSeq]) -> Vec<IntentSeq> {
    let mut seen = HashSet::new();
    events.iter().copied().filter(|seq| seen.insert(*seq)).collect()
}

pub(super) fn finish_batch(term: &Term, finished: &[Arc<FinishWebhookTry>]) -> Batch {
    let mut seen = HashSet::new();
    let finished = finished.iter().filter(|finish| seen.insert(finish.open.intent.seq));
    let items = finished.map(|finish| {
        let FinishWebhookTry { open, finished_at, outcome, verdict } = finish.as_ref();
        let due = match verdict {
            Verdict::RetryAt(due) => Some(json_moment(*due)),
            Verdict::Delivered | Verdict::Failed => None,
        };
        json!({
            "intent_seq": open.intent.seq.0, "try_number": open.number, "started_at": json_moment(open.started_at),
            "finished_at": json_moment(*finished_at), "http_status": outcome.http_status(),
            "error": outcome.error().map(json_text), "status": verdict.status().as_str(), "next_try_at": due,
            "owed_since": json_moment(open.round.pending_since),
        })
    });
    let columns = [
        Column::key("intent_seq"),
        Column::of("try_number", "BIGINT"),
        Column::of("started_at", "DATETIME2(6)"),
        Column::of("finished_at", "DATETIME2(6)"),
        Column::of("http_status", "BIGINT"),
        Column::long_text("error"),
        Column::code("status", 10),
        Column::of("next_try_at", "DATETIME2(6)"),
        Column::of("owed_since", "DATETIME2(6)"),
    ];
    let (mut script, _) = fenced(term, items.collect(), columns);
    // If redelivery was requested during the try, the event is due now, unless the try has delivered it.
    script.fenced_change(
        "
INSERT INTO submission_webhook_tries (intent_seq, try_number, lease_epoch, started_at, finished_at, http_status, error)
SELECT e.intent_seq, e.try_number, w.open_lease_epoch, e.started_at, e.finished_at, e.http_status, e.error
FROM @events AS e JOIN submission_webhook_events AS w ON w.intent_seq = e.intent_seq
WHERE w.tries = e.try_number AND w.open_lease_epoch IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM submission_webhook_tries AS t WHERE t.intent_seq = e.intent_seq AND t.try_number = e.try_number);
UPDATE w SET
    status = CASE WHEN w.owed_since <> e.owed_since AND e.status <> 'delivered' THEN 'pending' ELSE e.status END,
    next_try_at = CASE WHEN w.owed_since <> e.owed_since AND e.status <> 'delivered' THEN @now ELSE e.next_try_at END,
    open_lease_epoch = NULL, open_started_at = NULL
FROM submission_webhook_events AS w JOIN @events AS e ON w.intent_seq = e.intent_seq
WHERE w.tries = e.try_number AND w.open_lease_epoch IS NOT NULL;",
    );
    script.batch()
}

/// Builds the batch that closes open tries as interrupted, except those of the list.
pub(super) fn close_batch(term: &Term, under_way: &[IntentSeq]) -> Batch {
    const OTHERS: &str = "w.open_lease_epoch IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM @events AS e WHERE e.intent_seq = w.intent_seq)";
    let (mut script, _) = fenced(term, seqs(&first_of_each(under_way)), [Column::key("intent_seq")]);
    let error = script.values.text(INTERRUPTED);
    script.variable("@changed BIGINT = 0");
    script.fenced_change(&format!(
        "
INSERT INTO submission_webhook_tries (intent_seq, try_number, lease_epoch, started_at, finished_at, http_status, error)
SELECT w.intent_seq, w.tries, w.open_lease_epoch, w.open_started_at, @now, NULL, {error}
FROM submission_webhook_events AS w WHERE {OTHERS}
    AND NOT EXISTS (SELECT 1 FROM submission_webhook_tries AS t WHERE t.intent_seq = w.intent_seq AND t.try_number = w.tries);
UPDATE w SET next_try_at = @now, open_lease_epoch = NULL, open_started_at = NULL
FROM submission_webhook_events AS w WHERE {OTHERS};
SET @changed = @@ROWCOUNT;"
    ));
    script.answer("\nSELECT @changed AS changed;");
    script.batch()
}

/// Builds the batch that records that events cannot be read, and makes them due later, so that they do not delay other
/// events.
pub(super) fn put_off_batch(term: &Term, events: &[IntentSeq]) -> Batch {
    let (mut script, epoch) = fenced(term, seqs(events), [Column::key("intent_seq")]);
    let error = script.values.text(UNREADABLE);
    let seconds = script.values.number(i64::try_from(PUT_OFF.as_secs()).unwrap_or(i64::MAX));
    script.fenced_change(&format!(
        "
INSERT INTO submission_webhook_tries (intent_seq, try_number, lease_epoch, started_at, finished_at, http_status, error)
SELECT w.intent_seq, w.tries, w.open_lease_epoch, w.open_started_at, @now, NULL, {error}
FROM submission_webhook_events AS w JOIN @events AS e ON w.intent_seq = e.intent_seq
WHERE w.open_lease_epoch = {epoch}
    AND NOT EXISTS (SELECT 1 FROM submission_webhook_tries AS t WHERE t.intent_seq = w.intent_seq AND t.try_number = w.tries);
UPDATE w SET next_try_at = DATEADD(SECOND, {seconds}, @now), open_lease_epoch = NULL, open_started_at = NULL
FROM submission_webhook_events AS w JOIN @events AS e ON w.intent_seq = e.intent_seq
WHERE w.open_lease_epoch = {epoch};"
    ));
    script.batch()
}

pub(super) fn redeliver_batch(id: &IntentId, by: &Actor) -> Batch {
    let mut values = Values::default();
    let entry = append(&mut values, &NewAuditEntry::redeliver_webhook(by, id));
    let id = values.text(id.as_str());
    let batch = values.batch(format!(
        "DECLARE @now DATETIME2(6), @changed BIGINT, {VARIABLES};
BEGIN TRANSACTION;{TICK}
INSERT INTO submission_webhook_events (intent_seq, receiver_id, status, owed_since, tries_before, tries, next_try_at)
SELECT i.intent_seq, r.receiver_id, 'pending', @now, 0, 0, @now FROM submission_intents AS i
JOIN submission_contract_receivers AS r ON r.contract_id = i.contract_id
WHERE i.intent_id = {id} AND i.completed_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM submission_webhook_events AS w WHERE w.intent_seq = i.intent_seq);
UPDATE w SET status = 'pending', owed_since = @now, tries_before = w.tries,
    next_try_at = CASE WHEN w.open_lease_epoch IS NULL THEN @now END
FROM submission_webhook_events AS w JOIN submission_intents AS i ON i.intent_seq = w.intent_seq
WHERE i.intent_id = {id};
SET @changed = @@ROWCOUNT;
IF @changed > 0
BEGIN{entry}
END;
COMMIT TRANSACTION;
SELECT i.status, r.receiver_id FROM submission_intents AS i
LEFT JOIN submission_contract_receivers AS r ON r.contract_id = i.contract_id WHERE i.intent_id = {id};"
    ));
    Batch { repeat: Repeat::IfRolledBack, ..batch }
}

/// Returns the queries for the webhook event of an intent and for its tries: two result sets.
pub(super) fn history_sql(id: &str) -> String {
    format!(
        "
SELECT w.status, w.next_try_at FROM submission_webhook_events AS w
JOIN submission_intents AS i ON i.intent_seq = w.intent_seq WHERE i.intent_id = {id};
SELECT t.try_number, t.started_at, t.finished_at, t.http_status, t.error FROM submission_webhook_tries AS t
JOIN submission_intents AS i ON i.intent_seq = t.intent_seq WHERE i.intent_id = {id} ORDER BY t.try_number;"
    )
}

pub(super) async fn due(database: &Database, look: DueWebhooksQuery) -> Result<DueWebhooks, StoreError> {
    let results = database.run(due_batch(&look)).await?;
    let found = all(set(&results, 1), |row| {
        Ok(DueWebhook {
            seq: rows::seq(row)?,
            receiver: ReceiverId(rows::need(row, "receiver_id")?),
            due: rows::need_moment(row, "next_try_at")?,
        })
    })?;
    Ok(DueWebhooks::at(rows::need_moment(need_first(&results)?, "now_at")?, found, look.limit))
}

fn held(results: &[Vec<Row>]) -> Result<bool, StoreError> {
    Ok(rows::need::<i64>(need_first(results)?, "held")? == 1)
}

pub(super) async fn begin(
    database: &Database,
    contracts: &Contracts,
    term: &Term,
    events: &[IntentSeq],
) -> Result<Option<Vec<OpenWebhookTry>>, StoreError> {
    let results = database.run(begin_batch(term, events)).await?;
    if !held(&results)? {
        return Ok(None);
    }
    let started_at = rows::need_moment(need_first(&results)?, "now_at")?;
    let rows = set(&results, 1);
    let ids = all(rows, |row| rows::need::<i64>(row, "contract_id"))?;
    let known = contracts.by_id(database, ids.into_iter()).await?;
    let (mut begun, mut unreadable) = (Vec::new(), Vec::new());
    for row in rows {
        match opened(row, &known, started_at) {
            Ok(open) => begun.push(open),
            Err(error) => {
                let seq = rows::seq(row)?;
                log::error!("webhook_unreadable intent_seq={} store_error={error:?}", seq.0);
                unreadable.push(seq);
            }
        }
    }
    if !unreadable.is_empty() {
        database.run(put_off_batch(term, &unreadable)).await?;
    }
    Ok(Some(begun))
}

/// Reads a try that was just recorded as open.
fn opened(row: &Row, known: &HashMap<i64, Arc<Contract>>, started_at: Timestamp) -> Result<OpenWebhookTry, StoreError> {
    let id: i64 = rows::need(row, "contract_id")?;
    let contract = known.get(&id).cloned();
    let number = rows::attempts(row, "tries")?;
    Ok(OpenWebhookTry {
        receiver: ReceiverId(rows::need(row, "receiver_id")?),
        intent: rows::intent(row)?,
        contract: contract.ok_or_else(|| StoreError::unexpected(format!("contract {id} cannot be read")))?,
        number,
        round: Round {
            pending_since: rows::need_moment(row, "owed_since")?,
            tries: number.saturating_sub(rows::attempts(row, "tries_before")?),
        },
        started_at,
    })
}

pub(super) async fn finish(
    database: &Database,
    term: &Term,
    finished: &[Arc<FinishWebhookTry>],
) -> Result<Option<()>, StoreError> {
    Ok(held(&database.run(finish_batch(term, finished)).await?)?.then_some(()))
}

pub(super) async fn close(
    database: &Database,
    term: &Term,
    under_way: &[IntentSeq],
) -> Result<Option<usize>, StoreError> {
    let results = database.run(close_batch(term, under_way)).await?;
    let closed = rows::need::<i64>(need_first(results.get(1..).unwrap_or_default())?, "changed")?;
    Ok(held(&results)?.then_some(usize::try_from(closed).unwrap_or(0)))
}

pub(super) async fn redeliver(database: &Database, id: &IntentId, by: &Actor) -> Result<Redelivery, StoreError> {
    let results = database.run(redeliver_batch(id, by)).await?;
    let Some(row) = first(&results) else { return Ok(Redelivery::NoIntent) };
    let has_webhook = rows::get::<i64>(row, "receiver_id")?.is_some();
    Ok(match (has_webhook, rows::need::<&str>(row, "status")?) {
        (false, _) => Redelivery::NoWebhook,
        (true, "pending") => Redelivery::NotEnded,
        (true, _) => Redelivery::Pending,
    })
}

/// Reads the result sets of [`history_sql`].
pub(super) fn history(event: &[Row], tries: &[Row]) -> Result<Option<WebhookHistory>, StoreError> {
    let Some(event) = event.first() else { return Ok(None) };
    let tries = all(tries, |row| {
        let status = rows::get::<i64>(row, "http_status")?;
        Ok(WebhookTry {
            number: rows::attempts(row, "try_number")?,
            started_at: rows::need_moment(row, "started_at")?,
            finished_at: rows::need_moment(row, "finished_at")?,
            http_status: status.and_then(|status| u16::try_from(status).ok()),
            error: rows::text(row, "error")?,
        })
    })?;
    Ok(Some(WebhookHistory {
        status: rows::parsed(event, "status", EventStatus::parse)?,
        next_try_at: rows::moment(event, "next_try_at")?,
        tries,
    }))
}
