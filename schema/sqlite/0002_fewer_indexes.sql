-- Fewer indexes, so that an intent that is accepted at its first attempt needs fewer index updates.
-- It runs within one transaction and can be repeated.

-- Pending intents by gateway: first those with an attempt under way (next_attempt_at is NULL), then the
-- waiting ones by due time. It replaces one index of waiting intents and one of attempts under way.
DROP INDEX IF EXISTS submission_intents_lane;
DROP INDEX IF EXISTS submission_intents_open;
CREATE INDEX IF NOT EXISTS submission_intents_pending
    ON submission_intents (gateway_id, next_attempt_at) WHERE status = 'pending';

-- For lists of rejected and exhausted intents. Accepted intents are common and need no index.
DROP INDEX IF EXISTS submission_intents_by_status;
CREATE INDEX IF NOT EXISTS submission_intents_rejected ON submission_intents (status) WHERE status = 'rejected';
CREATE INDEX IF NOT EXISTS submission_intents_exhausted ON submission_intents (status) WHERE status = 'exhausted';
