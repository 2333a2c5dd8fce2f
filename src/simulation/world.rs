//! The world of one run: virtual time, the random source, the database, the event log, and what was seen from outside.
//!
//! Everything runs on one thread, so nothing ever waits for the lock around the state. The lock is there because store
//! calls share the world and must be `Send`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use super::checks::{Ledgers, Promise};
use super::faults::Fault;
use super::log::EventLog;
use super::plan::{Calls, Mishap, Plan, source};
use crate::domain::time::Timestamp;
use crate::platform::clock::{WallClock, monotonic};
use crate::store::Store;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlserver::simulated::SimulatedServer;

/// The time of the store's host when a run starts.
pub(super) const START: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

thread_local! {
    /// One database for all runs of a thread, so that its statements are prepared once.
    static DATABASE: SqliteStore = SqliteStore::in_memory(WallClock::from_fn(|| START));
}

/// Everything that a run shares.
pub(super) struct World {
    pub(super) plan: Plan,
    /// The store that instances call.
    pub(super) calls: Arc<dyn Store>,
    /// The rows of the store, which the checks read. With SQLite it is the store itself.
    pub(super) store: Arc<SqliteStore>,
    start: Instant,
    /// By how many microseconds the clock of the store's host was set forward.
    clock_offset: Arc<AtomicI64>,
    state: Mutex<State>,
}

/// What changes during a run.
pub(super) struct State {
    pub(super) log: EventLog,
    pub(super) random: Rng,
    /// Faults that were injected, by kind.
    pub(super) injected: BTreeMap<Fault, u64>,
    /// How often each promise was checked.
    pub(super) checked: BTreeMap<Promise, u64>,
    /// The first promise that was broken, and how.
    pub(super) violation: Option<(Promise, String)>,
    /// Whether faults have stopped, so that everything has to end.
    pub(super) settling: bool,
    /// Whether everything has ended, so that readers only read the rest.
    pub(super) all_ended: bool,
    /// What happens to the next calls, in the order in which it was planned.
    pub(super) next_calls: Vec<(Calls, Mishap)>,
    pub(super) strain: Option<Strain>,
    pub(super) ledgers: Ledgers,
}

/// The answers to the commits of one instance come late. The first renewal of its lease takes effect; further ones do
/// not arrive.
pub(super) struct Strain {
    pub(super) instance: usize,
    pub(super) delay: Duration,
    /// When it is over.
    pub(super) end: Duration,
    /// How many renewals the instance has sent.
    pub(super) renewals: usize,
}

impl World {
    /// Starts a run over an empty database. Must be called in a runtime whose clock is paused. Also returns the server, if
    /// the run uses one.
    pub(super) async fn new(plan: Plan, on_server: bool) -> (Arc<Self>, Option<SimulatedServer>) {
        let (start, clock_offset) = (monotonic(), Arc::new(AtomicI64::new(0)));
        let offset = Arc::clone(&clock_offset);
        let clock = WallClock::from_fn(move || {
            let now = START + monotonic().duration_since(start);
            Timestamp::from_micros(now.micros() + offset.load(Ordering::Relaxed))
        });
        let store = Arc::new(DATABASE.with(|database| database.emptied(clock.clone())));
        let server = match on_server {
            true => Some(SimulatedServer::open(clock, Arc::clone(&store)).await),
            false => None,
        };
        let own = Arc::clone(&store);
        let calls = server.clone().map_or(own as Arc<dyn Store>, |server| -> Arc<dyn Store> { Arc::new(server) });
        let state = State {
            log: EventLog::default(),
            random: source(plan.seed, 4),
            injected: BTreeMap::new(),
            checked: BTreeMap::new(),
            violation: None,
            settling: false,
            all_ended: false,
            next_calls: Vec::new(),
            strain: None,
            ledgers: Ledgers::default(),
        };
        (Arc::new(Self { plan, calls, store, start, clock_offset, state: Mutex::new(state) }), server)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.try_lock().expect("the state is locked for a moment only")
    }

    /// How much virtual time has passed.
    pub(super) fn elapsed(&self) -> Duration {
        monotonic().duration_since(self.start)
    }

    /// Adds an event to the log.
    pub(super) fn log(&self, what: fmt::Arguments<'_>) {
        let elapsed = self.elapsed().as_micros();
        self.state().log.add(elapsed, what);
    }

    /// Sets the clock of the store's host.
    pub(super) fn jump(&self, micros: i64) {
        self.clock_offset.fetch_add(micros, Ordering::Relaxed);
    }

    /// Whether a fault of this kind happens on this occasion.
    pub(super) fn strikes(&self, fault: Fault) -> bool {
        let rate = self.plan.rate(fault);
        let mut state = self.state();
        // No random number is used for a fault that cannot happen, so that the rest of the run stays the same.
        let strikes = rate > 0.0 && !state.settling && state.random.f64() < rate;
        if strikes {
            *state.injected.entry(fault).or_default() += 1;
        }
        strikes
    }

    /// Counts a fault that was planned for a certain time.
    pub(super) fn count(&self, fault: Fault) {
        *self.state().injected.entry(fault).or_default() += 1;
    }

    /// Draws a duration in milliseconds.
    pub(super) fn draw_millis(&self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.state().random.u64(least..=most))
    }

    /// Draws any number.
    pub(super) fn draw_number(&self) -> u64 {
        self.state().random.u64(..)
    }

    /// What happens to this call, if something was planned for the next call of its kind.
    pub(super) fn mishap_of(&self, calls: Calls) -> Option<Mishap> {
        let mut state = self.state();
        let place = state.next_calls.iter().position(|(planned, _)| *planned == calls)?;
        let (_, mishap) = state.next_calls.remove(place);
        if state.settling {
            return None;
        }
        *state.injected.entry(mishap.fault()).or_default() += 1;
        Some(mishap)
    }

    /// Draws a number below `end`.
    pub(super) fn draw(&self, end: usize) -> usize {
        self.state().random.usize(0..end)
    }

    /// Whether faults have stopped.
    pub(super) fn is_settling(&self) -> bool {
        self.state().settling
    }

    /// Whether a promise was broken.
    pub(super) fn is_violated(&self) -> bool {
        self.state().violation.is_some()
    }
}
