-- Attempts and ended intents by minute, for the console. Kept for a day.
-- Run inside one transaction; safe to run again.
CREATE TABLE IF NOT EXISTS submission_minutes (
    -- Minutes since 1970.
    minute      INTEGER NOT NULL,
    contract_id INTEGER NOT NULL REFERENCES submission_contracts,
    -- accepted, rejected or error; none for intents that ended without an attempt.
    outcome     TEXT    NOT NULL,
    -- The cause, in a few words.
    cause       TEXT    NOT NULL,
    -- The status of the intents after that.
    status      TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    -- Total duration of the attempts, in microseconds.
    micros      INTEGER NOT NULL,
    PRIMARY KEY (minute, contract_id, outcome, cause, status)
) STRICT, WITHOUT ROWID;
