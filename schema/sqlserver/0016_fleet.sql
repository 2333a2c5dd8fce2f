-- The instances of the fleet, what they took in by minute, gateways that asked for a pause, and since when contracts are
-- known: for the console.
-- One batch; safe to run again. No row changes, so it takes no time on a large store.

-- Every instance writes its row every few seconds, and deletes it when it stops. Nothing depends on it.
IF OBJECT_ID('submission_instances') IS NULL
BEGIN
    CREATE TABLE submission_instances (
        -- Random, made when the process starts.
        instance_id VARCHAR(36)   COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT submission_instances_pk PRIMARY KEY,
        holder_id   NVARCHAR(400) COLLATE Latin1_General_100_BIN2 NOT NULL,
        version     NVARCHAR(100) NOT NULL,
        started_at  DATETIME2(6)  NOT NULL,
        seen_at     DATETIME2(6)  NOT NULL,
        -- How many new intents the instance has stored since it started.
        submitted   BIGINT        NOT NULL
    );
END;

-- Kept for a day.
IF OBJECT_ID('submission_fleet_minutes') IS NULL
BEGIN
    CREATE TABLE submission_fleet_minutes (
        -- Minutes since 1970.
        minute    BIGINT NOT NULL CONSTRAINT submission_fleet_minutes_pk PRIMARY KEY,
        -- New intents of all instances.
        submitted BIGINT NOT NULL,
        -- How many intents waited at the end of the minute, as the leader counted them.
        waiting   BIGINT NULL
    );
END;

-- Gateways that the leader does not call until this time, because they asked for it with Retry-After.
IF OBJECT_ID('submission_gateway_holds') IS NULL
BEGIN
    CREATE TABLE submission_gateway_holds (
        gateway_id BIGINT       NOT NULL CONSTRAINT submission_gateway_holds_pk PRIMARY KEY,
        held_until DATETIME2(6) NOT NULL
    );
END;

-- When a contract was first used. Contracts that an older version stored have no row.
IF OBJECT_ID('submission_contract_uses') IS NULL
BEGIN
    CREATE TABLE submission_contract_uses (
        contract_id   BIGINT       NOT NULL CONSTRAINT submission_contract_uses_pk PRIMARY KEY,
        first_used_at DATETIME2(6) NOT NULL
    );
END;
