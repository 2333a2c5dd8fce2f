//! What few intents have besides their columns: a scheduled start, a request to cancel them, and the intent that they repeat.
//! These options have a table of their own, so that intents without any cost nothing.

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use crate::domain::intent::{IntentId, IntentSeq};
use crate::domain::time::Timestamp;
use crate::store::{NewIntent, RedriveLink};

/// Stores the options of a new intent, if it has any.
pub(super) fn insert(transaction: &Transaction<'_>, seq: IntentSeq, new: &NewIntent) -> Result<(), rusqlite::Error> {
    if new.not_before.is_none() && new.redrive.is_none() {
        return Ok(());
    }
    insert_link(transaction, seq, new.not_before, new.redrive.as_ref())
}

/// Stores the scheduled start of a new intent and its link to the intent that it repeats.
pub(super) fn insert_link(
    transaction: &Transaction<'_>,
    seq: IntentSeq,
    not_before: Option<Timestamp>,
    link: Option<&RedriveLink>,
) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached(
            "INSERT INTO submission_intent_options (intent_seq, not_before, redrive_of, redrive_id, gateway_key)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            seq.0,
            not_before.map(Timestamp::micros),
            link.map(|link| link.of.as_str()),
            link.and_then(|link| link.redrive).map(|id| id.to_string()),
            link.map(|link| link.gateway_key.as_str())
        ])
        .map(drop)
}

/// Returns whether the intent is to be cancelled after its open attempt.
pub(super) fn cancel_requested(transaction: &Transaction<'_>, seq: IntentSeq) -> Result<bool, rusqlite::Error> {
    transaction
        .prepare_cached(
            "SELECT 1 FROM submission_intent_options WHERE intent_seq = ?1 AND cancel_requested_at IS NOT NULL",
        )?
        .exists([seq.0])
}

/// Records that the intent is to be cancelled after its open attempt. The first request counts; returns whether this is it.
pub(super) fn request_cancel(
    transaction: &Transaction<'_>,
    seq: IntentSeq,
    now: Timestamp,
) -> Result<bool, rusqlite::Error> {
    transaction
        .prepare_cached(
            "INSERT INTO submission_intent_options (intent_seq, cancel_requested_at) VALUES (?1, ?2)
             ON CONFLICT (intent_seq) DO UPDATE SET cancel_requested_at = ?2 WHERE cancel_requested_at IS NULL",
        )?
        .execute(params![seq.0, now.micros()])
        .map(|changed| changed == 1)
}

/// Returns the id of the intent that repeats this one.
pub(super) fn redriven_as(connection: &Connection, id: &IntentId) -> Result<Option<IntentId>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT i.intent_id FROM submission_intent_options o JOIN submission_intents i USING (intent_seq)
             WHERE o.redrive_of = ?1",
        )?
        .query_row([id.as_str()], |row| super::read::parsed(row, 0, |text| IntentId::parse(text).ok()))
        .optional()
}
