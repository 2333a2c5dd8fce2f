//! How many redriven intents may be created now without delaying new intents.

use super::{Lane, Queue, Schedule};
use crate::domain::time::Timestamp;

impl Schedule {
    /// How many redriven intents of this lane could start at once. None can while an intent of its gateway that is due waits
    /// for a slot, or while one of its target at this gateway waits for whatever reason.
    pub fn room_for_redriven(&self, lane: &Lane, now: Timestamp) -> usize {
        if self.closed || self.paused.contains(&lane.target) || self.is_due(lane, now) {
            return 0;
        }
        let mut room = self.limits.in_flight.saturating_sub(self.in_flight());
        let mut of_gateway = self.limits.in_flight_per_gateway;
        if let Some(gateway) = self.gateways.get(&lane.gateway) {
            let hold = gateway.not_before();
            let is_held = hold.is_some_and(|until| until > now);
            if is_held || !gateway.may_start(self.in_flight(), &self.limits, now) {
                return 0;
            }
            of_gateway = match hold {
                // The hold is over, and a single attempt tries the gateway. A redriven intent may be that attempt: there may
                // be no other.
                Some(_) => usize::from(gateway.has_slot(&self.limits)),
                None => of_gateway.saturating_sub(gateway.in_flight()),
            };
        }
        room = room.min(of_gateway);
        match self.targets.get(&lane.target) {
            Some(target) if target.not_before().is_some_and(|moment| moment > now) => 0,
            Some(target) => room.min(target.free_slots()),
            None => self.target_limits.get(&lane.target).map_or(room, |limits| {
                let most = limits.max_in_flight.map_or(room, |most| most.get() as usize);
                room.min(if limits.rate.is_some() { 1 } else { most })
            }),
        }
    }

    /// Whether an intent is due and waits at the gateway of this lane.
    fn is_due(&self, lane: &Lane, now: Timestamp) -> bool {
        let mut heads = self.gateways.get(&lane.gateway).into_iter().filter_map(|gateway| gateway.heads.first());
        let is_due = |queue: &Queue| {
            let first = queue.waiting.first_key_value().map(|(position, _)| position.due);
            first.is_some_and(|due| due <= now) || queue.unknown_from.is_some_and(|position| position.due <= now)
        };
        let lanes = self.targets.get(&lane.target).into_iter().flat_map(|target| &target.lanes);
        let mut queues = lanes.filter_map(|lane| self.queues.get(lane));
        heads.any(|(position, _)| position.due <= now)
            || queues.any(|queue| queue.lane.gateway == lane.gateway && is_due(queue))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::{Call, Ended, GatewayId, LaneId, Limits};
    use super::*;
    use crate::domain::intent::TargetName;

    #[test]
    fn after_the_hold_of_a_gateway_one_redriven_intent_may_try_it() {
        let at = Timestamp::from_micros;
        let target = TargetName::parse("t").unwrap();
        let lane = Arc::new(Lane { id: LaneId(1), gateway: GatewayId(1), target });
        let mut schedule = Schedule::new(Limits { in_flight: 10, in_flight_per_gateway: 10, capacity: 10 });
        assert_eq!(schedule.room_for_redriven(&lane, at(0)), 10);
        schedule.start(&lane, at(0));
        let hold =
            |until| Ended::Called(Call { took: Duration::ZERO, answered: true, next_turn: None, hold_until: until });
        schedule.end(&lane, hold(Some(at(1_000))), at(0));
        assert_eq!(schedule.room_for_redriven(&lane, at(999)), 0, "on hold");
        assert_eq!(schedule.room_for_redriven(&lane, at(1_000)), 1, "no other intent may come");
        schedule.start(&lane, at(1_000));
        assert_eq!(schedule.room_for_redriven(&lane, at(1_000)), 0, "one attempt tries the gateway");
        schedule.end(&lane, hold(None), at(1_000));
        assert_eq!(schedule.room_for_redriven(&lane, at(1_000)), 10);
    }
}
