-- Who paused a target, and why.
-- One batch; safe to run again. No row changes.

IF NOT EXISTS (SELECT 1 FROM sys.columns
    WHERE object_id = OBJECT_ID('submission_target_pauses') AND name = 'paused_by')
BEGIN
    -- The name of the person or token; NULL in rows that an older version wrote.
    ALTER TABLE submission_target_pauses ADD paused_by NVARCHAR(400) NULL;
END;
IF NOT EXISTS (SELECT 1 FROM sys.columns
    WHERE object_id = OBJECT_ID('submission_target_pauses') AND name = 'reason')
BEGIN
    -- What that person wrote; NULL for nothing.
    ALTER TABLE submission_target_pauses ADD reason NVARCHAR(1000) NULL;
END;
