-- Purging without searching tables or giving numbers twice, a row for readiness checks, a clock that does not stand still.
-- Run inside one transaction; safe to run again. No row changes, so it takes no time on a large store.

-- Message ids are found by bucket, so no index begins with the column that referred to the intent, and every intent
-- that was deleted cost a search of the whole table. An index would cost every accepted intent a further write, so the
-- reference goes instead: whoever deletes an intent deletes its message ids first. Only the text of the declaration
-- changes, in the way that SQLite documents for dropping a constraint; the new tables make other connections read it again.
CREATE TABLE IF NOT EXISTS submission_probes (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    filler   BLOB NOT NULL
) STRICT;
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, ' REFERENCES submission_intents', '')
    WHERE type = 'table' AND name = 'submission_gateway_messages';
PRAGMA writable_schema = OFF;

-- The highest number that was given to an intent and the lowest that was given to a job, as of the last purge: numbers
-- of intents that are gone are not given again.
CREATE TABLE IF NOT EXISTS submission_numbers (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    highest  INTEGER NOT NULL,
    lowest   INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO submission_numbers (only_row, highest, lowest) VALUES (1, 0, 0);

-- While the store's clock is ahead of the host's: what each showed at the last transaction, so that the store's goes on.
CREATE TABLE IF NOT EXISTS submission_clock_pace (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    store_at INTEGER NOT NULL,
    host_at  INTEGER NOT NULL
) STRICT;
