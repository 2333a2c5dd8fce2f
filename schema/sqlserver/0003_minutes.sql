-- Counts of finished attempts by minute, for the console. They are kept for a day.
-- It is one batch and can be repeated.
IF OBJECT_ID('submission_minutes') IS NULL
BEGIN
    CREATE TABLE submission_minutes (
        -- Minutes since 1970.
        minute      BIGINT       NOT NULL,
        contract_id BIGINT       NOT NULL,
        -- 'accepted', 'rejected' or 'error'; 'none' for intents that ended without an attempt.
        outcome     VARCHAR(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- The cause of a failure, in a few words.
        cause       NVARCHAR(120) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- The status of the intents after the attempt.
        status      VARCHAR(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
        attempts    BIGINT       NOT NULL,
        -- The total duration of the attempts in microseconds.
        micros      BIGINT       NOT NULL,
        CONSTRAINT submission_minutes_pk PRIMARY KEY (minute, contract_id, outcome, cause, status)
    );
END;
