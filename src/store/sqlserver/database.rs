//! Connection pools, and running one batch of SQL on a connection.
//!
//! tiberius is not cancel-safe: if the future of a query is dropped, the server's answer stays unread on the connection
//! and the next user would read it. Each batch therefore runs in a task of its own that is never cancelled. A
//! connection is marked dirty before a batch and clean only after the batch has ended normally; a dirty connection is
//! discarded. bb8-tiberius does not do this and needs an older tiberius, so this module implements bb8's
//! `ManageConnection` itself.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bb8::{ManageConnection, Pool, PooledConnection, QueueStrategy, RunError};
use bytes::Bytes;
use tiberius::error::Error;
use tiberius::{Client, Config, Query, Row, SqlBrowser};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::compat::{Compat, TokioAsyncWriteCompatExt};

use super::settings::Settings;
use crate::platform::clock::monotonic;
use crate::platform::errors::{BoxError, Described, full_text};
use crate::store::StoreError;
use crate::telemetry::metrics::Metrics;

/// SQL text with the values of its parameters. Values never become part of the text.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub sql: Cow<'static, str>,
    pub values: Vec<Value>,
    pub repeat: Repeat,
    /// Whether the server parses the batch once for each connection (`sp_prepare`). Set for batches that are sent
    /// often.
    pub prepare: bool,
    /// Whether this is a statement of a test and not of the store.
    #[cfg(test)]
    pub of_test: bool,
}

impl Batch {
    /// Makes a batch that is harmless when it runs twice.
    pub(super) fn new(sql: impl Into<Cow<'static, str>>, values: Vec<Value>) -> Self {
        Self {
            sql: sql.into(),
            values,
            repeat: Repeat::IfFailed,
            prepare: false,
            #[cfg(test)]
            of_test: false,
        }
    }
}

/// When a batch that failed with a temporary error may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// After every temporary error, even if the batch may have taken effect, because running it twice is harmless.
    IfFailed,
    /// Only if the server is known to have rolled it back. This is for batches that start attempts: a second run would
    /// find the attempts already started and report them as stale, so they would stay open and never be made.
    IfRolledBack,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A text of at most 4,000 UTF-16 code units if its batch is prepared.
    Text(String),
    Json(String),
    Bytes(Bytes),
    Number(i64),
}

/// The rows of each result set, in the order of the statements that return them.
pub(super) type ResultSets = Vec<Vec<Row>>;

#[derive(Clone)]
pub(super) struct Database {
    name: &'static str,
    pool: Pool<Manager>,
    /// The error of the last connection that could not be opened.
    faults: watch::Sender<Option<Error>>,
    metrics: Arc<Metrics>,
    /// How long a batch may take in all, including repetitions.
    budget: Duration,
}

/// How often a batch is sent at most if it fails with temporary errors.
const TRIES: u32 = 5;
/// A connection that was used this recently is not tested before it is used again.
const FRESH: Duration = Duration::from_secs(1);

impl Database {
    /// Makes a pool of at most `size` connections without connecting. `name` is the label of the pool in the metrics.
    pub(super) fn new(settings: &Settings, name: &'static str, size: u32, metrics: Arc<Metrics>) -> Self {
        let faults = watch::Sender::default();
        let manager = Manager { settings: settings.clone(), faults: faults.clone() };
        let pool = Pool::builder()
            .max_size(size)
            .connection_timeout(settings.pool.timeout)
            .idle_timeout(Some(Duration::from_secs(300)))
            .max_lifetime(Some(Duration::from_secs(3600)))
            .test_on_check_out(true)
            // The connection that was used last has the most prepared statements.
            .queue_strategy(QueueStrategy::Lifo)
            // A caller that waits for a connection gets the error of a failed connection at once, and decides itself
            // whether to try again.
            .retry_connection(false)
            .build_unchecked(manager);
        Self { name, pool, faults, metrics, budget: settings.budget }
    }

    /// Runs a batch to its end. Repeats it after a temporary error, if that is safe.
    pub(super) async fn run(&self, batch: Batch) -> Result<ResultSets, StoreError> {
        #[cfg(test)]
        if !batch.of_test && !super::simulated::is_active() {
            super::tests::catalogue::assert_listed(&batch.sql);
        }
        #[cfg(test)]
        let batch = super::simulated::with_clock(batch);
        let database = self.clone();
        let task = tokio::spawn(async move { database.run_with_patience(&batch).await });
        match task.await {
            Ok(result) => result,
            Err(panic) => Err(StoreError::unavailable(Described::new("a database call panicked", panic))),
        }
    }

