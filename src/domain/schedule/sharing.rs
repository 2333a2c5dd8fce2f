//! How gateways share the slots, so that those that do not answer cannot take them from those that do.
//!
//! A call that hangs keeps its slot until it times out, and nothing can take it back. So a gateway gets slots by how it
//! has answered, and never all of them:
//!
//! | gateway | may start another attempt while |
//! | --- | --- |
//! | has answered | it has fewer in flight than twice what it answered before, or fewer than are left for all |
//! | has never been called | it has fewer in flight than are left for all |
//! | does not answer | four times what it has in flight fits into what is left, less a quarter |
//! | has answered, and has few in flight | the reserve is not used up; no other gateway may touch the reserve |
//!
//! The second rule leaves something free however many new gateways hang: each takes at most as much as it leaves. The
//! third keeps gateways that are known to hang to a few slots together. The reserve is for gateways that answered until
//! now, so that they go on when busy neighbours hang at the same moment. Pure.

use std::time::Duration;

use super::Limits;
use crate::domain::time::Timestamp;

/// One slot in eight is reserved for gateways that answer and have few attempts in flight.
const RESERVED_SHARE: usize = 8;
/// Attempts in flight that a gateway may always have while it answers.
const FIRST_WINDOW: usize = 4;
/// A gateway that has calls in flight and answers none of them for this long does not answer, unless its answers usually
/// take longer.
const SILENCE: Duration = Duration::from_secs(1);
/// With every answer a window shrinks by this part, down to what is used: about a hundred answers halve it.
const WINDOW_DECAY: usize = 128;

impl Limits {
    /// Slots that only gateways that answer, and have few attempts in flight, may take.
    pub fn reserve(&self) -> usize {
        self.in_flight / RESERVED_SHARE
    }

    /// What few means: eight such gateways fit into the reserve.
    pub fn few(&self) -> usize {
        (self.reserve() / 8).max(1)
    }
}

/// How a gateway has answered so far in this term.
#[derive(Debug)]
pub struct Responsiveness {
    /// Attempts it may have in flight whatever others leave free: twice the most that it recently answered.
    window: usize,
    answered_before: bool,
    /// The last call ended without an answer.
    failing: bool,
    /// Since when calls have been in flight without an answer to any of them.
    silent_since: Option<Timestamp>,
    /// How long the last answer took.
    usual: Duration,
}

impl Default for Responsiveness {
    fn default() -> Self {
        Self { window: FIRST_WINDOW, answered_before: false, failing: false, silent_since: None, usual: Duration::ZERO }
    }
}

impl Responsiveness {
    /// Whether a gateway with `own` attempts in flight may start another one, of `all` in flight. `ahead` is how many
    /// may be written down ahead of their call.
    pub fn may_start(&self, own: usize, all: usize, ahead: usize, limits: &Limits, now: Timestamp) -> bool {
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

    pub fn started(&mut self, now: Timestamp) {
        self.silent_since.get_or_insert(now);
    }

    /// A call ended; `left` are still in flight.
    pub fn ended(&mut self, answered: bool, took: Duration, left: usize, now: Timestamp) {
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

    /// Nothing is in flight any more, so nothing is waited for.
    pub fn idle_if_none(&mut self, left: usize) {
        if left == 0 {
            self.silent_since = None;
        }
    }
}
