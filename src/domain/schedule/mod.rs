//! What the leader keeps in memory of what is due: a bounded window on the store's queue.
//!
//! One *lane* per contract, ordered by due time. A lane holds the earliest of its waiting intents
//! and remembers from which place on the store may hold more; so memory stays bounded however
//! large the backlog, and a dead gateway with a million waiting intents fills its own lanes only.
//! Slots bound the attempts in flight, in all and per gateway, and [`sharing`] says how gateways share them; a target
//! may be paused, or have bounds of its own; a gateway may be held. Pure: told everything, asks nothing.

mod bounds;
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

/// What waits under one contract, which has one target and one gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub id: LaneId,
    pub gateway: GatewayId,
    pub target: TargetName,
}

/// An intent that waits for an attempt, as the store last showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub seq: IntentSeq,
    pub lane: Arc<Lane>,
    pub due: Timestamp,
    /// Attempts begun before; the store begins the next one only if this still holds.
    pub attempt_count: u32,
}

impl Waiting {
    fn place(&self) -> Place {
        Place { due: self.due, seq: self.seq }
    }
}

/// A place in a lane: due time, then order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub due: Timestamp,
    pub seq: IntentSeq,
}

impl Place {
    pub const START: Self = Self { due: Timestamp::from_micros(i64::MIN), seq: IntentSeq(i64::MIN) };

    /// The first place behind this one.
    pub fn next(self) -> Self {
        Self { due: self.due, seq: IntentSeq(self.seq.0.saturating_add(1)) }
    }
}

/// How a lane, or a gateway, stands among others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listed {
    /// Nothing of it can start until something happens.
    #[default]
    No,
    /// Its first may start when it is due.
    At(Place),
    /// It is spared until then, whatever is due.
    Spared(Timestamp),
}

impl Listed {
    fn of(first: Option<Place>, not_before: Option<Timestamp>, now: Timestamp) -> Self {
        match (first, not_before.filter(|moment| *moment > now)) {
            (None, _) => Self::No,
            (Some(_), Some(moment)) => Self::Spared(moment),
            (Some(place), None) => Self::At(place),
        }
    }

    /// Moves `id` to where it now stands.
    fn change<Id: Copy + Ord>(
        &mut self,
        listed: Self,
        id: Id,
        places: &mut BTreeSet<(Place, Id)>,
        spared: &mut BTreeSet<(Timestamp, Id)>,
    ) {
        match std::mem::replace(self, listed) {
            Self::No => {}
            Self::At(place) => drop(places.remove(&(place, id))),
            Self::Spared(moment) => drop(spared.remove(&(moment, id))),
        }
        match listed {
            Self::No => {}
            Self::At(place) => drop(places.insert((place, id))),
            Self::Spared(moment) => drop(spared.insert((moment, id))),
        }
    }
}

/// A stretch of a lane that the schedule would like to see: up to `limit` intents from `from` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanePage {
    pub lane: Arc<Lane>,
    pub from: Place,
    pub limit: usize,
}

/// What the store holds of a requested page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedPage {
    pub page: LanePage,
    /// In order of place.
    pub waiting: Vec<Waiting>,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Calls under way at once.
    pub in_flight: usize,
    pub in_flight_per_gateway: usize,
    /// Intents held in memory over all lanes, about: each lane may hold [`MIN_LANE`] all the same.
    pub capacity: usize,
}

/// Of a gateway that answers quickly, one in eight more may be begun ahead: writing that down takes
/// a few milliseconds, which would otherwise be lost between two calls. They wait for a call to end,
/// so there is nothing ahead of a gateway that takes its time.
const AHEAD: usize = 8;
/// What quickly means. An attempt that was begun ahead waits for about an eighth of this.
pub const QUICK: Duration = Duration::from_millis(250);

