//! What is started when, within which bounds; and that nothing is lost or started twice, against a model.

use proptest::prelude::*;

use super::*;
use crate::domain::limits::Rate;

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// The only lane of a gateway.
fn lane(gateway: i64) -> Arc<Lane> {
    lane_of(gateway, gateway, &format!("t{gateway}"))
}

fn lane_of(id: i64, gateway: i64, target: &str) -> Arc<Lane> {
    Arc::new(Lane { id: LaneId(id), gateway: GatewayId(gateway), target: TargetName::parse(target).unwrap() })
}

fn waiting(seq: i64, gateway: i64, due: i64) -> Waiting {
    waiting_in(&lane(gateway), seq, due)
}

fn waiting_in(lane: &Arc<Lane>, seq: i64, due: i64) -> Waiting {
    Waiting { seq: IntentSeq(seq), lane: Arc::clone(lane), due: at(due), attempt_count: 0 }
}

const NOT_CALLED: Ended = Ended::NOT_CALLED;

fn call(took: Duration) -> Call {
    Call { took, answered: true, next_turn: None, hold_until: None }
}

fn called(took: Duration) -> Ended {
    Ended::Called(call(took))
}

impl Schedule {
    /// Over, at the latest moment that the schedule was told.
    fn is_over(&mut self, taken: &Waiting, ended: Ended) {
        self.over(taken, ended, self.now);
    }

    fn is_over_at_once(&mut self, lane: &Arc<Lane>) -> bool {
        self.release_on_insert(lane, NOT_CALLED, self.now)
    }

    /// Lets a gateway answer so many attempts at once, so that it may have as many again.
    fn has_answered(&mut self, lane: &Arc<Lane>, count: usize) {
        (0..count).for_each(|_| self.start(lane, self.now));
        (0..count).for_each(|_| self.end(lane, called(QUICK), self.now));
    }
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
    schedule.has_answered(&lane(1), 16);
    (0..60).for_each(|seq| schedule.merge(waiting(seq, 1, seq)));
    let first = schedule.take_due(at(100));
    assert_eq!(first.len(), 14, "two of the sixteen are reserved");
    schedule.is_over(&first[0], called(Duration::from_millis(50)));
    assert_eq!(schedule.take_due(at(100)).len(), 3, "its own slot, and two ahead");
    for (taken, left) in first[1..].iter().zip([0, 0, 1, 1, 1]) {
        schedule.is_over(taken, called(QUICK));
        assert_eq!(schedule.take_due(at(100)).len(), left, "slow again: what is ahead is not made up for");
    }
}

#[test]
fn a_new_intent_is_begun_at_once_unless_another_is_due_or_no_slot_is_free() {
    let mut schedule = Schedule::new(Limits { capacity: MIN_LANE, ..limits(3, 2) });
    for seq in 0..9 {
        schedule.merge(waiting(seq, 1, 100 + seq));
    }
    let gateway = &lane(1);
    assert!(schedule.take_on_insert(gateway, at(99)), "the others are due later, also those not in memory");
    assert!(!schedule.take_on_insert(gateway, at(100)), "one is due");
    assert!(schedule.take_on_insert(gateway, at(99)));
    assert!(!schedule.take_on_insert(gateway, at(99)), "the gateway is full");
    assert!(schedule.take_on_insert(&lane(2), at(99)));
    assert!(!schedule.take_on_insert(&lane(3), at(99)), "all slots are taken");
    assert!(schedule.take_due(at(100)).is_empty());
    schedule.is_over_at_once(&lane(2));
    assert!(schedule.is_over_at_once(gateway), "one waits for that");
    assert_eq!(seqs(&schedule.take_due(at(100))), [0]);
    schedule.close();
    assert!(!schedule.take_on_insert(&lane(2), at(99)));
    schedule.is_over_at_once(gateway);
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
    schedule.is_over(&first[2], NOT_CALLED);
    assert_eq!(schedule.next_due_in(at(100)), None, "gateway 1 is still full");
    schedule.is_over(&first[0], NOT_CALLED);
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
    schedule.merge(retry.clone());
    assert!(schedule.take_due(at(30)).is_empty(), "not before the attempt before it is over");
    schedule.is_over(&taken[0], NOT_CALLED);
    schedule.merge(waiting(1, 1, 10));
    assert_eq!(schedule.take_due(at(20)), [retry], "the retry was kept although seen before the end");
}

