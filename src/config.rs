//! The settings of the service: flags and environment variables, checked as they are read.
//!
//! Every flag has a variable; `--help` names both. Nothing here has an effect of its own.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::console::{Access, Console, Login};
use crate::core::contract::GatewayUrl;
use crate::core::lease::{LeaseTiming, UnsafeTiming};
use crate::core::schedule::Limits;
use crate::descriptors::Demand;
use crate::http::auth::AuthMode;
use crate::leader::LeaderSettings;
use crate::registry::RegistryFiles;
use crate::store::choice::StoreChoice;
use crate::store::sqlserver::PoolSettings;
use crate::webhooks::places::IN_ALL as WEBHOOKS_IN_FLIGHT;

#[derive(Args, Clone)]
pub struct StoreConfig {
    /// Where intents are kept: sqlite:<path of a file>, or the connection string of a SQL Server
    /// (Server=tcp:host,1433;Database=…;User Id=…;Password=…;Encrypt=…)
    // Checked later: an error of clap would repeat the value, and a password may stand in it.
    #[arg(
        long,
        env = "SM_STORE",
        hide_env_values = true,
        default_value = "sqlite:data/submission.db",
        value_name = "STORE"
    )]
    store: String,

    /// Replaces the password in the connection string, so that it need not stand there
    #[arg(long, env = "SM_STORE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    store_password: Option<String>,

    /// Connections to a SQL Server at most
    #[arg(long, env = "SM_STORE_CONNECTIONS", default_value = "8", value_parser = connections, value_name = "N")]
    store_connections: u32,

    /// How long a call to a SQL Server may take, and wait for a connection
    #[arg(long, env = "SM_STORE_TIMEOUT", default_value = "5s", value_parser = span, value_name = "TIME")]
    store_timeout: Duration,
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreConfig { .. }")
    }
}

/// File descriptors of the embedded store: eight connections with three files each, and room for a checkpoint and a
/// migration.
const SQLITE_FILES: usize = 32;

impl StoreConfig {
    /// File descriptors that the store may have open at once.
    fn files(&self) -> Result<usize, ConfigError> {
        Ok(match self.choice()? {
            StoreChoice::Sqlite(_) => SQLITE_FILES,
            // A connection that is being replaced is open twice for a moment.
            StoreChoice::SqlServer(_) => {
                usize::try_from(self.store_connections).unwrap_or(usize::MAX).saturating_mul(2)
            }
        })
    }

    /// Which store that is; an error repeats nothing of what was given.
    pub fn choice(&self) -> Result<StoreChoice, ConfigError> {
        let pool = PoolSettings { size: self.store_connections, timeout: self.store_timeout };
        StoreChoice::parse(&self.store, self.store_password.as_deref(), pool).map_err(ConfigError::Store)
    }
}

