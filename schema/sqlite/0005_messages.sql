-- Finds the intent of a gateway's message id.
-- Run inside one transaction; safe to run again.

-- In buckets of intents that arrived together: writes touch few pages, although the ids are in no order. A search
-- looks into every bucket; there are a thousand times fewer buckets than intents.
CREATE TABLE IF NOT EXISTS submission_gateway_messages (
    -- intent_seq / 1024
    bucket     INTEGER NOT NULL,
    -- The first four bytes of the SHA-256 of the id; the id itself is stored with the attempt.
    hash       INTEGER NOT NULL,
    intent_seq INTEGER NOT NULL REFERENCES submission_intents,
    PRIMARY KEY (bucket, hash, intent_seq)
) STRICT, WITHOUT ROWID;
