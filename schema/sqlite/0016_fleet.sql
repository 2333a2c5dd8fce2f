-- The instances of the fleet, what they took in by minute, gateways that asked for a pause, and since when contracts are
-- known: for the console.
-- Run inside one transaction; safe to run again. No row changes, so it takes no time on a large store.

-- Every instance writes its row every few seconds, and deletes it when it stops. Nothing depends on it.
CREATE TABLE IF NOT EXISTS submission_instances (
    -- Random, made when the process starts.
    instance_id TEXT    PRIMARY KEY,
    holder_id   TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    -- How many new intents the instance has stored since it started.
    submitted   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Kept for a day.
CREATE TABLE IF NOT EXISTS submission_fleet_minutes (
    -- Minutes since 1970.
    minute    INTEGER PRIMARY KEY,
    -- New intents of all instances.
    submitted INTEGER NOT NULL,
    -- How many intents waited at the end of the minute, as the leader counted them.
    waiting   INTEGER
) STRICT;

-- Gateways that the leader does not call until this time, because they asked for it with Retry-After.
CREATE TABLE IF NOT EXISTS submission_gateway_holds (
    gateway_id INTEGER PRIMARY KEY,
    held_until INTEGER NOT NULL
) STRICT;

-- When a contract was first used. Contracts that an older version stored have no row.
CREATE TABLE IF NOT EXISTS submission_contract_uses (
    contract_id   INTEGER PRIMARY KEY,
    first_used_at INTEGER NOT NULL
) STRICT;
