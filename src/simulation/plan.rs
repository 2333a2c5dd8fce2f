//! What the seed of a run determines: the fleet, its settings, what clients submit, and which faults happen when.
//!
//! Every random choice that can be made before a run is made here, each part with a random source of its own. So a
//! shrunk run, with fewer instances, intents or kinds of faults, is otherwise like the original run.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;

use super::faults::Fault;
use super::targets::TARGETS;
use crate::domain::lease::LeaseTiming;
use crate::domain::schedule::Limits;
use crate::engine::messages::Child;
use crate::platform::mutation::Mutation;

/// The maximum number of instances of a run.
pub(super) const MOST_INSTANCES: usize = 5;
/// The maximum number of submissions of a run: the number of bits in [`Scope::intents`].
pub(super) const MOST_INTENTS: usize = 64;

/// The part of a seed that is run. Shrinking makes it smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    /// The maximum number of instances.
    pub(super) instances: usize,
    /// The submissions that are made, one bit for each.
    pub(super) intents: u64,
    /// Kinds of faults that do not happen.
    pub(super) without: BTreeSet<Fault>,
    /// The deliberate bug that is switched on.
    pub(super) bug: Option<Mutation>,
}

impl Scope {
    /// The whole seed, with a deliberate bug.
    pub(super) fn with_bug(bug: Mutation) -> Self {
        Self { bug: Some(bug), ..Self::all() }
    }

    /// The whole seed.
    pub(super) fn all() -> Self {
        Self { instances: MOST_INSTANCES, intents: u64::MAX, without: BTreeSet::new(), bug: None }
    }
}

/// One submission by one client.
#[derive(Clone, Debug)]
pub(super) struct Submission {
    /// Its number in the plan, which is its bit in [`Scope::intents`].
    pub(super) number: usize,
    pub(super) at: Duration,
    pub(super) id: String,
    pub(super) target: usize,
    pub(super) payload: String,
    /// How long the client waits for an answer before it tries another instance.
    pub(super) patience: Duration,
    /// How often the client tries.
    pub(super) tries: usize,
    /// How long the request waits for the first attempt (`waitSeconds`).
    pub(super) wait: Option<Duration>,
}

/// Something that happens to the fleet at a certain time.
#[derive(Clone, Debug)]
pub(super) enum Incident {
    Crash { instance: usize, down: Duration },
    Freeze { instance: usize, duration: Duration },
    Stop { instance: usize, down: Duration },
    Panic { instance: usize, actor: Panicking },
    ClockJump { micros: i64 },
    Reload { instance: usize, version: usize },
    Pause { target: usize, duration: Duration },
}

/// The actor that panics.
#[derive(Clone, Copy, Debug)]
pub(super) enum Panicking {
    Store,
    Leader,
    Child(Child),
}

/// Everything that the seed of a run determines.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) faults: BTreeSet<Fault>,
    pub(super) instances: usize,
    pub(super) timing: LeaseTiming,
    pub(super) acquire_interval: Duration,
    pub(super) refresh_interval: Duration,
    pub(super) attempt_timeout: Duration,
    pub(super) limits: Limits,
    pub(super) retention: Option<Duration>,
    /// Whether an instance has the same holder id after a restart.
    pub(super) fixed_holders: bool,
    /// How long faults happen, from the start of the run.
    pub(super) active: Duration,
    /// Whether calls of the store fail only if they are commits.
    pub(super) only_commits_fail: bool,
    /// The maximum duration of each way to and from the store, without faults.
    pub(super) store_delay: Duration,
    pub(super) submissions: Vec<Submission>,
    pub(super) incidents: Vec<(Duration, Incident)>,
    /// For faults that are drawn during the run: the probability that each kind happens on one occasion.
    rates: [f64; Fault::ALL.len()],
}

/// A random source for one part of a seed.
pub(super) fn source(seed: u64, part: u64) -> Rng {
    Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(part).wrapping_mul(0xbf58_476d_1ce4_e5b9))
}

fn between(random: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.u64(least..=most))
}

impl Plan {
    /// Draws the plan of a seed.
    pub(super) fn draw(seed: u64, scope: &Scope) -> Self {
        let mut random = source(seed, 1);
        // About one seed in five has no fault that could interrupt an attempt. In these runs no attempt may be
        // interrupted.
        let calm = random.usize(0..5) == 0;
        let faults =
            Fault::ALL.into_iter().filter(|fault| random.f64() < 0.55 && !(calm && fault.interrupts_attempts()));
        let faults = faults.collect::<BTreeSet<_>>();
        let faults: BTreeSet<_> = faults.difference(&scope.without).copied().collect();
        let mut rates = [0.0; Fault::ALL.len()];
        for (fault, rate) in Fault::ALL.into_iter().zip(&mut rates) {
            let share = random.f64();
            *rate = if faults.contains(&fault) { share * most(fault) } else { 0.0 };
        }
        let instances = random.usize(2..=MOST_INSTANCES).min(scope.instances);
        let (lease, renew) = [(15_000, 5_000), (6_000, 2_000), (3_000, 1_000)][random.usize(0..3)];
        let millis = Duration::from_millis;
        let timing = LeaseTiming::new(millis(lease), millis(renew)).expect("the intervals fit");
        let active = between(&mut random, 20_000, 35_000);
        let limits = Limits {
            in_flight: random.usize(5..=40),
            in_flight_per_gateway: random.usize(1..=5),
            capacity: random.usize(8..=64),
        };
        Self {
            seed,
            instances,
            timing,
            acquire_interval: millis([250, 1_000][random.usize(0..2)]),
            refresh_interval: millis(250),
            attempt_timeout: between(&mut random, 1_000, 8_000),
            limits,
            retention: faults.contains(&Fault::Retention).then(|| between(&mut random, 1_000, 20_000)),
            fixed_holders: random.bool(),
            only_commits_fail: random.bool(),
            active,
            store_delay: millis([0, 0, 2, 20, 400][random.usize(0..5)]),
            submissions: submissions(seed, scope, active, faults.contains(&Fault::Clients)),
            incidents: incidents(seed, &faults, instances, active, timing),
            rates,
            faults,
        }
    }

