//! The checks at the end of a run, when all intents and events have ended.

use std::collections::BTreeMap;

use rusqlite::{Connection, Params, Row as SqlRow};

use super::checks::Promise;
use super::faults::Fault;
use super::rows::Row;
use super::world::World;
use crate::domain::intent::IntentId;

/// A recorded attempt: its number, when it started and finished, and its error.
type Recorded = (u32, i64, i64, Option<String>);

pub(super) fn query<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&SqlRow<'_>) -> Result<T, rusqlite::Error>,
) -> Vec<T> {
    let mut statement = connection.prepare_cached(sql).unwrap();
    statement.query_map(params, read).unwrap().collect::<Result<_, _>>().unwrap()
}

impl World {
    /// Returns what has not ended: intents, events, redrives and inbox submissions.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let sql = "SELECT 'intent ' || intent_id FROM submission_intents WHERE status = 'pending'
            UNION ALL SELECT 'event of ' || intent_seq FROM submission_webhook_events WHERE status = 'pending'
            UNION ALL SELECT 'redrive ' || redrive_id FROM submission_redrives WHERE state IN ('running', 'paused')";
        self.store.inspect(|connection| {
            let mut unfinished = query(connection, sql, [], |row| row.get(0));
            unfinished.extend(Self::unprocessed(connection));
            unfinished
        })
    }

    /// Whether anything has not ended; see [`Self::unfinished`].
    pub(super) fn has_unfinished(&self) -> bool {
        let sql = "SELECT 1 FROM submission_intents WHERE status = 'pending'";
        let pending = self.store.inspect(|connection| connection.prepare_cached(sql)?.exists([])).unwrap();
        pending || !self.unfinished().is_empty()
    }

    /// Returns the intents whose events wait for a later try.
    pub(super) fn events_that_wait(&self) -> Vec<IntentId> {
        let now = self.store.now();
        let sql = "SELECT intent_id FROM submission_webhook_events JOIN submission_intents USING (intent_seq)
            WHERE next_try_at > ?1 ORDER BY intent_seq";
        let ids = self.store.inspect(|connection| query(connection, sql, [now], |row| row.get::<_, String>(0)));
        ids.into_iter().map(|id| IntentId::parse(&id).unwrap()).collect()
    }

    /// Checks everything once more at the end of a run.
    pub(super) fn check_end(&self) {
        let rows = self.store.inspect(|connection| Row::changed_since(connection, -1));
        let rows: BTreeMap<i64, Row> = rows.into_iter().map(|row| (row.seq, row)).collect();
        for row in rows.values() {
            self.check_history(row);
            self.check_delivery(row);
            self.check_cancelled(row);
        }
        self.check_redrives();
        self.check_inbox();
        self.check_purged(&rows);
        self.check_calls(&rows);
        self.check_clients(&rows);
    }

    fn recorded(&self, seq: i64) -> Vec<Recorded> {
        let sql = "SELECT attempt_number, started_at, finished_at, error FROM submission_attempts WHERE intent_seq = ?1
            ORDER BY attempt_number";
        self.store.inspect(|connection| {
            query(connection, sql, [seq], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        })
    }

    /// Checks that the history of an intent is complete and in order, and agrees with what gateways saw.
    fn check_history(&self, row: &Row) {
        let attempts = self.recorded(row.seq);
        let numbers: Vec<u32> = attempts.iter().map(|(number, ..)| *number).collect();
        let complete = numbers.iter().copied().eq(1..=row.attempts);
        self.check(Promise::HistoryComplete, complete || !row.is_terminal(), || {
            format!("{row:?} has the attempts {numbers:?}")
        });
        let in_order = attempts.iter().all(|(_, started, finished, _)| started <= finished)
            && attempts.windows(2).all(|pair| pair[0].1 < pair[1].1);
        self.check(Promise::HistoryComplete, in_order, || format!("{row:?} has attempts out of order: {attempts:?}"));
        for (number, _, _, error) in &attempts {
            let sent = self.state().ledgers.calls.contains_key(&(row.seq, *number));
            let explained =
                error.as_deref().is_some_and(|error| error.starts_with("not sent") || error.starts_with("interrupted"));
            self.check(Promise::HistoryComplete, sent || explained, || {
                format!("attempt {number} of {row:?} is recorded with {error:?}, and no gateway got it")
            });
            let interrupted = error.as_deref().is_some_and(|error| error.starts_with("interrupted"));
            let needless = interrupted && !self.plan.faults.iter().any(|fault| fault.interrupts_attempts());
            self.check(Promise::NoNeedlessInterruption, !needless, || {
                format!("attempt {number} of {row:?} was interrupted, and no instance died")
            });
        }
    }

    /// Checks that the event of an intent was delivered, or failed because its receiver refused it.
    fn check_delivery(&self, row: &Row) {
        let sql = "SELECT status FROM submission_webhook_events WHERE intent_seq = ?1";
        let status = self.store.inspect(|connection| query(connection, sql, [row.seq], |row| row.get::<_, String>(0)));
        let Some(status) = status.first() else { return };
        let confirmed = self.state().ledgers.delivered.contains(&row.id);
        let refused = self.plan.faults.contains(&Fault::Receivers);
        let kept = match status.as_str() {
            "delivered" => confirmed,
            "failed" => refused,
            _ => !row.is_terminal(),
        };
        self.check(Promise::EventDelivered, kept, || {
            format!("the event of {row:?} is {status}, and its receiver confirmed it: {confirmed}")
        });
    }

    /// Checks that only old terminal intents were deleted.
    fn check_purged(&self, rows: &BTreeMap<i64, Row>) {
        let now = self.last_commit();
        let known: Vec<Row> = self.state().ledgers.changes.rows.values().cloned().collect();
        for row in known.iter().filter(|row| !rows.contains_key(&row.seq)) {
            let keep_for = self.plan.retention.map(|keep_for| i64::try_from(keep_for.as_micros()).unwrap());
            let old = row.completed.zip(keep_for).is_some_and(|(ended, keep_for)| ended + keep_for <= now);
            self.check(Promise::AnsweredIntentExists, old, || format!("{row:?} is gone"));
        }
    }

    /// Checks that every call belongs to an intent, and every attempt that was sent is recorded.
    fn check_calls(&self, rows: &BTreeMap<i64, Row>) {
        let calls: Vec<(i64, u32)> = self.state().ledgers.calls.keys().copied().collect();
        for (seq, number) in calls {
            let known = self.state().ledgers.changes.rows.get(&seq).map(|row| row.attempts);
            let kept = known.is_some_and(|attempts| number <= attempts);
            self.check(Promise::CallWasRecorded, kept, || {
                format!("attempt {number} of intent {seq} was sent; its row says {known:?}, now {:?}", rows.get(&seq))
            });
        }
    }

    /// Checks that the answers to clients are true.
    fn check_clients(&self, rows: &BTreeMap<i64, Row>) {
        let state = self.state();
        let mut broken = Vec::new();
        for (seq, told) in &state.ledgers.answered {
            // A deleted intent was checked before.
            let Some(row) = rows.get(seq).or_else(|| state.ledgers.changes.rows.get(seq)) else {
                broken.push((Promise::AnsweredIntentExists, format!("intent {seq} ({}) does not exist", told.id)));
                continue;
            };
            let target = state.ledgers.changes.contracts.get(&row.contract).map(|contract| contract.target.as_str());
            if row.id != told.id || target.is_some_and(|target| target != told.target) {
                broken.push((Promise::OneIdOneIntent, format!("{row:?} is not what {} was", told.id)));
            }
            if told.ended.is_some_and(|ended| ended != row.status) {
                broken.push((Promise::TerminalForEver, format!("{row:?} was {:?} before", told.ended)));
            }
        }
        for (id, created) in &state.ledgers.created {
            let intents = state.ledgers.changes.rows.values().filter(|row| row.id == *id).count();
            if *created > intents {
                broken.push((
                    Promise::OneIdOneIntent,
                    format!("{id} was created {created} times, and exists {intents} times"),
                ));
            }
        }
        let checked = u64::try_from(state.ledgers.answered.len()).unwrap();
        drop(state);
        *self.state().checked.entry(Promise::AnsweredIntentExists).or_default() += checked;
        for (promise, how) in broken {
            self.check(promise, false, || how);
        }
    }
}
