//! Purging: which intents a store deletes in one transaction, and what it reports.

use std::time::Duration;

use crate::domain::intent::IntentSeq;
use crate::domain::time::Timestamp;

/// Asks for one small transaction of a purge.
#[derive(Clone, Copy, Debug)]
pub struct PurgeRequest {
    /// Terminal intents whose end was stored longer ago than this are deleted.
    pub older_than: Duration,
    /// Continue after this intent; `None` starts at the oldest one.
    pub after: Option<PurgeCursor>,
    /// How many intents to examine at most. A store may examine fewer, so that other writes do not wait.
    pub limit: usize,
}

/// The last intent that a purge has examined, in the order of the event feed.
///
/// Without it every transaction of a purge would examine all intents again whose webhook event is still pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeCursor {
    /// The time of the transaction that ended the intent.
    pub ended_at: Timestamp,
    pub seq: IntentSeq,
}

/// What one transaction of a purge did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purged {
    /// How many intents were deleted.
    pub intents: usize,
    /// Where to continue; `None` if no older intent is left.
    pub next: Option<PurgeCursor>,
    /// How long the transaction took. Other writes had to wait for it.
    pub took: Duration,
}
