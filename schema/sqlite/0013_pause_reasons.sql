-- Who paused a target, and why.
-- Run inside one transaction; safe to run again. No row changes.

-- A table of its own, because a column cannot be added in a way that is safe to run again. A row belongs to the pause with
-- the same time: an older version that ends a pause leaves its row here.
CREATE TABLE IF NOT EXISTS submission_target_pause_notes (
    submission_target TEXT PRIMARY KEY,
    paused_at         INTEGER NOT NULL,
    -- The name of the person or token.
    paused_by         TEXT NOT NULL,
    -- What that person wrote; NULL for nothing.
    reason            TEXT
) STRICT, WITHOUT ROWID;
