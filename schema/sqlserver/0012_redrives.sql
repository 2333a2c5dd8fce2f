-- Redrives in bulk: plans of failed intents that are sent again, and what is left of each to be worked off.
-- One batch; safe to run again. No row changes, so it takes no time on a large store.

IF OBJECT_ID('submission_redrives') IS NULL
BEGIN
    CREATE TABLE submission_redrives (
        redrive_seq     BIGINT IDENTITY(1, 1) NOT NULL CONSTRAINT submission_redrives_pk PRIMARY KEY,
        redrive_id      VARCHAR(36) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT submission_redrives_id UNIQUE,
        -- planning: its items are being inserted, and nobody sees it.
        state           VARCHAR(10) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT submission_redrives_state
                        CHECK (state IN ('planning', 'planned', 'running', 'paused', 'completed', 'cancelled')),
        planned_at      DATETIME2(6)  NOT NULL,
        started_at      DATETIME2(6)  NULL,
        ended_at        DATETIME2(6)  NULL,
        -- The filter as it was sent, JSON.
        filter          NVARCHAR(MAX) NOT NULL,
        include_unknown BIGINT        NOT NULL,
        note            NVARCHAR(MAX) NULL,
        rate_per_second BIGINT        NULL,
        -- How many intents the plan has, how many of them were redriven, and how many could not be.
        intent_count    BIGINT        NOT NULL,
        created_count   BIGINT        NOT NULL,
        skipped_count   BIGINT        NOT NULL,
        -- Targets, groups, exclusions and a sample, JSON.
        plan_summary    NVARCHAR(MAX) NOT NULL,
        -- How its intents ended, set when all have: numbers of accepted, rejected and exhausted ones.
        outcomes        VARCHAR(80)   NULL
    );
END;

-- The intents of a redrive that are still to be redriven. A row is deleted by the transaction that creates the new intent.
IF OBJECT_ID('submission_redrive_items') IS NULL
BEGIN
    CREATE TABLE submission_redrive_items (
        redrive_seq   BIGINT NOT NULL,
        -- The place of its target in the plan: each target has a queue of its own.
        target_number BIGINT NOT NULL,
        -- The place of the intent in the redrive, by completed_at.
        position      BIGINT NOT NULL,
        -- The intent may have been deleted since.
        intent_seq    BIGINT NOT NULL,
        CONSTRAINT submission_redrive_items_pk PRIMARY KEY (redrive_seq, target_number, position)
    );
END;
