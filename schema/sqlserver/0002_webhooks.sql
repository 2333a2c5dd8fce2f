-- Webhook events of ended intents, and every try to deliver them.
-- It is one batch and can be repeated.

-- Receivers and their numbers. A receiver is the scheme, host and port of a webhook URL.
IF OBJECT_ID('submission_webhook_receivers') IS NULL
BEGIN
    CREATE TABLE submission_webhook_receivers (
        receiver_id   BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT submission_webhook_receivers_pk PRIMARY KEY,
        origin_sha256 BINARY(32)            NOT NULL CONSTRAINT submission_webhook_receivers_origin UNIQUE,
        origin        NVARCHAR(MAX)         NOT NULL
    );
END;

-- The receiver of each contract that has a webhook. Rows are never changed.
IF OBJECT_ID('submission_contract_receivers') IS NULL
BEGIN
    CREATE TABLE submission_contract_receivers (
        contract_id BIGINT NOT NULL CONSTRAINT submission_contract_receivers_pk PRIMARY KEY,
        receiver_id BIGINT NOT NULL
    );
END;

-- At most one event for each intent, inserted in the transaction that ends the intent.
IF OBJECT_ID('submission_webhook_events') IS NULL
BEGIN
    CREATE TABLE submission_webhook_events (
        intent_seq       BIGINT       NOT NULL CONSTRAINT submission_webhook_events_pk PRIMARY KEY,
        receiver_id      BIGINT       NOT NULL,
        status           VARCHAR(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- When the event became pending or redelivery was requested, and how many tries had been made before.
        owed_since       DATETIME2(6) NOT NULL,
        tries_before     BIGINT       NOT NULL,
        tries            BIGINT       NOT NULL,
        -- Set only while the event waits for a try.
        next_try_at      DATETIME2(6) NULL,
        -- Set only while a try is under way: the epoch of the term that started it, and when.
        open_lease_epoch BIGINT       NULL,
        open_started_at  DATETIME2(6) NULL,
        CONSTRAINT submission_webhook_events_state CHECK (
            (status = 'pending' AND next_try_at IS NOT NULL AND open_lease_epoch IS NULL)
            OR (status = 'pending' AND next_try_at IS NULL AND open_lease_epoch IS NOT NULL)
            OR (status IN ('delivered', 'failed') AND next_try_at IS NULL AND open_lease_epoch IS NULL)
        )
    );
    CREATE INDEX submission_webhook_events_due
        ON submission_webhook_events (receiver_id, next_try_at, intent_seq) WHERE next_try_at IS NOT NULL;
    CREATE INDEX submission_webhook_events_owed
        ON submission_webhook_events (owed_since) WHERE status = 'pending';
    CREATE INDEX submission_webhook_events_open
        ON submission_webhook_events (open_lease_epoch) WHERE open_lease_epoch IS NOT NULL;
END;

-- A row is inserted when a try is finished, and never changed.
IF OBJECT_ID('submission_webhook_tries') IS NULL
BEGIN
    CREATE TABLE submission_webhook_tries (
        intent_seq  BIGINT        NOT NULL,
        try_number  BIGINT        NOT NULL,
        lease_epoch BIGINT        NOT NULL,
        started_at  DATETIME2(6)  NOT NULL,
        finished_at DATETIME2(6)  NOT NULL,
        http_status BIGINT        NULL,
        error       NVARCHAR(MAX) NULL,
        CONSTRAINT submission_webhook_tries_pk PRIMARY KEY (intent_seq, try_number)
    );
END;