#[test]
fn a_lane_that_was_cut_while_its_page_was_loading_asks_again() {
    let mut schedule = Schedule::new(Limits { in_flight: 10, in_flight_per_gateway: 10, capacity: MIN_LANE });
    schedule.has_answered(&lane(1), 10);
    let page = |from, limit| LanePage { lane: lane(1), from, limit };
    let all: Vec<_> = (0..20).map(|n| waiting(n, 1, 100 + n)).collect();
    schedule.merge_page(&LoadedPage { page: page(Place::START, 8), waiting: all[..8].to_vec() });
    for taken in schedule.take_due(at(104)) {
        schedule.is_over(&taken, NOT_CALLED);
    }
    let wanted = schedule.wanted_pages();
    assert_eq!(wanted, [page(Place { due: at(107), seq: IntentSeq(8) }, 5)]);
    for n in 50..60 {
        schedule.merge(waiting(n, 1, 50));
    }
    schedule.merge_page(&LoadedPage { page: wanted[0].clone(), waiting: all[8..13].to_vec() });
    assert_eq!(schedule.held(), MIN_LANE);
    for taken in schedule.take_due(at(60)) {
        schedule.is_over(&taken, NOT_CALLED);
    }
    assert_eq!(schedule.wanted_pages(), [page(Place { due: at(50), seq: IntentSeq(58) }, 8)]);
}

fn names(names: &[&str]) -> BTreeSet<TargetName> {
    names.iter().map(|name| TargetName::parse(name).unwrap()).collect()
}

fn limited(target: &str, limits: TargetLimits) -> HashMap<TargetName, TargetLimits> {
    HashMap::from([(TargetName::parse(target).unwrap(), limits)])
}

fn rate(per_second: f64) -> TargetLimits {
    TargetLimits { rate: Rate::per_second(per_second), ..TargetLimits::default() }
}

#[test]
fn a_paused_target_waits_and_holds_up_nobody() {
    let mut schedule = Schedule::new(Limits { capacity: MIN_LANE, ..limits(10, 2) });
    let (one, other) = (lane_of(1, 1, "one"), lane_of(2, 1, "other"));
    (0..20).for_each(|seq| schedule.merge(waiting_in(&one, seq, seq)));
    schedule.merge(waiting_in(&other, 50, 50));
    schedule.pause_targets(names(&["one"]));
    assert!(!schedule.take_on_insert(&one, at(60)), "paused");
    let taken = schedule.take_due(at(60));
    assert_eq!(seqs(&taken), [50], "of the same gateway, and due later than all that are paused");
    schedule.is_over(&taken[0], NOT_CALLED);
    assert_eq!(schedule.next_due_in(at(60)), None);
    assert!(schedule.take_on_insert(&other, at(60)));
    schedule.pause_targets(names(&[]));
    assert_eq!(seqs(&schedule.take_due(at(60))), [0], "goes on where it was");
    schedule.pause_target(&one.target);
    schedule.is_over_at_once(&other);
    assert!(schedule.take_due(at(60)).is_empty());
}

#[test]
fn a_target_may_have_fewer_slots_than_its_gateway() {
    let mut schedule = Schedule::new(limits(10, 10));
    let most = TargetLimits { max_in_flight: std::num::NonZeroU32::new(2), ..TargetLimits::default() };
    // Two contracts of one target, and another target, at one gateway.
    let (new, old, other) = (lane_of(1, 1, "t"), lane_of(2, 1, "t"), lane_of(3, 1, "other"));
    schedule.limit_targets(limited("t", most));
    for seq in 0..3 {
        schedule.merge(waiting_in(&new, seq, seq));
        schedule.merge(waiting_in(&old, 10 + seq, 10 + seq));
    }
    schedule.merge(waiting_in(&other, 20, 20));
    let taken = schedule.take_due(at(100));
    assert_eq!(seqs(&taken), [0, 1, 20]);
    assert!(!schedule.take_on_insert(&new, at(0)), "also what comes new");
    schedule.is_over(&taken[0], called(Duration::ZERO));
    let taken = schedule.take_due(at(100));
    assert_eq!(seqs(&taken), [2], "nothing ahead, though the gateway is quick");
    schedule.is_over(&taken[0], NOT_CALLED);
    assert_eq!(seqs(&schedule.take_due(at(100))), [10], "the other contract shares the limit");
    schedule.limit_targets(HashMap::new());
    assert_eq!(seqs(&schedule.take_due(at(100))), [11, 12], "a new registry applies to what waits");
}

