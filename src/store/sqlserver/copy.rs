//! A SQL Server as the source or the target of a copy; see [`crate::store::copy`].

use std::future::Future;
use std::sync::Arc;

use bytes::BytesMut;
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};
use tiberius::Row as TdsRow;

use super::database::{Batch, Database, Repeat};
use super::read::{first, need_first};
use super::rows;
use super::script::Values;
use super::settings::Settings;
use super::statements::TICK;
use crate::domain::outcome::is_searchable_message_id;
use crate::store::copy::side::{BATCH_BYTES, BATCH_ROWS, CopySide, Counters, HoldUntil, LEASE_NAME, LastLease};
use crate::store::copy::tables::{Cell, Column, Kind, Row, Table};
use crate::store::{StoreError, StoreFuture};
use crate::telemetry::metrics::Metrics;

pub(in crate::store) struct SqlServerCopySide {
    database: Database,
}

impl SqlServerCopySide {
    /// Uses a database whose schema is current. Its timeouts are those of migrations, because counting the rows of a large
    /// table takes long.
    pub(in crate::store) fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        Self { database: Database::new(&settings.for_migrations(), "copy", 1, metrics) }
    }

    fn call<T, F>(&self, work: impl FnOnce(Database) -> F + Send + 'static) -> StoreFuture<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        Box::pin(work(self.database.clone()))
    }
}

impl CopySide for SqlServerCopySide {
    fn last_lease(&self) -> StoreFuture<Option<LastLease>> {
        self.call(|database| async move {
            let results = database.run(last_lease_batch()).await?;
            let read = |row: &TdsRow| {
                Ok(LastLease {
                    name: rows::need::<&str>(row, "lease_name")?.to_owned(),
                    holder: rows::need::<&str>(row, "holder_id")?.to_owned(),
                    held: rows::need::<i64>(row, "held")? == 1,
                })
            };
            first(&results).map(read).transpose()
        })
    }

    fn take_lease(&self, holder: Arc<str>, epoch: i64, until: HoldUntil) -> StoreFuture<Option<i64>> {
        self.call(move |database| async move {
            let results = database.run(take_lease_batch(&holder, epoch, until)).await?;
            rows::get(need_first(&results)?, "epoch")
        })
    }

    fn hold_lease(&self, holder: Arc<str>, until: HoldUntil) -> StoreFuture<bool> {
        self.call(move |database| async move { held(&database, hold_lease_batch(&holder, until)).await })
    }

    fn count(&self, table: &'static Table) -> StoreFuture<u64> {
        self.call(move |database| async move {
            let results = database.run(count_batch(table)).await?;
            Ok(u64::try_from(rows::need::<i64>(need_first(&results)?, "total")?).unwrap_or(0))
        })
    }

    fn key_at(&self, table: &'static Table, place: u64) -> StoreFuture<Option<Row>> {
        self.call(move |database| async move {
            let results = database.run(key_batch(table, place)).await?;
            first(&results).map(|row| cells(table.key_columns(), row)).transpose()
        })
    }

    fn read(&self, table: &'static Table, after: Option<Row>) -> StoreFuture<Vec<Row>> {
        self.call(move |database| async move {
            let mut count = BATCH_ROWS;
            if let Some(large) = table.large {
                let results = database.run(sizes_batch(table, large, after.as_ref())).await?;
                let mut sizes = Vec::new();
                for row in results.iter().flatten() {
                    sizes.push(usize::try_from(rows::get::<i64>(row, "size")?.unwrap_or(0)).unwrap_or(0));
                }
                count = rows_within(&sizes, BATCH_BYTES);
            }
            let results = database.run(read_batch(table, after.as_ref(), count)).await?;
            results.iter().flatten().map(|row| cells(table.columns, row)).collect()
        })
    }

    fn write(&self, holder: Arc<str>, table: &'static Table, rows: Arc<Vec<Row>>) -> StoreFuture<bool> {
        self.call(move |database| async move { held(&database, write_batch(&holder, table, &rows)?).await })
    }

    fn counters(&self) -> StoreFuture<Counters> {
        self.call(|database| async move {
            let results = database.run(counters_batch()).await?;
            let row = need_first(&results)?;
            Ok(Counters {
                clock: rows::need_moment(row, "last_at")?,
                highest: rows::need(row, "highest")?,
                lowest: rows::need(row, "lowest")?,
            })
        })
    }

