//! What a store is: the durable truth about intents, attempts and the lease.
//!
//! [`Store`] is the contract that every store fulfils, in full and in the same way; `conformance`
//! is that contract as tests. [`actor`] puts one store behind a mailbox with group commit. A
//! store's own clock decides: leases, due times and all stored timestamps are its time.

pub mod actor;
pub mod choice;
pub mod client;
mod columns;
#[cfg(test)]
pub mod conformance;
pub mod health;
mod inbox;
mod insight;
mod job_log;
mod jobs;
mod lease;
mod owed;
mod purge;
pub mod sqlite;
pub mod sqlserver;
mod targets;
pub mod watchers;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::domain::contract::{ContractSnapshot, GatewayUrl};
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::{Intent, IntentId, IntentSeq, Payload, Status, TargetName};
use crate::domain::lease::{Lease, Term};
use crate::domain::schedule::{Ended, Lane, LanePage, LoadedPage, Waiting};
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceContext;

pub use crate::domain::attempt::{Attempt, FinishAttempt, OpenAttempt, PostponeAttempt};
pub use crate::domain::job::JobFacts;

pub use self::inbox::*;
pub use self::insight::*;
pub use self::jobs::*;
pub use self::lease::*;
pub use self::owed::*;
pub use self::purge::*;
pub use self::targets::*;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A queue in front of the store is full; nothing was tried.
    #[error("the queue in front of the store is full")]
    Overloaded,
    /// The database did not answer, or said no to everything; whether a write took effect may be unknown.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The database said no to this item alone, which had no effect: something in it is not right.
    #[error("the store holds something unexpected: {0}")]
    Unexpected(String),
}

impl StoreError {
    /// The error without its text, as metrics name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::Unavailable(_) => "unavailable",
            Self::Unexpected(_) => "unexpected",
        }
    }
}

pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// A database that keeps submissions. Every call is atomic; none may be half done when it fails.
pub trait Store: Send + Sync + 'static {
    /// Makes a batch durable in one transaction. An item that cannot be done fails alone; an
    /// error of the whole means that none of it may be relied on.
    fn commit(&self, batch: WriteBatch) -> StoreFuture<BatchResults>;

    /// Takes the lease if nobody holds it: the epoch is one more than any before.
    fn acquire_lease(&self, name: Arc<str>, holder: Arc<str>, duration: Duration) -> StoreFuture<Option<Lease>>;
    /// Prolongs the lease if `term` still holds it; `None` if it does not.
    fn renew_lease(&self, term: Term, duration: Duration) -> StoreFuture<Option<Lease>>;
    /// Ends the term, so that another instance may take over at once. No effect if it ended before.
    fn release_lease(&self, term: Term) -> StoreFuture<()>;

    /// Who holds the lease, and how the store's clock stands.
    fn lease_state(&self) -> StoreFuture<LeaseState>;
    /// Frees the lease, if it is still that of this epoch and was not renewed since; whether it was. For operators who know that
    /// its holder is dead.
    fn reset_lease(&self, epoch: i64, renewed_at: Timestamp) -> StoreFuture<bool>;

    /// Attempts that an earlier term than this epoch left open, oldest first. One that cannot be
    /// read is left out, and said in the log.
    fn open_attempts_before(&self, epoch: i64, limit: usize) -> StoreFuture<Vec<OpenAttempt>>;
    /// A first look at everything that waits: the first page of every lane.
    fn schedule_snapshot(&self, page_limit: usize) -> StoreFuture<ScheduleSnapshot>;
    /// What began to wait since the cursor, and further pages of lanes, as of one moment.
    fn refresh_schedule(&self, request: RefreshRequest) -> StoreFuture<Refresh>;
    /// How much waits in all.
    fn backlog(&self) -> StoreFuture<Backlog>;
    /// Deletes old terminal intents with all that belongs to them, a few in each transaction, the oldest first; not
    /// those whose webhook event is pending.
    fn purge(&self, term: Term, request: PurgeRequest) -> StoreFuture<Purged>;

    /// Webhook events to be tried now, those of each receiver in order of when they are due.
    fn due_webhooks(&self, look: DueWebhooksQuery) -> StoreFuture<DueWebhooks>;
    /// Writes down that a try of each of these events begins, if it is due. One that cannot be read is
    /// recorded as such and put off. `None` if the term is over.
    fn start_webhooks(&self, term: Term, events: Vec<IntentSeq>) -> StoreFuture<Option<Vec<OpenWebhookTry>>>;
    /// Records what came of tries; one that is not open is left as it is. False if the term is over.
    fn finish_webhooks(&self, term: Term, finished: Vec<Arc<FinishWebhookTry>>) -> StoreFuture<bool>;
    /// Closes open tries as interrupted, but for those that are under way, and makes their events due
    /// now; how many there were. `None` if the term is over.
    fn close_webhooks(&self, term: Term, under_way: Vec<IntentSeq>) -> StoreFuture<Option<usize>>;
    /// Makes the event of an ended intent due now, or as soon as a try under way has not been taken.
    fn redeliver_webhook(&self, id: IntentId) -> StoreFuture<Redelivery>;

    fn find(&self, id: IntentId) -> StoreFuture<Option<StoredIntent>>;
    fn history(&self, id: IntentId) -> StoreFuture<Option<History>>;
    fn list(&self, query: ListQuery) -> StoreFuture<IntentPage>;
    /// One intent with all that a person may want to know, as of one moment.
    fn detail(&self, id: IntentId) -> StoreFuture<Option<IntentDetail>>;
    fn payload(&self, id: IntentId) -> StoreFuture<Option<Bytes>>;
    /// How things stand over all.
    fn overview(&self) -> StoreFuture<Overview>;
    /// How every target that has been used of late is doing.
    fn target_health(&self) -> StoreFuture<Vec<TargetHealth>>;
    /// Every target that there has been a contract of, or that is paused, by name.
    fn targets(&self) -> StoreFuture<Vec<StoredTarget>>;
    /// From now on no attempt of this target begins, whoever leads; since when that is so. What is under way goes on,
    /// what waits goes on waiting, and deadlines go on passing.
    fn pause_target(&self, target: TargetName) -> StoreFuture<Timestamp>;
    /// Attempts of this target begin again.
    fn resume_target(&self, target: TargetName) -> StoreFuture<()>;
    fn find_job(&self, by: JobLookup) -> StoreFuture<Option<FoundJob>>;
    fn list_jobs(&self, query: JobQuery) -> StoreFuture<JobPage>;
    /// Whether new jobs may be sent there: not while the node does not answer, but for one now and then
    /// to try it.
    fn admits_jobs(&self, gateway: GatewayUrl) -> StoreFuture<bool>;
    /// Submissions of the inbox that are to be processed now, and how much waits.
    fn due_inbox(&self, limit: usize) -> StoreFuture<DueInbox>;
    /// Records what came of submissions, each on its own: the contact found or made, the message, the
    /// link; or the error. One that is not waiting at that count is left as it is. `None` if the term is over.
    fn process_inbox(
        &self,
        term: Term,
        processed: Vec<ProcessedInboxSubmission>,
    ) -> StoreFuture<Option<Vec<Result<(), StoreError>>>>;
    /// Makes submissions due now that are not processed; how many there were.
    fn reprocess(&self, which: Reprocess) -> StoreFuture<usize>;
    fn find_submission(&self, id: InboxSubmissionId) -> StoreFuture<Option<(InboxSubmission, Bytes)>>;
    fn list_submissions(&self, query: InboxQuery) -> StoreFuture<InboxPage<InboxSubmission>>;
    fn list_contacts(&self, query: InboxQuery) -> StoreFuture<InboxPage<Contact>>;
    fn list_messages(&self, query: InboxQuery) -> StoreFuture<InboxPage<Message>>;
    /// Writes so many bytes of no meaning as durably as a commit, within [`PROBE_BUDGET`]: whether the store takes writes.
    fn probe(&self, bytes: usize) -> StoreFuture<()>;
    /// How long a client's request may wait for the store, in its queue and in the store together.
    fn budget(&self) -> Duration;
}