#[test]
fn a_rate_spaces_the_starts_of_its_target() {
    let mut schedule = Schedule::new(limits(1000, 1000));
    schedule.limit_targets(limited("t1", rate(10.0)));
    for seq in 0..100 {
        schedule.merge(waiting(seq, 1, 0));
        schedule.merge(waiting(1000 + seq, 2, 0));
    }
    let slow = |taken: Vec<Waiting>| taken.iter().filter(|waiting| waiting.seq.0 < 1000).count();
    assert_eq!(slow(schedule.take_due(at(0))), 1);
    assert_eq!(schedule.next_due_in(at(0)), Some(Duration::from_millis(50)), "a little ahead of its turn");
    let mut started = 1;
    for step in 1..=1000 {
        started += slow(schedule.take_due(at(step * 7_000)));
    }
    assert_eq!(started, 71, "seven seconds, and one at the start");
    let before = schedule.next_due_in(at(7_000_000)).unwrap();
    assert!(!schedule.take_on_insert(&lane(1), at(7_000_000)), "{before:?}: neither does what comes new overtake it");
}

#[test]
fn attempts_that_queue_for_their_turn_hold_back_those_behind_them() {
    let mut schedule = Schedule::new(limits(100, 100));
    schedule.limit_targets(limited("t1", rate(10.0)));
    (0..100).for_each(|seq| schedule.merge(waiting(seq, 1, 0)));
    let first = schedule.take_due(at(0));
    // Others like it are still to leave, until then.
    let late = Call { next_turn: Some(at(1_100_000)), ..call(QUICK) };
    schedule.is_over(&first[0], Ended::Called(late));
    assert!(schedule.take_due(at(1_049_000)).is_empty());
    assert_eq!(schedule.next_due_in(at(1_049_000)), Some(Duration::from_millis(1)));
    assert_eq!(schedule.take_due(at(1_050_000)).len(), 1, "when those have left, ahead of its turn as ever");
}

#[test]
fn a_target_with_a_rate_does_not_starve_behind_the_backlog_of_another() {
    let mut schedule = Schedule::new(limits(4, 4));
    let (rated, other) = (lane_of(1, 1, "rated"), lane_of(2, 1, "other"));
    schedule.limit_targets(limited("rated", rate(10.0)));
    for seq in 0..100 {
        schedule.merge(waiting_in(&rated, seq, seq));
        schedule.merge(waiting_in(&other, 1_000 + seq, 1_000 + seq));
    }
    let mut started = 0;
    for step in 0..100 {
        // Every call takes 100 ms.
        for taken in schedule.take_due(at(1_000_000 + step * 100_000)) {
            started += usize::from(taken.lane == rated);
            schedule.is_over(&taken, called(QUICK));
        }
    }
    assert_eq!(started, 100, "it was due before all others, as often as its rate lets it");
}

#[test]
fn another_rate_holds_from_when_it_is_known() {
    let mut schedule = Schedule::new(limits(10, 10));
    schedule.limit_targets(limited("t1", rate(0.01)));
    (0..9).for_each(|seq| schedule.merge(waiting(seq, 1, 0)));
    assert_eq!(schedule.take_due(at(0)).len(), 1);
    assert!(schedule.take_due(at(1_000_000)).is_empty());
    schedule.limit_targets(limited("t1", rate(100.0)));
    assert!(!schedule.take_due(at(1_000_000)).is_empty());
}

