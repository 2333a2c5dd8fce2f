//! The `copy` command: copies everything from one store into another, empty one, and verifies it.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use super::CommandResult;
use crate::config::settings::ServerConfig;
use crate::platform::clock::monotonic;
use crate::store::copy::{self, Digest, Progress};
use crate::telemetry::metrics::Metrics;

#[derive(Args)]
pub(super) struct CopyArgs {
    /// The store to copy: sqlite:FILE, or the connection string of a SQL Server
    // Neither value is parsed by clap, because its errors would print it, and it may contain a password.
    #[arg(long, value_name = "STORE")]
    from: String,
    /// The store to fill: an empty database of a SQL Server, or sqlite:FILE with a file that does not exist
    #[arg(long, value_name = "STORE")]
    to: String,
    #[command(flatten)]
    server: ServerConfig,
}

/// Time between two progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

pub(super) async fn run(args: CopyArgs) -> CommandResult {
    let store = |flag: &str, text: &str| args.server.choice_of(text).map_err(|error| format!("{flag} {error}"));
    let (from, to) = (store("--from", &args.from)?, store("--to", &args.to)?);
    let metrics = Arc::new(Metrics::new()?);
    let mut printer = Printer::new();
    copy::run(&from, &to, &metrics, |progress| printer.show(progress)).await?;
    let rows = |table: &str| printer.verified.get(table).map_or(0, |digest| digest.rows);
    println!(
        "{}: {} intents, {} attempts and all other tables copied and verified",
        to.name(),
        rows("submission_intents"),
        rows("submission_attempts")
    );
    println!(
        "{} keeps its data, but no instance leads there any more; to go back to it, run 'submission-manager lease reset' with it as \
         --store",
        from.name()
    );
    Ok(())
}

/// Prints the progress at intervals, which are shorter on a terminal, and each table that was verified.
struct Printer {
    interval: Duration,
    last: Option<Instant>,
    verified: BTreeMap<&'static str, Digest>,
}

impl Printer {
    fn new() -> Self {
        let interval = if std::io::stderr().is_terminal() { PROGRESS_INTERVAL / 4 } else { PROGRESS_INTERVAL };
        Self { interval, last: None, verified: BTreeMap::new() }
    }

    fn show(&mut self, progress: Progress) {
        let now = monotonic();
        let is_due = self.last.is_none_or(|last| now.duration_since(last) >= self.interval);
        match progress {
            Progress::Verified { table, digest } => {
                eprintln!("verified {table}: {digest}");
                self.verified.insert(table, digest);
            }
            Progress::Copied { table, rows, of } if is_due || rows == of => {
                eprintln!("copied {table}: {rows} of {of} rows");
                self.last = Some(now);
            }
            Progress::Verifying { table } if is_due => {
                eprintln!("verifying {table}");
                self.last = Some(now);
            }
            Progress::Copied { .. } | Progress::Verifying { .. } => {}
        }
    }
}
