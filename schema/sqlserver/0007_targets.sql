-- Paused targets, and lanes of the schedule by contract instead of by gateway.
-- It is one batch and can be repeated.

-- Paused targets. No attempt of them starts: the transaction that starts an attempt checks this table.
IF OBJECT_ID('submission_target_pauses') IS NULL
BEGIN
    CREATE TABLE submission_target_pauses (
        submission_target NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL
                          CONSTRAINT submission_target_pauses_pk PRIMARY KEY,
        paused_at         DATETIME2(6) NOT NULL
    );
    CREATE INDEX submission_intents_waiting
        ON submission_intents (contract_id, next_attempt_at, intent_seq) INCLUDE (attempt_count)
        WHERE next_attempt_at IS NOT NULL;
    DROP INDEX submission_intents_lane ON submission_intents;
    -- The index as before, with the contract, so that a refresh of the schedule reads nothing but this index.
    DROP INDEX submission_intents_changed ON submission_intents;
    CREATE INDEX submission_intents_changed ON submission_intents (last_modified_at, intent_id)
        INCLUDE (contract_id, gateway_id, next_attempt_at, attempt_count) WHERE next_attempt_at IS NOT NULL;
END;
