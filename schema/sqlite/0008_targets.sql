-- Paused targets, and lanes of the schedule by contract instead of by gateway.
-- It runs within one transaction and can be repeated.

-- Paused targets. No attempt of them starts: the transaction that starts an attempt checks this table.
CREATE TABLE IF NOT EXISTS submission_target_pauses (
    submission_target TEXT PRIMARY KEY,
    paused_at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Pending intents by contract: first those with an attempt under way (next_attempt_at is NULL), then the waiting
-- ones by due time.
DROP INDEX IF EXISTS submission_intents_pending;
CREATE INDEX submission_intents_pending
    ON submission_intents (contract_id, next_attempt_at) WHERE status = 'pending';
