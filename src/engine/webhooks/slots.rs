//! Limits how many webhook tries are in flight, in all and for each receiver.
//!
//! A receiver that fails keeps only a few slots until it answers well again. Tries at a dead receiver last until they time
//! out, so without this limit they would take the slots of the other receivers.

use std::collections::HashMap;

use crate::domain::webhook::ReceiverId;
use crate::store::DueWebhooksQuery;

/// Tries in flight in all.
pub const MAX_TRIES: usize = 256;
/// Tries in flight at a receiver that answers well.
const MAX_TRIES_HEALTHY: usize = 32;
/// Tries in flight at a receiver that fails. Sixty-four such receivers together reach [`MAX_TRIES`].
const MAX_TRIES_FAILING: usize = MAX_TRIES / 64;

/// The slots of one webhook actor.
#[derive(Default)]
pub struct WebhookSlots {
    taken: usize,
    /// Receivers that have tries in flight or that fail.
    receivers: HashMap<ReceiverId, Receiver>,
}

#[derive(Default)]
struct Receiver {
    taken: usize,
    failing: bool,
}

impl Receiver {
    fn free(&self) -> usize {
        let limit = if self.failing { MAX_TRIES_FAILING } else { MAX_TRIES_HEALTHY };
        limit.saturating_sub(self.taken)
    }
}

impl WebhookSlots {
    /// Returns how many tries are in flight.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Returns a query for as many due events as slots are free; `None` if no slot is free.
    pub fn query(&self) -> Option<DueWebhooksQuery> {
        let limit = MAX_TRIES.saturating_sub(self.taken);
        let except = self.receivers.iter().map(|(id, receiver)| (*id, receiver.free())).collect();
        (limit > 0).then_some(DueWebhooksQuery { limit, per_receiver: MAX_TRIES_HEALTHY, except })
    }

    /// Takes a slot for a try at this receiver.
    pub fn take(&mut self, receiver: ReceiverId) {
        self.taken += 1;
        self.receivers.entry(receiver).or_default().taken += 1;
    }

    /// Releases the slot of a try; `failed` says whether the receiver refused the event or did not answer.
    pub fn release(&mut self, id: ReceiverId, failed: bool) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(receiver) = self.receivers.get_mut(&id) {
            receiver.taken = receiver.taken.saturating_sub(1);
            receiver.failing = failed;
            if receiver.taken == 0 && !failed {
                self.receivers.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: ReceiverId = ReceiverId(1);
    const ALIVE: ReceiverId = ReceiverId(2);

    fn free(slots: &WebhookSlots, receiver: ReceiverId) -> usize {
        slots.query().unwrap().slots(receiver)
    }

    #[test]
    fn a_failing_receiver_has_few_slots_until_it_answers_well() {
        let mut slots = WebhookSlots::default();
        assert_eq!(free(&slots, DEAD), MAX_TRIES_HEALTHY);
        (0..MAX_TRIES_HEALTHY).for_each(|_| slots.take(DEAD));
        assert_eq!((free(&slots, DEAD), free(&slots, ALIVE)), (0, MAX_TRIES_HEALTHY));
        (0..MAX_TRIES_HEALTHY).for_each(|_| slots.release(DEAD, true));
        assert_eq!((free(&slots, DEAD), slots.taken()), (MAX_TRIES_FAILING, 0));
        slots.take(DEAD);
        assert_eq!(free(&slots, DEAD), MAX_TRIES_FAILING - 1);
        slots.release(DEAD, false);
        assert_eq!(free(&slots, DEAD), MAX_TRIES_HEALTHY);
        assert!(slots.receivers.is_empty(), "healthy receivers without tries are forgotten");
    }

    #[test]
    fn all_receivers_together_have_a_limit() {
        let mut slots = WebhookSlots::default();
        (0..MAX_TRIES).for_each(|n| slots.take(ReceiverId(i64::try_from(n).unwrap())));
        assert!(slots.query().is_none());
        slots.release(ReceiverId(0), false);
        assert_eq!(slots.query().unwrap().limit, 1);
    }
}