#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Address and port to serve HTTP on
    #[arg(long, env = "SM_LISTEN", default_value = "127.0.0.1:8082", value_parser = listen_address, value_name = "ADDRESS:PORT")]
    pub listen: String,

    #[command(flatten)]
    pub store: StoreConfig,

    #[command(flatten)]
    pub registry: RegistryConfig,

    /// Connections that clients may have open, in all; fewer if the limit of open files is low
    #[arg(long, env = "SM_MAX_CONNECTIONS", default_value = "10000", value_parser = client_connections, value_name = "N")]
    pub max_connections: usize,

    /// Connections that one address may have open; half of all by default. Set it higher if all clients come through one
    /// proxy
    #[arg(long, env = "SM_MAX_CONNECTIONS_PER_ADDRESS", value_parser = client_connections, value_name = "N")]
    pub max_connections_per_address: Option<usize>,

    /// Whether every /v1 call needs a token with its scope; required by default if there are API clients
    #[arg(long, env = "SM_AUTH", value_parser = auth_mode, value_name = "OFF|REQUIRED")]
    pub auth: Option<AuthMode>,

    /// Bring the schema of the store up to date at start
    #[arg(long, env = "SM_MIGRATE", default_value = "on", value_parser = switch, value_name = "ON|OFF")]
    pub migrate: Switch,

    #[command(flatten)]
    pub lease: LeaseConfig,

    /// Attempts under way at once, over all gateways
    #[arg(long, env = "SM_MAX_IN_FLIGHT", default_value = "256", value_parser = count, value_name = "N")]
    pub max_in_flight: usize,

    /// Attempts under way at once for one gateway URL, so that a dead one cannot take all places
    #[arg(long, env = "SM_MAX_IN_FLIGHT_PER_GATEWAY", default_value = "128", value_parser = count, value_name = "N")]
    pub max_in_flight_per_gateway: usize,

    /// How long one attempt may take, from connecting to the last byte of the answer
    #[arg(long, env = "SM_ATTEMPT_TIMEOUT", default_value = "10s", value_parser = span, value_name = "TIME")]
    pub attempt_timeout: Duration,

    /// How long the receiver of a webhook may take to answer
    #[arg(long, env = "SM_WEBHOOK_TIMEOUT", default_value = "15s", value_parser = span, value_name = "TIME")]
    pub webhook_timeout: Duration,

    /// How long requests are still served after SIGTERM, for proxies to see that readiness says no
    #[arg(long, env = "SM_SHUTDOWN_DELAY", default_value = "2s", value_parser = span_or_zero, value_name = "TIME")]
    pub shutdown_delay: Duration,

    /// PEM file with further certificate authorities for https gateways and webhooks
    #[arg(long, env = "SM_GATEWAY_CA", value_name = "FILE")]
    pub gateway_ca: Option<PathBuf>,

    /// Where spans of sampled traces are sent, as OTLP over HTTP: a collector's base URL, such as
    /// http://localhost:4318; without it there are none
    #[arg(long, env = "SM_OTLP_ENDPOINT", value_parser = collector, value_name = "URL")]
    pub otlp_endpoint: Option<GatewayUrl>,

    /// Largest payload that is taken
    #[arg(long, env = "SM_MAX_PAYLOAD_BYTES", default_value = "262144", value_parser = payload_bytes, value_name = "BYTES")]
    pub max_payload_bytes: usize,

    #[command(flatten)]
    pub console: ConsoleConfig,

    /// PEM file with the certificate chain to serve https with
    #[arg(long, env = "SM_TLS_CERT", requires = "tls_key", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with its private key
    #[arg(long, env = "SM_TLS_KEY", requires = "tls_cert", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Delete terminal intents this long after they ended, such as 30d; kept for ever by default
    #[arg(long, env = "SM_RETENTION", value_parser = span, value_name = "TIME")]
    pub retention: Option<Duration>,
}

#[derive(Args, Clone, Debug)]
pub struct RegistryConfig {
    /// The file with the contracts of all targets; SIGHUP reloads it and those below
    #[arg(long, env = "SM_REGISTRY", default_value = "registry/submission_targets.json", value_name = "FILE")]
    registry: PathBuf,

    /// The file with the management nodes that jobs go to; no jobs are taken without one
    #[arg(long, env = "SM_NODES", value_name = "FILE")]
    nodes: Option<PathBuf>,

    /// The file with the callers that are known by their tokens
    #[arg(long, env = "SM_API_CLIENTS", value_name = "FILE")]
    api_clients: Option<PathBuf>,

    /// The file with the clients of the inbox; nothing comes in without one
    #[arg(long, env = "SM_INBOX_CLIENTS", value_name = "FILE")]
    inbox_clients: Option<PathBuf>,
}

impl RegistryConfig {
    pub fn files(&self) -> RegistryFiles {
        RegistryFiles {
            targets: self.registry.clone(),
            nodes: self.nodes.clone(),
            api_clients: self.api_clients.clone(),
            inbox_clients: self.inbox_clients.clone(),
        }
    }
}

#[derive(Args, Clone)]
pub struct ConsoleConfig {
    /// Who may see the console: a line as 'htpasswd -nB user' prints it. Without one it is open on
    /// the loopback and closed elsewhere
    // Checked later: an error of clap would repeat the value.
    #[arg(long, env = "SM_CONSOLE_AUTH", hide_env_values = true, value_name = "USER:HASH")]
    console_auth: Option<String>,

    /// Let payloads be looked at in the console
    #[arg(long, env = "SM_CONSOLE_PAYLOADS", default_value = "on", value_parser = switch, value_name = "ON|OFF")]
    console_payloads: Switch,

