//! The settings of the service: command-line flags and environment variables, checked as they are read.
//!
//! Every flag has an environment variable; `--help` names both.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::config::registry::{InvalidHtpasswd, RegistryFiles};
use crate::config::session_key::InvalidSessionKey;
use crate::domain::contract::GatewayUrl;
use crate::domain::lease::{LeaseTiming, UnsafeTiming};
use crate::store::selection::{Credentials, DEFAULT_STORE, InvalidStore, StoreChoice};
use crate::store::sqlserver::PoolSettings;
use crate::telemetry::logging::LogFormat;

pub use super::console_settings::{ConsoleConfig, TRACE_ID};
use super::values::{auth_mode, collector, log_format, name, switch};
pub use super::values::{duration, listen_address, whole};

/// Each attempt in flight is a connection with a payload in memory: 10,000 of 256 KiB are 2.5 GiB.
const MOST_IN_FLIGHT: usize = 10_000;
/// The number of files that one process can open at most on common systems.
const MOST_CLIENT_CONNECTIONS: usize = 1_000_000;
/// A quarter of the bytes of payload that may wait for a commit.
const MOST_PAYLOAD_BYTES: usize = 16 * 1024 * 1024;
/// One connection is not enough, because the lease must be renewed while a long read runs. A SQL Server accepts 32,767
/// connections in total.
const STORE_CONNECTIONS: (u32, u32) = (2, 1000);
/// The minimum is shorter than a round trip to another machine; the maximum is longer than a client waits.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), minutes(10));
const STORE_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), minutes(5));
/// A renewal does not fit into less than a tenth of a second. After more than an hour, a failover comes too late to be useful.
pub const LEASE_DURATION: (Duration, Duration) = (Duration::from_millis(100), minutes(60));
const LEASE_INTERVAL: (Duration, Duration) = (Duration::from_millis(10), minutes(60));
/// An intent that a follower accepted waits up to about this long before the leader reads it from the store.
const REFRESH_INTERVAL: (Duration, Duration) = (Duration::from_millis(10), minutes(1));
const SHUTDOWN_DELAY: (Duration, Duration) = (Duration::ZERO, minutes(10));
/// At most a century. Without the setting, intents are kept forever.
const RETENTION: (Duration, Duration) = (Duration::from_secs(1), minutes(36_500 * 24 * 60));
/// Entries are deleted by the day.
const AUDIT_RETENTION: (Duration, Duration) = (minutes(24 * 60), RETENTION.1);

pub(super) const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// The settings that name the store and its connections.
#[derive(Args, Clone)]
pub struct StoreConfig {
    /// The database that stores intents: sqlite:FILE, or the connection string of a SQL Server
    /// (Server=tcp:host,1433;Database=…;User Id=…;Password=…;Encrypt=…)
    // `choice` checks the value, because an error from clap would print it, and it may contain a password.
    #[arg(
        long,
        env = "SM_STORE",
        hide_env_values = true,
        default_value = DEFAULT_STORE,
        value_name = "STORE"
    )]
    store: String,

    #[command(flatten)]
    server: ServerConfig,
}

/// The settings of the connections to a SQL Server.
#[derive(Args, Clone)]
pub struct ServerConfig {
    /// Password for the SQL Server; replaces the one in the connection string
    #[arg(long, env = "SM_STORE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    store_password: Option<String>,

    /// File with an Entra ID access token for the SQL Server, instead of a user and a password in the connection string. It
    /// is read again for each new connection
    #[arg(long, env = "SM_STORE_TOKEN_FILE", value_name = "FILE")]
    store_token_file: Option<PathBuf>,

    /// Maximum number of connections to a SQL Server, 2 to 1000
    #[arg(long, env = "SM_STORE_CONNECTIONS", default_value = "8", value_parser = whole(STORE_CONNECTIONS.0, STORE_CONNECTIONS.1), value_name = "N")]
    store_connections: u32,