    /// The probability that a kind of fault happens on one occasion.
    pub(super) fn rate(&self, fault: Fault) -> f64 {
        let index = Fault::ALL.iter().position(|other| *other == fault).expect("all kinds are listed");
        self.rates[index]
    }
}

/// The highest probability of a kind of fault that is drawn during the run.
fn most(fault: Fault) -> f64 {
    match fault {
        Fault::CrashInCall | Fault::Freeze => 0.01,
        Fault::SlowStore | Fault::FailBefore | Fault::LostAnswer => 0.05,
        Fault::FailCommit | Fault::BadItem => 0.1,
        Fault::LostRenewal => 0.5,
        Fault::Gateways | Fault::Receivers => 1.0,
        Fault::Shortage => 0.2,
        Fault::Panic => 0.05,
        _ => 1.0,
    }
}

fn submissions(seed: u64, scope: &Scope, active: Duration, unruly: bool) -> Vec<Submission> {
    let mut random = source(seed, 2);
    let count = random.usize(20..=MOST_INTENTS);
    // In some seeds clients submit in a burst, in others during the whole run.
    let last = active.mul_f64([0.05, 0.3, 0.9][random.usize(0..3)]);
    let mut all: Vec<Submission> = Vec::new();
    for number in 0..count {
        let mut submission = Submission {
            number,
            at: last.mul_f64(random.f64()),
            id: format!("Intent-{number}"),
            target: random.usize(0..TARGETS.len()),
            payload: format!(r#"{{"number":{number}}}"#),
            patience: between(&mut random, 500, 8_000),
            tries: random.usize(1..=6),
            wait: (random.f64() < 0.2).then(|| between(&mut random, 0, 5_000)),
        };
        if unruly && random.f64() < 0.3 && !all.is_empty() {
            let other = all[random.usize(0..all.len())].clone();
            submission.at = other.at + if random.bool() { Duration::ZERO } else { between(&mut random, 0, 6_000) };
            submission.id = if random.f64() < 0.15 { other.id.to_uppercase() } else { other.id };
            // In a retry or a race, target and payload are the same. They differ if the client uses the id for another
            // message.
            submission.target = if random.f64() < 0.1 { submission.target } else { other.target };
            submission.payload = if random.f64() < 0.15 { submission.payload } else { other.payload };
        }
        all.push(submission);
    }
    all.retain(|submission| scope.intents >> submission.number & 1 == 1);
    all.sort_by_key(|submission| (submission.at, submission.number));
    all
}

fn incidents(
    seed: u64,
    faults: &BTreeSet<Fault>,
    instances: usize,
    active: Duration,
    timing: LeaseTiming,
) -> Vec<(Duration, Incident)> {
    let lease = u64::try_from(timing.duration().as_millis()).unwrap_or(u64::MAX);
    let mut all = Vec::new();
    for (part, fault) in Fault::ALL.into_iter().enumerate().filter(|(_, fault)| faults.contains(fault)) {
        let mut random = source(seed, 100 + u64::try_from(part).unwrap_or(0));
        for _ in 0..random.usize(1..=5) {
            let at = active.mul_f64(random.f64());
            let instance = random.usize(0..instances);
            let down = between(&mut random, 10, 4_000);
            let incident = match fault {
                Fault::Crash => Incident::Crash { instance, down },
                Fault::Freeze => Incident::Freeze { instance, duration: between(&mut random, 50, lease * 2) },
                Fault::Stop => Incident::Stop { instance, down },
                Fault::Panic => Incident::Panic { instance, actor: panicking(&mut random) },
                Fault::ClockJump => Incident::ClockJump { micros: random.i64(-20_000_000..=10_000_000) },
                Fault::Reload => Incident::Reload { instance, version: random.usize(0..2) },
                Fault::Pause => {
                    let target = random.usize(0..TARGETS.len());
                    Incident::Pause { target, duration: between(&mut random, 500, 15_000) }
                }
                _ => continue,
            };
            all.push((at, incident));
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

fn panicking(random: &mut Rng) -> Panicking {
    match random.usize(0..6) {
        0 => Panicking::Store,
        1 => Panicking::Leader,
        2 => Panicking::Child(Child::Scheduler),
        3 => Panicking::Child(Child::Executor),
        4 => Panicking::Child(Child::Webhooks),
        _ => Panicking::Child(Child::Inbox),
    }
}
