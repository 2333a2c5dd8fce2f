-- Which instance led in which term, for the console: attempts name the epoch of their term.
-- Run inside one transaction; safe to run again. No row changes, so it takes no time on a large store.

-- Inserted by the transaction that acquires the lease. Terms of older versions have no row.
CREATE TABLE IF NOT EXISTS submission_terms (
    lease_epoch INTEGER PRIMARY KEY,
    holder_id   TEXT    NOT NULL,
    acquired_at INTEGER NOT NULL
) STRICT;
-- The last term is still known.
INSERT OR IGNORE INTO submission_terms (lease_epoch, holder_id, acquired_at)
SELECT lease_epoch, holder_id, acquired_at FROM submission_manager_leases;
