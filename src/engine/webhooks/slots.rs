//! How many tries may be under way at once, in all and per receiver. Pure.
//!
//! A receiver that fails keeps only a few slots until it answers well again: a dead one, whose
//! tries last until they time out, then cannot take the slots of the others.

use std::collections::HashMap;

use crate::domain::webhook::ReceiverId;
use crate::store::DueWebhooksQuery;

/// Tries under way in all.
pub const IN_ALL: usize = 256;
/// Tries under way at a receiver that answers well.
const HEALTHY: usize = 32;
/// Tries under way at one that does not: sixty-four such receivers fit into what there is in all.
const FAILING: usize = IN_ALL / 64;

#[derive(Default)]
pub struct WebhookSlots {
    taken: usize,
    /// Those with tries under way, and those that fail.
    receivers: HashMap<ReceiverId, Receiver>,
}

#[derive(Default)]
struct Receiver {
    taken: usize,
    failing: bool,
}

impl Receiver {
    fn free(&self) -> usize {
        let limit = if self.failing { FAILING } else { HEALTHY };
        limit.saturating_sub(self.taken)
    }
}

impl WebhookSlots {
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// What may be tried now, if anything.
    pub fn look(&self) -> Option<DueWebhooksQuery> {
        let limit = IN_ALL.saturating_sub(self.taken);
        let except = self.receivers.iter().map(|(id, receiver)| (*id, receiver.free())).collect();
        (limit > 0).then_some(DueWebhooksQuery { limit, per_receiver: HEALTHY, except })
    }

    pub fn take(&mut self, receiver: ReceiverId) {
        self.taken += 1;
        self.receivers.entry(receiver).or_default().taken += 1;
    }

    pub fn give_back(&mut self, id: ReceiverId, failed: bool) {
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
        let look = slots.look().unwrap();
        look.except.iter().find(|(id, _)| *id == receiver).map_or(look.per_receiver, |(_, free)| *free)
    }

    #[test]
    fn a_failing_receiver_keeps_a_few_slots_until_it_answers_well() {
        let mut slots = WebhookSlots::default();
        assert_eq!(free(&slots, DEAD), HEALTHY);
        (0..HEALTHY).for_each(|_| slots.take(DEAD));
        assert_eq!((free(&slots, DEAD), free(&slots, ALIVE)), (0, HEALTHY));
        (0..HEALTHY).for_each(|_| slots.give_back(DEAD, true));
        assert_eq!((free(&slots, DEAD), slots.taken()), (FAILING, 0));
        slots.take(DEAD);
        assert_eq!(free(&slots, DEAD), FAILING - 1);
        slots.give_back(DEAD, false);
        assert_eq!(free(&slots, DEAD), HEALTHY);
        assert!(slots.receivers.is_empty(), "nothing is kept of receivers that are well");
    }

    #[test]
    fn there_is_a_limit_in_all() {
        let mut slots = WebhookSlots::default();
        (0..IN_ALL).for_each(|n| slots.take(ReceiverId(i64::try_from(n).unwrap())));
        assert!(slots.look().is_none());
        slots.give_back(ReceiverId(0), false);
        assert_eq!(slots.look().unwrap().limit, 1);
    }
}
