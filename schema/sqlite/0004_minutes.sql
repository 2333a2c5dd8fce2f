-- Counts of finished attempts by minute, for the console. They are kept for a day.
-- It runs within one transaction and can be repeated.
CREATE TABLE IF NOT EXISTS submission_minutes (
    -- Minutes since 1970.
    minute      INTEGER NOT NULL,
    contract_id INTEGER NOT NULL REFERENCES submission_contracts,
    -- 'accepted', 'rejected' or 'error'; 'none' for intents that ended without an attempt.
    outcome     TEXT    NOT NULL,
    -- The cause of a failure, in a few words.
    cause       TEXT    NOT NULL,
    -- The status of the intents after the attempt.
    status      TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    -- The total duration of the attempts in microseconds.
    micros      INTEGER NOT NULL,
    PRIMARY KEY (minute, contract_id, outcome, cause, status)
) STRICT, WITHOUT ROWID;
