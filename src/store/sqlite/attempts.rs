//! The leader's part of a batch: attempts that start, finish or are postponed, and intents that expire. Besides, intents that
//! are cancelled.
//!
//! Every function but [`cancel`] runs in the transaction of the batch, after the check that the leader's term holds the lease. The audit
//! row of an attempt is inserted in the same transaction that updates its intent, so neither can exist without the other.

use std::collections::BTreeSet;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::connection::begin_transaction;
use super::minute_counts::MinuteCounts;
use super::read::{self, optional, parsed};
use super::schedule::as_limit;
use super::write::{ContractCache, Items, contract_by_id};
use super::{audit, jobs, messages, options, webhooks};
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::{ExhaustedReason, Intent, IntentId, IntentSeq, TargetName};
use crate::domain::outcome::Outcome;
use crate::domain::policy;
use crate::domain::schedule::Waiting;
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::platform::mutated;
use crate::store::column_values::StateColumns;
use crate::store::{
    Cancellation, FencedResults, FencedWrites, FinishAttempt, FinishResult, OpenAttempt, PostponeAttempt, StartResult,
    StoredIntent,
};

/// Makes the leader's writes of a batch.
pub(super) fn write_fenced(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    writes: &FencedWrites,
    paused: &BTreeSet<TargetName>,
    now: Timestamp,
    items: Items,
) -> Result<FencedResults, rusqlite::Error> {
    let mut counts = MinuteCounts::default();
    let mut starts = Vec::with_capacity(writes.starts.len());
    for waiting in &writes.starts {
        let start =
            |tx: &Transaction<'_>| start_attempt(tx, contracts, writes.term.epoch, waiting, paused, now, &mut counts);
        starts.push(items.run(transaction, start)?);
    }
    let mut finishes = Vec::with_capacity(writes.finishes.len());
    for finish in &writes.finishes {
        finishes.push(items.run(transaction, |tx| finish_attempt(tx, finish, now, &mut counts))?);
    }
    let mut postpones = Vec::with_capacity(writes.postpones.len());
    let mut ended = Vec::new();
    for postpone in &writes.postpones {
        let result = items.run(transaction, |tx| postpone_attempt(tx, postpone, now, &mut counts))?;
        postpones.push(result.map(|(result, cancelled)| {
            ended.extend(cancelled);
            result
        }));
    }
    if let Some(limit) = writes.expire {
        ended.extend(expire_overdue(transaction, limit, now, items, &mut counts)?);
    }
    counts.write(transaction, now)?;
    Ok(FencedResults { starts, finishes, postpones, ended })
}

/// Records the next attempt of a waiting intent as open, if the intent is due and policy allows it.
fn start_attempt(
    transaction: &Transaction<'_>,
    contracts: &mut ContractCache,
    epoch: i64,
    waiting: &Waiting,
    paused: &BTreeSet<TargetName>,
    now: Timestamp,
    counts: &mut MinuteCounts,
) -> Result<StartResult, rusqlite::Error> {
    let row = transaction
        .prepare_cached(
            "SELECT intent_id, contract_id, max(created_at, coalesce(not_before, 0)), next_attempt_at, payload,
                 traceparent, gateway_key
             FROM submission_intents JOIN submission_payloads USING (intent_seq)
                 LEFT JOIN submission_traces USING (intent_seq) LEFT JOIN submission_intent_options USING (intent_seq)
             WHERE intent_seq = ?1 AND attempt_count = ?2 AND next_attempt_at IS NOT NULL",
        )?
        .query_row(params![waiting.seq.0, waiting.attempt_count], |row| {
            Ok((
                parsed(row, 0, |text| IntentId::parse(text).ok())?,
                row.get::<_, i64>(1)?,
                Timestamp::from_micros(row.get(2)?),
                Timestamp::from_micros(row.get(3)?),
                Bytes::from(row.get::<_, Vec<u8>>(4)?),
                jobs::trace_of(row, 5)?,
                optional(row, 6, |text| IntentId::parse(text).ok())?,
            ))
        })
        .optional()?;
    let Some((intent_id, contract_id, begins_at, due, payload, trace, idempotency_key)) = row else {
        return Ok(StartResult::Stale);
    };
    if due > now {
        return Ok(StartResult::NotDue { due, now });
    }
    let contract = contract_by_id(transaction, contracts, contract_id)?;
    let allowed = policy::may_start(&contract, begins_at, waiting.attempt_count, now);
    if let Err(reason) = allowed
        && !(mutated!(StartPastDeadline) && reason == ExhaustedReason::DeadlineExceeded)
    {
        return exhaust(transaction, waiting.seq, reason, now, counts).map(StartResult::Ended);
    }
    if paused.contains(&contract.target) && !mutated!(StartWhilePaused) {
        return Ok(StartResult::Paused);
    }
    transaction
        .prepare_cached(
            "UPDATE submission_intents SET attempt_count = attempt_count + 1, next_attempt_at = NULL,
                 open_lease_epoch = ?2, open_started_at = ?3, last_modified_at = ?3 WHERE intent_seq = ?1",
        )?
        .execute(params![waiting.seq.0, epoch, now.micros()])?;
    #[cfg(test)]
    let waiting = &super::inline::counted_from_history(transaction, waiting)?;
    let attempt = OpenAttempt {
        seq: waiting.seq,
        intent_id,
        contract,
        begins_at,
        attempt_number: waiting.attempt_count + 1,
        lease_epoch: epoch,
        started_at: now,
        idempotency_key,
        trace,
        job: None,
    };
    Ok(StartResult::Started { attempt, payload, due })
}