    fn advance_counters(&self, counters: Counters) -> StoreFuture<()> {
        self.call(move |database| async move { database.run(advance_batch(counters)).await.map(drop) })
    }
}

async fn held(database: &Database, batch: Batch) -> Result<bool, StoreError> {
    let results = database.run(batch).await?;
    Ok(rows::need::<i64>(need_first(&results)?, "held")? == 1)
}

/// How many rows of these sizes have so many bytes together; one at least.
fn rows_within(sizes: &[usize], bytes: usize) -> usize {
    let mut sum = 0_usize;
    let fits = sizes.iter().take_while(|size| {
        sum = sum.saturating_add(**size);
        sum <= bytes
    });
    fits.count().max(1)
}

pub(super) fn last_lease_batch() -> Batch {
    Batch::new(
        "
SELECT TOP (1) l.lease_name, l.holder_id, l.held FROM (
    SELECT lease_name, holder_id, lease_epoch,
        CAST(CASE WHEN expires_at > SYSUTCDATETIME() THEN 1 ELSE 0 END AS BIGINT) AS held
    FROM submission_manager_leases) AS l
ORDER BY l.held DESC, l.lease_epoch DESC;",
        Vec::new(),
    )
}

/// The expression of a moment relative to `@now`.
fn moment_of(values: &mut Values, until: HoldUntil) -> String {
    let (forever, millis) = match until {
        HoldUntil::Now => (0, 0),
        HoldUntil::After(duration) => (0, i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)),
        HoldUntil::Forever => (1, 0),
    };
    let (forever, millis) = (values.number(forever), values.number(millis));
    format!(
        "CASE WHEN {forever} = 1 THEN CAST('9999-12-31T23:59:59.999999' AS DATETIME2(6))
        ELSE DATEADD(MILLISECOND, {millis}, @now) END"
    )
}

pub(super) fn take_lease_batch(holder: &str, epoch: i64, until: HoldUntil) -> Batch {
    let mut values = Values::default();
    let (name, holder, least) = (values.text(LEASE_NAME), values.text(holder), values.number(epoch));
    let until = moment_of(&mut values, until);
    values.batch(format!(
        "
DECLARE @now DATETIME2(6), @epoch BIGINT;
BEGIN TRANSACTION;
UPDATE submission_manager_leases SET fenced_writes = fenced_writes + 1;{TICK}
SET @now = SYSUTCDATETIME();
IF NOT EXISTS (SELECT 1 FROM submission_manager_leases WHERE lease_name <> {name} AND expires_at > @now)
BEGIN
    SET @epoch = (SELECT COALESCE(MAX(lease_epoch), 0) + 1 FROM submission_manager_leases);
    IF @epoch < {least} SET @epoch = {least};
    DELETE FROM submission_manager_leases;
    INSERT INTO submission_manager_leases (lease_name, holder_id, lease_epoch, acquired_at, renewed_at, expires_at)
    VALUES ({name}, {holder}, @epoch, @now, @now, {until});
END;
COMMIT TRANSACTION;
SELECT @epoch AS epoch;"
    ))
}

pub(super) fn hold_lease_batch(holder: &str, until: HoldUntil) -> Batch {
    let mut values = Values::default();
    let (name, holder) = (values.text(LEASE_NAME), values.text(holder));
    let until = moment_of(&mut values, until);
    values.batch(format!(
        "
DECLARE @now DATETIME2(6) = SYSUTCDATETIME(), @held BIGINT;
UPDATE submission_manager_leases SET renewed_at = @now, expires_at = {until}
WHERE lease_name = {name} AND holder_id = {holder};
SET @held = @@ROWCOUNT;
SELECT @held AS held;"
    ))
}

pub(super) fn count_batch(table: &Table) -> Batch {
    Batch::new(format!("SELECT COUNT_BIG(*) AS total FROM {};", table.name), Vec::new())
}

