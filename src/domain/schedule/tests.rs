//! Tests of the schedule: what starts when and within which limits; and, with random histories, that no intent is lost or
//! started twice.

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
    /// Finishes an attempt at the latest time that the schedule was given.
    fn finish_now(&mut self, taken: &Waiting, ended: Ended) {
        self.finish(taken, ended, self.now);
    }

    fn finish_on_insert_now(&mut self, lane: &Arc<Lane>) -> bool {
        self.release_on_insert(lane, NOT_CALLED, self.now)
    }

    /// Lets a gateway respond to `count` attempts that are in flight together, so that its window is at least twice that.
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
fn a_quick_gateway_gets_a_few_attempts_started_ahead() {
    let mut schedule = Schedule::new(limits(16, 16));
    schedule.has_answered(&lane(1), 16);
    (0..60).for_each(|seq| schedule.merge(waiting(seq, 1, seq)));
    let first = schedule.take_due(at(100));
    assert_eq!(first.len(), 14, "two of the sixteen are reserved");
    schedule.finish_now(&first[0], called(Duration::from_millis(50)));
    assert_eq!(schedule.take_due(at(100)).len(), 3, "the released slot, and two ahead");
    for (taken, left) in first[1..].iter().zip([0, 0, 1, 1, 1]) {
        schedule.finish_now(taken, called(QUICK));
        assert_eq!(schedule.take_due(at(100)).len(), left, "slow again: nothing is started ahead");
    }
}

#[test]
fn a_new_intent_starts_on_insert_unless_another_is_due_or_no_slot_is_free() {
    let mut schedule = Schedule::new(Limits { capacity: MIN_LANE, ..limits(3, 2) });
    schedule.has_answered(&lane(1), 2);
    for seq in 0..9 {
        schedule.merge(waiting(seq, 1, 100 + seq));
    }
    let gateway = &lane(1);
    assert!(
        schedule.take_on_insert(gateway, at(99)),
        "the others are due later, including those that are not in memory"
    );
    assert!(!schedule.take_on_insert(gateway, at(100)), "one is due");
    assert!(schedule.take_on_insert(gateway, at(99)));
    assert!(!schedule.take_on_insert(gateway, at(99)), "the gateway is full");
    assert!(schedule.take_on_insert(&lane(2), at(99)));
    assert!(!schedule.take_on_insert(&lane(3), at(99)), "all slots are taken");
    assert!(schedule.take_due(at(100)).is_empty());
    schedule.finish_on_insert_now(&lane(2));
    assert!(schedule.finish_on_insert_now(gateway), "one waits for the slot");
    assert_eq!(seqs(&schedule.take_due(at(100))), [0]);
    schedule.close();
    assert!(!schedule.take_on_insert(&lane(2), at(99)));
    schedule.finish_on_insert_now(gateway);
    assert!(schedule.take_due(at(200)).is_empty());
}

#[test]
fn a_full_gateway_does_not_hold_up_others() {
    let mut schedule = Schedule::new(limits(3, 2));
    schedule.has_answered(&lane(1), 2);
    for seq in 1..=5 {
        schedule.merge(waiting(seq, 1, seq));
    }
    schedule.merge(waiting(6, 2, 100));
    let first = schedule.take_due(at(100));
    assert_eq!(seqs(&first), [1, 2, 6], "two for gateway 1, then gateway 2");
    assert_eq!(schedule.next_due_in(at(100)), None, "all slots are taken");
    schedule.finish_now(&first[2], NOT_CALLED);
    assert_eq!(schedule.next_due_in(at(100)), None, "gateway 1 is still full");
    schedule.finish_now(&first[0], NOT_CALLED);
    assert_eq!(seqs(&schedule.take_due(at(100))), [3]);
}

#[test]
fn an_intent_that_is_read_twice_starts_once_and_a_later_state_replaces_an_earlier_one() {
    let mut schedule = Schedule::new(limits(10, 10));
    schedule.merge(waiting(1, 1, 10));
    schedule.merge(waiting(1, 1, 10));
    let taken = schedule.take_due(at(10));
    assert_eq!(taken.len(), 1);
    schedule.merge(waiting(1, 1, 10));
    assert!(schedule.take_due(at(10)).is_empty(), "a stale read of a started intent");
    let retry = Waiting { attempt_count: 1, ..waiting(1, 1, 20) };
    schedule.merge(retry.clone());
    assert!(schedule.take_due(at(30)).is_empty(), "not before the previous attempt is finished");
    schedule.finish_now(&taken[0], NOT_CALLED);
    schedule.merge(waiting(1, 1, 10));
    assert_eq!(
        schedule.take_due(at(20)),
        [retry],
        "the retry was kept although it was read before the previous attempt finished"
    );
}

