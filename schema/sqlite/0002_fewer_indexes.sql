-- Indexes that an intent which is accepted at its first attempt need not touch so often.
-- Run inside one transaction; safe to run again.

-- What is pending, by gateway: attempts under way first (they are not due), then what waits, by
-- when it is due. Takes the place of one index of what waits and one of what is under way.
DROP INDEX IF EXISTS submission_intents_lane;
DROP INDEX IF EXISTS submission_intents_open;
CREATE INDEX IF NOT EXISTS submission_intents_pending
    ON submission_intents (gateway_id, next_attempt_at) WHERE status = 'pending';

-- Lists of what went wrong. What was accepted is common, and found without an index.
DROP INDEX IF EXISTS submission_intents_by_status;
CREATE INDEX IF NOT EXISTS submission_intents_rejected ON submission_intents (status) WHERE status = 'rejected';
CREATE INDEX IF NOT EXISTS submission_intents_exhausted ON submission_intents (status) WHERE status = 'exhausted';