/// How long a probe may take: less than those who ask for readiness usually wait.
pub const PROBE_BUDGET: Duration = Duration::from_secs(2);

/// Writes that become durable together.
#[derive(Default)]
pub struct WriteBatch {
    pub submits: Vec<NewIntent>,
    /// For the inbox.
    pub received: Vec<NewInboxSubmission>,
    /// If given, new intents may be begun in the same transaction. A store may leave them waiting
    /// instead; so may it if the term in it does not hold the lease.
    pub start_on_insert: Option<StartOnInsert>,
    /// Writes of the leader; without effect unless the term in it holds the lease.
    pub fenced: Option<FencedWrites>,
    /// When those who wait for each of the submits, and for each of `received`, give up; empty if they do not. What is not begun by then
    /// is not to be done: its client was told that it failed.
    pub submit_deadlines: Vec<Instant>,
    pub received_deadlines: Vec<Instant>,
    /// When the last of all who wait gives up.
    pub give_up_at: Option<Instant>,
}

/// Leave to begin new intents without letting them wait first.
#[derive(Clone)]
pub struct StartOnInsert {
    pub term: Term,
    pub places: Arc<dyn Places>,
}

/// Where attempts that are begun at once get their place among those in flight.
pub trait Places: Send + Sync {
    fn take(&self, lane: &Arc<Lane>, now: Timestamp) -> Option<Permit>;
}

/// A place at a gateway, free again when it is dropped.
pub trait Slot: Send {
    /// How the attempt ends that has this place; without that it counts as not called.
    fn ended(&mut self, ended: Ended);
}

/// A place that was taken, in two guards.
pub struct Permit {
    /// To be dropped when the gateway has answered.
    pub slot: Box<dyn Slot>,
    /// To be dropped when the outcome is recorded.
    pub under_way: Box<dyn Send>,
}

/// A new intent whose first attempt was written down together with it; it must now be made.
pub struct StartedOnInsert {
    pub attempt: OpenAttempt,
    pub payload: Bytes,
    pub permit: Permit,
}

pub struct FencedWrites {
    pub term: Term,
    pub starts: Vec<Waiting>,
    pub finishes: Vec<Arc<FinishAttempt>>,
    pub postpones: Vec<PostponeAttempt>,
    /// Exhaust up to this many waiting intents whose deadline has passed.
    pub expire: Option<usize>,
}