#[test]
fn a_lane_that_was_shortened_while_its_page_was_loading_asks_again() {
    let mut schedule = Schedule::new(Limits { in_flight: 10, in_flight_per_gateway: 10, capacity: MIN_LANE });
    schedule.has_answered(&lane(1), 10);
    let page = |from, limit| LanePage { lane: lane(1), from, limit };
    let all: Vec<_> = (0..20).map(|n| waiting(n, 1, 100 + n)).collect();
    schedule.merge_page(&LoadedPage { page: page(LanePosition::START, 8), waiting: all[..8].to_vec() });
    for taken in schedule.take_due(at(104)) {
        schedule.finish_now(&taken, NOT_CALLED);
    }
    let wanted = schedule.wanted_pages();
    assert_eq!(wanted, [page(LanePosition { due: at(107), seq: IntentSeq(8) }, 5)]);
    for n in 50..60 {
        schedule.merge(waiting(n, 1, 50));
    }
    schedule.merge_page(&LoadedPage { page: wanted[0].clone(), waiting: all[8..13].to_vec() });
    assert_eq!(schedule.held(), MIN_LANE);
    for taken in schedule.take_due(at(60)) {
        schedule.finish_now(&taken, NOT_CALLED);
    }
    assert_eq!(schedule.wanted_pages(), [page(LanePosition { due: at(50), seq: IntentSeq(58) }, 8)]);
}

fn names(names: &[&str]) -> BTreeSet<TargetName> {
    names.iter().map(|name| TargetName::parse(name).unwrap()).collect()
}

/// The store has an intent that is held back due as before, and does not show it again.
#[test]
fn an_intent_that_is_held_back_is_not_lost_when_its_lane_is_cut_short() {
    let mut schedule = Schedule::new(Limits { in_flight: 8, in_flight_per_gateway: 1, capacity: 1 });
    let waiting = |seq: i64| Waiting { seq: IntentSeq(seq), lane: lane(1), due: at(seq), attempt_count: 0 };
    (1..=2 * MIN_LANE as i64).for_each(|seq| schedule.merge(waiting(seq)));
    let taken = schedule.take_due(at(100));
    assert_eq!(taken.iter().map(|taken| taken.seq.0).collect::<Vec<_>>(), [1]);
    schedule.finish(&taken[0], Ended::NOT_CALLED, at(100));
    schedule.hold_back(taken[0].clone(), at(1_000));
    schedule.merge(taken[0].clone());
    let mut started = Vec::new();
    let mut start_all = |schedule: &mut Schedule, now: i64| loop {
        let due = schedule.take_due(at(now));
        if due.is_empty() {
            return started.clone();
        }
        for waiting in due {
            schedule.finish(&waiting, Ended::NOT_CALLED, at(now));
            started.push(waiting.seq.0);
        }
    };
    assert!(!start_all(&mut schedule, 999).contains(&1), "it is left alone");
    assert!(schedule.next_due_in(at(999)).is_some(), "somebody comes back for it");
    assert!(start_all(&mut schedule, 1_000).contains(&1), "and is tried again then");
    assert_eq!(schedule.held(), 0);
}

fn limited(target: &str, limits: TargetLimits) -> HashMap<TargetName, TargetLimits> {
    HashMap::from([(TargetName::parse(target).unwrap(), limits)])
}

fn rate(per_second: f64) -> TargetLimits {
    TargetLimits { rate: Rate::per_second(per_second), ..TargetLimits::default() }
}

#[test]
fn a_paused_target_waits_and_delays_no_other_target() {
    let mut schedule = Schedule::new(Limits { capacity: MIN_LANE, ..limits(10, 2) });
    let (one, other) = (lane_of(1, 1, "one"), lane_of(2, 1, "other"));
    (0..20).for_each(|seq| schedule.merge(waiting_in(&one, seq, seq)));
    schedule.merge(waiting_in(&other, 50, 50));
    schedule.pause_targets(names(&["one"]));
    assert!(!schedule.take_on_insert(&one, at(60)), "paused");
    let taken = schedule.take_due(at(60));
    assert_eq!(seqs(&taken), [50], "an intent of the same gateway that is due later than all paused ones");
    schedule.finish_now(&taken[0], NOT_CALLED);
    assert_eq!(schedule.next_due_in(at(60)), None);
    assert!(schedule.take_on_insert(&other, at(60)));
    schedule.pause_targets(names(&[]));
    assert_eq!(seqs(&schedule.take_due(at(60))), [0], "continues with the first intent");
    schedule.pause_target(&one.target);
    schedule.finish_on_insert_now(&other);
    assert!(schedule.take_due(at(60)).is_empty());
}