    /// Timeout of one request to a SQL Server, connecting included, 100ms to 5m; SQLite always uses 5 s
    #[arg(long, env = "SM_STORE_TIMEOUT", default_value = "5s", value_parser = duration(STORE_TIMEOUT.0, STORE_TIMEOUT.1), value_name = "TIME")]
    store_timeout: Duration,
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreConfig { .. }")
    }
}

impl ServerConfig {
    /// The store that this text names, with these settings if it is a SQL Server. An error does not contain the text, which
    /// may hold a password.
    pub fn choice_of(&self, store: &str) -> Result<StoreChoice, InvalidStore> {
        let pool = PoolSettings { size: self.store_connections, timeout: self.store_timeout };
        let credentials =
            Credentials { password: self.store_password.as_deref(), token_file: self.store_token_file.as_deref() };
        StoreChoice::parse(store, credentials, pool)
    }
}

/// File descriptors of the SQLite store: eight connections with three files each, and a reserve for a checkpoint and a
/// migration.
const SQLITE_FILES: usize = 32;

impl StoreConfig {
    /// The number of file descriptors that the store may have open at the same time.
    pub fn files(&self) -> Result<usize, ConfigError> {
        Ok(match self.choice()? {
            StoreChoice::Sqlite(_) => SQLITE_FILES,
            // While a connection is replaced, the old and the new one are both open.
            StoreChoice::SqlServer(_) => {
                usize::try_from(self.server.store_connections).unwrap_or(usize::MAX).saturating_mul(2)
            }
        })
    }

    /// The store that the settings name. An error does not contain the value, which may hold a password.
    pub fn choice(&self) -> Result<StoreChoice, ConfigError> {
        Ok(self.server.choice_of(&self.store)?)
    }
}

