//! The contract that every store fulfils, in full and in the same way, split by concern.
//!
//! `store_calls!` is the table of all calls. From it come the traits, the methods of [`StoreClient`] and the delegation of
//! the stores of the tests that intercept calls. A new call is added to the table, to both stores and to the conformance suite.
//!
//! Each call is marked with its kind:
//!
//! - `read`: a client's look-up. It never writes, is counted against the limit of reads, and gives up after the store's
//!   budget.
//! - `request`: a call of a client's request that may write a row of its own. It is limited like a read.
//! - `write`: a transaction of its own that a client or an operator requests. Few run at a time. `write(Webhooks)` wakes
//!   the webhook actor afterwards, and so on.
//! - `long`: a write that an operator requests and that may take longer than the store's budget. One runs at a time.
//! - `leader`: a call of the leader or of readiness. It is not limited, because there are only a few of them.
//! - `fenced`: a call of the leader that takes effect only if its term holds the lease, checked in the same transaction.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::client::{StoreClient, Wake};
#[cfg(test)]
use super::faulty::Intercept;
use super::{
    Activity, AuditChain, AuditPage, AuditPurge, AuditPurged, AuditQuery, Backlog, BatchResults, Cancellation,
    ChangedRedrive, Contact, DueInbox, DueWebhooks, DueWebhooksQuery, EventQuery, EventRead, FailureQuery,
    FailureReport, FencedFuture, FencedResult, FinishWebhookTry, FoundJob, History, InboxMessage, InboxPage,
    InboxQuery, InboxSubmission, InstanceReport, IntentDetail, IntentPage, JobLookup, JobPage, JobQuery, LeaseState,
    ListQuery, NewRedrive, OpenAttempt, OpenWebhookTry, Overview, Planning, ProcessedInboxSubmission, PurgeRequest,
    Purged, Redelivery, Redrive, RedrivePage, RedriveSource, RedriveWork, RedriveWorked, Refresh, RefreshRequest,
    Reprocess, RunningRedrive, ScheduleSnapshot, StatusCounts, StoreError, StoreFuture, StoredIntent, StoredTarget,
    TargetActivity, TargetHealth, TargetPause, WriteBatch,
};
use crate::domain::actor::Actor;
use crate::domain::audit::NewAuditEntry;
use crate::domain::contract::GatewayUrl;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::{IntentId, IntentSeq, TargetName};
use crate::domain::lease::{Lease, Term};
use crate::domain::pause::PauseReason;
use crate::domain::redrive::{RedriveChange, RedriveId};
use crate::domain::time::Timestamp;

/// A database that keeps intents. Every call is atomic: when it fails, it is not half done.
pub trait Store:
    WriteStore
    + LeaseStore
    + ScheduleStore
    + IntentStore
    + EventStore
    + TargetStore
    + FleetStore
    + WebhookStore
    + JobStore
    + InboxStore
    + RedriveStore
    + AuditStore
{
}

impl<S> Store for S where
    S: WriteStore
        + LeaseStore
        + ScheduleStore
        + IntentStore
        + EventStore
        + TargetStore
        + FleetStore
        + FleetStore
        + WebhookStore
        + JobStore
        + InboxStore
        + RedriveStore
        + AuditStore
{
}

/// Batched writes. [`StoreActor`](super::actor::StoreActor) collects them.
pub trait WriteStore: Send + Sync + 'static {
    /// Makes a batch durable in one transaction. An item that cannot be written fails alone. An error of the whole call means
    /// that none of its items may be relied on.
    fn commit(&self, batch: WriteBatch) -> StoreFuture<BatchResults>;

    /// How long a client's request may wait for the store, in its queue and in the store together.
    fn budget(&self) -> Duration;

    /// How many new intents one transaction may take in. Where commits are slow, a larger number would take intents in faster
    /// than they can be executed.
    fn max_submits(&self) -> usize {
        usize::MAX
    }
}

