//! What the leader keeps in memory of what is due: a bounded window on the store's queue.
//!
//! One *lane* per gateway, ordered by due time. A lane holds the earliest of its waiting intents
//! and remembers from which place on the store may hold more; so memory stays bounded however
//! large the backlog, and a dead gateway with a million waiting intents fills its own lane only.
//! Slots bound the attempts in flight, in all and per gateway. Pure: told everything, asks nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::intent::IntentSeq;
use super::time::Timestamp;

/// The store's number for a gateway URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GatewayId(pub i64);

/// An intent that waits for an attempt, as the store last showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub seq: IntentSeq,
    pub gateway: GatewayId,
    pub due: Timestamp,
    /// Attempts begun before; the store begins the next one only if this still holds.
    pub attempt_count: u32,
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

/// A stretch of a lane that the schedule would like to see: up to `limit` intents from `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePage {
    pub gateway: GatewayId,
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

pub struct Schedule {
    limits: Limits,
    lanes: HashMap<GatewayId, Lane>,
    /// First place of every lane that has a free slot.
    ready: BTreeSet<(Place, GatewayId)>,
    known: HashMap<IntentSeq, Waiting>,
    /// With the attempt count that each was started at.
    in_flight: HashMap<IntentSeq, u32>,
    /// Retries that were seen before the end of the attempt before them.
    early: HashMap<IntentSeq, Waiting>,
    /// Attempts in flight that were begun at once, without ever having waited.
    at_once: usize,
    closed: bool,
}

#[derive(Default)]
struct Lane {
    waiting: BTreeMap<Place, Waiting>,
    /// Both kinds: taken from here, and begun at once.
    in_flight: usize,
    /// From here on the store may hold intents that are not in `waiting`.
    unknown_from: Option<Place>,
    /// How the lane stands in `ready`.
    listed: Option<Place>,
    /// The last call was quick.
    quick: bool,
}

impl Lane {
    fn has_slot(&self, limits: &Limits) -> bool {
        let ahead = if self.quick { limits.in_flight_per_gateway / AHEAD } else { 0 };
        self.in_flight < limits.in_flight_per_gateway + ahead
    }
}

