//! When each call of a target that has a rate may leave: evenly spaced, whatever happened on its way here.
//!
//! The schedule hands attempts out a little before their turn; what is exact is decided here, where nothing but the
//! call itself comes after.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::domain::intent::TargetName;
use crate::domain::limits::Rate;
use crate::platform::clock::monotonic;

/// Timers wake up to two milliseconds late. So much may be made up for, and no more: after a stall calls are spaced
/// as before.
const LATENESS: Duration = Duration::from_millis(2);

/// Longer than the schedule's lead and any ordinary lag. An attempt whose turn is further away is given back to the
/// store: it would keep an orderly stop waiting, and be interrupted by a crash.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// One for each target that has ever had a rate in this term.
#[derive(Default)]
pub struct RateLimiter(RefCell<HashMap<TargetName, Rc<Queue>>>);

/// The next free turn is this far away, too far to wait for it.
#[derive(Debug, PartialEq, Eq)]
pub struct TooFarAhead(pub Duration);

#[derive(Default)]
struct Queue {
    /// The last turn; held by the attempt whose turn is next.
    last: Arc<Mutex<Option<Instant>>>,
    /// The same, for those who only want to know.
    seen: Cell<Option<Instant>>,
    waiting: Cell<u32>,
}

impl Queue {
    /// How long it is until the turn after all that wait.
    fn free_in(&self, rate: Rate) -> Duration {
        let free_at = self.seen.get().map(|last| last + rate.interval() * (self.waiting.get() + 1));
        free_at.map_or(Duration::ZERO, |moment| moment.duration_since(monotonic()))
    }
}

/// The next turn of a target. Dropped without [`Reservation::leave`] it is free again.
pub struct Reservation {
    last: OwnedMutexGuard<Option<Instant>>,
    queue: Rc<Queue>,
    rate: Rate,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.queue.waiting.set(self.queue.waiting.get() - 1);
    }
}

impl Reservation {
    fn due(&self) -> Option<Instant> {
        self.last.map(|last| last + self.rate.interval())
    }

    /// Resolves when the call may leave.
    pub async fn comes(&self) {
        if let Some(due) = self.due() {
            tokio::time::sleep_until(due).await;
        }
    }

    /// The call leaves now. Says how long from now it is until the next turn that nobody waits for.
    pub fn leave(mut self) -> Duration {
        let now = monotonic();
        let turn = self.due().filter(|due| now <= *due + LATENESS).unwrap_or(now);
        *self.last = Some(turn);
        self.queue.seen.set(Some(turn));
        let (queue, rate) = (Rc::clone(&self.queue), self.rate);
        drop(self);
        queue.free_in(rate)
    }
}

impl RateLimiter {
    /// Resolves when this attempt is the next of its target, in the order in which they asked. Holds nothing but that
    /// meanwhile.
    pub async fn approach(&self, target: &TargetName, rate: Rate) -> Result<Reservation, TooFarAhead> {
        let queue = self.queue(target);
        let wait = queue.free_in(rate);
        if wait > LONGEST_WAIT {
            return Err(TooFarAhead(wait));
        }
        queue.waiting.set(queue.waiting.get() + 1);
        let last = Arc::clone(&queue.last).lock_owned().await;
        Ok(Reservation { last, queue, rate })
    }

    fn queue(&self, target: &TargetName) -> Rc<Queue> {
        let mut queues = self.0.borrow_mut();
        match queues.get(target) {
            Some(queue) => Rc::clone(queue),
            None => Rc::clone(queues.entry(target.clone()).or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    fn target() -> TargetName {
        TargetName::parse("t").unwrap()
    }

    /// Waits for a turn and uses it.
    async fn call(turns: &RateLimiter, rate: Rate) -> Result<Duration, TooFarAhead> {
        let turn = turns.approach(&target(), rate).await?;
        turn.comes().await;
        Ok(turn.leave())
    }

    #[tokio::test(start_paused = true)]
    async fn calls_leave_one_interval_after_another_and_say_when_the_next_may() {
        let (turns, rate) = (RateLimiter::default(), Rate::per_second(10.0).unwrap());
        let began = monotonic();
        let left = join_all((0..5).map(|_| async {
            let until_free = call(&turns, rate).await.unwrap();
            (monotonic().duration_since(began).as_millis(), until_free.as_millis())
        }));
        let left = left.await;
        assert_eq!(left.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 100, 200, 300, 400]);
        assert_eq!(left[4].1, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_is_not_made_up_for() {
        let (turns, rate) = (RateLimiter::default(), Rate::per_second(10.0).unwrap());
        call(&turns, rate).await.unwrap();
        tokio::time::advance(Duration::from_millis(950)).await;
        let after = monotonic();
        call(&turns, rate).await.unwrap();
        call(&turns, rate).await.unwrap();
        assert_eq!(monotonic().duration_since(after), Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_is_not_used_is_free_again_and_a_far_one_is_refused() {
        let (turns, rate) = (RateLimiter::default(), Rate::per_second(1.0).unwrap());
        call(&turns, rate).await.unwrap();
        drop(turns.approach(&target(), rate).await.unwrap());
        let (next, behind) = tokio::join!(call(&turns, rate), call(&turns, rate));
        assert_eq!(next, Ok(Duration::from_secs(1)), "the turn that nobody used");
        assert_eq!(behind, Err(TooFarAhead(Duration::from_secs(2))));
    }
}