pub(super) fn names<'a>(columns: impl IntoIterator<Item = &'a Column>) -> String {
    columns.into_iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

pub(super) fn key_batch(table: &Table, place: u64) -> Batch {
    let mut values = Values::default();
    let place = values.number(i64::try_from(place).unwrap_or(i64::MAX));
    let key = names(table.key_columns());
    let sql = format!("SELECT {key} FROM {} ORDER BY {key} OFFSET {place} ROWS FETCH NEXT 1 ROWS ONLY;", table.name);
    values.batch(sql)
}

/// A query for `columns` of the rows after a key.
fn rows_after(table: &Table, columns: &str, after: Option<&Row>, count: usize) -> Batch {
    let mut values = Values::default();
    let top = values.count(count);
    let condition = after.map(|key| format!(" WHERE {}", is_after(&mut values, table.key_columns(), key)));
    let order = if table.has_one_row() { String::new() } else { format!(" ORDER BY {}", names(table.key_columns())) };
    let condition = condition.unwrap_or_default();
    values.batch(format!("SELECT TOP ({top}) {columns} FROM {}{condition}{order};", table.name))
}

/// The condition that a row comes after a key. It begins with a range of the first column, which an index can use.
fn is_after(values: &mut Values, columns: &[Column], key: &[Cell]) -> String {
    let (Some((column, columns)), Some((cell, key))) = (columns.split_first(), key.split_first()) else {
        return "1 = 0".to_owned();
    };
    let name = column.name;
    let value = match cell {
        Cell::Number(number) => values.number(*number),
        Cell::Text(text) => values.text(text),
        Cell::Moment(moment) => values.moment(*moment),
        Cell::Bytes(bytes) => values.bytes(bytes.clone()),
        Cell::Null => "NULL".to_owned(),
    };
    match columns {
        [] => format!("{name} > {value}"),
        _ => format!("{name} >= {value} AND ({name} > {value} OR ({}))", is_after(values, columns, key)),
    }
}

pub(super) fn sizes_batch(table: &Table, large: &str, after: Option<&Row>) -> Batch {
    rows_after(table, &format!("CAST(DATALENGTH({large}) AS BIGINT) AS size"), after, BATCH_ROWS)
}

pub(super) fn read_batch(table: &Table, after: Option<&Row>, count: usize) -> Batch {
    rows_after(table, &names(table.columns), after, count)
}

pub(super) fn cells(columns: &[Column], row: &TdsRow) -> Result<Row, StoreError> {
    let cell = |column: &Column| {
        Ok(match column.kind {
            Kind::Number => rows::get(row, column.name)?.map(Cell::Number),
            Kind::Text => rows::text(row, column.name)?.map(Cell::Text),
            Kind::Moment => rows::moment(row, column.name)?.map(Cell::Moment),
            Kind::Bytes => rows::bytes(row, column.name)?.map(Cell::Bytes),
        }
        .unwrap_or(Cell::Null))
    };
    columns.iter().map(cell).collect()
}

/// The column that SQL Server has besides those of the list: the SHA-256 of a text that is too long for an index.
fn hash_of(table: &Table) -> Option<(&'static str, &'static str)> {
    match table.name {
        "submission_gateways" => Some(("url_sha256", "gateway_url")),
        "submission_contracts" => Some(("snapshot_sha256", "snapshot")),
        "submission_webhook_receivers" => Some(("origin_sha256", "origin")),
        _ => None,
    }
}

/// Rows as the parameters of a statement: JSON, and the bytes that JSON refers to by position and length.
struct Input {
    items: Vec<Json>,
    bytes: BytesMut,
    /// Whether a text has characters that the statement must restore.
    is_escaped: bool,
}

impl Input {
    fn of(table: &Table, rows: &[Row]) -> Result<Self, StoreError> {
        let mut input = Self { items: Vec::with_capacity(rows.len()), bytes: BytesMut::new(), is_escaped: false };
        for row in rows {
            let mut item = Map::new();
            for (column, cell) in table.columns.iter().zip(row) {
                input.add(&mut item, column.name, cell)?;
                if let (Some((name, of)), Cell::Text(text)) = (hash_of(table), cell)
                    && of == column.name
                {
                    input.add_bytes(&mut item, name, &Sha256::digest(text.as_bytes()));
                }
                if let (GATEWAY_MESSAGE_ID, Cell::Text(id)) = (column.name, cell)
                    && is_searchable_message_id(id)
                {
                    item.insert("is_searchable".to_owned(), Json::from(1));
                }
            }
            input.items.push(Json::Object(item));
        }
        Ok(input)
    }

    fn add(&mut self, item: &mut Map<String, Json>, name: &str, cell: &Cell) -> Result<(), StoreError> {
        let value = match cell {
            Cell::Null => return Ok(()),
            Cell::Number(number) => Json::from(*number),
            Cell::Moment(moment) => Json::from(rows::json_moment(*moment)),
            Cell::Text(text) => {
                let escaped = escaped(text).ok_or_else(|| {
                    StoreError::unexpected(format!("{name} has a text with a zero character, which cannot be copied"))
                })?;
                self.is_escaped |= escaped != *text;
                Json::from(escaped)
            }
            Cell::Bytes(bytes) => {
                self.add_bytes(item, name, bytes);
                return Ok(());
            }
        };
        item.insert(name.to_owned(), value);
        Ok(())
    }

    fn add_bytes(&mut self, item: &mut Map<String, Json>, name: &str, bytes: &[u8]) {
        item.insert(format!("{name}_from"), Json::from(self.bytes.len() + 1));
        item.insert(format!("{name}_length"), Json::from(bytes.len()));
        self.bytes.extend_from_slice(bytes);
    }
}

const GATEWAY_MESSAGE_ID: &str = "gateway_message_id";

/// The letter that stands for a control character after `~`.
fn letter_of(control: char) -> Option<char> {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef";
    LETTERS.get(usize::try_from(u32::from(control)).ok()?).copied().map(char::from)
}

/// Escapes a text for JSON without JSON's own escapes, because not every server decodes them. Unlike
/// [`super::script::json_text`] it keeps control characters. `None` if the text has a zero character.
fn escaped(text: &str) -> Option<String> {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => return None,
            '~' => escaped.push_str("~0"),
            '"' => escaped.push_str("~1"),
            '\\' => escaped.push_str("~2"),
            c => match letter_of(c) {
                Some(letter) => escaped.extend(['~', letter]),
                None => escaped.push(c),
            },
        }
    }
    Some(escaped)
}

