//! What the seed of a run determines: the fleet, its settings, what clients submit, and which faults happen when.
//!
//! Every random choice that can be made before a run is made here, each part with a random source of its own. So a
//! shrunk run, with fewer instances, intents or kinds of faults, is otherwise like the original run.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;

use super::activities::{self, Activity};
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
    /// Whether the store is the SQL Server that the environment names, and not SQLite.
    pub(super) on_server: bool,
}

impl Scope {
    /// The whole seed, with a deliberate bug.
    pub(super) fn with_bug(bug: Mutation) -> Self {
        Self { bug: Some(bug), ..Self::all() }
    }

    /// The whole seed on a SQL Server, without the faults that only SQLite can simulate.
    pub(super) fn on_server() -> Self {
        Self { on_server: true, without: [Fault::ClockJump, Fault::FailCommit, Fault::BadItem].into(), ..Self::all() }
    }

    /// The whole seed.
    pub(super) fn all() -> Self {
        Self { instances: MOST_INSTANCES, intents: u64::MAX, without: BTreeSet::new(), bug: None, on_server: false }
    }
}

/// One intent that a client submits.
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
    /// The scheduled start (`notBefore`), as a time of the run.
    pub(super) not_before: Option<Duration>,
    /// Submissions with the same number are sent in one batch.
    batch: usize,
}

impl Submission {
    /// What is unusual about the submission.
    pub(super) fn kind(&self) -> Option<Fault> {
        if self.not_before.is_some() {
            Some(Fault::NotBefore)
        } else if self.batch != self.number {
            Some(Fault::Batches)
        } else {
            (self.id != own_id(self.number)).then_some(Fault::Clients)
        }
    }
}

/// The id of a submission, unless its client uses the id of another one.
pub(super) fn own_id(number: usize) -> String {
    format!("Intent-{number}")
}

/// Something that happens to the fleet at a certain time.
#[derive(Clone, Debug)]
pub(super) enum Incident {
    Crash {
        instance: usize,
        down: Duration,
    },
    Freeze {
        instance: usize,
        duration: Duration,
    },
    Stop {
        instance: usize,
        down: Duration,
    },
    Panic {
        instance: usize,
        actor: Panicking,
    },
    ClockJump {
        micros: i64,
    },
    Reload {
        instance: usize,
        version: usize,
    },
    Pause {
        target: usize,
        duration: Duration,
    },
    /// Something happens to the next call of this kind, whichever instance makes it.
    NextCall {
        calls: Calls,
        mishap: Mishap,
    },
    /// The answers to the leader's commits come late, and from some point on its renewals do not arrive.
    Strain {
        delay: Duration,
        duration: Duration,
    },
}

/// A kind of calls that instances make. Rare calls and those that are repeated all the time are kinds of their own, so
/// that faults strike each of them equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calls {
    /// Commits with new intents.
    Submits,
    /// Commits of the leader only.
    Commits,
    /// Calls about the lease.
    Lease,
    /// Calls that prepare a term, and retention.
    Upkeep,
    /// Calls that a leader repeats at intervals.
    Polls,
    Webhooks,
    /// Calls that record processed inbox submissions.
    Inbox,
    /// Steps of redrives.
    Redrives,
    /// Reads and writes that clients and operators wait for.
    Requests,
    Gateways,
}

impl Calls {
    pub(super) const ALL: [Self; 10] = [
        Self::Submits,
        Self::Commits,
        Self::Lease,
        Self::Upkeep,
        Self::Polls,
        Self::Webhooks,
        Self::Inbox,
        Self::Redrives,
        Self::Requests,
        Self::Gateways,
    ];

