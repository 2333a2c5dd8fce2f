//! A SQLite store for simulations: its database is in memory, and every call is made at once by the thread that polls it.
//!
//! No other thread takes part, so the same calls in the same order have the same results. The statements and transactions are
//! those of every SQLite store. A simulation can make a commit fail, or one item of a batch, which only SQLite itself could
//! do otherwise.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, Transaction, params};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::checkpoint::Checkpointer;
use super::connection::{self, store_error};
use super::{ContractCache, DatabaseFile, Readers, SqliteStore, Writer, copy, migrate};
use crate::domain::schedule::Waiting;
use crate::platform::clock::{WallClock, monotonic};
use crate::platform::mutated;
use crate::store::copy::tables::{Row, Table};
use crate::store::{StoreError, StoreFuture, WriteBatch};

/// What to make fail in the next commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitFault {
    #[default]
    None,
    /// The transaction is rolled back instead of committed.
    AtCommit,
    /// The item with this number fails, whenever it is written.
    Item(usize),
}

thread_local! {
    static FAULT: Cell<CommitFault> = const { Cell::new(CommitFault::None) };
    static ITEM: Cell<usize> = const { Cell::new(0) };
}

/// Sets what to make fail in commits of this thread.
pub fn set_fault(fault: CommitFault) {
    FAULT.set(fault);
}

/// A transaction begins: its next item has the number zero.
pub(super) fn begin() {
    ITEM.set(0);
}

/// The next item is written. Fails if it is told to.
pub(super) fn item() -> Result<(), rusqlite::Error> {
    let number = ITEM.replace(ITEM.get() + 1);
    if FAULT.get() == CommitFault::Item(number) { Err(rusqlite::Error::InvalidQuery) } else { Ok(()) }
}

/// Commits a batch, or fails if it is told to.
pub(super) fn commit(transaction: Transaction<'_>, batch: &WriteBatch) -> Result<(), rusqlite::Error> {
    if FAULT.get() == CommitFault::AtCommit && !mutated!(CommitErrorIgnored) {
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        return Err(rusqlite::Error::SqliteFailure(full, Some("told to fail at commit".to_owned())));
    }
    let has_starts = batch.fenced.as_ref().is_some_and(|writes| !writes.starts.is_empty());
    if FAULT.get() == CommitFault::AtCommit || (mutated!(CallBeforeRecord) && has_starts) {
        return transaction.rollback();
    }
    transaction.commit()
}

impl SqliteStore {
    /// Makes an empty database in memory.
    pub fn in_memory(clock: WallClock) -> Self {
        let path = Path::new("/dev/null");
        let connection = connection::in_memory().unwrap();
        connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
        migrate::apply_all(&connection).unwrap();
        remember(&connection).unwrap();
        connection.execute_batch(CHANGED).unwrap();
        let writer = Writer { connection, contracts: ContractCache::default(), commit_time: Duration::ZERO };
        let writer = Arc::new(Mutex::new(writer));
        Self {
            file: Arc::new(DatabaseFile::of(path)),
            clock,
            writer: Arc::clone(&writer),
            readers: Readers::open(path, 0).unwrap(),
            reserved: Readers::open(path, 0).unwrap(),
            checkpointer: Checkpointer::never(writer),
            inline: true,
        }
    }

    /// The same database with another clock, emptied, with every prepared statement kept.
    pub fn emptied(&self, clock: WallClock) -> Self {
        self.inspect(forget).unwrap();
        let mut writer = self.writer.try_lock().unwrap();
        (writer.contracts, writer.commit_time) = (ContractCache::default(), Duration::ZERO);
        Self {
            file: Arc::clone(&self.file),
            clock,
            writer: Arc::clone(&self.writer),
            readers: Arc::clone(&self.readers),
            reserved: Arc::clone(&self.reserved),
            checkpointer: Arc::clone(&self.checkpointer),
            inline: true,
        }
    }

