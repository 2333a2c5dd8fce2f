-- Purging that searches no tables and reuses no numbers, a row for readiness checks, and a clock that always advances.
-- Run inside one transaction; safe to run again. No row changes, so it takes no time on a large store.

-- Message ids are found by bucket, so no index begins with the column that referenced the intent, and deleting an intent
-- searched the whole table. An index would cost every accepted intent another write, so the foreign key is dropped
-- instead: a deletion deletes the message ids first. Only the text of the declaration changes, as SQLite documents it for
-- dropping a constraint; the new tables make other connections read the schema again.
CREATE TABLE IF NOT EXISTS submission_probes (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    filler   BLOB NOT NULL
) STRICT;
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, ' REFERENCES submission_intents', '')
    WHERE type = 'table' AND name = 'submission_gateway_messages';
PRAGMA writable_schema = OFF;

-- The highest number of an intent and the lowest number of a job, as of the last purge. Numbers of deleted intents are
-- not used again.
CREATE TABLE IF NOT EXISTS submission_numbers (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    highest  INTEGER NOT NULL,
    lowest   INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO submission_numbers (only_row, highest, lowest) VALUES (1, 0, 0);

-- While the store's clock is ahead of the host's: the time of both at the last transaction, so that the store's advances.
CREATE TABLE IF NOT EXISTS submission_clock_pace (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    store_at INTEGER NOT NULL,
    host_at  INTEGER NOT NULL
) STRICT;