    /// The kind of a call of the store.
    pub(super) fn of_store(call: &str) -> Self {
        match call {
            "submit" => Self::Submits,
            "commit" => Self::Commits,
            "acquire_lease" | "renew_lease" | "release_lease" => Self::Lease,
            "open_attempts_before" | "schedule_snapshot" | "purge" | "tidy_redrives" => Self::Upkeep,
            "refresh_schedule" | "backlog" | "due_webhooks" | "due_inbox" | "running_redrives" => Self::Polls,
            "start_webhooks" | "finish_webhooks" | "close_webhooks" => Self::Webhooks,
            "process_inbox" => Self::Inbox,
            "work_redrive" => Self::Redrives,
            _ => Self::Requests,
        }
    }
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// The instance dies when it has sent the call, which may be lost.
    Crash { lost: bool },
    /// The instance dies when the call has taken effect.
    CrashAfter,
    /// The instance freezes while it waits for the answer.
    Freeze,
    /// The call fails without effect.
    FailBefore,
    /// The call takes effect, and its caller gets an error.
    LostAnswer,
    /// The answer takes long.
    Slow,
}

/// The actor that panics.
#[derive(Clone, Copy, Debug)]
pub(super) enum Panicking {
    Store,
    Leader,
    Child(Child),
}

impl Mishap {
    /// The kind of fault that it is.
    pub(super) fn fault(self) -> Fault {
        match self {
            Self::Crash { .. } | Self::CrashAfter => Fault::CrashInCall,
            Self::Freeze => Fault::Freeze,
            Self::FailBefore => Fault::FailBefore,
            Self::LostAnswer => Fault::LostAnswer,
            Self::Slow => Fault::SlowStore,
        }
    }
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
    /// The submissions of each client: one intent, or a batch.
    pub(super) submissions: Vec<Vec<Submission>>,
    /// What else clients and operators do, and when.
    pub(super) activities: Vec<(Duration, Activity)>,
    pub(super) incidents: Vec<(Duration, Incident)>,
    /// For faults that are drawn during the run: the probability that each kind happens on one occasion.
    rates: [f64; Fault::ALL.len()],
}

/// A random source for one part of a seed.
pub(super) fn source(seed: u64, part: u64) -> Rng {
    Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(part).wrapping_mul(0xbf58_476d_1ce4_e5b9))
}

pub(super) fn between(random: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.u64(least..=most))
}