impl WriteBatch {
    pub fn len(&self) -> usize {
        self.submits.len() + self.received.len() + self.fenced.as_ref().map_or(0, FencedWrites::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an attempt may begin with it.
    fn may_start(&self) -> bool {
        (self.start_on_insert.is_some() && !self.submits.is_empty())
            || self.fenced.as_ref().is_some_and(|writes| !writes.starts.is_empty())
    }
}

impl FencedWrites {
    pub fn new(term: &Term) -> Self {
        Self { term: term.clone(), starts: Vec::new(), finishes: Vec::new(), postpones: Vec::new(), expire: None }
    }

    pub fn len(&self) -> usize {
        self.starts.len() + self.finishes.len() + self.postpones.len() + usize::from(self.expire.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds what another writer of the same term wants.
    pub fn append(&mut self, other: Self) {
        self.starts.extend(other.starts);
        self.finishes.extend(other.finishes);
        self.postpones.extend(other.postpones);
        self.expire = self.expire.max(other.expire);
    }
}

/// The answers to a [`WriteBatch`], in its order.
pub struct BatchResults {
    pub submits: Vec<Result<Submitted, StoreError>>,
    pub received: Vec<Result<Received, StoreError>>,
    /// Which of the submits were begun at once.
    pub begun: Vec<StartedOnInsert>,
    /// `None` if there were none, or the term was over: nothing of them was done then.
    pub fenced: Option<FencedResults>,
}

#[derive(Default)]
pub struct FencedResults {
    pub starts: Vec<Result<StartResult, StoreError>>,
    pub finishes: Vec<Result<FinishResult, StoreError>>,
    pub postpones: Vec<Result<FinishResult, StoreError>>,
    pub expired: Vec<Intent>,
}

#[derive(Clone, Debug)]
pub struct NewIntent {
    pub id: IntentId,
    pub contract: Arc<ContractSnapshot>,
    pub payload: Payload,
    /// The trace that it was submitted under, if it is to be told to the gateway.
    pub trace: Option<TraceContext>,
    /// What makes it a job. One whose key exists is not created; the existing intent comes back,
    /// whatever it asked for.
    pub job: Option<NewJob>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    Created(Intent),
    /// Same id, target and payload as before.
    Existing(Intent),
    Conflict(Conflict),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub existing: Intent,
    pub target_differs: bool,
    pub payload_differs: bool,
}

/// An intent with what idempotency compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredIntent {
    pub intent: Intent,
    pub payload_sha256: [u8; 32],
}

impl StoredIntent {
    /// What a further submission of this intent's id with `target` and `payload` means.
    pub fn resubmitted(self, target: &TargetName, payload: &Payload) -> Submitted {
        let target_differs = self.intent.target != *target;
        let payload_differs = self.payload_sha256 != *payload.sha256();
        if target_differs || payload_differs {
            Submitted::Conflict(Conflict { existing: self.intent, target_differs, payload_differs })
        } else {
            Submitted::Existing(self.intent)
        }
    }
}

#[derive(Clone, Debug)]
pub enum StartResult {
    /// Written down; the caller must now make the attempt.
    Started { attempt: OpenAttempt, payload: Bytes, due: Timestamp },
    /// Not before this moment, by the store's clock.
    NotDue { due: Timestamp, now: Timestamp },
    /// Its target is paused; it goes on waiting.
    Paused,
    /// Policy allows no attempt any more; the intent was ended instead.
    Ended(Intent),
    /// The intent is not waiting at this attempt count any more; nothing was done.
    Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishResult {
    Recorded,
    /// That attempt was not open: it was recorded before. Nothing was done.
    NotOpen,
}

/// How far the leader has seen the changes of the store; opaque outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCursor {
    pub last_modified_at: Timestamp,
    pub intent_id: String,
}

#[derive(Clone, Debug)]
pub struct ScheduleSnapshot {
    pub now: Timestamp,
    /// Changes after this moment are reported by [`Store::refresh_schedule`].
    pub cursor: ChangeCursor,
    pub lanes: Vec<LoadedPage>,
    /// Targets that nothing may begin for.
    pub paused: BTreeSet<TargetName>,
}

#[derive(Clone, Debug)]
pub struct RefreshRequest {
    pub cursor: ChangeCursor,
    /// At most this many changes in one answer.
    pub limit: usize,
    pub pages: Vec<LanePage>,
}

#[derive(Clone, Debug)]
pub struct Refresh {
    pub now: Timestamp,
    pub cursor: ChangeCursor,
    /// Every intent that began to wait after the request's cursor, up to the limit.
    pub changed: Vec<Waiting>,
    /// The limit was reached: ask again at once.
    pub more: bool,
    pub pages: Vec<LoadedPage>,
    /// Some waiting intent is past its deadline.
    pub overdue: bool,
    /// Targets that nothing may begin for.
    pub paused: BTreeSet<TargetName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Intents that wait for an attempt.
    pub waiting: u64,
    /// Webhook events that are owed.
    pub webhooks: u64,
    /// How long the oldest of those has been owed.
    pub oldest_webhook: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub intent: Intent,
    pub attempts: Vec<Attempt>,
    pub webhook: Option<WebhookHistory>,
}

/// Which intents to list, without those of jobs, which are their tenants' alone; newest first, or in the order of their ids if those have to begin with something.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only those that a gateway gave this id, newest first, and then those whose own id begins with it; each once.
    pub prefix: Option<String>,
    pub status: Option<Status>,
    pub target: Option<TargetName>,
    /// Strictly after.
    pub created_after: Option<Timestamp>,
    /// Strictly before.
    pub created_before: Option<Timestamp>,
    pub limit: usize,
    /// Continue behind this one, as a page before said.
    pub behind: Option<PageCursor>,
}

impl ListQuery {
    fn page_size(&self) -> usize {
        self.limit.max(1)
    }

    /// Whether anything but the id is asked for.
    fn filters(&self) -> bool {
        self.status.is_some() || self.target.is_some() || self.created_after.is_some() || self.created_before.is_some()
    }
}

/// Where a page ended: in the order of arrival, or in that of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageCursor {
    /// What came later was on the page, this one the last. Not by its number, which counts others too.
    Newer { created_at: Timestamp, id: IntentId },
    /// The same among those that a gateway gave the id; behind them come those whose own id begins so.
    Message { created_at: Timestamp, id: IntentId },
    /// Among those whose own id begins so.
    Id(IntentId),
}

/// Ids in their order. One bound each way: of two an index would use whichever it likes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IdRange {
    from: String,
    /// `from` itself was on the page before.
    behind: bool,
    before: Option<String>,
}

