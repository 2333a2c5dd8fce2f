//! A SQL Server store for simulations: each call takes effect in one moment of virtual time.
//!
//! While a call is under way, the paused clock of the runtime stands still and no other call is made. The server's clock is
//! replaced by that of the simulation, as a literal in the text of each batch, so batches are not prepared. After each call
//! that may write, the rows are copied into a SQLite database in memory, where the simulation reads them.

use std::cell::RefCell;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use super::SqlServerStore;
use super::copy::{cells, names};
use super::database::{Batch, Database};
use super::rows::{self, json_moment};
use super::tests::{TestDatabase, metrics, unlisted};
use crate::platform::clock::WallClock;
use crate::store::copy::tables::{self, Column, Kind, TABLES, Table};
use crate::store::faulty::{Call, Intercept};
use crate::store::sqlite::SqliteStore;
use crate::store::{BatchResults, Store, StoreError, StoreFailure, StoreFuture, WriteBatch, WriteStore};

thread_local! {
    /// The clock that replaces the server's on this thread.
    static CLOCK: RefCell<Option<WallClock>> = const { RefCell::new(None) };
    /// The database of all runs of this thread.
    static DATABASE: RefCell<Option<TestDatabase>> = const { RefCell::new(None) };
}

/// Whether this thread simulates. Its commits combine more kinds of writes than the list of statements has combinations.
pub(super) fn is_active() -> bool {
    CLOCK.with_borrow(Option::is_some)
}

/// Replaces the server's clock in a batch, if this thread simulates one.
pub(super) fn with_clock(batch: Batch) -> Batch {
    let now = CLOCK.with_borrow(|clock| clock.as_ref().map(WallClock::now));
    match now {
        Some(now) => {
            let now = format!("CAST('{}' AS DATETIME2(6))", json_moment(now));
            Batch { sql: batch.sql.replace("SYSUTCDATETIME()", &now).into(), prepare: false, ..batch }
        }
        None => batch,
    }
}

/// The tables that the simulation reads, and those that they refer to.
const READ: [&str; 14] = [
    "submission_gateways",
    "submission_contracts",
    "submission_webhook_receivers",
    "submission_target_pauses",
    "submission_intents",
    "submission_intent_options",
    "submission_attempts",
    "submission_webhook_events",
    "submission_redrives",
    "submission_redrive_items",
    "inbox_contacts",
    "inbox_submissions",
    "inbox_messages",
    "submission_contract_receivers",
];

const fn column(name: &'static str, kind: Kind) -> Column {
    Column { name, kind }
}

/// The tables that the simulation reads and that a copy of a store does not have.
static OTHERS: [Table; 2] = [
    Table {
        name: "submission_manager_leases",
        columns: &[
            column("lease_name", Kind::Text),
            column("holder_id", Kind::Text),
            column("lease_epoch", Kind::Number),
            column("acquired_at", Kind::Moment),
            column("renewed_at", Kind::Moment),
            column("expires_at", Kind::Moment),
        ],
        key: 1,
        numbered: false,
        large: None,
    },
    Table {
        name: "submission_clock",
        columns: &[column("last_at", Kind::Moment)],
        key: 0,
        numbered: false,
        large: None,
    },
];

fn tables_read() -> impl Iterator<Item = &'static Table> {
    TABLES.iter().filter(|table| READ.contains(&table.name)).chain(&OTHERS)
}

/// Calls that change no row.
const READS: [&str; 13] = [
    "lease_state",
    "open_attempts_before",
    "schedule_snapshot",
    "refresh_schedule",
    "backlog",
    "find",
    "events",
    "due_webhooks",
    "due_inbox",
    "running_redrives",
    "redrive_source",
    "find_job",
    "payload",
];

