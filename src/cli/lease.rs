//! `lease reset`: frees a lease that nobody renews and that does not expire.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::config::settings::{LEASE_DURATION, StoreConfig, duration};
use crate::platform::clock::monotonic;
use crate::store::{LeaseState, Store};
use crate::telemetry::metrics::Metrics;

#[derive(Subcommand)]
pub enum LeaseCommand {
    /// Free the lease if its holder does not renew it; needed only after a clock had jumped ahead
    #[command(after_help = "Example:\n  submission-manager lease reset --store sqlite:data/submission.db")]
    Reset(ResetArgs),
}

#[derive(Args)]
pub struct ResetArgs {
    #[command(flatten)]
    store: StoreConfig,
    /// How long a lease lasts: the holder is taken for dead when it has not renewed for that long and a quarter more
    #[arg(long, env = "SM_LEASE_DURATION", default_value = "15s", value_parser = duration(LEASE_DURATION.0, LEASE_DURATION.1), value_name = "TIME")]
    lease_duration: Duration,
}

/// How often the lease is looked at.
const LOOK: Duration = Duration::from_millis(200);

pub async fn run(LeaseCommand::Reset(args): LeaseCommand) -> Result<(), String> {
    let metrics = Arc::new(Metrics::new().map_err(|error| error.to_string())?);
    let choice = args.store.choice().map_err(|error| error.to_string())?;
    let store = choice.open(false, metrics).await.map_err(|error| error.to_string())?;
    let found = look(&*store).await?;
    let Some(lease) = found.lease.filter(|lease| lease.expires_at > found.now) else {
        println!("the lease is free: nothing to reset; an instance that runs takes it within a second");
        return Ok(());
    };
    let watched = args.lease_duration + args.lease_duration / 4;
    eprintln!("watching for {watched:?} whether {} renews the lease", lease.holder_id);
    let until = monotonic() + watched;
    while monotonic() < until {
        tokio::time::sleep(LOOK).await;
        let seen = look(&*store).await?.lease;
        if seen.as_ref().map(|seen| (seen.epoch, seen.renewed_at)) != Some((lease.epoch, lease.renewed_at)) {
            return Err(alive(&lease.holder_id));
        }
    }
    match store.reset_lease(lease.epoch, lease.renewed_at).await {
        Ok(true) => {
            println!("the lease of {} is reset; an instance that runs takes it within a second", lease.holder_id);
            Ok(())
        }
        Ok(false) => Err(alive(&lease.holder_id)),
        Err(error) => Err(error.to_string()),
    }
}

async fn look(store: &dyn Store) -> Result<LeaseState, String> {
    store.lease_state().await.map_err(|error| error.to_string())
}

fn alive(holder_id: &str) -> String {
    format!("{holder_id} is alive and renews the lease, which is left as it is; stop that instance first")
}
