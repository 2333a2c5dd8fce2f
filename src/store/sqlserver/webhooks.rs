//! Webhook events on SQL Server: tried, recorded, and asked for again. That they are owed is
//! written with the outcome, in `statements`.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tiberius::Row;

use super::contracts::Contracts;
use super::database::{Database, Value};
use super::read::{all, first, need_first, number, run, set};
use super::rows::{self, INTENT_COLUMNS, json_moment};
use super::statements::{FENCE, TICK, json_text, text};
use super::write::term_values;
use crate::domain::contract::Contract;
use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{EventStatus, INTERRUPTED, ReceiverId, Round, UNREADABLE, Verdict};
use crate::store::{
    DueWebhook, DueWebhooks, DueWebhooksQuery, FinishWebhookTry, OpenWebhookTry, PUT_OFF, Redelivery, StoreError,
    WebhookHistory, WebhookTry,
};

/// The earliest events of every receiver, as many as have a place, and no more than asked for in all.
pub const DUE: &str = "
SELECT CASE WHEN SYSUTCDATETIME() > last_at THEN SYSUTCDATETIME() ELSE last_at END AS now_at FROM submission_clock;
SELECT TOP (@P1) p.intent_seq, p.receiver_id, p.next_try_at
FROM submission_webhook_receivers AS r
LEFT JOIN OPENJSON(@P3) WITH (receiver BIGINT, places BIGINT) AS x ON x.receiver = r.receiver_id
CROSS APPLY (SELECT TOP (@P2) w.intent_seq, w.receiver_id, w.next_try_at,
        ROW_NUMBER() OVER (ORDER BY w.next_try_at, w.intent_seq) AS place
    FROM submission_webhook_events AS w WHERE w.receiver_id = r.receiver_id AND w.next_try_at IS NOT NULL
    ORDER BY w.next_try_at, w.intent_seq) AS p
WHERE p.place <= COALESCE(x.places, @P2)
ORDER BY p.next_try_at, p.intent_seq;";

/// A transaction of a leader, then what it says.
fn fenced(change: &str, answer: &str) -> String {
    format!(
        "DECLARE @now DATETIME2(6), @held BIGINT = 0, @changed BIGINT = 0;
BEGIN TRANSACTION;{FENCE}{TICK}{change}
COMMIT TRANSACTION;
SELECT @held AS held, @now AS now_at, @changed AS changed;{answer}"
    )
}

pub fn begin_statement() -> String {
    fenced(
        "
UPDATE w SET tries = w.tries + 1, next_try_at = NULL, open_lease_epoch = @P3, open_started_at = @now
FROM submission_webhook_events AS w JOIN OPENJSON(@P4) WITH (seq BIGINT) AS j ON w.intent_seq = j.seq
WHERE @held = 1 AND w.next_try_at <= @now;",
        &format!(
            "
SELECT {INTENT_COLUMNS}, i.contract_id, w.receiver_id, w.tries, w.tries_before, w.owed_since
FROM OPENJSON(@P4) WITH (seq BIGINT) AS j
JOIN submission_webhook_events AS w ON w.intent_seq = j.seq
JOIN submission_intents AS i ON i.intent_seq = w.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE w.open_started_at = @now;"
        ),
    )
}

pub fn finish_statement() -> String {
    fenced(
        concat!(
            "
INSERT INTO submission_webhook_tries (intent_seq, try_number, lease_epoch, started_at, finished_at, http_status, error)
SELECT j.seq, j.number, w.open_lease_epoch, j.started, j.finished, j.http_status, ",
            text!("j.error"),
            "
FROM OPENJSON(@P4) WITH (seq BIGINT, number BIGINT, started DATETIME2(6), finished DATETIME2(6), http_status BIGINT,
    error NVARCHAR(MAX)) AS j
JOIN submission_webhook_events AS w ON w.intent_seq = j.seq
WHERE @held = 1 AND w.tries = j.number AND w.open_lease_epoch IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM submission_webhook_tries AS t WHERE t.intent_seq = j.seq AND t.try_number = j.number);
UPDATE w SET status = CASE WHEN w.owed_since <> j.owed AND j.status <> 'delivered' THEN 'pending' ELSE j.status END,
    next_try_at = CASE WHEN w.owed_since <> j.owed AND j.status <> 'delivered' THEN @now ELSE j.due END,
    open_lease_epoch = NULL, open_started_at = NULL
FROM submission_webhook_events AS w
JOIN OPENJSON(@P4) WITH (seq BIGINT, number BIGINT, status VARCHAR(10), due DATETIME2(6), owed DATETIME2(6)) AS j
    ON w.intent_seq = j.seq
WHERE @held = 1 AND w.tries = j.number AND w.open_lease_epoch IS NOT NULL;"
        ),
        "",
    )
}