    /// Origins whose pages may show the console in a frame, separated by blanks
    #[arg(long, env = "SM_CONSOLE_FRAMES", default_value = "", value_parser = origins, value_name = "ORIGINS")]
    console_frames: String,
}

impl std::fmt::Debug for ConsoleConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConsoleConfig { .. }")
    }
}

impl ConsoleConfig {
    pub fn login(&self) -> Result<Option<Login>, ConfigError> {
        self.console_auth.as_deref().map(Login::parse).transpose().map_err(ConfigError::ConsoleAuth)
    }

    /// The console of an instance that listens on this address.
    pub fn console(&self, listens_on: IpAddr) -> Result<Console, ConfigError> {
        Ok(Console {
            access: Access::new(self.login()?, listens_on),
            payloads: self.console_payloads == Switch::On,
            frames: self.console_frames.clone(),
        })
    }
}

#[derive(Args, Clone, Debug)]
pub struct LeaseConfig {
    /// Name of this instance in the lease; host, process id and a random part by default
    #[arg(long, env = "SM_HOLDER_ID", value_parser = name, value_name = "NAME")]
    pub holder_id: Option<String>,

    /// The lease that instances compete for
    #[arg(long, env = "SM_LEASE_NAME", default_value = "submission-manager-executor", value_parser = name, value_name = "NAME")]
    pub lease_name: String,

    /// How long a lease lasts without being renewed: the longest gap when a leader dies
    #[arg(long, env = "SM_LEASE_DURATION", default_value = "15s", value_parser = span, value_name = "TIME")]
    pub lease_duration: Duration,

    /// How often the leader renews its lease
    #[arg(long, env = "SM_RENEW_INTERVAL", default_value = "5s", value_parser = span, value_name = "TIME")]
    pub renew_interval: Duration,

    /// How often a follower asks for the lease
    #[arg(long, env = "SM_ACQUIRE_INTERVAL", default_value = "1s", value_parser = span, value_name = "TIME")]
    pub acquire_interval: Duration,

    /// How often the leader looks for intents that other instances took in
    #[arg(long, env = "SM_SCHEDULE_REFRESH_INTERVAL", default_value = "250ms", value_parser = span, value_name = "TIME")]
    pub schedule_refresh_interval: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

/// Waiting intents that the leader holds in memory over all contracts: about 16 MiB of them.
const SCHEDULE_CAPACITY: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("--lease-duration (SM_LEASE_DURATION) and --renew-interval (SM_RENEW_INTERVAL) do not go together: {0}")]
    Lease(#[from] UnsafeTiming),
    #[error("--store or SM_STORE {0}")]
    Store(String),
    #[error("--console-auth or SM_CONSOLE_AUTH {0}")]
    ConsoleAuth(String),
    #[error("--auth or SM_AUTH is required, so --api-clients or SM_API_CLIENTS must name the file with the callers")]
    NobodyToKnow,
}

impl Config {
    /// Whether tokens are asked for.
    pub fn auth_mode(&self) -> Result<AuthMode, ConfigError> {
        match (self.auth, &self.registry.api_clients) {
            (Some(AuthMode::Required), None) => Err(ConfigError::NobodyToKnow),
            (Some(mode), _) => Ok(mode),
            (None, Some(_)) => Ok(AuthMode::Required),
            (None, None) => Ok(AuthMode::Off),
        }
    }

    /// What the service needs file descriptors for.
    pub fn descriptors(&self) -> Result<Demand, ConfigError> {
        Ok(Demand {
            connections: self.max_connections,
            per_address: self.max_connections_per_address,
            calls: self.max_in_flight.saturating_add(WEBHOOKS_IN_FLIGHT),
            store: self.store.files()?,
        })
    }

    pub fn leader_settings(&self) -> Result<LeaderSettings, ConfigError> {
        let lease = &self.lease;
        Ok(LeaderSettings {
            lease_name: lease.lease_name.as_str().into(),
            holder_id: lease.holder_id.clone().map_or_else(default_holder_id, Into::into),
            timing: LeaseTiming::new(lease.lease_duration, lease.renew_interval)?,
            acquire_interval: lease.acquire_interval,
            refresh_interval: lease.schedule_refresh_interval,
            limits: Limits {
                in_flight: self.max_in_flight,
                in_flight_per_gateway: self.max_in_flight_per_gateway,
                capacity: SCHEDULE_CAPACITY,
            },
            retention: self.retention,
        })
    }
}

