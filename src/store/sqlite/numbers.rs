//! Numbers of intents: none is given twice, also when the intent that had it is purged.
//!
//! A number is one more than the highest there is, or one less than the lowest for jobs, which count downwards. Purging writes
//! down the highest and the lowest number when it deletes them.

use rusqlite::{Transaction, params};

/// The numbers that were given last.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    highest: i64,
    lowest: i64,
}

/// The index of the table itself: both ends are found without a search.
pub const ENDS: &str = "
    SELECT max(n.highest, coalesce((SELECT max(intent_seq) FROM submission_intents), 0)),
        min(n.lowest, coalesce((SELECT min(intent_seq) FROM submission_intents), 0))
    FROM submission_numbers n";

impl Numbers {
    pub fn load(transaction: &Transaction<'_>) -> Result<Self, rusqlite::Error> {
        transaction.prepare_cached(ENDS)?.query_row([], |row| Ok(Self { highest: row.get(0)?, lowest: row.get(1)? }))
    }

    /// The number for the next intent.
    pub fn next(&mut self) -> i64 {
        self.highest += 1;
        self.highest
    }

    /// The number for the intent of the next job. They count downwards from zero, so that lists of other intents need not step
    /// over jobs, and their numbers do not tell how many jobs there are.
    pub fn next_of_job(&mut self) -> i64 {
        self.lowest -= 1;
        self.lowest
    }

    /// Keeps these as given, whatever becomes of the intents that have them.
    pub fn keep(self, transaction: &Transaction<'_>) -> Result<(), rusqlite::Error> {
        transaction
            .prepare_cached(
                "UPDATE submission_numbers SET highest = ?1, lowest = ?2 WHERE highest < ?1 OR lowest > ?2",
            )?
            .execute(params![self.highest, self.lowest])
            .map(drop)
    }
}