#[test]
fn a_gateway_that_asks_for_it_is_left_alone_and_then_tried_by_one() {
    let mut schedule = Schedule::new(limits(20, 4));
    let (one, two, elsewhere) = (lane_of(1, 1, "one"), lane_of(2, 1, "two"), lane_of(3, 3, "elsewhere"));
    for seq in 0..9 {
        schedule.merge(waiting_in(if seq % 2 == 0 { &one } else { &two }, seq, 0));
    }
    let taken = schedule.take_due(at(0));
    assert_eq!(taken.len(), 4);
    let busy = |until| Ended::Called(Call { hold_until: Some(at(until)), ..call(Duration::ZERO) });
    schedule.is_over(&taken[0], busy(1_000));
    assert_eq!((schedule.gateways_on_hold(at(999)), schedule.gateways_on_hold(at(1_000))), (1, 0));
    schedule.is_over(&taken[1], called(Duration::ZERO));
    schedule.is_over(&taken[2], busy(500));
    assert!(schedule.take_due(at(999)).is_empty(), "not one of either target, and no earlier because of another");
    assert!(schedule.take_on_insert(&elsewhere, at(999)), "other gateways are not concerned");
    assert!(!schedule.take_on_insert(&one, at(999)));
    assert!(schedule.take_due(at(1_000)).is_empty(), "one is still there from before");
    schedule.is_over(&taken[3], called(Duration::ZERO));
    assert_eq!(schedule.gateways_on_hold(at(999)), 1, "the later wish holds");
    let trying = schedule.take_due(at(1_000));
    assert_eq!(trying.len(), 1, "one tries it");
    schedule.is_over(&trying[0], busy(2_000));
    assert_eq!(schedule.next_due_in(at(1_000)), Some(Duration::from_micros(1_000)));
    let trying = schedule.take_due(at(2_000));
    assert_eq!(trying.len(), 1);
    schedule.is_over(&trying[0], NOT_CALLED);
    let trying = schedule.take_due(at(2_000));
    assert_eq!(trying.len(), 1, "that one was not sent, so another has to try");
    schedule.is_over(&trying[0], called(QUICK));
    assert_eq!((schedule.take_due(at(2_000)).len(), schedule.gateways_on_hold(at(0))), (2, 0), "all that are left");
}

#[test]
fn a_turn_of_the_rate_that_was_not_used_is_given_back() {
    let mut schedule = Schedule::new(limits(100, 100));
    schedule.limit_targets(limited("t1", rate(1.0)));
    (0..100).for_each(|seq| schedule.merge(waiting(seq, 1, 0)));
    for _ in 0..50 {
        // Nothing is called: what was first had ended meanwhile.
        let taken = schedule.take_due(at(0));
        assert_eq!(taken.len(), 1);
        schedule.is_over(&taken[0], NOT_CALLED);
    }
    let taken = schedule.take_due(at(0));
    schedule.is_over(&taken[0], called(QUICK));
    assert!(schedule.take_due(at(900_000)).is_empty(), "that one was called");
    assert_eq!(schedule.take_due(at(950_000)).len(), 1);
    // One that queues in the executor says when the next could leave.
    let taken = schedule.take_due(at(1_950_000));
    schedule.is_over(&taken[0], Ended::NotCalled { next_turn: Some(at(9_000_000)) });
    assert!(schedule.take_due(at(8_949_000)).is_empty());
    assert_eq!(schedule.take_due(at(8_950_000)).len(), 1);
}

#[test]
fn what_the_store_has_ended_is_not_started() {
    let mut schedule = Schedule::new(limits(2, 2));
    (0..4).for_each(|seq| schedule.merge(waiting(seq, 1, seq)));
    schedule.forget_ended([IntentSeq(0), IntentSeq(2), IntentSeq(77)]);
    assert_eq!(schedule.held(), 2);
    assert_eq!(seqs(&schedule.take_due(at(100))), [1, 3]);
}

#[test]
fn gateways_take_turns_when_slots_are_few() {
    let mut schedule = Schedule::new(limits(7, 6));
    schedule.has_answered(&lane(1), 6);
    schedule.has_answered(&lane(2), 6);
    (0..20).for_each(|seq| schedule.merge(waiting(seq, 1, seq)));
    (50..60).for_each(|seq| schedule.merge(waiting(seq, 2, seq)));
    let first = schedule.take_due(at(100));
    assert_eq!(seqs(&first), [0, 1, 2, 3, 50, 51, 52], "not the seven that are due first");
    schedule.is_over(&first[0], called(QUICK));
    assert_eq!(seqs(&schedule.take_due(at(100))), [4], "each has three");
    schedule.is_over(&first[1], called(QUICK));
    schedule.is_over(&first[2], called(QUICK));
    assert_eq!(seqs(&schedule.take_due(at(100))), [5, 6], "the first has two, then as many as the other");
}

