-- What few intents have besides their columns: a scheduled start, a request to cancel them, the intent that they repeat.
-- Run inside one transaction; safe to run again. No row changes, so it takes no time on a large store.

-- A table of its own, so that intents without options cost nothing.
CREATE TABLE IF NOT EXISTS submission_intent_options (
    intent_seq          INTEGER PRIMARY KEY REFERENCES submission_intents,
    -- The notBefore of the submission, as the client sent it.
    not_before          INTEGER,
    -- When the first request came to cancel the intent after the attempt that was open then.
    cancel_requested_at INTEGER,
    -- The id of the intent that this one repeats. That intent may have been deleted since.
    redrive_of          TEXT,
    -- The redrive in bulk that created the intent.
    redrive_id          TEXT,
    -- The id of the first intent of the chain, which gateways get as Idempotency-Key.
    gateway_key         TEXT,
    CHECK ((redrive_of IS NULL) = (gateway_key IS NULL))
) STRICT;
-- An intent is repeated once at most; the new one can be repeated again.
CREATE UNIQUE INDEX IF NOT EXISTS submission_intent_options_redrive_of
    ON submission_intent_options (redrive_of) WHERE redrive_of IS NOT NULL;
CREATE INDEX IF NOT EXISTS submission_intent_options_redrive
    ON submission_intent_options (redrive_id, intent_seq) WHERE redrive_id IS NOT NULL;
