-- The event feed: intents that have ended, in the order in which that was committed.
-- One batch; safe to run again. It reads all intents once, to build the index.

-- The last event that retention has deleted. A reader that has not read as far has missed events.
IF OBJECT_ID('submission_feed_start') IS NULL
BEGIN
    CREATE TABLE submission_feed_start (
        only_row   INT          NOT NULL CONSTRAINT submission_feed_start_pk PRIMARY KEY CHECK (only_row = 1),
        ended_at DATETIME2(6) NOT NULL,
        intent_seq BIGINT       NOT NULL
    );
    INSERT INTO submission_feed_start (only_row, ended_at, intent_seq) VALUES (1, '2000-01-01T00:00:00', 0);
    -- last_modified_at of an intent that has ended is the time of the transaction that ended it: no later transaction
    -- changes the intent, and no two transactions share a time. completed_at is not in that order, because the outcome of
    -- an attempt is known before it is committed.
    CREATE INDEX submission_intents_ended
        ON submission_intents (last_modified_at, intent_seq) WHERE completed_at IS NOT NULL;
END;
