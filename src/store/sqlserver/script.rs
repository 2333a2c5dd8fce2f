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
pub struct Values(Vec<Value>);

impl Values {
    fn bind(&mut self, value: Value) -> String {
        self.0.push(value);
        format!("@P{}", self.0.len())
    }

    pub fn number(&mut self, number: i64) -> String {
        self.bind(Value::Number(number))
    }

    pub fn count(&mut self, count: usize) -> String {
        self.number(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// For NVARCHAR columns, and for texts that nothing is compared with.
    pub fn text(&mut self, text: impl Into<String>) -> String {
        self.bind(Value::Text(text.into()))
    }

    /// For VARCHAR columns of at most `length` characters.
    pub fn code(&mut self, code: impl Into<String>, length: usize) -> String {
        let parameter = self.text(code);
        format!("CAST({parameter} AS VARCHAR({length}))")
    }

    pub fn hash(&mut self, hash: &[u8; 32]) -> String {
        let parameter = self.bytes(Bytes::copy_from_slice(hash));
        format!("CAST({parameter} AS BINARY(32))")
    }

    pub fn bytes(&mut self, bytes: Bytes) -> String {
        self.bind(Value::Bytes(bytes))
    }

    pub fn moment(&mut self, moment: Timestamp) -> String {
        let parameter = self.text(json_moment(moment));
        format!("CAST({parameter} AS DATETIME2(6))")
    }

    pub fn json(&mut self, items: Vec<Json>) -> String {
        self.text(Json::Array(items).to_string())
    }

    /// The fence: whether this term holds the lease, in `@held`. The lease row is changed, so it stays locked until commit
    /// and nobody can begin another term before. The expression of the term's epoch comes with it.
    pub fn fence(&mut self, term: &Term) -> Fence {
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

    pub fn batch(self, sql: impl Into<std::borrow::Cow<'static, str>>) -> Batch {
        Batch::new(sql, self.0)
    }
}

pub struct Fence {
    pub sql: String,
    pub epoch: String,
}

/// A batch of writes: reads its inputs, makes its changes in one transaction, and says what became of them after that.
///
/// A client that stops reading holds no locks that way, and the row of the clock, which all instances wait for, is not held
/// while JSON is read.
#[derive(Default)]
pub struct Script {
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
    pub fn fence(&mut self, term: &Term) -> String {
        let Fence { sql, epoch } = self.values.fence(term);
        self.fence = sql;
        epoch
    }

    /// Reads a list once: declares `@name` with these columns and fills it. A column of the list has a name, its definition
    /// in the table, the type to read it from JSON with, and how that becomes the column (`j.` names what is read).
    pub fn input<'a>(&mut self, name: &str, items: Vec<Json>, columns: impl IntoIterator<Item = Column<'a>>) {
        let json = self.values.json(items);
        let (mut table, mut names, mut read, mut with) = (String::new(), String::new(), String::new(), String::new());
        for (place, column) in columns.into_iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            let Column { name, definition, json_type, expression } = column;
            let _infallible = write!(table, "{comma}{name} {definition}");
            let _infallible = write!(names, "{comma}{name}");
            let _infallible = write!(read, "{comma}{expression}");
            let _infallible = write!(with, "{comma}{name} {json_type}");
        }
        let _infallible = write!(
            self.inputs,
            "
DECLARE @{name} TABLE ({table});
INSERT INTO @{name} ({names})
SELECT {read}
FROM OPENJSON({json}) WITH ({with}) AS j;"
        );
    }

    /// Declares a variable of the batch.
    pub fn variable(&mut self, declaration: &str) {
        let _infallible = write!(self.variables, ", {declaration}");
    }

    /// Adds statements of the transaction that are made in any case.
    pub fn change(&mut self, sql: &str) {
        self.changes.push_str(sql);
    }

    /// Adds statements of the transaction that are made if the term holds the lease.
    pub fn fenced_change(&mut self, sql: &str) {
        self.fenced_changes.push_str(sql);
    }

    /// Adds a query that is made after the commit.
    pub fn answer(&mut self, sql: &str) {
        self.answers.push_str(sql);
    }

    /// The batch writes down attempts as started, so it must not run twice.
    pub fn starts_attempts(&mut self) {
        self.starts_attempts = true;
    }

    pub fn batch(self) -> Batch {
        let Self { values, variables, inputs, fence, changes, fenced_changes, answers, starts_attempts } = self;
        let fenced_changes = match fenced_changes.as_str() {
            "" => String::new(),
            changes => format!("\nIF @held = 1\nBEGIN{changes}\nEND;"),
        };
        let sql = format!(
            "DECLARE @now DATETIME2(6), @held BIGINT = 0{variables};{inputs}
BEGIN TRANSACTION;{fence}{TICK}{changes}{fenced_changes}
COMMIT TRANSACTION;
SELECT @now AS now_at, @held AS held;{answers}"
        );
        let repeat = if starts_attempts { Repeat::IfRolledBack } else { Repeat::IfFailed };
        Batch { repeat, ..values.batch(sql) }
    }
}

/// A column of an input.
pub struct Column<'a> {
    name: &'a str,
    definition: String,
    json_type: String,
    expression: String,
}

