//! What can keep a due attempt from starting: the slots and the hold of its gateway, and the limits of its target.

use std::collections::BTreeSet;
use std::time::Duration;

use super::sharing::Responsiveness;
use super::{AHEAD, Call, Ended, LaneId, LanePosition, Limits, Listed, QUICK};
use crate::domain::limits::{Rate, TargetLimits};
use crate::domain::time::Timestamp;

/// The state that all lanes of one gateway share.
#[derive(Default)]
pub(super) struct GatewayBounds {
    /// Attempts in flight, including those that were started on insert.
    in_flight: usize,
    /// Whether the last call was quick.
    quick: bool,
    responsiveness: Responsiveness,
    hold: Hold,
    /// The first position of every lane whose target allows a start.
    pub heads: BTreeSet<(LanePosition, LaneId)>,
    /// How the gateway is listed among the others.
    pub listed: Listed,
}

/// Whether a gateway is on hold because it sent `Retry-After`. When the time has passed, a single attempt tries the gateway.
/// The others start only when that attempt finished without another `Retry-After`, so that they do not all fail.
#[derive(Clone, Copy, Default)]
enum Hold {
    #[default]
    None,
    /// Nothing starts before this moment, and then one attempt.
    Until(Timestamp),
    /// That one attempt is in flight. The hold lasted until this moment.
    Trying(Timestamp),
}

impl GatewayBounds {
    /// Whether the gateway's own limit allows another attempt.
    pub(super) fn has_slot(&self, limits: &Limits) -> bool {
        let ahead = if self.quick { limits.in_flight_per_gateway / AHEAD } else { 0 };
        match self.hold {
            Hold::None => self.in_flight < limits.in_flight_per_gateway + ahead,
            Hold::Until(_) => self.in_flight == 0,
            Hold::Trying(_) => false,
        }
    }

    /// The end of the hold, if the gateway is on hold.
    pub(super) fn not_before(&self) -> Option<Timestamp> {
        match self.hold {
            Hold::None => None,
            Hold::Until(moment) | Hold::Trying(moment) => Some(moment),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether this gateway may take one of the slots that all gateways share, while `all` attempts are in flight.
    pub(super) fn may_start(&self, all: usize, limits: &Limits, now: Timestamp) -> bool {
        let ahead = if self.quick { limits.in_flight / AHEAD } else { 0 };
        self.responsiveness.may_start(self.in_flight, all, ahead, limits, now)
    }

    /// Takes a slot.
    pub(super) fn start(&mut self, now: Timestamp) {
        self.in_flight += 1;
        self.responsiveness.started(now);
        if let Hold::Until(moment) = self.hold {
            self.hold = Hold::Trying(moment);
        }
    }

    /// Releases a slot, and learns from the call how the gateway responds.
    pub(super) fn end(&mut self, ended: Ended, now: Timestamp) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match ended {
            Ended::Called(call) => {
                self.quick = call.took < QUICK;
                self.responsiveness.ended(call.answered, call.took, self.in_flight, now);
                self.hold = self.hold.after(call);
            }
            Ended::NotCalled { .. } => {
                self.responsiveness.idle_if_none(self.in_flight);
                if let Hold::Trying(moment) = self.hold {
                    self.hold = Hold::Until(moment);
                }
            }
        }
    }
}

impl Hold {
    /// The hold after a call.
    fn after(self, call: Call) -> Self {
        match (self, call.hold_until) {
            (Self::Until(before), Some(moment)) => Self::Until(moment.max(before)),
            (_, Some(moment)) => Self::Until(moment),
            (Self::Trying(_), None) => Self::None,
            (hold, None) => hold,
        }
    }
}

/// The state that all lanes of one target share.
pub(super) struct TargetBounds {
    pub limits: TargetLimits,
    in_flight: usize,
    /// When the rate of the target allows the next start.
    next_start: Option<Timestamp>,
    pub lanes: BTreeSet<LaneId>,
}

/// Attempts of a target with a rate are started this much before the rate allows their call, because timers are late. The
/// rate limiter of the executor makes them wait for the exact moment.
const EARLY_START: Duration = Duration::from_millis(50);

impl TargetBounds {
    pub(super) fn new(limits: TargetLimits) -> Self {
        Self { limits, in_flight: 0, next_start: None, lanes: BTreeSet::new() }
    }

    /// Whether the target's `maxInFlight` allows another attempt.
    pub(super) fn has_slot(&self) -> bool {
        self.limits.max_in_flight.is_none_or(|most| self.in_flight < most.get() as usize)
    }

    /// How many more attempts the target's limits allow now. With a rate, it is one at a time.
    pub(super) fn free_slots(&self) -> usize {
        let most = self.limits.max_in_flight.map_or(usize::MAX, |most| most.get() as usize);
        let free = most.saturating_sub(self.in_flight);
        if self.limits.rate.is_some() { free.min(1) } else { free }
    }

    /// When the rate of the target allows the next start, if it has a rate.
    pub(super) fn not_before(&self) -> Option<Timestamp> {
        self.next_start.filter(|_| self.limits.rate.is_some())
    }

    /// Takes a slot, and a turn of the rate.
    pub(super) fn start(&mut self, now: Timestamp) {
        self.in_flight += 1;
        if let Some(rate) = self.limits.rate {
            let earliest = now - EARLY_START;
            let start = self.next_start.map_or(earliest, |start| start.max(earliest));
            self.next_start = Some(start + rate.interval());
        }
    }

    /// Releases a slot. If nothing was called, also gives the turn of the rate back.
    pub(super) fn end(&mut self, ended: Ended) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let next_turn = match ended {
            Ended::Called(call) => call.next_turn,
            Ended::NotCalled { next_turn } => {
                // Nothing was called, so the next attempt can use this turn.
                let interval = self.limits.rate.map(Rate::interval).unwrap_or_default();
                self.next_start = self.next_start.map(|start| start - interval);
                next_turn
            }
        };
        // Attempts that already wait in the rate limiter go first.
        if let Some(moment) = next_turn {
            self.next_start = self.next_start.max(Some(moment - EARLY_START));
        }
    }

    /// Sets the limits of the target.
    pub(super) fn limit(&mut self, limits: TargetLimits) {
        if limits.rate != self.limits.rate {
            self.next_start = None;
        }
        self.limits = limits;
    }
}