#[test]
fn a_target_can_have_fewer_slots_than_its_gateway() {
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
    assert!(!schedule.take_on_insert(&new, at(0)), "the limit also applies to new intents");
    schedule.finish_now(&taken[0], called(Duration::ZERO));
    let taken = schedule.take_due(at(100));
    assert_eq!(seqs(&taken), [2], "nothing is started ahead, although the gateway is quick");
    schedule.finish_now(&taken[0], NOT_CALLED);
    assert_eq!(seqs(&schedule.take_due(at(100))), [10], "the other contract shares the limit");
    schedule.limit_targets(HashMap::new());
    assert_eq!(seqs(&schedule.take_due(at(100))), [11, 12], "a new registry applies to waiting intents");
}

#[test]
fn a_rate_spaces_the_starts_of_its_target() {
    let mut schedule = Schedule::new(limits(2000, 2000));
    schedule.limit_targets(limited("t1", rate(10.0)));
    for seq in 0..100 {
        schedule.merge(waiting(seq, 1, 0));
        schedule.merge(waiting(1000 + seq, 2, 0));
    }
    let slow = |taken: Vec<Waiting>| taken.iter().filter(|waiting| waiting.seq.0 < 1000).count();
    assert_eq!(slow(schedule.take_due(at(0))), 1);
    assert_eq!(
        schedule.next_due_in(at(0)),
        Some(Duration::from_millis(50)),
        "a little before the rate allows the call"
    );
    let mut started = 1;
    for step in 1..=1000 {
        started += slow(schedule.take_due(at(step * 7_000)));
    }
    assert_eq!(started, 71, "seven seconds, and one at the start");
    let before = schedule.next_due_in(at(7_000_000)).unwrap();
    assert!(!schedule.take_on_insert(&lane(1), at(7_000_000)), "{before:?}: a new intent does not overtake");
}

#[test]
fn attempts_that_wait_in_the_rate_limiter_delay_later_ones() {
    let mut schedule = Schedule::new(limits(100, 100));
    schedule.limit_targets(limited("t1", rate(10.0)));
    (0..100).for_each(|seq| schedule.merge(waiting(seq, 1, 0)));
    let first = schedule.take_due(at(0));
    // Until then, the rate limiter is busy with other attempts of the target.
    let late = Call { next_turn: Some(at(1_100_000)), ..call(QUICK) };
    schedule.finish_now(&first[0], Ended::Called(late));
    assert!(schedule.take_due(at(1_049_000)).is_empty());
    assert_eq!(schedule.next_due_in(at(1_049_000)), Some(Duration::from_millis(1)));
    assert_eq!(
        schedule.take_due(at(1_050_000)).len(),
        1,
        "when those have left, and a little before the rate allows the call"
    );
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
            schedule.finish_now(&taken, called(QUICK));
        }
    }
    assert_eq!(started, 100, "it was due before all others, so it starts as often as its rate allows");
}

#[test]
fn a_changed_rate_applies_immediately() {
    let mut schedule = Schedule::new(limits(10, 10));
    schedule.limit_targets(limited("t1", rate(0.01)));
    (0..9).for_each(|seq| schedule.merge(waiting(seq, 1, 0)));
    assert_eq!(schedule.take_due(at(0)).len(), 1);
    assert!(schedule.take_due(at(1_000_000)).is_empty());
    schedule.limit_targets(limited("t1", rate(100.0)));
    assert!(!schedule.take_due(at(1_000_000)).is_empty());
}

