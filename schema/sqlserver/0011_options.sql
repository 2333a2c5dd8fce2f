-- What few intents have besides their columns: a scheduled start, a request to cancel them, the intent that they repeat.
-- One batch; safe to run again. No row changes, so it takes no time on a large store.

-- A table of its own, so that intents without options cost nothing.
IF OBJECT_ID('submission_intent_options') IS NULL
BEGIN
    CREATE TABLE submission_intent_options (
        intent_seq          BIGINT       NOT NULL CONSTRAINT submission_intent_options_pk PRIMARY KEY,
        -- The notBefore of the submission, as the client sent it.
        not_before          DATETIME2(6) NULL,
        -- When the first request came to cancel the intent after the attempt that was open then.
        cancel_requested_at DATETIME2(6) NULL,
        -- The id of the intent that this one repeats. That intent may have been deleted since.
        redrive_of          NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NULL,
        -- The redrive in bulk that created the intent.
        redrive_id          VARCHAR(36) COLLATE Latin1_General_100_BIN2 NULL,
        -- The id of the first intent of the chain, which gateways get as Idempotency-Key.
        gateway_key         NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NULL
    );
    -- An intent is repeated once at most; the new one can be repeated again.
    CREATE UNIQUE INDEX submission_intent_options_redrive_of
        ON submission_intent_options (redrive_of) WHERE redrive_of IS NOT NULL;
    CREATE INDEX submission_intent_options_redrive
        ON submission_intent_options (redrive_id, intent_seq) WHERE redrive_id IS NOT NULL;
END;