/// The SQL expression that reverses [`escaped`], in the collation of our tables.
fn restored(column: &str) -> String {
    let mut expression = format!("j.{column} COLLATE Latin1_General_100_BIN2");
    let controls = (1..32_u8).filter_map(|code| Some((letter_of(char::from(code))?, format!("NCHAR({code})"))));
    let quotes = [('1', "N'\"'".to_owned()), ('2', "N'\\'".to_owned())];
    for (letter, character) in controls.chain(quotes) {
        expression = format!("REPLACE({expression}, N'~{letter}', {character})");
    }
    format!("REPLACE({expression}, N'~0', N'~')")
}

/// A column of the statement that inserts rows: its name, how it is read from JSON, and the expression of its value.
struct Inserted {
    name: &'static str,
    read: String,
    expression: String,
}

impl Inserted {
    fn of(column: &Column, is_escaped: bool, bytes: &str) -> Self {
        let name = column.name;
        let plain = |sql_type: &str| (format!("{name} {sql_type}"), format!("j.{name}"));
        let (read, expression) = match column.kind {
            Kind::Number => plain("BIGINT"),
            Kind::Moment => plain("DATETIME2(6)"),
            Kind::Text if is_escaped => (format!("{name} NVARCHAR(MAX)"), restored(name)),
            Kind::Text => (format!("{name} NVARCHAR(MAX)"), format!("j.{name} COLLATE Latin1_General_100_BIN2")),
            Kind::Bytes => (
                format!("{name}_from BIGINT, {name}_length BIGINT"),
                format!("SUBSTRING({bytes}, j.{name}_from, j.{name}_length)"),
            ),
        };
        Self { name, read, expression }
    }
}