/// All settings of `serve`.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Address and port to serve HTTP on
    #[arg(long, env = "SM_LISTEN", default_value = "127.0.0.1:8082", value_parser = listen_address, value_name = "ADDRESS:PORT")]
    pub listen: String,

    #[command(flatten)]
    pub store: StoreConfig,

    #[command(flatten)]
    pub registry: RegistryConfig,

    /// Maximum number of open client connections, 1 to 1000000; lowered if the limit of open files is too low for it
    #[arg(long, env = "SM_MAX_CONNECTIONS", default_value = "10000", value_parser = whole(1, MOST_CLIENT_CONNECTIONS), value_name = "N")]
    pub max_connections: usize,

    /// Maximum number of open connections from one address, 1 to 1000000 [default: half of the maximum]. Raise it if all
    /// clients connect through one proxy
    #[arg(long, env = "SM_MAX_CONNECTIONS_PER_ADDRESS", value_parser = whole(1, MOST_CLIENT_CONNECTIONS), value_name = "N")]
    pub max_connections_per_address: Option<usize>,

    /// Whether every call under /v1 needs a bearer token with the right scope [default: required if SM_API_CLIENTS is set,
    /// else off]
    #[arg(long, env = "SM_AUTH", value_parser = auth_mode, value_name = "OFF|REQUIRED")]
    pub auth: Option<AuthMode>,

    /// Whether to migrate the schema of the store at start
    #[arg(long, env = "SM_MIGRATE", default_value = "on", value_parser = switch, value_name = "ON|OFF")]
    pub migrate: Switch,

    #[command(flatten)]
    pub lease: LeaseConfig,

    /// Maximum number of attempts in flight, over all gateways; 1 to 10000
    #[arg(long, env = "SM_MAX_IN_FLIGHT", default_value = "256", value_parser = whole(1, MOST_IN_FLIGHT), value_name = "N")]
    pub max_in_flight: usize,

    /// Maximum number of attempts in flight for one gateway URL, 1 to 10000, so that one slow gateway cannot use all slots
    #[arg(long, env = "SM_MAX_IN_FLIGHT_PER_GATEWAY", default_value = "128", value_parser = whole(1, MOST_IN_FLIGHT), value_name = "N")]
    pub max_in_flight_per_gateway: usize,

    /// Timeout of one attempt, from connecting to the last byte of the response; 10ms to 10m
    #[arg(long, env = "SM_ATTEMPT_TIMEOUT", default_value = "35s", value_parser = duration(TIMEOUT.0, TIMEOUT.1), value_name = "TIME")]
    pub attempt_timeout: Duration,

    /// Timeout of one webhook request; 10ms to 10m
    #[arg(long, env = "SM_WEBHOOK_TIMEOUT", default_value = "15s", value_parser = duration(TIMEOUT.0, TIMEOUT.1), value_name = "TIME")]
    pub webhook_timeout: Duration,

    /// How long to keep serving requests after SIGTERM, so that proxies notice that /readyz fails; 0s to 10m
    #[arg(long, env = "SM_SHUTDOWN_DELAY", default_value = "2s", value_parser = duration(SHUTDOWN_DELAY.0, SHUTDOWN_DELAY.1), value_name = "TIME")]
    pub shutdown_delay: Duration,

    /// PEM file with additional certificate authorities for https gateways, webhooks and the provider of sign-ins
    #[arg(long, env = "SM_GATEWAY_CA", value_name = "FILE")]
    pub gateway_ca: Option<PathBuf>,

    /// Base URL of an OpenTelemetry collector that receives spans of sampled traces as OTLP over HTTP, such as
    /// http://localhost:4318; without it no spans are sent
    #[arg(long, env = "SM_OTLP_ENDPOINT", value_parser = collector, value_name = "URL")]
    pub otlp_endpoint: Option<GatewayUrl>,

    /// Format of log lines on standard error: text, or a JSON object a line
    #[arg(long, env = "SM_LOG_FORMAT", default_value = "text", value_parser = log_format, value_name = "TEXT|JSON")]
    pub log_format: LogFormat,

    /// Maximum size of a payload, 1 to 16777216 bytes
    #[arg(long, env = "SM_MAX_PAYLOAD_BYTES", default_value = "262144", value_parser = whole(1, MOST_PAYLOAD_BYTES), value_name = "BYTES")]
    pub max_payload_bytes: usize,

    #[command(flatten)]
    pub console: ConsoleConfig,

    /// PEM file with the certificate chain for serving https; needs --tls-key
    #[arg(long, env = "SM_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of the certificate; needs --tls-cert
    #[arg(long, env = "SM_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Delete finished intents after this time, 1s to 36500d, such as 30d; without it they are kept forever
    #[arg(long, env = "SM_RETENTION", value_parser = duration(RETENTION.0, RETENTION.1), value_name = "TIME")]
    pub retention: Option<Duration>,

    /// Delete entries of the audit log after this time, 1d to 36500d, such as 730d; without it they are kept forever
    #[arg(long, env = "SM_AUDIT_RETENTION", value_parser = duration(AUDIT_RETENTION.0, AUDIT_RETENTION.1), value_name = "TIME")]
    pub audit_retention: Option<Duration>,
}

/// The settings that name the registry files.
#[derive(Args, Clone, Debug)]
pub struct RegistryConfig {
    /// File with the targets and their contracts; SIGHUP reloads all registry files
    #[arg(long, env = "SM_REGISTRY", default_value = "registry/submission_targets.json", value_name = "FILE")]
    registry: PathBuf,

    /// File with the management nodes that jobs are sent to; without it the jobs API is off
    #[arg(long, env = "SM_NODES", value_name = "FILE")]
    nodes: Option<PathBuf>,

    /// File with the API clients and the hashes of their tokens
    #[arg(long, env = "SM_API_CLIENTS", value_name = "FILE")]
    api_clients: Option<PathBuf>,

    /// File with the clients of the inbox; without it the inbox is off
    #[arg(long, env = "SM_INBOX_CLIENTS", value_name = "FILE")]
    inbox_clients: Option<PathBuf>,

    /// File with the users of the console: their roles and hashes of their passwords, or the provider that they sign in
    /// with
    #[arg(long, env = "SM_CONSOLE_USERS", value_name = "FILE")]
    console_users: Option<PathBuf>,
}

impl RegistryConfig {
    pub fn files(&self) -> RegistryFiles {
        RegistryFiles {
            targets: self.registry.clone(),
            nodes: self.nodes.clone(),
            api_clients: self.api_clients.clone(),
            inbox_clients: self.inbox_clients.clone(),
            console_users: self.console_users.clone(),
        }
    }
}