impl IdRange {
    /// All that begin so and come behind that one. The ids of jobs, of which there may be any number, stand
    /// together and are stepped over.
    fn of(prefix: &str, behind: Option<&PageCursor>) -> Vec<Self> {
        let before = after_prefix(prefix);
        let all = match behind {
            Some(PageCursor::Id(id)) if id.as_str() >= prefix => Self { from: id.to_string(), behind: true, before },
            _ => Self { from: prefix.to_owned(), behind: false, before },
        };
        let jobs = IntentId::OF_JOBS;
        let Some(after_jobs) = after_prefix(jobs) else { return vec![all] };
        let up_to = |end: &str| all.before.clone().filter(|before| before.as_str() <= end);
        let mut ranges = Vec::new();
        if *all.from < *jobs {
            let before = up_to(jobs).unwrap_or_else(|| jobs.to_owned());
            ranges.push(Self { before: Some(before), ..all.clone() });
        }
        if up_to(&after_jobs).is_none() {
            ranges.push(if all.from < after_jobs { Self { from: after_jobs, behind: false, ..all } } else { all });
        }
        ranges
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentPage {
    pub intents: Vec<Intent>,
    /// Where the next page starts, if there is one. A page may be short, or empty, and yet have a next.
    pub next: Option<PageCursor>,
}

impl IntentPage {
    /// A page of what was found in the order of arrival, which may be one more than asked for.
    fn of_newest(query: &ListQuery, mut intents: Vec<Intent>) -> Self {
        let more = intents.len() > query.page_size();
        intents.truncate(query.page_size());
        let next = intents.last().filter(|_| more);
        let next = next.map(|last| PageCursor::Newer { created_at: last.created_at, id: last.id.clone() });
        Self { intents, next }
    }

    /// A page of what a search found by a gateway's id and then by the own one, which together may be one more than asked
    /// for. If they are not, `horizon` is up to where was looked, unless that is to the end.
    fn of_search(
        query: &ListQuery,
        by_message: Vec<Intent>,
        mut by_id: Vec<Intent>,
        horizon: Option<PageCursor>,
    ) -> Self {
        let own_from = by_message.len();
        let mut intents = by_message;
        intents.append(&mut by_id);
        let more = intents.len() > query.page_size();
        intents.truncate(query.page_size());
        let next = match intents.last().filter(|_| more) {
            Some(last) if intents.len() > own_from => Some(PageCursor::Id(last.id.clone())),
            Some(last) => Some(PageCursor::Message { created_at: last.created_at, id: last.id.clone() }),
            None => horizon,
        };
        Self { intents, next }
    }
}

/// The least text that is greater than all that begin with `prefix`, by code points; none if there is no such.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // The next character, past the gap where no characters are.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}
