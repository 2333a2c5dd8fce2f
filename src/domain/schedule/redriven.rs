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
            if gateway.not_before().is_some() || !gateway.may_start(self.in_flight(), &self.limits, now) {
                return 0;
            }
            of_gateway = of_gateway.saturating_sub(gateway.in_flight());
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
