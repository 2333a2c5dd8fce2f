//! The SQL of this store. Every text is a constant or is put together from constants here, so that
//! a test can parse them all; values are parameters.
//!
//! Runs on SQL Server 2016 and later and on Azure SQL, with READ_COMMITTED_SNAPSHOT on or off, and
//! needs no lock hints. One order of locks: lease, clock, intents, inbox, attempts, webhooks. Result sets come
//! after the commit, so that a client that stops reading holds no locks.

use super::rows::INTENT_COLUMNS;
use super::targets::PAUSED;
use super::{inbox, jobs, webhooks};
use crate::domain::intent::IntentId;
use crate::store::KEPT_MINUTES;

/// Parameters that a batch of writes always has: the term, or blanks.
pub const TERM_VALUES: usize = 3;

/// Looks up the term and keeps the lease row until commit: nobody can begin another term before.
pub const FENCE: &str = "
UPDATE submission_manager_leases SET renewed_at = renewed_at
WHERE lease_name = @P1 AND holder_id = @P2 AND lease_epoch = @P3 AND expires_at > SYSUTCDATETIME();
SET @held = @@ROWCOUNT;";

/// Moves the store's clock on; the row stays locked until commit, so clock and commits agree.
pub const TICK: &str = "
UPDATE submission_clock SET last_at = CASE
    WHEN SYSUTCDATETIME() > DATEADD(MICROSECOND, 1, last_at) THEN SYSUTCDATETIME()
    ELSE DATEADD(MICROSECOND, 1, last_at) END;
SELECT @now = last_at FROM submission_clock;";

/// Which parts a batch of writes has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts {
    pub fenced: bool,
    pub submits: bool,
    pub starts: bool,
    pub finishes: bool,
    pub postpones: bool,
    pub expire: bool,
    pub exhaust: bool,
    /// Something came in for the inbox.
    pub received: bool,
    /// Some of the submits are jobs.
    pub jobs: bool,
    /// Some of the submits have a trace.
    pub traces: bool,
    /// Some of the finishes are of nodes.
    pub nodes: bool,
}

/// A batch of writes: one transaction, then what became of each part. The values of the parts
/// follow those of the term, in the order of the fields of [`Parts`].
pub fn writes(parts: Parts) -> String {
    let mut sql = String::from("DECLARE @now DATETIME2(6), @held BIGINT = 0;\nBEGIN TRANSACTION;");
    let mut answers = String::from("\nSELECT @now AS now_at, @held AS held;");
    let mut number = TERM_VALUES;
    let mut part = |wanted: bool, values: usize, change: &str, answer: &str| {
        if wanted {
            let named = |text: &str| {
                (0..values).fold(text.to_owned(), |text, value| {
                    text.replace(&format!("@value{value}"), &format!("@P{}", number + value + 1))
                })
            };
            sql.push_str(&named(change));
            answers.push_str(&named(answer));
            number += values;
        }
    };
    part(parts.fenced, 0, FENCE, "");
    part(true, 0, TICK, "");
    part(parts.submits, if parts.jobs { 4 } else { 3 }, &insert_intents(parts), &submitted(parts));
    part(parts.received, 3, inbox::RECEIVE, inbox::RECEIVED);
    part(parts.starts, 1, BEGIN_ATTEMPTS, BEGUN);
    let reach = if parts.nodes { jobs::count_reach() } else { String::new() };
    part(parts.finishes, 1, &format!("{FINISH_ATTEMPTS}{}{}{reach}", owe(OF_THE_LIST), count(ATTEMPT_KINDS)), FINISHED);
    part(parts.postpones, 1, POSTPONE_ATTEMPTS, FINISHED);
    part(parts.expire, 1, &format!("{EXPIRE_OVERDUE}{}{}", owe(ENDED_NOW), count(&end_kinds(ENDED_NOW))), &expired());
    part(parts.exhaust, 1, &format!("{EXHAUST}{}{}", owe(OF_THE_LIST), count(&end_kinds(OF_THE_LIST))), &exhausted());
    sql.push_str("\nCOMMIT TRANSACTION;");
    sql + &answers
}

