//! The leader's part of a batch: attempts that are started, finished or postponed, and intents that end without an
//! attempt.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tiberius::Row;

use super::counts::{self, Ended};
use super::database::Database;
use super::rows::{self, INTENT_COLUMNS, json_moment};
use super::script::{Column, Script, json_text};
use super::{contracts::Contracts, jobs};
use crate::domain::contract::{Contract, GatewayType};
use crate::domain::intent::{Intent, IntentSeq};
use crate::domain::policy;
use crate::domain::schedule::Waiting;
use crate::domain::time::Timestamp;
use crate::store::column_values::StateColumns;
use crate::store::{FinishAttempt, FinishResult, PostponeAttempt, StartResult, StoreError, minute_of};

/// The attempts of a batch that should be started, with their contracts.
pub(super) struct Starts<'a> {
    waiting: &'a [Waiting],
    /// The contracts that this program can read. An attempt without a contract cannot be made, so it is not started.
    contracts: HashMap<i64, Arc<Contract>>,
    /// The positions in `waiting` of the intents that are sent to the server: each intent once.
    written: Vec<usize>,
}

/// An intent that was not started, because policy allows it no further attempt.
pub(super) struct NotAllowed {
    pub seq: IntentSeq,
    pub attempts: u32,
    pub reason: &'static str,
}