impl Schedule {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            lanes: HashMap::new(),
            ready: BTreeSet::new(),
            known: HashMap::new(),
            in_flight: HashMap::new(),
            early: HashMap::new(),
            at_once: 0,
            closed: false,
        }
    }

    /// Takes a slot for an intent that is not in the store yet, so that it need not wait at all.
    /// No, if there is no free slot or another intent of the gateway is due before it.
    pub fn take_at_once(&mut self, gateway: GatewayId, now: Timestamp) -> bool {
        if self.closed || !self.has_slot(gateway) {
            return false;
        }
        let lane = self.lanes.entry(gateway).or_default();
        let first_due = lane.waiting.first_key_value().map(|(place, _)| place.due);
        let free = lane.has_slot(&self.limits)
            && lane.unknown_from.is_none_or(|place| place.due > now)
            && first_due.is_none_or(|due| due > now);
        if free {
            lane.in_flight += 1;
            self.at_once += 1;
        }
        self.relist(gateway);
        free
    }

    /// A slot taken by [`Self::take_at_once`] is free again; whether an intent may wait for it.
    pub fn over_at_once(&mut self, gateway: GatewayId) -> bool {
        self.at_once = self.at_once.saturating_sub(1);
        if let Some(lane) = self.lanes.get_mut(&gateway) {
            lane.in_flight = lane.in_flight.saturating_sub(1);
        }
        self.relist(gateway);
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
        if let Some(known) = self.known.get(&seen.seq).copied() {
            if known == seen || seen.attempt_count < known.attempt_count {
                return;
            }
            self.forget(known);
        }
        let place = Place { due: seen.due, seq: seen.seq };
        let room = self.lane_room();
        let lane = self.lanes.entry(seen.gateway).or_default();
        if lane.unknown_from.is_some_and(|unknown| place >= unknown) {
            return;
        }
        lane.waiting.insert(place, seen);
        self.known.insert(seen.seq, seen);
        while lane.waiting.len() > room {
            if let Some((last, dropped)) = lane.waiting.pop_last() {
                self.known.remove(&dropped.seq);
                lane.unknown_from = Some(last);
            }
        }
        self.relist(seen.gateway);
    }

    /// Takes in a page asked for by [`Self::wanted_pages`], or the first page of a lane.
    pub fn merge_page(&mut self, loaded: &LoadedPage) {
        let LanePage { gateway, from, limit } = loaded.page;
        let lane = self.lanes.entry(gateway).or_default();
        let expected = lane.unknown_from.unwrap_or(Place::START);
        if from != expected {
            return; // The lane was cut shorter meanwhile; it will ask again.
        }
        let full = loaded.waiting.len() >= limit;
        let last = loaded.waiting.last().map(|last| Place { due: last.due, seq: last.seq });
        lane.unknown_from = last.filter(|_| full).map(Place::next);
        for waiting in &loaded.waiting {
            self.merge(*waiting);
        }
        self.relist(gateway);
    }

    /// Pages to load next: of lanes that run low while the store may hold more.
    pub fn wanted_pages(&self) -> Vec<LanePage> {
        let room = self.lane_room();
        let low = |lane: &Lane| lane.waiting.len() <= room / 2;
        self.lanes
            .iter()
            .filter(|(_, lane)| low(lane))
            .filter_map(|(gateway, lane)| {
                let from = lane.unknown_from?;
                Some(LanePage { gateway: *gateway, from, limit: room - lane.waiting.len() })
            })
            .collect()
    }

    /// Takes out what is due at `now`, in order of due time, as far as there are free slots.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<Waiting> {
        let mut due = Vec::new();
        while !self.closed {
            let Some((place, gateway)) = self.ready.first().copied() else { break };
            if place.due > now || !self.has_slot(gateway) {
                break;
            }
            let Some(waiting) = self.known.get(&place.seq).copied() else { break };
            if let Some(lane) = self.lanes.get_mut(&gateway) {
                lane.in_flight += 1;
            }
            self.in_flight.insert(waiting.seq, waiting.attempt_count);
            self.forget(waiting);
            due.push(waiting);
        }
        due
    }

    /// An attempt taken by [`Self::take_due`] is over, whatever came of it: its slot is free. Says
    /// how long the call took, if there was one.
    pub fn over(&mut self, taken: Waiting, call: Option<Duration>) {
        if self.in_flight.get(&taken.seq) != Some(&taken.attempt_count) {
            return;
        }
        self.in_flight.remove(&taken.seq);
        if let Some(lane) = self.lanes.get_mut(&taken.gateway) {
            lane.in_flight = lane.in_flight.saturating_sub(1);
            lane.quick = call.map_or(lane.quick, |span| span < QUICK);
        }
        self.relist(taken.gateway);
        if let Some(retry) = self.early.remove(&taken.seq) {
            self.merge(retry);
        }
    }

    /// How long from `now` until [`Self::take_due`] has something to give; `None` if only an
    /// event (a free slot, a merge) can change that.
    pub fn next_due_in(&self, now: Timestamp) -> Option<Duration> {
        let (place, _) = self.ready.first().filter(|(_, gateway)| self.has_slot(*gateway))?;
        Some(place.due.since(now))
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len() + self.at_once
    }

    /// Whether there is a slot in all for an attempt at this gateway.
    fn has_slot(&self, gateway: GatewayId) -> bool {
        let quick = self.lanes.get(&gateway).is_some_and(|lane| lane.quick);
        let ahead = if quick { self.limits.in_flight / AHEAD } else { 0 };
        self.in_flight() < self.limits.in_flight + ahead
    }

    pub fn held(&self) -> usize {
        self.known.len()
    }

    fn lane_room(&self) -> usize {
        (self.limits.capacity / self.lanes.len().max(1)).clamp(MIN_LANE, MAX_LANE)
    }

    fn forget(&mut self, waiting: Waiting) {
        self.known.remove(&waiting.seq);
        if let Some(lane) = self.lanes.get_mut(&waiting.gateway) {
            lane.waiting.remove(&Place { due: waiting.due, seq: waiting.seq });
        }
        self.relist(waiting.gateway);
    }

    /// Brings `ready` in line with a lane that changed; drops a lane that holds nothing.
    fn relist(&mut self, gateway: GatewayId) {
        let Some(lane) = self.lanes.get_mut(&gateway) else { return };
        let open = lane.has_slot(&self.limits);
        let first = lane.waiting.first_key_value().map(|(place, _)| *place).filter(|_| open);
        if first != lane.listed {
            if let Some(old) = lane.listed {
                self.ready.remove(&(old, gateway));
            }
            if let Some(new) = first {
                self.ready.insert((new, gateway));
            }
            lane.listed = first;
        }
        if lane.waiting.is_empty() && lane.in_flight == 0 && lane.unknown_from.is_none() {
            self.lanes.remove(&gateway);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn waiting(seq: i64, gateway: i64, due: i64) -> Waiting {
        Waiting { seq: IntentSeq(seq), gateway: GatewayId(gateway), due: at(due), attempt_count: 0 }
    }

    fn limits(in_flight: usize, per_gateway: usize) -> Limits {
        Limits { in_flight, in_flight_per_gateway: per_gateway, capacity: 1000 }
    }

    fn seqs(taken: &[Waiting]) -> Vec<i64> {
        taken.iter().map(|waiting| waiting.seq.0).collect()
    }

    #[test]
    fn due_attempts_start_in_order_of_due_time() {
        let mut schedule = Schedule::new(limits(10, 10));
        for (seq, gateway, due) in [(1, 1, 30), (2, 2, 10), (3, 1, 20), (4, 2, 40)] {
            schedule.merge(waiting(seq, gateway, due));
        }
        assert_eq!(schedule.next_due_in(at(5)), Some(Duration::from_micros(5)));
        assert_eq!(seqs(&schedule.take_due(at(30))), [2, 3, 1]);
        assert_eq!(seqs(&schedule.take_due(at(40))), [4]);
    }

    #[test]
    fn of_a_gateway_that_is_quick_a_few_are_begun_ahead() {
        let mut schedule = Schedule::new(limits(16, 16));
        (0..60).for_each(|seq| schedule.merge(waiting(seq, 1, seq)));
        let first = schedule.take_due(at(100));
        assert_eq!(first.len(), 16);
        schedule.over(first[0], Some(Duration::from_millis(50)));
        assert_eq!(schedule.take_due(at(100)).len(), 3, "its own slot, and two ahead");
        for (taken, left) in first[1..].iter().zip([0, 0, 1, 1, 1]) {
            schedule.over(*taken, Some(QUICK));
            assert_eq!(schedule.take_due(at(100)).len(), left, "slow again: what is ahead is not made up for");
        }
    }

    #[test]
    fn a_new_intent_is_begun_at_once_unless_another_is_due_or_no_slot_is_free() {
        let mut schedule = Schedule::new(Limits { capacity: MIN_LANE, ..limits(3, 2) });
        for seq in 0..9 {
            schedule.merge(waiting(seq, 1, 100 + seq));
        }
        let gateway = GatewayId(1);
        assert!(schedule.take_at_once(gateway, at(99)), "the others are due later, also those not in memory");
        assert!(!schedule.take_at_once(gateway, at(100)), "one is due");
        assert!(schedule.take_at_once(gateway, at(99)));
        assert!(!schedule.take_at_once(gateway, at(99)), "the gateway is full");
        assert!(schedule.take_at_once(GatewayId(2), at(99)));
        assert!(!schedule.take_at_once(GatewayId(3), at(99)), "all slots are taken");
        assert!(schedule.take_due(at(100)).is_empty());
        schedule.over_at_once(GatewayId(2));
        assert!(schedule.over_at_once(gateway), "one waits for that");
        assert_eq!(seqs(&schedule.take_due(at(100))), [0]);
        schedule.close();
        assert!(!schedule.take_at_once(GatewayId(2), at(99)));
        schedule.over_at_once(gateway);
        assert!(schedule.take_due(at(200)).is_empty());
    }

    #[test]
    fn a_full_gateway_does_not_hold_up_others() {
        let mut schedule = Schedule::new(limits(3, 2));
        for seq in 1..=5 {
            schedule.merge(waiting(seq, 1, seq));
        }
        schedule.merge(waiting(6, 2, 100));
        let first = schedule.take_due(at(100));
        assert_eq!(seqs(&first), [1, 2, 6], "two for gateway 1, then gateway 2");
        assert_eq!(schedule.next_due_in(at(100)), None, "all slots are taken");
        schedule.over(first[2], None);
        assert_eq!(schedule.next_due_in(at(100)), None, "gateway 1 is still full");
        schedule.over(first[0], None);
        assert_eq!(seqs(&schedule.take_due(at(100))), [3]);
    }

    #[test]
    fn seen_twice_is_started_once_and_a_later_state_replaces_an_earlier_one() {
        let mut schedule = Schedule::new(limits(10, 10));
        schedule.merge(waiting(1, 1, 10));
        schedule.merge(waiting(1, 1, 10));
        let taken = schedule.take_due(at(10));
        assert_eq!(taken.len(), 1);
        schedule.merge(waiting(1, 1, 10));
        assert!(schedule.take_due(at(10)).is_empty(), "a stale sight of a started intent");
        let retry = Waiting { attempt_count: 1, ..waiting(1, 1, 20) };
        schedule.merge(retry);
        assert!(schedule.take_due(at(30)).is_empty(), "not before the attempt before it is over");
        schedule.over(taken[0], None);
        schedule.merge(waiting(1, 1, 10));
        assert_eq!(schedule.take_due(at(20)), [retry], "the retry was kept although seen before the end");
    }

    #[test]
    fn a_lane_that_was_cut_while_its_page_was_loading_asks_again() {
        let mut schedule = Schedule::new(Limits { in_flight: 10, in_flight_per_gateway: 10, capacity: MIN_LANE });
        let page = |from, limit| LanePage { gateway: GatewayId(1), from, limit };
        let all: Vec<_> = (0..20).map(|n| waiting(n, 1, 100 + n)).collect();
        schedule.merge_page(&LoadedPage { page: page(Place::START, 8), waiting: all[..8].to_vec() });
        for taken in schedule.take_due(at(104)) {
            schedule.over(taken, None);
        }
        let wanted = schedule.wanted_pages();
        assert_eq!(wanted, [page(Place { due: at(107), seq: IntentSeq(8) }, 5)]);
        for n in 50..60 {
            schedule.merge(waiting(n, 1, 50));
        }
        schedule.merge_page(&LoadedPage { page: wanted[0], waiting: all[8..13].to_vec() });
        assert_eq!(schedule.held(), MIN_LANE);
        for taken in schedule.take_due(at(60)) {
            schedule.over(taken, None);
        }
        assert_eq!(schedule.wanted_pages(), [page(Place { due: at(50), seq: IntentSeq(58) }, 8)]);
    }

    proptest! {
        /// A store with more rows than fit into memory, gateways of every size, rows that arrive
        /// while others run and are reported twice: each row starts exactly once, in order within
        /// its gateway among the rows known at that time, and no limit is ever passed.
        #[test]
        fn every_waiting_intent_starts_once(
            rows in prop::collection::vec((0_i64..4, 0_i64..200), 1..300),
            split in 0_usize..300,
            capacity in 1_usize..40,
            in_flight in 1_usize..6,
            per_gateway in 1_usize..4,
        ) {
            let limits = Limits { in_flight, in_flight_per_gateway: per_gateway, capacity };
            let rows: Vec<_> = rows.iter().enumerate()
                .map(|(seq, (gateway, due))| waiting(i64::try_from(seq).unwrap(), *gateway, *due)).collect();
            let (early, late) = rows.split_at(split.min(rows.len()));
            let mut store: BTreeMap<(GatewayId, Place), Waiting> = BTreeMap::new();
            let keyed = |row: &Waiting| ((row.gateway, Place { due: row.due, seq: row.seq }), *row);
            store.extend(early.iter().map(keyed));
            let load = |store: &BTreeMap<_, Waiting>, page: LanePage| LoadedPage {
                page,
                waiting: store.range((page.gateway, page.from)..)
                    .take_while(|((gateway, _), _)| *gateway == page.gateway)
                    .take(page.limit).map(|(_, row)| *row).collect(),
            };
            let mut schedule = Schedule::new(limits);
            for gateway in 0..4 {
                let page = LanePage { gateway: GatewayId(gateway), from: Place::START, limit: 10 };
                schedule.merge_page(&load(&store, page));
            }
            let mut started = Vec::new();
            let mut under_way: Vec<Waiting> = Vec::new();
            let mut late = late.iter();
            for round in 0..10_000 {
                if let Some(row) = late.next() {
                    store.extend([keyed(row)]);
                    schedule.merge(*row);
                    schedule.merge(*row);
                }
                let taken = schedule.take_due(at(1_000));
                prop_assert!(schedule.in_flight() <= in_flight);
                prop_assert!(schedule.held() <= capacity.max(4 * MIN_LANE) + 4 * MIN_LANE);
                for row in taken {
                    store.remove(&keyed(&row).0);
                    started.push(row.seq);
                    under_way.push(row);
                    let same = under_way.iter().filter(|other| other.gateway == row.gateway).count();
                    prop_assert!(same <= per_gateway, "gateway {:?} has {} under way", row.gateway, same);
                }
                prop_assert_eq!(schedule.in_flight(), under_way.len());
                if !under_way.is_empty() && round % 3 != 0 {
                    schedule.over(under_way.swap_remove(round % under_way.len()), None);
                }
                for page in schedule.wanted_pages() {
                    schedule.merge_page(&load(&store, page));
                }
                if store.is_empty() && late.len() == 0 {
                    break;
                }
            }
            let mut unique = started.clone();
            unique.sort_unstable();
            unique.dedup();
            prop_assert_eq!(unique.len(), started.len(), "something started twice");
            prop_assert_eq!(started.len(), rows.len(), "something never started");
        }
    }
}