    async fn run_with_patience(&self, batch: &Batch) -> Result<ResultSets, StoreError> {
        let mut tried = 0;
        let started = monotonic();
        loop {
            tried += 1;
            let failure = match self.run_once(batch).await {
                Ok(results) => return Ok(results),
                Err(failure) => failure,
            };
            let pause = failure.kind.pause(tried);
            let in_time = monotonic().duration_since(started) + pause < self.budget;
            if tried >= TRIES || !in_time || !failure.kind.allows(batch.repeat) {
                return Err(failure.into());
            }
            log::debug!("batch_repeated tried={tried} store_error={:?}", full_text(failure.error.as_ref()));
            tokio::time::sleep(pause).await;
        }
    }

    async fn run_once(&self, batch: &Batch) -> Result<ResultSets, Failure> {
        let waited = monotonic();
        let got = self.connection().await;
        self.show_pool(waited);
        let mut connection = got.map_err(|error| Failure::new(FailureKind::Unreachable, error))?;
        connection.dirty = true;
        let result = connection.query(batch).await;
        match result {
            Ok(results) => {
                connection.dirty = false;
                connection.used = monotonic();
                Ok(results)
            }
            Err(QueryError { error, answered: true }) => Err(Failure::new(FailureKind::InDoubt, error)),
            Err(QueryError { error, answered: false }) => Err(Failure::of(error, &mut connection).await),
        }
    }

    /// Takes a connection from the pool. Fails at once if no connection can be opened and the pool has no other.
    async fn connection(&self) -> Result<PooledConnection<'_, Manager>, BoxError> {
        let mut faults = self.faults.subscribe();
        let get = self.pool.get();
        tokio::pin!(get);
        loop {
            tokio::select! {
                got = &mut get => {
                    return got.map_err(|error| match error {
                        RunError::User(error) => error.into(),
                        RunError::TimedOut => "no connection became free in time".into(),
                    });
                }
                Ok(()) = faults.changed() => {
                    if self.pool.state().connections == 0 {
                        let fault = faults.borrow().clone();
                        return Err(fault.map_or_else(|| "no connection can be opened".into(), BoxError::from));
                    }
                }
            }
        }
    }

    fn show_pool(&self, waited: Instant) {
        let state = self.pool.state();
        self.metrics.store_pool(
            self.name,
            state.connections,
            state.idle_connections,
            monotonic().duration_since(waited),
        );
    }
}

/// The error of a batch that did not run to its end.
struct QueryError {
    error: Error,
    /// Whether a result set had arrived. Batches that write return result sets only after their commit, so they have
    /// taken effect.
    answered: bool,
}

async fn query(client: &mut Tds, sql: &str, values: &[Value]) -> Result<ResultSets, QueryError> {
    let mut query = Query::new(sql);
    for value in values {
        match value {
            Value::Text(text) | Value::Json(text) => query.bind(text.as_str()),
            Value::Bytes(bytes) => query.bind(bytes.as_ref()),
            Value::Number(number) => query.bind(*number),
        }
    }
    // This returns when the first result set arrives, or at the end if there is none.
    let stream = query.query(client).await.map_err(|error| QueryError { error, answered: false })?;
    stream.into_results().await.map_err(|error| QueryError { error, answered: true })
}

/// Why a batch failed, and the error of the driver or of the pool.
#[derive(Debug)]
struct Failure {
    kind: FailureKind,
    error: BoxError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureKind {
    /// There is no connection, or it broke. Whether a write took effect may be unknown.
    Unreachable,
    /// The answer broke off after its first result set: a write has taken effect, and its results are not known.
    InDoubt,
    /// The server rolled back the whole batch because of a temporary condition.
    RolledBack,
    /// The server refused or ended the batch because of a temporary condition. The batch may have taken effect.
    Passing { code: u32 },
    /// A key exists already, because another transaction inserted it first or the batch contains it twice.
    KeyExists,
    /// The server refused the batch, and would refuse it again.
    Refused,
}

impl Failure {
    fn new(kind: FailureKind, error: impl Into<BoxError>) -> Self {
        Self { kind, error: error.into() }
    }

