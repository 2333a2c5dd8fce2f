-- Redrives in bulk: plans of failed intents that are sent again, and what is left of each to be worked off.
-- Run inside one transaction; safe to run again. No row changes, so it takes no time on a large store.

CREATE TABLE IF NOT EXISTS submission_redrives (
    redrive_seq     INTEGER PRIMARY KEY,
    redrive_id      TEXT    NOT NULL UNIQUE,
    -- planning: its items are being inserted, and nobody sees it.
    state           TEXT    NOT NULL
                    CHECK (state IN ('planning', 'planned', 'running', 'paused', 'completed', 'cancelled')),
    planned_at      INTEGER NOT NULL,
    started_at      INTEGER,
    ended_at        INTEGER,
    -- The filter as it was sent, JSON.
    filter          TEXT    NOT NULL,
    include_unknown INTEGER NOT NULL,
    note            TEXT,
    rate_per_second INTEGER,
    -- How many intents the plan has, how many of them were redriven, and how many could not be.
    intent_count    INTEGER NOT NULL,
    created_count   INTEGER NOT NULL,
    skipped_count   INTEGER NOT NULL,
    -- Targets, groups, exclusions and a sample, JSON.
    plan_summary    TEXT    NOT NULL,
    -- How its intents ended, set when all have: numbers of accepted, rejected and exhausted ones.
    outcomes        TEXT,
    CHECK ((state IN ('completed', 'cancelled')) = (ended_at IS NOT NULL)),
    CHECK (state NOT IN ('running', 'paused', 'completed') OR rate_per_second IS NOT NULL)
) STRICT;

-- The intents of a redrive that are still to be redriven. A row is deleted by the transaction that creates the new intent.
CREATE TABLE IF NOT EXISTS submission_redrive_items (
    redrive_seq   INTEGER NOT NULL,
    -- The place of its target in the plan: each target has a queue of its own.
    target_number INTEGER NOT NULL,
    -- The place of the intent in the redrive, by completed_at.
    position      INTEGER NOT NULL,
    -- The intent may have been deleted since.
    intent_seq    INTEGER NOT NULL,
    PRIMARY KEY (redrive_seq, target_number, position)
) STRICT, WITHOUT ROWID;
