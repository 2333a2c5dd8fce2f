//! The settings of the operator console: its users, its sessions, and what it shows.

use std::time::Duration;

use clap::Args;

use super::settings::{ConfigError, Switch, duration, minutes};
use super::values::{base_url, origins, switch, trace_url};
use crate::config::registry::ConsoleUser;
use crate::config::session_key::SessionSecrets;

/// A minute is too short to work with, but tests need it shorter. After a month, the role that a session began with is
/// too old to trust.
const SESSION: (Duration, Duration) = (Duration::from_secs(1), minutes(30 * 24 * 60));

/// What stands for the id of a trace in `SM_TRACE_URL`.
pub const TRACE_ID: &str = "{trace_id}";

/// The settings of the operator console.
#[derive(Args, Clone)]
pub struct ConsoleConfig {
    /// One administrator of the console: a line as 'htpasswd -nB user' prints it. Without it and without --console-users
    /// the console needs no login on loopback and is off on other addresses
    // `administrator` checks the value, because an error from clap would print it.
    #[arg(long, env = "SM_CONSOLE_AUTH", hide_env_values = true, value_name = "USER:HASH")]
    pub console_auth: Option<String>,

    /// Whether the console shows payloads
    #[arg(long, env = "SM_CONSOLE_PAYLOADS", default_value = "on", value_parser = switch, value_name = "ON|OFF")]
    pub console_payloads: Switch,

    /// Origins whose pages may embed the console in a frame, separated by spaces
    #[arg(long, env = "SM_CONSOLE_FRAMES", default_value = "", value_parser = origins, value_name = "ORIGINS")]
    pub console_frames: String,

    /// URL of a trace in your tracing system, with {trace_id} in place of its id; pages of intents link to it
    #[arg(long, env = "SM_TRACE_URL", value_parser = trace_url, value_name = "URL")]
    pub trace_url: Option<String>,

    /// URL under which browsers reach the console: scheme and host, without a path; needed for sign-in
    /// with OpenID Connect if a proxy ends TLS
    #[arg(long, env = "SM_CONSOLE_URL", value_parser = base_url, value_name = "URL")]
    pub console_url: Option<String>,

    /// Keys that encrypt console sessions, each at least 32 random bytes in base64: several are separated by commas, the
    /// newest first. With file: and a path, the keys are read from that file. All instances of a fleet need the same keys
    // `session_secrets` checks the value, because an error from clap would print it.
    #[arg(long, env = "SM_SESSION_KEY", hide_env_values = true, value_name = "KEYS")]
    pub session_key: Option<String>,

    /// How long a console session lasts without a request of its user, 1s to 30d. Pages that refresh themselves do not count
    #[arg(long, env = "SM_SESSION_IDLE", default_value = "1h", value_parser = duration(SESSION.0, SESSION.1), value_name = "TIME")]
    pub session_idle: Duration,

    /// How long a console session lasts at most, 1s to 30d
    #[arg(long, env = "SM_SESSION_LIFETIME", default_value = "12h", value_parser = duration(SESSION.0, SESSION.1), value_name = "TIME")]
    pub session_lifetime: Duration,
}

impl std::fmt::Debug for ConsoleConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConsoleConfig { .. }")
    }
}

impl ConsoleConfig {
    /// The user of `SM_CONSOLE_AUTH`, if it is set. An error repeats nothing of its value.
    pub fn administrator(&self) -> Result<Option<ConsoleUser>, ConfigError> {
        Ok(self.console_auth.as_deref().map(ConsoleUser::of_htpasswd).transpose()?)
    }

    /// The secrets of `SM_SESSION_KEY`, if it is set. An error repeats nothing of its value.
    pub fn session_secrets(&self) -> Result<Option<SessionSecrets>, ConfigError> {
        Ok(self.session_key.as_deref().map(SessionSecrets::parse).transpose()?)
    }
}
