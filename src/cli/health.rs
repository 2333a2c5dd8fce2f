//! The `health` command: checks that the service on this machine responds. Container engines run it where the image has
//! no HTTP client.

use std::error::Error;
use std::time::Duration;

use actix_web::http::StatusCode;
use clap::Args;

use super::CommandResult;
use crate::config::settings::listen_address;

#[derive(Args)]
pub(super) struct HealthArgs {
    /// Address and port that the service listens on; the same setting as that of the service
    #[arg(long, env = "SM_LISTEN", default_value = "127.0.0.1:8082", value_parser = listen_address, value_name = "ADDRESS:PORT")]
    listen: String,
    /// Certificate of the service; if it is set, only the TCP connection is checked
    #[arg(long, env = "SM_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<std::path::PathBuf>,
}

/// Shorter than the time that container engines allow for a health check.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Why the service counts as not healthy.
#[derive(Debug, thiserror::Error)]
enum Unhealthy {
    #[error("{address} does not respond")]
    NoResponse { address: String, source: Box<dyn Error> },
    #[error("{address} does not respond within {TIMEOUT:?}")]
    TooSlow { address: String },
    #[error("{address} responded with {status}")]
    Failed { address: String, status: StatusCode },
}

pub(super) async fn run(args: HealthArgs) -> CommandResult {
    let address = local_address(&args.listen);
    if args.tls_cert.is_some() {
        // The certificate is issued for another name than that of the local address, so https would fail here.
        let connected = tokio::time::timeout(TIMEOUT, tokio::net::TcpStream::connect(&address)).await;
        return match connected {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Unhealthy::NoResponse { address, source: error.into() }.into()),
            Err(_) => Err(Unhealthy::TooSlow { address }.into()),
        };
    }
    let client = awc::Client::builder().timeout(TIMEOUT).finish();
    let response = client.get(format!("http://{address}/healthz")).send().await;
    match response {
        Err(error) => Err(Unhealthy::NoResponse { address, source: error.into() }.into()),
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) => Err(Unhealthy::Failed { address, status: response.status() }.into()),
    }
}

/// The address to connect to: loopback if the service listens on all addresses, else the address that it listens on.
fn local_address(listen: &str) -> String {
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
    fn a_service_on_all_addresses_is_reached_on_loopback() {
        for (listen, expected) in [
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("localhost:1", "localhost:1"),
        ] {
            assert_eq!(local_address(listen), expected);
        }
    }
}
