//! The queries of the schedule and of intents, each built together with the binding of its values.
//!
//! They run on SQL Server 2016 and later and on Azure SQL, with READ_COMMITTED_SNAPSHOT on or off, and need no lock
//! hints. All transactions take their locks in one order: lease, clock, intents, inbox, attempts, webhooks. The newest
//! entry of the audit log may come anywhere after the clock, because every transaction that locks it holds the clock. Result
//! sets come after the commit, so a client that stops reading holds no locks.

use serde_json::json;

use super::database::Batch;
use super::rows::{GATEWAY_KEY, INTENT_COLUMNS, NOT_BEFORE, json_moment};
use super::script::Values;
use super::targets::PAUSED;
use super::webhooks;
use crate::domain::intent::IntentId;
use crate::domain::redrive::RedriveId;
use crate::store::{IdRange, ListOrder, ListQuery, PageCursor, RefreshRequest};

/// Advances the store's clock. Its row stays locked until the commit, so timestamps are in the order of commits.
pub(super) const TICK: &str = "
UPDATE submission_clock SET last_at = CASE
    WHEN SYSUTCDATETIME() > DATEADD(MICROSECOND, 1, last_at) THEN SYSUTCDATETIME()
    ELSE DATEADD(MICROSECOND, 1, last_at) END;
SELECT @now = last_at FROM submission_clock;";

pub(super) fn open_attempts(before_epoch: i64, limit: usize) -> Batch {
    let mut values = Values::default();
    let (epoch, limit) = (values.number(before_epoch), values.count(limit));
    values.batch(format!(
        "
SELECT TOP ({limit}) i.intent_seq, i.intent_id, i.created_at, i.attempt_count, i.open_lease_epoch, i.open_started_at,
    c.snapshot, {NOT_BEFORE}, {GATEWAY_KEY}
FROM submission_intents AS i JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE i.open_lease_epoch < {epoch} ORDER BY i.open_lease_epoch, i.intent_seq;"
    ))
}

/// Reads the clock for a reader: `now_at` is never before a transaction that the reader can see. Everything written up
/// to `@last_at` is committed, and later writes have later times.
pub(super) const READ_CLOCK: &str = "
DECLARE @last_at DATETIME2(6) = (SELECT last_at FROM submission_clock);
SELECT @last_at AS last_at, CASE WHEN SYSUTCDATETIME() > @last_at THEN SYSUTCDATETIME() ELSE @last_at END AS now_at;";

/// The columns of a contract that determine the lane of an intent.
const LANE_COLUMNS: &str = "c.contract_id, c.gateway_id, c.submission_target";

pub(super) fn schedule_snapshot(page_limit: usize) -> Batch {
    let mut values = Values::default();
    let limit = values.count(page_limit);
    values.batch(format!(
        "{READ_CLOCK}{PAUSED}
SELECT p.intent_seq, {LANE_COLUMNS}, p.next_attempt_at, p.attempt_count FROM submission_contracts AS c
CROSS APPLY (SELECT TOP ({limit}) i.intent_seq, i.next_attempt_at, i.attempt_count
    FROM submission_intents AS i WHERE i.contract_id = c.contract_id AND i.next_attempt_at IS NOT NULL
    ORDER BY i.next_attempt_at, i.intent_seq) AS p;"
    ))
}

/// Builds the query for changes, and after them for pages of lanes. A page is read later than the changes, so it never
/// shows an older state.
///
/// Changes are read only up to the clock. A scan that waits for another transaction could return some rows of that
/// transaction and miss others, which it had passed before they were written. The cursor would then be past the missed
/// rows, and they would never be read.
pub(super) fn refresh_schedule(request: &RefreshRequest) -> Batch {
    let mut values = Values::default();
    let (at, id) = (values.moment(request.cursor.last_modified_at), values.text(&request.cursor.intent_id));
    let limit = values.count(request.limit);
    let pages = if request.pages.is_empty() { String::new() } else { lane_pages(&mut values, request) };
    values.batch(format!(
        "{READ_CLOCK}{PAUSED}
SELECT TOP ({limit}) i.intent_seq, {LANE_COLUMNS}, i.next_attempt_at, i.attempt_count, i.last_modified_at, i.intent_id
FROM submission_intents AS i JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE i.next_attempt_at IS NOT NULL AND i.last_modified_at >= {at} AND i.last_modified_at <= @last_at
    AND (i.last_modified_at > {at} OR i.intent_id > {id})
ORDER BY i.last_modified_at, i.intent_id;
SELECT TOP (1) intent_seq FROM submission_intents
WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL AND deadline_at <= SYSUTCDATETIME();{pages}"
    ))
}

