//! Counts of a list by status. They are bounded, so that a page with them is as fast on many millions of intents.

use super::ListQuery;
use crate::domain::intent::Status;

/// How many intents of each status are counted at most, and how many are examined for that. An index answers within a few
/// milliseconds.
pub const MAX_COUNTED: u64 = if cfg!(test) { 3 } else { 10_000 };
/// How many are examined if their rows must be read, each of which may be on a page of its own.
const MAX_READ: u64 = if cfg!(test) { 3 } else { 2_000 };

/// How many intents of a list have each status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusCounts {
    pub pending: BoundedCount,
    pub accepted: BoundedCount,
    pub rejected: BoundedCount,
    pub exhausted: BoundedCount,
}

/// A bounded count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundedCount {
    pub intents: u64,
    /// Whether there may be more than that.
    pub or_more: bool,
}

impl BoundedCount {
    /// Makes a count of the intents that matched among those that were examined. Stores examine one more than
    /// [`limit`](Self::limit), to know whether there are more.
    pub(super) fn of(limit: u64, examined: u64, matched: u64) -> Self {
        Self { intents: matched.min(limit), or_more: examined > limit }
    }

    /// How many intents are examined for the count of a status. Whether an intent is pending and of a target is in an index.
    pub(super) fn limit(query: &ListQuery, status: Status) -> u64 {
        let of_target = query.target.is_some() && status != Status::Pending;
        let reads_rows = of_target || query.redrive.is_some() || !query.examined.is_empty();
        if reads_rows { MAX_READ } else { MAX_COUNTED }
    }
}

impl StatusCounts {
    /// Whether the intents of a list can be counted. Those of a search or with a cause cannot: their conditions take too long
    /// to check.
    pub fn can_count(query: &ListQuery) -> bool {
        query.prefix.is_none() && query.examined.cause.is_none()
    }

    /// The count of one status.
    pub fn of(&self, status: Status) -> BoundedCount {
        match status {
            Status::Pending => self.pending,
            Status::Accepted => self.accepted,
            Status::Rejected => self.rejected,
            Status::Exhausted => self.exhausted,
        }
    }

    /// The count of all statuses together.
    pub fn all(&self) -> BoundedCount {
        Status::ALL.map(|status| self.of(status)).into_iter().fold(BoundedCount::default(), |sum, counted| {
            BoundedCount { intents: sum.intents + counted.intents, or_more: sum.or_more || counted.or_more }
        })
    }

    /// Counts each status.
    pub(super) fn count<E>(mut count: impl FnMut(Status) -> Result<BoundedCount, E>) -> Result<Self, E> {
        Ok(Self {
            pending: count(Status::Pending)?,
            accepted: count(Status::Accepted)?,
            rejected: count(Status::Rejected)?,
            exhausted: count(Status::Exhausted)?,
        })
    }
}
