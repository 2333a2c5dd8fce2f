-- Jobs of tenants, trace contexts of submissions, and management nodes that do not answer.
-- It runs within one transaction and can be repeated.

-- What is stored of a job besides its intent. A row is inserted together with its intent, and never changed.
CREATE TABLE IF NOT EXISTS submission_jobs (
    intent_seq         INTEGER PRIMARY KEY REFERENCES submission_intents,
    -- The SHA-256 of tenant, workspace and idempotency key. It identifies a job.
    key_sha256         BLOB    NOT NULL UNIQUE,
    submission_id      TEXT    NOT NULL,
    tenant_id          TEXT    NOT NULL,
    workspace_id       TEXT    NOT NULL,
    job_id             TEXT    NOT NULL,
    idempotency_key    TEXT    NOT NULL,
    management_node_id TEXT    NOT NULL,
    accepted_at        INTEGER NOT NULL
) STRICT;
-- Lists are ordered by time and id, not by number: a number would reveal how much other tenants submit.
CREATE INDEX IF NOT EXISTS submission_jobs_of_tenant ON submission_jobs (tenant_id, accepted_at, submission_id);
-- The job id of a tenant need not be unique, but few jobs share one.
CREATE INDEX IF NOT EXISTS submission_jobs_by_job ON submission_jobs (tenant_id, job_id);
CREATE INDEX IF NOT EXISTS submission_jobs_by_time ON submission_jobs (accepted_at, submission_id);

-- The traceparent header of a submission, if it had one.
CREATE TABLE IF NOT EXISTS submission_traces (
    intent_seq  INTEGER PRIMARY KEY REFERENCES submission_intents,
    traceparent TEXT NOT NULL
) STRICT;

-- Management nodes that did not answer: how often in a row, and when the node was last tried or a job was
-- last admitted to try it. A node that answers has no row.
CREATE TABLE IF NOT EXISTS submission_gateway_reach (
    gateway_id  INTEGER PRIMARY KEY REFERENCES submission_gateways,
    unreachable INTEGER NOT NULL,
    tried_at    INTEGER NOT NULL
) STRICT;
