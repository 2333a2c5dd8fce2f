//! The settings of a leader, taken from those of the service.

use std::sync::Arc;
use std::time::Duration;

use crate::config::settings::{Config, ConfigError};
use crate::domain::lease::LeaseTiming;
use crate::domain::schedule::Limits;

/// Waiting intents that the leader holds in memory, over all lanes: about 16 MiB of them.
const SCHEDULE_CAPACITY: usize = 64 * 1024;

/// Settings that stay the same for every term of this instance.
#[derive(Clone)]
pub struct LeaderSettings {
    pub lease_name: Arc<str>,
    pub holder_id: Arc<str>,
    pub timing: LeaseTiming,
    /// How often a follower requests the lease.
    pub acquire_interval: Duration,
    /// How often the scheduler reads from the store what other instances have stored. An intent that a follower stored is seen
    /// with the next refresh; it starts then if a slot is free and no limit holds it back.
    pub refresh_interval: Duration,
    pub limits: Limits,
    /// How long terminal intents are kept; `None` keeps them for ever.
    pub retention: Option<Duration>,
    /// How long entries of the audit log are kept; `None` keeps them for ever.
    pub audit_retention: Option<Duration>,
}

impl LeaderSettings {
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let lease = &config.lease;
        Ok(Self {
            lease_name: lease.lease_name.as_str().into(),
            holder_id: lease.holder_id.clone().map_or_else(default_holder_id, Into::into),
            timing: config.lease_timing()?,
            acquire_interval: lease.acquire_interval,
            refresh_interval: lease.schedule_refresh_interval,
            limits: Limits {
                in_flight: config.max_in_flight,
                in_flight_per_gateway: config.max_in_flight_per_gateway,
                capacity: SCHEDULE_CAPACITY,
            },
            retention: config.retention,
            audit_retention: config.audit_retention,
        })
    }
}

fn default_holder_id() -> Arc<str> {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    format!("{host}-{}-{:08x}", std::process::id(), fastrand::u32(..)).into()
}
