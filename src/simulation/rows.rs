//! Checks every change of an intent, right after the commit that made it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use super::checks::Promise;
use super::world::World;
use crate::domain::contract::{Contract, Policy};
use crate::domain::outcome::Outcome;

/// The intents as the last commit left them.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) rows: BTreeMap<i64, Row>,
    /// The time of the last change that was checked.
    seen: i64,
    pub(super) contracts: BTreeMap<i64, Arc<Contract>>,
    /// The intents that have ended, by number, in the order of their commits.
    pub(super) ended: Vec<i64>,
    /// The epoch and the end of the lease before the last call of `acquire_lease`.
    pub(super) lease: Option<(i64, i64)>,
}

/// The row of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) seq: i64,
    pub(super) id: String,
    pub(super) contract: i64,
    pub(super) status: String,
    pub(super) attempts: u32,
    /// When the next attempt is due, if the intent waits.
    pub(super) next: Option<i64>,
    /// The epoch that started the open attempt, if one is open.
    pub(super) open: Option<i64>,
    pub(super) deadline: Option<i64>,
    pub(super) created: i64,
    pub(super) completed: Option<i64>,
    pub(super) reason: Option<String>,
    pub(super) modified: i64,
    /// When the first attempt may start.
    pub(super) not_before: Option<i64>,
    /// The id of the intent that this one repeats.
    pub(super) redrive_of: Option<String>,
    pub(super) redrive_id: Option<String>,
}

/// Selects the rows of intents.
macro_rules! select {
    ($condition:literal) => {
        concat!(
            "SELECT intent_seq, intent_id, contract_id, status, attempt_count, next_attempt_at, open_lease_epoch,
            deadline_at, created_at, completed_at, coalesce(rejected_reason, exhausted_reason), last_modified_at,
            not_before, redrive_of, redrive_id
            FROM submission_intents LEFT JOIN submission_intent_options USING (intent_seq) WHERE ",
            $condition
        )
    };
}

impl Row {
    fn of(row: &rusqlite::Row<'_>) -> Result<Self, rusqlite::Error> {
        Ok(Self {
            seq: row.get(0)?,
            id: row.get(1)?,
            contract: row.get(2)?,
            status: row.get(3)?,
            attempts: row.get(4)?,
            next: row.get(5)?,
            open: row.get(6)?,
            deadline: row.get(7)?,
            created: row.get(8)?,
            completed: row.get(9)?,
            reason: row.get(10)?,
            modified: row.get(11)?,
            not_before: row.get(12)?,
            redrive_of: row.get(13)?,
            redrive_id: row.get(14)?,
        })
    }

    /// Reads one row.
    pub(super) fn read(connection: &Connection, seq: i64) -> Option<Self> {
        let mut statement = connection.prepare_cached(select!("intent_seq = ?1")).unwrap();
        statement.query_row([seq], Self::of).optional().unwrap()
    }

    /// Reads the rows that changed after a moment.
    pub(super) fn changed_since(connection: &Connection, moment: i64) -> Vec<Self> {
        let sql = select!("last_modified_at > ?1 ORDER BY intent_seq");
        let mut statement = connection.prepare_cached(sql).unwrap();
        statement.query_map([moment], Self::of).unwrap().collect::<Result<_, _>>().unwrap()
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.status != "pending"
    }

    /// Whether the intent ended while it waited for an attempt.
    fn ended_without_attempt(&self) -> bool {
        matches!(self.reason.as_deref(), Some("deadline_exceeded" | "cancelled"))
    }

    /// Whether the intent ended without being accepted.
    pub(super) fn has_failed(&self) -> bool {
        self.is_terminal() && self.status != "accepted"
    }
}

impl World {
    /// Checks the changes of the last commit.
    pub(super) fn check_changes(&self) {
        let seen = self.state().ledgers.changes.seen;
        for row in self.store.inspect(|connection| Row::changed_since(connection, seen)) {
            let modified = row.modified;
            let before = self.state().ledgers.changes.rows.insert(row.seq, row.clone());
            self.log(format_args!(
                "{} {} attempts {} next {:?} open {:?} {:?}",
                row.id, row.status, row.attempts, row.next, row.open, row.reason
            ));
            if row.is_terminal() {
                self.state().ledgers.changes.ended.push(row.seq);
            }
            self.check_change(before.as_ref(), &row);
            // Every later commit has a later time.
            let seen = &mut self.state().ledgers.changes.seen;
            *seen = modified.max(*seen);
        }
    }

    fn check_change(&self, before: Option<&Row>, row: &Row) {
        let Some(before) = before else {
            let kept = !row.is_terminal() && row.attempts == u32::from(row.open.is_some());
            self.check(Promise::LegalChange, kept, || format!("a new intent is {row:?}"));
            self.check_deadline(row);
            self.check_redriven(row);
            if row.open.is_some() {
                self.check_start(row);
            }
            return;
        };
        self.check(Promise::TerminalForEver, !before.is_terminal(), || format!("{before:?} became {row:?}"));
        let fixed = |row: &Row| {
            let options = (row.not_before, row.redrive_of.clone(), row.redrive_id.clone());
            (row.id.clone(), row.contract, row.deadline, row.created, options)
        };
        self.check(Promise::LegalChange, fixed(before) == fixed(row), || format!("{before:?} became {row:?}"));
        let same_number = row.attempts == before.attempts;
        match (before.open.is_some(), row.open.is_some(), row.is_terminal()) {
            (false, true, false) => {
                self.check(Promise::NumbersWithoutGaps, row.attempts == before.attempts + 1, || {
                    format!("{before:?} started as {row:?}")
                });
                self.check_start(row);
            }
            (true, false, false) if same_number => self.check_retry(row),
            (true, false, true) if same_number => self.check_outcome(row),
            // The batch that postpones an attempt may also end its intent, if the deadline has passed or it is cancelled.
            (true, false, terminal) if !terminal || row.ended_without_attempt() => {
                let sent = self.state().ledgers.calls.contains_key(&(row.seq, before.attempts));
                self.check(Promise::NumbersWithoutGaps, row.attempts + 1 == before.attempts && !sent, || {
                    format!("{before:?} was postponed as {row:?}, sent {sent}")
                });
            }
            (false, false, true) if same_number => {
                self.check(Promise::LegalChange, row.status == "exhausted", || format!("{before:?} became {row:?}"));
            }
            _ => self.check(Promise::LegalChange, false, || format!("{before:?} became {row:?}")),
        }
        if row.is_terminal() {
            self.check_event_of(row);
        }
    }

