//! Checks the server and its settings, when the store is first used and in the `check` command.
//!
//! Each warning explains a problem and names the command that fixes it. If a server does not answer one of the queries,
//! that check is skipped: not every server that speaks the protocol has these views, and not every login may read them.

use super::database::{Batch, Database, ResultSets};
use super::rows;
use crate::store::StoreError;

/// The lowest compatibility level with `OPENJSON`, which every statement needs.
const LEAST_LEVEL: i64 = 130;
/// A smaller difference can result from the time between two reads of a clock.
const NOTABLY_AHEAD_MILLIS: i64 = 1000;

pub(super) const LEVEL: &str = "SELECT DB_NAME() AS name, CAST(compatibility_level AS BIGINT) AS compatibility_level
FROM sys.databases WHERE name = DB_NAME();";
pub(super) const JSON: &str = "SELECT COUNT_BIG(*) AS items FROM OPENJSON(N'[1]');";
pub(super) const ISOLATION: &str = "SELECT DB_NAME() AS name, CAST(is_read_committed_snapshot_on AS BIGINT) AS versions
FROM sys.databases WHERE name = DB_NAME();";
pub(super) const CLOCK: &str =
    "SELECT DATEDIFF_BIG(MILLISECOND, SYSUTCDATETIME(), last_at) AS ahead FROM submission_clock;";

/// A setting that should be changed, although the service works without the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The name of the event in the log.
    pub name: &'static str,
    pub text: String,
}

/// Refuses a database whose compatibility level is too low for the statements of this store.
pub(super) async fn level(database: &Database) -> Result<(), StoreError> {
    let Some(found) = ask(database, LEVEL).await? else { return Ok(()) };
    let Some((name, level)) = named(&found, "compatibility_level").filter(|(_, level)| *level < LEAST_LEVEL) else {
        return Ok(());
    };
    // Some servers report a lower level than what they support, so this tries `OPENJSON` itself.
    match ask(database, JSON).await? {
        Some(_) => Ok(()),
        None => Err(StoreError::unexpected(too_low(&name, level))),
    }
}

/// Returns warnings about a database whose schema is current.
pub(super) async fn warnings(database: &Database) -> Result<Vec<Warning>, StoreError> {
    let isolation = ask(database, ISOLATION).await?.and_then(|found| named(&found, "versions"));
    let clock = ask(database, CLOCK).await?.and_then(|found| number(&found, "ahead"));
    let isolation = isolation.filter(|(_, versions)| *versions == 0).map(|(name, _)| no_versions(&name));
    Ok(isolation.into_iter().chain(clock.filter(|ahead| *ahead > NOTABLY_AHEAD_MILLIS).map(clock_ahead)).collect())
}

fn too_low(name: &str, level: i64) -> String {
    let name = quoted(name);
    format!(
        "the compatibility level of the database is {level} and must be {LEAST_LEVEL} or more; run ALTER DATABASE \
         {name} SET COMPATIBILITY_LEVEL = {LEAST_LEVEL} (SQL Server 2014 and older cannot be used)"
    )
}

fn no_versions(name: &str) -> Warning {
    let name = quoted(name);
    let text = format!(
        "READ_COMMITTED_SNAPSHOT is off, so readers wait for writers; run ALTER DATABASE {name} SET \
         READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE, which rolls back the open transactions of all other \
         sessions; instances of this service reconnect automatically"
    );
    Warning { name: "read_committed_snapshot_off", text }
}

fn clock_ahead(millis: i64) -> Warning {
    let seconds = millis / 1000;
    let text = format!(
        "stored times are {seconds} s ahead of the server's clock, which was set back; retries and deadlines wait until \
         it has caught up; check the time synchronisation of the server, and if no instance leads, run \
         'submission-manager lease reset'"
    );
    Warning { name: "store_clock_ahead", text }
}

/// Quotes a name for a statement.
fn quoted(name: &str) -> String {
    format!("[{}]", name.replace(']', "]]"))
}

/// Runs a query; `None` if the server refuses it.
async fn ask(database: &Database, sql: &'static str) -> Result<Option<ResultSets>, StoreError> {
    match database.run(Batch::new(sql, Vec::new())).await {
        Ok(results) => Ok(Some(results)),
        Err(StoreError::Unexpected(why)) => {
            log::debug!("check_not_answered store_error={why:?}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn number(results: &ResultSets, column: &'static str) -> Option<i64> {
    rows::get::<i64>(results.first()?.first()?, column).ok().flatten()
}

/// Returns the name of the database and the number in `column`.
fn named(results: &ResultSets, column: &'static str) -> Option<(String, i64)> {
    let name = rows::text(results.first()?.first()?, "name").ok().flatten()?;
    Some((name, number(results, column)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_have_the_command_that_ends_them() {
        let parses =
            |sql: &str| sqlparser::parser::Parser::parse_sql(&sqlparser::dialect::MsSqlDialect {}, sql).is_ok();
        assert!([LEVEL, JSON, ISOLATION, CLOCK].into_iter().all(parses));
        let text = too_low("a]b", 110);
        assert!(text.contains("ALTER DATABASE [a]]b] SET COMPATIBILITY_LEVEL = 130"), "{text}");
        let text = no_versions("submissions").text;
        assert!(text.contains("ALTER DATABASE [submissions] SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK"), "{text}");
        let text = clock_ahead(61_500).text;
        assert!(text.contains("61 s ahead") && text.contains("submission-manager lease reset"), "{text}");
    }
}