/// The settings of the lease that decides which instance executes.
#[derive(Args, Clone, Debug)]
pub struct LeaseConfig {
    /// Name of this instance in the lease [default: host name, process id and a random part]
    #[arg(long, env = "SM_HOLDER_ID", value_parser = name, value_name = "NAME")]
    pub holder_id: Option<String>,

    /// Name of the lease that the instances compete for
    #[arg(long, env = "SM_LEASE_NAME", default_value = "submission-manager-executor", value_parser = name, value_name = "NAME")]
    pub lease_name: String,

    /// How long a lease is valid without renewal, 100ms to 1h. After a leader dies, no attempt starts before
    /// its lease has expired
    #[arg(long, env = "SM_LEASE_DURATION", default_value = "15s", value_parser = duration(LEASE_DURATION.0, LEASE_DURATION.1), value_name = "TIME")]
    pub lease_duration: Duration,

    /// How often the leader renews its lease; 10ms to 1h
    #[arg(long, env = "SM_RENEW_INTERVAL", default_value = "5s", value_parser = duration(LEASE_INTERVAL.0, LEASE_INTERVAL.1), value_name = "TIME")]
    pub renew_interval: Duration,

    /// How often a follower tries to acquire the lease; 10ms to 1h
    #[arg(long, env = "SM_ACQUIRE_INTERVAL", default_value = "1s", value_parser = duration(LEASE_INTERVAL.0, LEASE_INTERVAL.1), value_name = "TIME")]
    pub acquire_interval: Duration,

    /// How often the leader queries the store for intents that other instances accepted; 10ms to 1m
    #[arg(long, env = "SM_SCHEDULE_REFRESH_INTERVAL", default_value = "250ms", value_parser = duration(REFRESH_INTERVAL.0, REFRESH_INTERVAL.1), value_name = "TIME")]
    pub schedule_refresh_interval: Duration,
}

/// Whether every call under `/v1` needs a bearer token. The jobs API needs one in either mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    Off,
    Required,
}

/// The value of a setting that is `on` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

