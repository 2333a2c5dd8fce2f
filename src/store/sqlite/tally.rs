//! What became of attempts, minute by minute: a handful of sums for each transaction.

use std::collections::HashMap;

use rusqlite::{Transaction, params};

use crate::core::intent::Intent;
use crate::core::policy::Decision;
use crate::core::time::Timestamp;
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
pub struct Tally(HashMap<Kind, Sum>);

impl Tally {
    /// An attempt was recorded.
    pub fn attempt(&mut self, contract_id: i64, finish: &FinishAttempt) {
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
        let sum = self.0.entry(kind).or_default();
        sum.attempts += 1;
        sum.micros += i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
    }

    /// An intent ended without an attempt.
    pub fn ended(&mut self, contract_id: i64, intent: &Intent, now: Timestamp) {
        let status = intent.state.status().as_str();
        let kind = Kind { minute: minute_of(now), contract_id, outcome: "none", cause: String::new(), status };
        self.0.entry(kind).or_default().attempts += 1;
    }

    pub fn write(self, transaction: &Transaction<'_>, now: Timestamp) -> Result<(), rusqlite::Error> {
        let mut first_of_its_kind = false;
        for (kind, sum) in self.0 {
            let attempts: i64 = transaction
                .prepare_cached(
                    "INSERT INTO submission_minutes (minute, contract_id, outcome, cause, status, attempts, micros)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                     ON CONFLICT DO UPDATE SET attempts = attempts + excluded.attempts, micros = micros + excluded.micros
                     RETURNING attempts",
                )?
                .query_row(
                    params![
                        kind.minute,
                        kind.contract_id,
                        kind.outcome,
                        kind.cause,
                        kind.status,
                        sum.attempts,
                        sum.micros
                    ],
                    |row| row.get(0),
                )?;
            first_of_its_kind |= attempts == sum.attempts;
        }
        if first_of_its_kind {
            transaction
                .prepare_cached("DELETE FROM submission_minutes WHERE minute < ?1")?
                .execute([minute_of(now) - KEPT_MINUTES])?;
        }
        Ok(())
    }
}
