//! Runs many seeds on several threads, adds up the results, and explains a failure.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use super::checks::Promise;
use super::faults::Fault;
use super::plan::{MOST_INSTANCES, MOST_INTENTS, Plan, Scope};
use super::run::{Report, run};
use super::shrink::shrink;
use crate::platform::clock::monotonic;
use crate::platform::mutation::Mutation;

/// How many of the last lines of the log are printed for a failing run.
const SHOWN_LINES: usize = 60;

/// The sums over many runs.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) seeds: u64,
    pub(super) simulated: Duration,
    pub(super) took: Duration,
    events: usize,
    injected: BTreeMap<Fault, u64>,
    checked: BTreeMap<Promise, u64>,
    /// The failing seeds, and the promise that each broke.
    pub(super) failed: Vec<(u64, Promise)>,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.simulated += report.simulated;
        self.events += report.events;
        for (fault, times) in &report.injected {
            *self.injected.entry(*fault).or_default() += times;
        }
        for (promise, times) in &report.checked {
            *self.checked.entry(*promise).or_default() += times;
        }
        self.failed.extend(report.violation.as_ref().map(|(promise, _)| (report.seed, *promise)));
    }

    fn faults(&self) -> u64 {
        self.injected.values().sum()
    }

    fn hours(&self) -> f64 {
        self.simulated.as_secs_f64() / 3600.0
    }

    fn rate(&self) -> f64 {
        f64::from(u32::try_from(self.seeds).unwrap_or(u32::MAX)) / self.took.as_secs_f64().max(0.001)
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rate) = (self.took.as_secs_f64(), self.rate());
        writeln!(f, "seeds                     {:>12}  in {seconds:.0} s, {rate:.0} a second", self.seeds)?;
        writeln!(f, "simulated hours           {:>12.1}", self.hours())?;
        writeln!(f, "events                    {:>12}", self.events)?;
        writeln!(f, "faults                    {:>12}", self.faults())?;
        for (fault, times) in &self.injected {
            writeln!(f, "  {:<24}{times:>12}", fault.name())?;
        }
        writeln!(f, "checks                    {:>12}", self.checked.values().sum::<u64>())?;
        for (promise, times) in &self.checked {
            writeln!(f, "  {:<24}{times:>12}", format!("{promise:?}"))?;
        }
        write!(f, "violations                {:>12}", self.failed.len())?;
        self.failed.iter().try_for_each(|(seed, promise)| write!(f, "\n  seed {seed}: {promise:?}"))
    }
}

/// Runs seeds on this many threads. It stops at the first failure if `stop_at_failure` is true. `progress` is called
/// every [`PROGRESS_INTERVAL`].
pub(super) fn run_all(
    seeds: Range<u64>,
    scope: &Scope,
    threads: usize,
    stop_at_failure: bool,
    mut progress: impl FnMut(&Totals),
) -> Totals {
    let start = monotonic();
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|threads_of_run| {
        let (finished, all_finished) = mpsc::channel::<()>();
        for _ in 0..threads {
            let finished = finished.clone();
            threads_of_run.spawn(|| {
                let _dropped_at_the_end = finished;
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let report = run(seed, scope);
                    stop.fetch_or(stop_at_failure && report.violation.is_some(), Ordering::Relaxed);
                    totals.lock().unwrap().add(&report);
                }
            });
        }
        drop(finished);
        while all_finished.recv_timeout(PROGRESS_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            let mut totals = totals.lock().unwrap();
            totals.took = monotonic().duration_since(start);
            progress(&totals);
        }
    });
    let mut totals = totals.into_inner().unwrap();
    totals.took = monotonic().duration_since(start);
    totals
}

const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// One line that shows the progress of a run of many seeds, with the seeds that failed.
pub(super) fn progress_line(totals: &Totals, all: u64) -> String {
    let Totals { seeds, failed, .. } = totals;
    let left = f64::from(u32::try_from(all.saturating_sub(*seeds)).unwrap_or(u32::MAX)) / totals.rate().max(0.001);
    let numbers: Vec<u64> = failed.iter().map(|(seed, _)| *seed).collect();
    format!(
        "{seeds} of {all} seeds, {:.1} simulated hours, {} faults, {:.0} seeds a second, {} violations {numbers:?}, \
         {left:.0} s left",
        totals.hours(),
        totals.faults(),
        totals.rate(),
        failed.len()
    )
}

/// Shrinks a failing run, and returns a text that says what happened and how to repeat it.
pub(super) fn explain(failed: Report) -> String {
    let smaller = shrink(failed);
    let Some((promise, how)) = &smaller.violation else { return format!("seed {} does not fail", smaller.seed) };
    let plan = Plan::draw(smaller.seed, &smaller.scope);
    let faults: Vec<_> = plan.faults.iter().map(|fault| fault.name()).collect();
    let lines: Vec<&str> = smaller.log.lines().collect();
    let end = lines.iter().position(|line| line.contains("VIOLATION")).map_or(lines.len(), |last| last + 1);
    let shown = lines[end.saturating_sub(SHOWN_LINES)..end].join("\n");
    format!(
        "seed {} broke {promise:?}: {how}\nshrunk to {} instances, {} submissions and the faults {faults:?}\n\
         the last of {end} events:\n{shown}\nrepeat it with: {}",
        smaller.seed,
        plan.instances,
        plan.submissions.len(),
        command(smaller.seed, &smaller.scope)
    )
}

/// The command that repeats a run.
fn command(seed: u64, scope: &Scope) -> String {
    let target = if scope.on_server { "simulate-sqlserver" } else { "simulate" };
    let mut command = format!("make {target} SEED={seed}");
    if scope.instances < MOST_INSTANCES {
        command += &format!(" INSTANCES={}", scope.instances);
    }
    if scope.intents != u64::MAX {
        command += &format!(" INTENTS={:x}", scope.intents);
    }
    if !scope.without.is_empty() {
        let names: Vec<_> = scope.without.iter().map(|fault| fault.name()).collect();
        command += &format!(" WITHOUT={}", names.join(","));
    }
    if let Some(bug) = scope.bug {
        command += &format!(" BUG={bug:?}");
    }
    command
}

/// Reads a scope from the environment, as [`command`] writes it.
pub(super) fn scope_of_environment() -> Scope {
    let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let mut scope = if text("SM_SIMULATION_STORE").is_some() { Scope::on_server() } else { Scope::all() };
    if let Some(instances) = text("SM_SIMULATION_INSTANCES") {
        scope.instances = instances.parse().expect("SM_SIMULATION_INSTANCES is a number");
    }
    if let Some(intents) = text("SM_SIMULATION_INTENTS") {
        scope.intents =
            u64::from_str_radix(&intents, 16).expect("SM_SIMULATION_INTENTS has one bit for each submission");
    }
    if let Some(names) = text("SM_SIMULATION_WITHOUT") {
        let fault = |name: &str| Fault::parse(name).unwrap_or_else(|| panic!("{name} is no kind of fault"));
        scope.without.extend(names.split(',').map(fault));
    }
    if let Some(name) = text("SM_SIMULATION_BUG") {
        let bug = Mutation::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
        scope.bug = Some(bug.unwrap_or_else(|| panic!("{name} is no deliberate bug")));
    }
    assert!(scope.instances > 0, "a fleet has at least one instance");
    assert_eq!(MOST_INTENTS, 64, "one bit for each submission");
    scope
}
