//! The `lease reset` command: frees a lease whose holder is dead and whose expiry is far in the future, which happens if
//! the clock of the store jumped ahead and was set back.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::CommandResult;
use crate::config::settings::{LEASE_DURATION, StoreConfig, duration};
use crate::config::variables::Variables;
use crate::domain::actor::Actor;
use crate::platform::clock::monotonic;
use crate::telemetry::metrics::Metrics;

#[derive(Subcommand)]
pub(super) enum LeaseCommand {
    /// Free the lease if its holder does not renew it; needed after a clock jumped ahead and was set back, and to use the
    /// source of a copy again
    #[command(after_help = "Example:\n  submission-manager lease reset --store sqlite:data/submission.db")]
    Reset(ResetArgs),
}

#[derive(Args)]
pub(super) struct ResetArgs {
    #[command(flatten)]
    store: StoreConfig,
    /// Duration of a lease; the holder is considered dead if it does not renew for 1.25 times this duration
    #[arg(long, env = "SM_LEASE_DURATION", default_value = "15s", value_parser = duration(LEASE_DURATION.0, LEASE_DURATION.1), value_name = "TIME")]
    lease_duration: Duration,
}

/// How often the lease is read while the command waits for a renewal.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn run(LeaseCommand::Reset(args): LeaseCommand) -> CommandResult {
    let metrics = Arc::new(Metrics::new()?);
    let choice = args.store.choice()?;
    let store = choice.open(false, metrics).await?;
    let state = store.lease_state().await?;
    let Some(lease) = state.lease.filter(|lease| lease.expires_at > state.now) else {
        println!("the lease is free, so there is nothing to reset; a running instance acquires it within a second");
        return Ok(());
    };
    let wait = args.lease_duration + args.lease_duration / 4;
    eprintln!("waiting {wait:?} to see whether {} renews the lease", lease.holder_id);
    let until = monotonic() + wait;
    while monotonic() < until {
        tokio::time::sleep(POLL_INTERVAL).await;
        let current = store.lease_state().await?.lease;
        if current.map(|current| (current.epoch, current.renewed_at)) != Some((lease.epoch, lease.renewed_at)) {
            return Err(alive(&lease.holder_id).into());
        }
    }
    if !store.reset_lease(lease.epoch, lease.renewed_at, local_user()).await? {
        return Err(alive(&lease.holder_id).into());
    }
    println!("reset the lease of {}; a running instance acquires it within a second", lease.holder_id);
    Ok(())
}

/// The user who runs this command, as the environment of the process says.
fn local_user() -> Actor {
    let variables = Variables::of_process();
    let user = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| variables.get(name));
    Actor::command_line(user.as_deref())
}

fn alive(holder_id: &str) -> String {
    format!("{holder_id} is alive and renews the lease, so it was not reset; stop that instance first")
}
