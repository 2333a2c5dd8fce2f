//! Raises the limit of open files at start, checks that it is high enough, and derives the connection limits from it.
//!
//! Every connection needs a file descriptor. Some are reserved for the store and for outgoing calls, and clients get the
//! rest, so that many clients cannot prevent the service from sending intents.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for the threads, the listener, the log, registry files and name lookups.
const BASE: usize = 96;
/// The service does not start if clients could open fewer connections than this.
const MIN_CONNECTIONS: usize = 32;
/// The soft limit is raised to this at most, even if the hard limit is higher.
const MAX_FILES: u64 = 1 << 20;

/// How many connections clients may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub total: usize,
    pub per_address: usize,
}

/// The file descriptors that the service needs, by use.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Maximum number of client connections.
    pub connections: usize,
    /// Maximum number of client connections from one address; `None` means half of all.
    pub per_address: Option<usize>,
    /// Maximum number of simultaneous calls to gateways, webhook receivers and the provider of sign-ins.
    pub calls: usize,
    /// Files and connections of the store.
    pub store: usize,
}

/// The limit of open files is too low for the service to start.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "this process can open {limit} files, but needs at least {needed}: {calls} for calls to gateways, webhooks and the provider of sign-ins, {store} \
     for the store, {BASE} for itself and {MIN_CONNECTIONS} for clients; raise the limit (ulimit -n, or LimitNOFILE= in the \
     systemd unit), or lower --max-in-flight or SM_MAX_IN_FLIGHT"
)]
pub struct TooFewFiles {
    limit: usize,
    needed: usize,
    calls: usize,
    store: usize,
}

/// Raises the limit of this process as far as the system allows, and derives the connection limits from it.
pub fn share_out(demand: Demand) -> Result<ConnectionLimits, TooFewFiles> {
    let limit = raise_limit();
    let limits = shares(demand, limit)?;
    if limits.total < demand.connections {
        let next = "raise the limit of open files (ulimit -n, or LimitNOFILE= in the systemd unit) to serve more clients at once";
        log::warn!(
            "few_files limit={limit} wanted_connections={} connections={} next={next:?}",
            demand.connections,
            limits.total
        );
    }
    Ok(limits)
}

fn shares(demand: Demand, limit: usize) -> Result<ConnectionLimits, TooFewFiles> {
    let Demand { connections, per_address, calls, store } = demand;
    let reserve = calls.saturating_add(store).saturating_add(BASE);
    let left = limit.saturating_sub(reserve);
    let needed = reserve.saturating_add(MIN_CONNECTIONS.min(connections));
    if limit < needed {
        return Err(TooFewFiles { limit, needed, calls, store });
    }
    let total = connections.min(left);
    Ok(ConnectionLimits { total, per_address: per_address.unwrap_or(total.div_ceil(2)).min(total) })
}

/// Raises the soft limit to the hard limit and returns the result.
fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is unlimited.
    let wanted = maximum.unwrap_or(MAX_FILES).min(MAX_FILES);
    let limit = match current {
        Some(current) if current < wanted => {
            match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
                Ok(()) => wanted,
                Err(error) => {
                    log::warn!(
                        "few_files limit={current} why=\"the limit cannot be raised\" error={:?}",
                        error.to_string()
                    );
                    current
                }
            }
        }
        Some(current) => current,
        None => MAX_FILES,
    };
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand = Demand { connections: 10_000, per_address: None, calls: 512, store: 32 };

    #[test]
    fn clients_get_the_descriptors_that_the_service_does_not_need() {
        assert_eq!(shares(DEMAND, 20_000), Ok(ConnectionLimits { total: 10_000, per_address: 5_000 }));
        assert_eq!(shares(DEMAND, 1024), Ok(ConnectionLimits { total: 384, per_address: 192 }));
        let own = Demand { per_address: Some(9_000), ..DEMAND };
        assert_eq!(shares(own, 20_000), Ok(ConnectionLimits { total: 10_000, per_address: 9_000 }));
        assert_eq!(shares(own, 1024), Ok(ConnectionLimits { total: 384, per_address: 384 }));
    }

    #[test]
    fn a_limit_that_is_too_low_is_an_error_that_says_what_to_do() {
        let error = shares(DEMAND, 600).unwrap_err();
        assert_eq!((error.limit, error.needed), (600, 672));
        let text = error.to_string();
        assert!(text.contains("600") && text.contains("ulimit -n") && text.contains("SM_MAX_IN_FLIGHT"), "{text}");
        let few = Demand { connections: 1, ..DEMAND };
        assert_eq!(shares(few, 641), Ok(ConnectionLimits { total: 1, per_address: 1 }));
        assert!(shares(Demand { calls: usize::MAX, ..DEMAND }, 20_000).is_err(), "no overflow");
    }
}
