//! The `backup` command: copies a SQLite store while it is in use.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use super::CommandResult;
use crate::config::settings::StoreConfig;
use crate::platform::clock::monotonic;
use crate::store::selection::StoreChoice;
use crate::store::sqlite::backup::{self, Progress};

#[derive(Args)]
pub(super) struct BackupArgs {
    /// The file to create; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    store: StoreConfig,
}

/// Time between two progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// A page of the database has 4 KiB.
const PAGES_PER_MIB: u64 = 256;

pub(super) async fn run(args: BackupArgs) -> CommandResult {
    let StoreChoice::Sqlite(store) = args.store.choice()? else {
        return Err("the store is a SQL Server, and this command copies SQLite stores only; use the backups of the \
                    server, such as BACKUP DATABASE (see docs/operations.md)"
            .into());
    };
    let file = args.file.clone();
    let copying = tokio::task::spawn_blocking(move || backup::run(&store, &file, progress_printer()));
    let contents = copying.await??;
    let rows = |table: &str| contents.rows.get(table).copied().unwrap_or_default();
    println!(
        "{}: {} MiB, {} intents, {} attempts; integrity and row counts verified",
        args.file.display(),
        contents.bytes.div_ceil(1024 * 1024),
        rows("submission_intents"),
        rows("submission_attempts")
    );
    Ok(())
}

/// Prints the progress at intervals, which are shorter on a terminal.
fn progress_printer() -> impl FnMut(Progress) {
    let interval = if std::io::stderr().is_terminal() { PROGRESS_INTERVAL / 4 } else { PROGRESS_INTERVAL };
    let mut last: Option<Instant> = None;
    move |progress| {
        let now = monotonic();
        match progress {
            Progress::Copied { pages, of } if last.is_none_or(|last| now.duration_since(last) >= interval) => {
                last = Some(now);
                eprintln!("copied {} of {} MiB", pages / PAGES_PER_MIB, of / PAGES_PER_MIB);
            }
            Progress::Copied { .. } => {}
            Progress::Verifying => eprintln!("verifying the copy"),
        }
    }
}
