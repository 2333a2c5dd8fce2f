//! A model of the lease and of attempts, whose states are explored exhaustively (model checking).
//!
//! Two instances share one lease and one intent. Everything that they do is a separate step, and any step may come next. So
//! an instance can be paused anywhere for any time, crash, lose a request or its answer, or have a request arrive long after
//! it gave up waiting for it. The test visits every state of the world that can be reached within the bounds, and checks in
//! each that no rule is violated. The decisions are those of [`super::policy`], and the trusted duration is that of
//! [`super::lease`]. Variants of the model in which one safeguard is removed show that the safeguard is needed, and that the
//! model notices when it is missing.
//!
//! One case is not modelled: an instance that leads again while an attempt of its own earlier term is still in flight. For
//! the database this is the same as another instance leading, which is modelled.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use super::contract::Contract;
use super::contract::fixtures::{max_attempts, one_shot};
use super::lease::LeaseTiming;
use super::outcome::Outcome;
use super::policy::{self, Decision};
use super::time::Timestamp;

/// Time advances in ticks of half a lease. A lease is then trusted for one tick, and a retry is due after one tick.
type Tick = u8;
const TICK: Duration = Duration::from_secs(5);
const LEASE: Tick = 2;
/// The number of attempts that the contracts here allow, and one more, which must not happen.
const ATTEMPTS: usize = 3;

/// The safeguard that a variant of the model leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    Nothing,
    /// Writes do not check the lease.
    Fence,
    /// The gateway is called before the start of the attempt is stored.
    WriteAhead,
    /// The trusted duration counts from the answer to a renewal instead of from its request.
    EarlyTrust,
}

struct Model {
    contract: Contract,
    without: Without,
    bounds: Bounds,
}

/// The bounds that make the number of states finite. Pauses need no bound: any step may be delayed for any time.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    horizon: Tick,
    /// The number of crashes and lost messages.
    faults: u8,
    terms: u8,
}

/// One state of the world: the database, the requests that the gateway received, and the instances.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    now: Tick,
    lease: Option<Lease>,
    row: Row,
    /// The stored outcome of each attempt; attempt 1 has index 0.
    log: [Option<Reported>; ATTEMPTS],
    /// How often each attempt number reached the gateway.
    sent: [u8; ATTEMPTS],
    instances: [Instance; 2],
    /// The number of crashes and lost messages so far.
    faults: u8,
    /// Whether an attempt started under a term that had ended.
    started_late: bool,
}

/// A step: the instance that makes it, if any, and what it does.
#[derive(Clone, Copy)]
struct Step(Option<usize>, &'static str);

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "{id}: {}", self.1),
            None => f.write_str(self.1),
        }
    }
}