    /// Empties the database and inserts these rows, which are those of another store.
    pub(in crate::store) fn replace_rows(&self, tables: &[(&'static Table, Vec<Row>)]) {
        self.inspect(|connection| {
            forget(connection)?;
            let transaction = connection.unchecked_transaction()?;
            tables.iter().try_for_each(|(table, rows)| copy::insert(&transaction, table, rows))?;
            transaction.commit()
        })
        .unwrap();
    }

    /// Reads the database from outside, between two calls.
    pub fn inspect<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        read(&self.writer.try_lock().unwrap().connection)
    }

    /// The store's time.
    pub fn now(&self) -> i64 {
        self.inspect(|connection| connection::read_now(connection, &self.clock)).unwrap().micros()
    }

    /// Forgets the contracts that are known to be in the database, as a restart does.
    pub fn forget_contracts(&self) {
        self.writer.try_lock().unwrap().contracts = ContractCache::default();
    }
}

/// The simulation looks for the changes of each commit, which no store does.
const CHANGED: &str = "CREATE INDEX simulation_changed ON submission_intents (last_modified_at)";
/// Statements that all connections of a store prepare together, and those of the simulation. All are made on one connection.
const PREPARED_STATEMENTS: usize = 1_000;

/// Keeps the rows that every table has after the migrations, and the statements that bring the database back to them. Tables
/// that refer to others are emptied first; they were created last.
fn remember(connection: &Connection) -> Result<(), rusqlite::Error> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY rowid DESC";
    let mut statement = connection.prepare(sql)?;
    let names: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut script: Vec<String> = names.iter().map(|name| format!("DELETE FROM {name}")).collect();
    for name in names.iter().rev() {
        connection.execute_batch(&format!("CREATE TEMP TABLE first_{name} AS SELECT * FROM {name}"))?;
        let has_rows = connection.query_row(&format!("SELECT EXISTS (SELECT 1 FROM {name})"), [], |row| row.get(0))?;
        if has_rows {
            script.push(format!("INSERT INTO {name} SELECT * FROM first_{name}"));
        }
    }
    connection.execute_batch("CREATE TEMP TABLE forget (sql TEXT)")?;
    script.iter().try_for_each(|sql| connection.execute("INSERT INTO forget VALUES (?1)", [sql]).map(drop))
}

/// Brings the database back to how it was after the migrations.
fn forget(connection: &Connection) -> Result<(), rusqlite::Error> {
    let mut statement = connection.prepare_cached("SELECT sql FROM forget ORDER BY rowid")?;
    let script: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let transaction = connection.unchecked_transaction()?;
    script.iter().try_for_each(|sql| transaction.prepare_cached(sql)?.execute([]).map(drop))?;
    transaction.commit()
}

/// Makes a write when it is polled.
pub(super) fn write<T: Send + 'static>(
    writer: Arc<Mutex<Writer>>,
    clock: WallClock,
    give_up_at: Instant,
    work: impl FnOnce(&mut Writer, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
) -> StoreFuture<T> {
    Box::pin(async move {
        if monotonic() >= give_up_at {
            return Err(StoreError::unavailable("other writes took too long"));
        }
        work(&mut *writer.lock().await, &clock).map_err(store_error)
    })
}

/// Makes a read when it is polled.
pub(super) fn read<T: Send + 'static>(
    writer: Arc<Mutex<Writer>>,
    clock: WallClock,
    work: impl FnOnce(&mut Connection, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
) -> StoreFuture<T> {
    Box::pin(async move { work(&mut writer.lock().await.connection, &clock).map_err(store_error) })
}

/// A deliberate bug: the number of the next attempt comes from the records of attempts.
pub(super) fn counted_from_history(
    transaction: &Transaction<'_>,
    waiting: &Waiting,
) -> Result<Waiting, rusqlite::Error> {
    if !mutated!(NumbersFromHistory) {
        return Ok(waiting.clone());
    }
    let sql = "SELECT count(*) FROM submission_attempts WHERE intent_seq = ?1";
    let attempt_count: u32 = transaction.query_row(sql, [waiting.seq.0], |row| row.get(0))?;
    let sql = "UPDATE submission_intents SET attempt_count = ?2 + 1 WHERE intent_seq = ?1";
    transaction.execute(sql, params![waiting.seq.0, attempt_count])?;
    Ok(Waiting { attempt_count, ..waiting.clone() })
}