#[test]
fn a_gateway_gets_more_slots_as_it_answers_and_few_while_it_does_not() {
    let mut schedule = Schedule::new(limits(256, 128));
    (0..2_000).for_each(|seq| schedule.merge(waiting(seq, 1, 0)));
    let second = |n: i64| at(n * 1_000_000);
    let first = schedule.take_due(second(0));
    assert_eq!(first.len(), 112, "half of what is not reserved, before it has ever answered");
    schedule.is_over(&first[0], called(QUICK));
    assert_eq!(schedule.take_due(second(1)).len(), 128 - 111, "as many as a gateway may have");
    // From here on it is silent: what times out is replaced by far fewer.
    for taken in &first[1..] {
        let timed_out = Call { answered: false, ..call(QUICK) };
        schedule.over(taken, Ended::Called(timed_out), second(36));
    }
    assert_eq!(schedule.in_flight(), 17);
    assert_eq!(schedule.take_due(second(36)).len(), 17, "four times that, and a quarter, fit into what is free");
    assert_eq!(schedule.take_due(second(37)).len(), 0);
}

#[test]
fn busy_gateways_that_hang_together_leave_the_reserve_to_those_that_answer() {
    let mut schedule = Schedule::new(limits(256, 128));
    let healthy = lane(3);
    schedule.has_answered(&healthy, 1);
    for gateway in [1, 2] {
        schedule.has_answered(&lane(gateway), 128);
        (0..1_000).for_each(|seq| schedule.merge(waiting(gateway * 10_000 + seq, gateway, 0)));
    }
    assert_eq!(schedule.take_due(at(0)).len(), 224);
    for _ in 0..schedule.limits.few() {
        assert!(schedule.take_on_insert(&healthy, at(1)), "what is reserved is for this one");
    }
    assert!(!schedule.take_on_insert(&healthy, at(1)), "and not only for this one");
    assert!(!schedule.take_on_insert(&lane(4), at(1)), "a gateway that nothing is known of has to wait");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However many gateways hang, whatever waits for them and however long that lasts: an intent of a gateway that
    /// answers starts when it is due, and no gateway is given more than it may have.
    #[test]
    fn hung_gateways_delay_nobody_else(
        in_flight in 8_usize..300,
        hung in 1_i64..400,
        joins in 10_i64..60,
        backlog in 1_i64..20,
        timeout in 2_i64..40,
    ) {
        let per_gateway = (in_flight / 2).max(1);
        let mut schedule = Schedule::new(Limits { capacity: 100_000, ..limits(in_flight, per_gateway) });
        let healthy = lane(-1);
        schedule.has_answered(&healthy, 1);
        let mut under_way: Vec<(i64, Waiting)> = Vec::new();
        for second in 0..50_i64 {
            let now = at(second * 1_000_000);
            // Some more begin to hang each second, each with a backlog that was due long ago.
            for gateway in (second * joins).min(hung)..((second + 1) * joins).min(hung) {
                for number in 0..backlog {
                    schedule.merge(waiting(1_000_000 + gateway * 1_000 + number, gateway, 0));
                }
            }
            let (over, left) = under_way.into_iter().partition(|(since, _)| second - since >= timeout);
            under_way = left;
            for (_, taken) in over {
                schedule.over(&taken, Ended::Called(Call { answered: false, ..call(QUICK) }), now);
                schedule.merge(Waiting { attempt_count: taken.attempt_count + 1, ..taken });
            }
            under_way.extend(schedule.take_due(now).into_iter().map(|taken| (second, taken)));
            prop_assert!(schedule.in_flight() <= in_flight, "{}", schedule.in_flight());
            prop_assert!(schedule.gateways.values().all(|gateway| gateway.in_flight() <= per_gateway));
            schedule.merge(waiting(second, -1, second * 1_000_000));
            let taken = schedule.take_due(now);
            prop_assert_eq!(seqs(&taken), [second], "the healthy one starts at once, and nothing else does");
            schedule.over(&taken[0], called(Duration::from_millis(5)), now);
            prop_assert!(schedule.take_on_insert(&healthy, now), "so does what is new");
            schedule.release_on_insert(&healthy, called(Duration::from_millis(5)), now);
        }
    }

}

