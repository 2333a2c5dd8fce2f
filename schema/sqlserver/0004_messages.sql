-- Index of gateway message ids, for searches. Longer message ids are not in it.
-- It is one batch and can be repeated.
IF OBJECT_ID('submission_gateway_messages') IS NULL
BEGIN
    CREATE TABLE submission_gateway_messages (
        intent_seq         BIGINT        NOT NULL,
        gateway_message_id NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        CONSTRAINT submission_gateway_messages_pk PRIMARY KEY (intent_seq, gateway_message_id)
    );
    CREATE INDEX submission_gateway_messages_by_id ON submission_gateway_messages (gateway_message_id);
END;
