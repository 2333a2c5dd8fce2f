//! `bench --store`: creates databases on a SQL Server, fills them, and reads the counters of the server.
//!
//! Each run creates a database and drops it. Nothing else on the server is changed.

mod ceiling;
mod counters;
mod fill;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tiberius::{Row, ToSql};

pub(super) use self::ceiling::measure as measure_ceiling;
pub(super) use self::counters::{Counters, Spent};
pub(super) use self::fill::fill;
use super::error::{BenchResult, Step};
use crate::platform::errors::{BoxError, full_text};
use crate::store::selection::{Credentials, StoreChoice};
use crate::store::sqlserver::{PoolSettings, Settings, Tds, connect};
use crate::telemetry::metrics::Metrics;

/// The timeout is long, because a statement that fills a database takes long.
const POOL: PoolSettings = PoolSettings { size: 2, timeout: Duration::from_secs(300) };

/// The server on which databases are created, and the login.
#[derive(Clone)]
pub(super) struct Server {
    connection_string: String,
    pub password: Option<String>,
    pub token_file: Option<PathBuf>,
}

impl Server {
    /// Parses the connection string of a server, which must name no database. An error does not repeat the string.
    pub(super) fn new(
        connection_string: &str,
        password: Option<String>,
        token_file: Option<PathBuf>,
    ) -> BenchResult<Self> {
        let server = Self { connection_string: connection_string.to_owned(), password, token_file };
        server.settings(MASTER).step(|| "--store must be the connection string of a SQL Server, without a Database")?;
        Ok(server)
    }

    fn connection_string(&self, database: &str) -> String {
        format!("{};Database={database}", self.connection_string)
    }

    fn settings(&self, database: &str) -> BenchResult<Settings> {
        let credentials = Credentials { password: self.password.as_deref(), token_file: self.token_file.as_deref() };
        match StoreChoice::parse(&self.connection_string(database), credentials, POOL)? {
            StoreChoice::SqlServer(settings) => Ok(*settings),
            StoreChoice::Sqlite(_) => Err("it names a file".into()),
        }
    }

    /// Creates a database with the current schema.
    pub(super) async fn create(&self) -> BenchResult<BenchDatabase> {
        let name = format!("submission_manager_bench_{:08x}", fastrand::u32(..));
        let mut client = self.connect(MASTER).await?;
        let is_babelfish = run(&mut client, IS_BABELFISH, &[]).await?.first().and_then(|row| number(row, "value"));
        run(&mut client, &format!("CREATE DATABASE {name}"), &[]).await?;
        let database = BenchDatabase { server: self.clone(), name, is_babelfish: is_babelfish == Some(1) };
        let metrics = Arc::new(Metrics::new()?);
        let choice = StoreChoice::SqlServer(Box::new(self.settings(&database.name)?));
        choice.migrate(metrics).await?;
        Ok(database)
    }

    async fn connect(&self, database: &str) -> BenchResult<Tds> {
        connect(&self.settings(database)?).await.step(|| "cannot connect to the server").map_err(Into::into)
    }
}

/// The database to connect to for creating and dropping others.
const MASTER: &str = "master";
/// Returns 1 on Babelfish and NULL on SQL Server.
const IS_BABELFISH: &str = "SELECT CAST(SERVERPROPERTY('Babelfish') AS BIGINT) AS value;";

/// A database that exists until this value is dropped.
pub(super) struct BenchDatabase {
    pub server: Server,
    name: String,
    /// Whether the server is Babelfish, which has other counters and fewer commands.
    is_babelfish: bool,
}

impl BenchDatabase {
    pub(super) fn connection_string(&self) -> String {
        self.server.connection_string(&self.name)
    }

    pub(super) async fn connect(&self) -> BenchResult<Tds> {
        self.server.connect(&self.name).await
    }
}

impl Drop for BenchDatabase {
    /// Waits until the database is gone, because the next one is measured on the same server.
    fn drop(&mut self) {
        let (server, name, is_babelfish) = (self.server.clone(), self.name.clone(), self.is_babelfish);
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let dropped = runtime.block_on(drop_database(&server, &name, is_babelfish));
            dropped.map_err(|error| BoxError::from(full_text(&*error)))
        });
        if let Ok(Err(error)) = dropping.join() {
            eprintln!("cannot drop the database {}, drop it yourself: {error}", self.name);
        }
    }
}

/// Drops a database. Tries again for a while, because the connections of a service that was just killed take a moment
/// to close.
async fn drop_database(server: &Server, name: &str, is_babelfish: bool) -> BenchResult {
    const TRIES: usize = 50;
    let mut client = server.connect(MASTER).await?;
    if !is_babelfish {
        run(&mut client, &format!("ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE"), &[]).await?;
    }
    let mut result = Ok(());
    for _ in 0..TRIES {
        result = run(&mut client, &format!("DROP DATABASE {name}"), &[]).await.map(drop);
        if result.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(result?)
}

/// Runs a batch and returns the rows of its first result set.
async fn run(client: &mut Tds, sql: &str, values: &[&dyn ToSql]) -> Result<Vec<Row>, tiberius::error::Error> {
    let results = match client.query(sql, values).await {
        Ok(stream) => stream.into_results().await,
        Err(error) => Err(error),
    };
    results.map(|sets| sets.into_iter().next().unwrap_or_default())
}

/// Reads a number from a row.
fn number(row: &Row, column: &str) -> Option<i64> {
    row.try_get::<i64, _>(column).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_parses() {
        let statements = fill::statements().into_iter();
        let statements = statements.chain(ceiling::STATEMENTS.map(str::to_owned));
        for sql in statements.chain(counters::QUESTIONS.map(str::to_owned)).chain([IS_BABELFISH.to_owned()]) {
            let parsed = sqlparser::parser::Parser::parse_sql(&sqlparser::dialect::MsSqlDialect {}, &sql);
            assert!(parsed.is_ok(), "{parsed:?} in\n{sql}");
        }
    }

    #[test]
    fn a_store_is_a_server_without_a_database() {
        let new = |text: &str| Server::new(text, Some("tr0ub4dor".to_owned()), None).map(drop);
        assert!(new("Server=db;User Id=u").is_ok());
        for text in ["sqlite:data.db", "Server=db;User Id=u;Database=d", "Server=db"] {
            let error = full_text(&*new(text).unwrap_err());
            assert!(error.starts_with("--store ") && !error.contains("tr0ub4dor"), "{text}: {error}");
        }
    }
}
