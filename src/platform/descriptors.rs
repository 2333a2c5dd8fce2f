//! The limit of open files: raised at start, checked, and shared out.
//!
//! Every connection needs a file descriptor. Clients get what remains after a reserve for the store and for calls to
//! gateways and webhook receivers, so that no number of clients can keep intents from being sent.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What each thread (its poller), the listener, the log, files that are read for a moment and look-ups of names take.
const BASE: usize = 96;
/// Fewer connections than this are not worth starting for.
const FEWEST_CONNECTIONS: usize = 32;
/// As many as the soft limit is raised to at most, whatever the hard limit is.
const MOST_FILES: u64 = 1 << 20;

/// How many connections clients may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub total: usize,
    pub per_address: usize,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Connections of clients in all, at most.
    pub connections: usize,
    /// Of those, by one address at most; half of all if this is not given.
    pub per_address: Option<usize>,
    /// Calls to gateways and to webhook receivers at once.
    pub calls: usize,
    /// Files and connections of the store.
    pub store: usize,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "this process may open {limit} files and needs {needed}: {calls} for calls to gateways and webhooks, {store} for the \
     store, {BASE} for itself and {FEWEST_CONNECTIONS} for clients; raise the limit (ulimit -n, or LimitNOFILE= of the \
     unit) or lower --max-in-flight or SM_MAX_IN_FLIGHT"
)]
pub struct TooFewFiles {
    limit: usize,
    needed: usize,
    calls: usize,
    store: usize,
}

/// Raises the limit of this process as far as it may be, and shares it out.
pub fn share_out(demand: Demand) -> Result<ConnectionLimits, TooFewFiles> {
    let limit = raise_limit();
    let limits = shares(demand, limit)?;
    if limits.total < demand.connections {
        let next =
            "raise the limit of open files (ulimit -n, or LimitNOFILE= of the unit) to serve more clients at once";
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
    let needed = reserve.saturating_add(FEWEST_CONNECTIONS.min(connections));
    if limit < needed {
        return Err(TooFewFiles { limit, needed, calls, store });
    }
    let total = connections.min(left);
    Ok(ConnectionLimits { total, per_address: per_address.unwrap_or(total.div_ceil(2)).min(total) })
}

/// The soft limit, after raising it to the hard limit if that is allowed.
fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is unlimited.
    let wanted = maximum.unwrap_or(MOST_FILES).min(MOST_FILES);
    let limit = match current {
        Some(current) if current < wanted => {
            match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
                Ok(()) => wanted,
                Err(error) => {
                    log::warn!("few_files limit={current} why=\"it cannot be raised\" error={:?}", error.to_string());
                    current
                }
            }
        }
        Some(current) => current,
        None => MOST_FILES,
    };
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand = Demand { connections: 10_000, per_address: None, calls: 512, store: 32 };

    #[test]
    fn clients_get_what_the_service_itself_does_not_need() {
        assert_eq!(shares(DEMAND, 20_000), Ok(ConnectionLimits { total: 10_000, per_address: 5_000 }));
        assert_eq!(shares(DEMAND, 1024), Ok(ConnectionLimits { total: 384, per_address: 192 }));
        let own = Demand { per_address: Some(9_000), ..DEMAND };
        assert_eq!(shares(own, 20_000), Ok(ConnectionLimits { total: 10_000, per_address: 9_000 }));
        assert_eq!(shares(own, 1024), Ok(ConnectionLimits { total: 384, per_address: 384 }));
    }

    #[test]
    fn too_low_a_limit_is_an_error_that_says_what_to_do() {
        let error = shares(DEMAND, 600).unwrap_err();
        assert_eq!((error.limit, error.needed), (600, 672));
        let text = error.to_string();
        assert!(text.contains("600") && text.contains("ulimit -n") && text.contains("SM_MAX_IN_FLIGHT"), "{text}");
        let few = Demand { connections: 1, ..DEMAND };
        assert_eq!(shares(few, 641), Ok(ConnectionLimits { total: 1, per_address: 1 }));
        assert!(shares(Demand { calls: usize::MAX, ..DEMAND }, 20_000).is_err(), "no overflow");
    }
}
