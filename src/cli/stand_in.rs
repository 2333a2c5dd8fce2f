//! The `stand-in` command: runs only the stand-in gateways of the demo, for trying a deployment without real gateways.

use clap::Args;

use super::CommandResult;
use crate::config::settings::listen_address;
use crate::devtools::stand_in_gateway::StandIn;
use crate::platform::errors::Context;
use crate::service::{SignalRequest, Signals};

#[derive(Args)]
pub(super) struct StandInArgs {
    /// Address and port to serve HTTP on
    #[arg(long, default_value = "127.0.0.1:8081", value_parser = listen_address, value_name = "ADDRESS:PORT")]
    listen: String,
}

pub(super) async fn run(args: StandInArgs) -> CommandResult {
    let mut signals = Signals::listen()?;
    let gateway = StandIn::listen(&args.listen).context(|| format!("cannot listen on {}", args.listen))?;
    println!("stand-in gateways at {}; the field \"simulate\" of a payload tells them what to do", gateway.url);
    while let SignalRequest::Reload = signals.next().await {}
    gateway.stop().await;
    Ok(())
}
