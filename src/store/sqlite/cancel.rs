//! Cancels intents.

use rusqlite::{Connection, params};

use super::attempts::exhaust;
use super::connection::begin_transaction;
use super::minute_counts::MinuteCounts;
use super::read;
use crate::domain::intent::{ExhaustedReason, IntentSeq, State};
use crate::platform::clock::WallClock;
use crate::store::{CancelRequest, Cancellation, StoredIntent};

/// Ends an intent that waits, or asks for its end after the open attempt.
pub(super) fn run(
    connection: &mut Connection,
    clock: &WallClock,
    request: &CancelRequest,
) -> Result<Cancellation, rusqlite::Error> {
    let (transaction, now) = begin_transaction(connection, clock)?;
    let Some(StoredIntent { intent, .. }) = read::find(&transaction, &request.id)? else {
        return Ok(Cancellation::NoIntent);
    };
    let cancellation = match intent.state {
        State::Exhausted { reason: ExhaustedReason::Cancelled, .. } => Cancellation::CancelledBefore(intent),
        State::Accepted { .. } | State::Rejected { .. } | State::Exhausted { .. } => Cancellation::Ended(intent),
        State::Pending if !intent.attempt_open => {
            let mut counts = MinuteCounts::default();
            let ended = exhaust(&transaction, intent.seq, ExhaustedReason::Cancelled, now, &mut counts)?;
            counts.write(&transaction, now)?;
            Cancellation::Cancelled(ended)
        }
        State::Pending if request.after_attempt => {
            transaction.execute(
                "INSERT INTO submission_intent_options (intent_seq, cancel_requested_at) VALUES (?1, ?2)
                 ON CONFLICT (intent_seq) DO UPDATE
                     SET cancel_requested_at = coalesce(cancel_requested_at, excluded.cancel_requested_at)",
                params![intent.seq.0, now.micros()],
            )?;
            Cancellation::AfterAttempt(intent)
        }
        State::Pending => Cancellation::AttemptOpen,
    };
    transaction.commit()?;
    Ok(cancellation)
}

/// Whether somebody asked to cancel an intent after its open attempt.
pub(super) fn is_requested(connection: &Connection, seq: IntentSeq) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM submission_intent_options
                 WHERE intent_seq = ?1 AND cancel_requested_at IS NOT NULL)",
        )?
        .query_row([seq.0], |row| row.get(0))
}
