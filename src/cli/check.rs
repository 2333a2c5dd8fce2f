//! `check`: everything that could keep the service from starting, found without starting it.

use crate::clock::WallClock;
use crate::config::Config;
use crate::gateway::client::tls_config;
use crate::registry::Registry;
use crate::store::sqlite::SqliteStore;

pub fn run(config: &Config) -> Result<(), String> {
    let store = &config.store.store;
    let found = [
        Registry::load(&config.registry)
            .map(|registry| format!("registry {}: {} targets", config.registry.display(), registry.len()))
            .map_err(|error| error.to_string()),
        config.leader_settings().map(|_| "settings: fine".to_owned()).map_err(|error| error.to_string()),
        tls_config(config.gateway_ca.as_deref())
            .map(|_| "certificates: fine".to_owned())
            .map_err(|error| error.to_string()),
        if store.exists() {
            SqliteStore::open(store, WallClock::system())
                .map(|_| format!("store {}: opens, schema up to date", store.display()))
                .map_err(|error| error.to_string())
        } else {
            Ok(format!("store {}: does not exist yet, will be made at start", store.display()))
        },
    ];
    let faults: Vec<_> = found.iter().filter_map(|result| result.as_ref().err()).map(String::as_str).collect();
    found.iter().flatten().for_each(|line| println!("{line}"));
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}