/// A text out of JSON. Not every server undoes the escapes of JSON, so texts are written without
/// any: see [`json_text`].
macro_rules! text {
    ($column:literal) => {
        concat!(
            "REPLACE(REPLACE(REPLACE(",
            $column,
            " COLLATE Latin1_General_100_BIN2, N'~1', N'\"'), N'~2', N'\\'), N'~0', N'~')"
        )
    };
}
pub(super) use text;

/// A text as it goes into JSON: nothing in it needs an escape there. The statements undo it.
pub fn json_text(text: &str) -> String {
    text.replace('~', "~0").replace('"', "~1").replace('\\', "~2").replace(char::is_control, " ")
}

/// Values: the intents as JSON, all payloads one after the other, all hashes likewise, and so the keys of
/// jobs if there are any.
fn insert_intents(parts: Parts) -> String {
    let unless_job_exists = if parts.jobs { jobs::UNLESS_KEY_EXISTS } else { "" };
    let jobs = if parts.jobs { jobs::INSERT_JOBS } else { "" };
    let traces = if parts.traces { jobs::INSERT_TRACES } else { "" };
    format!("{INSERT_INTENTS}{unless_job_exists}\nORDER BY j.hash_from;{jobs}{traces}")
}

const INSERT_INTENTS: &str = concat!(
    "
INSERT INTO submission_intents (intent_id, contract_id, gateway_id, payload, payload_sha256, status, attempt_count,
    next_attempt_at, deadline_at, created_at, last_modified_at)
SELECT ",
    text!("j.id"),
    ", j.contract, j.gateway, SUBSTRING(@value1, j.payload_from, j.payload_length),
    SUBSTRING(@value2, j.hash_from, 32), 'pending', 0, @now, DATEADD(SECOND, j.seconds, @now), @now, @now
FROM OPENJSON(@value0) WITH (id NVARCHAR(400), contract BIGINT, gateway BIGINT, payload_from BIGINT,
    payload_length BIGINT, hash_from BIGINT, seconds INT, key_from BIGINT) AS j
WHERE NOT EXISTS (SELECT 1 FROM submission_intents AS i WHERE i.intent_id = ",
    text!("j.id"),
    ")"
);

fn submitted(parts: Parts) -> String {
    let jobs = if parts.jobs { jobs::submitted() } else { String::new() };
    format!(
        "
SELECT {INTENT_COLUMNS}, i.payload_sha256
FROM OPENJSON(@value0) WITH (id NVARCHAR(400)) AS j
JOIN submission_intents AS i ON i.intent_id = {}
JOIN submission_contracts AS c ON c.contract_id = i.contract_id;{jobs}",
        text!("j.id")
    )
}

const BEGIN_ATTEMPTS: &str = "
UPDATE i SET attempt_count = i.attempt_count + 1, next_attempt_at = NULL, open_lease_epoch = @P3,
    open_started_at = @now, last_modified_at = @now
FROM submission_intents AS i
JOIN OPENJSON(@value0) WITH (seq BIGINT, attempts BIGINT) AS j ON i.intent_seq = j.seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE @held = 1 AND i.attempt_count = j.attempts AND i.next_attempt_at <= @now
    AND (i.deadline_at IS NULL OR i.deadline_at > @now)
    AND (c.attempt_limit IS NULL OR i.attempt_count < c.attempt_limit)
    AND NOT EXISTS (SELECT 1 FROM submission_target_pauses AS p WHERE p.submission_target = c.submission_target);";

const BEGUN: &str = "
SELECT i.intent_seq, i.intent_id, i.contract_id, i.created_at, i.attempt_count, i.next_attempt_at,
    i.open_lease_epoch, i.open_started_at, CASE WHEN i.open_started_at = @now THEN i.payload END AS payload,
    t.traceparent
FROM OPENJSON(@value0) WITH (seq BIGINT) AS j JOIN submission_intents AS i ON i.intent_seq = j.seq
LEFT JOIN submission_traces AS t ON t.intent_seq = i.intent_seq;";

const FINISH_ATTEMPTS: &str = concat!(
    "
INSERT INTO submission_attempts (intent_seq, attempt_number, lease_epoch, started_at, finished_at, outcome_status,
    outcome_reason, error, gateway_message_id)
SELECT j.seq, j.number, j.epoch, j.started, j.finished, j.outcome, ",
    text!("j.reason"),
    ", ",
    text!("j.error"),
    ", ",
    text!("j.message_id"),
    "
FROM OPENJSON(@value0) WITH (seq BIGINT, number BIGINT, epoch BIGINT, started DATETIME2(6), finished DATETIME2(6),
    outcome VARCHAR(10), reason NVARCHAR(MAX), error NVARCHAR(MAX), message_id NVARCHAR(MAX)) AS j
JOIN submission_intents AS i ON i.intent_seq = j.seq
WHERE @held = 1 AND i.attempt_count = j.number AND i.open_lease_epoch IS NOT NULL;
INSERT INTO submission_gateway_messages (gateway_message_id, intent_seq)
SELECT ",
    text!("j.found_by"),
    ", j.seq FROM OPENJSON(@value0) WITH (seq BIGINT, number BIGINT, found_by NVARCHAR(800)) AS j
JOIN submission_intents AS i ON i.intent_seq = j.seq
WHERE @held = 1 AND i.attempt_count = j.number AND i.open_lease_epoch IS NOT NULL AND j.found_by IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM submission_gateway_messages AS m WHERE m.intent_seq = j.seq AND m.gateway_message_id = ",
    text!("j.found_by"),
    ");
UPDATE i SET status = j.status, next_attempt_at = j.due, completed_at = j.completed, rejected_reason = j.rejected,
    exhausted_reason = j.exhausted, open_lease_epoch = NULL, open_started_at = NULL, last_modified_at = @now
FROM submission_intents AS i
JOIN OPENJSON(@value0) WITH (seq BIGINT, number BIGINT, status VARCHAR(10), due DATETIME2(6), completed DATETIME2(6),
    rejected NVARCHAR(400), exhausted VARCHAR(20)) AS j ON i.intent_seq = j.seq
WHERE @held = 1 AND i.attempt_count = j.number AND i.open_lease_epoch IS NOT NULL;"
);

const POSTPONE_ATTEMPTS: &str = "
UPDATE i SET attempt_count = i.attempt_count - 1, next_attempt_at = j.due, open_lease_epoch = NULL,
    open_started_at = NULL, last_modified_at = @now
FROM submission_intents AS i
JOIN OPENJSON(@value0) WITH (seq BIGINT, number BIGINT, due DATETIME2(6)) AS j ON i.intent_seq = j.seq
WHERE @held = 1 AND i.attempt_count = j.number AND i.open_lease_epoch IS NOT NULL;";

/// Writes down the events of intents that were just ended, if their contracts have webhooks.
fn owe(ended: &str) -> String {
    format!(
        "
INSERT INTO submission_webhook_events (intent_seq, receiver_id, status, owed_since, tries_before, tries, next_try_at)
SELECT i.intent_seq, r.receiver_id, 'pending', @now, 0, 0, @now
FROM {ended}
JOIN submission_contract_receivers AS r ON r.contract_id = i.contract_id
WHERE @held = 1 AND i.last_modified_at = @now AND i.completed_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM submission_webhook_events AS w WHERE w.intent_seq = i.intent_seq);"
    )
}