fn lane_pages(values: &mut Values, request: &RefreshRequest) -> String {
    let pages = request
        .pages
        .iter()
        .map(|page| json!({ "lane": page.lane.id.0, "due": json_moment(page.from.due), "seq": page.from.seq.0 }));
    let pages = values.json(pages.collect());
    let limit = values.count(request.pages.iter().map(|page| page.limit).max().unwrap_or(0));
    format!(
        "
SELECT p.intent_seq, {LANE_COLUMNS}, p.next_attempt_at, p.attempt_count
FROM OPENJSON({pages}) WITH (lane BIGINT, due DATETIME2(6), seq BIGINT) AS j
JOIN submission_contracts AS c ON c.contract_id = j.lane
CROSS APPLY (SELECT TOP ({limit}) i.intent_seq, i.next_attempt_at, i.attempt_count
    FROM submission_intents AS i
    WHERE i.contract_id = j.lane AND i.next_attempt_at IS NOT NULL AND i.next_attempt_at >= j.due
        AND (i.next_attempt_at > j.due OR i.intent_seq >= j.seq)
    ORDER BY i.next_attempt_at, i.intent_seq) AS p;"
    )
}

/// Counts waiting intents in the index of lanes, which has them by contract.
pub(super) fn backlog() -> Batch {
    Batch::new(
        "
SELECT c.submission_target, w.waiting
FROM (SELECT contract_id, COUNT_BIG(*) AS waiting FROM submission_intents
    WHERE next_attempt_at IS NOT NULL GROUP BY contract_id) AS w
JOIN submission_contracts AS c ON c.contract_id = w.contract_id;
SELECT COUNT_BIG(*) AS webhooks, MIN(owed_since) AS oldest, SYSUTCDATETIME() AS now_at
FROM submission_webhook_events WHERE status = 'pending';",
        Vec::new(),
    )
}

fn find_sql(id: &str) -> String {
    format!(
        "SELECT {INTENT_COLUMNS}, i.payload_sha256 FROM submission_intents AS i
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE i.intent_id = {id};"
    )
}

pub(super) fn find(id: &IntentId) -> Batch {
    let mut values = Values::default();
    let id = values.text(id.as_str());
    values.batch(find_sql(&id))
}

/// Returns the queries for an intent, its attempts, its webhook event, the tries of that event, and the intent that repeats
/// it: five result sets.
pub(super) fn history_sql(id: &str) -> String {
    format!(
        "{}
SELECT a.attempt_number, a.lease_epoch, a.started_at, a.finished_at, a.outcome_status, a.outcome_reason, a.error,
    a.gateway_message_id
FROM submission_attempts AS a JOIN submission_intents AS i ON i.intent_seq = a.intent_seq
WHERE i.intent_id = {id} ORDER BY a.attempt_number;{}
SELECT i.intent_id FROM submission_intent_options AS o JOIN submission_intents AS i ON i.intent_seq = o.intent_seq
WHERE o.redrive_of = {id};",
        find_sql(id),
        webhooks::history_sql(id)
    )
}

pub(super) fn history(id: &IntentId) -> Batch {
    let mut values = Values::default();
    let id = values.text(id.as_str());
    values.batch(history_sql(&id))
}

