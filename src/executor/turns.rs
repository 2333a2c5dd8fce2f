//! When each call of a target that has a rate may leave: evenly spaced, whatever writing the begin took.
//!
//! The schedule hands attempts out at about the right time; what is exact is decided here, where nothing but the
//! call itself comes after.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::clock::monotonic;
use crate::core::intent::TargetName;
use crate::core::limits::Rate;
use crate::registry::CurrentRegistry;

/// Timers wake up to two milliseconds late. So much may be made up for, and no more: after a stall calls are spaced
/// as ever.
const LATENESS: Duration = Duration::from_millis(2);

/// The last turn of each target that has ever had a rate in this term.
#[derive(Default)]
pub struct Turns(RefCell<HashMap<TargetName, Rc<Mutex<Option<Instant>>>>>);

impl Turns {
    /// Resolves when it is this call's turn, in the order in which they asked: at once if there is no rate. Says how
    /// long that took.
    pub async fn wait(&self, target: &TargetName, registry: &CurrentRegistry) -> Duration {
        let rate = registry.get().limits(target).rate;
        match rate {
            Some(rate) => self.wait_for(target, rate).await,
            None => Duration::ZERO,
        }
    }

    async fn wait_for(&self, target: &TargetName, rate: Rate) -> Duration {
        let asked = monotonic();
        let last = {
            let mut targets = self.0.borrow_mut();
            match targets.get(target) {
                Some(last) => Rc::clone(last),
                None => Rc::clone(targets.entry(target.clone()).or_default()),
            }
        };
        let mut last = last.lock().await;
        if let Some(last) = *last {
            tokio::time::sleep_until(last + rate.interval()).await;
        }
        let now = monotonic();
        let late = last.is_some_and(|last| now > last + rate.interval() + LATENESS);
        *last = Some(last.filter(|_| !late).map_or(now, |last| last + rate.interval()));
        now.duration_since(asked)
    }
}