/// A lane holds at least this many, so that it need not be reloaded for every attempt.
const MIN_LANE: usize = 8;
/// A lane holds at most this many: eight times the default of attempts in flight per gateway.
pub const MAX_LANE: usize = 1024;

/// However long a gateway wants to be left alone, it is tried again after this: its wish may be a mistake, and
/// nobody but an attempt finds out.
pub const LONGEST_HOLD: Duration = Duration::from_secs(5 * 60);

/// A call that was made, as far as it matters for those that come after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub took: Duration,
    /// The gateway answered, whatever it said. Otherwise it could not be reached, or did not answer in time.
    pub answered: bool,
    /// When the next call of its target may leave, if that has a rate: all that were begun have left by then.
    pub next_turn: Option<Timestamp>,
    /// The gateway asked to be left alone until then.
    pub hold_until: Option<Timestamp>,
}

/// How an attempt came to give its slot back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Called(Call),
    /// Nothing was sent. `next_turn` is when the next call of its target may leave, where that has a rate and it is
    /// known.
    NotCalled {
        next_turn: Option<Timestamp>,
    },
}

impl Ended {
    pub const NOT_CALLED: Self = Self::NotCalled { next_turn: None };
}

pub struct Schedule {
    limits: Limits,
    queues: HashMap<LaneId, Queue>,
    /// Of every gateway that has been called in this term, because what is known of one must outlast a pause: as many
    /// as registries have named.
    gateways: HashMap<GatewayId, GatewayBounds>,
    /// Of every target that has had a lane: as many as registries have named.
    targets: HashMap<TargetName, TargetBounds>,
    target_limits: HashMap<TargetName, TargetLimits>,
    paused: BTreeSet<TargetName>,
    /// The latest moment that was told: what is spared until then no longer is.
    now: Timestamp,
    /// First place of every gateway that has a free slot and is not spared.
    ready: BTreeSet<(Place, GatewayId)>,
    spared_gateways: BTreeSet<(Timestamp, GatewayId)>,
    spared_lanes: BTreeSet<(Timestamp, LaneId)>,
    known: HashMap<IntentSeq, Waiting>,
    /// With the attempt count that each was started at.
    in_flight: HashMap<IntentSeq, u32>,
    /// Retries that were seen before the end of the attempt before them.
    early: HashMap<IntentSeq, Waiting>,
    /// Attempts in flight that were begun at once, without ever having waited.
    start_on_insert: usize,
    closed: bool,
}

/// What is known to wait in a lane.
struct Queue {
    lane: Arc<Lane>,
    waiting: BTreeMap<Place, IntentSeq>,
    /// From here on the store may hold intents that are not in `waiting`.
    unknown_from: Option<Place>,
    /// How the lane stands among those of its gateway.
    listed: Listed,
}

