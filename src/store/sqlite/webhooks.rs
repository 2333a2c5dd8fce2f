//! Webhook events: they become pending when an intent ends, are tried, recorded, and redelivered on request.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::connection::{begin_transaction, read_now};
use super::read::{self, parsed};
use super::schedule::as_limit;
use super::write::{self, ContractCache};
use super::{Writer, audit, leases};
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{EventStatus, INTERRUPTED, ReceiverId, Round, UNREADABLE, Verdict, Webhook};
use crate::platform::clock::WallClock;
use crate::store::{
    DueWebhook, DueWebhooks, DueWebhooksQuery, FinishWebhookTry, OpenWebhookTry, PUT_OFF, Redelivery, WebhookHistory,
    WebhookTry,
};

/// Stores the receiver of a contract.
pub(super) fn insert_receiver(
    transaction: &Transaction<'_>,
    contract_id: i64,
    webhook: &Webhook,
) -> Result<(), rusqlite::Error> {
    let origin = webhook.url.origin();
    transaction
        .prepare_cached("INSERT OR IGNORE INTO submission_webhook_receivers (origin) VALUES (?1)")?
        .execute([origin])?;
    transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO submission_contract_receivers (contract_id, receiver_id)
             SELECT ?1, receiver_id FROM submission_webhook_receivers WHERE origin = ?2",
        )?
        .execute(params![contract_id, origin])?;
    Ok(())
}

/// Makes the event of an intent that ends in this transaction pending, if its contract has a webhook.
pub(super) fn insert_pending(
    transaction: &Transaction<'_>,
    seq: IntentSeq,
    now: Timestamp,
) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO submission_webhook_events (intent_seq, receiver_id, status, owed_since, next_try_at)
             SELECT i.intent_seq, r.receiver_id, 'pending', ?2, ?2
             FROM submission_intents i JOIN submission_contract_receivers r USING (contract_id)
             WHERE i.intent_seq = ?1",
        )?
        .execute(params![seq.0, now.micros()])?;
    Ok(())
}

/// Reads the events that are due, and when the next one is.
pub(super) fn due(
    connection: &mut Connection,
    clock: &WallClock,
    query: &DueWebhooksQuery,
) -> Result<DueWebhooks, rusqlite::Error> {
    let snapshot = connection.transaction()?;
    let now = read_now(&snapshot, clock)?;
    let mut next_receiver = snapshot.prepare_cached(
        "SELECT receiver_id FROM submission_webhook_events
         WHERE next_try_at IS NOT NULL AND receiver_id > ?1 ORDER BY receiver_id LIMIT 1",
    )?;
    let mut earliest = snapshot.prepare_cached(
        "SELECT intent_seq, next_try_at FROM submission_webhook_events
         WHERE next_try_at IS NOT NULL AND receiver_id = ?1 ORDER BY next_try_at, intent_seq LIMIT ?2",
    )?;
    let mut found = Vec::new();
    let mut receiver = ReceiverId(0);
    // Receiver by receiver, so that many events of one receiver take no longer than a few.
    while let Some(next) = next_receiver.query_row([receiver.0], |row| row.get(0)).optional()? {
        receiver = ReceiverId(next);
        let events = earliest.query_map(params![next, as_limit(query.slots(receiver))], |row| {
            Ok(DueWebhook { seq: IntentSeq(row.get(0)?), receiver, due: Timestamp::from_micros(row.get(1)?) })
        })?;
        for event in events {
            found.push(event?);
        }
    }
    Ok(DueWebhooks::at(now, found, query.limit))
}

