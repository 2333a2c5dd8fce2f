//! Assigns the numbers of intents. No number is used twice, even if the intent that had it was purged.
//!
//! A new intent gets the highest number plus one. The intent of a new job gets the lowest number minus one, because jobs count
//! downwards. Before a purge deletes intents, it stores the highest and the lowest number.

use rusqlite::{Transaction, params};

/// The highest and the lowest number in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    highest: i64,
    lowest: i64,
}

/// Reads both ends of the table by its primary key, which is fast.
pub(super) const ENDS: &str = "
    SELECT max(n.highest, coalesce((SELECT max(intent_seq) FROM submission_intents), 0)),
        min(n.lowest, coalesce((SELECT min(intent_seq) FROM submission_intents), 0))
    FROM submission_numbers n";

impl Numbers {
    /// Reads the numbers in use.
    pub(super) fn load(transaction: &Transaction<'_>) -> Result<Self, rusqlite::Error> {
        transaction.prepare_cached(ENDS)?.query_row([], |row| Ok(Self { highest: row.get(0)?, lowest: row.get(1)? }))
    }

    /// Returns the number of the next intent.
    pub(super) fn next(&mut self) -> i64 {
        self.highest += 1;
        self.highest
    }

    /// Returns the number of the intent of the next job. These numbers count downwards from zero, so that lists of other
    /// intents need not skip jobs, and the numbers of other intents do not reveal how many jobs there are.
    pub(super) fn next_of_job(&mut self) -> i64 {
        self.lowest -= 1;
        self.lowest
    }

    /// Stores the numbers, so that they stay in use when their intents are deleted.
    pub(super) fn store(self, transaction: &Transaction<'_>) -> Result<(), rusqlite::Error> {
        transaction
            .prepare_cached(
                "UPDATE submission_numbers SET highest = ?1, lowest = ?2 WHERE highest < ?1 OR lowest > ?2",
            )?
            .execute(params![self.highest, self.lowest])
            .map(drop)
    }
}
