//! What keeps attempts from starting though they are due: a gateway's slots and its wish to be left alone, a
//! target's own limits.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{AHEAD, Call, LaneId, Limits, Listed, Place, QUICK};
use crate::core::limits::TargetLimits;
use crate::core::time::Timestamp;

/// What all lanes of one gateway share.
#[derive(Default)]
pub struct GatewayBounds {
    /// Both kinds: taken from a lane, and begun at once.
    in_flight: usize,
    /// The last call was quick.
    pub quick: bool,
    hold: Hold,
    /// First place of every lane whose target lets it start.
    pub heads: BTreeSet<(Place, LaneId)>,
    /// How the gateway stands among others.
    pub listed: Listed,
    /// Lanes that are known.
    pub lanes: usize,
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

    pub fn start(&mut self) {
        self.in_flight += 1;
        if let Hold::Until(moment) = self.hold {
            self.hold = Hold::Trying(moment);
        }
    }

    pub fn end(&mut self, call: Option<Call>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.quick = call.map_or(self.quick, |call| call.took < QUICK);
        self.hold = match (self.hold, call) {
            (Hold::Until(before), Some(Call { hold_until: Some(moment), .. })) => Hold::Until(moment.max(before)),
            (_, Some(Call { hold_until: Some(moment), .. })) => Hold::Until(moment),
            (Hold::Trying(_), Some(_)) => Hold::None,
            // It was not asked after all.
            (Hold::Trying(moment), None) => Hold::Until(moment),
            (hold, _) => hold,
        };
    }

    /// Whether nothing is lost if it is forgotten.
    pub fn is_idle(&self) -> bool {
        self.lanes == 0 && self.in_flight == 0 && matches!(self.hold, Hold::None)
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

    pub fn end(&mut self, call: Option<Call>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        // Those that were begun and have not left yet go first.
        if let Some(turn) = call.and_then(|call| call.next_turn) {
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
