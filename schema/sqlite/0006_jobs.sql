-- Jobs of tenants, the traces of intents, and management nodes that do not answer.
-- Run inside one transaction; safe to run again.

-- What a job has besides its intent. Inserted by the transaction of its intent, never changed.
CREATE TABLE IF NOT EXISTS submission_jobs (
    intent_seq         INTEGER PRIMARY KEY REFERENCES submission_intents,
    -- The SHA-256 of tenant, workspace and idempotency key: what makes a submission unique.
    key_sha256         BLOB    NOT NULL UNIQUE,
    submission_id      TEXT    NOT NULL,
    tenant_id          TEXT    NOT NULL,
    workspace_id       TEXT    NOT NULL,
    job_id             TEXT    NOT NULL,
    idempotency_key    TEXT    NOT NULL,
    management_node_id TEXT    NOT NULL,
    accepted_at        INTEGER NOT NULL
) STRICT;
-- Lists are ordered by time and id, not by number: a number would tell one tenant how much others submit.
CREATE INDEX IF NOT EXISTS submission_jobs_of_tenant ON submission_jobs (tenant_id, accepted_at, submission_id);
-- A tenant's own id need not be unique, but few jobs share one.
CREATE INDEX IF NOT EXISTS submission_jobs_by_job ON submission_jobs (tenant_id, job_id);
CREATE INDEX IF NOT EXISTS submission_jobs_by_time ON submission_jobs (accepted_at, submission_id);

-- The traceparent of intents that had one.
CREATE TABLE IF NOT EXISTS submission_traces (
    intent_seq  INTEGER PRIMARY KEY REFERENCES submission_intents,
    traceparent TEXT NOT NULL
) STRICT;

-- Management nodes that did not answer: how often in a row, and when the last attempt or probe was.
-- A node that answers has no row.
CREATE TABLE IF NOT EXISTS submission_gateway_reach (
    gateway_id  INTEGER PRIMARY KEY REFERENCES submission_gateways,
    unreachable INTEGER NOT NULL,
    tried_at    INTEGER NOT NULL
) STRICT;
