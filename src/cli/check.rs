//! The `check` command: finds everything that would keep the service from starting, and reports all of it at once.

use std::error::Error;
use std::sync::Arc;

use super::CommandResult;
use super::settings::InvalidSetting;
use crate::config::registry::Registry;
use crate::config::settings::Config;
use crate::config::variables::Variables;
use crate::http_client::tls_config;
use crate::platform::descriptors;
use crate::platform::errors::full_text;
use crate::service::{descriptor_demand, https_of};
use crate::telemetry::metrics::Metrics;

/// Checking a store larger than this takes seconds, so `check` says that it does it.
const LARGE_STORE_BYTES: u64 = 256 * 1024 * 1024;

/// Checks settings, files and store. `config` has the default for each of the `invalid` settings.
pub(super) async fn run(config: Config, invalid: &[InvalidSetting]) -> CommandResult {
    let files = config.registry.files();
    let results = [
        line(Registry::load(&files, &Variables::of_process()), |registry| {
            format!("registry {}: {}", files.targets.display(), registry.summary())
        }),
        line(config.auth_mode(), |mode| format!("tokens: {mode:?}").to_lowercase()),
        line(config.lease_timing(), |_| "settings: ok".to_owned()),
        line(config.console.administrator(), |_| "console: ok".to_owned()),
        line(config.console.session_secrets(), |secrets| {
            format!("sessions: {}", if secrets.is_some() { "shared" } else { "of this process only" })
        }),
        line(tls_config(config.gateway_ca.as_deref()), |_| "certificates: ok".to_owned()),
        line(https_of(&config), |tls| format!("serves {}", if tls.is_some() { "https" } else { "http" })),
        check_descriptors(&config),
        check_store(&config).await,
    ];
    let results = results.map(|result| result.map_err(|error| full_text(error.as_ref())));
    // An error that names an invalid setting is about its default, which the operator did not choose.
    let about_default = |error: &&String| invalid.iter().any(|setting| error.contains(&setting.variable));
    let others = results.iter().filter_map(|result| result.as_ref().err()).filter(|error| !about_default(error));
    let errors: Vec<_> =
        invalid.iter().map(|setting| setting.message.as_str()).chain(others.map(String::as_str)).collect();
    results.iter().flatten().for_each(|line| println!("{line}"));
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n").into()) }
}

/// The line to print for a successful check.
fn line<T, E: Error + 'static>(result: Result<T, E>, text: impl FnOnce(T) -> String) -> CommandResult<String> {
    Ok(text(result?))
}

fn check_descriptors(config: &Config) -> CommandResult<String> {
    let limits = descriptors::share_out(descriptor_demand(config)?)?;
    Ok(format!("clients: {} connections, {} from one address", limits.total, limits.per_address))
}

async fn check_store(config: &Config) -> CommandResult<String> {
    let metrics = Arc::new(Metrics::new()?);
    let choice = config.store.choice()?;
    if let Some(bytes) = choice.file_bytes().filter(|bytes| *bytes > LARGE_STORE_BYTES) {
        eprintln!("checking the integrity of {} ({} MiB)", choice.name(), bytes / (1024 * 1024));
    }
    Ok(choice.check(metrics).await?)
}
