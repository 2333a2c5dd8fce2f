-- Purging without table scans and without reusing numbers, a row for readiness checks, and a clock that keeps running
-- when the host's clock is set back.
-- It runs within one transaction and can be repeated. It changes no rows, so it is fast on a large store.

-- Message ids are found by bucket, so no index starts with the column that refers to the intent. Deleting an intent
-- therefore scanned the whole table. An index would need one more write for every accepted intent. So this removes the
-- foreign key instead, and a purge deletes the message ids of an intent first. Only the text of the declaration changes,
-- as SQLite documents it for dropping a constraint. The new tables make other connections read the schema again.
CREATE TABLE IF NOT EXISTS submission_probes (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    filler   BLOB NOT NULL
) STRICT;
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, ' REFERENCES submission_intents', '')
    WHERE type = 'table' AND name = 'submission_gateway_messages';
PRAGMA writable_schema = OFF;

-- The highest number of an intent and the lowest number of the intent of a job, as of the last purge, so that the numbers
-- of purged intents are not reused.
CREATE TABLE IF NOT EXISTS submission_numbers (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    highest  INTEGER NOT NULL,
    lowest   INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO submission_numbers (only_row, highest, lowest) VALUES (1, 0, 0);

-- While the store's clock is ahead of the host's: the time of both clocks at the last transaction, from which the
-- store's clock continues.
CREATE TABLE IF NOT EXISTS submission_clock_pace (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    store_at INTEGER NOT NULL,
    host_at  INTEGER NOT NULL
) STRICT;
