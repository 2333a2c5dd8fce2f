//! The seeds that run with all tests, the deliberate bugs that the simulation must find, and `make simulate`.

use super::campaign::{explain, progress_line, run_all, scope_of_environment};
use super::faults::Fault;
use super::plan::Scope;
use super::run::run;
use crate::platform::mutation::Mutation;
use crate::store::sqlserver::simulated::SimulatedServer;

/// How many fixed seeds each run of the tests repeats. A debug build runs about ten seeds a second on a core.
const FIXED: u64 = 300;
/// How many new random seeds each run of the tests tries.
const FRESH: u64 = 300;
/// Seeds that found a bug, and the bug.
const REGRESSIONS: [(u64, &str); 1] = [(118, "the event feed began with an event whose cursor had expired")];
/// How many seeds run on a SQL Server with all tests, if one is named.
const ON_SERVER: u64 = 2;
/// How many runs per core use a SQL Server at the same time. They wait for it most of the time.
const SERVER_RUNS_PER_CORE: usize = 2;
/// Every deliberate bug must be found within this many seeds.
const MOST_SEEDS: u64 = 2_000;

/// A number in the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Fails if a seed breaks a promise, and says how.
fn check(seeds: std::ops::Range<u64>) {
    let totals = run_all(seeds, &Scope::all(), 1, true, |_| {});
    if let Some((seed, _)) = totals.failed.first() {
        panic!("{}", explain(run(*seed, &Scope::all())));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..25 {
        let (first, second) = (run(seed, &Scope::all()), run(seed, &Scope::all()));
        let mut lines = first.log.lines().zip(second.log.lines());
        assert_eq!(lines.find(|(first, second)| first != second), None, "seed {seed}");
        assert_eq!(first.hash, second.hash, "seed {seed}");
    }
}

#[test]
fn fixed_seeds_keep_every_promise() {
    check(0..FIXED);
    for (seed, bug) in REGRESSIONS {
        assert_eq!(run(seed, &Scope::all()).violation, None, "{bug}");
    }
}

#[test]
fn fresh_seeds_keep_every_promise() {
    let first = fastrand::Rng::new().u64(..u64::from(u32::MAX));
    check(first..first + FRESH);
}

#[test]
fn seeds_keep_every_promise_on_sqlserver() {
    if SimulatedServer::is_named() {
        let totals = run_all(0..ON_SERVER, &Scope::on_server(), 1, true, |_| {});
        assert_eq!(totals.failed, []);
    }
}

/// For each deliberate bug, a seed that finds it. After a change of the code a seed may no longer find its bug; the
/// test then looks for another one.
fn known_seed(mutation: Mutation) -> u64 {
    match mutation {
        Mutation::FenceOutsideTransaction => 155,
        Mutation::NoTrustBeforeCall => 36,
        Mutation::TrustFromAnswer => 31,
        Mutation::EventOutsideTransaction | Mutation::NotBeforeIgnored | Mutation::DeadlineFromSubmission => 1,
        Mutation::PayloadNotCompared | Mutation::UnknownCommitRepeated | Mutation::NoDoubtReported => 2,
        Mutation::StartPastDeadline | Mutation::SlotLost => 3,
        Mutation::FeedSkipsPage | Mutation::FeedAheadOfCommits | Mutation::StoreTimeLags => 5,
        Mutation::CursorSkips => 6,
        Mutation::JobGetsSecondId => 8,
        Mutation::ContactOfAnotherClient => 10,
        Mutation::NoDeadlineBeforeCall => 14,
        Mutation::UnknownRedriven => 16,
        Mutation::LateAcceptance => 24,
        Mutation::ReleasedInFlight => 74,
        Mutation::InsertWhilePaused => 153,
        Mutation::StartWhilePaused => 49,
        Mutation::CancelLost => 130,
        Mutation::RedriveLosesIntents => 335,
        Mutation::RedriveKeyChanged | Mutation::RedriveWhilePaused => 129,
        Mutation::RedriveForgetsPosition => 438,
        _ => 0,
    }
}

/// The scope in which a deliberate bug is looked for. Bugs that show only late in a term are looked for in runs without the
/// faults that end terms, and without what has nothing to do with terms.
fn scope_of(mutation: Mutation) -> Scope {
    let scope = Scope::with_bug(mutation);
    match mutation {
        Mutation::TrustFromAnswer | Mutation::StoreTimeLags => Scope { without: NO_END_OF_TERMS.into(), ..scope },
        _ => scope,
    }
}

const NO_END_OF_TERMS: [Fault; 14] = [
    Fault::Crash,
    Fault::CrashInCall,
    Fault::Freeze,
    Fault::Stop,
    Fault::Panic,
    Fault::FailBefore,
    Fault::LostAnswer,
    Fault::FailCommit,
    Fault::BadItem,
    Fault::ClockJump,
    Fault::Redrives,
    Fault::Jobs,
    Fault::Inbox,
    Fault::Readers,
];

/// Returns how many seeds were needed to find a deliberate bug.
fn seeds_needed(mutation: Mutation, first: u64) -> Option<u64> {
    let found = |seed: &u64| run(*seed, &scope_of(mutation)).violation.is_some();
    let seeds = std::iter::once(first).chain(0..MOST_SEEDS);
    seeds.enumerate().find(|(_, seed)| found(seed)).and_then(|(tried, _)| u64::try_from(tried).ok())
}

#[test]
fn every_deliberate_bug_is_found() {
    for mutation in Mutation::ALL {
        let needed = seeds_needed(mutation, known_seed(mutation));
        println!("{mutation:?} was found after {needed:?} other seeds");
        assert!(needed.is_some(), "{mutation:?} was not found");
    }
}

/// `make simulate-bugs` prints this.
#[test]
#[ignore = "takes minutes; every_deliberate_bug_is_found runs with all tests"]
fn how_many_seeds_find_each_deliberate_bug() {
    let most = number("SM_SIMULATION_SEEDS").unwrap_or(MOST_SEEDS);
    let only = scope_of_environment().bug;
    let mut missed = Vec::new();
    for mutation in Mutation::ALL.into_iter().filter(|mutation| only.is_none_or(|only| only == *mutation)) {
        let found = (0..most).find_map(|seed| {
            let report = run(seed, &scope_of(mutation));
            report.violation.map(|(promise, _)| (seed, promise))
        });
        match found {
            Some((seed, promise)) => println!("{:<26} {:>6} seeds  {promise:?}", format!("{mutation:?}"), seed + 1),
            None => missed.push(mutation),
        }
    }
    assert_eq!(missed, [], "not found within {most} seeds");
}

#[test]
fn a_failing_run_is_shrunk_and_says_how_to_repeat_it() {
    let scope = Scope::with_bug(Mutation::LeaseGivenEarly);
    let mut reports = (0..MOST_SEEDS).map(|seed| run(seed, &scope));
    let failed = reports.find(|report| report.violation.is_some()).expect("a seed that finds the bug");
    let seed = failed.seed;
    let text = explain(failed);
    assert!(text.starts_with(&format!("seed {seed} broke OneLeaseAtATime")), "{text}");
    assert!(text.contains("shrunk to 1 instances"), "two terms need one instance: {text}");
    assert!(text.contains(&format!("repeat it with: make simulate SEED={seed} INSTANCES=1 INTENTS=")), "{text}");
}

/// `make simulate` runs this.
#[test]
#[ignore = "runs as long as it is told to"]
fn simulate() {
    let scope = scope_of_environment();
    if let Some(seed) = number("SM_SIMULATION_SEED") {
        let report = run(seed, &scope);
        print!("{}", report.log);
        println!("seed {seed}: hash {}, {} events, violation {:?}", report.hash, report.events, report.violation);
        return assert!(report.violation.is_none());
    }
    let (first, count) = (number("SM_SIMULATION_FIRST").unwrap_or(0), number("SM_SIMULATION_SEEDS").unwrap_or(10_000));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if scope.on_server { cores * SERVER_RUNS_PER_CORE } else { cores };
    let totals =
        run_all(first..first + count, &scope, threads, false, |totals| println!("{}", progress_line(totals, count)));
    println!("{totals}");
    for (seed, _) in totals.failed.iter().take(3) {
        println!("\n{}", explain(run(*seed, &scope)));
    }
    assert!(totals.failed.is_empty());
}
