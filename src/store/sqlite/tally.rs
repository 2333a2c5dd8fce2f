//! What became of attempts, minute by minute: a handful of sums for each transaction.
//!
//! No `RETURNING` here, nor wherever else many rows are written: SQLite makes a table for what it
//! returns each time, which costs more than all the rest.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Transaction, params};

use crate::domain::contract::Contract;
use crate::domain::intent::Intent;
use crate::domain::policy::Decision;
use crate::domain::time::Timestamp;
use crate::store::{FinishAttempt, KEPT_MINUTES, minute_of};

/// What is counted apart.
#[derive(PartialEq, Eq, Hash)]
struct Kind {
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

/// The sums of one transaction.
#[derive(Default)]
pub struct Tally {
    sums: HashMap<Kind, Sum>,
    /// Contracts that were looked up already, by where they are in memory.
    contracts: HashMap<*const Contract, i64>,
}

impl Tally {
    /// An attempt was recorded.
    pub fn attempt(&mut self, transaction: &Transaction<'_>, finish: &FinishAttempt) -> Result<(), rusqlite::Error> {
        let contract_id = self.contract_id(transaction, finish)?;
        let status = match finish.decision {
            Decision::Accept => "accepted",
            Decision::Reject { .. } => "rejected",
            Decision::Exhaust(_) => "exhausted",
            Decision::RetryAt(_) => "pending",
        };
        let kind = Kind {
            minute: minute_of(finish.finished_at),
            contract_id,
            outcome: finish.outcome.kind(),
            cause: finish.outcome.cause(),
            status,
        };
        let took = finish.finished_at.since(finish.attempt.started_at);
        let sum = self.sums.entry(kind).or_default();
        sum.attempts += 1;
        sum.micros += i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        Ok(())
    }

    /// Attempts of a transaction share few contracts.
    fn contract_id(&mut self, transaction: &Transaction<'_>, finish: &FinishAttempt) -> Result<i64, rusqlite::Error> {
        let contract = Arc::as_ptr(&finish.attempt.contract);
        if let Some(id) = self.contracts.get(&contract) {
            return Ok(*id);
        }
        let id = transaction
            .prepare_cached("SELECT contract_id FROM submission_intents WHERE intent_seq = ?1")?
            .query_row([finish.attempt.seq.0], |row| row.get(0))?;
        self.contracts.insert(contract, id);
        Ok(id)
    }

    /// An intent ended without an attempt.
    pub fn ended(&mut self, contract_id: i64, intent: &Intent, now: Timestamp) {
        let status = intent.state.status().as_str();
        let kind = Kind { minute: minute_of(now), contract_id, outcome: "none", cause: String::new(), status };
        self.sums.entry(kind).or_default().attempts += 1;
    }

    pub fn write(self, transaction: &Transaction<'_>, now: Timestamp) -> Result<(), rusqlite::Error> {
        if self.sums.is_empty() {
            return Ok(());
        }
        for (kind, sum) in self.sums {
            transaction
                .prepare_cached(
                    "INSERT INTO submission_minutes (minute, contract_id, outcome, cause, status, attempts, micros)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                     ON CONFLICT DO UPDATE SET attempts = attempts + excluded.attempts, micros = micros + excluded.micros",
                )?
                .execute(params![
                    kind.minute,
                    kind.contract_id,
                    kind.outcome,
                    kind.cause,
                    kind.status,
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
