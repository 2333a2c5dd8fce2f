-- Jobs of tenants, trace contexts of submissions, and management nodes that do not answer.
-- It is one batch and can be repeated.

-- What is stored of a job besides its intent. A row is inserted together with its intent, and never changed.
IF OBJECT_ID('submission_jobs') IS NULL
BEGIN
    CREATE TABLE submission_jobs (
        intent_seq         BIGINT       NOT NULL CONSTRAINT submission_jobs_pk PRIMARY KEY,
        -- The SHA-256 of tenant, workspace and idempotency key. It identifies a job.
        key_sha256         BINARY(32)   NOT NULL CONSTRAINT submission_jobs_key UNIQUE,
        submission_id      VARCHAR(36) COLLATE Latin1_General_100_BIN2 NOT NULL,
        tenant_id          NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        workspace_id       NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        job_id             NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        idempotency_key    NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        management_node_id NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        accepted_at        DATETIME2(6) NOT NULL
    );
    -- Lists are ordered by time and id, not by number: a number would reveal how much other tenants submit.
    CREATE INDEX submission_jobs_of_tenant ON submission_jobs (tenant_id, accepted_at, submission_id);
    -- The job id of a tenant need not be unique, but few jobs share one.
    CREATE INDEX submission_jobs_by_job ON submission_jobs (tenant_id, job_id);
    CREATE INDEX submission_jobs_by_time ON submission_jobs (accepted_at, submission_id);
END;

-- The traceparent header of a submission, if it had one.
IF OBJECT_ID('submission_traces') IS NULL
BEGIN
    CREATE TABLE submission_traces (
        intent_seq  BIGINT      NOT NULL CONSTRAINT submission_traces_pk PRIMARY KEY,
        traceparent VARCHAR(60) NOT NULL
    );
END;

-- Management nodes that did not answer: how often in a row, and when the node was last tried or a job was
-- last admitted to try it. A node that answers has no row.
IF OBJECT_ID('submission_gateway_reach') IS NULL
BEGIN
    CREATE TABLE submission_gateway_reach (
        gateway_id  BIGINT       NOT NULL CONSTRAINT submission_gateway_reach_pk PRIMARY KEY,
        unreachable BIGINT       NOT NULL,
        tried_at    DATETIME2(6) NOT NULL
    );
END;