    /// Checks that the deadline of a new intent counts from its scheduled start.
    fn check_deadline(&self, row: &Row) {
        let Policy::Deadline { max_acceptance_seconds } = self.contract(row.contract).policy else { return };
        let start = row.not_before.map_or(row.created, |moment| moment.max(row.created));
        let expected = start + i64::from(max_acceptance_seconds.get()) * 1_000_000;
        self.check(Promise::NotBeforeKept, row.deadline == Some(expected), || {
            format!("the deadline of {row:?} is not {expected}")
        });
    }

    /// Checks an attempt that was recorded as open.
    fn check_start(&self, row: &Row) {
        self.check_start_after_cancel(row);
        self.check(Promise::NotBeforeKept, row.not_before.is_none_or(|moment| moment <= row.modified), || {
            format!("{row:?} was started before its time")
        });
        let lease = self.lease();
        let held = lease.is_some_and(|(epoch, end)| Some(epoch) == row.open && end > row.modified);
        self.check(Promise::WritesAreFenced, held, || format!("{row:?} was started, and the lease is {lease:?}"));
        self.check(Promise::NoCallAfterDeadline, row.deadline.is_none_or(|end| row.modified < end), || {
            format!("{row:?} was started at or after its deadline")
        });
        let contract = self.contract(row.contract);
        let target = contract.target.as_str();
        let paused = self.store.inspect(|connection| {
            let sql = "SELECT 1 FROM submission_target_pauses WHERE submission_target = ?1";
            connection.prepare_cached(sql).unwrap().exists([target]).unwrap()
        });
        self.check(Promise::NoStartWhilePaused, !paused, || format!("{row:?} was started, and {target} is paused"));
        self.check(Promise::LegalChange, row.attempts <= most_attempts(&contract), || {
            format!("{row:?} has more attempts than {:?} allows", contract.policy)
        });
    }

    /// Checks that an intent may wait for another attempt.
    fn check_retry(&self, row: &Row) {
        self.check_audit(row);
        let contract = self.contract(row.contract);
        let kept = row.deadline.is_none_or(|end| row.next.is_some_and(|next| next < end))
            && row.attempts < most_attempts(&contract);
        self.check(Promise::RetryBeforeDeadline, kept, || format!("{row:?} waits, and {:?}", contract.policy));
    }

    /// Checks the end of an intent after an attempt.
    fn check_outcome(&self, row: &Row) {
        self.check_audit(row);
        let answer = {
            let state = self.state();
            let call = state.ledgers.calls.get(&(row.seq, row.attempts));
            call.and_then(|call| call.outcome.clone())
        };
        let accepted_at = match answer {
            Some((Outcome::Accepted { .. }, at)) => Some(at),
            _ => None,
        };
        if row.status == "accepted" {
            let in_time = |at: i64| self.clock_jumped() || row.deadline.is_none_or(|end| at < end);
            self.check(Promise::AcceptedInTime, accepted_at.is_some_and(in_time), || {
                format!("{row:?} is accepted, and its gateway accepted at {accepted_at:?}")
            });
        } else if row.deadline.is_none() {
            let interrupted = self.audit(row).is_some_and(|error| error.starts_with("interrupted"));
            self.check(Promise::HistoryComplete, accepted_at.is_none() || interrupted, || {
                format!("{row:?} is not accepted, and its gateway accepted it")
            });
        }
    }

    /// Checks that the last attempt of an intent is in its history.
    fn check_audit(&self, row: &Row) {
        let kept = self.audit(row).is_some();
        self.check(Promise::HistoryComplete, kept, || format!("{row:?} has no record of its last attempt"));
    }

    /// Returns the error text of the last attempt, empty if it had none; `None` if the attempt is not recorded.
    fn audit(&self, row: &Row) -> Option<String> {
        let sql = "SELECT coalesce(error, '') FROM submission_attempts WHERE intent_seq = ?1 AND attempt_number = ?2";
        self.store.inspect(|connection| {
            let mut statement = connection.prepare_cached(sql).unwrap();
            statement.query_row((row.seq, row.attempts), |row| row.get(0)).optional().unwrap()
        })
    }

    /// Checks that the end of an intent with a webhook has an event.
    fn check_event_of(&self, row: &Row) {
        if self.contract(row.contract).webhook.is_none() {
            return;
        }
        let exists = self.store.inspect(|connection| {
            let sql = "SELECT 1 FROM submission_webhook_events WHERE intent_seq = ?1";
            connection.prepare_cached(sql).unwrap().exists([row.seq]).unwrap()
        });
        self.check(Promise::EventForEveryEnd, exists, || format!("{row:?} has ended without an event"));
    }
}

fn most_attempts(contract: &Contract) -> u32 {
    match contract.policy {
        Policy::OneShot => 1,
        Policy::MaxAttempts { max_attempts } => max_attempts.get(),
        Policy::Deadline { .. } => u32::MAX,
    }
}
