-- Intents, their attempts and the lease. DATETIME2(6) is UTC by the server's clock.
-- One batch; safe to run again. Names are compared byte for byte, hence the binary collation; an
-- id has up to 200 characters, each up to two UTF-16 units. Primary keys are clustered and unique
-- keys are not, which is the default: rows are in the order of arrival, and ids have an index.

-- Gateways by number. A URL is too long for a key.
IF OBJECT_ID('submission_gateways') IS NULL
BEGIN
    CREATE TABLE submission_gateways (
        gateway_id  BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT submission_gateways_pk PRIMARY KEY,
        url_sha256  BINARY(32)            NOT NULL CONSTRAINT submission_gateways_url UNIQUE,
        gateway_url NVARCHAR(MAX)         NOT NULL
    );
END;

-- Contract snapshots, each distinct one once. Rows are never changed, so an intent keeps its
-- contract when the registry changes.
IF OBJECT_ID('submission_contracts') IS NULL
BEGIN
    CREATE TABLE submission_contracts (
        contract_id       BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT submission_contracts_pk PRIMARY KEY,
        snapshot_sha256   BINARY(32)            NOT NULL CONSTRAINT submission_contracts_snapshot UNIQUE,
        gateway_id        BIGINT                NOT NULL,
        submission_target NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- Not used any more.
        attempt_limit     BIGINT                NULL,
        snapshot          NVARCHAR(MAX)         NOT NULL
    );
    CREATE INDEX submission_contracts_by_target ON submission_contracts (submission_target);
END;

IF OBJECT_ID('submission_intents') IS NULL
BEGIN
    CREATE TABLE submission_intents (
        intent_seq       BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT submission_intents_pk PRIMARY KEY,
        intent_id        NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL
                         CONSTRAINT submission_intents_id UNIQUE,
        contract_id      BIGINT         NOT NULL,
        gateway_id       BIGINT         NOT NULL,
        payload          VARBINARY(MAX) NOT NULL,
        payload_sha256   BINARY(32)     NOT NULL,
        status           VARCHAR(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
        attempt_count    BIGINT         NOT NULL,
        -- Set while the intent waits for an attempt, and only then.
        next_attempt_at  DATETIME2(6)   NULL,
        deadline_at      DATETIME2(6)   NULL,
        -- Set while an attempt is open, and only then: the term that started it, and when.
        open_lease_epoch BIGINT         NULL,
        open_started_at  DATETIME2(6)   NULL,
        created_at       DATETIME2(6)   NOT NULL,
        completed_at     DATETIME2(6)   NULL,
        rejected_reason  NVARCHAR(400)  NULL,
        exhausted_reason VARCHAR(20)    NULL,
        last_modified_at DATETIME2(6)   NOT NULL,
        CONSTRAINT submission_intents_state CHECK (
            (status = 'pending' AND completed_at IS NULL AND next_attempt_at IS NOT NULL AND open_lease_epoch IS NULL)
            OR (status = 'pending' AND completed_at IS NULL AND next_attempt_at IS NULL AND open_lease_epoch IS NOT NULL)
            OR (status IN ('accepted', 'rejected', 'exhausted') AND completed_at IS NOT NULL
                AND next_attempt_at IS NULL AND open_lease_epoch IS NULL)
        )
    );
    CREATE INDEX submission_intents_lane
        ON submission_intents (gateway_id, next_attempt_at, intent_seq) INCLUDE (attempt_count)
        WHERE next_attempt_at IS NOT NULL;
    CREATE INDEX submission_intents_changed
        ON submission_intents (last_modified_at, intent_id) INCLUDE (gateway_id, next_attempt_at, attempt_count)
        WHERE next_attempt_at IS NOT NULL;
    CREATE INDEX submission_intents_deadline
        ON submission_intents (deadline_at) WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL;
    CREATE INDEX submission_intents_open
        ON submission_intents (open_lease_epoch, intent_seq) WHERE open_lease_epoch IS NOT NULL;
    CREATE INDEX submission_intents_completed
        ON submission_intents (completed_at, intent_seq) WHERE completed_at IS NOT NULL;
    CREATE INDEX submission_intents_created ON submission_intents (created_at);
    CREATE INDEX submission_intents_by_status ON submission_intents (status, intent_seq);
    CREATE INDEX submission_intents_by_contract ON submission_intents (contract_id, intent_seq);
END;

-- The audit log: appended when an attempt is finished, never counted, never changed.
IF OBJECT_ID('submission_attempts') IS NULL
BEGIN
    CREATE TABLE submission_attempts (
        intent_seq         BIGINT        NOT NULL,
        attempt_number     BIGINT        NOT NULL,
        lease_epoch        BIGINT        NOT NULL,
        started_at         DATETIME2(6)  NOT NULL,
        finished_at        DATETIME2(6)  NOT NULL,
        outcome_status     VARCHAR(10)   NULL,
        outcome_reason     NVARCHAR(MAX) NULL,
        error              NVARCHAR(MAX) NULL,
        gateway_message_id NVARCHAR(MAX) NULL,
        CONSTRAINT submission_attempts_pk PRIMARY KEY (intent_seq, attempt_number)
    );
END;

IF OBJECT_ID('submission_manager_leases') IS NULL
BEGIN
    CREATE TABLE submission_manager_leases (
        lease_name  NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL
                    CONSTRAINT submission_manager_leases_pk PRIMARY KEY,
        holder_id   NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        lease_epoch BIGINT       NOT NULL,
        acquired_at DATETIME2(6) NOT NULL,
        renewed_at  DATETIME2(6) NOT NULL,
        expires_at  DATETIME2(6) NOT NULL
    );
END;

-- The store's clock. Every transaction that writes intents advances it first, so timestamps are in
-- the order of commits and no two transactions share one.
IF OBJECT_ID('submission_clock') IS NULL
BEGIN
    CREATE TABLE submission_clock (
        only_row INT          NOT NULL CONSTRAINT submission_clock_pk PRIMARY KEY CHECK (only_row = 1),
        last_at  DATETIME2(6) NOT NULL
    );
    INSERT INTO submission_clock (only_row, last_at) VALUES (1, '2000-01-01T00:00:00');
END;