/// Which intents a query reads, and in which order.
#[derive(Clone)]
pub(super) enum Part<'a> {
    /// All intents, in the order of the query.
    All,
    /// Intents to which a gateway gave this message id, newest first.
    ByMessage(&'a str),
    /// Intents with an id in this range, in the order of ids, without those to which a gateway gave this message id.
    ById(&'a str, IdRange),
}

/// Builds the query for intents of one part that pass the filters of `query`.
pub(super) fn list(query: &ListQuery, part: &Part<'_>, limit: usize) -> Batch {
    let mut values = Values::default();
    let limit = values.count(limit);
    let (from, conditions, order) = selection(&mut values, query, part);
    values.batch(format!(
        "SELECT TOP ({limit}) {INTENT_COLUMNS} FROM {from}
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE {conditions} ORDER BY {order};"
    ))
}

/// Returns the tables, the conditions and the order of the intents of one part that pass the filters of `query`.
pub(super) fn selection(
    values: &mut Values,
    query: &ListQuery,
    part: &Part<'_>,
) -> (&'static str, String, &'static str) {
    let mut conditions = Vec::new();
    if let Some(status) = query.status {
        conditions.push(format!("i.status = {}", values.code(status.as_str(), 10)));
    }
    if let Some(target) = &query.target {
        conditions.push(format!("c.submission_target = {}", values.text(target.as_str())));
    }
    if let Some(redrive) = query.redrive {
        conditions.push(of_redrive(values, redrive));
    }
    if let Some(after) = query.created_after {
        conditions.push(format!("i.created_at > {}", values.moment(after)));
    }
    if let Some(before) = query.created_before {
        conditions.push(format!("i.created_at < {}", values.moment(before)));
    }
    match (&query.after, part) {
        (Some(PageCursor::Newer { created_at, id }), Part::All) if query.order == ListOrder::OldestFirst => {
            let (at, id) = (values.moment(*created_at), values.text(id.as_str()));
            conditions.push(format!(
                "i.intent_seq > COALESCE((SELECT b.intent_seq FROM submission_intents AS b WHERE b.intent_id = {id}),
    (SELECT TOP (1) n.intent_seq FROM submission_intents AS n WHERE n.created_at < {at}
        ORDER BY n.created_at DESC, n.intent_seq DESC), CAST(0 AS BIGINT))"
            ));
        }
        (Some(PageCursor::Newer { created_at, id }), Part::All)
        | (Some(PageCursor::Message { created_at, id }), Part::ByMessage(_)) => {
            let (at, id) = (values.moment(*created_at), values.text(id.as_str()));
            // Continues after this intent. If it was deleted, all intents of its time are listed again.
            conditions.push(format!(
                "i.intent_seq < COALESCE((SELECT b.intent_seq FROM submission_intents AS b WHERE b.intent_id = {id}),
    (SELECT TOP (1) n.intent_seq FROM submission_intents AS n WHERE n.created_at > {at}
        ORDER BY n.created_at, n.intent_seq), CAST(9223372036854775807 AS BIGINT))"
            ));
        }
        _ => {}
    }
    // A search by message id uses the order of the index on message ids.
    let (from, order) = match part {
        Part::All => match query.order {
            ListOrder::NewestFirst => ("submission_intents AS i", "i.intent_seq DESC"),
            ListOrder::OldestFirst => ("submission_intents AS i", "i.intent_seq"),
        },
        Part::ByMessage(id) => {
            conditions.push(format!("m.gateway_message_id = {}", values.text(*id)));
            (
                "submission_gateway_messages AS m JOIN submission_intents AS i ON i.intent_seq = m.intent_seq",
                "m.intent_seq DESC",
            )
        }
        Part::ById(id, IdRange { from, excludes_from, before }) => {
            // The search by message id has shown these already.
            conditions.push(format!(
                "NOT EXISTS (SELECT 1 FROM submission_gateway_messages AS m
    WHERE m.intent_seq = i.intent_seq AND m.gateway_message_id = {})",
                values.text(*id)
            ));
            let compared = if *excludes_from { ">" } else { ">=" };
            conditions.push(format!("i.intent_id {compared} {}", values.text(from)));
            if let Some(before) = before {
                conditions.push(format!("i.intent_id < {}", values.text(before)));
            }
            ("submission_intents AS i", "i.intent_id")
        }
    };
    conditions.push(format!("i.intent_id NOT LIKE '{}%'", IntentId::OF_JOBS));
    (from, conditions.join(" AND "), order)
}

/// The condition that a redrive created the intent. Its second part lets the filtered index be used.
pub(super) fn of_redrive(values: &mut Values, redrive: RedriveId) -> String {
    format!(
        "i.intent_seq IN (SELECT o.intent_seq FROM submission_intent_options AS o
    WHERE o.redrive_id = {} AND o.redrive_id IS NOT NULL)",
        values.code(redrive.to_string(), 36)
    )
}

/// Builds the batch that advances the clock, as every transaction that writes does.
pub(super) fn probe() -> Batch {
    let sql =
        format!("DECLARE @now DATETIME2(6);\nBEGIN TRANSACTION;{TICK}\nCOMMIT TRANSACTION;\nSELECT @now AS now_at;");
    Batch::new(sql, Vec::new())
}
