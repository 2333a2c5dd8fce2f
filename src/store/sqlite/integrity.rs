//! Looks for damage in a SQLite file, for the `check` command.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::connection::{self, OpenError};

const REMEDY: &str = "restore a backup; the service must not run on this file";

/// How much of a file was read without finding damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Examined {
    All,
    /// The time limit was reached before the end.
    Part,
}

/// Reads the whole file and looks for damage, for at most `time_limit`.
pub fn quick_check(path: &Path, time_limit: Duration) -> Result<Examined, OpenError> {
    let connection = connection::open_reader(path)?;
    let interrupt = connection.get_interrupt_handle();
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if is_done.recv_timeout(time_limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            interrupt.interrupt();
        }
    });
    let errors = errors_of(&connection, "PRAGMA quick_check(3)");
    drop(done);
    match errors {
        Ok(errors) if errors.is_empty() => Ok(Examined::All),
        Ok(errors) => Err(OpenError::new(path, format!("it is damaged ({})", errors.join("; ")), REMEDY)),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Ok(Examined::Part),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
            Err(OpenError::new(path, format!("it is damaged ({error})"), REMEDY))
        }
        Err(error) => Err(OpenError::from_sqlite(path, &error)),
    }
}

/// Returns the errors that `PRAGMA quick_check` or `PRAGMA integrity_check` report.
pub fn errors_of(connection: &Connection, pragma: &str) -> Result<Vec<String>, rusqlite::Error> {
    let mut statement = connection.prepare(pragma)?;
    let lines: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let errors = lines.iter().flat_map(|text| text.lines()).map(str::trim).filter(|line| *line != "ok");
    Ok(errors.map(str::to_owned).collect())
}
