//! What keeps attempts from starting though they are due: a gateway's slots and its wish to be left alone, a
//! target's own limits.

use std::collections::BTreeSet;
use std::time::Duration;

use super::sharing::Responsiveness;
use super::{AHEAD, Call, Ended, LaneId, Limits, Listed, Place, QUICK};
use crate::domain::limits::{Rate, TargetLimits};
use crate::domain::time::Timestamp;

/// What all lanes of one gateway share.
#[derive(Default)]
pub struct GatewayBounds {
    /// Both kinds: taken from a lane, and begun at once.
    in_flight: usize,
    /// The last call was quick.
    quick: bool,
    responsiveness: Responsiveness,
    hold: Hold,
    /// First place of every lane whose target lets it start.
    pub heads: BTreeSet<(Place, LaneId)>,
    /// How the gateway stands among others.
    pub listed: Listed,
}

/// A gateway that said when it wants to be asked again. After that one attempt tries it; only when that has ended
/// without another such wish do the others follow, so that a crowd does not spend its attempts on finding out.
#[derive(Clone, Copy, Default)]
enum Hold {
    #[default]
    None,
    Until(Timestamp),
    /// One attempt is under way, and had to wait until then.
    Trying(Timestamp),
}

impl GatewayBounds {
    pub fn has_slot(&self, limits: &Limits) -> bool {
        let ahead = if self.quick { limits.in_flight_per_gateway / AHEAD } else { 0 };
        match self.hold {
            Hold::None => self.in_flight < limits.in_flight_per_gateway + ahead,
            Hold::Until(_) => self.in_flight == 0,
            Hold::Trying(_) => false,
        }
    }

    /// When it may be asked again, if it wanted to be left alone.
    pub fn not_before(&self) -> Option<Timestamp> {
        match self.hold {
            Hold::None => None,
            Hold::Until(moment) | Hold::Trying(moment) => Some(moment),
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether the slots that all gateways share have one for this gateway, of `all` attempts in flight.
    pub fn may_start(&self, all: usize, limits: &Limits, now: Timestamp) -> bool {
        let ahead = if self.quick { limits.in_flight / AHEAD } else { 0 };
        self.responsiveness.may_start(self.in_flight, all, ahead, limits, now)
    }

    pub fn start(&mut self, now: Timestamp) {
        self.in_flight += 1;
        self.responsiveness.started(now);
        if let Hold::Until(moment) = self.hold {
            self.hold = Hold::Trying(moment);
        }
    }

    pub fn end(&mut self, ended: Ended, now: Timestamp) {
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
    /// What holds after a call.
    fn after(self, call: Call) -> Self {
        match (self, call.hold_until) {
            (Self::Until(before), Some(moment)) => Self::Until(moment.max(before)),
            (_, Some(moment)) => Self::Until(moment),
            (Self::Trying(_), None) => Self::None,
            (hold, None) => hold,
        }
    }
}

/// What all lanes of one target share.
pub struct TargetBounds {
    pub limits: TargetLimits,
    in_flight: usize,
    /// When the next may start by the target's rate.
    next_start: Option<Timestamp>,
    pub lanes: BTreeSet<LaneId>,
}

/// Attempts are handed out this much before their turn, because a timer is never on time; the executor
/// makes them wait for it.
const AHEAD_OF_TURN: Duration = Duration::from_millis(50);

impl TargetBounds {
    pub fn new(limits: TargetLimits) -> Self {
        Self { limits, in_flight: 0, next_start: None, lanes: BTreeSet::new() }
    }

    pub fn has_slot(&self) -> bool {
        self.limits.max_in_flight.is_none_or(|most| self.in_flight < most.get() as usize)
    }

    pub fn not_before(&self) -> Option<Timestamp> {
        self.next_start.filter(|_| self.limits.rate.is_some())
    }

    pub fn start(&mut self, now: Timestamp) {
        self.in_flight += 1;
        if let Some(rate) = self.limits.rate {
            let lagging = now - AHEAD_OF_TURN;
            let turn = self.next_start.map_or(lagging, |start| start.max(lagging));
            self.next_start = Some(turn + rate.interval());
        }
    }

    pub fn end(&mut self, ended: Ended) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let next_turn = match ended {
            Ended::Called(call) => call.next_turn,
            Ended::NotCalled { next_turn } => {
                // Nothing was called, so the next one need not wait for it.
                let interval = self.limits.rate.map(Rate::interval).unwrap_or_default();
                self.next_start = self.next_start.map(|start| start - interval);
                next_turn
            }
        };
        // Attempts that were started and have not left yet go first.
        if let Some(turn) = next_turn {
            self.next_start = self.next_start.max(Some(turn - AHEAD_OF_TURN));
        }
    }

    /// Other limits hold from now on.
    pub fn limit(&mut self, limits: TargetLimits) {
        if limits.rate != self.limits.rate {
            self.next_start = None;
        }
        self.limits = limits;
    }
}
