//! A SQLite file as the source or the target of a copy; see [`crate::store::copy`].

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Transaction, params, params_from_iter};

use super::connection::{self, OpenError, begin_transaction, read_now};
use super::{blocking, leases, messages, migrate, numbers};
use crate::domain::intent::IntentSeq;
use crate::domain::outcome::is_searchable_message_id;
use crate::domain::time::Timestamp;
use crate::platform::clock::WallClock;
use crate::store::StoreFuture;
use crate::store::copy::side::{BATCH_BYTES, BATCH_ROWS, CopySide, Counters, HoldUntil, LEASE_NAME, LastLease};
use crate::store::copy::tables::{Cell, Kind, Row, Table};

pub(in crate::store) struct SqliteCopySide {
    connection: Arc<Mutex<Connection>>,
    clock: WallClock,
}

impl SqliteCopySide {
    /// Opens the file, which must have been migrated.
    pub(in crate::store) fn open(path: &Path, clock: WallClock) -> Result<Self, OpenError> {
        let connection = connection::open_existing(path)?;
        migrate::require_current(&connection, path)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)), clock })
    }

    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> StoreFuture<T> {
        let (connection, clock) = (Arc::clone(&self.connection), self.clock.clone());
        Box::pin(blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut connection, &clock)
        }))
    }
}

impl CopySide for SqliteCopySide {
    fn last_lease(&self) -> StoreFuture<Option<LastLease>> {
        self.call(|connection, clock| {
            let now = read_now(connection, clock)?;
            connection
                .query_row(
                    "SELECT lease_name, holder_id, expires_at > ?1 FROM submission_manager_leases
                     ORDER BY expires_at > ?1 DESC, lease_epoch DESC LIMIT 1",
                    [now.micros()],
                    |row| Ok(LastLease { name: row.get(0)?, holder: row.get(1)?, held: row.get(2)? }),
                )
                .optional()
        })
    }

    fn take_lease(&self, holder: Arc<str>, epoch: i64, until: HoldUntil) -> StoreFuture<Option<i64>> {
        self.call(move |connection, clock| {
            let (transaction, now) = begin_transaction(connection, clock)?;
            let held = "SELECT 1 FROM submission_manager_leases WHERE lease_name <> ?1 AND expires_at > ?2";
            if transaction.prepare(held)?.exists(params![LEASE_NAME, now.micros()])? {
                return Ok(None);
            }
            let epoch = epoch.max(leases::latest(&transaction)?.epoch + 1);
            transaction.execute("DELETE FROM submission_manager_leases", [])?;
            transaction.execute(
                "INSERT INTO submission_manager_leases VALUES (?1, ?2, ?3, ?4, ?4, ?5)",
                params![LEASE_NAME, holder, epoch, now.micros(), until.moment(now).micros()],
            )?;
            transaction.commit()?;
            Ok(Some(epoch))
        })
    }

    fn hold_lease(&self, holder: Arc<str>, until: HoldUntil) -> StoreFuture<bool> {
        self.call(move |connection, clock| {
            let (transaction, now) = begin_transaction(connection, clock)?;
            let held = transaction.execute(
                "UPDATE submission_manager_leases SET renewed_at = ?3, expires_at = ?4
                 WHERE lease_name = ?1 AND holder_id = ?2",
                params![LEASE_NAME, holder, now.micros(), until.moment(now).micros()],
            )?;
            transaction.commit()?;
            Ok(held == 1)
        })
    }

    fn count(&self, table: &'static Table) -> StoreFuture<u64> {
        let sql = format!("SELECT count(*) FROM {}", table.name);
        self.call(move |connection, _| {
            let rows: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
            Ok(u64::try_from(rows).unwrap_or(0))
        })
    }

    fn key_at(&self, table: &'static Table, place: u64) -> StoreFuture<Option<Row>> {
        let key = names(table, table.key);
        let sql = format!("SELECT {key} FROM {} ORDER BY {key} LIMIT 1 OFFSET ?1", table.name);
        self.call(move |connection, _| {
            let read = |row: &rusqlite::Row<'_>| row_of(table, table.key, row);
            connection.query_row(&sql, [i64::try_from(place).unwrap_or(i64::MAX)], read).optional()
        })
    }

