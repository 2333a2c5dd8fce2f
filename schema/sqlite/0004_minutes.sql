-- What became of attempts, minute by minute, for the console. Kept for a day.
-- Run inside one transaction; safe to run again.
CREATE TABLE IF NOT EXISTS submission_minutes (
    -- Minutes since 1970.
    minute      INTEGER NOT NULL,
    contract_id INTEGER NOT NULL REFERENCES submission_contracts,
    -- accepted, rejected or error; none for intents that ended without an attempt.
    outcome     TEXT    NOT NULL,
    -- Why, in few words.
    cause       TEXT    NOT NULL,
    -- The status that the intents then had.
    status      TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    -- How long the attempts took together, in microseconds.
    micros      INTEGER NOT NULL,
    PRIMARY KEY (minute, contract_id, outcome, cause, status)
) STRICT, WITHOUT ROWID;
