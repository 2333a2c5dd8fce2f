//! When each call of a target that has a rate may leave: evenly spaced, whatever happened on its way here.
//!
//! The schedule hands attempts out a little before their turn; what is exact is decided here, where nothing but the
//! call itself comes after.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::clock::monotonic;
use crate::core::intent::TargetName;
use crate::core::limits::Rate;

/// Timers wake up to two milliseconds late. So much may be made up for, and no more: after a stall calls are spaced
/// as ever.
const LATENESS: Duration = Duration::from_millis(2);

/// Longer than the schedule's lead and any lag. Who would have to wait longer was begun before there was this rate, and
/// is not held up by it.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// One for each target that has ever had a rate in this term.
#[derive(Default)]
pub struct Turns(RefCell<HashMap<TargetName, Rc<Queue>>>);

#[derive(Default)]
struct Queue {
    /// The last turn; held by whoever waits for the next one.
    last: Mutex<Option<Instant>>,
    /// The same, for whoever only wants to know.
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

impl Turns {
    /// Resolves when it is this call's turn, in the order in which they asked. Says how long from then on it is until
    /// the next one that nobody waits for.
    pub async fn wait(&self, target: &TargetName, rate: Rate) -> Duration {
        let queue = self.queue(target);
        if queue.free_in(rate) > LONGEST_WAIT {
            return queue.free_in(rate);
        }
        queue.waiting.set(queue.waiting.get() + 1);
        let mut last = queue.last.lock().await;
        let due = last.map(|last| last + rate.interval());
        if let Some(due) = due {
            tokio::time::sleep_until(due).await;
        }
        let now = monotonic();
        *last = Some(due.filter(|due| now <= *due + LATENESS).unwrap_or(now));
        queue.seen.set(*last);
        queue.waiting.set(queue.waiting.get() - 1);
        queue.free_in(rate)
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

    #[tokio::test(start_paused = true)]
    async fn calls_leave_one_interval_after_another_and_say_when_the_next_may() {
        let (turns, rate) = (Turns::default(), Rate::per_second(10.0).unwrap());
        let began = monotonic();
        let left = join_all((0..5).map(|_| async {
            let until_free = turns.wait(&target(), rate).await;
            (monotonic().duration_since(began).as_millis(), until_free.as_millis())
        }));
        let left = left.await;
        assert_eq!(left.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 100, 200, 300, 400]);
        assert_eq!(left[4].1, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_is_not_made_up_for() {
        let (turns, rate) = (Turns::default(), Rate::per_second(10.0).unwrap());
        turns.wait(&target(), rate).await;
        tokio::time::advance(Duration::from_millis(950)).await;
        let after = monotonic();
        turns.wait(&target(), rate).await;
        turns.wait(&target(), rate).await;
        assert_eq!(monotonic().duration_since(after), Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_begun_before_there_was_a_rate_is_not_held_up_by_it() {
        let (turns, rate) = (Turns::default(), Rate::per_second(1.0).unwrap());
        turns.wait(&target(), rate).await;
        let began = monotonic();
        let target = target();
        join_all((0..50).map(|_| turns.wait(&target, rate))).await;
        assert!(monotonic().duration_since(began) <= 2 * LONGEST_WAIT);
    }
}
