//! Spaces the calls of a target evenly, if it has a rate limit.
//!
//! The schedule starts attempts a little early. This rate limiter decides exactly when each call is made, immediately
//! before the call.

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

/// How late a call may be and still count as on time, because timers fire up to two milliseconds late. A call that is later
/// than this counts from when it is made, so calls after a stall do not come closer together.
const LATENESS: Duration = Duration::from_millis(2);

/// The longest wait for a call. It is longer than any usual wait. An attempt that would wait longer is postponed in the store
/// instead: it would delay an orderly stop, and a crash would interrupt it.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The rate limits of all targets in one term. It has a queue for each target that had a rate in this term.
#[derive(Default)]
pub(super) struct RateLimiter(RefCell<HashMap<TargetName, Rc<Queue>>>);

/// The next call may be made only after this long, which is too long to wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooFarAhead(pub Duration);

#[derive(Default)]
struct Queue {
    /// When the last call was made. The attempt that is next holds the lock.
    last: Arc<Mutex<Option<Instant>>>,
    /// A copy of `last` that can be read without the lock.
    last_copy: Cell<Option<Instant>>,
    waiting: Cell<u32>,
}

impl Queue {
    /// How long it takes until a call may be made after all that wait.
    fn free_in(&self, rate: Rate) -> Duration {
        let free_at = self.last_copy.get().map(|last| last + rate.interval() * (self.waiting.get() + 1));
        free_at.map_or(Duration::ZERO, |moment| moment.duration_since(monotonic()))
    }
}

/// Permission to make the next call of a target. Dropping it without [`Reservation::leave`] gives the call to the next
/// attempt.
pub(super) struct Reservation {
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

    /// Resolves when the call may be made.
    pub(super) async fn wait(&self) {
        if let Some(due) = self.due() {
            tokio::time::sleep_until(due).await;
        }
    }

    /// Records that the call is made now. Returns how long it takes until a call may be made that no other attempt waits for.
    pub(super) fn leave(mut self) -> Duration {
        let now = monotonic();
        let called_at = self.due().filter(|due| now <= *due + LATENESS).unwrap_or(now);
        *self.last = Some(called_at);
        self.queue.last_copy.set(Some(called_at));
        let (queue, rate) = (Rc::clone(&self.queue), self.rate);
        drop(self);
        queue.free_in(rate)
    }
}

impl RateLimiter {
    /// Resolves when this attempt is the next of its target. Attempts are served in the order of their requests.
    pub(super) async fn reserve(&self, target: &TargetName, rate: Rate) -> Result<Reservation, TooFarAhead> {
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

    /// Waits until a call may be made, and makes it.
    async fn call(limiter: &RateLimiter, rate: Rate) -> Result<Duration, TooFarAhead> {
        let reservation = limiter.reserve(&target(), rate).await?;
        reservation.wait().await;
        Ok(reservation.leave())
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_one_interval_apart_and_return_when_the_next_one_may_be_made() {
        let (limiter, rate) = (RateLimiter::default(), Rate::per_second(10.0).unwrap());
        let start = monotonic();
        let left = join_all((0..5).map(|_| async {
            let until_free = call(&limiter, rate).await.unwrap();
            (monotonic().duration_since(start).as_millis(), until_free.as_millis())
        }));
        let left = left.await;
        assert_eq!(left.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 100, 200, 300, 400]);
        assert_eq!(left[4].1, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_after_a_stall_are_spaced_as_before() {
        let (limiter, rate) = (RateLimiter::default(), Rate::per_second(10.0).unwrap());
        call(&limiter, rate).await.unwrap();
        tokio::time::advance(Duration::from_millis(950)).await;
        let after = monotonic();
        call(&limiter, rate).await.unwrap();
        call(&limiter, rate).await.unwrap();
        assert_eq!(monotonic().duration_since(after), Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_reservation_is_free_again_and_a_distant_one_is_refused() {
        let (limiter, rate) = (RateLimiter::default(), Rate::per_second(1.0).unwrap());
        call(&limiter, rate).await.unwrap();
        drop(limiter.reserve(&target(), rate).await.unwrap());
        let (next, after_next) = tokio::join!(call(&limiter, rate), call(&limiter, rate));
        assert_eq!(next, Ok(Duration::from_secs(1)), "the reservation that was not used");
        assert_eq!(after_next, Err(TooFarAhead(Duration::from_secs(2))));
    }
}
