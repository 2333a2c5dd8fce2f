//! `check`: everything that could keep the service from starting, found without starting it.

use std::sync::Arc;

use super::settings::BadSetting;
use crate::config::registry::Registry;
use crate::config::settings::Config;
use crate::config::variables::Variables;
use crate::console::Login;
use crate::http_client::tls_config;
use crate::platform::descriptors;
use crate::service::{descriptor_demand, https_of};
use crate::telemetry::metrics::Metrics;

/// A store larger than this takes long enough to examine that somebody may wonder.
const WORTH_A_WORD: u64 = 256 * 1024 * 1024;

/// Checks settings, files and store; `bad` are settings that could not be read, for which `config` has the default.
pub async fn run(config: Config, bad: &[BadSetting]) -> Result<(), String> {
    let files = config.registry.files();
    let found = [
        Registry::load(&files, &Variables::of_process())
            .map(|registry| format!("registry {}: {}", files.targets.display(), registry.summary()))
            .map_err(|error| error.to_string()),
        config.auth_mode().map(|mode| format!("tokens: {mode:?}").to_lowercase()).map_err(|error| error.to_string()),
        config.lease_timing().map(|_| "settings: fine".to_owned()).map_err(|error| error.to_string()),
        Login::new(&config.console).map(|_| "console: fine".to_owned()).map_err(|error| error.to_string()),
        tls_config(config.gateway_ca.as_deref())
            .map(|_| "certificates: fine".to_owned())
            .map_err(|error| error.to_string()),
        https_of(&config)
            .map(|tls| format!("serves {}", if tls.is_some() { "https" } else { "http" }))
            .map_err(|error| error.to_string()),
        check_descriptors(&config),
        check_store(&config).await,
    ];
    // An error that names a bad setting is about its default, which nobody asked for.
    let about_default = |error: &&String| bad.iter().any(|bad| error.contains(&bad.variable));
    let others = found.iter().filter_map(|result| result.as_ref().err()).filter(|error| !about_default(error));
    let errors: Vec<_> = bad.iter().map(|bad| bad.text.as_str()).chain(others.map(String::as_str)).collect();
    found.iter().flatten().for_each(|line| println!("{line}"));
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

fn check_descriptors(config: &Config) -> Result<String, String> {
    let demand = descriptor_demand(config).map_err(|error| error.to_string())?;
    let limits = descriptors::share_out(demand).map_err(|error| error.to_string())?;
    Ok(format!("clients: {} connections, {} from one address", limits.total, limits.per_address))
}

async fn check_store(config: &Config) -> Result<String, String> {
    let metrics = Arc::new(Metrics::new().map_err(|error| error.to_string())?);
    let choice = config.store.choice().map_err(|error| error.to_string())?;
    if let Some(bytes) = choice.file_bytes().filter(|bytes| *bytes > WORTH_A_WORD) {
        eprintln!("looking for damage in {} ({} MiB)", choice.name(), bytes / (1024 * 1024));
    }
    choice.check(metrics).await.map_err(|error| error.to_string())
}