pub fn close_statement() -> String {
    fenced(
        "
INSERT INTO submission_webhook_tries (intent_seq, try_number, lease_epoch, started_at, finished_at, http_status, error)
SELECT w.intent_seq, w.tries, w.open_lease_epoch, w.open_started_at, @now, NULL, @P4
FROM submission_webhook_events AS w WHERE @held = 1 AND w.open_lease_epoch IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM OPENJSON(@P5) WITH (seq BIGINT) AS x WHERE x.seq = w.intent_seq)
    AND NOT EXISTS (SELECT 1 FROM submission_webhook_tries AS t WHERE t.intent_seq = w.intent_seq AND t.try_number = w.tries);
UPDATE w SET next_try_at = @now, open_lease_epoch = NULL, open_started_at = NULL
FROM submission_webhook_events AS w WHERE @held = 1 AND w.open_lease_epoch IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM OPENJSON(@P5) WITH (seq BIGINT) AS x WHERE x.seq = w.intent_seq);
SET @changed = @@ROWCOUNT;",
        "",
    )
}

/// An event that this program cannot read must not hold up the others.
pub fn put_off_statement() -> String {
    fenced(
        "
INSERT INTO submission_webhook_tries (intent_seq, try_number, lease_epoch, started_at, finished_at, http_status, error)
SELECT w.intent_seq, w.tries, w.open_lease_epoch, w.open_started_at, @now, NULL, @P5
FROM submission_webhook_events AS w JOIN OPENJSON(@P4) WITH (seq BIGINT) AS j ON w.intent_seq = j.seq
WHERE @held = 1 AND w.open_lease_epoch = @P3
    AND NOT EXISTS (SELECT 1 FROM submission_webhook_tries AS t WHERE t.intent_seq = w.intent_seq AND t.try_number = w.tries);
UPDATE w SET next_try_at = DATEADD(SECOND, @P6, @now), open_lease_epoch = NULL, open_started_at = NULL
FROM submission_webhook_events AS w JOIN OPENJSON(@P4) WITH (seq BIGINT) AS j ON w.intent_seq = j.seq
WHERE @held = 1 AND w.open_lease_epoch = @P3;",
        "",
    )
}

pub fn redeliver_statement() -> String {
    format!(
        "DECLARE @now DATETIME2(6);
BEGIN TRANSACTION;{TICK}
INSERT INTO submission_webhook_events (intent_seq, receiver_id, status, owed_since, tries_before, tries, next_try_at)
SELECT i.intent_seq, r.receiver_id, 'pending', @now, 0, 0, @now FROM submission_intents AS i
JOIN submission_contract_receivers AS r ON r.contract_id = i.contract_id
WHERE i.intent_id = @P1 AND i.completed_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM submission_webhook_events AS w WHERE w.intent_seq = i.intent_seq);
UPDATE w SET status = 'pending', owed_since = @now, tries_before = w.tries,
    next_try_at = CASE WHEN w.open_lease_epoch IS NULL THEN @now END
FROM submission_webhook_events AS w JOIN submission_intents AS i ON i.intent_seq = w.intent_seq
WHERE i.intent_id = @P1;
COMMIT TRANSACTION;
SELECT i.status, r.receiver_id FROM submission_intents AS i
LEFT JOIN submission_contract_receivers AS r ON r.contract_id = i.contract_id WHERE i.intent_id = @P1;"
    )
}

/// The event of an intent, then its tries.
pub const HISTORY: &str = "
SELECT w.status, w.next_try_at FROM submission_webhook_events AS w
JOIN submission_intents AS i ON i.intent_seq = w.intent_seq WHERE i.intent_id = @P1;
SELECT t.try_number, t.started_at, t.finished_at, t.http_status, t.error FROM submission_webhook_tries AS t
JOIN submission_intents AS i ON i.intent_seq = t.intent_seq WHERE i.intent_id = @P1 ORDER BY t.try_number;";

