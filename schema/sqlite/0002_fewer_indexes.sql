-- Fewer indexes that an intent touches when it is accepted on its first attempt.
-- Run inside one transaction; safe to run again.

-- Pending intents by gateway: those with an open attempt first (they have no due time), then waiting ones by
-- due time. Replaces one index of waiting intents and one of open attempts.
DROP INDEX IF EXISTS submission_intents_lane;
DROP INDEX IF EXISTS submission_intents_open;
CREATE INDEX IF NOT EXISTS submission_intents_pending
    ON submission_intents (gateway_id, next_attempt_at) WHERE status = 'pending';

-- Lists of rejected and exhausted intents. Accepted ones are common, and found without an index.
DROP INDEX IF EXISTS submission_intents_by_status;
CREATE INDEX IF NOT EXISTS submission_intents_rejected ON submission_intents (status) WHERE status = 'rejected';
CREATE INDEX IF NOT EXISTS submission_intents_exhausted ON submission_intents (status) WHERE status = 'exhausted';
