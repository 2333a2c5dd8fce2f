-- The audit log: what operators did. Entries are inserted in the transaction of the action and never changed.
-- Run inside one transaction; safe to run again. No row changes, so it takes no time on a large store.

CREATE TABLE IF NOT EXISTS submission_audit_log (
    -- Counts from 1 without gaps.
    entry_id      INTEGER PRIMARY KEY,
    recorded_at   INTEGER NOT NULL,
    actor_kind    TEXT    NOT NULL,
    -- Empty if the actor is not known by name.
    actor_name    TEXT    NOT NULL,
    -- Empty if the action came from no network connection.
    address       TEXT    NOT NULL,
    action        TEXT    NOT NULL,
    -- What was acted on.
    subject       TEXT    NOT NULL,
    -- A JSON object.
    details       TEXT    NOT NULL,
    -- The hash of the entry before this one; 32 zero bytes in the first entry.
    previous_hash BLOB    NOT NULL,
    -- SHA-256 of the previous hash and of all other columns; docs/audit.md says how.
    hash          BLOB    NOT NULL
) STRICT;
-- Lists are in the order of entry_id, newest first, with these filters.
CREATE INDEX IF NOT EXISTS submission_audit_log_time ON submission_audit_log (recorded_at);
CREATE INDEX IF NOT EXISTS submission_audit_log_actor ON submission_audit_log (actor_name);
CREATE INDEX IF NOT EXISTS submission_audit_log_action ON submission_audit_log (action);

-- The newest entry, by which entries that were removed at the end are noticed.
CREATE TABLE IF NOT EXISTS submission_audit_head (
    only_row  INTEGER PRIMARY KEY CHECK (only_row = 1),
    last_id   INTEGER NOT NULL,
    last_hash BLOB    NOT NULL
) STRICT;
INSERT OR IGNORE INTO submission_audit_head (only_row, last_id, last_hash) VALUES (1, 0, zeroblob(32));