/// Whether a later term closed the attempt. Only deliberate bugs depend on it.
fn is_interrupted(outcome: &Outcome) -> bool {
    outcome.error_text().is_some_and(|text| text.starts_with("interrupted"))
}

/// Records the outcome of an open attempt: updates the intent, inserts the audit row, and makes the webhook event pending
/// if the intent has ended. An intent that is to be cancelled ends in place of a retry.
fn finish_attempt(
    transaction: &Transaction<'_>,
    finish: &FinishAttempt,
    now: Timestamp,
    counts: &mut MinuteCounts,
) -> Result<FinishResult, rusqlite::Error> {
    let lost = mutated!(CancelLost) && is_interrupted(&finish.outcome);
    let cancels = finish.retries() && !lost && options::cancel_requested(transaction, finish.attempt.seq)?;
    let finish = if cancels { &finish.cancelled() } else { finish };
    let FinishAttempt { attempt, finished_at, outcome, .. } = finish;
    let state = StateColumns::from(finish);
    let updated = transaction
        .prepare_cached(
            "UPDATE submission_intents SET status = ?3, next_attempt_at = ?4, completed_at = ?5, rejected_reason = ?6,
                 exhausted_reason = ?7, open_lease_epoch = NULL, open_started_at = NULL, last_modified_at = ?8
             WHERE intent_seq = ?1 AND attempt_count = ?2 AND open_lease_epoch IS NOT NULL",
        )?
        .execute(params![
            attempt.seq.0,
            attempt.attempt_number,
            state.status,
            state.next_attempt_at.map(Timestamp::micros),
            state.completed_at.map(Timestamp::micros),
            state.rejected_reason,
            state.exhausted_reason,
            now.micros()
        ])?;
    if updated == 0 {
        return Ok(FinishResult::NotOpen);
    }
    if mutated!(NumbersFromHistory) && is_interrupted(outcome) {
        return Ok(FinishResult::Recorded);
    }
    transaction
        .prepare_cached(
            "INSERT INTO submission_attempts (intent_seq, attempt_number, lease_epoch, started_at, finished_at,
                 outcome_status, outcome_reason, error, gateway_message_id)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            attempt.seq.0,
            attempt.attempt_number,
            attempt.lease_epoch,
            attempt.started_at.micros(),
            finished_at.micros(),
            outcome.status(),
            outcome.reason(),
            outcome.error_text(),
            outcome.gateway_message_id()
        ])?;
    if let Some(id) = outcome.searchable_message_id().filter(|_| !attempt.intent_id.is_reserved()) {
        messages::insert(transaction, id, attempt.seq)?;
    }
    if state.completed_at.is_some() && attempt.contract.webhook.is_some() && !mutated!(EventOutsideTransaction) {
        webhooks::insert_pending(transaction, attempt.seq, now)?;
    }
    jobs::count_reach(transaction, finish, now)?;
    counts.add_attempt(transaction, finish)?;
    Ok(if cancels { FinishResult::RecordedAndCancelled } else { FinishResult::Recorded })
}