impl Schedule {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            queues: HashMap::new(),
            gateways: HashMap::new(),
            targets: HashMap::new(),
            target_limits: HashMap::new(),
            paused: BTreeSet::new(),
            now: Place::START.due,
            ready: BTreeSet::new(),
            spared_gateways: BTreeSet::new(),
            spared_lanes: BTreeSet::new(),
            known: HashMap::new(),
            in_flight: HashMap::new(),
            early: HashMap::new(),
            start_on_insert: 0,
            closed: false,
        }
    }

    /// The bounds that targets have of their own, from now on; others have none.
    pub fn limit_targets(&mut self, limits: HashMap<TargetName, TargetLimits>) {
        self.target_limits = limits;
        for (name, target) in &mut self.targets {
            target.limit(self.target_limits.get(name).copied().unwrap_or_default());
        }
        self.relist_targets(|_| true);
    }

    /// The targets that nothing is to be started for, from now on; all others go on.
    pub fn pause_targets(&mut self, paused: BTreeSet<TargetName>) {
        if paused != self.paused {
            let changed: BTreeSet<_> = self.paused.symmetric_difference(&paused).cloned().collect();
            self.paused = paused;
            self.relist_targets(|name| changed.contains(name));
        }
    }

    /// One more of those.
    pub fn pause_target(&mut self, target: &TargetName) {
        self.paused.insert(target.clone());
        self.relist_targets(|name| name == target);
    }

    /// Takes a slot for an intent that is not in the store yet, so that it need not wait at all.
    /// No, if there is no free slot, its target or gateway is to be spared, or another intent of the
    /// gateway is due before it.
    pub fn take_on_insert(&mut self, lane: &Arc<Lane>, now: Timestamp) -> bool {
        if self.closed {
            return false;
        }
        self.pass(now);
        let (limits, all) = (self.limits, self.in_flight());
        let (gateway, target) = self.bounds_of(lane);
        let spared_until = gateway.not_before().max(target.not_before());
        let free = target.has_slot()
            && gateway.has_slot(&limits)
            && gateway.may_start(all, &limits, now)
            && spared_until.is_none_or(|moment| moment <= now)
            && gateway.heads.first().is_none_or(|(place, _)| place.due > now);
        let unknown_from = self.queues.get(&lane.id).and_then(|queue| queue.unknown_from);
        let free = free && !self.paused.contains(&lane.target) && unknown_from.is_none_or(|place| place.due > now);
        if free {
            self.start_on_insert += 1;
            self.start(lane, now);
        }
        self.relist_with(lane);
        free
    }

    /// A slot taken by [`Self::take_on_insert`] is free again; whether an intent may wait for it.
    pub fn release_on_insert(&mut self, lane: &Arc<Lane>, ended: Ended, now: Timestamp) -> bool {
        self.start_on_insert = self.start_on_insert.saturating_sub(1);
        self.end(lane, ended, now);
        self.relist_with(lane);
        !self.ready.is_empty()
    }

    /// From now on nothing is given out any more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Takes note of a waiting intent. Seeing one twice, or late, changes nothing.
    pub fn merge(&mut self, seen: Waiting) {
        if let Some(started_at) = self.in_flight.get(&seen.seq) {
            if seen.attempt_count > *started_at {
                self.early.insert(seen.seq, seen);
            }
            return;
        }
        if let Some(known) = self.known.get(&seen.seq) {
            if *known == seen || seen.attempt_count < known.attempt_count {
                return;
            }
            self.forget(seen.seq);
        }
        self.enlist(&seen.lane);
        let (lane, place) = (seen.lane.id, seen.place());
        let room = self.lane_room();
        let Some(queue) = self.queues.get_mut(&lane) else { return };
        if queue.unknown_from.is_some_and(|unknown| place >= unknown) {
            return;
        }
        queue.waiting.insert(place, seen.seq);
        self.known.insert(seen.seq, seen);
        while queue.waiting.len() > room {
            if let Some((last, dropped)) = queue.waiting.pop_last() {
                self.known.remove(&dropped);
                queue.unknown_from = Some(last);
            }
        }
        self.relist(lane);
    }

    /// Takes in a page asked for by [`Self::wanted_pages`], or the first page of a lane.
    pub fn merge_page(&mut self, loaded: &LoadedPage) {
        let LanePage { lane, from, limit } = &loaded.page;
        self.enlist(lane);
        let Some(queue) = self.queues.get_mut(&lane.id) else { return };
        let expected = queue.unknown_from.unwrap_or(Place::START);
        if *from != expected {
            return; // The lane was cut shorter meanwhile; it will ask again.
        }
        let full = loaded.waiting.len() >= *limit;
        queue.unknown_from = loaded.waiting.last().filter(|_| full).map(|last| last.place().next());
        for waiting in &loaded.waiting {
            self.merge(waiting.clone());
        }
        self.relist(lane.id);
    }

    /// Pages to load next: of lanes that run low while the store may hold more.
    pub fn wanted_pages(&self) -> Vec<LanePage> {
        let room = self.lane_room();
        let low = |queue: &&Queue| queue.waiting.len() <= room / 2;
        self.queues
            .values()
            .filter(low)
            .filter_map(|queue| {
                let from = queue.unknown_from?;
                Some(LanePage { lane: Arc::clone(&queue.lane), from, limit: room - queue.waiting.len() })
            })
            .collect()
    }

    /// Takes out what may start at `now`, as far as there are free slots: in order of due time within a gateway, and
    /// between gateways the one first that has the fewest attempts in flight.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<Waiting> {
        self.pass(now);
        let mut taken = Vec::new();
        if self.closed {
            return taken;
        }
        let due = self.ready.iter().take_while(|(place, _)| place.due <= now);
        let mut candidates: BinaryHeap<_> = due.filter_map(|(_, id)| self.candidate(*id, now)).collect();
        while let Some(Reverse((_, place, id))) = candidates.pop() {
            // What was taken meanwhile may have used up a limit, or changed what is first here.
            match self.candidate(id, now) {
                Some(current) if current.0.1 == place => {}
                changed => {
                    candidates.extend(changed);
                    continue;
                }
            }
            let Some(waiting) = self.known.get(&place.seq).cloned() else { continue };
            self.in_flight.insert(waiting.seq, waiting.attempt_count);
            self.start(&waiting.lane, now);
            self.forget(waiting.seq);
            self.relist_with(&waiting.lane);
            taken.push(waiting);
            candidates.extend(self.candidate(id, now));
        }
        taken.sort_unstable_by_key(Waiting::place);
        taken
    }

    /// What a gateway would start next at `now`, if it may; behind how many that it has in flight.
    fn candidate(&self, id: GatewayId, now: Timestamp) -> Option<Reverse<(usize, Place, GatewayId)>> {
        let gateway = self.gateways.get(&id)?;
        let Listed::At(place) = gateway.listed else { return None };
        let starts = place.due <= now && gateway.may_start(self.in_flight(), &self.limits, now);
        starts.then_some(Reverse((gateway.in_flight(), place, id)))
    }

    /// An attempt taken by [`Self::take_due`] is over, whatever came of it: its slot is free.
    pub fn over(&mut self, taken: &Waiting, ended: Ended, now: Timestamp) {
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

    /// These intents no longer wait: the store has ended them.
    pub fn forget_ended(&mut self, ended: impl IntoIterator<Item = IntentSeq>) {
        ended.into_iter().for_each(|seq| self.forget(seq));
    }

    /// How long from `now` until [`Self::take_due`] has something to give; `None` if only an
    /// event (a free slot, a merge) can change that.
    pub fn next_due_in(&self, now: Timestamp) -> Option<Duration> {
        let may_start = |(place, id): &&(Place, GatewayId)| place.due > now || self.candidate(*id, now).is_some();
        let ready = self.ready.iter().find(may_start).map(|(place, _)| place.due);
        let lane = self.spared_lanes.first().map(|(moment, _)| *moment);
        let gateway = self.spared_gateways.first().map(|(moment, _)| *moment);
        [ready, lane, gateway].into_iter().flatten().min().map(|moment| moment.since(now))
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len() + self.start_on_insert
    }

    pub fn held(&self) -> usize {
        self.known.len()
    }

    /// How many gateways are being spared because they asked for it.
    pub fn gateways_on_hold(&self, now: Timestamp) -> usize {
        self.gateways.values().filter(|gateway| gateway.not_before().is_some_and(|moment| moment > now)).count()
    }

    fn lane_room(&self) -> usize {
        (self.limits.capacity / self.queues.len().max(1)).clamp(MIN_LANE, MAX_LANE)
    }

    /// Takes note of the time: whoever was spared until then is not any more.
    fn pass(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        while let Some((_, lane)) = self.spared_lanes.first().copied().filter(|(moment, _)| *moment <= self.now) {
            self.relist(lane);
        }
        while let Some((_, gateway)) = self.spared_gateways.first().copied().filter(|(moment, _)| *moment <= self.now) {
            self.relist_gateway(gateway);
        }
    }

    /// Makes a lane known, with what bounds it.
    fn enlist(&mut self, lane: &Arc<Lane>) {
        if let Entry::Vacant(place) = self.queues.entry(lane.id) {
            let (waiting, unknown_from, listed) = (BTreeMap::new(), None, Listed::No);
            place.insert(Queue { lane: Arc::clone(lane), waiting, unknown_from, listed });
            let (_, target) = self.bounds_of(lane);
            target.lanes.insert(lane.id);
        }
    }

    fn bounds_of(&mut self, lane: &Lane) -> (&mut GatewayBounds, &mut TargetBounds) {
        let limits = self.target_limits.get(&lane.target).copied().unwrap_or_default();
        let target = self.targets.entry(lane.target.clone()).or_insert_with(|| TargetBounds::new(limits));
        (self.gateways.entry(lane.gateway).or_default(), target)
    }

    /// An attempt of this lane takes its slots.
    fn start(&mut self, lane: &Lane, now: Timestamp) {
        let (gateway, target) = self.bounds_of(lane);
        gateway.start(now);
        target.start(now);
    }

    /// It gives them back.
    fn end(&mut self, lane: &Lane, ended: Ended, now: Timestamp) {
        let (gateway, target) = self.bounds_of(lane);
        gateway.end(ended, now);
        target.end(ended);
    }

    fn forget(&mut self, seq: IntentSeq) {
        let Some(waiting) = self.known.remove(&seq) else { return };
        if let Some(queue) = self.queues.get_mut(&waiting.lane.id) {
            queue.waiting.remove(&waiting.place());
        }
        self.relist(waiting.lane.id);
    }

    /// Brings everything in line with a lane whose slots changed: its gateway, and if its target has limits of its
    /// own, the other lanes of that.
    fn relist_with(&mut self, lane: &Lane) {
        let limited = self.targets.get(&lane.target).filter(|target| target.limits != TargetLimits::default());
        for lane in limited.map(|target| target.lanes.clone()).unwrap_or_default() {
            self.relist(lane);
        }
        self.relist_gateway(lane.gateway);
    }

    fn relist_targets(&mut self, concerned: impl Fn(&TargetName) -> bool) {
        let targets = self.targets.iter().filter(|(name, _)| concerned(name));
        let lanes: Vec<_> = targets.flat_map(|(_, target)| target.lanes.iter().copied()).collect();
        lanes.into_iter().for_each(|lane| self.relist(lane));
    }

    /// Brings its gateway in line with a lane that changed; drops a lane that holds nothing.
    fn relist(&mut self, id: LaneId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let lane = Arc::clone(&queue.lane);
        let (Some(gateway), Some(target)) = (self.gateways.get_mut(&lane.gateway), self.targets.get_mut(&lane.target))
        else {
            return;
        };
        let open = target.has_slot() && !self.paused.contains(&lane.target);
        let first = queue.waiting.first_key_value().filter(|_| open).map(|(place, _)| *place);
        let listed = Listed::of(first, target.not_before(), self.now);
        queue.listed.change(listed, id, &mut gateway.heads, &mut self.spared_lanes);
        if queue.waiting.is_empty() && queue.unknown_from.is_none() {
            target.lanes.remove(&id);
            self.queues.remove(&id);
        }
        self.relist_gateway(lane.gateway);
    }

    /// Brings `ready` in line with a gateway that changed.
    fn relist_gateway(&mut self, id: GatewayId) {
        let Some(gateway) = self.gateways.get_mut(&id) else { return };
        let first = gateway.heads.first().filter(|_| gateway.has_slot(&self.limits)).map(|(place, _)| *place);
        let listed = Listed::of(first, gateway.not_before(), self.now);
        gateway.listed.change(listed, id, &mut self.ready, &mut self.spared_gateways);
    }
}