#[test]
fn a_gateway_on_hold_is_not_called_and_then_tried_by_one_attempt() {
    let mut schedule = Schedule::new(limits(20, 4));
    let (one, two, elsewhere) = (lane_of(1, 1, "one"), lane_of(2, 1, "two"), lane_of(3, 3, "elsewhere"));
    for seq in 0..9 {
        schedule.merge(waiting_in(if seq % 2 == 0 { &one } else { &two }, seq, 0));
    }
    let taken = schedule.take_due(at(0));
    assert_eq!(taken.len(), 4);
    let busy = |until| Ended::Called(Call { hold_until: Some(at(until)), ..call(Duration::ZERO) });
    schedule.finish_now(&taken[0], busy(1_000));
    assert_eq!(schedule.gateways_on_hold(at(999)), [(GatewayId(1), at(1_000))]);
    assert_eq!(schedule.gateways_on_hold(at(1_000)), []);
    schedule.finish_now(&taken[1], called(Duration::ZERO));
    schedule.finish_now(&taken[2], busy(500));
    assert!(
        schedule.take_due(at(999)).is_empty(),
        "no intent of either target, and the shorter hold does not replace the longer one"
    );
    assert!(schedule.take_on_insert(&elsewhere, at(999)), "other gateways are not affected");
    assert!(!schedule.take_on_insert(&one, at(999)));
    assert!(schedule.take_due(at(1_000)).is_empty(), "an earlier attempt is still in flight");
    schedule.finish_now(&taken[3], called(Duration::ZERO));
    assert_eq!(schedule.gateways_on_hold(at(999)).len(), 1, "the longer hold applies");
    let trying = schedule.take_due(at(1_000));
    assert_eq!(trying.len(), 1, "one attempt tries the gateway");
    schedule.finish_now(&trying[0], busy(2_000));
    assert_eq!(schedule.next_due_in(at(1_000)), Some(Duration::from_micros(1_000)));
    let trying = schedule.take_due(at(2_000));
    assert_eq!(trying.len(), 1);
    schedule.finish_now(&trying[0], NOT_CALLED);
    let trying = schedule.take_due(at(2_000));
    assert_eq!(trying.len(), 1, "that one was not sent, so another one tries");
    schedule.finish_now(&trying[0], called(QUICK));
    assert_eq!(
        (schedule.take_due(at(2_000)).len(), schedule.gateways_on_hold(at(0)).len()),
        (2, 0),
        "all that are left"
    );
}

#[test]
fn a_turn_of_the_rate_that_was_not_used_is_given_back() {
    let mut schedule = Schedule::new(limits(100, 100));
    schedule.limit_targets(limited("t1", rate(1.0)));
    (0..100).for_each(|seq| schedule.merge(waiting(seq, 1, 0)));
    for _ in 0..50 {
        // Nothing is called, because the intent had ended meanwhile.
        let taken = schedule.take_due(at(0));
        assert_eq!(taken.len(), 1);
        schedule.finish_now(&taken[0], NOT_CALLED);
    }
    let taken = schedule.take_due(at(0));
    schedule.finish_now(&taken[0], called(QUICK));
    assert!(schedule.take_due(at(900_000)).is_empty(), "that one was called");
    assert_eq!(schedule.take_due(at(950_000)).len(), 1);
    // An attempt that waited in the rate limiter reports when the next call is allowed.
    let taken = schedule.take_due(at(1_950_000));
    schedule.finish_now(&taken[0], Ended::NotCalled { next_turn: Some(at(9_000_000)) });
    assert!(schedule.take_due(at(8_949_000)).is_empty());
    assert_eq!(schedule.take_due(at(8_950_000)).len(), 1);
}

#[test]
fn an_intent_that_ended_in_the_store_is_not_started() {
    let mut schedule = Schedule::new(limits(2, 2));
    schedule.has_answered(&lane(1), 2);
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
    schedule.finish_now(&first[0], called(QUICK));
    assert_eq!(seqs(&schedule.take_due(at(100))), [4], "each has three");
    schedule.finish_now(&first[1], called(QUICK));
    schedule.finish_now(&first[2], called(QUICK));
    assert_eq!(seqs(&schedule.take_due(at(100))), [5, 6], "the first has two, then as many as the other");
}

#[test]
fn a_gateway_gets_more_slots_while_it_responds_and_few_while_it_does_not() {
    let mut schedule = Schedule::new(limits(256, 128));
    (0..2_000).for_each(|seq| schedule.merge(waiting(seq, 1, 0)));
    let second = |n: i64| at(n * 1_000_000);
    let first = schedule.take_due(second(0));
    assert_eq!(
        first.len(),
        56,
        "half of the shared slots stay free, and as many as it takes, before it has ever responded"
    );
    schedule.finish_now(&first[0], called(QUICK));
    let more = schedule.take_due(second(1));
    assert_eq!(more.len(), 112 - 55, "twice as many as were in flight when it responded");
    // From here on it does not respond: calls that time out are replaced by far fewer.
    for taken in first[1..].iter().chain(&more[..40]) {
        let timed_out = Call { answered: false, ..call(QUICK) };
        schedule.finish(taken, Ended::Called(timed_out), second(36));
    }
    assert_eq!(schedule.in_flight(), 17);
    assert_eq!(
        schedule.take_due(second(36)).len(),
        6,
        "four times that, and half of the shared slots, are less than are left"
    );
    assert_eq!(schedule.take_due(second(37)).len(), 0);
}

