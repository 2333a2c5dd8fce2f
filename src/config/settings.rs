//! The settings of the service: flags and environment variables, checked as they are read.
//!
//! Every flag has a variable; `--help` names both. Nothing here has an effect of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::config::registry::RegistryFiles;
use crate::domain::contract::GatewayUrl;
use crate::domain::lease::{LeaseTiming, UnsafeTiming};
use crate::store::selection::{DEFAULT_STORE, StoreChoice};
use crate::store::sqlserver::PoolSettings;

use super::values::{auth_mode, collector, name, origins, switch};
pub use super::values::{duration, listen_address, whole};

/// Each attempt under way is a connection with a payload in memory: 10,000 of 256 KiB are 2.5 GiB.
const MOST_IN_FLIGHT: usize = 10_000;
/// As many files as one process may commonly open.
const MOST_CLIENT_CONNECTIONS: usize = 1_000_000;
/// A quarter of what may wait for a commit.
const MOST_PAYLOAD_BYTES: usize = 16 * 1024 * 1024;
/// One is not enough: the lease must be renewed while a long read runs. A SQL Server takes 32,767 in all.
const STORE_CONNECTIONS: (u32, u32) = (2, 1000);
/// Shorter than any round trip to another process, and as long as anybody waits.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), minutes(10));
const STORE_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), minutes(5));
/// Below a tenth of a second a renewal does not fit; above an hour a dead leader is never replaced.
pub const LEASE_DURATION: (Duration, Duration) = (Duration::from_millis(100), minutes(60));
const LEASE_INTERVAL: (Duration, Duration) = (Duration::from_millis(10), minutes(60));
/// Intents that another instance took in wait for this long.
const REFRESH_INTERVAL: (Duration, Duration) = (Duration::from_millis(10), minutes(1));
const SHUTDOWN_DELAY: (Duration, Duration) = (Duration::ZERO, minutes(10));
/// A century: longer is for ever, which is the default.
const RETENTION: (Duration, Duration) = (Duration::from_secs(1), minutes(36_500 * 24 * 60));

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

