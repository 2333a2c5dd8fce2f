-- Webhook events of ended intents, and every try to deliver them.
-- One batch; safe to run again.

-- Receivers by number. A receiver is the scheme, host and port of a webhook.
IF OBJECT_ID('submission_webhook_receivers') IS NULL
BEGIN
    CREATE TABLE submission_webhook_receivers (
        receiver_id   BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT submission_webhook_receivers_pk PRIMARY KEY,
        origin_sha256 BINARY(32)            NOT NULL CONSTRAINT submission_webhook_receivers_origin UNIQUE,
        origin        NVARCHAR(MAX)         NOT NULL
    );
END;

-- The receivers of contracts that have a webhook. Rows are never changed.
IF OBJECT_ID('submission_contract_receivers') IS NULL
BEGIN
    CREATE TABLE submission_contract_receivers (
        contract_id BIGINT NOT NULL CONSTRAINT submission_contract_receivers_pk PRIMARY KEY,
        receiver_id BIGINT NOT NULL
    );
END;

-- At most one event for an intent, inserted by the transaction that ends it.
IF OBJECT_ID('submission_webhook_events') IS NULL
BEGIN
    CREATE TABLE submission_webhook_events (
        intent_seq       BIGINT       NOT NULL CONSTRAINT submission_webhook_events_pk PRIMARY KEY,
        receiver_id      BIGINT       NOT NULL,
        status           VARCHAR(10) COLLATE Latin1_General_100_BIN2 NOT NULL,
        -- When the event became pending, or was requested again, and how many tries had been made by then.
        owed_since       DATETIME2(6) NOT NULL,
        tries_before     BIGINT       NOT NULL,
        tries            BIGINT       NOT NULL,
        -- Set while the event waits for a try, and only then.
        next_try_at      DATETIME2(6) NULL,
        -- Set while a try is open, and only then: the term that started it, and when.
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

-- Appended when a try is finished, never changed.
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
