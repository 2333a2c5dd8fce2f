//! A model of the lease and the attempt that is written down first, explored exhaustively.
//!
//! Two instances share one lease and one intent. Everything that they do is a step of its own, and
//! any step may come next: so an instance may be paused anywhere for any time, crash, have a
//! request or its answer lost, or have a request arrive long after it was given up. Every world
//! that can be reached within the horizon is visited, and what must never happen is looked for in
//! each. Decisions are those of [`super::policy`], trust is that of [`super::lease`]. Variants with
//! one safeguard removed show that the safeguards are needed and that the model would notice.
//!
//! Left out: an instance that leads again while an attempt of its own earlier term is under way. To
//! the database that is the same as another instance leading, which is here.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use super::contract::Contract;
use super::contract::fixtures::{max_attempts, one_shot};
use super::lease::LeaseTiming;
use super::outcome::Outcome;
use super::policy::{self, Decision};
use super::time::Timestamp;

/// Time goes in steps of half a lease; a lease is then trusted for one step, and a retry is due
/// after one.
type Tick = u8;
const TICK: Duration = Duration::from_secs(5);
const LEASE: Tick = 2;
/// As many attempts as the contracts here allow, and one that must not be.
const ATTEMPTS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    Nothing,
    /// Writes do not look at the lease.
    Fence,
    /// The gateway is called before the attempt is written down.
    WriteAhead,
    /// Trust counts from when an answer came instead of from when it was asked for.
    EarlyTrust,
}

struct Model {
    contract: Contract,
    without: Without,
    bounds: Bounds,
}

/// What makes the worlds finite. Pauses are free: any step may wait for any time.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    horizon: Tick,
    /// Crashes and losses.
    faults: u8,
    terms: u8,
}

/// The database, the gateway's ledger and the instances.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    now: Tick,
    lease: Option<Lease>,
    row: Row,
    /// How each attempt was recorded to end, by its number less one.
    log: [Option<Told>; ATTEMPTS],
    /// How often each attempt number reached the gateway.
    sent: [u8; ATTEMPTS],
    instances: [Instance; 2],
    /// Crashes and losses that have happened.
    faults: u8,
    /// An attempt was begun under a term that was over.
    began_late: bool,
}

/// Who does what.
#[derive(Clone, Copy)]
struct Step(Option<usize>, &'static str);

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(who) => write!(f, "{who}: {}", self.1),
            None => f.write_str(self.1),
        }
    }
}

/// Takes one more step that may come next.
type Take<'a> = dyn FnMut(&'static str, &dyn Fn(&mut World, usize)) + 'a;

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
enum Told {
    Accepted,
    Error,
    Interrupted,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Instance {
    term: Option<Term>,
    lease_call: Option<LeaseCall>,
    attempt: Attempt,
    /// A write that was given up and may still arrive.
    orphan: Option<Write>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Term {
    epoch: u8,
    trusted_until: Tick,
    stage: Stage,
}

/// How far a term is prepared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    New,
    /// What earlier terms left open has been closed.
    Closed,
    /// And after that the term was still held.
    Ready,
}

/// An acquire or a renew on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct LeaseCall {
    asked: Tick,
    renews: Option<u8>,
    /// The epoch that was granted or prolonged, once the database has decided.
    answer: Option<Option<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Attempt {
    None,
    /// The scheduler has seen the intent waiting at this count.
    Seen {
        count: u8,
    },
    Writing(Write),
    /// Begun: about to check trust.
    Begun {
        epoch: u8,
        number: u8,
    },
    /// Trust was checked: the request may leave at any time from now on.
    Leaving {
        epoch: u8,
        number: u8,
    },
    Answered {
        epoch: u8,
        number: u8,
        told: Told,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Write {
    Begin { epoch: u8, count: u8 },
    Finish { epoch: u8, number: u8, told: Told },
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
            began_late: false,
        }
    }

    /// Every world that may come next, with what happened.
    fn next(&self, world: &World) -> Vec<(Step, World)> {
        let mut steps = Vec::new();
        if world.now < self.bounds.horizon {
            steps.push((Step(None, "time passes"), World { now: world.now + 1, ..world.clone() }));
        }
        for who in 0..2 {
            let mut step = |what: &'static str, change: &dyn Fn(&mut World, usize)| {
                let mut next = world.clone();
                change(&mut next, who);
                let terms = next.lease.map_or(0, |lease| lease.epoch);
                if next != *world && next.faults <= self.bounds.faults && terms <= self.bounds.terms {
                    steps.push((Step(Some(who), what), next));
                }
            };
            step("crashes", &crash);
            self.lease_steps(&world.instances[who], &mut step);
            self.attempt_steps(world, who, &mut step);
        }
        steps
    }

