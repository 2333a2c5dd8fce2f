//! Connections to the server, and running one batch of SQL on one of them.
//!
//! tiberius is not cancel-safe: a call that is dropped half-way leaves its answer on the wire for
//! the next user. So each batch runs in a task of its own that nobody can drop, and a connection
//! counts as dirty from before its work until that ended in order; a dirty one is thrown away.
//! That is also why this is a manager of our own: bb8-tiberius is held at an older tiberius and
//! never calls a connection broken.

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
use crate::store::StoreError;
use crate::telemetry::metrics::Metrics;

/// SQL with its values; values never become part of the text.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub sql: Cow<'static, str>,
    pub values: Vec<Value>,
    pub repeat: Repeat,
    /// It is sent often: the server is to parse it once for each connection.
    pub prepare: bool,
    /// Not one of the store's statements.
    #[cfg(test)]
    pub of_test: bool,
}

impl Batch {
    /// A batch that does no harm when it runs twice.
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

/// When a batch that failed for a passing reason may be sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Whenever the server reports such a reason, also if the batch may have taken effect: running it twice does no harm.
    IfFailed,
    /// Only if the server rolled it back for certain. A batch that starts attempts is such: run a second time it finds them
    /// started, by nobody, and nobody would make them.
    IfRolledBack,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// At most 4,000 UTF-16 units, where its batch is prepared.
    Text(String),
    Json(String),
    Bytes(Bytes),
    Number(i64),
}

/// Rows of each result set, in the order of the statements that made them.
pub(super) type ResultSets = Vec<Vec<Row>>;

#[derive(Clone)]
pub(super) struct Database {
    name: &'static str,
    pool: Pool<Manager>,
    /// Why the last connection that was tried could not be made.
    faults: watch::Sender<String>,
    metrics: Arc<Metrics>,
    /// How long a batch is tried again for.
    budget: Duration,
}

/// Tries of a batch that the server rolled back or refused for a passing reason.
const TRIES: u32 = 5;
/// A connection that was used this recently is taken to be alive without asking.
const FRESH: Duration = Duration::from_secs(1);

impl Database {
    /// Makes a pool of at most `size` connections, with a name for the metrics; connects when first
    /// used.
    pub(super) fn new(settings: &Settings, name: &'static str, size: u32, metrics: Arc<Metrics>) -> Self {
        let faults = watch::Sender::default();
        let manager = Manager { settings: settings.clone(), faults: faults.clone() };
        let pool = Pool::builder()
            .max_size(size)
            .connection_timeout(settings.pool.timeout)
            .idle_timeout(Some(Duration::from_secs(300)))
            .max_lifetime(Some(Duration::from_secs(3600)))
            .test_on_check_out(true)
            // The one that was used last has the most prepared.
            .queue_strategy(QueueStrategy::Lifo)
            // Who waits for a connection is told why there is none, and tries again if it wants to.
            .retry_connection(false)
            .build_unchecked(manager);
        Self { name, pool, faults, metrics, budget: settings.budget }
    }

    /// Runs a batch to its end. One that fails for a passing reason is repeated, if that is safe.
    pub(super) async fn run(&self, batch: Batch) -> Result<ResultSets, StoreError> {
        #[cfg(test)]
        if !batch.of_test {
            super::tests::catalogue::assert_listed(&batch.sql);
        }
        let database = self.clone();
        let task = tokio::spawn(async move { database.run_with_patience(&batch).await });
        match task.await {
            Ok(result) => result,
            Err(panic) => Err(StoreError::Unavailable(format!("a database call died: {panic}"))),
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
            let pause = failure.pause(tried);
            let in_time = monotonic().duration_since(started) + pause < self.budget;
            if tried >= TRIES || !in_time || !failure.allows(batch.repeat) {
                return Err(failure.into());
            }
            log::debug!("batch_repeated tried={tried} store_error={:?}", failure.text());
            tokio::time::sleep(pause).await;
        }
    }

