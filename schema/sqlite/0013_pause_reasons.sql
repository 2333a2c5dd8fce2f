-- Who paused a target, and why.
-- Runs in the transaction that also counts it, so it is run once. No row changes.

-- The name of the person or token; NULL in rows that an older version wrote.
ALTER TABLE submission_target_pauses ADD COLUMN paused_by TEXT;
-- What that person wrote; NULL for nothing.
ALTER TABLE submission_target_pauses ADD COLUMN reason TEXT;