    fn read(&self, table: &'static Table, after: Option<Row>) -> StoreFuture<Vec<Row>> {
        self.call(move |connection, _| {
            let mut statement = connection.prepare_cached(&select(table, after.is_some()))?;
            let mut found = statement.query(params_from_iter(after.unwrap_or_default().into_iter().map(value)))?;
            let (mut rows, mut size) = (Vec::new(), 0);
            while size < BATCH_BYTES
                && rows.len() < BATCH_ROWS
                && let Some(row) = found.next()?
            {
                let row = row_of(table, table.columns.len(), row)?;
                size += row.iter().map(Cell::size).sum::<usize>();
                rows.push(row);
            }
            Ok(rows)
        })
    }

    fn write(&self, holder: Arc<str>, table: &'static Table, rows: Arc<Vec<Row>>) -> StoreFuture<bool> {
        self.call(move |connection, clock| {
            let (transaction, _) = begin_transaction(connection, clock)?;
            let held = "SELECT 1 FROM submission_manager_leases WHERE lease_name = ?1 AND holder_id = ?2";
            if !transaction.prepare_cached(held)?.exists(params![LEASE_NAME, holder])? {
                return Ok(false);
            }
            insert(&transaction, table, &rows)?;
            if table.name == ATTEMPTS {
                index_message_ids(&transaction, table, &rows)?;
            }
            transaction.commit()?;
            Ok(true)
        })
    }

    fn counters(&self) -> StoreFuture<Counters> {
        self.call(|connection, clock| {
            let clock = read_now(connection, clock)?;
            connection
                .query_row(numbers::ENDS, [], |row| Ok(Counters { clock, highest: row.get(0)?, lowest: row.get(1)? }))
        })
    }

    fn advance_counters(&self, counters: Counters) -> StoreFuture<()> {
        self.call(move |connection, _| {
            let transaction = connection.transaction()?;
            transaction.execute(
                "UPDATE submission_numbers SET highest = max(highest, ?1), lowest = min(lowest, ?2)",
                params![counters.highest, counters.lowest],
            )?;
            transaction.execute("UPDATE submission_clock SET last_at = max(last_at, ?1)", [counters.clock.micros()])?;
            transaction.commit()
        })
    }
}

const ATTEMPTS: &str = "submission_attempts";

/// The second of two tables in which SQLite keeps a table of the list.
struct SecondTable {
    name: &'static str,
    /// The columns that both tables have.
    shared: &'static [&'static str],
    /// The columns that only the second table has.
    own: &'static [&'static str],
    /// Whether a row exists only if the first of its own columns has a value.
    optional: bool,
}

fn second_table(table: &Table) -> Option<SecondTable> {
    match table.name {
        "submission_intents" => Some(SecondTable {
            name: "submission_payloads",
            shared: &["intent_seq"],
            own: &["payload"],
            optional: false,
        }),
        "submission_target_pauses" => Some(SecondTable {
            name: "submission_target_pause_notes",
            shared: &["submission_target", "paused_at"],
            own: &["paused_by", "reason"],
            optional: true,
        }),
        _ => None,
    }
}

/// The names of the first columns, separated by commas.
fn names(table: &Table, count: usize) -> String {
    table.columns.iter().take(count).map(|column| column.name).collect::<Vec<_>>().join(", ")
}

fn places(count: usize) -> String {
    (1..=count).map(|place| format!("?{place}")).collect::<Vec<_>>().join(", ")
}

/// The query for the rows of a table in the order of keys, all or those after a key.
fn select(table: &Table, after: bool) -> String {
    let (columns, key) = (names(table, table.columns.len()), names(table, table.key));
    let from = match second_table(table) {
        Some(second) => {
            let join = if second.optional { "LEFT JOIN" } else { "JOIN" };
            format!("{} {join} {} USING ({})", table.name, second.name, second.shared.join(", "))
        }
        None => table.name.to_owned(),
    };
    let condition = if after { format!(" WHERE ({key}) > ({})", places(table.key)) } else { String::new() };
    let order = if table.has_one_row() { String::new() } else { format!(" ORDER BY {key}") };
    format!("SELECT {columns} FROM {from}{condition}{order}")
}

