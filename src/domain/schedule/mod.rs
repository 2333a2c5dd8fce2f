//! The schedule: which waiting intents the leader starts next. It is a bounded window on the store's queue.
//!
//! There is one *lane* per contract, ordered by due time. A lane has the earliest of its waiting intents in memory and
//! remembers the position from which on the store may have more. Memory stays bounded however large the backlog is, and a
//! gateway that does not respond fills only its own lanes.
//!
//! Slots limit the attempts in flight, in total and per gateway; [`sharing`] says how gateways share them. A target can be
//! paused or have limits of its own, and a gateway can be on hold after it sent `Retry-After`. The schedule is a pure data
//! structure: the scheduler actor tells it everything that happens, including the time.

mod bounds;
mod redriven;
mod sharing;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use self::bounds::{GatewayBounds, TargetBounds};
use super::intent::{IntentSeq, TargetName};
use super::limits::TargetLimits;
use super::time::Timestamp;

/// The store's number for a gateway URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GatewayId(pub i64);

/// The store's number for a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub i64);

/// The queue of the intents of one contract, which has one target and one gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub id: LaneId,
    pub gateway: GatewayId,
    pub target: TargetName,
}

/// An intent that waits for an attempt, as it was last read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub seq: IntentSeq,
    pub lane: Arc<Lane>,
    pub due: Timestamp,
    /// The number of attempts started before. The store starts the next one only if this is still the number.
    pub attempt_count: u32,
}

impl Waiting {
    fn position(&self) -> LanePosition {
        LanePosition { due: self.due, seq: self.seq }
    }
}

/// A position in a lane. Lanes are ordered by due time, then by the order in which intents were stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LanePosition {
    pub due: Timestamp,
    pub seq: IntentSeq,
}

impl LanePosition {
    pub const START: Self = Self { due: Timestamp::from_micros(i64::MIN), seq: IntentSeq(i64::MIN) };

    /// The first position after this one.
    pub fn next(self) -> Self {
        Self { due: self.due, seq: IntentSeq(self.seq.0.saturating_add(1)) }
    }
}

/// In which ordered set a lane or a gateway is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listed {
    /// In none: nothing of it can start until something changes.
    #[default]
    No,
    /// By position: its first intent can start when it is due.
    At(LanePosition),
    /// By time: nothing of it can start before this moment, even if it is due.
    Deferred(Timestamp),
}

impl Listed {
    fn of(first: Option<LanePosition>, not_before: Option<Timestamp>, now: Timestamp) -> Self {
        match (first, not_before.filter(|moment| *moment > now)) {
            (None, _) => Self::No,
            (Some(_), Some(moment)) => Self::Deferred(moment),
            (Some(position), None) => Self::At(position),
        }
    }

    /// Moves `id` from the set that it is in to the set for `listed`.
    fn change<Id: Copy + Ord>(
        &mut self,
        listed: Self,
        id: Id,
        positions: &mut BTreeSet<(LanePosition, Id)>,
        deferred: &mut BTreeSet<(Timestamp, Id)>,
    ) {
        match std::mem::replace(self, listed) {
            Self::No => {}
            Self::At(position) => drop(positions.remove(&(position, id))),
            Self::Deferred(moment) => drop(deferred.remove(&(moment, id))),
        }
        match listed {
            Self::No => {}
            Self::At(position) => drop(positions.insert((position, id))),
            Self::Deferred(moment) => drop(deferred.insert((moment, id))),
        }
    }
}

/// A part of a lane that the schedule asks the store for: up to `limit` intents from the position `from` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanePage {
    pub lane: Arc<Lane>,
    pub from: LanePosition,
    pub limit: usize,
}

/// The intents of a requested page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedPage {
    pub page: LanePage,
    /// Ordered by position.
    pub waiting: Vec<Waiting>,
}

/// The limits of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of attempts in flight.
    pub in_flight: usize,
    /// Maximum number of attempts in flight for one gateway.
    pub in_flight_per_gateway: usize,
    /// The approximate number of intents in memory over all lanes. Each lane can have [`MIN_LANE`] in any case.
    pub capacity: usize,
}

/// A gateway that responds quickly may have one eighth more attempts started than there are slots. Storing the start of an
/// attempt takes a few milliseconds, which would otherwise be lost between two calls. Such an attempt waits until a call
/// finishes, so there is none for a slow gateway.
const AHEAD: usize = 8;
/// A call that takes less than this is quick. An attempt that was started ahead then waits for about an eighth of it.
pub const QUICK: Duration = Duration::from_millis(250);

