//! Builds a batch so that its statements and the values of their parameters always match.
//!
//! Code that needs a value binds it to [`Values`] and gets the SQL expression for it. The expression has the type of
//! the column that it is compared with, because an index on a VARCHAR or BINARY column is not used for a value of
//! another type. Lists are passed as JSON and read once into a table variable with typed columns in the collation of
//! our tables ([`Script::input`]). Text that is read directly from JSON has the collation of the database, and
//! comparing it with our columns would be an error.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::Value as Json;

use super::database::{Batch, Repeat, Value};
use super::rows::json_moment;
use super::statements::TICK;
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;

/// The values of a batch's parameters, in order.
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

    /// Binds a text for an NVARCHAR column, or one that is not compared with a column.
    pub(super) fn text(&mut self, text: impl Into<String>) -> String {
        self.bind(Value::Text(text.into()))
    }

    /// Binds an ASCII text for a VARCHAR column of at most `length` characters.
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

    /// Returns the fence: a statement that sets `@held` to 1 if this term holds the lease. It changes the row of the
    /// lease, so the row stays locked until the commit and no other term can begin before. Also returns the expression
    /// of the term's epoch.
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

/// A batch of writes: one transaction that reads its inputs, then locks the rows of the lease and of the clock, then makes
/// its changes. Its results come after the commit.
///
/// Therefore a client that stops reading holds no locks, and the row of the clock, for which all instances wait, is not
/// locked while JSON is parsed. Reading the inputs is part of the transaction because Babelfish would otherwise write its
/// log to disk once more for each batch, to create the table variables.
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
    /// Adds the fence of a term: [`Self::fenced_change`] then takes effect only if this term holds the lease. Returns
    /// the expression of the term's epoch.
    pub(super) fn fence(&mut self, term: &Term) -> String {
        let Fence { sql, epoch } = self.values.fence(term);
        self.fence = sql;
        epoch
    }

    /// Reads a list once: declares the table variable `@name` with these columns and fills it.
    ///
    /// Statements that join it with a table add the condition that its key is between `@first` and `@last`, which is
    /// true for every key. SQL Server does not need that, because it always expects a table variable to have few rows.
    /// The planner of Babelfish is that of PostgreSQL. Without statistics it expects many rows and scans whole tables;
    /// with a range condition it expects few rows and uses indexes.
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

    /// Declares a variable of the batch, with its type.
    pub(super) fn variable(&mut self, declaration: &str) {
        let _infallible = write!(self.variables, ", {declaration}");
    }

    /// Adds statements to the transaction, whether or not the term holds the lease.
    pub(super) fn change(&mut self, sql: &str) {
        self.changes.push_str(sql);
    }

    /// Adds statements to the transaction that are executed only if the term holds the lease.
    pub(super) fn fenced_change(&mut self, sql: &str) {
        self.fenced_changes.push_str(sql);
    }

    /// Adds a query that is executed after the commit.
    pub(super) fn answer(&mut self, sql: &str) {
        self.answers.push_str(sql);
    }

    /// Declares that the batch starts attempts, so it must not run twice.
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
            "DECLARE @now DATETIME2(6), @held BIGINT = 0, @first BIGINT = 0, @last BIGINT = CAST(9223372036854775807 AS BIGINT){variables};
BEGIN TRANSACTION;{inputs}{fence}{TICK}{changes}{fenced_changes}
COMMIT TRANSACTION;
SELECT @now AS now_at, @held AS held;{answers}"
        );
        let repeat = if starts_attempts { Repeat::IfRolledBack } else { Repeat::IfFailed };
        Batch { repeat, prepare: true, ..values.batch(sql) }
    }
}

/// A column of a list that [`Script::input`] reads.
pub(super) struct Column<'a> {
    name: &'a str,
    /// The type of the column in the table variable.
    definition: String,
    /// The type with which the value is read from JSON.
    json_type: String,
    /// The expression that converts the JSON value `j.<name>` to the column.
    expression: String,
    /// Whether [`json_text`] has escaped the values.
    is_text: bool,
}

impl<'a> Column<'a> {
    /// A column with the same type in JSON and in the table variable.
    pub(super) fn of(name: &'a str, sql_type: &str) -> Self {
        Self {
            name,
            definition: format!("{sql_type} NULL"),
            json_type: sql_type.to_owned(),
            expression: format!("j.{name}"),
            is_text: false,
        }
    }

    /// A column that identifies each item: the primary key of the table variable.
    pub(super) fn key(name: &'a str) -> Self {
        Self { definition: "BIGINT NOT NULL PRIMARY KEY".to_owned(), ..Self::of(name, "BIGINT") }
    }

    /// A column of ASCII text that the service itself has written, such as a status or an id.
    pub(super) fn code(name: &'a str, length: usize) -> Self {
        Self::in_our_collation(name, &format!("VARCHAR({length})"))
    }

    /// A column of any text, escaped by [`json_text`]. `length` is the length of the table's column.
    pub(super) fn text(name: &'a str, length: usize) -> Self {
        // Escaping can double the length of a text.
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

    /// A column of 32-byte hashes. JSON holds the position at which each hash starts in the binary parameter `bytes`.
    pub(super) fn hash(name: &'a str, bytes: &str) -> Self {
        Self {
            definition: "BINARY(32) NULL".to_owned(),
            expression: format!("CAST(SUBSTRING({bytes}, j.{name}, 32) AS BINARY(32))"),
            ..Self::of(name, "BIGINT")
        }
    }
}

/// Escapes a text for JSON that a server reads. The result contains no character that JSON would escape, because not
/// every server decodes JSON escapes. [`plain_text`] reverses it.
pub(super) fn json_text(text: &str) -> String {
    text.replace('~', "~0").replace('"', "~1").replace('\\', "~2").replace(char::is_control, " ")
}

/// The SQL expression that reverses [`json_text`], in the collation of our tables.
pub(super) fn plain_text(column: &str) -> String {
    format!(
        "REPLACE(REPLACE(REPLACE({column} COLLATE Latin1_General_100_BIN2, N'~1', N'\"'), N'~2', N'\\'), N'~0', N'~')"
    )
}
