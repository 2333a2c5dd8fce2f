-- Index of gateway message ids, for searches.
-- It runs within one transaction and can be repeated.

-- Rows are grouped into buckets of intents that were submitted together. So new rows are on a few pages,
-- although message ids come in no order. A search looks into every bucket; there are a thousand times
-- fewer buckets than intents.
CREATE TABLE IF NOT EXISTS submission_gateway_messages (
    -- intent_seq / 1024
    bucket     INTEGER NOT NULL,
    -- The first four bytes of the SHA-256 of the message id. The attempt has the message id itself.
    hash       INTEGER NOT NULL,
    intent_seq INTEGER NOT NULL REFERENCES submission_intents,
    PRIMARY KEY (bucket, hash, intent_seq)
) STRICT, WITHOUT ROWID;
