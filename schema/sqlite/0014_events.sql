-- The event feed: intents that have ended, in the order in which that was committed.
-- Run inside one transaction; safe to run again. It reads all intents once, to build the index.

-- last_modified_at of an intent that has ended is the time of the transaction that ended it: no later transaction changes
-- the intent, and no two transactions share a time. completed_at is not in that order, because the outcome of an attempt is
-- known before it is committed. Retention now deletes in the order of the feed, so the index on completed_at is not needed.
CREATE INDEX IF NOT EXISTS submission_intents_ended
    ON submission_intents (last_modified_at) WHERE completed_at IS NOT NULL;
DROP INDEX IF EXISTS submission_intents_completed;

-- The last event that retention has deleted. A reader that has not read as far has missed events.
CREATE TABLE IF NOT EXISTS submission_feed_start (
    only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
    ended_at INTEGER NOT NULL,
    intent_seq INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO submission_feed_start (only_row, ended_at, intent_seq) VALUES (1, 0, 0);
