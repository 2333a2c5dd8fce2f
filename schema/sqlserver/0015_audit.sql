-- The audit log: what operators did. Entries are inserted in the transaction of the action and never changed.
-- One batch; safe to run again. No row changes, so it takes no time on a large store.

IF OBJECT_ID('submission_audit_log') IS NULL
BEGIN
    CREATE TABLE submission_audit_log (
        -- Counts from 1 without gaps.
        entry_id      BIGINT        NOT NULL CONSTRAINT submission_audit_log_pk PRIMARY KEY,
        recorded_at   DATETIME2(6)  NOT NULL,
        actor_kind    VARCHAR(20)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- Empty if the actor is not known by name.
        actor_name    NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- Empty if the action came from no network connection.
        address       VARCHAR(64)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        action        VARCHAR(40)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- What was acted on.
        subject       NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- A JSON object.
        details       NVARCHAR(MAX) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- The hash of the entry before this one; 32 zero bytes in the first entry.
        previous_hash BINARY(32)    NOT NULL,
        -- SHA-256 of the previous hash and of all other columns; docs/audit.md says how.
        hash          BINARY(32)    NOT NULL
    );
    -- Lists are in the order of entry_id, newest first, with these filters.
    CREATE INDEX submission_audit_log_time ON submission_audit_log (recorded_at, entry_id);
    CREATE INDEX submission_audit_log_actor ON submission_audit_log (actor_name, entry_id);
    CREATE INDEX submission_audit_log_action ON submission_audit_log (action, entry_id);
END;

-- The newest entry. Every transaction that appends one changes this row first, so instances append one after the other.
IF OBJECT_ID('submission_audit_head') IS NULL
BEGIN
    CREATE TABLE submission_audit_head (
        only_row  INT        NOT NULL CONSTRAINT submission_audit_head_pk PRIMARY KEY CHECK (only_row = 1),
        last_id   BIGINT     NOT NULL,
        last_hash BINARY(32) NOT NULL
    );
    INSERT INTO submission_audit_head (only_row, last_id, last_hash) VALUES (1, 0, CAST(0x00 AS BINARY(32)));
END;
