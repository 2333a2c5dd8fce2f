//! Messages that several actors of the engine use.

use std::fmt;
use std::sync::Arc;

use actix::Message;

use crate::domain::lease::Term;
use crate::domain::schedule::Waiting;
use crate::platform::errors::full_text;
use crate::store::{FencedError, InFlightGuard, SlotGuard};

/// An actor that lives for one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    Scheduler,
    Executor,
    Webhooks,
    Inbox,
    Redrives,
}

impl Child {
    /// Whether the leader starts this child again within the term. The deaths of the others end the term, because only a new
    /// term may close the attempts that they left open.
    pub fn is_restarted(self) -> bool {
        matches!(self, Self::Webhooks | Self::Inbox | Self::Redrives)
    }
}

impl fmt::Display for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduler => "scheduler",
            Self::Executor => "executor",
            Self::Webhooks => "webhooks",
            Self::Inbox => "inbox",
            Self::Redrives => "redrives",
        })
    }
}

/// To the leader: a child of a term died.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ChildStopped {
    pub term: Term,
    pub child: Child,
}

/// To the leader: something went wrong after which the term must end.
#[derive(Message, Clone, Debug)]
#[rtype(result = "()")]
pub struct TermFailed {
    pub term: Term,
    /// The term is over. Otherwise it is in doubt: it is drained, and the lease is released.
    pub lost: bool,
    pub why: String,
    /// What the store said, if that is the reason.
    pub store_error: Option<String>,
}

impl TermFailed {
    /// A fenced call of the term failed.
    pub fn new(term: &Term, during: &str, error: &FencedError) -> Self {
        let (lost, store_error) = match error {
            FencedError::TermOver => (true, None),
            FencedError::Store(error) => (false, Some(full_text(error))),
        };
        Self { term: term.clone(), lost, why: format!("{during}: {}", full_text(error)), store_error }
    }

    /// The lease must not be used any longer. It is not released either: it expires, and until then attempts in flight may
    /// still be recorded.
    pub fn lost(term: &Term, why: impl Into<String>) -> Self {
        Self { lost: true, ..Self::in_doubt(term, why) }
    }

    /// Something happened after which it is unknown what the term has done.
    pub fn in_doubt(term: &Term, why: impl Into<String>) -> Self {
        Self { term: term.clone(), lost: false, why: why.into(), store_error: None }
    }
}

/// To a child of a term: stop. Once the scheduler has answered, no further attempt starts.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct Stop;

/// To the executor: start and make the next attempts of these intents.
#[derive(Message)]
#[rtype(result = "()")]
pub struct RunAttempts {
    pub due: Vec<DueAttempt>,
}

/// An attempt that may start. Its guards count it from the moment at which the schedule gives it out, so that it cannot be
/// overlooked while it is in a mailbox.
pub struct DueAttempt {
    pub waiting: Waiting,
    pub slot: SlotGuard,
    pub in_flight: InFlightGuard,
}

/// To the executor: slots were released, so take the attempts that may start now.
#[derive(Message)]
#[rtype(result = "()")]
pub struct FillSlots {
    pub source: Arc<dyn AttemptSource>,
}

/// Where the executor gets the next attempts from without waiting for the scheduler.
pub trait AttemptSource: Send + Sync {
    /// Returns the attempts that may start now.
    fn next(self: Arc<Self>) -> Vec<DueAttempt>;
}
