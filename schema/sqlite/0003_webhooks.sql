-- Webhook events of ended intents, and every try to deliver them.
-- It runs within one transaction and can be repeated.

-- Receivers and their numbers. A receiver is the scheme, host and port of a webhook URL.
CREATE TABLE IF NOT EXISTS submission_webhook_receivers (
    receiver_id INTEGER PRIMARY KEY,
    origin      TEXT NOT NULL UNIQUE
) STRICT;

-- The receiver of each contract that has a webhook. Rows are never changed.
CREATE TABLE IF NOT EXISTS submission_contract_receivers (
    contract_id INTEGER PRIMARY KEY REFERENCES submission_contracts,
    receiver_id INTEGER NOT NULL REFERENCES submission_webhook_receivers
) STRICT;

-- At most one event for each intent, inserted in the transaction that ends the intent.
CREATE TABLE IF NOT EXISTS submission_webhook_events (
    intent_seq       INTEGER PRIMARY KEY REFERENCES submission_intents,
    receiver_id      INTEGER NOT NULL REFERENCES submission_webhook_receivers,
    status           TEXT    NOT NULL CHECK (status IN ('pending', 'delivered', 'failed')),
    -- When the event became pending or redelivery was requested, and how many tries had been made before.
    owed_since       INTEGER NOT NULL,
    tries_before     INTEGER NOT NULL DEFAULT 0,
    tries            INTEGER NOT NULL DEFAULT 0,
    -- Set only while the event waits for a try.
    next_try_at      INTEGER,
    -- Set only while a try is under way: the epoch of the term that started it, and when.
    open_lease_epoch INTEGER,
    open_started_at  INTEGER,
    CHECK ((status = 'pending') = ((next_try_at IS NULL) <> (open_lease_epoch IS NULL)))
) STRICT;
CREATE INDEX IF NOT EXISTS submission_webhook_events_due
    ON submission_webhook_events (receiver_id, next_try_at) WHERE next_try_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS submission_webhook_events_owed
    ON submission_webhook_events (owed_since) WHERE status = 'pending';
CREATE INDEX IF NOT EXISTS submission_webhook_events_open
    ON submission_webhook_events (open_lease_epoch) WHERE open_lease_epoch IS NOT NULL;

-- A row is inserted when a try is finished, and never changed.
CREATE TABLE IF NOT EXISTS submission_webhook_tries (
    intent_seq  INTEGER NOT NULL REFERENCES submission_webhook_events,
    try_number  INTEGER NOT NULL,
    lease_epoch INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    http_status INTEGER,
    error       TEXT,
    PRIMARY KEY (intent_seq, try_number),
    CHECK (http_status IS NOT NULL OR error IS NOT NULL)
) STRICT, WITHOUT ROWID;