macro_rules! store_calls {
    ($(
        $(#[$trait_doc:meta])*
        trait $trait:ident {
            $(
                $(#[$doc:meta])*
                $kind:ident $(($wake:ident))? fn $call:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;
            )*
        }
    )*) => {
        $(
            $(#[$trait_doc])*
            pub trait $trait: Send + Sync + 'static {
                $(
                    $(#[$doc])*
                    fn $call(&self, $($arg: $type),*) -> store_calls!(@future $kind $result);
                )*
            }

            #[cfg(test)]
            impl<I: Intercept> $trait for I {
                $(
                    fn $call(&self, $($arg: $type),*) -> store_calls!(@future $kind $result) {
                        self.intercept(stringify!($call), move |store| store.$call($($arg),*))
                    }
                )*
            }

            impl StoreClient {
                $(
                    $(#[$doc])*
                    pub async fn $call(&self, $($arg: $type),*) -> store_calls!(@result $kind $result) {
                        let done = store_calls!(@send $kind self, move |store| store.$call($($arg),*)).await?;
                        $(self.wake(Wake::$wake);)?
                        Ok(done)
                    }
                )*
            }
        )*
    };
    (@future fenced $result:ty) => { FencedFuture<$result> };
    (@future $kind:ident $result:ty) => { StoreFuture<$result> };
    (@result fenced $result:ty) => { FencedResult<$result> };
    (@result $kind:ident $result:ty) => { Result<$result, StoreError> };
    (@send read $client:expr, $call:expr) => { $client.read($call) };
    (@send request $client:expr, $call:expr) => { $client.read($call) };
    (@send write $client:expr, $call:expr) => { $client.write($call) };
    (@send long $client:expr, $call:expr) => { $client.long_write($call) };
    (@send leader $client:expr, $call:expr) => { $client.leader_call($call) };
    (@send fenced $client:expr, $call:expr) => { $client.leader_call($call) };
}

store_calls! {
    /// The lease that decides which instance executes.
    trait LeaseStore {
        /// Acquires the lease if no instance holds it. Its epoch is one more than any before.
        leader fn acquire_lease(name: Arc<str>, holder: Arc<str>, duration: Duration) -> Option<Lease>;
        /// Extends the lease of this term.
        fenced fn renew_lease(term: Term, duration: Duration) -> Lease;
        /// Ends the term, so that another instance can take over at once. It has no effect if the term is over already.
        leader fn release_lease(term: Term) -> ();
        /// Returns who holds the lease, and how far the store's clock is ahead of its host's.
        leader fn lease_state() -> LeaseState;
        /// Frees the lease if it still has this epoch and was not renewed since; returns whether it did. For operators who
        /// know that its holder is dead.
        leader fn reset_lease(epoch: i64, renewed_at: Timestamp, by: Actor) -> bool;
    }

    /// What the leader needs to schedule attempts, and upkeep.
    trait ScheduleStore {
        /// Returns attempts that an earlier term than this epoch left open, oldest first. One that cannot be read is left out
        /// and logged.
        leader fn open_attempts_before(epoch: i64, limit: usize) -> Vec<OpenAttempt>;
        /// Reads the first page of every lane: what a new term starts its schedule from.
        leader fn schedule_snapshot(page_limit: usize) -> ScheduleSnapshot;
        /// Returns what started to wait since the cursor, and further pages of lanes, as of one moment.
        leader fn refresh_schedule(request: RefreshRequest) -> Refresh;
        /// Counts what waits in all.
        leader fn backlog() -> Backlog;
        /// Deletes old terminal intents with everything that belongs to them, the oldest first, a few in each transaction.
        /// Intents whose webhook event is pending stay.
        fenced fn purge(term: Term, request: PurgeRequest) -> Purged;
        /// Writes this many meaningless bytes as durably as a commit, within [`PROBE_BUDGET`](super::PROBE_BUDGET), to find
        /// out whether the store accepts writes.
        leader fn probe(bytes: usize) -> ();
    }

    /// Look-ups of intents.
    trait IntentStore {
        read fn find(id: IntentId) -> Option<StoredIntent>;
        read fn history(id: IntentId) -> Option<History>;
        read fn list(query: ListQuery) -> IntentPage;
        /// Counts the intents of a list by status, each up to [`MAX_COUNTED`](super::MAX_COUNTED). The status of the query does not
        /// matter. Lists with a search or with a cause have no counts: see [`StatusCounts::can_count`].
        read fn status_counts(query: ListQuery) -> StatusCounts;
        /// Returns one intent with everything that the console shows about it, as of one moment.
        read fn detail(id: IntentId) -> Option<IntentDetail>;
        read fn payload(id: IntentId) -> Option<Bytes>;
        /// Returns the counts and charts of the console's overview.
        read fn overview() -> Overview;
        /// Counts the failures of a period by target and cause.
        read fn failures(query: FailureQuery) -> FailureReport;
        /// Returns the causes of those of these intents that have failed.
        read fn causes(intents: Vec<IntentSeq>) -> HashMap<IntentSeq, String>;
        /// Ends an intent that waits for an attempt. If its attempt is in progress and `after_attempt` is set, no further attempt
        /// starts after it, also under later terms.
        write(Webhooks) fn cancel(id: IntentId, after_attempt: bool, by: Actor) -> Cancellation;
    }

    /// The event feed.
    trait EventStore {
        /// Returns the next events of the feed, in the order of their commits. Every later event is committed after the end of
        /// the page, so a reader that goes on from there misses none.
        read fn events(query: EventQuery) -> EventRead;
    }

    /// Targets, and which of them are paused.
    trait TargetStore {
        /// Returns the recent results of every target that was used in the last minutes.
        read fn target_health() -> Vec<TargetHealth>;
        /// Returns what a target did in the last minutes, what waits for it, and the contracts that its intents had.
        read fn target_activity(target: TargetName, minutes: i64) -> TargetActivity;
        /// Returns every target that ever had a contract or is paused, by name.
        read fn targets() -> Vec<StoredTarget>;
        /// Stops new attempts of this target, whichever instance leads, and returns since when it is paused. Attempts under
        /// way finish, waiting intents keep waiting, and their deadlines keep running. If the target is paused already,
        /// nothing changes.
        write fn pause_target(target: TargetName, reason: Option<PauseReason>, by: Actor) -> TargetPause;
        /// Lets attempts of this target start again.
        write(Scheduler) fn resume_target(target: TargetName, by: Actor) -> ();
    }

    /// The instances of the fleet, for the console.
    trait FleetStore {
        /// Records that an instance runs, and what it has taken in. Rows of instances that were not seen for long are deleted.
        leader fn record_instance(report: InstanceReport) -> ();
        /// Deletes the row of an instance that stops.
        leader fn forget_instance(instance_id: String) -> ();
        /// Returns the instances, and what the fleet did in the last minutes.
        read fn activity(minutes: i64) -> Activity;
    }

    /// Webhook events and the tries to deliver them.
    trait WebhookStore {
        /// Returns the events that are due, those of each receiver in order of their due time.
        leader fn due_webhooks(query: DueWebhooksQuery) -> DueWebhooks;
        /// Records that a try of each of these events starts, if it is due. An event that cannot be read is recorded as
        /// failed for now and put off.
        fenced fn start_webhooks(term: Term, events: Vec<IntentSeq>) -> Vec<OpenWebhookTry>;
        /// Records the results of tries. A try that is not open is left as it is.
        fenced fn finish_webhooks(term: Term, finished: Vec<Arc<FinishWebhookTry>>) -> ();
        /// Closes open tries as interrupted, except those in flight, makes their events due now, and returns their number.
        fenced fn close_webhooks(term: Term, under_way: Vec<IntentSeq>) -> usize;
        /// Makes the event of a terminal intent due now, or as soon as the try in flight has failed.
        write(Webhooks) fn redeliver_webhook(id: IntentId, by: Actor) -> Redelivery;
    }

    /// Jobs of tenants.
    trait JobStore {
        read fn find_job(by: JobLookup) -> Option<FoundJob>;
        read fn list_jobs(query: JobQuery) -> JobPage;
        /// Returns whether new jobs may be sent to the node behind this gateway: not while it does not answer, except for one
        /// job now and then that tries it.
        request fn admits_jobs(gateway: GatewayUrl) -> bool;
    }

    /// Inbox submissions, and the contacts and messages made of them.
    trait InboxStore {
        /// Returns the inbox submissions that are due for processing, and how much waits.
        leader fn due_inbox(limit: usize) -> DueInbox;
        /// Records the results of processing, each on its own: contact, message and link, or the error. A submission that has
        /// been tried again meanwhile is left as it is.
        fenced fn process_inbox(term: Term, processed: Vec<ProcessedInboxSubmission>) -> Vec<Result<(), StoreError>>;
        /// Makes submissions that are not processed due now, and returns their number.
        write(Inbox) fn reprocess(which: Reprocess, by: Actor) -> usize;
        read fn find_submission(id: InboxSubmissionId) -> Option<(InboxSubmission, Bytes)>;
        read fn list_submissions(query: InboxQuery) -> InboxPage<InboxSubmission>;
        read fn list_contacts(query: InboxQuery) -> InboxPage<Contact>;
        read fn list_messages(query: InboxQuery) -> InboxPage<InboxMessage>;
    }

    /// Redrives in bulk.
    trait RedriveStore {
        /// Returns an intent with everything that a new intent repeats of it. Intents of jobs are not found.
        read fn redrive_source(id: IntentId) -> Option<RedriveSource>;
        /// Fixes the set of intents of a redrive. Nothing is sent.
        long fn plan_redrive(new: NewRedrive) -> Planning;
        /// Returns a redrive with its progress. Plans that were not started in time are not found.
        read fn find_redrive(id: RedriveId) -> Option<Redrive>;
        /// Returns redrives, the newest first, after this one.
        read fn list_redrives(after: Option<RedriveId>, limit: usize) -> RedrivePage;
        /// Starts, pauses, resumes or cancels a redrive.
        write(Redrives) fn change_redrive(id: RedriveId, change: RedriveChange, by: Actor) -> ChangedRedrive;
        /// Returns the running redrives, the oldest first.
        leader fn running_redrives() -> Vec<RunningRedrive>;
        /// Creates the next intents of a redrive in one transaction. Intents of targets that are not admitted are left for
        /// later. Intents that were deleted or redriven meanwhile are skipped.
        fenced(Scheduler) fn work_redrive(term: Term, work: RedriveWork) -> RedriveWorked;
        /// Deletes what is left of redrives that are over and of plans that were not started in time, and redrives that ended
        /// before `keep_for`. Returns whether more is left to delete.
        fenced fn tidy_redrives(term: Term, keep_for: Option<Duration>) -> bool;
    }

    /// The audit log. Calls that act for an [`Actor`] append their entry themselves, in their own transaction, if they change
    /// anything.
    trait AuditStore {
        /// Appends the entry of an action that writes nothing else.
        request fn append_audit(entry: NewAuditEntry) -> ();
        read fn list_audit(query: AuditQuery) -> AuditPage;
        /// Returns the next entries after this number, the oldest first, and the newest entry that was appended.
        read fn audit_chain(after: i64, limit: usize) -> AuditChain;
        /// Deletes the oldest entries that need not be kept any more, if their chain is intact, and appends an entry that says
        /// so.
        fenced fn purge_audit(term: Term, request: AuditPurge) -> AuditPurged;
    }
}