/// Records tries of these events as open, if they are due.
pub(super) fn start(
    writer: &mut Writer,
    clock: &WallClock,
    term: &Term,
    events: &[IntentSeq],
) -> Result<Option<Vec<OpenWebhookTry>>, rusqlite::Error> {
    let Writer { connection, contracts, .. } = writer;
    let (transaction, now) = begin_transaction(connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    let mut started = Vec::with_capacity(events.len());
    for seq in events {
        let marked = transaction
            .prepare_cached(
                "UPDATE submission_webhook_events SET tries = tries + 1, next_try_at = NULL, open_lease_epoch = ?2,
                     open_started_at = ?3 WHERE intent_seq = ?1 AND next_try_at <= ?3",
            )?
            .execute(params![seq.0, term.epoch, now.micros()])?;
        if marked == 0 {
            continue;
        }
        match open_try(&transaction, contracts, *seq, now) {
            Ok(open) => started.push(open),
            Err(error) => put_off(&transaction, *seq, now, &error)?,
        }
    }
    transaction.commit()?;
    Ok(Some(started))
}

/// Reads a try that was just recorded as open.
fn open_try(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    seq: IntentSeq,
    now: Timestamp,
) -> Result<OpenWebhookTry, rusqlite::Error> {
    let sql = format!(
        "SELECT {}, i.contract_id, w.receiver_id, w.tries, w.tries_before, w.owed_since FROM {}
         JOIN submission_webhook_events w USING (intent_seq) WHERE i.intent_seq = ?1",
        read::INTENT_COLUMNS,
        read::INTENT_TABLES
    );
    let row = |row: &Row<'_>| {
        let (tries, before): (u32, u32) = (row.get(read::INTENT_WIDTH + 2)?, row.get(read::INTENT_WIDTH + 3)?);
        let round = Round {
            pending_since: Timestamp::from_micros(row.get(read::INTENT_WIDTH + 4)?),
            tries: tries.saturating_sub(before),
        };
        Ok((
            read::intent_of(row)?,
            row.get::<_, i64>(read::INTENT_WIDTH)?,
            ReceiverId(row.get(read::INTENT_WIDTH + 1)?),
            tries,
            round,
        ))
    };
    let (intent, contract_id, receiver, number, round) = transaction.prepare_cached(&sql)?.query_row([seq.0], row)?;
    let contract = write::contract_by_id(transaction, contracts, contract_id)?;
    Ok(OpenWebhookTry { receiver, intent, contract, number, round, started_at: now })
}

/// Records that an event cannot be read, and makes it due later, so that it does not delay other events.
fn put_off(
    transaction: &Transaction<'_>,
    seq: IntentSeq,
    now: Timestamp,
    error: &rusqlite::Error,
) -> Result<(), rusqlite::Error> {
    log::error!("webhook_unreadable intent_seq={} store_error={error:?}", seq.0);
    transaction.execute(
        "INSERT OR IGNORE INTO submission_webhook_tries
         SELECT intent_seq, tries, open_lease_epoch, open_started_at, ?2, NULL, ?3
         FROM submission_webhook_events WHERE intent_seq = ?1",
        params![seq.0, now.micros(), UNREADABLE],
    )?;
    transaction.execute(
        "UPDATE submission_webhook_events SET next_try_at = ?2, open_lease_epoch = NULL, open_started_at = NULL
         WHERE intent_seq = ?1",
        params![seq.0, (now + PUT_OFF).micros()],
    )?;
    Ok(())
}

/// Records the outcomes of open tries; `None` if the term is over.
pub(super) fn finish(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    finished: &[Arc<FinishWebhookTry>],
) -> Result<Option<()>, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    for finish in finished {
        let FinishWebhookTry { open, finished_at, outcome, verdict } = finish.as_ref();
        let next_try_at = match verdict {
            Verdict::RetryAt(due) => Some(due.micros()),
            Verdict::Delivered | Verdict::Failed => None,
        };
        let updated = transaction
            .prepare_cached(
                // If redelivery was requested during the try, the event is due now, unless the try has delivered it.
                "UPDATE submission_webhook_events SET
                     status = iif(owed_since <> ?5 AND ?3 <> 'delivered', 'pending', ?3),
                     next_try_at = iif(owed_since <> ?5 AND ?3 <> 'delivered', ?6, ?4),
                     open_lease_epoch = NULL, open_started_at = NULL
                 WHERE intent_seq = ?1 AND tries = ?2 AND open_lease_epoch IS NOT NULL",
            )?
            .execute(params![
                open.intent.seq.0,
                open.number,
                verdict.status().as_str(),
                next_try_at,
                open.round.pending_since.micros(),
                now.micros()
            ])?;
        if updated == 1 {
            transaction
                .prepare_cached("INSERT OR IGNORE INTO submission_webhook_tries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
                .execute(params![
                    open.intent.seq.0,
                    open.number,
                    term.epoch,
                    open.started_at.micros(),
                    finished_at.micros(),
                    outcome.http_status(),
                    outcome.error()
                ])?;
        }
    }
    transaction.commit()?;
    Ok(Some(()))
}

