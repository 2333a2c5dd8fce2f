//! What few intents have besides their columns: a scheduled start, a request to cancel them, and the intent that they repeat.
//! Batches whose new intents have no options do not mention the table of options.

use serde_json::Value as Json;

use super::attempts::read_intents;
use super::audit::{VARIABLES, append};
use super::counts::{self, Ended};
use super::database::{Batch, Database};
use super::read::set;
use super::rows::{self, INTENT_COLUMNS, json_moment};
use super::script::{Column, Values, json_text};
use super::statements::TICK;
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::intent::IntentId;
use crate::store::{Cancellation, MAX_AHEAD, NewIntent, StoreError};

/// Whether an intent has options.
pub(super) fn has_any(new: &NewIntent) -> bool {
    new.not_before.is_some() || new.redrive.is_some()
}

/// What the input of new intents has besides, if some have options.
pub(super) fn input_columns() -> [Column<'static>; 4] {
    [
        Column::of("not_before", "DATETIME2(6)"),
        Column::text("redrive_of", 400),
        Column::code("redrive_id", 36),
        Column::text("gateway_key", 400),
    ]
}

/// The values of [`input_columns`] that an intent has.
pub(super) fn input_fields(new: &NewIntent) -> impl Iterator<Item = (String, Json)> {
    let link = new.redrive.as_ref();
    let fields = [
        ("not_before", new.not_before.map(json_moment)),
        ("redrive_of", link.map(|link| json_text(link.of.as_str()))),
        ("redrive_id", link.and_then(|link| link.redrive).map(|id| id.to_string())),
        ("gateway_key", link.map(|link| json_text(link.gateway_key.as_str()))),
    ];
    fields.into_iter().filter_map(|(name, text)| Some((name.to_owned(), Json::from(text?))))
}

/// When the first attempt of a new intent is due, and what its deadline counts from.
pub(super) const DUE: &str = "CASE WHEN n.not_before > @now THEN n.not_before ELSE @now END";

/// Ends the condition of inserted intents, if some have options: the start may not be too far ahead, and no intent is repeated
/// twice.
pub(super) fn unless_refused() -> String {
    format!(
        "
    AND (n.not_before IS NULL OR n.not_before <= DATEADD(SECOND, {}, @now))
    AND NOT EXISTS (SELECT 1 FROM submission_intent_options AS o WHERE o.redrive_of = n.redrive_of)",
        MAX_AHEAD.as_secs()
    )
}

/// No two transactions share a timestamp, so it tells which intents this one created.
pub(super) const INSERT: &str = "
INSERT INTO submission_intent_options (intent_seq, not_before, redrive_of, redrive_id, gateway_key)
SELECT i.intent_seq, n.not_before, n.redrive_of, n.redrive_id, n.gateway_key
FROM @new AS n JOIN submission_intents AS i ON i.intent_id = n.intent_id
WHERE n.place BETWEEN @first AND @last AND (n.not_before IS NOT NULL OR n.redrive_of IS NOT NULL)
    AND i.created_at = @now;";

/// Ends an intent that waits, or records that it is to end after its attempt. Every write of an intent holds the clock, so the
/// intent does not change meanwhile.
pub(super) fn cancel_batch(id: &IntentId, after_attempt: bool, by: &Actor) -> Batch {
    // What is cancelled here completes at the time of this transaction, which no other shares.
    const CANCELLED: &str = "submission_intents AS i
    WHERE i.completed_at = @now AND i.exhausted_reason = 'cancelled'";
    let mut values = Values::default();
    let mut entry = |later| append(&mut values, &NewAuditEntry::cancel(by, id, later));
    let (cancelled, requested) = (entry(false), entry(true));
    let id = values.text(id.as_str());
    let after_attempt = values.number(i64::from(after_attempt));
    values.batch(format!(
        "DECLARE @now DATETIME2(6), @cancelled BIGINT, @requested BIGINT = 0, {VARIABLES};
BEGIN TRANSACTION;{TICK}
UPDATE submission_intents SET status = 'exhausted', exhausted_reason = 'cancelled', completed_at = @now,
    next_attempt_at = NULL, last_modified_at = @now
WHERE intent_id = {id} AND next_attempt_at IS NOT NULL;
SET @cancelled = @@ROWCOUNT;
IF @cancelled > 0
BEGIN{}{}{cancelled}
END;
IF {after_attempt} = 1
BEGIN
    UPDATE o SET cancel_requested_at = @now
    FROM submission_intent_options AS o JOIN submission_intents AS i ON i.intent_seq = o.intent_seq
    WHERE i.intent_id = {id} AND i.open_lease_epoch IS NOT NULL AND o.cancel_requested_at IS NULL;
    SET @requested = @@ROWCOUNT;
    INSERT INTO submission_intent_options (intent_seq, cancel_requested_at)
    SELECT i.intent_seq, @now FROM submission_intents AS i
    WHERE i.intent_id = {id} AND i.open_lease_epoch IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM submission_intent_options AS o WHERE o.intent_seq = i.intent_seq);
    SET @requested = @requested + @@ROWCOUNT;
END;
IF @requested > 0
BEGIN{requested}
END;
COMMIT TRANSACTION;
SELECT @cancelled AS cancelled;
SELECT {INTENT_COLUMNS} FROM submission_intents AS i
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE i.intent_id = {id};",
        counts::webhook_events(CANCELLED),
        counts::count(Ended::WithoutAttempt(CANCELLED)),
    ))
}

pub(super) async fn cancel(
    database: &Database,
    id: IntentId,
    after_attempt: bool,
    by: &Actor,
) -> Result<Cancellation, StoreError> {
    let results = database.run(cancel_batch(&id, after_attempt, by)).await?;
    let Some(intent) = read_intents(set(&results, 1))?.pop() else { return Ok(Cancellation::NotFound) };
    let cancelled = set(&results, 0).first().map(|row| rows::need::<i64>(row, "cancelled")).transpose()?;
    Ok(match cancelled {
        Some(1) => Cancellation::Cancelled(intent),
        _ => Cancellation::of_other(intent, after_attempt),
    })
}