impl<'a> Starts<'a> {
    pub(super) async fn prepare(
        database: &Database,
        contracts: &Contracts,
        waiting: &'a [Waiting],
    ) -> Result<Self, StoreError> {
        let contracts = contracts.by_id(database, waiting.iter().map(|waiting| waiting.lane.id.0)).await?;
        let mut seen = HashSet::new();
        let is_first =
            |(_, waiting): &(usize, &Waiting)| contracts.contains_key(&waiting.lane.id.0) && seen.insert(waiting.seq);
        let written = waiting.iter().enumerate().filter(is_first).map(|(place, _)| place).collect();
        Ok(Self { waiting, contracts, written })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Policy decides here whether the number of attempts allows another one. Only the transaction knows the time at which
    /// it starts them, so it compares that with the due time and the deadline, which policy has set.
    pub(super) fn write(&self, script: &mut Script, epoch: &str) {
        let waiting = self.written.iter().filter_map(|place| self.waiting.get(*place));
        let items = waiting.map(|waiting| {
            let contract = self.contracts.get(&waiting.lane.id.0);
            let left = contract.is_some_and(|contract| policy::attempts_left(contract, waiting.attempt_count).is_ok());
            json!({ "intent_seq": waiting.seq.0, "attempts": waiting.attempt_count, "attempts_left": i64::from(left) })
        });
        let columns =
            [Column::key("intent_seq"), Column::of("attempts", "BIGINT"), Column::of("attempts_left", "BIGINT")];
        script.input("begin", items.collect(), columns);
        script.starts_attempts();
        script.fenced_change(&format!(
            "
UPDATE i SET attempt_count = i.attempt_count + 1, next_attempt_at = NULL, open_lease_epoch = {epoch},
    open_started_at = @now, last_modified_at = @now
FROM submission_intents AS i
JOIN @begin AS b ON i.intent_seq = b.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE b.intent_seq BETWEEN @first AND @last AND i.attempt_count = b.attempts AND b.attempts_left = 1
    AND i.next_attempt_at <= @now AND (i.deadline_at IS NULL OR i.deadline_at > @now)
    AND NOT EXISTS (SELECT 1 FROM submission_target_pauses AS p WHERE p.submission_target = c.submission_target);"
        ));
        script.answer(
            "
SELECT i.intent_seq, i.intent_id, i.contract_id, i.created_at, i.attempt_count, i.next_attempt_at,
    i.open_lease_epoch, i.open_started_at, CASE WHEN i.open_started_at = @now THEN i.payload END AS payload,
    t.traceparent, o.not_before, o.gateway_key
FROM @begin AS b JOIN submission_intents AS i ON i.intent_seq = b.intent_seq
LEFT JOIN submission_traces AS t ON t.intent_seq = i.intent_seq
LEFT JOIN submission_intent_options AS o ON o.intent_seq = i.intent_seq
WHERE b.intent_seq BETWEEN @first AND @last;",
        );
    }

    /// Returns the result of each start at `now`. Intents to which policy allows no further attempt are added to
    /// `not_allowed`.
    pub(super) fn read(
        &self,
        rows: &[Row],
        now: Timestamp,
        not_allowed: &mut Vec<NotAllowed>,
    ) -> Result<Vec<Result<StartResult, StoreError>>, StoreError> {
        let by_seq: HashMap<IntentSeq, &Row> =
            rows.iter().map(|row| rows::seq(row).map(|seq| (seq, row))).collect::<Result<_, _>>()?;
        let written: HashSet<usize> = self.written.iter().copied().collect();
        let mut answers = Vec::with_capacity(self.waiting.len());
        for (place, waiting) in self.waiting.iter().enumerate() {
            let id = waiting.lane.id.0;
            let answer = match (self.contracts.get(&id), by_seq.get(&waiting.seq)) {
                (None, _) => Err(StoreError::unexpected(format!("contract {id} cannot be read"))),
                (Some(contract), Some(row)) if written.contains(&place) => {
                    Ok(classify(waiting, row, contract, now, not_allowed)?)
                }
                _ => Ok(StartResult::Stale),
            };
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// Returns the result of a start, from the row of its intent after the transaction at `now`.
fn classify(
    waiting: &Waiting,
    row: &Row,
    contract: &Arc<Contract>,
    now: Timestamp,
    not_allowed: &mut Vec<NotAllowed>,
) -> Result<StartResult, StoreError> {
    if rows::moment(row, "open_started_at")? == Some(now) {
        let payload = rows::bytes(row, "payload")?.unwrap_or_default();
        let attempt = rows::open_attempt(row, Arc::clone(contract), rows::trace(row)?)?;
        return Ok(StartResult::Started { attempt, payload, due: waiting.due });
    }
    match rows::moment(row, "next_attempt_at")? {
        Some(_) if rows::attempts(row, "attempt_count")? != waiting.attempt_count => Ok(StartResult::Stale),
        Some(due) if due > now => Ok(StartResult::NotDue { due, now }),
        Some(_) => {
            match policy::may_start(contract, rows::begins_at(row)?, waiting.attempt_count, now) {
                // The intent waits, is due, and policy allows an attempt, so only a pause can have prevented the start.
                Ok(()) => Ok(StartResult::Paused),
                Err(reason) => {
                    let (seq, attempts) = (waiting.seq, waiting.attempt_count);
                    not_allowed.push(NotAllowed { seq, attempts, reason: reason.as_str() });
                    Ok(StartResult::Stale)
                }
            }
        }
        None => Ok(StartResult::Stale),
    }
}

/// Exhausts waiting intents to which policy allows no further attempt.
pub(super) fn write_not_allowed(script: &mut Script, intents: &[NotAllowed]) {
    let items = intents
        .iter()
        .map(|intent| json!({ "intent_seq": intent.seq.0, "attempts": intent.attempts, "reason": intent.reason }));
    let columns = [Column::key("intent_seq"), Column::of("attempts", "BIGINT"), Column::code("reason", 20)];
    script.input("end", items.collect(), columns);
    const OF_THE_LIST: &str = "@end AS e JOIN submission_intents AS i ON i.intent_seq = e.intent_seq
    WHERE i.last_modified_at = @now AND i.completed_at IS NOT NULL";
    script.fenced_change(
        "
UPDATE i SET status = 'exhausted', exhausted_reason = e.reason, completed_at = @now, next_attempt_at = NULL,
    last_modified_at = @now
FROM submission_intents AS i JOIN @end AS e ON i.intent_seq = e.intent_seq
WHERE i.attempt_count = e.attempts AND i.next_attempt_at IS NOT NULL;",
    );
    script.fenced_change(&counts::webhook_events(OF_THE_LIST));
    script.fenced_change(&counts::count(Ended::WithoutAttempt(OF_THE_LIST)));
    script.answer(&format!(
        "
SELECT {INTENT_COLUMNS} FROM @end AS e
JOIN submission_intents AS i ON i.intent_seq = e.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE i.last_modified_at = @now;"
    ));
}

/// Returns the first item of each intent. Further items of the same intent cannot take effect in the same transaction.
fn first_of_each<T>(items: &[T], seq: impl Fn(&T) -> IntentSeq) -> Vec<&T> {
    let mut seen = HashSet::new();
    items.iter().filter(|item| seen.insert(seq(item))).collect()
}

fn is_of_node(finish: &FinishAttempt) -> bool {
    finish.attempt.contract.gateway_type == GatewayType::Node
}

pub(super) fn write_finishes(script: &mut Script, finishes: &[Arc<FinishAttempt>]) {
    let finishes = first_of_each(finishes, |finish| finish.attempt.seq);
    let columns = [
        Column::key("intent_seq"),
        Column::of("attempt_number", "BIGINT"),
        Column::of("lease_epoch", "BIGINT"),
        Column::of("started_at", "DATETIME2(6)"),
        Column::of("finished_at", "DATETIME2(6)"),
        Column::code("outcome", 10),
        Column::long_text("outcome_reason"),
        Column::long_text("error"),
        Column::long_text("gateway_message_id"),
        Column::text("found_by", 400),
        Column::code("status", 10),
        Column::of("next_attempt_at", "DATETIME2(6)"),
        Column::text("rejected_reason", 400),
        Column::code("exhausted_reason", 20),
        Column::of("minute", "BIGINT"),
        Column::text("cause", 120),
        Column::of("micros", "BIGINT"),
        Column::of("reached", "BIGINT"),
    ];
    script.input("done", finishes.iter().map(|finish| finish_item(finish)).collect(), columns);
    if finishes.iter().any(|finish| finish.retries()) {
        script.fenced_change(CANCEL_RETRIES);
    }
    // Within the transaction these intents cannot change otherwise, because it holds the lock on the clock's row.
    const OPEN: &str = "@done AS d JOIN submission_intents AS i ON i.intent_seq = d.intent_seq
WHERE d.intent_seq BETWEEN @first AND @last AND i.attempt_count = d.attempt_number
    AND i.open_lease_epoch IS NOT NULL";
    script.fenced_change(&format!(
        "
INSERT INTO submission_attempts (intent_seq, attempt_number, lease_epoch, started_at, finished_at, outcome_status,
    outcome_reason, error, gateway_message_id)
SELECT d.intent_seq, d.attempt_number, d.lease_epoch, d.started_at, d.finished_at, NULLIF(d.outcome, 'error'),
    d.outcome_reason, d.error, d.gateway_message_id
FROM {OPEN};
INSERT INTO submission_gateway_messages (gateway_message_id, intent_seq)
SELECT d.found_by, d.intent_seq FROM {OPEN} AND d.found_by IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM submission_gateway_messages AS m
    WHERE m.intent_seq = d.intent_seq AND m.gateway_message_id = d.found_by);
UPDATE i SET status = d.status, next_attempt_at = d.next_attempt_at,
    completed_at = CASE WHEN d.status <> 'pending' THEN d.finished_at END, rejected_reason = d.rejected_reason,
    exhausted_reason = d.exhausted_reason, open_lease_epoch = NULL, open_started_at = NULL, last_modified_at = @now
FROM submission_intents AS i JOIN @done AS d ON i.intent_seq = d.intent_seq
WHERE d.intent_seq BETWEEN @first AND @last AND i.attempt_count = d.attempt_number
    AND i.open_lease_epoch IS NOT NULL;"
    ));
    if finishes.iter().any(|finish| finish.attempt.contract.webhook.is_some()) {
        script.fenced_change(&counts::webhook_events(
            "@done AS d JOIN submission_intents AS i ON i.intent_seq = d.intent_seq
    WHERE d.intent_seq BETWEEN @first AND @last AND i.last_modified_at = @now AND i.completed_at IS NOT NULL",
        ));
    }
    script.fenced_change(&counts::count(Ended::ByAttempt));
    if finishes.iter().any(|finish| is_of_node(finish)) {
        script.fenced_change(&jobs::count_reach());
    }
    script.answer(&recorded("done"));
}

/// Intents that are to be cancelled after their attempt end in place of a retry.
const CANCEL_RETRIES: &str = "
UPDATE d SET status = 'exhausted', exhausted_reason = 'cancelled', next_attempt_at = NULL
FROM @done AS d JOIN submission_intent_options AS o ON o.intent_seq = d.intent_seq
WHERE d.status = 'pending' AND o.cancel_requested_at IS NOT NULL;";

fn finish_item(finish: &FinishAttempt) -> Json {
    let FinishAttempt { attempt, finished_at, outcome, .. } = finish;
    let state = StateColumns::from(finish);
    let searchable = outcome.searchable_message_id().filter(|_| !attempt.intent_id.is_reserved());
    let reached = outcome.contact().reached().filter(|_| is_of_node(finish));
    let took = u64::try_from(finished_at.since(attempt.started_at).as_micros()).unwrap_or(u64::MAX);
    let optional = [
        ("outcome_reason", outcome.reason().map(json_text)),
        ("error", outcome.error_text().map(json_text)),
        ("gateway_message_id", outcome.gateway_message_id().map(json_text)),
        ("found_by", searchable.map(json_text)),
        ("next_attempt_at", state.next_attempt_at.map(json_moment)),
        ("rejected_reason", state.rejected_reason.map(json_text)),
        ("exhausted_reason", state.exhausted_reason.map(str::to_owned)),
    ];
    let mut item = json!({
        "intent_seq": attempt.seq.0, "attempt_number": attempt.attempt_number, "lease_epoch": attempt.lease_epoch,
        "started_at": json_moment(attempt.started_at), "finished_at": json_moment(*finished_at),
        "outcome": outcome.kind(), "status": state.status, "minute": minute_of(*finished_at),
        "cause": json_text(&outcome.cause()), "micros": took, "reached": reached.map(i64::from),
    });
    if let Some(item) = item.as_object_mut() {
        item.extend(optional.into_iter().filter_map(|(name, text)| Some((name.to_owned(), Json::from(text?)))));
    }
    item
}

pub(super) fn write_postpones(script: &mut Script, postpones: &[PostponeAttempt]) {
    let items = first_of_each(postpones, |postpone| postpone.seq).into_iter().map(|postpone| {
        json!({
            "intent_seq": postpone.seq.0, "attempt_number": postpone.attempt_number,
            "next_attempt_at": json_moment(postpone.due),
        })
    });
    let columns = [
        Column::key("intent_seq"),
        Column::of("attempt_number", "BIGINT"),
        Column::of("next_attempt_at", "DATETIME2(6)"),
    ];
    script.input("postponed", items.collect(), columns);
    script.fenced_change(
        "
UPDATE i SET attempt_count = i.attempt_count - 1, next_attempt_at = d.next_attempt_at, open_lease_epoch = NULL,
    open_started_at = NULL, last_modified_at = @now
FROM submission_intents AS i JOIN @postponed AS d ON i.intent_seq = d.intent_seq
WHERE d.intent_seq BETWEEN @first AND @last AND i.attempt_count = d.attempt_number
    AND i.open_lease_epoch IS NOT NULL;",
    );
    // One that is to be cancelled ends instead; it completes at the time of its transaction, which no other shares.
    const CANCELLED: &str = "@postponed AS d JOIN submission_intents AS i ON i.intent_seq = d.intent_seq
    WHERE i.completed_at = @now";
    script.fenced_change(
        "
UPDATE i SET status = 'exhausted', exhausted_reason = 'cancelled', completed_at = @now, next_attempt_at = NULL
FROM submission_intents AS i JOIN @postponed AS d ON i.intent_seq = d.intent_seq
JOIN submission_intent_options AS o ON o.intent_seq = i.intent_seq
WHERE i.last_modified_at = @now AND i.next_attempt_at IS NOT NULL AND o.cancel_requested_at IS NOT NULL;",
    );
    script.fenced_change(&counts::webhook_events(CANCELLED));
    script.fenced_change(&counts::count(Ended::WithoutAttempt(CANCELLED)));
    script.answer(&recorded("postponed"));
    script.answer(&format!(
        "
SELECT {INTENT_COLUMNS} FROM @postponed AS d
JOIN submission_intents AS i ON i.intent_seq = d.intent_seq
JOIN submission_contracts AS c ON c.contract_id = i.contract_id WHERE i.completed_at = @now;"
    ));
}

/// Returns the query for the intents that this transaction changed. Each transaction has its own timestamp, which
/// identifies its changes.
fn recorded(input: &str) -> String {
    format!(
        "
SELECT i.intent_seq, CAST(CASE WHEN i.exhausted_reason = 'cancelled' THEN 1 ELSE 0 END AS BIGINT) AS cancelled
FROM @{input} AS d
JOIN submission_intents AS i ON i.intent_seq = d.intent_seq
WHERE d.intent_seq BETWEEN @first AND @last AND i.last_modified_at = @now;"
    )
}

/// Returns for each attempt whether it was open and is now recorded.
pub(super) fn read_recorded(
    attempts: impl Iterator<Item = IntentSeq>,
    rows: &[Row],
) -> Result<Vec<Result<FinishResult, StoreError>>, StoreError> {
    let result = |row: &Row| match rows::need::<i64>(row, "cancelled")? {
        0 => Ok::<_, StoreError>(FinishResult::Recorded),
        _ => Ok(FinishResult::RecordedAndCancelled),
    };
    // If an intent has several items, only the first was recorded, so its entry is removed with the first.
    let mut recorded: HashMap<IntentSeq, FinishResult> =
        rows.iter().map(|row| Ok((rows::seq(row)?, result(row)?))).collect::<Result<_, StoreError>>()?;
    Ok(attempts.map(|seq| Ok(recorded.remove(&seq).unwrap_or(FinishResult::NotOpen))).collect())
}

/// Exhausts up to `limit` waiting intents whose deadline has passed.
pub(super) fn write_expire(script: &mut Script, limit: usize) {
    let limit = script.values.count(limit);
    // Each transaction has its own timestamp, so this finds exactly the intents that this transaction exhausted.
    const EXPIRED: &str = "submission_intents AS i
    WHERE i.completed_at = @now AND i.exhausted_reason = 'deadline_exceeded'";
    script.fenced_change(&format!(
        "
UPDATE submission_intents SET status = 'exhausted', exhausted_reason = 'deadline_exceeded', completed_at = @now,
    next_attempt_at = NULL, last_modified_at = @now
WHERE intent_seq IN (
    SELECT TOP ({limit}) intent_seq FROM submission_intents
    WHERE next_attempt_at IS NOT NULL AND deadline_at IS NOT NULL AND deadline_at <= @now ORDER BY deadline_at);"
    ));
    script.fenced_change(&counts::webhook_events(EXPIRED));
    script.fenced_change(&counts::count(Ended::WithoutAttempt(EXPIRED)));
    script.answer(&format!(
        "
SELECT TOP ({limit}) {INTENT_COLUMNS} FROM submission_intents AS i
JOIN submission_contracts AS c ON c.contract_id = i.contract_id
WHERE i.completed_at = @now AND i.exhausted_reason = 'deadline_exceeded';"
    ));
}

pub(super) fn read_intents(rows: &[Row]) -> Result<Vec<Intent>, StoreError> {
    rows.iter().map(rows::intent).collect()
}
