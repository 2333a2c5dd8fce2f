-- Targets that are paused, and lanes of the schedule by contract instead of by gateway.
-- Run inside one transaction; safe to run again.

-- Paused targets. Every start of an attempt checks this table in its own transaction.
CREATE TABLE IF NOT EXISTS submission_target_pauses (
    submission_target TEXT PRIMARY KEY,
    paused_at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Pending intents by contract: those with an open attempt first (they have no due time), then waiting ones by due time.
DROP INDEX IF EXISTS submission_intents_pending;
CREATE INDEX submission_intents_pending
    ON submission_intents (contract_id, next_attempt_at) WHERE status = 'pending';
