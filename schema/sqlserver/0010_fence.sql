-- Writes of the leader change the row of its lease, which keeps it locked until they are committed: a server need not lock a
-- row whose update changes nothing.
-- One batch; safe to run again.

IF NOT EXISTS (SELECT 1 FROM sys.columns
    WHERE object_id = OBJECT_ID('submission_manager_leases') AND name = 'fenced_writes')
BEGIN
    ALTER TABLE submission_manager_leases
        ADD fenced_writes BIGINT NOT NULL CONSTRAINT submission_manager_leases_fenced_writes DEFAULT 0;
END;