impl<'a> Column<'a> {
    /// A column that is read as it is.
    pub fn of(name: &'a str, sql_type: &str) -> Self {
        Self {
            name,
            definition: format!("{sql_type} NULL"),
            json_type: sql_type.to_owned(),
            expression: format!("j.{name}"),
        }
    }

    /// What no two items share.
    pub fn key(name: &'a str) -> Self {
        Self { definition: "BIGINT NOT NULL PRIMARY KEY".to_owned(), ..Self::of(name, "BIGINT") }
    }

    /// A word of ours, in ASCII.
    pub fn code(name: &'a str, length: usize) -> Self {
        let sql_type = format!("VARCHAR({length})");
        Self {
            definition: format!("{sql_type} COLLATE Latin1_General_100_BIN2 NULL"),
            expression: format!("j.{name} COLLATE Latin1_General_100_BIN2"),
            ..Self::of(name, &sql_type)
        }
    }

    /// Any text, as [`json_text`] writes it. `length` is that of the column.
    pub fn text(name: &'a str, length: usize) -> Self {
        // Written so, a text may be twice as long.
        Self::any_text(name, &format!("NVARCHAR({length})"), &format!("NVARCHAR({})", (length * 2).min(4000)))
    }

    pub fn long_text(name: &'a str) -> Self {
        Self::any_text(name, "NVARCHAR(MAX)", "NVARCHAR(MAX)")
    }

    fn any_text(name: &'a str, sql_type: &str, json_type: &str) -> Self {
        Self {
            name,
            definition: format!("{sql_type} COLLATE Latin1_General_100_BIN2 NULL"),
            json_type: json_type.to_owned(),
            expression: plain_text(&format!("j.{name}")),
        }
    }

    /// 32 bytes of `bytes`; the list says where they begin.
    pub fn hash(name: &'a str, bytes: &str) -> Self {
        Self {
            name,
            definition: "BINARY(32) NULL".to_owned(),
            json_type: "BIGINT".to_owned(),
            expression: format!("CAST(SUBSTRING({bytes}, j.{name}, 32) AS BINARY(32))"),
        }
    }
}

/// A text as it goes into JSON: nothing in it needs an escape there, because not every server undoes the escapes of JSON.
/// [`plain_text`] undoes this.
pub fn json_text(text: &str) -> String {
    text.replace('~', "~0").replace('"', "~1").replace('\\', "~2").replace(char::is_control, " ")
}

/// A text out of JSON as it was before [`json_text`], in the collation of our columns.
pub fn plain_text(column: &str) -> String {
    format!(
        "REPLACE(REPLACE(REPLACE({column} COLLATE Latin1_General_100_BIN2, N'~1', N'\"'), N'~2', N'\\'), N'~0', N'~')"
    )
}