/// Closes open tries as interrupted, except those in flight, and returns their number; `None` if the term is over.
pub(super) fn close(
    connection: &mut Connection,
    clock: &WallClock,
    term: &Term,
    under_way: &[IntentSeq],
) -> Result<Option<usize>, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    if !leases::holds(&transaction, term, now)? {
        return Ok(None);
    }
    let open: Vec<i64> = transaction
        .prepare_cached("SELECT intent_seq FROM submission_webhook_events WHERE open_lease_epoch IS NOT NULL")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let under_way: HashSet<IntentSeq> = under_way.iter().copied().collect();
    let mut closed = 0;
    for seq in open.into_iter().filter(|seq| !under_way.contains(&IntentSeq(*seq))) {
        transaction
            .prepare_cached(
                "INSERT OR IGNORE INTO submission_webhook_tries
                 SELECT intent_seq, tries, open_lease_epoch, open_started_at, ?2, NULL, ?3
                 FROM submission_webhook_events WHERE intent_seq = ?1",
            )?
            .execute(params![seq, now.micros(), INTERRUPTED])?;
        transaction
            .prepare_cached(
                "UPDATE submission_webhook_events SET next_try_at = ?2, open_lease_epoch = NULL,
                     open_started_at = NULL WHERE intent_seq = ?1",
            )?
            .execute(params![seq, now.micros()])?;
        closed += 1;
    }
    transaction.commit()?;
    Ok(Some(closed))
}

/// Makes the event of an ended intent due now.
pub(super) fn redeliver(
    connection: &mut Connection,
    clock: &WallClock,
    id: &IntentId,
    by: &Actor,
) -> Result<Redelivery, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let found: Option<(i64, bool, bool)> = transaction
        .prepare_cached(
            "SELECT i.intent_seq, i.status = 'pending', r.receiver_id IS NOT NULL
             FROM submission_intents i LEFT JOIN submission_contract_receivers r USING (contract_id)
             WHERE i.intent_id = ?1",
        )?
        .query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let seq = match found {
        None => return Ok(Redelivery::NoIntent),
        Some((_, _, false)) => return Ok(Redelivery::NoWebhook),
        Some((_, true, true)) => return Ok(Redelivery::NotEnded),
        Some((seq, false, true)) => seq,
    };
    // The event is missing if an older version without webhooks ended the intent.
    insert_pending(&transaction, IntentSeq(seq), now)?;
    // A try in flight may still deliver the event. If it does not, finishing it makes the event due.
    transaction
        .prepare_cached(
            "UPDATE submission_webhook_events SET status = 'pending', owed_since = ?2, tries_before = tries,
                 next_try_at = iif(open_lease_epoch IS NULL, ?2, NULL) WHERE intent_seq = ?1",
        )?
        .execute(params![seq, now.micros()])?;
    audit::append(&transaction, &NewAuditEntry::redeliver_webhook(by, id), now)?;
    transaction.commit()?;
    Ok(Redelivery::Pending)
}

/// Reads the webhook event of an intent with its tries.
pub(super) fn history(connection: &Connection, seq: IntentSeq) -> Result<Option<WebhookHistory>, rusqlite::Error> {
    let event: Option<(EventStatus, Option<i64>)> = connection
        .prepare_cached("SELECT status, next_try_at FROM submission_webhook_events WHERE intent_seq = ?1")?
        .query_row([seq.0], |row| Ok((parsed(row, 0, EventStatus::parse)?, row.get(1)?)))
        .optional()?;
    let Some((status, next_try_at)) = event else { return Ok(None) };
    let tries = connection
        .prepare_cached(
            "SELECT try_number, started_at, finished_at, http_status, error FROM submission_webhook_tries
             WHERE intent_seq = ?1 ORDER BY try_number",
        )?
        .query_map([seq.0], |row| {
            Ok(WebhookTry {
                number: row.get(0)?,
                started_at: Timestamp::from_micros(row.get(1)?),
                finished_at: Timestamp::from_micros(row.get(2)?),
                http_status: row.get(3)?,
                error: row.get(4)?,
            })
        })?
        .collect::<Result<_, _>>()?;
    Ok(Some(WebhookHistory { status, next_try_at: next_try_at.map(Timestamp::from_micros), tries }))
}
