-- Targets that are paused, and lanes of the schedule by contract instead of by gateway.
-- Run inside one transaction; safe to run again.

-- Attempts of a target that stands here do not begin: every begin looks, in its own transaction.
CREATE TABLE IF NOT EXISTS submission_target_pauses (
    submission_target TEXT PRIMARY KEY,
    paused_at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What is pending, by contract: attempts under way first (they are not due), then what waits, by when it is due.
DROP INDEX IF EXISTS submission_intents_pending;
CREATE INDEX submission_intents_pending
    ON submission_intents (contract_id, next_attempt_at) WHERE status = 'pending';