const OF_THE_LIST: &str =
    "OPENJSON(@value0) WITH (seq BIGINT) AS j JOIN submission_intents AS i ON i.intent_seq = j.seq";
/// What expires is completed at the time of its transaction, which no other shares.
const ENDED_NOW: &str = "(SELECT intent_seq, contract_id, last_modified_at, completed_at FROM submission_intents
    WHERE completed_at = @now) AS i";

/// Adds up what became of attempts, minute by minute; what is older than a day goes with the first of
/// a kind.
fn count(kinds: &str) -> String {
    const SAME: &str = "m.minute = g.minute AND m.contract_id = g.contract_id AND m.outcome = g.outcome
    AND m.cause = g.cause AND m.status = g.status";
    format!(
        "
UPDATE m SET attempts = m.attempts + g.attempts, micros = m.micros + g.micros
FROM submission_minutes AS m JOIN ({kinds}) AS g ON {SAME};
INSERT INTO submission_minutes (minute, contract_id, outcome, cause, status, attempts, micros)
SELECT g.minute, g.contract_id, g.outcome, g.cause, g.status, g.attempts, g.micros FROM ({kinds}) AS g
WHERE NOT EXISTS (SELECT 1 FROM submission_minutes AS m WHERE {SAME});
IF @@ROWCOUNT > 0 DELETE FROM submission_minutes WHERE minute < {THIS_MINUTE} - {KEPT_MINUTES};"
    )
}