pub(super) fn write_batch(holder: &str, table: &Table, rows: &[Row]) -> Result<Batch, StoreError> {
    let Input { items, bytes, is_escaped } = Input::of(table, rows)?;
    let mut values = Values::default();
    let (lease, holder, json) = (values.text(LEASE_NAME), values.text(holder), values.json(items));
    let has_bytes = hash_of(table).is_some() || table.columns.iter().any(|column| column.kind == Kind::Bytes);
    let bytes = if has_bytes { values.bytes(bytes.freeze()) } else { String::new() };
    let hash = hash_of(table).map(|(name, _)| Column { name, kind: Kind::Bytes });
    let columns: Vec<_> =
        table.columns.iter().chain(&hash).map(|column| Inserted::of(column, is_escaped, &bytes)).collect();
    let joined = |part: fn(&Inserted) -> String| columns.iter().map(part).collect::<Vec<_>>().join(", ");
    let (names, with) = (joined(|column| column.name.to_owned()), joined(|column| column.read.clone()));
    let expressions = joined(|column| column.expression.clone());
    let name = table.name;
    let change = if table.has_one_row() {
        let set = joined(|column| format!("{} = {}", column.name, column.expression));
        format!("UPDATE t SET {set} FROM {name} AS t JOIN OPENJSON({json}) WITH ({with}) AS j ON 1 = 1;")
    } else {
        let insert = format!(
            "INSERT INTO {name} ({names})\n    SELECT {expressions}\n    FROM OPENJSON({json}) WITH ({with}) AS j;"
        );
        match table.numbered {
            true => format!("SET IDENTITY_INSERT {name} ON;\n    {insert}\n    SET IDENTITY_INSERT {name} OFF;"),
            false => insert,
        }
    };
    let message_id = columns.iter().find(|column| column.name == GATEWAY_MESSAGE_ID);
    let index = message_id.map(|id| index_message_ids(&json, &id.expression)).unwrap_or_default();
    let batch = values.batch(format!(
        "
DECLARE @held BIGINT;
BEGIN TRANSACTION;
UPDATE submission_manager_leases SET renewed_at = SYSUTCDATETIME(), fenced_writes = fenced_writes + 1
WHERE lease_name = {lease} AND holder_id = {holder};
SET @held = @@ROWCOUNT;
IF @held = 1
BEGIN
    {change}{index}
END;
COMMIT TRANSACTION;
SELECT @held AS held;"
    ));
    // A second run would insert the rows again.
    Ok(Batch { repeat: Repeat::IfRolledBack, ..batch })
}

/// Adds the message ids of attempts to the index of message ids. Those of jobs are not in it.
fn index_message_ids(json: &str, message_id: &str) -> String {
    format!(
        "
    INSERT INTO submission_gateway_messages (gateway_message_id, intent_seq)
    SELECT DISTINCT n.gateway_message_id, n.intent_seq FROM (
        SELECT CAST({message_id} AS NVARCHAR(400)) AS gateway_message_id, j.intent_seq
        FROM OPENJSON({json}) WITH (intent_seq BIGINT, gateway_message_id NVARCHAR(MAX), is_searchable BIGINT) AS j
        WHERE j.is_searchable = 1) AS n
    WHERE NOT EXISTS (SELECT 1 FROM submission_jobs AS b WHERE b.intent_seq = n.intent_seq)
        AND NOT EXISTS (SELECT 1 FROM submission_gateway_messages AS m
            WHERE m.intent_seq = n.intent_seq AND m.gateway_message_id = n.gateway_message_id);"
    )
}

pub(super) fn counters_batch() -> Batch {
    Batch::new(
        "
SELECT c.last_at, CAST(IDENT_CURRENT('submission_intents') AS BIGINT) AS highest,
    (SELECT CAST(COALESCE(MIN(i.intent_seq), 0) AS BIGINT) FROM submission_intents AS i WHERE i.intent_seq < 0) AS lowest
FROM submission_clock AS c;",
        Vec::new(),
    )
}

/// Advances the clock, and the number that the next intent gets. In a table that never had a row, the next row gets the
/// number that is set, and otherwise the one after it: so this sets the one after the highest.
pub(super) fn advance_batch(counters: Counters) -> Batch {
    let mut values = Values::default();
    let (clock, highest) = (values.moment(counters.clock), values.number(counters.highest));
    values.batch(format!(
        "
DECLARE @reseed NVARCHAR(200) = CONCAT(N'DBCC CHECKIDENT (''submission_intents'', RESEED, ', {highest} + 1, N')');
UPDATE submission_clock SET last_at = {clock} WHERE last_at < {clock};
IF IDENT_CURRENT('submission_intents') < {highest} EXECUTE sp_executesql @reseed;"
    ))
}