/// A lane keeps at least this many intents in memory, so that it is not reloaded for every attempt.
const MIN_LANE: usize = 8;
/// A lane keeps at most this many intents in memory: eight times the default number of attempts in flight per gateway.
pub const MAX_LANE: usize = 1024;

/// The longest time that a gateway can be on hold. Its `Retry-After` may be a mistake, and only another attempt can find
/// that out.
pub const LONGEST_HOLD: Duration = Duration::from_secs(5 * 60);

/// What the schedule needs to know about a call that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The duration of the call.
    pub took: Duration,
    /// Whether the gateway responded in any way. Otherwise it was unreachable or did not respond in time.
    pub answered: bool,
    /// If the target has a rate: when the rate limiter allows the call after all those that are already started.
    pub next_turn: Option<Timestamp>,
    /// If the gateway sent `Retry-After`: when it can be called again.
    pub hold_until: Option<Timestamp>,
}

/// How a started attempt finished and released its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The gateway was called.
    Called(Call),
    /// Nothing was sent. `next_turn` is as in [`Call`], if it is known.
    NotCalled { next_turn: Option<Timestamp> },
}

impl Ended {
    /// Nothing was sent, and nothing is known about the rate limiter.
    pub const NOT_CALLED: Self = Self::NotCalled { next_turn: None };
}

/// The schedule of one term.
pub struct Schedule {
    limits: Limits,
    queues: HashMap<LaneId, Queue>,
    /// Every gateway that was called in this term. An entry stays when nothing waits for its gateway, because it records how
    /// the gateway responded. There are at most as many as registries have named.
    gateways: HashMap<GatewayId, GatewayBounds>,
    /// Every target that had a lane in this term: at most as many as registries have named.
    targets: HashMap<TargetName, TargetBounds>,
    target_limits: HashMap<TargetName, TargetLimits>,
    paused: BTreeSet<TargetName>,
    /// The latest time that the schedule was given. Nothing is deferred until an earlier time.
    now: Timestamp,
    /// The first position of every gateway that has a free slot and is not deferred.
    ready: BTreeSet<(LanePosition, GatewayId)>,
    deferred_gateways: BTreeSet<(Timestamp, GatewayId)>,
    deferred_lanes: BTreeSet<(Timestamp, LaneId)>,
    /// All waiting intents in memory.
    known: HashMap<IntentSeq, Waiting>,
    /// The intents in flight, each with its attempt count when it was started.
    in_flight: HashMap<IntentSeq, u32>,
    /// Retries that were read from the store before the schedule knew that the previous attempt had finished.
    early: HashMap<IntentSeq, Waiting>,
    /// Intents that are left alone for a while because the store refused to start them. The store still has them due earlier, so
    /// no page of their lane would bring them back: they do not count among what a lane holds.
    held_back: HashMap<IntentSeq, Waiting>,
    held_until: BTreeSet<(Timestamp, IntentSeq)>,
    /// The number of attempts in flight that were started on insert.
    start_on_insert: usize,
    closed: bool,
}

/// The waiting intents of a lane that are in memory.
struct Queue {
    lane: Arc<Lane>,
    waiting: BTreeMap<LanePosition, IntentSeq>,
    /// From this position on, the store may have intents that are not in `waiting`.
    unknown_from: Option<LanePosition>,
    /// How the lane is listed among those of its gateway.
    listed: Listed,
}