/// Minutes since 1970, as the other store counts them.
pub const THIS_MINUTE: &str = "DATEDIFF(MINUTE, '1970-01-01T00:00:00', SYSUTCDATETIME())";

const ATTEMPT_KINDS: &str = concat!(
    "SELECT k.minute, k.contract_id, k.outcome, k.cause, k.status, COUNT_BIG(*) AS attempts, CAST(SUM(k.took) AS BIGINT) AS micros
    FROM (SELECT j.minute, i.contract_id, j.kind AS outcome, ",
    text!("j.cause"),
    " AS cause, i.status, j.took
        FROM OPENJSON(@value0) WITH (seq BIGINT, minute BIGINT, kind VARCHAR(10), cause NVARCHAR(240), took BIGINT) AS j
        JOIN submission_intents AS i ON i.intent_seq = j.seq
        WHERE @held = 1 AND i.last_modified_at = @now) AS k
    GROUP BY k.minute, k.contract_id, k.outcome, k.cause, k.status"
);

fn end_kinds(ended: &str) -> String {
    format!(
        "SELECT CAST({THIS_MINUTE} AS BIGINT) AS minute, i.contract_id, 'none' AS outcome, N'' AS cause,
        'exhausted' AS status, COUNT_BIG(*) AS attempts, CAST(0 AS BIGINT) AS micros FROM {ended}
    WHERE @held = 1 AND i.last_modified_at = @now AND i.completed_at IS NOT NULL GROUP BY i.contract_id"
    )
}

/// No two transactions share a timestamp, so it tells what this one wrote.
const FINISHED: &str = "
SELECT i.intent_seq FROM OPENJSON(@value0) WITH (seq BIGINT) AS j
JOIN submission_intents AS i ON i.intent_seq = j.seq WHERE i.last_modified_at = @now;";

const EXPIRE_OVERDUE: &str = "
UPDATE submission_intents SET status = 'exhausted', exhausted_reason = 'deadline_exceeded', completed_at = @now,
    next_attempt_at = NULL, last_modified_at = @now
WHERE @held = 1 AND intent_seq IN (
    SELECT TOP (@value0) intent_seq FROM submission_intents
    WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL AND deadline_at <= @now ORDER BY deadline_at);";

fn expired() -> String {
    format!(
        "
SELECT TOP (@value0) {INTENT_COLUMNS} FROM submission_intents AS i
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE i.completed_at = @now AND i.exhausted_reason = 'deadline_exceeded';"
    )
}

/// Ends waiting intents that policy allows no attempt any more.
const EXHAUST: &str = "
UPDATE i SET status = 'exhausted', exhausted_reason = j.reason, completed_at = @now, next_attempt_at = NULL,
    last_modified_at = @now
FROM submission_intents AS i
JOIN OPENJSON(@value0) WITH (seq BIGINT, attempts BIGINT, reason VARCHAR(20)) AS j ON i.intent_seq = j.seq
WHERE @held = 1 AND i.attempt_count = j.attempts AND i.next_attempt_at IS NOT NULL;";

fn exhausted() -> String {
    format!(
        "
SELECT {INTENT_COLUMNS} FROM OPENJSON(@value0) WITH (seq BIGINT) AS j
JOIN submission_intents AS i ON i.intent_seq = j.seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE i.last_modified_at = @now;"
    )
}

