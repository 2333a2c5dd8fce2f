//! Puts a batch together so that its statements and their values stay in step.
//!
//! Whoever needs a value binds it to [`Values`] and gets the expression to write in its place, already of the type of the
//! column that it meets: an index of VARCHAR or BINARY is not used for a value of another type. Lists come as JSON and are
//! read once, into a table variable with typed columns and the collation of our columns ([`Script::input`]); what is read
//! from JSON directly has the collation of the database, which must not meet ours.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::Value as Json;

use super::database::{Batch, Repeat, Value};
use super::rows::json_moment;
use super::statements::TICK;
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;

/// The parameters of a batch, in order.
#[derive(Default)]
pub(super) struct Values(Vec<Value>);

impl Values {
    fn bind(&mut self, value: Value) -> String {
        self.0.push(value);
        format!("@P{}", self.0.len())
    }

    pub(super) fn number(&mut self, number: i64) -> String {
        self.bind(Value::Number(number))
    }

    pub(super) fn count(&mut self, count: usize) -> String {
        self.number(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// For NVARCHAR columns, and for texts that nothing is compared with.
    pub(super) fn text(&mut self, text: impl Into<String>) -> String {
        self.bind(Value::Text(text.into()))
    }

    /// For VARCHAR columns of at most `length` characters.
    pub(super) fn code(&mut self, code: impl Into<String>, length: usize) -> String {
        let parameter = self.text(code);
        format!("CAST({parameter} AS VARCHAR({length}))")
    }

    pub(super) fn hash(&mut self, hash: &[u8; 32]) -> String {
        let parameter = self.bytes(Bytes::copy_from_slice(hash));
        format!("CAST({parameter} AS BINARY(32))")
    }

    pub(super) fn bytes(&mut self, bytes: Bytes) -> String {
        self.bind(Value::Bytes(bytes))
    }

    pub(super) fn moment(&mut self, moment: Timestamp) -> String {
        let parameter = self.text(json_moment(moment));
        format!("CAST({parameter} AS DATETIME2(6))")
    }

    pub(super) fn json(&mut self, items: Vec<Json>) -> String {
        self.bind(Value::Json(Json::Array(items).to_string()))
    }

    /// The fence: whether this term holds the lease, in `@held`. The lease row is changed, so it stays locked until commit
    /// and nobody can begin another term before. The expression of the term's epoch comes with it.
    pub(super) fn fence(&mut self, term: &Term) -> Fence {
        let (name, holder) = (self.text(&*term.lease_name), self.text(&*term.holder_id));
        let epoch = self.number(term.epoch);
        let sql = format!(
            "
UPDATE submission_manager_leases SET fenced_writes = fenced_writes + 1
WHERE lease_name = {name} AND holder_id = {holder} AND lease_epoch = {epoch} AND expires_at > SYSUTCDATETIME();
SET @held = @@ROWCOUNT;"
        );
        Fence { sql, epoch }
    }

    pub(super) fn batch(self, sql: impl Into<std::borrow::Cow<'static, str>>) -> Batch {
        Batch::new(sql, self.0)
    }
}

pub(super) struct Fence {
    pub sql: String,
    pub epoch: String,
}

/// A batch of writes: reads its inputs, makes its changes in one transaction, and says what became of them after that.
///
/// A client that stops reading holds no locks that way, and the row of the clock, which all instances wait for, is not held
/// while JSON is read.
#[derive(Default)]
pub(super) struct Script {
    pub values: Values,
    variables: String,
    inputs: String,
    fence: String,
    changes: String,
    fenced_changes: String,
    answers: String,
    starts_attempts: bool,
}

impl Script {
    /// The epoch of the term, whose changes are made only if it holds the lease.
    pub(super) fn fence(&mut self, term: &Term) -> String {
        let Fence { sql, epoch } = self.values.fence(term);
        self.fence = sql;
        epoch
    }

    /// Reads a list once: declares the table variable `@name` with these columns and fills it.
    ///
    /// Statements that look up rows for it say that its key is between `@first` and `@last`, which every key is. SQL Server
    /// takes a table variable for small in any case. PostgreSQL, which plans for Babelfish, takes one that it knows nothing
    /// about for large, and reads whole tables instead of seeking, until it has statistics of those; but it takes any range
    /// of an unknown column for a small part of it.
    pub(super) fn input<'a>(&mut self, name: &str, items: Vec<Json>, columns: impl IntoIterator<Item = Column<'a>>) {
        let columns: Vec<_> = columns.into_iter().collect();
        let texts: Vec<_> = columns.iter().filter(|column| column.is_text).map(|column| column.name).collect();
        let is_escaped =
            |item: &Json| texts.iter().any(|name| item[*name].as_str().is_some_and(|text| text.contains('~')));
        let escaped = items.iter().any(is_escaped);
        let joined = |part: fn(&Column<'_>) -> String| columns.iter().map(part).collect::<Vec<_>>().join(", ");
        let table = joined(|column| format!("{} {}", column.name, column.definition));
        let names = joined(|column| column.name.to_owned());
        let read = joined(|column| column.expression.clone());
        let with = joined(|column| format!("{} {}", column.name, column.json_type));
        let json = self.values.json(items);
        let _infallible = write!(
            self.inputs,
            "
DECLARE @{name} TABLE ({table});
INSERT INTO @{name} ({names})
SELECT {read}
FROM OPENJSON({json}) WITH ({with}) AS j;"
        );
        if !texts.is_empty() {
            let escaped = self.values.number(i64::from(escaped));
            let plain: Vec<_> = texts.iter().map(|text| format!("{text} = {}", plain_text(text))).collect();
            let plain = plain.join(",\n    ");
            let _infallible = write!(self.inputs, "\nIF {escaped} = 1 UPDATE @{name} SET {plain};");
        }
    }

    /// Declares a variable of the batch.
    pub(super) fn variable(&mut self, declaration: &str) {
        let _infallible = write!(self.variables, ", {declaration}");
    }

    /// Adds statements of the transaction that are made in any case.
    pub(super) fn change(&mut self, sql: &str) {
        self.changes.push_str(sql);
    }

    /// Adds statements of the transaction that are made if the term holds the lease.
    pub(super) fn fenced_change(&mut self, sql: &str) {
        self.fenced_changes.push_str(sql);
    }

    /// Adds a query that is made after the commit.
    pub(super) fn answer(&mut self, sql: &str) {
        self.answers.push_str(sql);
    }

    /// The batch writes down attempts as started, so it must not run twice.
    pub(super) fn starts_attempts(&mut self) {
        self.starts_attempts = true;
    }

    pub(super) fn batch(self) -> Batch {
        let Self { values, variables, inputs, fence, changes, fenced_changes, answers, starts_attempts } = self;
        let fenced_changes = match fenced_changes.as_str() {
            "" => String::new(),
            changes => format!("\nIF @held = 1\nBEGIN{changes}\nEND;"),
        };
        let sql = format!(
            "DECLARE @now DATETIME2(6), @held BIGINT = 0, @first BIGINT = 0, @last BIGINT = CAST(9223372036854775807 AS BIGINT){variables};{inputs}
BEGIN TRANSACTION;{fence}{TICK}{changes}{fenced_changes}
COMMIT TRANSACTION;
SELECT @now AS now_at, @held AS held;{answers}"
        );
        let repeat = if starts_attempts { Repeat::IfRolledBack } else { Repeat::IfFailed };
        Batch { repeat, prepare: true, ..values.batch(sql) }
    }
}

/// A column of an input.
pub(super) struct Column<'a> {
    name: &'a str,
    /// What it is in the table variable.
    definition: String,
    /// What it is read from JSON as.
    json_type: String,
    /// How that becomes the column; `j.` names what is read.
    expression: String,
    /// Its values are written by [`json_text`].
    is_text: bool,
}

impl<'a> Column<'a> {
    /// A column that is read as it is.
    pub(super) fn of(name: &'a str, sql_type: &str) -> Self {
        Self {
            name,
            definition: format!("{sql_type} NULL"),
            json_type: sql_type.to_owned(),
            expression: format!("j.{name}"),
            is_text: false,
        }
    }