#[derive(Args, Clone)]
pub struct StoreConfig {
    /// Where intents are kept: sqlite:<path of a file>, or the connection string of a SQL Server
    /// (Server=tcp:host,1433;Database=…;User Id=…;Password=…;Encrypt=…)
    // Checked later: an error of clap would repeat the value, and a password may stand in it.
    #[arg(
        long,
        env = "SM_STORE",
        hide_env_values = true,
        default_value = DEFAULT_STORE,
        value_name = "STORE"
    )]
    store: String,

    /// Replaces the password in the connection string, so that it need not stand there
    #[arg(long, env = "SM_STORE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    store_password: Option<String>,

    /// Connections to a SQL Server at most, 2 to 1000
    #[arg(long, env = "SM_STORE_CONNECTIONS", default_value = "8", value_parser = whole(STORE_CONNECTIONS.0, STORE_CONNECTIONS.1), value_name = "N")]
    store_connections: u32,

    /// How long a request may wait for a SQL Server, connection included, 100ms to 5m; always 5 s on SQLite
    #[arg(long, env = "SM_STORE_TIMEOUT", default_value = "5s", value_parser = duration(STORE_TIMEOUT.0, STORE_TIMEOUT.1), value_name = "TIME")]
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
    pub fn files(&self) -> Result<usize, ConfigError> {
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

    /// Connections that clients may have open, in all, 1 to 1000000; fewer if the limit of open files is low
    #[arg(long, env = "SM_MAX_CONNECTIONS", default_value = "10000", value_parser = whole(1, MOST_CLIENT_CONNECTIONS), value_name = "N")]
    pub max_connections: usize,

    /// Connections that one address may have open, 1 to 1000000; half of all by default. Set it higher if all clients come
    /// through one proxy
    #[arg(long, env = "SM_MAX_CONNECTIONS_PER_ADDRESS", value_parser = whole(1, MOST_CLIENT_CONNECTIONS), value_name = "N")]
    pub max_connections_per_address: Option<usize>,

    /// Whether every /v1 call needs a token with its scope; required by default if there are API clients
    #[arg(long, env = "SM_AUTH", value_parser = auth_mode, value_name = "OFF|REQUIRED")]
    pub auth: Option<AuthMode>,

    /// Bring the schema of the store up to date at start
    #[arg(long, env = "SM_MIGRATE", default_value = "on", value_parser = switch, value_name = "ON|OFF")]
    pub migrate: Switch,

    #[command(flatten)]
    pub lease: LeaseConfig,

    /// Attempts under way at once, over all gateways; 1 to 10000
    #[arg(long, env = "SM_MAX_IN_FLIGHT", default_value = "256", value_parser = whole(1, MOST_IN_FLIGHT), value_name = "N")]
    pub max_in_flight: usize,

    /// Attempts under way at once for one gateway URL, 1 to 10000, so that a dead one cannot take all places
    #[arg(long, env = "SM_MAX_IN_FLIGHT_PER_GATEWAY", default_value = "128", value_parser = whole(1, MOST_IN_FLIGHT), value_name = "N")]
    pub max_in_flight_per_gateway: usize,

    /// How long one attempt may take, from connecting to the last byte of the answer; 10ms to 10m
    #[arg(long, env = "SM_ATTEMPT_TIMEOUT", default_value = "35s", value_parser = duration(TIMEOUT.0, TIMEOUT.1), value_name = "TIME")]
    pub attempt_timeout: Duration,

    /// How long the receiver of a webhook may take to answer; 10ms to 10m
    #[arg(long, env = "SM_WEBHOOK_TIMEOUT", default_value = "15s", value_parser = duration(TIMEOUT.0, TIMEOUT.1), value_name = "TIME")]
    pub webhook_timeout: Duration,

    /// How long requests are still served after SIGTERM, for proxies to see that readiness says no; 0s to 10m
    #[arg(long, env = "SM_SHUTDOWN_DELAY", default_value = "2s", value_parser = duration(SHUTDOWN_DELAY.0, SHUTDOWN_DELAY.1), value_name = "TIME")]
    pub shutdown_delay: Duration,

    /// PEM file with further certificate authorities for https gateways and webhooks
    #[arg(long, env = "SM_GATEWAY_CA", value_name = "FILE")]
    pub gateway_ca: Option<PathBuf>,

    /// Where spans of sampled traces are sent, as OTLP over HTTP: a collector's base URL, such as
    /// http://localhost:4318; without it there are none
    #[arg(long, env = "SM_OTLP_ENDPOINT", value_parser = collector, value_name = "URL")]
    pub otlp_endpoint: Option<GatewayUrl>,

    /// Largest payload that is taken, 1 to 16777216 bytes
    #[arg(long, env = "SM_MAX_PAYLOAD_BYTES", default_value = "262144", value_parser = whole(1, MOST_PAYLOAD_BYTES), value_name = "BYTES")]
    pub max_payload_bytes: usize,

    #[command(flatten)]
    pub console: ConsoleConfig,

    /// PEM file with the certificate chain to serve https with
    #[arg(long, env = "SM_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with its private key
    #[arg(long, env = "SM_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Delete terminal intents this long after they ended, 1s to 36500d, such as 30d; kept for ever by default
    #[arg(long, env = "SM_RETENTION", value_parser = duration(RETENTION.0, RETENTION.1), value_name = "TIME")]
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
    pub console_auth: Option<String>,

    /// Let payloads be looked at in the console
    #[arg(long, env = "SM_CONSOLE_PAYLOADS", default_value = "on", value_parser = switch, value_name = "ON|OFF")]
    pub console_payloads: Switch,

    /// Origins whose pages may show the console in a frame, separated by blanks
    #[arg(long, env = "SM_CONSOLE_FRAMES", default_value = "", value_parser = origins, value_name = "ORIGINS")]
    pub console_frames: String,
}

impl std::fmt::Debug for ConsoleConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConsoleConfig { .. }")
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

    /// How long a lease lasts without being renewed, 100ms to 1h: the longest gap when a leader dies
    #[arg(long, env = "SM_LEASE_DURATION", default_value = "15s", value_parser = duration(LEASE_DURATION.0, LEASE_DURATION.1), value_name = "TIME")]
    pub lease_duration: Duration,

    /// How often the leader renews its lease; 10ms to 1h
    #[arg(long, env = "SM_RENEW_INTERVAL", default_value = "5s", value_parser = duration(LEASE_INTERVAL.0, LEASE_INTERVAL.1), value_name = "TIME")]
    pub renew_interval: Duration,

    /// How often a follower asks for the lease; 10ms to 1h
    #[arg(long, env = "SM_ACQUIRE_INTERVAL", default_value = "1s", value_parser = duration(LEASE_INTERVAL.0, LEASE_INTERVAL.1), value_name = "TIME")]
    pub acquire_interval: Duration,

    /// How often the leader looks for intents that other instances took in; 10ms to 1m
    #[arg(long, env = "SM_SCHEDULE_REFRESH_INTERVAL", default_value = "250ms", value_parser = duration(REFRESH_INTERVAL.0, REFRESH_INTERVAL.1), value_name = "TIME")]
    pub schedule_refresh_interval: Duration,
}

/// Whether calls that could do without a bearer token need one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    Off,
    Required,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

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
    #[error(
        "--tls-cert (SM_TLS_CERT) and --tls-key (SM_TLS_KEY) are needed together: give both to serve https, or neither"
    )]
    HalfOfTls,
}

impl Config {
    /// How long a lease lasts and how often it is renewed, if the two fit together.
    pub fn lease_timing(&self) -> Result<LeaseTiming, ConfigError> {
        Ok(LeaseTiming::new(self.lease.lease_duration, self.lease.renew_interval)?)
    }