#[test]
fn busy_gateways_that_hang_together_leave_the_reserve_to_gateways_that_respond() {
    let mut schedule = Schedule::new(limits(256, 128));
    let healthy = lane(3);
    schedule.has_answered(&healthy, 1);
    for gateway in [1, 2] {
        schedule.has_answered(&lane(gateway), 128);
        (0..1_000).for_each(|seq| schedule.merge(waiting(gateway * 10_000 + seq, gateway, 0)));
    }
    assert_eq!(schedule.take_due(at(0)).len(), 224);
    for _ in 0..schedule.limits.few() {
        assert!(schedule.take_on_insert(&healthy, at(1)), "it can use the reserve");
    }
    assert!(!schedule.take_on_insert(&healthy, at(1)), "but not all of the reserve");
    assert!(!schedule.take_on_insert(&lane(4), at(1)), "a gateway that was never called cannot use the reserve");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However many gateways hang, how many intents wait for them and how long they hang: an intent of a gateway that
    /// responds starts when it is due, and no limit is exceeded. Unless more gateways hang than half of the shared slots, the
    /// same is true for the first intent of a gateway that was never called.
    #[test]
    fn hung_gateways_do_not_delay_others(
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
        let mut in_flight_now: Vec<(i64, Waiting)> = Vec::new();
        for second in 0..50_i64 {
            let now = at(second * 1_000_000);
            // Each second some more gateways hang, each with a backlog that was due long ago.
            for gateway in (second * joins).min(hung)..((second + 1) * joins).min(hung) {
                for number in 0..backlog {
                    schedule.merge(waiting(1_000_000 + gateway * 1_000 + number, gateway, 0));
                }
            }
            let (over, left) = in_flight_now.into_iter().partition(|(since, _)| second - since >= timeout);
            in_flight_now = left;
            for (_, taken) in over {
                schedule.finish(&taken, Ended::Called(Call { answered: false, ..call(QUICK) }), now);
                schedule.merge(Waiting { attempt_count: taken.attempt_count + 1, ..taken });
            }
            in_flight_now.extend(schedule.take_due(now).into_iter().map(|taken| (second, taken)));
            prop_assert!(schedule.in_flight() <= in_flight, "{}", schedule.in_flight());
            prop_assert!(schedule.gateways.values().all(|gateway| gateway.in_flight() <= per_gateway));
            schedule.merge(waiting(second, -1, second * 1_000_000));
            let taken = schedule.take_due(now);
            prop_assert_eq!(seqs(&taken), [second], "only the intent of the healthy gateway starts");
            schedule.finish(&taken[0], called(Duration::from_millis(5)), now);
            prop_assert!(schedule.take_on_insert(&healthy, now), "a new intent starts on insert");
            schedule.release_on_insert(&healthy, called(Duration::from_millis(5)), now);
            if hung <= i64::try_from((in_flight - in_flight / 8) / 2).unwrap() {
                let new = lane(-2 - second);
                prop_assert!(schedule.take_on_insert(&new, now), "the first intent of a gateway starts on insert");
                schedule.release_on_insert(&new, called(Duration::from_millis(5)), now);
            }
        }
    }

}

proptest! {
    /// The store has more intents than fit into memory, in several lanes, targets and gateways. Some are added while others
    /// run, and each of those is merged twice. Targets are paused and resumed, and have a rate or few slots; gateways go on
    /// hold. Each intent starts exactly once, and no limit is ever exceeded.
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
        let mut store: BTreeMap<(LaneId, LanePosition), Waiting> = BTreeMap::new();
        let keyed = |row: &Waiting| ((row.lane.id, row.position()), row.clone());
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
            schedule.merge_page(&load(&store, LanePage { lane: Arc::clone(lane), from: LanePosition::START, limit: 10 }));
        }
        let mut started = Vec::new();
        let mut in_flight_now: Vec<Waiting> = Vec::new();
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
                in_flight_now.push(row.clone());
                let same = |alike: &dyn Fn(&Lane) -> bool| in_flight_now.iter().filter(|other| alike(&other.lane)).count();
                prop_assert!(same(&|lane| lane.gateway == row.lane.gateway) <= per_gateway);
                prop_assert!(same(&|lane| lane.target.as_str() == "a") <= most.max_in_flight.unwrap().get() as usize);
            }
            prop_assert_eq!(schedule.in_flight(), in_flight_now.len());
            if !in_flight_now.is_empty() && round % 3 != 0 {
                let hold_until = (round % holds == 0).then_some(now + Duration::from_millis(2));
                let ended = Ended::Called(Call { hold_until, ..call(QUICK) });
                schedule.finish_now(&in_flight_now.swap_remove(round % in_flight_now.len()), ended);
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
