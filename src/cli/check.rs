//! The `check` command: finds everything that would keep the service from starting, and reports all of it at once.

use std::sync::Arc;

use super::settings::InvalidSetting;
use crate::config::registry::Registry;
use crate::config::settings::Config;
use crate::config::variables::Variables;
use crate::http_client::tls_config;
use crate::platform::descriptors;
use crate::service::{descriptor_demand, https_of};
use crate::telemetry::metrics::Metrics;

/// Checking a store larger than this takes seconds, so `check` says that it does it.
const LARGE_STORE_BYTES: u64 = 256 * 1024 * 1024;

/// Checks settings, files and store. `config` has the default for each of the `invalid` settings.
pub(super) async fn run(config: Config, invalid: &[InvalidSetting]) -> Result<(), String> {
    let files = config.registry.files();
    let results = [
        Registry::load(&files, &Variables::of_process())
            .map(|registry| format!("registry {}: {}", files.targets.display(), registry.summary()))
            .map_err(|error| error.to_string()),
        config.auth_mode().map(|mode| format!("tokens: {mode:?}").to_lowercase()).map_err(|error| error.to_string()),
        config.lease_timing().map(|_| "settings: ok".to_owned()).map_err(|error| error.to_string()),
        config.console.administrator().map(|_| "console: ok".to_owned()).map_err(|error| error.to_string()),
        tls_config(config.gateway_ca.as_deref())
            .map(|_| "certificates: ok".to_owned())
            .map_err(|error| error.to_string()),
        https_of(&config)
            .map(|tls| format!("serves {}", if tls.is_some() { "https" } else { "http" }))
            .map_err(|error| error.to_string()),
        check_descriptors(&config),
        check_store(&config).await,
    ];
    // An error that names an invalid setting is about its default, which the operator did not choose.
    let about_default = |error: &&String| invalid.iter().any(|setting| error.contains(&setting.variable));
    let others = results.iter().filter_map(|result| result.as_ref().err()).filter(|error| !about_default(error));
    let errors: Vec<_> =
        invalid.iter().map(|setting| setting.message.as_str()).chain(others.map(String::as_str)).collect();
    results.iter().flatten().for_each(|line| println!("{line}"));
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
    if let Some(bytes) = choice.file_bytes().filter(|bytes| *bytes > LARGE_STORE_BYTES) {
        eprintln!("checking the integrity of {} ({} MiB)", choice.name(), bytes / (1024 * 1024));
    }
    choice.check(metrics).await.map_err(|error| error.to_string())
}