/// Removes the rows of earlier runs. Contracts stay, because they never change.
const EMPTY: &str = "
DELETE FROM submission_gateway_messages;
DELETE FROM submission_minutes;
DELETE FROM submission_fleet_minutes;
DELETE FROM submission_gateway_reach;
DELETE FROM submission_gateway_holds;
DELETE FROM submission_target_pauses;
DELETE FROM submission_redrive_items;
DELETE FROM submission_redrives;
DELETE FROM submission_webhook_tries;
DELETE FROM submission_webhook_events;
DELETE FROM submission_attempts;
DELETE FROM submission_traces;
DELETE FROM submission_jobs;
DELETE FROM submission_intent_options;
DELETE FROM submission_intents;
DELETE FROM inbox_messages;
DELETE FROM inbox_forms;
DELETE FROM inbox_submissions;
DELETE FROM inbox_contacts;
DELETE FROM submission_manager_leases;
UPDATE submission_feed_start SET ended_at = '2000-01-01T00:00:00', intent_seq = 0;
UPDATE submission_clock SET last_at = '2000-01-01T00:00:00';";

/// The store, and the copy of its rows. Clones share it.
#[derive(Clone)]
pub struct SimulatedServer {
    store: SqlServerStore,
    reader: Database,
    copy: Arc<SqliteStore>,
    one_at_a_time: Arc<Mutex<()>>,
}

impl SimulatedServer {
    /// Whether the environment names a server.
    pub fn is_named() -> bool {
        super::tests::server().is_some()
    }

    /// Opens the database of this thread, emptied. Must be called in a runtime whose clock is paused.
    pub async fn open(clock: WallClock, copy: Arc<SqliteStore>) -> Self {
        let _held = hold_clock();
        CLOCK.set(None);
        if DATABASE.with_borrow(Option::is_none) {
            let database = TestDatabase::create().await.expect("SM_TEST_SQLSERVER names a server");
            database.store().migrate().await.unwrap();
            DATABASE.set(Some(database));
        }
        let settings = DATABASE.with_borrow(|database| database.as_ref().unwrap().settings());
        let store = SqlServerStore::new(&settings, false, metrics());
        let reader = Database::new(&settings, "simulation", 1, metrics());
        reader.run(unlisted(EMPTY)).await.unwrap();
        store.prepare().await.unwrap();
        CLOCK.set(Some(clock));
        Self { store, reader, copy, one_at_a_time: Arc::default() }
    }

    /// Waits for the call that is under way, and makes no other one until the result is dropped.
    pub async fn stop(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.one_at_a_time).lock_owned().await
    }

    /// Copies the rows into the database that the simulation reads.
    async fn copy_rows(&self) -> Result<(), StoreError> {
        let select = |table: &Table| {
            format!("SELECT '{}' AS simulated_table, {} FROM {};", table.name, names(table.columns), table.name)
        };
        let sql: String = tables_read().map(select).collect();
        let mut read: Vec<(&'static Table, Vec<tables::Row>)> =
            tables_read().map(|table| (table, Vec::new())).collect();
        for row in self.reader.run(unlisted(sql)).await?.iter().flatten() {
            let name: &str = rows::need(row, "simulated_table")?;
            if let Some((table, rows)) = read.iter_mut().find(|(table, _)| table.name == name) {
                rows.push(cells(table.columns, row)?);
            }
        }
        self.copy.replace_rows(&read);
        Ok(())
    }
}

/// Holds the paused clock of the runtime until the result is dropped: it does not advance while a blocking task runs.
fn hold_clock() -> mpsc::Sender<()> {
    let (held, released) = mpsc::channel();
    drop(tokio::task::spawn_blocking(move || released.recv()));
    held
}

impl Intercept for SimulatedServer {
    fn intercept<T: Send + 'static, E: StoreFailure>(
        &self,
        call: &'static str,
        run: impl FnOnce(&dyn Store) -> Call<T, E> + Send + 'static,
    ) -> Call<T, E> {
        let this = self.clone();
        Box::pin(async move {
            let _alone = this.one_at_a_time.lock().await;
            let _held = hold_clock();
            let result = run(&this.store).await;
            if !READS.contains(&call) {
                this.copy_rows().await?;
            }
            result
        })
    }
}

impl WriteStore for SimulatedServer {
    fn commit(&self, batch: WriteBatch) -> StoreFuture<BatchResults> {
        self.intercept("commit", move |store| store.commit(batch))
    }

    fn budget(&self) -> Duration {
        self.store.budget()
    }

    fn max_submits(&self) -> usize {
        self.store.max_submits()
    }
}
