//! Counts finished attempts and ended intents by minute, for the charts of the console.
//!
//! The counts of one transaction are added up in memory and written once. Statements that write many rows have no
//! `RETURNING` clause, here and elsewhere: SQLite makes a temporary table for its rows each time, which takes longer than
//! the write itself.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Transaction, params};

use crate::domain::contract::Contract;
use crate::domain::intent::{ExhaustedReason, Intent};
use crate::domain::policy::Decision;
use crate::domain::time::Timestamp;
use crate::store::{FinishAttempt, KEPT_MINUTES, minute_of};

/// The key of a row in `submission_minutes`.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    minute: i64,
    contract_id: i64,
    outcome: &'static str,
    cause: String,
    status: &'static str,
}

#[derive(Default)]
struct Sum {
    attempts: i64,
    micros: i64,
}

/// The counts of one transaction.
#[derive(Default)]
pub(super) struct MinuteCounts {
    sums: HashMap<Key, Sum>,
    /// The numbers of contracts that were looked up already. The attempts of a transaction share few contracts.
    contract_ids: Vec<(Arc<Contract>, i64)>,
}

impl MinuteCounts {
    /// Counts an attempt that was recorded.
    pub(super) fn add_attempt(
        &mut self,
        transaction: &Transaction<'_>,
        finish: &FinishAttempt,
    ) -> Result<(), rusqlite::Error> {
        let contract_id = self.contract_id(transaction, finish)?;
        let status = match finish.decision {
            Decision::Accept => "accepted",
            Decision::Reject { .. } => "rejected",
            Decision::Exhaust(_) => "exhausted",
            Decision::RetryAt(_) => "pending",
        };
        let key = Key {
            minute: minute_of(finish.finished_at),
            contract_id,
            outcome: finish.outcome.kind(),
            cause: finish.outcome.cause(),
            status,
        };
        let took = finish.finished_at.since(finish.attempt.started_at);
        let sum = self.sums.entry(key).or_default();
        sum.attempts += 1;
        sum.micros += i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        Ok(())
    }

    fn contract_id(&mut self, transaction: &Transaction<'_>, finish: &FinishAttempt) -> Result<i64, rusqlite::Error> {
        let contract = &finish.attempt.contract;
        if let Some((_, id)) = self.contract_ids.iter().find(|(known, _)| Arc::ptr_eq(known, contract)) {
            return Ok(*id);
        }
        let id = transaction
            .prepare_cached("SELECT contract_id FROM submission_intents WHERE intent_seq = ?1")?
            .query_row([finish.attempt.seq.0], |row| row.get(0))?;
        self.contract_ids.push((Arc::clone(contract), id));
        Ok(id)
    }

    /// Counts an intent that ended without an attempt.
    pub(super) fn add_ended(&mut self, contract_id: i64, intent: &Intent, now: Timestamp) {
        let status = intent.state.status().as_str();
        // The cause of an intent that no attempt ended: see `cause_of_failure`.
        let cause = intent.state.exhausted_reason().map_or("", ExhaustedReason::as_str).to_owned();
        let key = Key { minute: minute_of(now), contract_id, outcome: "none", cause, status };
        self.sums.entry(key).or_default().attempts += 1;
    }

    /// Writes the counts, and deletes those that are too old.
    pub(super) fn write(self, transaction: &Transaction<'_>, now: Timestamp) -> Result<(), rusqlite::Error> {
        if self.sums.is_empty() {
            return Ok(());
        }
        for (key, sum) in self.sums {
            transaction
                .prepare_cached(
                    "INSERT INTO submission_minutes (minute, contract_id, outcome, cause, status, attempts, micros)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                     ON CONFLICT DO UPDATE SET attempts = attempts + excluded.attempts, micros = micros + excluded.micros",
                )?
                .execute(params![
                    key.minute,
                    key.contract_id,
                    key.outcome,
                    key.cause,
                    key.status,
                    sum.attempts,
                    sum.micros
                ])?;
        }
        transaction
            .prepare_cached("DELETE FROM submission_minutes WHERE minute < ?1")?
            .execute([minute_of(now) - KEPT_MINUTES])?;
        Ok(())
    }
}
