//! Reads the counters of the server before and after a load. They do not depend on the speed of the machine.

use super::super::error::BenchResult;
use super::{BenchDatabase, number, run};
use crate::store::sqlserver::Tds;

/// The counters of a server. A counter is `None` if the server does not have it or the login may not read it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    /// Executed statements; those inside a batch are counted one by one.
    pub statements: Option<i64>,
    pub transactions: Option<i64>,
    /// Writes of the transaction log to disk.
    pub log_writes: Option<i64>,
}

/// Counts the statements of cached plans. A server that is short of memory drops plans, and their counts with them.
const STATEMENTS: &str = "SELECT CAST(SUM(s.execution_count) AS BIGINT) AS value FROM sys.dm_exec_query_stats AS s
CROSS APPLY sys.dm_exec_plan_attributes(s.plan_handle) AS a
WHERE a.attribute = 'dbid' AND CAST(a.value AS INT) = DB_ID();";
/// Despite its name this counts transactions since the server was started. The same is true for `Log Flushes/sec`.
const TRANSACTIONS: &str = "SELECT CAST(cntr_value AS BIGINT) AS value FROM sys.dm_os_performance_counters
WHERE counter_name = N'Transactions/sec' AND instance_name = DB_NAME();";
const LOG_WRITES: &str = "SELECT CAST(cntr_value AS BIGINT) AS value FROM sys.dm_os_performance_counters
WHERE counter_name = N'Log Flushes/sec' AND instance_name = DB_NAME();";

/// The counterpart on Babelfish. All its databases are one PostgreSQL database, so the count includes other databases
/// of that server.
const BABELFISH_TRANSACTIONS: &str =
    "SELECT CAST(xact_commit AS BIGINT) AS value FROM pg_stat_database WHERE datname = current_database();";
const BABELFISH_LOG_WRITES: &str = "SELECT CAST(wal_sync AS BIGINT) AS value FROM pg_stat_wal;";

impl Counters {
    pub(crate) async fn read(database: &BenchDatabase) -> BenchResult<Self> {
        let mut client = database.connect().await?;
        Ok(if database.is_babelfish {
            Self {
                statements: None,
                transactions: answer(&mut client, BABELFISH_TRANSACTIONS).await,
                log_writes: answer(&mut client, BABELFISH_LOG_WRITES).await,
            }
        } else {
            Self {
                statements: answer(&mut client, STATEMENTS).await,
                transactions: answer(&mut client, TRANSACTIONS).await,
                log_writes: answer(&mut client, LOG_WRITES).await,
            }
        })
    }

    /// Returns what was spent per thousand intents since `before`.
    pub(crate) fn since(&self, before: &Self, round_trips: usize, intents: usize) -> Spent {
        let thousands = (intents as f64 / 1000.0).max(f64::MIN_POSITIVE);
        let per_thousand = |of: fn(&Self) -> Option<i64>| {
            Some((of(self)? - of(before)?) as f64 / thousands).filter(|spent| *spent >= 0.0)
        };
        Spent {
            round_trips: round_trips as f64 / thousands,
            statements: per_thousand(|counters| counters.statements),
            transactions: per_thousand(|counters| counters.transactions),
            log_writes: per_thousand(|counters| counters.log_writes),
        }
    }
}

/// Reads one counter; `None` if the server does not have it or the login may not read it.
async fn answer(client: &mut Tds, question: &str) -> Option<i64> {
    run(client, question, &[]).await.ok()?.first().and_then(|row| number(row, "value"))
}

#[cfg(test)]
pub(super) const QUESTIONS: [&str; 5] =
    [STATEMENTS, TRANSACTIONS, LOG_WRITES, BABELFISH_TRANSACTIONS, BABELFISH_LOG_WRITES];

/// What a thousand intents cost; `None` for a counter that could not be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spent {
    /// Round trips to the server, counted by the service.
    pub round_trips: f64,
    pub statements: Option<f64>,
    pub transactions: Option<f64>,
    pub log_writes: Option<f64>,
}

impl Spent {
    pub(crate) fn text(&self) -> String {
        let shown = |spent: Option<f64>| spent.map_or("unknown".to_owned(), |spent| format!("{spent:.0}"));
        format!(
            "{:.0} round trips, {} statements, {} transactions, {} log writes",
            self.round_trips,
            shown(self.statements),
            shown(self.transactions),
            shown(self.log_writes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_a_difference_per_thousand_intents() {
        let before = Counters { statements: None, transactions: Some(100), log_writes: Some(50) };
        let after = Counters { statements: Some(7), transactions: Some(160), log_writes: Some(40) };
        let spent = after.since(&before, 40, 2000);
        let expected = Spent { round_trips: 20.0, statements: None, transactions: Some(30.0), log_writes: None };
        assert_eq!(spent, expected, "a counter that was reset in between says nothing");
        assert_eq!(spent.text(), "20 round trips, unknown statements, 30 transactions, unknown log writes");
    }
}
