//! Start on insert: the first attempt of a new intent is started in the transaction that inserts the intent.
//!
//! Normally an intent is inserted as waiting, the scheduler sees it, and a second transaction starts its first attempt. On
//! the instance that leads, a slot is often free and nothing else of that gateway is due earlier. The store then takes a
//! slot for the intent while it inserts it and records the attempt as open at the same time, fenced by the leader's term
//! like every other start. The executor gets the attempt with the slot, and calls the gateway. That saves a transaction, a
//! read and a round trip through the scheduler. If no slot is free, or the term does not hold the lease, the intent is
//! inserted as waiting.

use std::sync::Arc;

use bytes::Bytes;

use super::slot::{InFlightGuard, SlotGuard};
use crate::domain::attempt::OpenAttempt;
use crate::domain::lease::Term;
use crate::domain::schedule::Lane;
use crate::domain::time::Timestamp;

/// Permission to start new intents in the transaction that inserts them.
#[derive(Clone)]
pub struct StartOnInsert {
    pub term: Term,
    pub slots: Arc<dyn SlotSource>,
}

/// Gives out slots while a transaction inserts intents.
pub trait SlotSource: Send + Sync {
    /// Takes a slot for a new intent of this lane, if one is free and nothing else is due before it.
    fn take(&self, lane: &Arc<Lane>, now: Timestamp) -> Option<(SlotGuard, InFlightGuard)>;
}

/// A new intent whose first attempt was recorded together with it. The executor must now make that attempt.
pub struct StartedOnInsert {
    pub attempt: OpenAttempt,
    pub payload: Bytes,
    pub slot: SlotGuard,
    pub in_flight: InFlightGuard,
}
