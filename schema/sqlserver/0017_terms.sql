-- Which instance led in which term, for the console: attempts name the epoch of their term.
-- One batch; safe to run again. No row changes, so it takes no time on a large store.

-- Inserted by the transaction that acquires the lease. Terms of older versions have no row.
IF OBJECT_ID('submission_terms') IS NULL
BEGIN
    CREATE TABLE submission_terms (
        lease_epoch BIGINT        NOT NULL CONSTRAINT submission_terms_pk PRIMARY KEY,
        holder_id   NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        acquired_at DATETIME2(6)  NOT NULL
    );
    -- The last term is still known.
    INSERT INTO submission_terms (lease_epoch, holder_id, acquired_at)
    SELECT lease_epoch, holder_id, acquired_at FROM submission_manager_leases;
END;