    fn lease_steps(&self, me: &Instance, step: &mut Take<'_>) {
        match me.lease_call {
            None => step("asks for the lease", &|world, who| {
                let renews = world.instances[who].term.map(|term| term.epoch);
                world.instances[who].lease_call = Some(LeaseCall { asked: world.now, renews, answer: None });
            }),
            Some(LeaseCall { answer: None, .. }) => {
                step("the lease is decided", &decide_lease);
                step("the lease is decided, its answer is lost", &|world, who| {
                    decide_lease(world, who);
                    lose(world, who);
                });
                step("its call for the lease is lost", &lose);
            }
            Some(_) => step("hears of the lease", &|world, who| self.hear_of_lease(world, who)),
        }
        if let Some(Term { stage: Stage::Ready, .. }) = me.term {
            step("resigns", &|world, who| {
                // Only what is not under way may be left behind in order.
                if world.instances[who].attempt == Attempt::None {
                    give_back(world, who);
                    drop_term(world, who);
                }
            });
        }
    }

    fn hear_of_lease(&self, world: &mut World, who: usize) {
        let Some(LeaseCall { asked, renews, answer: Some(answer) }) = world.instances[who].lease_call else { return };
        world.instances[who].lease_call = None;
        let asked = if self.without == Without::EarlyTrust { world.now } else { asked };
        let trusted_until = asked + trusted();
        match (answer, renews) {
            (Some(epoch), None) => {
                world.instances[who].term = Some(Term { epoch, trusted_until, stage: Stage::New });
            }
            (Some(epoch), Some(_)) => {
                if let Some(term) = world.instances[who].term.as_mut().filter(|term| term.epoch == epoch) {
                    term.trusted_until = trusted_until.max(term.trusted_until);
                }
            }
            (None, _) => drop_term(world, who),
        }
    }

    fn attempt_steps(&self, world: &World, who: usize, step: &mut Take<'_>) {
        let me = &world.instances[who];
        if let Some(write) = me.orphan {
            step("a write that was given up arrives", &|world, who| {
                world.instances[who].orphan = None;
                let _nobody_hears = self.write(world, write);
            });
        }
        match (me.attempt, me.term) {
            (Attempt::None, Some(Term { epoch, stage: Stage::New | Stage::Closed, .. })) => {
                step("closes what was left open, then checks the term", &|world, who| self.prepare(world, who, epoch));
            }
            (Attempt::None, Some(Term { stage: Stage::Ready, .. })) => step("looks at what waits", &|world, who| {
                if let RowState::Waiting { .. } = world.row.state {
                    world.instances[who].attempt = Attempt::Seen { count: world.row.count };
                }
            }),
            (Attempt::Seen { count }, term) => step("begins", &|world, who| {
                world.instances[who].attempt = match term {
                    Some(Term { epoch, trusted_until, .. }) if world.now < trusted_until => match self.without {
                        Without::WriteAhead => Attempt::Leaving { epoch, number: count + 1 },
                        _ => Attempt::Writing(Write::Begin { epoch, count }),
                    },
                    _ => Attempt::None,
                };
            }),
            (Attempt::Writing(write), _) => self.write_steps(write, step),
            (Attempt::Begun { epoch, number }, term) => step("checks its trust", &|world, who| {
                let trusts = term.is_some_and(|term| term.epoch == epoch && world.now < term.trusted_until);
                world.instances[who].attempt = if trusts { Attempt::Leaving { epoch, number } } else { Attempt::None };
            }),
            (Attempt::Leaving { epoch, number }, _) => {
                for told in [Told::Accepted, Told::Error] {
                    step("calls the gateway", &|world, who| {
                        world.sent[usize::from(number) - 1] += 1;
                        world.instances[who].attempt = Attempt::Answered { epoch, number, told };
                    });
                }
            }
            (Attempt::Answered { epoch, number, told }, _) => step("finishes", &|world, who| {
                world.instances[who].attempt = Attempt::Writing(Write::Finish { epoch, number, told });
            }),
            (Attempt::None, None) => {}
        }
    }

