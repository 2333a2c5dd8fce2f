//! Statements that run when attempts finish or intents end: they insert pending webhook events and count by minute.

use crate::store::KEPT_MINUTES;

/// The current minute, counted from 1970 like [`minute_of`](crate::store::minute_of).
pub(super) const THIS_MINUTE: &str = "DATEDIFF(MINUTE, '1970-01-01T00:00:00', SYSUTCDATETIME())";

/// Inserts pending events for the intents `i` that `ended` selects (tables and a condition), if their contracts have
/// webhooks.
pub(super) fn webhook_events(ended: &str) -> String {
    format!(
        "
INSERT INTO submission_webhook_events (intent_seq, receiver_id, status, owed_since, tries_before, tries, next_try_at)
SELECT e.intent_seq, r.receiver_id, 'pending', @now, 0, 0, @now
FROM (SELECT i.intent_seq, i.contract_id FROM {ended}) AS e
JOIN submission_contract_receivers AS r ON r.contract_id = e.contract_id
WHERE NOT EXISTS (SELECT 1 FROM submission_webhook_events AS w WHERE w.intent_seq = e.intent_seq);"
    )
}

/// Which attempts or intents to count.
#[derive(Clone, Copy)]
pub(super) enum Ended<'a> {
    /// The attempts of `@done` that this transaction recorded.
    ByAttempt,
    /// The intents `i` that these tables and condition select, which were exhausted without an attempt.
    WithoutAttempt(&'a str),
}

/// Adds to the counts of the minute. When a row is inserted, rows that are too old are deleted.
pub(super) fn count(ended: Ended<'_>) -> String {
    let (kinds, same, values) = match ended {
        Ended::ByAttempt => (
            "SELECT d.minute, i.contract_id, d.outcome, d.cause, d.status, COUNT_BIG(*) AS attempts,
        CAST(SUM(d.micros) AS BIGINT) AS micros
    FROM @done AS d JOIN submission_intents AS i ON i.intent_seq = d.intent_seq
    WHERE d.intent_seq BETWEEN @first AND @last AND i.last_modified_at = @now
    GROUP BY d.minute, i.contract_id, d.outcome, d.cause, d.status"
                .to_owned(),
            "m.minute = g.minute AND m.contract_id = g.contract_id AND m.outcome = g.outcome AND m.cause = g.cause
    AND m.status = g.status",
            "g.minute, g.contract_id, g.outcome, g.cause, g.status, g.attempts, g.micros",
        ),
        // The literals are in the comparisons: as columns of a derived table they would have the collation of the
        // database. The cause is that of an intent that no attempt ended: see `cause_of_failure`.
        Ended::WithoutAttempt(intents) => (
            format!(
                "SELECT CAST({THIS_MINUTE} AS BIGINT) AS minute, i.contract_id,
        CAST(i.exhausted_reason AS NVARCHAR(120)) COLLATE Latin1_General_100_BIN2 AS cause,
        COUNT_BIG(*) AS attempts, CAST(0 AS BIGINT) AS micros
    FROM {intents}
    GROUP BY i.contract_id, CAST(i.exhausted_reason AS NVARCHAR(120)) COLLATE Latin1_General_100_BIN2"
            ),
            "m.minute = g.minute AND m.contract_id = g.contract_id AND m.outcome = 'none' AND m.cause = g.cause
    AND m.status = 'exhausted'",
            "g.minute, g.contract_id, 'none', g.cause, 'exhausted', g.attempts, g.micros",
        ),
    };
    format!(
        "
UPDATE m SET attempts = m.attempts + g.attempts, micros = m.micros + g.micros
FROM submission_minutes AS m JOIN ({kinds}) AS g ON {same};
INSERT INTO submission_minutes (minute, contract_id, outcome, cause, status, attempts, micros)
SELECT {values} FROM ({kinds}) AS g
WHERE NOT EXISTS (SELECT 1 FROM submission_minutes AS m WHERE {same});
IF @@ROWCOUNT > 0 DELETE FROM submission_minutes WHERE minute < {THIS_MINUTE} - {KEPT_MINUTES};"
    )
}