    async fn of(error: Error, connection: &mut Connection) -> Self {
        let kind = match &error {
            Error::Server(token) => match FailureKind::of_code(token.code()) {
                Some(kind) => kind,
                // A server that is shutting down sends an error before it closes the connection. Such an error is not
                // about the batch.
                None if token.class() < 17 && connection.answers().await => FailureKind::Refused,
                None => FailureKind::Unreachable,
            },
            _ => FailureKind::Unreachable,
        };
        Self::new(kind, error)
    }
}

impl FailureKind {
    /// The kind of failure, if the server's error number alone decides it.
    fn of_code(code: u32) -> Option<Self> {
        match code {
            // Deadlock victim; lock timeout; update conflict under snapshot isolation.
            1205 | 1222 | 3960 => Some(Self::RolledBack),
            2601 | 2627 => Some(Self::KeyExists),
            // Limits and reconfigurations of Azure SQL. Some of them may come after a commit (40143, 40197, 40540, 40613).
            615 | 926 | 4060 | 4221 | 10_928 | 10_929 | 40_143 | 40_197 | BUSY | 40_540 | 40_613 | 49_918 | 49_919
            | 49_920 => Some(Self::Passing { code }),
            // This replica is no longer the primary. A new connection reaches the new primary.
            976 | 983 | 3906 => Some(Self::Unreachable),
            _ => None,
        }
    }

    fn allows(self, repeat: Repeat) -> bool {
        match self {
            Self::RolledBack => true,
            Self::Passing { .. } | Self::KeyExists => repeat == Repeat::IfFailed,
            Self::Unreachable | Self::InDoubt | Self::Refused => false,
        }
    }

    /// How long to wait before the batch is sent again, after `tried` failures.
    fn pause(self, tried: u32) -> Duration {
        const ASKED_FOR: Duration = Duration::from_secs(10);
        match self {
            Self::Passing { code: BUSY } => ASKED_FOR,
            _ => Duration::from_millis(10 << tried).mul_f64(0.5 + fastrand::f64()),
        }
    }
}

/// "The service is currently busy. Retry the request after 10 seconds."
const BUSY: u32 = 40_501;

impl From<Failure> for StoreError {
    fn from(Failure { kind, error }: Failure) -> Self {
        match kind {
            FailureKind::InDoubt => {
                Self::unavailable(Described::new("a batch has taken effect, but its answer was lost", error))
            }
            FailureKind::Unreachable | FailureKind::RolledBack | FailureKind::Passing { .. } => {
                Self::unavailable(error)
            }
            FailureKind::Refused | FailureKind::KeyExists => Self::unexpected(error),
        }
    }
}

/// Prepares a batch on the server. The handle is valid as long as the connection.
pub(super) const PREPARE: &str = "
DECLARE @handle INT;
EXEC sp_prepare @handle OUTPUT, @P1, @P2, 1;
SELECT CAST(@handle AS BIGINT) AS handle;";

/// A connection of the driver, tiberius.
pub type Tds = Client<Compat<TcpStream>>;

pub(super) struct Manager {
    settings: Settings,
    faults: watch::Sender<Option<Error>>,
}

impl Manager {
    async fn make(&self) -> Result<Connection, Error> {
        let mut client = connect(&self.settings).await?;
        client.simple_query(setup(self.settings.lock_timeout)).await?.into_results().await?;
        Ok(Connection { client, dirty: false, used: monotonic(), prepared: HashMap::new() })
    }
}

/// The settings of every new connection: an error rolls back the whole batch, row counts are not sent, and waiting for
/// a lock has a timeout.
fn setup(lock_timeout: Duration) -> String {
    format!("SET XACT_ABORT ON; SET NOCOUNT ON; SET LOCK_TIMEOUT {};", lock_timeout.as_millis())
}

pub(super) struct Connection {
    client: Tds,
    /// Whether a batch was started on this connection and has not ended normally.
    dirty: bool,
    used: Instant,
    /// The handles of prepared batches by their text; `None` for a batch that the server refused to prepare.
    prepared: HashMap<Cow<'static, str>, Option<i64>>,
}

impl Connection {
    /// Runs a batch, through its handle if it is prepared.
    async fn query(&mut self, batch: &Batch) -> Result<ResultSets, QueryError> {
        let Some(handle) = self.handle(batch).await? else {
            return query(&mut self.client, &batch.sql, &batch.values).await;
        };
        let parameters = (1..=batch.values.len()).fold(String::new(), |all, number| format!("{all}, @P{number}"));
        query(&mut self.client, &format!("EXEC sp_execute {handle}{parameters};"), &batch.values).await
    }