/// A contract by its hash, made if it is not there. Harmless outside the transaction that needs it.
pub const ENSURE_CONTRACT: &str = "
INSERT INTO submission_gateways (url_sha256, gateway_url)
SELECT @P1, @P2 WHERE NOT EXISTS (SELECT 1 FROM submission_gateways WHERE url_sha256 = @P1);
INSERT INTO submission_contracts (snapshot_sha256, gateway_id, submission_target, attempt_limit, snapshot)
SELECT @P3, g.gateway_id, @P4, NULLIF(@P5, 0), @P6 FROM submission_gateways AS g
WHERE g.url_sha256 = @P1 AND NOT EXISTS (SELECT 1 FROM submission_contracts WHERE snapshot_sha256 = @P3);
SELECT contract_id, gateway_id FROM submission_contracts WHERE snapshot_sha256 = @P3;";

/// The receiver of a contract, made if it is not there.
pub const ENSURE_RECEIVER: &str = "
INSERT INTO submission_webhook_receivers (origin_sha256, origin)
SELECT @P1, @P2 WHERE NOT EXISTS (SELECT 1 FROM submission_webhook_receivers WHERE origin_sha256 = @P1);
INSERT INTO submission_contract_receivers (contract_id, receiver_id)
SELECT @P3, r.receiver_id FROM submission_webhook_receivers AS r
WHERE r.origin_sha256 = @P1 AND NOT EXISTS (SELECT 1 FROM submission_contract_receivers WHERE contract_id = @P3);";

pub const CONTRACTS: &str = "
SELECT c.contract_id, c.snapshot FROM OPENJSON(@P1) WITH (id BIGINT) AS j
JOIN submission_contracts AS c ON c.contract_id = j.id;";

/// One store has one executor, also when instances do not agree on the name of its lease: the
/// lease rows, or where there are none the clock, are kept until commit, the epoch is one more than
/// any before, and other names are gone. Time is taken when nobody else can write any more.
pub const ACQUIRE_LEASE: &str = "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME(), @taken BIGINT = 0, @epoch BIGINT;
IF NOT EXISTS (SELECT 1 FROM submission_manager_leases WHERE expires_at > @now)
BEGIN
    BEGIN TRANSACTION;
    UPDATE submission_manager_leases SET renewed_at = renewed_at;
    UPDATE submission_clock SET last_at = last_at;
    SET @now = SYSUTCDATETIME();
    IF NOT EXISTS (SELECT 1 FROM submission_manager_leases WHERE expires_at > @now)
    BEGIN
        SET @epoch = (SELECT COALESCE(MAX(lease_epoch), 0) + 1 FROM submission_manager_leases);
        UPDATE submission_manager_leases SET holder_id = @P2, lease_epoch = @epoch, acquired_at = @now,
            renewed_at = @now, expires_at = DATEADD(MILLISECOND, @P3, @now)
        WHERE lease_name = @P1;
        SET @taken = @@ROWCOUNT;
        IF @taken = 0
        BEGIN
            INSERT INTO submission_manager_leases
                (lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at)
            SELECT @P1, @P2, @epoch, @now, @now, DATEADD(MILLISECOND, @P3, @now)
            WHERE NOT EXISTS (SELECT 1 FROM submission_manager_leases WHERE lease_name = @P1);
            SET @taken = @@ROWCOUNT;
        END;
        DELETE FROM submission_manager_leases WHERE lease_name <> @P1;
    END;
    COMMIT TRANSACTION;
END;
SELECT lease_epoch, expires_at, @now AS now_at FROM submission_manager_leases
WHERE @taken = 1 AND lease_name = @P1 AND holder_id = @P2 AND lease_epoch = @epoch;";

pub const RENEW_LEASE: &str = "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME(), @held BIGINT;
UPDATE submission_manager_leases SET renewed_at = @now, expires_at = DATEADD(MILLISECOND, @P4, @now)
WHERE lease_name = @P1 AND holder_id = @P2 AND lease_epoch = @P3 AND expires_at > @now;
SET @held = @@ROWCOUNT;
SELECT @held AS held, DATEADD(MILLISECOND, @P4, @now) AS expires_at, @now AS now_at;";

pub const RELEASE_LEASE: &str = "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME();
UPDATE submission_manager_leases SET expires_at = @now
WHERE lease_name = @P1 AND holder_id = @P2 AND lease_epoch = @P3 AND expires_at > @now;";

pub const LEASE_STATE: &str = "
SELECT last_at, SYSUTCDATETIME() AS now_at FROM submission_clock;
SELECT TOP (1) holder_id, lease_epoch, renewed_at, expires_at FROM submission_manager_leases ORDER BY lease_epoch DESC;";