    fn write_steps(&self, write: Write, step: &mut Take<'_>) {
        step("its write is done", &|world, who| match self.write(world, write) {
            Some(attempt) => world.instances[who].attempt = attempt,
            None => drop_term(world, who),
        });
        step("its write is done, the answer is lost", &|world, who| {
            let _not_heard = self.write(world, write);
            lose(world, who);
        });
        step("gives its write up, which may still arrive", &|world, who| {
            lose(world, who);
            world.instances[who].orphan = Some(write);
        });
        step("gives its write up, which may still arrive, and the lease back", &|world, who| {
            give_back(world, who);
            lose(world, who);
            world.instances[who].orphan = Some(write);
        });
    }

    /// What the database makes of a write: what its writer does next, or nothing if it was refused.
    fn write(&self, world: &mut World, write: Write) -> Option<Attempt> {
        let (Write::Begin { epoch, .. } | Write::Finish { epoch, .. }) = write;
        let held = world.lease.is_some_and(|lease| lease.epoch == epoch && world.now < lease.expires);
        if !held && self.without != Without::Fence {
            return None;
        }
        match write {
            Write::Begin { count, .. } => {
                let due = matches!(world.row.state, RowState::Waiting { due } if due <= world.now);
                let may = policy::may_start(&self.contract, at(0), u32::from(count), at(world.now)).is_ok();
                if !due || world.row.count != count || !may {
                    return Some(Attempt::None);
                }
                world.began_late |= !held;
                world.row = Row { count: count + 1, state: RowState::Open { epoch } };
                Some(Attempt::Begun { epoch, number: count + 1 })
            }
            Write::Finish { number, told, .. } => {
                if self.without == Without::WriteAhead && world.row.count + 1 == number {
                    world.row = Row { count: number, state: RowState::Open { epoch } };
                }
                if world.row.count == number && matches!(world.row.state, RowState::Open { .. }) {
                    self.finish(world, number, told);
                }
                Some(Attempt::None)
            }
        }
    }

    fn finish(&self, world: &mut World, number: u8, told: Told) {
        let outcome = match told {
            Told::Accepted => Outcome::Accepted { gateway_message_id: None },
            Told::Error => Outcome::error("timeout"),
            Told::Interrupted => Outcome::interrupted(),
        };
        world.log[usize::from(number) - 1] = Some(told);
        world.row.state = match policy::decide(&self.contract, at(0), u32::from(number), &outcome, at(world.now)) {
            Decision::Accept => RowState::Ended { accepted: true },
            Decision::Reject { .. } | Decision::Exhaust(_) => RowState::Ended { accepted: false },
            Decision::RetryAt(due) => RowState::Waiting { due: tick(due) },
        };
    }

    fn prepare(&self, world: &mut World, who: usize, epoch: u8) {
        let held = world.lease.is_some_and(|lease| lease.epoch == epoch && world.now < lease.expires);
        if !held && self.without != Without::Fence {
            return drop_term(world, who);
        }
        let new = world.instances[who].term.is_some_and(|term| term.stage == Stage::New);
        if new && matches!(world.row.state, RowState::Open { epoch: left } if left < epoch) {
            self.finish(world, world.row.count, Told::Interrupted);
        }
        if let Some(term) = &mut world.instances[who].term {
            term.stage = if term.stage == Stage::New { Stage::Closed } else { Stage::Ready };
        }
    }

