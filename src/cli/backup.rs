//! `backup`: copies an embedded store while it is in use.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use crate::config::settings::StoreConfig;
use crate::platform::clock::monotonic;
use crate::store::selection::StoreChoice;
use crate::store::sqlite::backup::{self, Progress};

#[derive(Args)]
pub struct BackupArgs {
    /// The file to make; must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    store: StoreConfig,
}

/// Between two lines of progress.
const PACE: Duration = Duration::from_secs(2);
/// How many pages make a MiB.
const PAGES_PER_MIB: u64 = 256;

pub async fn run(args: BackupArgs) -> Result<(), String> {
    let StoreChoice::Sqlite(store) = args.store.choice().map_err(|error| error.to_string())? else {
        let next = "use the server's own, such as BACKUP DATABASE; see docs/operations.md";
        return Err(format!("this makes backups of embedded stores only, and the store is a SQL Server: {next}"));
    };
    let file = args.file.clone();
    let copying = tokio::task::spawn_blocking(move || backup::run(&store, &file, report()));
    let contents = copying.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
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

/// Says how far it is, now and then; more often where somebody watches.
fn report() -> impl FnMut(Progress) {
    let pace = if std::io::stderr().is_terminal() { PACE / 4 } else { PACE };
    let mut last: Option<Instant> = None;
    move |progress| {
        let now = monotonic();
        match progress {
            Progress::Copied { pages, of } if last.is_none_or(|last| now.duration_since(last) >= pace) => {
                last = Some(now);
                eprintln!("copied {} of {} MiB", pages / PAGES_PER_MIB, of / PAGES_PER_MIB);
            }
            Progress::Copied { .. } => {}
            Progress::Verifying => eprintln!("verifying the copy"),
        }
    }
}
