-- Intents, their attempts and the lease. Times are microseconds since 1970 UTC by the store's clock.
-- It runs within one transaction and can be repeated.

-- Gateways and their numbers.
CREATE TABLE IF NOT EXISTS submission_gateways (
    gateway_id  INTEGER PRIMARY KEY,
    gateway_url TEXT NOT NULL UNIQUE
) STRICT;

-- Contract snapshots. Each distinct contract has one row, and rows are never changed: an intent keeps
-- its contract when the registry changes.
CREATE TABLE IF NOT EXISTS submission_contracts (
    contract_id       INTEGER PRIMARY KEY,
    gateway_id        INTEGER NOT NULL REFERENCES submission_gateways,
    submission_target TEXT    NOT NULL,
    snapshot          TEXT    NOT NULL UNIQUE
) STRICT;
CREATE INDEX IF NOT EXISTS submission_contracts_by_target ON submission_contracts (submission_target);

CREATE TABLE IF NOT EXISTS submission_intents (
    intent_seq       INTEGER PRIMARY KEY,
    intent_id        TEXT    NOT NULL UNIQUE,
    contract_id      INTEGER NOT NULL REFERENCES submission_contracts,
    gateway_id       INTEGER NOT NULL,
    payload_sha256   BLOB    NOT NULL,
    status           TEXT    NOT NULL CHECK (status IN ('pending', 'accepted', 'rejected', 'exhausted')),
    attempt_count    INTEGER NOT NULL DEFAULT 0,
    -- Set only while the intent waits for an attempt.
    next_attempt_at  INTEGER,
    deadline_at      INTEGER,
    -- Set only while an attempt is under way: the epoch of the term that started it, and when.
    open_lease_epoch INTEGER,
    open_started_at  INTEGER,
    created_at       INTEGER NOT NULL,
    completed_at     INTEGER,
    rejected_reason  TEXT,
    exhausted_reason TEXT,
    last_modified_at INTEGER NOT NULL,
    CHECK ((status = 'pending') = (completed_at IS NULL)),
    CHECK ((status = 'pending') = ((next_attempt_at IS NULL) <> (open_lease_epoch IS NULL))),
    CHECK (status <> 'rejected' OR rejected_reason IS NOT NULL),
    CHECK (status <> 'exhausted' OR exhausted_reason IS NOT NULL)
) STRICT;
CREATE INDEX IF NOT EXISTS submission_intents_lane
    ON submission_intents (gateway_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS submission_intents_changed
    ON submission_intents (last_modified_at, intent_id) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS submission_intents_deadline
    ON submission_intents (deadline_at) WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS submission_intents_open
    ON submission_intents (open_lease_epoch) WHERE open_lease_epoch IS NOT NULL;
CREATE INDEX IF NOT EXISTS submission_intents_completed
    ON submission_intents (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS submission_intents_by_status ON submission_intents (status);
CREATE INDEX IF NOT EXISTS submission_intents_by_contract ON submission_intents (contract_id);

-- A table of its own, so that updating an intent does not write the payload again.
CREATE TABLE IF NOT EXISTS submission_payloads (
    intent_seq INTEGER PRIMARY KEY REFERENCES submission_intents,
    payload    BLOB NOT NULL
) STRICT;

-- The audit log. A row is inserted when an attempt is finished, in the same transaction, and never changed.
CREATE TABLE IF NOT EXISTS submission_attempts (
    intent_seq         INTEGER NOT NULL REFERENCES submission_intents,
    attempt_number     INTEGER NOT NULL,
    lease_epoch        INTEGER NOT NULL,
    started_at         INTEGER NOT NULL,
    finished_at        INTEGER NOT NULL,
    outcome_status     TEXT,
    outcome_reason     TEXT,
    error              TEXT,
    gateway_message_id TEXT,
    PRIMARY KEY (intent_seq, attempt_number),
    CHECK ((outcome_status IS NULL) <> (error IS NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS submission_manager_leases (
    lease_name  TEXT PRIMARY KEY,
    holder_id   TEXT    NOT NULL,
    lease_epoch INTEGER NOT NULL,
    acquired_at INTEGER NOT NULL,
    renewed_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The store's clock. Each transaction advances it, even if the host's clock does not move. So no two
-- transactions have the same timestamp, and a later transaction has a later timestamp.
CREATE TABLE IF NOT EXISTS submission_clock (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    last_at  INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO submission_clock (only_row, last_at) VALUES (1, 0);