/// Settings that are valid one by one but not together, or that clap does not check.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("--lease-duration (SM_LEASE_DURATION) and --renew-interval (SM_RENEW_INTERVAL) do not fit together: {0}")]
    Lease(#[from] UnsafeTiming),
    #[error("--store or SM_STORE {0}")]
    Store(#[from] InvalidStore),
    #[error("--console-auth or SM_CONSOLE_AUTH {0}")]
    ConsoleAuth(#[from] InvalidHtpasswd),
    #[error("--session-key or SM_SESSION_KEY {0}")]
    SessionKey(#[from] InvalidSessionKey),
    #[error("the cipher of console sessions does not work: {0}")]
    SessionCipher(#[from] aws_lc_rs::error::Unspecified),
    #[error("the system has no random numbers: {0}")]
    NoRandomNumbers(#[from] getrandom::Error),
    #[error(
        "--auth (SM_AUTH) is required, but no API clients are configured; name their file with --api-clients or SM_API_CLIENTS"
    )]
    NoApiClients,
    #[error("--tls-cert (SM_TLS_CERT) and --tls-key (SM_TLS_KEY) belong together: set both to serve https, or neither")]
    IncompleteTls,
}

impl Config {
    /// The duration of the lease and its renewal interval. Fails if the lease could expire before it is renewed.
    pub fn lease_timing(&self) -> Result<LeaseTiming, ConfigError> {
        Ok(LeaseTiming::new(self.lease.lease_duration, self.lease.renew_interval)?)
    }

    /// Whether every call needs a token: the setting, or `Required` exactly if API clients are configured.
    pub fn auth_mode(&self) -> Result<AuthMode, ConfigError> {
        match (self.auth, &self.registry.api_clients) {
            (Some(AuthMode::Required), None) => Err(ConfigError::NoApiClients),
            (Some(mode), _) => Ok(mode),
            (None, Some(_)) => Ok(AuthMode::Required),
            (None, None) => Ok(AuthMode::Off),
        }
    }

    /// The files with the certificate chain and its key, or `None` to serve plain http.
    pub fn tls_files(&self) -> Result<Option<(&Path, &Path)>, ConfigError> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => Err(ConfigError::IncompleteTls),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    /// The settings without their environment variables, so that the environment of the test run has no influence.
    fn command() -> clap::Command {
        Config::augment_args(clap::Command::new("test")).no_binary_name(true).mut_args(|arg| arg.env(None::<&str>))
    }

    fn parse(arguments: &[String]) -> Result<Config, clap::Error> {
        command().try_get_matches_from(arguments).and_then(|matches| Config::from_arg_matches(&matches))
    }

    /// Every setting that is a number or a duration: its flag, its variable, and its bounds as its error message states them.
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
    fn every_number_has_bounds_that_are_enforced() {
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

    /// Whether a setting is a number or a duration, by the name of its value in `--help`.
    fn is_number(arg: &clap::Arg) -> bool {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| ["N", "TIME", "BYTES"].contains(&name.as_str()))
    }

    #[test]
    fn bounds_are_documented_in_the_help() {
        for (flag, _, least, most) in numbers() {
            let arg = command().get_arguments().find(|arg| format!("--{}", arg.get_long().unwrap()) == flag).cloned();
            let help = arg.unwrap().get_help().unwrap().to_string();
            assert!(help.contains(&format!("{least} to {most}")), "{flag} is {least} to {most}: {help}");
        }
    }

    /// The reference has one row for each setting, in the form `| variable | flag | default | bounds | meaning |`.
    #[test]
    fn the_reference_agrees_with_the_code() {
        let reference = include_str!("../../docs/settings.md");
        let rows: Vec<Vec<&str>> = reference
            .lines()
            .filter(|line| line.starts_with("| `SM_"))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .filter(|cells: &Vec<&str>| cells.len() == 5)
            .collect();
        let bounds: Vec<_> = numbers().into_iter().map(|(flag, _, least, most)| (flag, least, most)).collect();
        let settings = Config::augment_args(clap::Command::new("test"));
        let mut documented = 0;
        for arg in settings.get_arguments() {
            let (flag, variable) = (format!("--{}", arg.get_long().unwrap()), arg.get_env().unwrap().to_str().unwrap());
            let row = rows.iter().find(|row| row[0] == format!("`{variable}`"));
            let row = row.unwrap_or_else(|| panic!("docs/settings.md has no row for {variable}"));
            assert_eq!(row[1], format!("`{flag}`"), "{variable}");
            // A setting without a default value says in words what holds without it.
            match arg.get_default_values().first().and_then(|value| value.to_str()).filter(|value| !value.is_empty()) {
                Some(default) => assert_eq!(row[2], format!("`{default}`"), "{variable}"),
                None => assert!(!row[2].is_empty(), "{variable} has no default"),
            }
            if let Some((_, least, most)) = bounds.iter().find(|(of, _, _)| *of == flag) {
                assert_eq!(row[3], format!("{least} to {most}"), "{variable}");
            }
            assert!(row[4].ends_with('.'), "{variable} has no meaning");
            documented += 1;
        }
        assert_eq!(documented, rows.len(), "docs/settings.md names a setting that does not exist");
    }

    #[test]
    fn all_settings_can_be_at_their_bounds_together() {
        for at_most in [true, false] {
            let value = |(flag, _, least, most)| format!("{flag}={}", if at_most { most } else { least });
            let mut arguments: Vec<String> = numbers().into_iter().map(value).collect();
            // Two renewals must fit into a lease, so lease duration and renewal interval cannot both be at their bounds.
            arguments.retain(|argument| !argument.starts_with("--renew-interval"));
            arguments.push("--renew-interval=40ms".to_owned());
            let config = parse(&arguments).unwrap();
            assert!(config.lease_timing().is_ok(), "{arguments:?}");
        }
    }

    #[test]
    fn a_certificate_without_key_or_a_key_without_certificate_is_rejected() {
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