impl Plan {
    /// Draws the plan of a seed.
    pub(super) fn draw(seed: u64, scope: &Scope) -> Self {
        let mut random = source(seed, 1);
        // About one seed in five has no fault that could interrupt an attempt. In these runs no attempt may be
        // interrupted.
        let calm = random.usize(0..5) == 0;
        let (mut faults, mut rates) = (BTreeSet::new(), [0.0; Fault::ALL.len()]);
        for ((part, fault), rate) in (200..).zip(Fault::ALL).zip(&mut rates) {
            let mut random = source(seed, part);
            let drawn = random.f64() < fault.share_of_seeds() && !(calm && fault.interrupts_attempts());
            if drawn && !scope.without.contains(&fault) {
                faults.insert(fault);
                *rate = random.f64() * most(fault);
            }
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
            acquire_interval: millis([500, 1_000][random.usize(0..2)]),
            refresh_interval: millis(250),
            attempt_timeout: between(&mut random, 1_000, 8_000),
            limits,
            retention: faults.contains(&Fault::Retention).then(|| between(&mut random, 1_000, 20_000)),
            fixed_holders: random.bool(),
            only_commits_fail: random.bool(),
            active,
            store_delay: millis([0, 0, 2, 20, 400][random.usize(0..5)]),
            activities: activities::draw(seed, scope, active, &faults),
            submissions: submissions(seed, scope, active, &faults),
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
        Fault::SlowStore | Fault::FailBefore | Fault::LostAnswer => 0.05,
        Fault::FailCommit | Fault::BadItem => 0.1,
        Fault::LostRenewal => 0.5,
        Fault::Gateways | Fault::Receivers => 1.0,
        Fault::Shortage => 0.2,
        Fault::Panic => 0.05,
        _ => 1.0,
    }
}

fn submissions(seed: u64, scope: &Scope, active: Duration, faults: &BTreeSet<Fault>) -> Vec<Vec<Submission>> {
    let mut random = source(seed, 2);
    let unruly = faults.contains(&Fault::Clients);
    let count = random.usize(20..=MOST_INTENTS);
    // In some seeds clients submit in a burst, in others during the whole run.
    let last = active.mul_f64([0.05, 0.3, 0.9][random.usize(0..3)]);
    let mut all: Vec<Submission> = Vec::new();
    for number in 0..count {
        let mut submission = Submission {
            number,
            at: last.mul_f64(random.f64()),
            id: own_id(number),
            target: random.usize(0..TARGETS.len()),
            payload: format!(r#"{{"number":{number}}}"#),
            patience: between(&mut random, 500, 8_000),
            tries: random.usize(1..=6),
            wait: (random.f64() < 0.2).then(|| between(&mut random, 0, 5_000)),
            not_before: None,
            batch: number,
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
    if faults.contains(&Fault::NotBefore) {
        schedule(seed, &mut all);
    }
    if faults.contains(&Fault::Batches) {
        gather(seed, &mut all);
    }
    all.retain(|submission| scope.intents >> submission.number & 1 == 1);
    all.sort_by_key(|submission| (submission.at, submission.batch, submission.number));
    all.chunk_by(|one, next| one.batch == next.batch).map(<[Submission]>::to_vec).collect()
}

/// Gives some submissions a scheduled start. Clients that submit the same id mostly agree on it.
fn schedule(seed: u64, all: &mut [Submission]) {
    let mut random = source(seed, 5);
    for place in 0..all.len() {
        let (earlier, rest) = all.split_at_mut(place);
        let Some(submission) = rest.first_mut() else { break };
        let own = (random.f64() < 0.4).then(|| submission.at + between(&mut random, 0, 15_000));
        let agrees = random.f64() < 0.9;
        let other = earlier.iter().find(|other| agrees && other.id == submission.id);
        submission.not_before = other.map_or(own, |other| other.not_before);
    }
}

/// Makes batches of some submissions, which are then sent at the time of the first.
fn gather(seed: u64, all: &mut [Submission]) {
    let mut random = source(seed, 6);
    for place in 1..all.len() {
        if random.f64() < 0.4 {
            let first = all[place - 1].clone();
            (all[place].batch, all[place].at) = (first.batch, first.at);
        }
    }
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
                Fault::Freeze if random.bool() => {
                    Incident::Freeze { instance, duration: between(&mut random, 50, lease * 2) }
                }
                Fault::Freeze | Fault::CrashInCall | Fault::FailBefore | Fault::LostAnswer | Fault::SlowStore => {
                    let calls = Calls::ALL[random.usize(0..Calls::ALL.len())];
                    Incident::NextCall { calls, mishap: mishap(&mut random, fault) }
                }
                Fault::LostRenewal => {
                    let delay = between(&mut random, lease / 4, lease * 2 / 5);
                    Incident::Strain { delay, duration: timing.duration() * 2 }
                }
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

fn mishap(random: &mut Rng, fault: Fault) -> Mishap {
    match fault {
        Fault::Freeze => Mishap::Freeze,
        Fault::FailBefore => Mishap::FailBefore,
        Fault::LostAnswer => Mishap::LostAnswer,
        Fault::SlowStore => Mishap::Slow,
        _ => [Mishap::Crash { lost: true }, Mishap::Crash { lost: false }, Mishap::CrashAfter][random.usize(0..3)],
    }
}

fn panicking(random: &mut Rng) -> Panicking {
    match random.usize(0..7) {
        0 => Panicking::Store,
        1 => Panicking::Leader,
        2 => Panicking::Child(Child::Scheduler),
        3 => Panicking::Child(Child::Executor),
        4 => Panicking::Child(Child::Webhooks),
        5 => Panicking::Child(Child::Redrives),
        _ => Panicking::Child(Child::Inbox),
    }
}