pub const RESET_LEASE: &str = "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME(), @count BIGINT;
UPDATE submission_manager_leases SET expires_at = @now
WHERE lease_epoch = @P1 AND renewed_at = @P2 AND expires_at > @now;
SET @count = @@ROWCOUNT;
SELECT @count AS reset;";

pub const OPEN_ATTEMPTS: &str = "
SELECT TOP (@P2) i.intent_seq, i.intent_id, i.created_at, i.attempt_count, i.open_lease_epoch, i.open_started_at,
    c.snapshot
FROM submission_intents AS i JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE i.open_lease_epoch < @P1 ORDER BY i.open_lease_epoch, i.intent_seq;";

/// The clock as a reader has to take it: never behind a transaction that it can see.
const READ_CLOCK: &str = "
SELECT last_at, CASE WHEN SYSUTCDATETIME() > last_at THEN SYSUTCDATETIME() ELSE last_at END AS now_at
FROM submission_clock;";

pub fn schedule_snapshot() -> String {
    format!(
        "{READ_CLOCK}{PAUSED}
SELECT p.intent_seq, {LANE_COLUMNS}, p.next_attempt_at, p.attempt_count FROM submission_contracts AS c
CROSS APPLY (SELECT TOP (@P1) i.intent_seq, i.next_attempt_at, i.attempt_count
    FROM submission_intents AS i WHERE i.contract_id = c.contract_id AND i.next_attempt_at IS NOT NULL
    ORDER BY i.next_attempt_at, i.intent_seq) AS p;"
    )
}

/// Changes first, pages after them: a page may show more than the changes did, never less.
pub fn refresh_schedule(with_pages: bool) -> String {
    let pages = if with_pages { lane_pages() } else { String::new() };
    format!("{READ_CLOCK}{PAUSED}{}{OVERDUE}{pages}", changes())
}

/// What the lane of an intent is, out of its contract.
const LANE_COLUMNS: &str = "c.contract_id, c.gateway_id, c.submission_target";

fn changes() -> String {
    format!(
        "
SELECT TOP (@P3) i.intent_seq, {LANE_COLUMNS}, i.next_attempt_at, i.attempt_count, i.last_modified_at, i.intent_id
FROM submission_intents AS i JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE i.next_attempt_at IS NOT NULL AND i.last_modified_at >= @P1
    AND (i.last_modified_at > @P1 OR i.intent_id > @P2 COLLATE Latin1_General_100_BIN2)
ORDER BY i.last_modified_at, i.intent_id;"
    )
}

const OVERDUE: &str = "
SELECT TOP (1) intent_seq FROM submission_intents
WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL AND deadline_at <= SYSUTCDATETIME();";

fn lane_pages() -> String {
    format!(
        "
SELECT p.intent_seq, {LANE_COLUMNS}, p.next_attempt_at, p.attempt_count
FROM OPENJSON(@P4) WITH (lane BIGINT, due DATETIME2(6), seq BIGINT) AS j
JOIN submission_contracts AS c ON c.contract_id = j.lane
CROSS APPLY (SELECT TOP (@P5) i.intent_seq, i.next_attempt_at, i.attempt_count
    FROM submission_intents AS i
    WHERE i.contract_id = j.lane AND i.next_attempt_at IS NOT NULL AND i.next_attempt_at >= j.due
        AND (i.next_attempt_at > j.due OR i.intent_seq >= j.seq)
    ORDER BY i.next_attempt_at, i.intent_seq) AS p;"
    )
}

pub const BACKLOG: &str = "
SELECT COUNT_BIG(*) AS waiting FROM submission_intents WHERE next_attempt_at IS NOT NULL;
SELECT COUNT_BIG(*) AS webhooks, MIN(owed_since) AS oldest, SYSUTCDATETIME() AS now_at
FROM submission_webhook_events WHERE status = 'pending';";

pub fn find() -> String {
    format!(
        "SELECT {INTENT_COLUMNS}, i.payload_sha256 FROM submission_intents AS i
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE i.intent_id = @P1;"
    )
}

