//! How gateways share the slots, so that gateways that do not respond cannot take all of them.
//!
//! A call that hangs uses its slot until it times out. A gateway therefore gets slots according to how it has responded so
//! far, and never all of them. "Left" is the number of free slots outside the reserve, which is an eighth of all slots:
//!
//! | gateway | it may start another attempt while |
//! | --- | --- |
//! | responded before | it has fewer in flight than twice the number that it recently handled, or fewer than are left |
//! | was never called | it has fewer in flight than are left |
//! | does not respond | four times its number in flight, plus a quarter of the shared slots, is less than are left |
//! | responded before and has few in flight | the reserve is not used up; other gateways cannot use the reserve |
//!
//! The second rule leaves slots free however many new gateways hang, because each takes at most as many as it leaves. The
//! third rule limits all gateways that are known to hang to a few slots together. The reserve is for gateways that responded
//! until now: their attempts continue to start even if busy gateways hang at the same moment.

use std::time::Duration;

use super::Limits;
use crate::domain::time::Timestamp;

/// One slot in eight is reserved for gateways that respond and have few attempts in flight.
const RESERVED_SHARE: usize = 8;
/// The number of attempts in flight that a gateway may always have while it responds.
const FIRST_WINDOW: usize = 4;
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
#[derive(Debug)]
pub(super) struct Responsiveness {
    /// The number of attempts that it may have in flight however few slots are left: twice the most that were recently in
    /// flight when it responded.
    window: usize,
    answered_before: bool,
    /// Whether the last call got no response.
    failing: bool,
    /// Since when calls are in flight without a response to any of them.
    silent_since: Option<Timestamp>,
    /// The duration of the last call that got a response.
    usual: Duration,
}

impl Default for Responsiveness {
    fn default() -> Self {
        Self { window: FIRST_WINDOW, answered_before: false, failing: false, silent_since: None, usual: Duration::ZERO }
    }
}

impl Responsiveness {
    /// Whether a gateway with `own` attempts in flight may start another one, while `all` are in flight at all gateways.
    /// `ahead` is the number of attempts that may be started before there is a slot for their call.
    pub(super) fn may_start(&self, own: usize, all: usize, ahead: usize, limits: &Limits, now: Timestamp) -> bool {
        let reserve = limits.reserve();
        let shared = limits.in_flight - reserve;
        let left = (shared + ahead).saturating_sub(all);
        if self.is_silent(now) {
            return 4 * own + shared / 4 < left;
        }
        let few = self.answered_before && own < limits.few() && all < limits.in_flight + reserve;
        few || (left > 0 && own < self.window.max(left))
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
            let used = 2 * (left + 1);
            self.window = (self.window - self.window / WINDOW_DECAY).max(used).max(FIRST_WINDOW);
            self.answered_before = true;
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