impl Schedule {
    /// An empty schedule.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            queues: HashMap::new(),
            gateways: HashMap::new(),
            targets: HashMap::new(),
            target_limits: HashMap::new(),
            paused: BTreeSet::new(),
            now: LanePosition::START.due,
            ready: BTreeSet::new(),
            deferred_gateways: BTreeSet::new(),
            deferred_lanes: BTreeSet::new(),
            known: HashMap::new(),
            in_flight: HashMap::new(),
            early: HashMap::new(),
            held_back: HashMap::new(),
            held_until: BTreeSet::new(),
            start_on_insert: 0,
            closed: false,
        }
    }

    /// Sets the limits of targets. Targets that are not in the map have none.
    pub fn limit_targets(&mut self, limits: HashMap<TargetName, TargetLimits>) {
        self.target_limits = limits;
        for (name, target) in &mut self.targets {
            target.limit(self.target_limits.get(name).copied().unwrap_or_default());
        }
        self.relist_targets(|_| true);
    }

    /// Sets the paused targets, for which nothing is started. All other targets are resumed.
    pub fn pause_targets(&mut self, paused: BTreeSet<TargetName>) {
        if paused != self.paused {
            let changed: BTreeSet<_> = self.paused.symmetric_difference(&paused).cloned().collect();
            self.paused = paused;
            self.relist_targets(|name| changed.contains(name));
        }
    }

    /// Pauses one more target.
    pub fn pause_target(&mut self, target: &TargetName) {
        self.paused.insert(target.clone());
        self.relist_targets(|name| name == target);
    }

    /// Takes a slot for an intent that is not stored yet, so that its first attempt can start in the transaction that
    /// inserts it. Returns false if there is no free slot, its target is paused, its target or gateway is deferred, or
    /// another intent of the gateway is already due.
    pub fn take_on_insert(&mut self, lane: &Arc<Lane>, now: Timestamp) -> bool {
        if self.closed {
            return false;
        }
        self.pass(now);
        let (limits, all) = (self.limits, self.in_flight());
        let (gateway, target) = self.bounds_of(lane);
        let deferred_until = gateway.not_before().max(target.not_before());
        let free = target.has_slot()
            && gateway.has_slot(&limits)
            && gateway.may_start(all, &limits, now)
            && deferred_until.is_none_or(|moment| moment <= now)
            && gateway.heads.first().is_none_or(|(position, _)| position.due > now);
        let unknown_from = self.queues.get(&lane.id).and_then(|queue| queue.unknown_from);
        let free =
            free && !self.paused.contains(&lane.target) && unknown_from.is_none_or(|position| position.due > now);
        if free {
            self.start_on_insert += 1;
            self.start(lane, now);
        }
        self.relist_with(lane);
        free
    }

    /// Releases a slot that [`Self::take_on_insert`] took. Returns whether a waiting intent may be able to use it.
    pub fn release_on_insert(&mut self, lane: &Arc<Lane>, ended: Ended, now: Timestamp) -> bool {
        self.start_on_insert = self.start_on_insert.saturating_sub(1);
        self.end(lane, ended, now);
        self.relist_with(lane);
        !self.ready.is_empty()
    }

    /// Stops starting attempts, for good.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Adds a waiting intent that was read from the store. Stale and duplicate reads are ignored.
    pub fn merge(&mut self, seen: Waiting) {
        if let Some(started_at) = self.in_flight.get(&seen.seq) {
            if seen.attempt_count > *started_at {
                self.early.insert(seen.seq, seen);
            }
            return;
        }
        if self.held_back.get(&seen.seq).is_some_and(|held| seen.attempt_count <= held.attempt_count) {
            return;
        }
        if let Some(known) = self.known.get(&seen.seq) {
            if *known == seen || seen.attempt_count < known.attempt_count {
                return;
            }
            self.forget(seen.seq);
        }
        self.enlist(&seen.lane);
        let (lane, position) = (seen.lane.id, seen.position());
        let room = self.lane_room();
        let Some(queue) = self.queues.get_mut(&lane) else { return };
        if queue.unknown_from.is_some_and(|unknown| position >= unknown) {
            return;
        }
        queue.waiting.insert(position, seen.seq);
        self.known.insert(seen.seq, seen);
        while queue.waiting.len() > room {
            if let Some((last, dropped)) = queue.waiting.pop_last() {
                self.known.remove(&dropped);
                queue.unknown_from = Some(last);
            }
        }
        self.relist(lane);
    }

    /// Leaves a waiting intent alone until then. If too many are left alone already, it is merged now, because memory is
    /// bounded.
    pub fn hold_back(&mut self, waiting: Waiting, until: Timestamp) {
        if self.held_back.len() >= self.limits.capacity.max(MIN_LANE) {
            return self.merge(waiting);
        }
        self.held_until.insert((until, waiting.seq));
        self.held_back.insert(waiting.seq, waiting);
    }

    /// Adds a page that [`Self::wanted_pages`] asked for, or the first page of a lane.
    pub fn merge_page(&mut self, loaded: &LoadedPage) {
        let LanePage { lane, from, limit } = &loaded.page;
        self.enlist(lane);
        let Some(queue) = self.queues.get_mut(&lane.id) else { return };
        let expected = queue.unknown_from.unwrap_or(LanePosition::START);
        if *from != expected {
            return; // The lane was shortened meanwhile, and will ask for another page.
        }
        let full = loaded.waiting.len() >= *limit;
        queue.unknown_from = loaded.waiting.last().filter(|_| full).map(|last| last.position().next());
        for waiting in &loaded.waiting {
            self.merge(waiting.clone());
        }
        self.relist(lane.id);
    }

    /// The pages to load next: those of lanes that are less than half full while the store may have more.
    pub fn wanted_pages(&self) -> Vec<LanePage> {
        let room = self.lane_room();
        let low = |queue: &&Queue| queue.waiting.len() <= room / 2;
        let low = self.queues.values().filter(low);
        let mut pages: Vec<_> = low
            .filter_map(|queue| {
                let from = queue.unknown_from?;
                Some(LanePage { lane: Arc::clone(&queue.lane), from, limit: room - queue.waiting.len() })
            })
            .collect();
        // In one order, whatever that of the map is: a run can be repeated exactly.
        pages.sort_unstable_by_key(|page| page.lane.id);
        pages
    }

    /// Takes the intents that can start at `now` and a slot for each, as far as slots are free. Within a gateway they start
    /// in the order of their due times; between gateways, the one with the fewest attempts in flight comes first.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<Waiting> {
        self.pass(now);
        let mut taken = Vec::new();
        if self.closed {
            return taken;
        }
        let due = self.ready.iter().take_while(|(position, _)| position.due <= now);
        let mut candidates: BinaryHeap<_> = due.filter_map(|(_, id)| self.candidate(*id, now)).collect();
        while let Some(Reverse((_, position, id))) = candidates.pop() {
            // The intents taken meanwhile may have used up a limit, or changed which one is first at this gateway.
            match self.candidate(id, now) {
                Some(current) if current.0.1 == position => {}
                changed => {
                    candidates.extend(changed);
                    continue;
                }
            }
            let Some(waiting) = self.known.get(&position.seq).cloned() else { continue };
            self.in_flight.insert(waiting.seq, waiting.attempt_count);
            self.start(&waiting.lane, now);
            self.forget(waiting.seq);
            self.relist_with(&waiting.lane);
            taken.push(waiting);
            candidates.extend(self.candidate(id, now));
        }
        taken.sort_unstable_by_key(Waiting::position);
        taken
    }

    /// The position that a gateway would start next at `now`, if it may, with its number of attempts in flight.
    fn candidate(&self, id: GatewayId, now: Timestamp) -> Option<Reverse<(usize, LanePosition, GatewayId)>> {
        let gateway = self.gateways.get(&id)?;
        let Listed::At(position) = gateway.listed else { return None };
        let starts = position.due <= now && gateway.may_start(self.in_flight(), &self.limits, now);
        starts.then_some(Reverse((gateway.in_flight(), position, id)))
    }

    /// Releases the slot of an attempt that [`Self::take_due`] took, whatever its outcome was.
    pub fn finish(&mut self, taken: &Waiting, ended: Ended, now: Timestamp) {
        if self.in_flight.get(&taken.seq) != Some(&taken.attempt_count) {
            return;
        }
        self.in_flight.remove(&taken.seq);
        self.end(&taken.lane, ended, now);
        self.relist_with(&taken.lane);
        if let Some(retry) = self.early.remove(&taken.seq) {
            self.merge(retry);
        }
    }

    /// Removes intents that ended in the store while they waited.
    pub fn forget_ended(&mut self, ended: impl IntoIterator<Item = IntentSeq>) {
        ended.into_iter().for_each(|seq| self.forget(seq));
    }

    /// How long from `now` until [`Self::take_due`] may return something. `None` if time alone changes nothing, but only an
    /// event, such as a released slot or a merged intent.
    pub fn next_due_in(&self, now: Timestamp) -> Option<Duration> {
        let may_start =
            |(position, id): &&(LanePosition, GatewayId)| position.due > now || self.candidate(*id, now).is_some();
        let ready = self.ready.iter().find(may_start).map(|(position, _)| position.due);
        let lane = self.deferred_lanes.first().map(|(moment, _)| *moment);
        let gateway = self.deferred_gateways.first().map(|(moment, _)| *moment);
        let held = self.held_until.first().map(|(moment, _)| *moment);
        [ready, lane, gateway, held].into_iter().flatten().min().map(|moment| moment.since(now))
    }

    /// The number of attempts in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() + self.start_on_insert
    }

    /// The number of waiting intents in memory.
    pub fn held(&self) -> usize {
        self.known.len() + self.held_back.len()
    }

    /// The gateways that are on hold because of their `Retry-After`, and until when.
    pub fn gateways_on_hold(&self, now: Timestamp) -> Vec<(GatewayId, Timestamp)> {
        let until = |gateway: &GatewayBounds| gateway.not_before().filter(|moment| *moment > now);
        self.gateways.iter().filter_map(|(id, gateway)| Some((*id, until(gateway)?))).collect()
    }

    /// How many intents each lane may have in memory.
    fn lane_room(&self) -> usize {
        (self.limits.capacity / self.queues.len().max(1)).clamp(MIN_LANE, MAX_LANE)
    }

    /// Advances the time: merges the intents that were held back until then, and lists the lanes and gateways again that were
    /// deferred until then.
    fn pass(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        while let Some(first) = self.held_until.first().copied().filter(|(moment, _)| *moment <= self.now) {
            self.held_until.remove(&first);
            if let Some(waiting) = self.held_back.remove(&first.1) {
                self.merge(waiting);
            }
        }
        while let Some((_, lane)) = self.deferred_lanes.first().copied().filter(|(moment, _)| *moment <= self.now) {
            self.relist(lane);
        }
        while let Some((_, gateway)) = self.deferred_gateways.first().copied().filter(|(moment, _)| *moment <= self.now)
        {
            self.relist_gateway(gateway);
        }
    }

    /// Adds a lane, its gateway and its target, if they are not there yet.
    fn enlist(&mut self, lane: &Arc<Lane>) {
        if let Entry::Vacant(entry) = self.queues.entry(lane.id) {
            let (waiting, unknown_from, listed) = (BTreeMap::new(), None, Listed::No);
            entry.insert(Queue { lane: Arc::clone(lane), waiting, unknown_from, listed });
            let (_, target) = self.bounds_of(lane);
            target.lanes.insert(lane.id);
        }
    }

    fn bounds_of(&mut self, lane: &Lane) -> (&mut GatewayBounds, &mut TargetBounds) {
        let limits = self.target_limits.get(&lane.target).copied().unwrap_or_default();
        let target = self.targets.entry(lane.target.clone()).or_insert_with(|| TargetBounds::new(limits));
        (self.gateways.entry(lane.gateway).or_default(), target)
    }

    /// Takes a slot of the lane's gateway and of its target.
    fn start(&mut self, lane: &Lane, now: Timestamp) {
        let (gateway, target) = self.bounds_of(lane);
        gateway.start(now);
        target.start(now);
    }

    /// Releases the slots that [`Self::start`] took.
    fn end(&mut self, lane: &Lane, ended: Ended, now: Timestamp) {
        let (gateway, target) = self.bounds_of(lane);
        gateway.end(ended, now);
        target.end(ended);
    }

    fn forget(&mut self, seq: IntentSeq) {
        let Some(waiting) = self.known.remove(&seq) else { return };
        if let Some(queue) = self.queues.get_mut(&waiting.lane.id) {
            queue.waiting.remove(&waiting.position());
        }
        self.relist(waiting.lane.id);
    }

    /// Updates the listing of a gateway after its slots changed. If the target has limits of its own, also updates all lanes
    /// of the target.
    fn relist_with(&mut self, lane: &Lane) {
        let limited = self.targets.get(&lane.target).filter(|target| target.limits != TargetLimits::default());
        for lane in limited.map(|target| target.lanes.clone()).unwrap_or_default() {
            self.relist(lane);
        }
        self.relist_gateway(lane.gateway);
    }

    /// Updates the listing of all lanes of the targets that match.
    fn relist_targets(&mut self, matches: impl Fn(&TargetName) -> bool) {
        let targets = self.targets.iter().filter(|(name, _)| matches(name));
        let lanes: Vec<_> = targets.flat_map(|(_, target)| target.lanes.iter().copied()).collect();
        lanes.into_iter().for_each(|lane| self.relist(lane));
    }

    /// Updates the listing of a lane that changed, and that of its gateway. Removes a lane that is empty.
    fn relist(&mut self, id: LaneId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let lane = Arc::clone(&queue.lane);
        let (Some(gateway), Some(target)) = (self.gateways.get_mut(&lane.gateway), self.targets.get_mut(&lane.target))
        else {
            return;
        };
        let open = target.has_slot() && !self.paused.contains(&lane.target);
        let first = queue.waiting.first_key_value().filter(|_| open).map(|(position, _)| *position);
        let listed = Listed::of(first, target.not_before(), self.now);
        queue.listed.change(listed, id, &mut gateway.heads, &mut self.deferred_lanes);
        if queue.waiting.is_empty() && queue.unknown_from.is_none() {
            target.lanes.remove(&id);
            self.queues.remove(&id);
        }
        self.relist_gateway(lane.gateway);
    }

    /// Updates the listing of a gateway that changed.
    fn relist_gateway(&mut self, id: GatewayId) {
        let Some(gateway) = self.gateways.get_mut(&id) else { return };
        let first = gateway.heads.first().filter(|_| gateway.has_slot(&self.limits)).map(|(position, _)| *position);
        let listed = Listed::of(first, gateway.not_before(), self.now);
        gateway.listed.change(listed, id, &mut self.ready, &mut self.deferred_gateways);
    }
}