    /// What must never be, in a world or on the way to it.
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
            Some("something changed after the end")
        } else if world.began_late {
            Some("an attempt began in a term that had ended")
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

    /// Visits every world; the way to the first violation, if there is one.
    fn explore(&self) -> Explored {
        let mut known = HashSet::from([Self::start()]);
        let mut worlds = vec![Self::start()];
        let mut came_by = vec![(0, Step(None, "start"))];
        let mut index = 0;
        while index < worlds.len() {
            for (step, next) in self.next(&worlds[index]) {
                if let Some(violation) = self.violation(&worlds[index], &next) {
                    let mut way = vec![step];
                    let mut at = index;
                    while at != 0 {
                        way.push(came_by[at].1);
                        at = came_by[at].0;
                    }
                    way.reverse();
                    return Explored { worlds, violation: Some((violation, way)) };
                }
                if known.insert(next.clone()) {
                    worlds.push(next);
                    came_by.push((index, step));
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

/// The database's answer to an acquire or a renew.
fn decide_lease(world: &mut World, who: usize) {
    let Some(LeaseCall { renews, .. }) = world.instances[who].lease_call else { return };
    let (now, holder) = (world.now, u8::try_from(who).unwrap());
    let live = world.lease.filter(|lease| now < lease.expires);
    let granted = match (renews, live) {
        (Some(epoch), Some(lease)) if lease.epoch == epoch && lease.holder == holder => Some(epoch),
        (None, None) => Some(world.lease.map_or(0, |lease| lease.epoch) + 1),
        _ => None,
    };
    if let Some(epoch) = granted {
        world.lease = Some(Lease { holder, epoch, expires: now + LEASE });
    }
    if let Some(call) = &mut world.instances[who].lease_call {
        call.answer = Some(granted);
    }
}

fn give_back(world: &mut World, who: usize) {
    let (now, epoch) = (world.now, world.instances[who].term.map(|term| term.epoch));
    if let Some(lease) = world.lease.as_mut().filter(|lease| Some(lease.epoch) == epoch) {
        lease.expires = lease.expires.min(now);
    }
}

fn crash(world: &mut World, who: usize) {
    world.faults += 1;
    let me = &mut world.instances[who];
    let orphan = if let Attempt::Writing(write) = me.attempt { Some(write) } else { me.orphan };
    *me = Instance { term: None, lease_call: None, attempt: Attempt::None, orphan };
}

/// A call failed, or so its caller believes.
fn lose(world: &mut World, who: usize) {
    world.faults += 1;
    drop_term(world, who);
}

/// Any doubt ends the term; a call under way may still be made and recorded.
fn drop_term(world: &mut World, who: usize) {
    let me = &mut world.instances[who];
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

/// Explores, holds every world to the rules, and sees that the interesting ones were among them.
fn hold(contract: Contract, bounds: Bounds) -> Vec<World> {
    let explored = explore(contract, Without::Nothing, bounds);
    println!("{} worlds within {bounds:?}", explored.worlds.len());
    if let Some((violation, way)) = explored.violation {
        panic!("{violation}: {way:#?}");
    }
    let reached = |what: &dyn Fn(&World) -> bool| explored.worlds.iter().any(what);
    assert!(reached(&|world| world.row.state == RowState::Ended { accepted: true }), "it is accepted");
    assert!(reached(&|world| world.lease.is_some_and(|lease| lease.epoch > 1 && lease.holder == 1)), "a takeover");
    assert!(
        reached(&|world| world.sent[0] == 1 && world.log[0] == Some(Told::Interrupted)),
        "sent, but closed by a new term before its outcome was recorded"
    );
    explored.worlds
}

#[test]
fn a_one_shot_is_sent_at_most_once_in_any_world() {
    hold(one_shot(), Bounds { horizon: 3, faults: 1, terms: 2 });
}

#[test]
fn nothing_is_sent_twice_or_changed_after_its_end_in_any_world() {
    let explored = hold(max_attempts(2), Bounds { horizon: 3, faults: 1, terms: 2 });
    assert!(
        explored.iter().any(|world| world.log[0] == Some(Told::Interrupted) && world.sent == [1, 1, 0]),
        "sent, interrupted, and sent again under the next number"
    );
}

#[test]
#[ignore = "takes minutes: make model"]
fn deeper() {
    hold(one_shot(), Bounds { horizon: 4, faults: 2, terms: 3 });
    hold(max_attempts(2), Bounds { horizon: 4, faults: 1, terms: 3 });
    hold(max_attempts(2), Bounds { horizon: 5, faults: 0, terms: 3 });
}

#[test]
fn without_a_safeguard_the_model_objects() {
    for (without, objection) in [
        (Without::Fence, "an attempt began in a term that had ended"),
        (Without::WriteAhead, "an attempt number was sent twice"),
        (Without::EarlyTrust, "two instances trust their lease"),
    ] {
        let explored = explore(max_attempts(2), without, Bounds { horizon: 4, faults: 1, terms: 2 });
        let (violation, way) = explored.violation.unwrap_or_else(|| panic!("{without:?}: nothing was found"));
        assert_eq!(violation, objection, "{without:?}: {way:#?}");
    }
}
