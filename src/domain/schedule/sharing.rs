//! How gateways share the slots, so that gateways that do not respond cannot take all of them.
//!
//! A call that hangs uses its slot until it times out. A gateway therefore gets slots according to how it has responded so
//! far, and never all of them. An eighth of all slots is reserved, and the others are shared. "Left" is the number of
//! shared slots that are free:
//!
//! | gateway | it may start another attempt while |
//! | --- | --- |
//! | responded before | it has fewer in flight than twice the number that it recently handled, or fewer than are left |
//! | responded before and has few in flight | the reserve is not used up; other gateways cannot use the reserve |
//! | never responded, none in flight | a slot is left |
//! | never responded, some in flight | its number in flight, plus half of the shared slots, is less than are left |
//! | does not respond | four times its number in flight, plus half of the shared slots, is less than are left |
//!
//! The last two rules keep half of the shared slots for first calls: unless more gateways than that hang, the first attempt
//! of a gateway starts when it is due. The reserve is for gateways that responded until now: their attempts continue to
//! start even if busy gateways hang at the same moment.

use std::time::Duration;

use super::Limits;
use crate::domain::time::Timestamp;

/// One slot in eight is reserved for gateways that respond and have few attempts in flight.
const RESERVED_SHARE: usize = 8;
/// The number of attempts in flight that a gateway may always have while a slot is left, once it has responded.
const SMALLEST_WINDOW: usize = 4;
/// A gateway counts as not responding if it has calls in flight and responds to none of them for this long, or for twice the
/// duration of its last response, if that is longer.
const SILENCE: Duration = Duration::from_secs(1);
/// With every response the window shrinks by this fraction, down to what is used. About a hundred responses halve it.
const WINDOW_DECAY: usize = 128;

impl Limits {
    /// The number of slots that only gateways that respond and have few attempts in flight can use.
    pub fn reserve(&self) -> usize {
        self.in_flight / RESERVED_SHARE
    }

    /// The number of attempts in flight that counts as few: eight such gateways fit into the reserve.
    pub fn few(&self) -> usize {
        (self.reserve() / 8).max(1)
    }
}

/// How a gateway has responded so far in this term.
#[derive(Debug, Default)]
pub(super) struct Responsiveness {
    /// The number of attempts that it may have in flight however few slots are left: twice the most that were recently in
    /// flight when it responded. `None` until it responds for the first time.
    window: Option<usize>,
    /// Whether the last call got no response.
    failing: bool,
    /// Since when calls are in flight without a response to any of them.
    silent_since: Option<Timestamp>,
    /// The duration of the last call that got a response.
    usual: Duration,
}

impl Responsiveness {
    /// Whether a gateway with `own` attempts in flight may start another one, while `all` are in flight at all gateways.
    /// `ahead` is the number of attempts that may be started before there is a slot for their call.
    pub(super) fn may_start(&self, own: usize, all: usize, ahead: usize, limits: &Limits, now: Timestamp) -> bool {
        let reserve = limits.reserve();
        let shared = limits.in_flight - reserve;
        let left = (shared + ahead).saturating_sub(all);
        let first_calls = shared / 2;
        if self.is_silent(now) {
            return 4 * own + first_calls < left;
        }
        match self.window {
            None => left > 0 && (own == 0 || own + first_calls < left),
            Some(window) => {
                let may_use_reserve = own < limits.few() && all < limits.in_flight + reserve;
                may_use_reserve || (left > 0 && own < window.max(left))
            }
        }
    }

    fn is_silent(&self, now: Timestamp) -> bool {
        let patience = SILENCE.max(2 * self.usual);
        self.failing || self.silent_since.is_some_and(|since| now.since(since) > patience)
    }

    /// Records that a call started.
    pub(super) fn started(&mut self, now: Timestamp) {
        self.silent_since.get_or_insert(now);
    }

    /// Records that a call finished, with or without a response. `left` calls are still in flight.
    pub(super) fn ended(&mut self, answered: bool, took: Duration, left: usize, now: Timestamp) {
        self.failing = !answered;
        if answered {
            let window = self.window.unwrap_or_default();
            let used = 2 * (left + 1);
            self.window = Some((window - window / WINDOW_DECAY).max(used).max(SMALLEST_WINDOW));
            self.usual = took;
            self.silent_since = Some(now);
        }
        self.idle_if_none(left);
    }

    /// If no call is in flight any more, the gateway is not silent.
    pub(super) fn idle_if_none(&mut self, left: usize) {
        if left == 0 {
            self.silent_since = None;
        }
    }
}
