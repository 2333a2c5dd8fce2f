//! `health`: whether the service on this machine is alive, for container engines that have no HTTP client.

use std::time::Duration;

use clap::Args;

use crate::config::settings::listen_address;

#[derive(Args)]
pub struct HealthArgs {
    /// Where the service listens: its own setting, so that nothing else has to be told
    #[arg(long, env = "SM_LISTEN", default_value = "127.0.0.1:8082", value_parser = listen_address, value_name = "ADDRESS:PORT")]
    listen: String,
    /// Whether it serves https
    #[arg(long, env = "SM_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<std::path::PathBuf>,
}

/// Shorter than engines wait.
const TIMEOUT: Duration = Duration::from_secs(2);

pub async fn run(args: HealthArgs) -> Result<(), String> {
    let address = on_this_machine(&args.listen);
    if args.tls_cert.is_some() {
        // Its certificate is for another name than this machine's own; that it accepts connections must do.
        let connected = tokio::time::timeout(TIMEOUT, tokio::net::TcpStream::connect(&address)).await;
        return match connected {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("{address} does not answer: {error}")),
            Err(_) => Err(format!("{address} does not answer in time")),
        };
    }
    let client = awc::Client::builder().timeout(TIMEOUT).finish();
    let answer = client.get(format!("http://{address}/healthz")).send().await;
    let answer = answer.map_err(|error| format!("{address} does not answer: {error}"))?;
    if answer.status().is_success() { Ok(()) } else { Err(format!("{address} answered {}", answer.status())) }
}

/// Where to reach what listens on every address.
fn on_this_machine(listen: &str) -> String {
    let (host, port) = listen.rsplit_once(':').unwrap_or((listen, "8082"));
    match host {
        "0.0.0.0" => format!("127.0.0.1:{port}"),
        "[::]" => format!("[::1]:{port}"),
        _ => listen.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listens_everywhere_is_asked_here() {
        for (listen, asked) in [
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("localhost:1", "localhost:1"),
        ] {
            assert_eq!(on_this_machine(listen), asked);
        }
    }
}
