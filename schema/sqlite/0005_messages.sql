-- Which intent a gateway's message id belongs to, for whoever has only that.
-- Run inside one transaction; safe to run again.

-- In buckets of intents that came together: what is written now stands on a few pages, though ids come
-- in no order. Whoever looks for one looks into every bucket, which are a thousand times fewer.
CREATE TABLE IF NOT EXISTS submission_gateway_messages (
    -- intent_seq / 1024
    bucket     INTEGER NOT NULL,
    -- The first four bytes of the SHA-256 of the id; the id itself stands with the attempt.
    hash       INTEGER NOT NULL,
    intent_seq INTEGER NOT NULL REFERENCES submission_intents,
    PRIMARY KEY (bucket, hash, intent_seq)
) STRICT, WITHOUT ROWID;