/// Makes an intent wait again whose open attempt was not made. If the intent is to be cancelled, it ends and is returned.
fn postpone_attempt(
    transaction: &Transaction<'_>,
    postpone: &PostponeAttempt,
    now: Timestamp,
    counts: &mut MinuteCounts,
) -> Result<(FinishResult, Option<Intent>), rusqlite::Error> {
    let updated = transaction
        .prepare_cached(
            "UPDATE submission_intents SET attempt_count = attempt_count - ?5, next_attempt_at = ?3,
                 open_lease_epoch = NULL, open_started_at = NULL, last_modified_at = ?4
             WHERE intent_seq = ?1 AND attempt_count = ?2 AND open_lease_epoch IS NOT NULL",
        )?
        .execute(params![
            postpone.seq.0,
            postpone.attempt_number,
            postpone.due.micros(),
            now.micros(),
            i64::from(!mutated!(PostponedKeepsNumber))
        ])?;
    if updated == 0 {
        return Ok((FinishResult::NotOpen, None));
    }
    let cancels = options::cancel_requested(transaction, postpone.seq)?;
    let cancelled = cancels.then(|| exhaust(transaction, postpone.seq, ExhaustedReason::Cancelled, now, counts));
    Ok((FinishResult::Recorded, cancelled.transpose()?))
}

/// Exhausts waiting intents whose deadline has passed.
fn expire_overdue(
    transaction: &Transaction<'_>,
    limit: usize,
    now: Timestamp,
    items: Items,
    counts: &mut MinuteCounts,
) -> Result<Vec<Intent>, rusqlite::Error> {
    let overdue: Vec<i64> = transaction
        .prepare_cached(
            "SELECT intent_seq FROM submission_intents
             WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL AND deadline_at <= ?1
             ORDER BY deadline_at LIMIT ?2",
        )?
        .query_map(params![now.micros(), as_limit(limit)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut expired = Vec::with_capacity(overdue.len());
    for seq in overdue {
        let reason = ExhaustedReason::DeadlineExceeded;
        match items.run(transaction, |tx| exhaust(tx, IntentSeq(seq), reason, now, counts))? {
            Ok(intent) => expired.push(intent),
            Err(error) => log::error!("intent_not_expired intent_seq={seq} store_error={error:?}"),
        }
    }
    Ok(expired)
}

/// Cancels an intent: ends it if it waits, or records that it is to end after its open attempt.
pub(super) fn cancel(
    connection: &mut Connection,
    clock: &WallClock,
    id: &IntentId,
    after_attempt: bool,
    by: &Actor,
) -> Result<Cancellation, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let Some(StoredIntent { intent, .. }) = read::find(&transaction, id)? else { return Ok(Cancellation::NotFound) };
    let cancellation = if intent.state.is_terminal() || intent.attempt_open {
        Cancellation::of_other(intent, after_attempt)
    } else {
        let mut counts = MinuteCounts::default();
        let ended = exhaust(&transaction, intent.seq, ExhaustedReason::Cancelled, now, &mut counts)?;
        counts.write(&transaction, now)?;
        Cancellation::Cancelled(ended)
    };
    let changed = match &cancellation {
        Cancellation::Cancelled(_) => true,
        Cancellation::AfterAttempt(intent) => options::request_cancel(&transaction, intent.seq, now)?,
        _ => false,
    };
    if changed {
        let later = matches!(cancellation, Cancellation::AfterAttempt(_));
        audit::append(&transaction, &NewAuditEntry::cancel(by, id, later), now)?;
    }
    transaction.commit()?;
    Ok(cancellation)
}

/// Ends a waiting intent without an attempt.
fn exhaust(
    transaction: &Transaction<'_>,
    seq: IntentSeq,
    reason: ExhaustedReason,
    now: Timestamp,
    counts: &mut MinuteCounts,
) -> Result<Intent, rusqlite::Error> {
    transaction
        .prepare_cached(
            "UPDATE submission_intents SET status = 'exhausted', exhausted_reason = ?2, completed_at = ?3,
                 next_attempt_at = NULL, last_modified_at = ?3
             WHERE intent_seq = ?1 AND next_attempt_at IS NOT NULL",
        )?
        .execute(params![seq.0, reason.as_str(), now.micros()])?;
    webhooks::insert_pending(transaction, seq, now)?;
    let sql =
        format!("SELECT {}, i.contract_id FROM {} WHERE i.intent_seq = ?1", read::INTENT_COLUMNS, read::INTENT_TABLES);
    let (intent, contract_id) = transaction
        .prepare_cached(&sql)?
        .query_row([seq.0], |row| Ok((read::intent_of(row)?, row.get::<_, i64>(read::INTENT_WIDTH)?)))?;
    counts.add_ended(contract_id, &intent, now);
    Ok(intent)
}