pub async fn due(database: &Database, look: DueWebhooksQuery) -> Result<DueWebhooks, StoreError> {
    let except = look.except.iter().map(|(receiver, places)| json!({ "receiver": receiver.0, "places": places }));
    let except = Value::Text(Json::Array(except.collect()).to_string());
    let results = run(database, DUE, vec![number(look.limit), number(look.per_receiver), except]).await?;
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

pub async fn begin(
    database: &Database,
    contracts: &Contracts,
    term: &Term,
    events: &[IntentSeq],
) -> Result<Option<Vec<OpenWebhookTry>>, StoreError> {
    let mut values = term_values(Some(term));
    values.push(seqs(events));
    let results = run(database, begin_statement(), values).await?;
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
        let mut values = term_values(Some(term));
        values.extend([seqs(&unreadable), Value::Text(UNREADABLE.to_owned())]);
        values.push(Value::Number(i64::try_from(PUT_OFF.as_secs()).unwrap_or(i64::MAX)));
        run(database, put_off_statement(), values).await?;
    }
    Ok(Some(begun))
}

/// A try that was just written down.
fn opened(row: &Row, known: &HashMap<i64, Arc<Contract>>, started_at: Timestamp) -> Result<OpenWebhookTry, StoreError> {
    let id: i64 = rows::need(row, "contract_id")?;
    let contract = known.get(&id).cloned();
    let number = rows::attempts(row, "tries")?;
    Ok(OpenWebhookTry {
        receiver: ReceiverId(rows::need(row, "receiver_id")?),
        intent: rows::intent(row)?,
        contract: contract.ok_or_else(|| StoreError::Unexpected(format!("contract {id} cannot be read")))?,
        number,
        round: Round {
            owed_since: rows::need_moment(row, "owed_since")?,
            tries: number.saturating_sub(rows::attempts(row, "tries_before")?),
        },
        started_at,
    })
}

/// Events as a value of a statement.
fn seqs(events: &[IntentSeq]) -> Value {
    Value::Text(Json::Array(events.iter().map(|seq| json!({ "seq": seq.0 })).collect()).to_string())
}

pub async fn finish(
    database: &Database,
    term: &Term,
    finished: &[Arc<FinishWebhookTry>],
) -> Result<Option<()>, StoreError> {
    let items = finished.iter().map(|finish| {
        let FinishWebhookTry { open, finished_at, outcome, verdict } = finish.as_ref();
        let due = match verdict {
            Verdict::RetryAt(due) => Some(json_moment(*due)),
            Verdict::Delivered | Verdict::Failed => None,
        };
        json!({
            "seq": open.intent.seq.0, "number": open.number, "started": json_moment(open.started_at),
            "finished": json_moment(*finished_at), "http_status": outcome.http_status(),
            "error": outcome.error().map(json_text), "status": verdict.status().as_str(), "due": due,
            "owed": json_moment(open.round.owed_since),
        })
    });
    let mut values = term_values(Some(term));
    values.push(Value::Text(Json::Array(items.collect()).to_string()));
    Ok(held(&run(database, finish_statement(), values).await?)?.then_some(()))
}

pub async fn close(database: &Database, term: &Term, under_way: &[IntentSeq]) -> Result<Option<usize>, StoreError> {
    let mut values = term_values(Some(term));
    values.extend([Value::Text(INTERRUPTED.to_owned()), seqs(under_way)]);
    let results = run(database, close_statement(), values).await?;
    let closed = rows::need::<i64>(need_first(&results)?, "changed")?;
    Ok(held(&results)?.then_some(usize::try_from(closed).unwrap_or(0)))
}

pub async fn redeliver(database: &Database, id: &IntentId) -> Result<Redelivery, StoreError> {
    let results = run(database, redeliver_statement(), vec![Value::Text(id.to_string())]).await?;
    let Some(row) = first(&results) else { return Ok(Redelivery::NoIntent) };
    let has_webhook = rows::get::<i64>(row, "receiver_id")?.is_some();
    Ok(match (has_webhook, rows::need::<&str>(row, "status")?) {
        (false, _) => Redelivery::NoWebhook,
        (true, "pending") => Redelivery::NotEnded,
        (true, _) => Redelivery::Pending,
    })
}

/// What the result sets of [`HISTORY`] say.
pub fn history(event: &[Row], tries: &[Row]) -> Result<Option<WebhookHistory>, StoreError> {
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
