//! How the actors of a term learn of new intents from the store actor.

use std::sync::{Arc, PoisonError, RwLock};

use actix::Recipient;

use super::StartOnInsert;
use super::messages::{AttemptsInDoubt, AttemptsStarted, IntentsWaiting};
use crate::domain::lease::Term;

/// The actors of a term that are notified of new intents.
#[derive(Clone)]
pub struct TermSubscriber {
    pub in_doubt: Recipient<AttemptsInDoubt>,
    pub waiting: Recipient<IntentsWaiting>,
    pub start_on_insert: StartOnInsert,
    pub started: Recipient<AttemptsStarted>,
}

/// The subscriber of the term that this instance leads, if it leads. It outlives a restart of the store actor.
#[derive(Clone, Default)]
pub struct TermSubscription(Arc<RwLock<Option<TermSubscriber>>>);

impl TermSubscription {
    /// Replaces the subscriber.
    pub fn subscribe(&self, subscriber: TermSubscriber) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(subscriber);
    }

    /// Removes the subscriber of `term`; that of another term stays.
    pub fn unsubscribe(&self, term: &Term) {
        let mut subscriber = self.0.write().unwrap_or_else(PoisonError::into_inner);
        subscriber.take_if(|subscriber| subscriber.start_on_insert.term == *term);
    }

    /// Wakes the scheduler, if this instance leads.
    pub fn announce(&self) {
        if let Some(subscriber) = self.subscriber() {
            // A full mailbox holds a wake-up already.
            let _one_is_enough = subscriber.waiting.try_send(IntentsWaiting);
        }
    }

    /// Returns the current subscriber.
    pub(super) fn subscriber(&self) -> Option<TermSubscriber> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