fn row_of(table: &Table, count: usize, row: &rusqlite::Row<'_>) -> Result<Row, rusqlite::Error> {
    let columns = table.columns.iter().take(count).enumerate();
    let cell = |(place, column): (usize, &super::super::copy::tables::Column)| {
        Ok(match (row.get_ref(place)?, column.kind) {
            (ValueRef::Null, _) => Cell::Null,
            (_, Kind::Number) => Cell::Number(row.get(place)?),
            (_, Kind::Text) => Cell::Text(row.get(place)?),
            (_, Kind::Moment) => Cell::Moment(Timestamp::from_micros(row.get(place)?)),
            (_, Kind::Bytes) => Cell::Bytes(Bytes::from(row.get::<_, Vec<u8>>(place)?)),
        })
    };
    columns.map(cell).collect()
}

fn value(cell: Cell) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Number(number) => Value::Integer(number),
        Cell::Text(text) => Value::Text(text),
        Cell::Moment(moment) => Value::Integer(moment.micros()),
        Cell::Bytes(bytes) => Value::Blob(bytes.to_vec()),
    }
}

fn values<'a>(row: impl IntoIterator<Item = &'a Cell>) -> impl rusqlite::Params {
    params_from_iter(row.into_iter().cloned().map(value).collect::<Vec<_>>())
}

/// Inserts rows, or replaces the row of a table that has exactly one.
pub(super) fn insert(transaction: &Transaction<'_>, table: &Table, rows: &[Row]) -> Result<(), rusqlite::Error> {
    let second = second_table(table);
    let (shared, own) = second.as_ref().map_or((&[][..], &[][..]), |second| (second.shared, second.own));
    let places_of = |is_wanted: &dyn Fn(&&str) -> bool| -> Vec<usize> {
        let columns = table.columns.iter().enumerate();
        columns.filter(|(_, column)| is_wanted(&column.name)).map(|(place, _)| place).collect()
    };
    let of_first = places_of(&|name| !own.contains(name));
    let of_second = places_of(&|name| shared.contains(name) || own.contains(name));
    let statement = |name: &str, of: &[usize]| {
        let columns: Vec<_> =
            of.iter().filter_map(|place| table.columns.get(*place)).map(|column| column.name).collect();
        let (columns, places) = (columns.join(", "), places(of.len()));
        match table.has_one_row() {
            true => format!("UPDATE {name} SET ({columns}) = ({places})"),
            false => format!("INSERT INTO {name} ({columns}) VALUES ({places})"),
        }
    };
    let mut first = transaction.prepare_cached(&statement(table.name, &of_first))?;
    for row in rows {
        first.execute(values(of_first.iter().filter_map(|place| row.get(*place))))?;
    }
    let Some(second) = second else { return Ok(()) };
    let mut insert = transaction.prepare_cached(&statement(second.name, &of_second))?;
    for row in rows {
        let cells: Vec<_> = of_second.iter().filter_map(|place| row.get(*place)).collect();
        if !second.optional || cells.get(second.shared.len()).is_some_and(|cell| **cell != Cell::Null) {
            insert.execute(values(cells))?;
        }
    }
    Ok(())
}

/// Adds the message ids of attempts to the index of message ids. Those of jobs, whose numbers are negative, are not in it.
fn index_message_ids(transaction: &Transaction<'_>, table: &Table, rows: &[Row]) -> Result<(), rusqlite::Error> {
    let place = table.columns.iter().position(|column| column.name == "gateway_message_id").unwrap_or_default();
    for row in rows {
        if let (Some(Cell::Number(seq @ 0..)), Some(Cell::Text(id))) = (row.first(), row.get(place))
            && is_searchable_message_id(id)
        {
            messages::insert(transaction, id, IntentSeq(*seq))?;
        }
    }
    Ok(())
}