/// Adds a step that may come next.
type AddStep<'a> = dyn FnMut(&'static str, &dyn Fn(&mut World, usize)) + 'a;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Lease {
    holder: u8,
    epoch: u8,
    expires: Tick,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Row {
    count: u8,
    state: RowState,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum RowState {
    Waiting { due: Tick },
    Open { epoch: u8 },
    Ended { accepted: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reported {
    Accepted,
    Error,
    Interrupted,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Instance {
    term: Option<Term>,
    lease_call: Option<LeaseCall>,
    attempt: Attempt,
    /// A write that the instance no longer waits for and that may still reach the database.
    orphan: Option<Write>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Term {
    epoch: u8,
    trusted_until: Tick,
    stage: Stage,
}

/// How far a new leader has prepared its term.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    New,
    /// The attempts that earlier terms left open are closed.
    Closed,
    /// After that, the instance checked that it still holds the term.
    Ready,
}

/// A request to acquire or renew the lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct LeaseCall {
    requested: Tick,
    renews: Option<u8>,
    /// The epoch that was granted or prolonged, once the database has decided.
    answer: Option<Option<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Attempt {
    None,
    /// The scheduler has read the waiting intent, with this number of attempts.
    Seen {
        count: u8,
    },
    Writing(Write),
    /// The start is stored. Next, the instance checks whether it still trusts its lease.
    Started {
        epoch: u8,
        number: u8,
    },
    /// The check succeeded. The request may be sent at any time from now on.
    Leaving {
        epoch: u8,
        number: u8,
    },
    Answered {
        epoch: u8,
        number: u8,
        reported: Reported,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Write {
    Start { epoch: u8, count: u8 },
    Finish { epoch: u8, number: u8, reported: Reported },
}

impl Model {
    fn start() -> World {
        let idle = Instance { term: None, lease_call: None, attempt: Attempt::None, orphan: None };
        World {
            now: 0,
            lease: None,
            row: Row { count: 0, state: RowState::Waiting { due: 0 } },
            log: [None; ATTEMPTS],
            sent: [0; ATTEMPTS],
            instances: [idle.clone(), idle],
            faults: 0,
            started_late: false,
        }
    }

    /// Every state that may come next, with the step that leads to it.
    fn next(&self, world: &World) -> Vec<(Step, World)> {
        let mut steps = Vec::new();
        if world.now < self.bounds.horizon {
            steps.push((Step(None, "time passes"), World { now: world.now + 1, ..world.clone() }));
        }
        for id in 0..2 {
            let mut step = |what: &'static str, change: &dyn Fn(&mut World, usize)| {
                let mut next = world.clone();
                change(&mut next, id);
                let terms = next.lease.map_or(0, |lease| lease.epoch);
                if next != *world && next.faults <= self.bounds.faults && terms <= self.bounds.terms {
                    steps.push((Step(Some(id), what), next));
                }
            };
            step("crashes", &crash);
            self.lease_steps(&world.instances[id], &mut step);
            self.attempt_steps(world, id, &mut step);
        }
        steps
    }

    fn lease_steps(&self, me: &Instance, step: &mut AddStep<'_>) {
        match me.lease_call {
            None => step("requests the lease", &|world, id| {
                let renews = world.instances[id].term.map(|term| term.epoch);
                world.instances[id].lease_call = Some(LeaseCall { requested: world.now, renews, answer: None });
            }),
            Some(LeaseCall { answer: None, .. }) => {
                step("its lease request is decided", &decide_lease);
                step("its lease request is decided, and the answer is lost", &|world, id| {
                    decide_lease(world, id);
                    lose(world, id);
                });
                step("its lease request is lost", &lose);
            }
            Some(_) => {
                step("receives the answer to its lease request", &|world, id| self.receive_lease_answer(world, id))
            }
        }
        if let Some(Term { stage: Stage::Ready, .. }) = me.term {
            step("releases the lease", &|world, id| {
                // An instance releases the lease only when no attempt is in flight.
                if world.instances[id].attempt == Attempt::None {
                    release_lease(world, id);
                    drop_term(world, id);
                }
            });
        }
    }

    fn receive_lease_answer(&self, world: &mut World, id: usize) {
        let Some(LeaseCall { requested, renews, answer: Some(answer) }) = world.instances[id].lease_call else {
            return;
        };
        world.instances[id].lease_call = None;
        let requested = if self.without == Without::EarlyTrust { world.now } else { requested };
        let trusted_until = requested + trusted();
        match (answer, renews) {
            (Some(epoch), None) => {
                world.instances[id].term = Some(Term { epoch, trusted_until, stage: Stage::New });
            }
            (Some(epoch), Some(_)) => {
                if let Some(term) = world.instances[id].term.as_mut().filter(|term| term.epoch == epoch) {
                    term.trusted_until = trusted_until.max(term.trusted_until);
                }
            }
            (None, _) => drop_term(world, id),
        }
    }

    fn attempt_steps(&self, world: &World, id: usize, step: &mut AddStep<'_>) {
        let me = &world.instances[id];
        if let Some(write) = me.orphan {
            step("a write that it no longer waits for arrives", &|world, id| {
                world.instances[id].orphan = None;
                let _no_one_waits_for_this = self.write(world, write);
            });
        }
        match (me.attempt, me.term) {
            (Attempt::None, Some(Term { epoch, stage: Stage::New | Stage::Closed, .. })) => {
                step("closes open attempts, or checks its term", &|world, id| self.prepare(world, id, epoch));
            }
            (Attempt::None, Some(Term { stage: Stage::Ready, .. })) => {
                step("reads the waiting intent", &|world, id| {
                    if let RowState::Waiting { .. } = world.row.state {
                        world.instances[id].attempt = Attempt::Seen { count: world.row.count };
                    }
                })
            }
            (Attempt::Seen { count }, term) => step("starts an attempt", &|world, id| {
                world.instances[id].attempt = match term {
                    Some(Term { epoch, trusted_until, .. }) if world.now < trusted_until => match self.without {
                        Without::WriteAhead => Attempt::Leaving { epoch, number: count + 1 },
                        _ => Attempt::Writing(Write::Start { epoch, count }),
                    },
                    _ => Attempt::None,
                };
            }),
            (Attempt::Writing(write), _) => self.write_steps(write, step),
            (Attempt::Started { epoch, number }, term) => step("checks that it trusts its lease", &|world, id| {
                let trusts = term.is_some_and(|term| term.epoch == epoch && world.now < term.trusted_until);
                world.instances[id].attempt = if trusts { Attempt::Leaving { epoch, number } } else { Attempt::None };
            }),
            (Attempt::Leaving { epoch, number }, _) => {
                for reported in [Reported::Accepted, Reported::Error] {
                    step("calls the gateway", &|world, id| {
                        world.sent[usize::from(number) - 1] += 1;
                        world.instances[id].attempt = Attempt::Answered { epoch, number, reported };
                    });
                }
            }
            (Attempt::Answered { epoch, number, reported }, _) => step("finishes the attempt", &|world, id| {
                world.instances[id].attempt = Attempt::Writing(Write::Finish { epoch, number, reported });
            }),
            (Attempt::None, None) => {}
        }
    }

    fn write_steps(&self, write: Write, step: &mut AddStep<'_>) {
        step("its write is applied", &|world, id| match self.write(world, write) {
            Some(attempt) => world.instances[id].attempt = attempt,
            None => drop_term(world, id),
        });
        step("its write is applied, and the answer is lost", &|world, id| {
            let _answer_is_lost = self.write(world, write);
            lose(world, id);
        });
        step("stops waiting for its write, which may still arrive", &|world, id| {
            lose(world, id);
            world.instances[id].orphan = Some(write);
        });
        step("stops waiting for its write, which may still arrive, and releases the lease", &|world, id| {
            release_lease(world, id);
            lose(world, id);
            world.instances[id].orphan = Some(write);
        });
    }

    /// Applies a write to the database. Returns what its writer does next, or `None` if the write was rejected.
    fn write(&self, world: &mut World, write: Write) -> Option<Attempt> {
        let (Write::Start { epoch, .. } | Write::Finish { epoch, .. }) = write;
        let held = world.lease.is_some_and(|lease| lease.epoch == epoch && world.now < lease.expires);
        if !held && self.without != Without::Fence {
            return None;
        }
        match write {
            Write::Start { count, .. } => {
                let due = matches!(world.row.state, RowState::Waiting { due } if due <= world.now);
                let may = policy::may_start(&self.contract, at(0), u32::from(count), at(world.now)).is_ok();
                if !due || world.row.count != count || !may {
                    return Some(Attempt::None);
                }
                world.started_late |= !held;
                world.row = Row { count: count + 1, state: RowState::Open { epoch } };
                Some(Attempt::Started { epoch, number: count + 1 })
            }
            Write::Finish { number, reported, .. } => {
                if self.without == Without::WriteAhead && world.row.count + 1 == number {
                    world.row = Row { count: number, state: RowState::Open { epoch } };
                }
                if world.row.count == number && matches!(world.row.state, RowState::Open { .. }) {
                    self.finish(world, number, reported);
                }
                Some(Attempt::None)
            }
        }
    }

    fn finish(&self, world: &mut World, number: u8, reported: Reported) {
        let outcome = match reported {
            Reported::Accepted => Outcome::Accepted { gateway_message_id: None },
            Reported::Error => Outcome::error("timeout"),
            Reported::Interrupted => Outcome::interrupted(),
        };
        world.log[usize::from(number) - 1] = Some(reported);
        world.row.state = match policy::decide(&self.contract, at(0), u32::from(number), &outcome, at(world.now)) {
            Decision::Accept => RowState::Ended { accepted: true },
            Decision::Reject { .. } | Decision::Exhaust(_) => RowState::Ended { accepted: false },
            Decision::RetryAt(due) => RowState::Waiting { due: tick(due) },
        };
    }

    fn prepare(&self, world: &mut World, id: usize, epoch: u8) {
        let held = world.lease.is_some_and(|lease| lease.epoch == epoch && world.now < lease.expires);
        if !held && self.without != Without::Fence {
            return drop_term(world, id);
        }
        let new = world.instances[id].term.is_some_and(|term| term.stage == Stage::New);
        if new && matches!(world.row.state, RowState::Open { epoch: left } if left < epoch) {
            self.finish(world, world.row.count, Reported::Interrupted);
        }
        if let Some(term) = &mut world.instances[id].term {
            term.stage = if term.stage == Stage::New { Stage::Closed } else { Stage::Ready };
        }
    }

    /// The rule that a step from `before` to `world` violates, if any.
    fn violation(&self, before: &World, world: &World) -> Option<&'static str> {
        let one_shot = matches!(self.contract.policy, super::contract::Policy::OneShot);
        let trusting =
            world.instances.iter().filter(|me| me.term.is_some_and(|term| world.now < term.trusted_until)).count();
        let open = usize::from(matches!(world.row.state, RowState::Open { .. }));
        let ended = matches!(before.row.state, RowState::Ended { .. });
        if world.sent.iter().any(|times| *times > 1) {
            Some("an attempt number was sent twice")
        } else if one_shot && world.sent.iter().sum::<u8>() > 1 {
            Some("a one_shot was sent twice")
        } else if world.log.iter().flatten().count() + open != usize::from(world.row.count) {
            Some("attempt numbers have a gap")
        } else if ended && (before.row != world.row || before.log != world.log) {
            Some("an intent changed after its end")
        } else if world.started_late {
            Some("an attempt started in a term that had ended")
        } else if trusting > 1 {
            Some("two instances trust their lease")
        } else if world.row.state == (RowState::Ended { accepted: true })
            && world.sent[usize::from(world.row.count) - 1] != 1
        {
            Some("accepted without having been sent")
        } else {
            None
        }
    }

    /// Visits every state that can be reached. Stops at the first violation, with the steps that lead to it.
    fn explore(&self) -> Explored {
        let mut known = HashSet::from([Self::start()]);
        let mut worlds = vec![Self::start()];
        let mut reached_by = vec![(0, Step(None, "start"))];
        let mut index = 0;
        while index < worlds.len() {
            for (step, next) in self.next(&worlds[index]) {
                if let Some(violation) = self.violation(&worlds[index], &next) {
                    let mut path = vec![step];
                    let mut at = index;
                    while at != 0 {
                        path.push(reached_by[at].1);
                        at = reached_by[at].0;
                    }
                    path.reverse();
                    return Explored { worlds, violation: Some((violation, path)) };
                }
                if known.insert(next.clone()) {
                    worlds.push(next);
                    reached_by.push((index, step));
                }
            }
            index += 1;
        }
        Explored { worlds, violation: None }
    }
}

struct Explored {
    worlds: Vec<World>,
    violation: Option<(&'static str, Vec<Step>)>,
}

/// Lets the database decide about a request to acquire or renew the lease.
fn decide_lease(world: &mut World, id: usize) {
    let Some(LeaseCall { renews, .. }) = world.instances[id].lease_call else { return };
    let (now, holder) = (world.now, u8::try_from(id).unwrap());
    let live = world.lease.filter(|lease| now < lease.expires);
    let granted = match (renews, live) {
        (Some(epoch), Some(lease)) if lease.epoch == epoch && lease.holder == holder => Some(epoch),
        (None, None) => Some(world.lease.map_or(0, |lease| lease.epoch) + 1),
        _ => None,
    };
    if let Some(epoch) = granted {
        world.lease = Some(Lease { holder, epoch, expires: now + LEASE });
    }
    if let Some(call) = &mut world.instances[id].lease_call {
        call.answer = Some(granted);
    }
}

fn release_lease(world: &mut World, id: usize) {
    let (now, epoch) = (world.now, world.instances[id].term.map(|term| term.epoch));
    if let Some(lease) = world.lease.as_mut().filter(|lease| Some(lease.epoch) == epoch) {
        lease.expires = lease.expires.min(now);
    }
}

fn crash(world: &mut World, id: usize) {
    world.faults += 1;
    let me = &mut world.instances[id];
    let orphan = if let Attempt::Writing(write) = me.attempt { Some(write) } else { me.orphan };
    *me = Instance { term: None, lease_call: None, attempt: Attempt::None, orphan };
}

/// A call failed, or its caller believes that it did.
fn lose(world: &mut World, id: usize) {
    world.faults += 1;
    drop_term(world, id);
}

/// Ends the term of an instance. A gateway call of an attempt that is already started may still happen and be stored.
fn drop_term(world: &mut World, id: usize) {
    let me = &mut world.instances[id];
    me.term = None;
    me.lease_call = None;
    if matches!(me.attempt, Attempt::Seen { .. } | Attempt::Writing(_)) {
        me.attempt = Attempt::None;
    }
}

fn at(tick: Tick) -> Timestamp {
    Timestamp::from_micros(0) + TICK * u32::from(tick)
}

fn tick(moment: Timestamp) -> Tick {
    u8::try_from(moment.micros() / i64::try_from(TICK.as_micros()).unwrap()).unwrap()
}

fn trusted() -> Tick {
    let timing = LeaseTiming::new(TICK * u32::from(LEASE), TICK / 2).unwrap();
    u8::try_from(timing.trusted_duration().as_millis() / TICK.as_millis()).unwrap()
}

fn explore(contract: Contract, without: Without, bounds: Bounds) -> Explored {
    Model { contract, without, bounds }.explore()
}

/// Explores all states, and checks that no rule is violated and that the interesting states were reached.
fn check(contract: Contract, bounds: Bounds) -> Vec<World> {
    let explored = explore(contract, Without::Nothing, bounds);
    println!("{} worlds within {bounds:?}", explored.worlds.len());
    if let Some((violation, path)) = explored.violation {
        panic!("{violation}: {path:#?}");
    }
    let reached = |is_searched: &dyn Fn(&World) -> bool| explored.worlds.iter().any(is_searched);
    assert!(reached(&|world| world.row.state == RowState::Ended { accepted: true }), "it is accepted");
    assert!(reached(&|world| world.lease.is_some_and(|lease| lease.epoch > 1 && lease.holder == 1)), "a takeover");
    assert!(
        reached(&|world| world.sent[0] == 1 && world.log[0] == Some(Reported::Interrupted)),
        "sent, but closed by a new term before its outcome was recorded"
    );
    explored.worlds
}

#[test]
fn a_one_shot_is_sent_at_most_once_in_every_state() {
    check(one_shot(), Bounds { horizon: 3, faults: 1, terms: 2 });
}

#[test]
fn no_attempt_is_sent_twice_and_no_intent_changes_after_its_end_in_every_state() {
    let explored = check(max_attempts(2), Bounds { horizon: 3, faults: 1, terms: 2 });
    assert!(
        explored.iter().any(|world| world.log[0] == Some(Reported::Interrupted) && world.sent == [1, 1, 0]),
        "sent, interrupted, and sent again under the next number"
    );
}

#[test]
#[ignore = "takes minutes: make model"]
fn the_same_holds_within_larger_bounds() {
    check(one_shot(), Bounds { horizon: 4, faults: 2, terms: 3 });
    check(max_attempts(2), Bounds { horizon: 4, faults: 1, terms: 3 });
    check(max_attempts(2), Bounds { horizon: 5, faults: 0, terms: 3 });
}

#[test]
fn the_model_finds_a_violation_if_a_safeguard_is_missing() {
    for (without, expected) in [
        (Without::Fence, "an attempt started in a term that had ended"),
        (Without::WriteAhead, "an attempt number was sent twice"),
        (Without::EarlyTrust, "two instances trust their lease"),
    ] {
        let explored = explore(max_attempts(2), without, Bounds { horizon: 4, faults: 1, terms: 2 });
        let (violation, path) = explored.violation.unwrap_or_else(|| panic!("{without:?}: nothing was found"));
        assert_eq!(violation, expected, "{without:?}: {path:#?}");
    }
}
