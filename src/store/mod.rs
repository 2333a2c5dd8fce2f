//! Durable storage of intents, attempts, webhook events, jobs, the inbox and the lease: the contract of a store, the actor in
//! front of it, and two stores.
//!
//! [`contract`] lists the calls that every store answers in the same way; `conformance` is that contract as tests. [`actor`]
//! puts one store behind a mailbox and commits writes in batches; everyone else calls it through [`client`]. Leases, due times
//! and all stored timestamps are times of the store's own clock. The rules of what happens to an intent are in
//! [`crate::domain`], not here.

pub mod actor;
mod audit;
mod batch;
mod cancel;
pub mod client;
mod column_values;
#[cfg(test)]
pub mod conformance;
mod console;
pub mod contract;
pub mod copy;
mod error;
mod events;
mod failures;
#[cfg(test)]
pub mod faulty;
mod fleet;
pub mod health;
mod inbox;
mod intents;
mod job_log;
mod jobs;
mod lease;
pub mod messages;
mod purge;
mod redrive;
mod schedule;
pub mod selection;
mod slot;
pub mod sqlite;
pub mod sqlserver;
mod start_on_insert;
mod status_counts;
mod subscription;
mod targets;
pub mod watchers;
mod webhooks;

use std::time::Duration;

pub use self::audit::{AuditActor, AuditChain, AuditPage, AuditPurge, AuditPurged, AuditQuery};
pub use self::batch::{
    BatchResults, Conflict, FencedResults, FencedWrites, FinishResult, MAX_AHEAD, NewIntent, StartResult, StoredIntent,
    Submitted, WriteBatch,
};
pub use self::cancel::Cancellation;
pub use self::console::{
    EndedInMinute, Failing, IntentDetail, KEPT_MINUTES, LeaderRow, MINUTE_MICROS, MOST_FAILING, Overview,
    RECENT_MINUTES, TargetHealth, minute_of,
};
pub use self::contract::{
    AuditStore, EventStore, FleetStore, InboxStore, IntentStore, JobStore, LeaseStore, RedriveStore, ScheduleStore,
    Store, TargetStore, WebhookStore, WriteStore,
};
pub use self::error::{FencedError, FencedFuture, FencedResult, StoreError, StoreFailure, StoreFuture};
pub use self::events::{
    Event, EventFilter, EventPage, EventPosition, EventQuery, EventRead, EventSubject, EventsAfter,
};
pub use self::failures::{Examined, FailureGroup, FailureQuery, FailureReport, TREND_SLICES};
pub use self::fleet::{
    Activity, FORGET_INSTANCES_AFTER, FleetMinute, GatewayHold, Instance, InstanceReport, LeaderReport, TIMED_INTENTS,
    TimeToTerminal,
};
pub use self::inbox::{
    Contact, DueInbox, DueInboxSubmission, FailedInboxTry, InboxBacklog, InboxMessage, InboxPage, InboxQuery,
    InboxSubmission, InboxSubmissionSeq, InboxSubmissionState, NewInboxSubmission, ProcessedInboxSubmission, Received,
    Reprocess, SHOWN_CHARS, Text,
};
use self::intents::IdRange;
pub use self::intents::{History, IntentPage, ListOrder, ListQuery, PageCursor};
pub use self::jobs::{FoundJob, Job, JobCursor, JobLookup, JobPage, JobQuery, NewJob};
pub use self::lease::{LeaseRow, LeaseState};
pub use self::purge::{PurgeCursor, PurgeRequest, Purged};
pub use self::redrive::{
    ChangedRedrive, NewRedrive, Planning, Redrive, RedriveAdmission, RedriveLink, RedriveOutcomes, RedrivePage,
    RedriveSeq, RedriveSource, RedriveWork, RedriveWorked, RunningRedrive,
};
pub use self::schedule::{Backlog, ChangeCursor, Refresh, RefreshRequest, ScheduleSnapshot};
pub use self::slot::{AttemptEnd, InFlight, InFlightGuard, SlotGuard};
pub use self::start_on_insert::{SlotSource, StartOnInsert, StartedOnInsert};
pub use self::status_counts::{BoundedCount, MAX_COUNTED, StatusCounts};
pub use self::subscription::{TermSubscriber, TermSubscription};
pub use self::targets::{MOST_CONTRACTS, SeenContract, StoredTarget, TargetActivity, TargetMinute, TargetPause};
pub use self::webhooks::{
    DueWebhook, DueWebhooks, DueWebhooksQuery, FinishWebhookTry, OpenWebhookTry, PUT_OFF, Redelivery, WebhookHistory,
    WebhookTry,
};
pub use crate::domain::attempt::{Attempt, FinishAttempt, OpenAttempt, PostponeAttempt};
pub use crate::domain::job::JobFacts;

/// How long a write probe may take. It is less than the usual timeout of a readiness check.
pub const PROBE_BUDGET: Duration = Duration::from_secs(2);