    /// What no two items share.
    pub(super) fn key(name: &'a str) -> Self {
        Self { definition: "BIGINT NOT NULL PRIMARY KEY".to_owned(), ..Self::of(name, "BIGINT") }
    }

    /// A word of ours, in ASCII.
    pub(super) fn code(name: &'a str, length: usize) -> Self {
        Self::in_our_collation(name, &format!("VARCHAR({length})"))
    }

    /// Any text, as [`json_text`] writes it. `length` is that of the column which it goes to.
    pub(super) fn text(name: &'a str, length: usize) -> Self {
        // Written so, a text may be twice as long.
        let sql_type = format!("NVARCHAR({})", (length * 2).min(4000));
        Self { is_text: true, ..Self::in_our_collation(name, &sql_type) }
    }

    pub(super) fn long_text(name: &'a str) -> Self {
        Self { is_text: true, ..Self::in_our_collation(name, "NVARCHAR(MAX)") }
    }

    fn in_our_collation(name: &'a str, sql_type: &str) -> Self {
        Self {
            definition: format!("{sql_type} COLLATE Latin1_General_100_BIN2 NULL"),
            expression: format!("j.{name} COLLATE Latin1_General_100_BIN2"),
            ..Self::of(name, sql_type)
        }
    }

    /// 32 bytes of `bytes`; the list says where they begin.
    pub(super) fn hash(name: &'a str, bytes: &str) -> Self {
        Self {
            definition: "BINARY(32) NULL".to_owned(),
            expression: format!("CAST(SUBSTRING({bytes}, j.{name}, 32) AS BINARY(32))"),
            ..Self::of(name, "BIGINT")
        }
    }
}

/// A text as it goes into JSON: nothing in it needs an escape there, because not every server undoes the escapes of JSON.
/// [`plain_text`] undoes this.
pub(super) fn json_text(text: &str) -> String {
    text.replace('~', "~0").replace('"', "~1").replace('\\', "~2").replace(char::is_control, " ")
}

/// A text as it was before [`json_text`], in the collation of our columns.
pub(super) fn plain_text(column: &str) -> String {
    format!(
        "REPLACE(REPLACE(REPLACE({column} COLLATE Latin1_General_100_BIN2, N'~1', N'\"'), N'~2', N'\\'), N'~0', N'~')"
    )
}