    async fn run_once(&self, batch: &Batch) -> Result<ResultSets, Failure> {
        let waited = monotonic();
        let got = self.connection().await;
        self.show_pool(waited);
        let mut connection = got.map_err(Failure::Unreachable)?;
        connection.dirty = true;
        let result = connection.query(batch).await;
        match result {
            Ok(results) => {
                connection.dirty = false;
                connection.used = monotonic();
                Ok(results)
            }
            Err(QueryError { error, answered: true }) => Err(Failure::InDoubt(error.to_string())),
            Err(QueryError { error, answered: false }) => Err(Failure::of(error, &mut connection).await),
        }
    }

    /// A connection, or why there is none: at once if one cannot be made and there are no others.
    async fn connection(&self) -> Result<PooledConnection<'_, Manager>, String> {
        let mut faults = self.faults.subscribe();
        let get = self.pool.get();
        tokio::pin!(get);
        loop {
            tokio::select! {
                got = &mut get => {
                    return got.map_err(|error| match error {
                        RunError::User(error) => error.to_string(),
                        RunError::TimedOut => "no connection became free in time".to_owned(),
                    });
                }
                Ok(()) = faults.changed() => {
                    if self.pool.state().connections == 0 {
                        return Err(faults.borrow().clone());
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

/// Why a batch did not run to its end.
struct QueryError {
    error: Error,
    /// A result set had arrived. Batches that write answer after their commit, so they have taken effect.
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
    // Returns with the first result set, or at the end if there is none.
    let stream = query.query(client).await.map_err(|error| QueryError { error, answered: false })?;
    stream.into_results().await.map_err(|error| QueryError { error, answered: true })
}

#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// No connection, or it broke: whether a write took effect may be unknown.
    Unreachable(String),
    /// The server had begun to answer: a write has taken effect, and what became of it is not known.
    InDoubt(String),
    /// The server undid the whole batch for a reason that passes.
    RolledBack(String),
    /// The server refused the batch or gave it up for a reason that passes; it may have taken effect.
    Passing { code: u32, text: String },
    /// A key was there already: another transaction was first, or it is in the batch itself.
    KeyExists(String),
    /// The server said no.
    Refused(String),
}

impl Failure {
    async fn of(error: Error, connection: &mut Connection) -> Self {
        let text = error.to_string();
        let Error::Server(token) = &error else { return Self::Unreachable(text) };
        match Self::of_code(token.code(), text) {
            Ok(known) => known,
            // A server that goes away says so before it closes; what it says then is no verdict.
            Err(text) if token.class() < 17 && connection.answers().await => Self::Refused(text),
            Err(text) => Self::Unreachable(text),
        }
    }

    /// What an error number of the server says by itself, if it says enough.
    fn of_code(code: u32, text: String) -> Result<Self, String> {
        match code {
            // Deadlock victim, a lock that took too long, a conflict of snapshots.
            1205 | 1222 | 3960 => Ok(Self::RolledBack(text)),
            2601 | 2627 => Ok(Self::KeyExists(text)),
            // Limits and reconfigurations of Azure SQL. Some of them may come after a commit (40143, 40197, 40540, 40613).
            615 | 926 | 4060 | 4221 | 10_928 | 10_929 | 40_143 | 40_197 | BUSY | 40_540 | 40_613 | 49_918 | 49_919
            | 49_920 => Ok(Self::Passing { code, text }),
            // This replica is not the primary any more. A new connection finds the one that is.
            976 | 983 | 3906 => Ok(Self::Unreachable(text)),
            _ => Err(text),
        }
    }

    fn allows(&self, repeat: Repeat) -> bool {
        match self {
            Self::RolledBack(_) => true,
            Self::Passing { .. } | Self::KeyExists(_) => repeat == Repeat::IfFailed,
            Self::Unreachable(_) | Self::InDoubt(_) | Self::Refused(_) => false,
        }
    }

    /// How long to wait before try number `tried + 1`.
    fn pause(&self, tried: u32) -> Duration {
        const ASKED_FOR: Duration = Duration::from_secs(10);
        match self {
            Self::Passing { code: BUSY, .. } => ASKED_FOR,
            _ => Duration::from_millis(10 << tried).mul_f64(0.5 + fastrand::f64()),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Unreachable(text)
            | Self::InDoubt(text)
            | Self::RolledBack(text)
            | Self::Passing { text, .. }
            | Self::KeyExists(text)
            | Self::Refused(text) => text,
        }
    }
}

/// "The service is currently busy. Retry the request after 10 seconds."
const BUSY: u32 = 40_501;

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::InDoubt(text) => {
                Self::Unavailable(format!("the answer to a batch was lost, which has taken effect: {text}"))
            }
            Failure::Unreachable(text) | Failure::RolledBack(text) | Failure::Passing { text, .. } => {
                Self::Unavailable(text)
            }
            Failure::Refused(text) | Failure::KeyExists(text) => Self::Unexpected(text),
        }
    }
}

/// Lets the server parse a batch. The handle lasts as long as the connection.
pub(super) const PREPARE: &str = "
DECLARE @handle INT;
EXEC sp_prepare @handle OUTPUT, @P1, @P2, 1;
SELECT CAST(@handle AS BIGINT) AS handle;";

/// A connection as the driver has it.
pub type Tds = Client<Compat<TcpStream>>;

pub(super) struct Manager {
    settings: Settings,
    faults: watch::Sender<String>,
}

impl Manager {
    async fn make(&self) -> Result<Connection, Error> {
        let mut client = connect(&self.settings).await?;
        client.simple_query(setup(self.settings.lock_timeout)).await?.into_results().await?;
        Ok(Connection { client, dirty: false, used: monotonic(), prepared: HashMap::new() })
    }
}

/// What every connection is told first: errors undo the whole batch, counts are not wanted, nobody waits for a lock for
/// ever.
fn setup(lock_timeout: Duration) -> String {
    format!("SET XACT_ABORT ON; SET NOCOUNT ON; SET LOCK_TIMEOUT {};", lock_timeout.as_millis())
}

pub(super) struct Connection {
    client: Tds,
    /// Work was begun on it and has not ended in order.
    dirty: bool,
    used: Instant,
    /// The handles of batches that the server has parsed, by their text; none of those that it would not prepare.
    prepared: HashMap<Cow<'static, str>, Option<i64>>,
}

impl Connection {
    /// Runs a batch, by its handle if it is to be prepared.
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
            // It says no to this text; it may be run all the same.
            Err(QueryError { error: Error::Server(token), .. }) if token.class() < 17 => None,
            Err(error) => return Err(error),
        };
        self.prepared.insert(batch.sql.clone(), handle);
        Ok(handle)
    }

    /// Whether it answers and has no transaction open; gives one up that a failure left behind.
    async fn answers(&mut self) -> bool {
        query(&mut self.client, "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION", &[]).await.is_ok()
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = Error;

    async fn connect(&self) -> Result<Connection, Error> {
        // A little less than whoever waits for it has, so that they hear of it.
        let timeout = self.settings.pool.timeout * 9 / 10;
        let late = |_| {
            let message = format!("the server did not answer within {timeout:?}");
            Err(Error::Io { kind: std::io::ErrorKind::TimedOut, message })
        };
        let made = tokio::time::timeout(timeout, self.make()).await.unwrap_or_else(late);
        made.inspect_err(|error| drop(self.faults.send_replace(error.to_string())))
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

/// Connects, following the one redirection that Azure SQL may ask for.
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
        let of = |code| Failure::of_code(code, String::new());
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
            let failure = of(former_primary).unwrap();
            assert_eq!(kinds(former_primary), (false, false));
            assert!(matches!(StoreError::from(failure), StoreError::Unavailable(_)), "{former_primary}");
        }
        assert!(of(8152).is_err(), "whether that is a verdict is for the connection to say");
        assert!(!Failure::InDoubt(String::new()).allows(Repeat::IfFailed));
        assert!(of(BUSY).unwrap().pause(1) >= Duration::from_secs(10), "as long as the server asks for");
        assert!(of(1205).unwrap().pause(1) < Duration::from_secs(1));
    }
}
