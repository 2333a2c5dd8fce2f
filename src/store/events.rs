//! The event feed: the ends of all intents, in the order in which they were committed, and positions in that order.
//!
//! An event is not stored: it is an intent that has ended, at the time of the transaction that ended it. No two transactions
//! share a time, and stored times are in the order of commits, so a reader that goes on from a position misses nothing, also
//! when it goes on at another instance.

use crate::domain::intent::{Intent, IntentSeq, TargetName};
use crate::domain::job::SubmissionId;
use crate::domain::time::Timestamp;

use super::Job;

/// A place in the feed: after one event, or after all events of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventPosition {
    /// The time of the transaction.
    pub at: Timestamp,
    /// The number of the intent within the transaction; [`IntentSeq::LAST`] is after all of them.
    pub seq: IntentSeq,
}

impl EventPosition {
    /// Before all events.
    pub const START: Self = Self { at: Timestamp::EARLIEST, seq: IntentSeq(i64::MIN) };

    /// After all events of the transaction at this time, and of all earlier ones.
    pub const fn after_all(at: Timestamp) -> Self {
        Self { at, seq: IntentSeq::LAST }
    }
}

/// Where a read of the feed starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsAfter {
    /// At the oldest event that is kept.
    Oldest,
    /// At the end.
    Now,
    Position(EventPosition),
    /// After the event of this job.
    Job(SubmissionId),
}

/// Which events a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventFilter {
    All,
    /// Intents of clients, of one target or of all.
    Intents {
        target: Option<TargetName>,
    },
    /// Jobs of a tenant, in these workspaces or in all.
    Jobs {
        tenant: String,
        workspaces: Option<Vec<String>>,
    },
}

impl EventFilter {
    /// Whether the reader gets this event.
    pub fn includes(&self, event: &Event) -> bool {
        match (self, &event.subject) {
            (Self::All, _) => true,
            (Self::Intents { target }, EventSubject::Intent(intent)) => {
                target.as_ref().is_none_or(|target| *target == intent.target)
            }
            (Self::Jobs { tenant, workspaces }, EventSubject::Job(job)) => {
                let workspace = &job.facts.workspace_id;
                *tenant == job.facts.tenant_id && workspaces.as_ref().is_none_or(|names| names.contains(workspace))
            }
            (Self::Intents { .. }, EventSubject::Job(_)) | (Self::Jobs { .. }, EventSubject::Intent(_)) => false,
        }
    }
}

/// Asks for a page of the feed.
#[derive(Clone, Debug)]
pub struct EventQuery {
    pub after: EventsAfter,
    pub filter: EventFilter,
    /// How many events to return at most.
    pub limit: usize,
    /// How many events to examine at most, with those that the filter leaves out.
    pub examine: usize,
}

/// The end of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub position: EventPosition,
    pub subject: EventSubject,
}

impl Event {
    /// The intent that has ended.
    pub fn intent(&self) -> &Intent {
        match &self.subject {
            EventSubject::Intent(intent) => intent,
            EventSubject::Job(job) => &job.intent,
        }
    }
}

/// What has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventSubject {
    Intent(Intent),
    Job(Box<Job>),
}

/// A page of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// Where the next page starts. It advances even if the filter leaves out all events that were examined.
    pub next: EventPosition,
    /// Whether this page reaches the end of the feed, as of the moment of the read.
    pub at_end: bool,
}

impl EventPage {
    /// Leaves out events that are not after the last one that retention has deleted. Their intents are kept only because
    /// their webhook events are pending, and a reader could not go on from them: those positions have expired.
    pub(super) fn after(mut self, deleted: EventPosition) -> Self {
        self.events.retain(|event| event.position > deleted);
        self.next = self.next.max(deleted);
        self
    }
}

/// The result of reading the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventRead {
    Page(EventPage),
    /// Retention has deleted events after the position of the reader.
    Expired,
    /// The position is later than everything in the store.
    Ahead,
}

/// The first and the last position of the feed that is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeedBounds {
    /// The time of the last transaction that a reader can see.
    pub last_at: Timestamp,
    /// The last event that retention has deleted.
    pub deleted: EventPosition,
}

impl FeedBounds {
    /// The position after everything that a reader can see.
    pub(super) fn end(&self) -> EventPosition {
        EventPosition::after_all(self.last_at)
    }

    /// Why no page can be read after this position, if so.
    pub(super) fn refusal(&self, after: EventPosition) -> Option<EventRead> {
        if after == EventPosition::START {
            None
        } else if after.at > self.last_at {
            Some(EventRead::Ahead)
        } else {
            (after < self.deleted).then_some(EventRead::Expired)
        }
    }
}