fn default_holder_id() -> Arc<str> {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    format!("{host}-{}-{:08x}", std::process::id(), fastrand::u32(..)).into()
}

pub fn listen_address(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    port.map(|_| text.to_owned()).ok_or_else(|| "must be an address and a port, such as 127.0.0.1:8082".to_owned())
}

fn auth_mode(text: &str) -> Result<AuthMode, String> {
    match text {
        "off" => Ok(AuthMode::Off),
        "required" => Ok(AuthMode::Required),
        _ => Err("must be off or required".to_owned()),
    }
}

fn switch(text: &str) -> Result<Switch, String> {
    match text {
        "on" => Ok(Switch::On),
        "off" => Ok(Switch::Off),
        _ => Err("must be on or off".to_owned()),
    }
}

/// Origins as they go into a header: nothing that could end the directive they stand in.
fn origins(text: &str) -> Result<String, String> {
    let fine = text.split_ascii_whitespace().all(|origin| {
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        host.is_some_and(|host| {
            !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.:*[]".contains(c))
        })
    });
    if fine { Ok(text.trim().to_owned()) } else { Err("must be origins such as https://portal.example".to_owned()) }
}

fn count(text: &str) -> Result<usize, String> {
    let fault = || "must be a whole number of at least 1".to_owned();
    text.parse().ok().filter(|number| *number >= 1).ok_or_else(fault)
}

fn client_connections(text: &str) -> Result<usize, String> {
    const MOST: usize = 1_000_000; // As many files as one process may commonly open.
    count(text).ok().filter(|number| *number <= MOST).ok_or_else(|| format!("must be a whole number from 1 to {MOST}"))
}

fn collector(text: &str) -> Result<GatewayUrl, String> {
    GatewayUrl::parse(text).map_err(|what| format!("must be an http or https URL with a host; this {what}"))
}

fn payload_bytes(text: &str) -> Result<usize, String> {
    const MOST: usize = 16 * 1024 * 1024; // A quarter of what may wait for a commit.
    count(text).ok().filter(|bytes| *bytes <= MOST).ok_or_else(|| format!("must be a whole number from 1 to {MOST}"))
}

fn connections(text: &str) -> Result<u32, String> {
    let fault = || "must be a whole number from 2 to 1000".to_owned();
    text.parse().ok().filter(|number| (2..=1000).contains(number)).ok_or_else(fault)
}

fn name(text: &str) -> Result<String, String> {
    let fine = !text.is_empty() && text.len() <= 200 && text.chars().all(|c| c.is_ascii_graphic());
    if fine { Ok(text.to_owned()) } else { Err("must be 1 to 200 visible ASCII characters without blanks".to_owned()) }
}

/// A span with its unit: `250ms`, `15s`, `2m`, `1h`, `30d`.
pub fn span(text: &str) -> Result<Duration, String> {
    let fault = || "must be a whole number above 0 with its unit (ms, s, m, h or d), such as 15s".to_owned();
    parse_span(text).filter(|span| !span.is_zero()).ok_or_else(fault)
}

/// A span that may be nothing: `0s`.
fn span_or_zero(text: &str) -> Result<Duration, String> {
    let fault = || "must be a whole number with its unit (ms, s, m, h or d), such as 2s or 0s".to_owned();
    parse_span(text).ok_or_else(fault)
}

fn parse_span(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis_per_unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(millis_per_unit).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (text, millis) in
            [("250ms", 250), ("15s", 15_000), ("2m", 120_000), ("1h", 3_600_000), ("30d", 2_592_000_000)]
        {
            assert_eq!(span(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(span_or_zero("0s"), Ok(Duration::ZERO));
        assert!(span_or_zero("0").is_err());
        for text in ["", "15", "s", "-1s", "1.5s", "0s", "15 s", "15S", "99999999999999999999d"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses() {
        for (text, fine) in [
            ("127.0.0.1:0", true),
            ("[::]:8082", true),
            ("localhost:80", true),
            (":80", false),
            ("x", false),
            ("x:y", false),
        ] {
            assert_eq!(listen_address(text).is_ok(), fine, "{text}");
        }
    }
}