proptest! {
    /// A store with more rows than fit into memory, contracts, targets and gateways of every size, rows that
    /// arrive while others run and are reported twice, targets that are paused and resumed, that have a rate or
    /// few slots, gateways that ask to be left alone: each row starts exactly once, and no limit is ever passed.
    #[test]
    fn every_waiting_intent_starts_once(
        rows in prop::collection::vec((0_i64..6, 0_i64..200), 1..300),
        split in 0_usize..300,
        capacity in 1_usize..40,
        in_flight in 1_usize..6,
        per_gateway in 1_usize..4,
        most in 1_u32..3,
        holds in 2_usize..20,
    ) {
        let limits = Limits { in_flight, in_flight_per_gateway: per_gateway, capacity };
        // Lanes 0 and 3 share a target; each gateway has two lanes.
        let lanes: Vec<_> = (0..6).map(|id| lane_of(id, id % 3, ["a", "b", "c", "a", "d", "e"][id as usize])).collect();
        let rows: Vec<_> = rows.iter().enumerate()
            .map(|(seq, (lane, due))| waiting_in(&lanes[*lane as usize], i64::try_from(seq).unwrap(), *due)).collect();
        let (early, late) = rows.split_at(split.min(rows.len()));
        let mut store: BTreeMap<(LaneId, Place), Waiting> = BTreeMap::new();
        let keyed = |row: &Waiting| ((row.lane.id, row.place()), row.clone());
        store.extend(early.iter().map(keyed));
        let load = |store: &BTreeMap<_, Waiting>, page: LanePage| LoadedPage {
            waiting: store.range((page.lane.id, page.from)..)
                .take_while(|((lane, _), _)| *lane == page.lane.id)
                .take(page.limit).map(|(_, row)| row.clone()).collect(),
            page,
        };
        let mut schedule = Schedule::new(limits);
        let most = TargetLimits { max_in_flight: std::num::NonZeroU32::new(most), ..TargetLimits::default() };
        schedule.limit_targets(limited("a", most).into_iter().chain(limited("b", rate(1_000.0))).collect());
        for lane in &lanes {
            schedule.merge_page(&load(&store, LanePage { lane: Arc::clone(lane), from: Place::START, limit: 10 }));
        }
        let mut started = Vec::new();
        let mut under_way: Vec<Waiting> = Vec::new();
        let mut late = late.iter();
        for round in 0..10_000_usize {
            if let Some(row) = late.next() {
                store.extend([keyed(row)]);
                schedule.merge(row.clone());
                schedule.merge(row.clone());
            }
            let paused = if round % 40 < 20 { names(&["d", "a"]) } else { names(&["c"]) };
            schedule.pause_targets(paused.clone());
            let now = at(1_000 + i64::try_from(round).unwrap() * 500);
            let taken = schedule.take_due(now);
            prop_assert!(schedule.in_flight() <= in_flight);
            prop_assert!(schedule.held() <= capacity.max(6 * MIN_LANE) + 6 * MIN_LANE);
            for row in taken {
                prop_assert!(!paused.contains(&row.lane.target), "{:?} is paused", row.lane.target);
                store.remove(&keyed(&row).0);
                started.push(row.seq);
                under_way.push(row.clone());
                let same = |alike: &dyn Fn(&Lane) -> bool| under_way.iter().filter(|other| alike(&other.lane)).count();
                prop_assert!(same(&|lane| lane.gateway == row.lane.gateway) <= per_gateway);
                prop_assert!(same(&|lane| lane.target.as_str() == "a") <= most.max_in_flight.unwrap().get() as usize);
            }
            prop_assert_eq!(schedule.in_flight(), under_way.len());
            if !under_way.is_empty() && round % 3 != 0 {
                let hold_until = (round % holds == 0).then_some(now + Duration::from_millis(2));
                let ended = Ended::Called(Call { hold_until, ..call(QUICK) });
                schedule.is_over(&under_way.swap_remove(round % under_way.len()), ended);
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
