//! The `audit verify` command: checks that no entry of the audit log was changed or removed.

use std::sync::Arc;

use clap::{Args, Subcommand};

use super::CommandResult;
use crate::config::settings::StoreConfig;
use crate::domain::audit::{AuditEntry, ChainHash, ChainLink};
use crate::domain::audit_chain::{BrokenChain, ChainCheck, IntactChain};
use crate::store::{Store, StoreError};
use crate::telemetry::metrics::Metrics;

#[derive(Subcommand)]
pub(super) enum AuditCommand {
    /// Check that no entry was changed or removed; exits with 0 or 1
    #[command(after_help = "Examples:\n  submission-manager audit verify --store sqlite:data/submission.db\n  \
        submission-manager audit verify --expect 1042:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    Verify(VerifyArgs),
}

#[derive(Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    store: StoreConfig,
    /// Number and hash of an entry that must be in the log, as an earlier check printed them. Keep them outside the store,
    /// because somebody who can write to the store could replace the whole log
    #[arg(long, value_parser = link, value_name = "ID:HASH")]
    expect: Option<ChainLink>,
}

fn link(text: &str) -> Result<ChainLink, String> {
    let link = text.split_once(':').and_then(|(id, hash)| {
        Some(ChainLink { id: id.parse().ok().filter(|id| *id > 0)?, hash: ChainHash::parse(hash)? })
    });
    link.ok_or_else(|| "must be the number of an entry, a colon and the 64 hexadecimal digits of its hash".to_owned())
}

/// Entries that are read at once.
const PAGE: usize = 1000;
/// How often a check starts again because the service has purged entries meanwhile, which happens once a day.
const TRIES: usize = 3;

pub(super) async fn run(AuditCommand::Verify(args): AuditCommand) -> CommandResult {
    let metrics = Arc::new(Metrics::new()?);
    let choice = args.store.choice()?;
    let store = choice.open(false, metrics).await?;
    for _ in 0..TRIES {
        match verify(&*store, args.expect).await? {
            Verified::Intact(chain) => {
                print(&chain, args.expect);
                return Ok(());
            }
            Verified::Broken(broken) => {
                return Err(format!("{}: the chain of the audit log is broken at {broken}", choice.name()).into());
            }
            Verified::PurgedMeanwhile => {}
        }
    }
    Err("the service purged entries during each check, so none was finished; run the command again".into())
}

enum Verified {
    Intact(Box<IntactChain>),
    Broken(BrokenChain),
    /// The oldest entries were deleted during the check.
    PurgedMeanwhile,
}

/// Reads the log in pages and checks it.
async fn verify(store: &dyn Store, expected: Option<ChainLink>) -> Result<Verified, StoreError> {
    let mut check = ChainCheck::new(expected);
    let (mut first, mut last) = (None, i64::MIN);
    let checked = loop {
        let page = store.audit_chain(last, PAGE).await?;
        if page.entries.is_empty() {
            break check.finish(page.head);
        }
        first = first.or(page.entries.first().map(|entry| entry.id));
        last = page.entries.last().map_or(last, |entry| entry.id);
        if let Err(broken) = page.entries.into_iter().try_for_each(|entry| check.add(entry)) {
            break Err(broken);
        }
    };
    let broken = match checked {
        Ok(chain) => return Ok(Verified::Intact(Box::new(chain))),
        Err(broken) => broken,
    };
    let oldest = store.audit_chain(i64::MIN, 1).await?.entries.first().map(|entry| entry.id);
    Ok(if oldest == first { Verified::Broken(broken) } else { Verified::PurgedMeanwhile })
}

fn print(chain: &IntactChain, expected: Option<ChainLink>) {
    println!("{} entries, the chain is intact", chain.entries);
    let Some((first, last)) = &chain.ends else { return };
    println!("first: {}", line(first));
    println!("last:  {}", line(last));
    if let Some(purge) = &chain.purge {
        println!("entries up to {} were purged, as entry {} of {} records", purge.last.id, purge.id, purge.at);
    }
    if let Some(expected) = expected {
        println!("entry {} is the expected one", expected.id);
    }
    println!("note this outside the database, for the next check: --expect {}", last.link());
}

fn line(entry: &AuditEntry) -> String {
    let actor = if entry.actor_name.is_empty() { &entry.actor_kind } else { &entry.actor_name };
    format!("{} of {}, {} {:?} by {actor:?}", entry.id, entry.at, entry.action, entry.subject)
}