pub fn history() -> String {
    format!(
        "{}
SELECT a.attempt_number, a.lease_epoch, a.started_at, a.finished_at, a.outcome_status, a.outcome_reason, a.error,
    a.gateway_message_id
FROM submission_attempts AS a JOIN submission_intents AS i ON i.intent_seq = a.intent_seq
WHERE i.intent_id = @P1 ORDER BY a.attempt_number;{}",
        find(),
        webhooks::HISTORY
    )
}

/// Which filters a list has.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListParts {
    pub status: bool,
    pub target: bool,
    pub created_after: bool,
    pub created_before: bool,
    /// Behind one in the order of arrival: its time, and its id.
    pub newer: bool,
    /// Those that a gateway gave an id.
    pub message: bool,
    /// Those in a range of ids that no gateway gave the id which is looked for.
    pub ids: Option<IdParts>,
}

/// Which bounds ids have.
#[derive(Clone, Copy, Debug)]
pub struct IdParts {
    /// The lower one was on a page before.
    pub behind: bool,
    pub before: bool,
}

/// Behind an intent; if it is gone, behind all of its time.
const NEWER: &str =
    "i.intent_seq < COALESCE((SELECT b.intent_seq FROM submission_intents AS b WHERE b.intent_id = @value1),
    (SELECT TOP (1) n.intent_seq FROM submission_intents AS n WHERE n.created_at > @value0
        ORDER BY n.created_at, n.intent_seq), 9223372036854775807)";

/// What a search by a gateway's id has shown already.
const NOT_BY_MESSAGE: &str = "NOT EXISTS (SELECT 1 FROM submission_gateway_messages AS m
    WHERE m.intent_seq = i.intent_seq AND m.gateway_message_id = @value0)";

/// A page of intents, newest first, or by id if those begin with something. The first value is the limit, then those of the filters.
pub fn list(parts: ListParts) -> String {
    let ids = |wanted: fn(IdParts) -> bool| parts.ids.is_some_and(wanted);
    let filters = [
        (parts.status, "i.status = @value0"),
        (parts.target, "c.submission_target = @value0"),
        (parts.created_after, "i.created_at > @value0"),
        (parts.created_before, "i.created_at < @value0"),
        (parts.newer, NEWER),
        (parts.message, "m.gateway_message_id = @value0"),
        (parts.ids.is_some(), NOT_BY_MESSAGE),
        (ids(|ids| ids.behind), "i.intent_id > @value0"),
        (ids(|ids| !ids.behind), "i.intent_id >= @value0"),
        (ids(|ids| ids.before), "i.intent_id < @value0"),
    ];
    let mut conditions = numbered(filters);
    conditions.push(format!("i.intent_id NOT LIKE '{}%'", IntentId::OF_JOBS));
    let conditions = conditions.join(" AND ");
    // In the order of the index that has the ids of gateways.
    let (from, order) = match (parts.message, parts.ids) {
        (true, _) => (
            "submission_gateway_messages AS m JOIN submission_intents AS i ON i.intent_seq = m.intent_seq",
            "m.intent_seq DESC",
        ),
        (false, Some(_)) => ("submission_intents AS i", "i.intent_id"),
        (false, None) => ("submission_intents AS i", "i.intent_seq DESC"),
    };
    format!(
        "SELECT TOP (@P1) {INTENT_COLUMNS} FROM {from}
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE {conditions} ORDER BY {order};"
    )
}

/// The conditions that are wanted, with their values numbered from the second parameter on.
pub fn numbered<const N: usize>(filters: [(bool, &str); N]) -> Vec<String> {
    let mut number = 2;
    let mut conditions = Vec::new();
    for (_, condition) in filters.into_iter().filter(|(wanted, _)| *wanted) {
        let (first, second) = (format!("@P{number}"), format!("@P{}", number + 1));
        conditions.push(condition.replace("@value0", &first).replace("@value1", &second));
        number += if condition.contains("@value1") { 2 } else { 1 };
    }
    conditions
}

pub fn probe() -> String {
    format!("DECLARE @now DATETIME2(6);\nBEGIN TRANSACTION;{TICK}\nCOMMIT TRANSACTION;\nSELECT @now AS now_at;")
}