    /// Whether tokens are asked for.
    pub fn auth_mode(&self) -> Result<AuthMode, ConfigError> {
        match (self.auth, &self.registry.api_clients) {
            (Some(AuthMode::Required), None) => Err(ConfigError::NobodyToKnow),
            (Some(mode), _) => Ok(mode),
            (None, Some(_)) => Ok(AuthMode::Required),
            (None, None) => Ok(AuthMode::Off),
        }
    }

    /// The files with the certificate chain and its key, if https is to be served.
    pub fn tls_files(&self) -> Result<Option<(&Path, &Path)>, ConfigError> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => Err(ConfigError::HalfOfTls),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    /// Settings without those of the environment that the tests run in.
    fn command() -> clap::Command {
        Config::augment_args(clap::Command::new("test")).no_binary_name(true).mut_args(|arg| arg.env(None::<&str>))
    }

    fn parse(arguments: &[String]) -> Result<Config, clap::Error> {
        command().try_get_matches_from(arguments).and_then(|matches| Config::from_arg_matches(&matches))
    }

    /// Every setting that is a number or a duration: flag, variable, least and most, as its own errors say them.
    fn numbers() -> Vec<(String, String, String, String)> {
        let with_variables = Config::augment_args(clap::Command::new("test"));
        let bounds = |arg: &clap::Arg| {
            let flag = format!("--{}", arg.get_long()?);
            let error = parse(&[format!("{flag}=x")]).err()?.to_string();
            let (_, bounds) = error.split_once(" from ")?;
            let (least, rest) = bounds.split_once(" to ")?;
            let most = rest.split_whitespace().next()?;
            Some((flag, arg.get_env()?.to_str()?.to_owned(), least.to_owned(), most.to_owned()))
        };
        with_variables.get_arguments().filter_map(bounds).collect()
    }

    #[test]
    fn every_number_has_bounds_that_hold() {
        let numbers = numbers();
        let named = command().get_arguments().filter(|arg| is_number(arg)).count();
        assert_eq!(numbers.len(), named, "a number without bounds: {numbers:?}");
        for (flag, _, least, most) in &numbers {
            let accepts = |value: &str| parse(&[format!("{flag}={value}")]).is_ok();
            assert!(accepts(least) && accepts(most), "{flag} from {least} to {most}");
            let unit = most.trim_start_matches(|c: char| c.is_ascii_digit());
            let number: u64 = most.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
            for above in [number + 1, u64::MAX] {
                assert!(!accepts(&format!("{above}{unit}")), "{flag} takes {above}{unit}");
            }
            for odd in ["99999999999999999999999", "-1", "", "1e9", "0x10", "NaN", " 1"] {
                assert!(!accepts(&format!("{odd}{unit}")), "{flag} takes {odd}{unit}");
            }
            assert_eq!(accepts(&format!("0{unit}")), least.starts_with('0'), "{flag} and zero");
        }
    }

    /// By the names that stand for values in `--help`.
    fn is_number(arg: &clap::Arg) -> bool {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| ["N", "TIME", "BYTES"].contains(&name.as_str()))
    }

    #[test]
    fn bounds_stand_in_the_help_and_in_the_readme() {
        let readme = include_str!("../../README.md");
        for (flag, variable, least, most) in numbers() {
            let arg = command().get_arguments().find(|arg| format!("--{}", arg.get_long().unwrap()) == flag).cloned();
            let help = arg.unwrap().get_help().unwrap().to_string();
            let row = readme.lines().find(|line| line.starts_with(&format!("| `{variable}` |"))).unwrap();
            for text in [&help, row] {
                assert!(text.contains(&format!("{least} to {most}")), "{variable} is {least} to {most}: {text}");
            }
        }
    }

    #[test]
    fn settings_may_all_be_at_their_bounds() {
        for at_most in [true, false] {
            let value = |(flag, _, least, most)| format!("{flag}={}", if at_most { most } else { least });
            let mut arguments: Vec<String> = numbers().into_iter().map(value).collect();
            // Two renewals must fit into a lease, so not both can be.
            arguments.retain(|argument| !argument.starts_with("--renew-interval"));
            arguments.push("--renew-interval=40ms".to_owned());
            let config = parse(&arguments).unwrap();
            assert!(config.lease_timing().is_ok(), "{arguments:?}");
        }
    }

    #[test]
    fn half_of_what_https_needs_is_refused() {
        let files = |arguments: &[&str]| {
            let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            parse(&arguments).unwrap().tls_files().map(|files| files.is_some()).map_err(|error| error.to_string())
        };
        assert_eq!((files(&[]), files(&["--tls-cert=a", "--tls-key=b"])), (Ok(false), Ok(true)));
        for half in ["--tls-cert=a", "--tls-key=b"] {
            let error = files(&[half]).unwrap_err();
            assert!(error.contains("SM_TLS_CERT") && error.contains("SM_TLS_KEY"), "{error}");
        }
    }
}