    async fn handle(&mut self, batch: &Batch) -> Result<Option<i64>, QueryError> {
        if !batch.prepare {
            return Ok(None);
        }
        if let Some(known) = self.prepared.get(&batch.sql) {
            return Ok(*known);
        }
        let types = batch.values.iter().map(|value| match value {
            Value::Text(_) => "NVARCHAR(4000)",
            Value::Json(_) => "NVARCHAR(MAX)",
            Value::Bytes(_) => "VARBINARY(MAX)",
            Value::Number(_) => "BIGINT",
        });
        let types: Vec<_> = types.enumerate().map(|(place, name)| format!("@P{} {name}", place + 1)).collect();
        let values = [Value::Text(types.join(", ")), Value::Json(batch.sql.to_string())];
        let handle = match query(&mut self.client, PREPARE, &values).await {
            Ok(results) => results.iter().flatten().next().and_then(|row| row.try_get("handle").ok().flatten()),
            // The server does not prepare this text, but may still run it.
            Err(QueryError { error: Error::Server(token), .. }) if token.class() < 17 => None,
            Err(error) => return Err(error),
        };
        self.prepared.insert(batch.sql.clone(), handle);
        Ok(handle)
    }

    /// Whether the server answers on this connection. Rolls back a transaction that a failed batch left open.
    async fn answers(&mut self) -> bool {
        query(&mut self.client, "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION", &[]).await.is_ok()
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = Error;

    async fn connect(&self) -> Result<Connection, Error> {
        // A little less than the callers' timeout, so that they get this error instead of their own timeout.
        let timeout = self.settings.pool.timeout * 9 / 10;
        let late = |_| {
            let message = format!("the server did not answer within {timeout:?}");
            Err(Error::Io { kind: std::io::ErrorKind::TimedOut, message })
        };
        let made = tokio::time::timeout(timeout, self.make()).await.unwrap_or_else(late);
        made.inspect_err(|error| drop(self.faults.send_replace(Some(error.clone()))))
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), Error> {
        if monotonic().duration_since(connection.used) < FRESH {
            return Ok(());
        }
        connection.dirty = true;
        if !connection.answers().await {
            return Err(Error::Protocol("the connection is dead".into()));
        }
        connection.dirty = false;
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.dirty
    }
}

/// Opens a connection, and follows one redirection, which Azure SQL may request.
pub async fn connect(settings: &Settings) -> Result<Tds, Error> {
    let config = settings.config().await?;
    match connect_to(config.clone()).await {
        Err(Error::Routing { host, port }) => {
            let mut redirected = config;
            redirected.host(&host);
            redirected.port(port);
            connect_to(redirected).await
        }
        result => result,
    }
}

async fn connect_to(config: Config) -> Result<Tds, Error> {
    let stream = TcpStream::connect_named(&config).await?;
    stream.set_nodelay(true)?;
    Client::connect(config, stream.compat_write()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_repeated_only_where_that_is_safe() {
        let of = FailureKind::of_code;
        let kinds = |code: u32| {
            let failure = of(code).unwrap();
            (failure.allows(Repeat::IfRolledBack), failure.allows(Repeat::IfFailed))
        };
        for rolled_back in [1205, 1222, 3960] {
            assert_eq!(kinds(rolled_back), (true, true), "{rolled_back}");
        }
        for may_have_happened in [40_143, 40_197, 40_540, 40_613, BUSY, 2627] {
            assert_eq!(kinds(may_have_happened), (false, true), "{may_have_happened}");
        }
        for former_primary in [976, 983, 3906] {
            let failure = Failure::new(of(former_primary).unwrap(), "read only");
            assert_eq!(kinds(former_primary), (false, false));
            assert!(matches!(StoreError::from(failure), StoreError::Unavailable(_)), "{former_primary}");
        }
        assert!(of(8152).is_none(), "whether that is a verdict is for the connection to say");
        assert!(!FailureKind::InDoubt.allows(Repeat::IfFailed));
        assert!(of(BUSY).unwrap().pause(1) >= Duration::from_secs(10), "as long as the server asks for");
        assert!(of(1205).unwrap().pause(1) < Duration::from_secs(1));
    }
}
