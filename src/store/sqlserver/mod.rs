//! The store for fleets: SQL Server or Azure SQL, through tiberius and bb8.
//!
//! Every call is one batch and one round trip; a batch of writes is one transaction of set-based statements. All times
//! are those of the database's clock. The service may start before the database is reachable: the first call that
//! reaches the database checks or migrates the schema, and until then every call fails with `Unavailable`.

mod attempts;
mod audit;
mod checks;
mod connection_string;
mod console;
mod contracts;
mod copy;
mod counts;
mod database;
mod events;
mod failures;
mod fleet;
mod inbox;
mod jobs;
mod leases;
mod migrate;
mod options;
mod purge;
mod read;
mod redrives;
mod rows;
mod script;
mod settings;
#[cfg(test)]
pub mod simulated;
mod statements;
mod status_counts;
mod submit;
mod targets;
mod webhooks;
mod write;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OnceCell;

pub use checks::Warning;
pub(in crate::store) use copy::SqlServerCopySide;
pub use database::{Tds, connect};
pub use settings::{InvalidConnectionString, PoolSettings, Settings};

use self::contracts::Contracts;
use self::database::Database;
use self::migrate::SchemaState;
use self::write::Writer;
use super::error::fenced;
use super::{
    Activity, AuditChain, AuditPage, AuditPurge, AuditPurged, AuditQuery, AuditStore, Backlog, BatchResults,
    Cancellation, ChangedRedrive, Contact, DueInbox, DueWebhooks, DueWebhooksQuery, EventQuery, EventRead, EventStore,
    FailureQuery, FailureReport, FencedFuture, FinishWebhookTry, FleetStore, FoundJob, History, InboxMessage,
    InboxPage, InboxQuery, InboxStore, InboxSubmission, InstanceReport, IntentDetail, IntentPage, IntentStore,
    JobLookup, JobPage, JobQuery, JobStore, LeaseState, LeaseStore, ListQuery, NewRedrive, OpenAttempt, OpenWebhookTry,
    Overview, Planning, ProcessedInboxSubmission, PurgeRequest, Purged, Redelivery, Redrive, RedrivePage,
    RedriveSource, RedriveStore, RedriveWork, RedriveWorked, Refresh, RefreshRequest, Reprocess, RunningRedrive,
    ScheduleSnapshot, ScheduleStore, StatusCounts, StoreError, StoreFuture, StoredIntent, StoredTarget, TargetActivity,
    TargetHealth, TargetPause, TargetStore, WebhookStore, WriteBatch, WriteStore,
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
use crate::platform::clock::StoreTime;
use crate::telemetry::metrics::Metrics;

/// Connections for calls of the leader and of readiness checks: a commit, a refresh of the schedule, a renewal of the
/// lease, and a readiness check can run at the same time.
const RESERVED_CONNECTIONS: u32 = 4;

/// New intents in one transaction: half of the default of `SM_MAX_IN_FLIGHT_PER_GATEWAY`. A transaction can then start
/// more attempts than it inserts intents, so a backlog shrinks even while clients submit as fast as they can.
const MAX_SUBMITS: usize = 64;

#[derive(Clone)]
pub struct SqlServerStore {
    name: Arc<str>,
    /// The pool for writes, the lease and reads of the leader. Reads of clients cannot delay these.
    database: Database,
    /// The pool for reads of clients.
    readers: Database,
    /// The pool for migrations.
    migrations: Database,
    contracts: Contracts,
    /// An estimate of the database's time, corrected by its answers.
    time: StoreTime,
    /// Set once the schema is known to be current.
    ready: Arc<OnceCell<()>>,
    migrate: bool,
    /// How long a call waits until the schema is checked, and how long a client's request waits for the store.
    patience: Duration,
}

impl SqlServerStore {
    /// Makes the store without connecting. The first call connects and, with `migrate`, migrates the schema.
    pub fn new(settings: &Settings, migrate: bool, metrics: Arc<Metrics>) -> Self {
        let reserved = RESERVED_CONNECTIONS.min(settings.pool.size - 1).max(1);
        Self {
            name: settings.name().into(),
            database: Database::new(settings, "work", reserved, Arc::clone(&metrics)),
            readers: Database::new(settings, "lookups", (settings.pool.size - reserved).max(1), Arc::clone(&metrics)),
            migrations: Database::new(&settings.for_migrations(), "migrations", 1, metrics),
            contracts: Contracts::default(),
            time: StoreTime::unset(),
            ready: Arc::default(),
            migrate,
            patience: settings.pool.timeout,
        }
    }

    /// Runs the pending migrations, and returns how many were run.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        checks::level(&self.database).await?;
        self.refuse_newer(migrate::state(&self.database).await?)?;
        migrate::run(&self.database, &self.migrations).await
    }

    /// Migrates the schema if the store was made with `migrate`, then checks the server and the schema, and logs a
    /// warning for each setting that should be changed. Does nothing once it has succeeded.
    pub async fn prepare(&self) -> Result<(), StoreError> {
        let prepare = async || {
            if self.migrate {
                let ran = self.migrate().await?;
                log::info!("schema_ready store={} migrations_run={ran}", self.name);
            }
            for Warning { name, text } in self.examine().await? {
                log::warn!("{name} store={} next={text:?}", self.name);
            }
            Ok(())
        };
        self.ready.get_or_try_init(prepare).await.copied()
    }

    /// Checks whether the server and the schema can be used, without changing anything. Returns warnings about settings
    /// that should be changed.
    pub async fn examine(&self) -> Result<Vec<Warning>, StoreError> {
        checks::level(&self.database).await?;
        match migrate::state(&self.database).await? {
            SchemaState::Current => checks::warnings(&self.database).await,
            SchemaState::Behind(missing) => Err(StoreError::unexpected(format!(
                "the schema lacks {missing} migrations; run 'submission-manager migrate' first"
            ))),
            newer => self.refuse_newer(newer).map(|()| Vec::new()),
        }
    }

    fn refuse_newer(&self, state: SchemaState) -> Result<(), StoreError> {
        match state {
            SchemaState::Newer(version) => Err(StoreError::unexpected(format!(
                "the schema has version {version} and was made by a newer version of this program; start that version"
            ))),
            _ => Ok(()),
        }
    }

    fn call<T, F>(&self, work: impl FnOnce(Self) -> F + Send + 'static) -> StoreFuture<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        let store = self.clone();
        Box::pin(async move {
            if !store.ready.initialized() {
                // Calls that arrive while another one prepares wait for that one, but no longer than their own timeout.
                let prepared = tokio::time::timeout(store.patience, store.prepare()).await;
                let late = |_| Err(StoreError::unavailable("the schema could not be checked in time"));
                // The call is not the cause, so whatever failed, the store is unavailable to it.
                prepared.unwrap_or_else(late).map_err(StoreError::unavailable)?;
            }
            work(store).await
        })
    }
}

impl WriteStore for SqlServerStore {
    fn commit(&self, batch: WriteBatch) -> StoreFuture<BatchResults> {
        self.call(move |store| async move {
            let writer = Writer { database: &store.database, contracts: &store.contracts, time: &store.time };
            writer.commit(batch).await
        })
    }

    fn budget(&self) -> Duration {
        self.patience
    }

    fn max_submits(&self) -> usize {
        MAX_SUBMITS
    }
}

impl LeaseStore for SqlServerStore {
    fn acquire_lease(&self, name: Arc<str>, holder: Arc<str>, duration: Duration) -> StoreFuture<Option<Lease>> {
        self.call(
            move |store| async move { leases::acquire(&store.database, &store.time, name, holder, duration).await },
        )
    }

    fn renew_lease(&self, term: Term, duration: Duration) -> FencedFuture<Lease> {
        fenced(self.call(move |store| async move { leases::renew(&store.database, &store.time, term, duration).await }))
    }

    fn release_lease(&self, term: Term) -> StoreFuture<()> {
        self.call(move |store| async move { leases::release(&store.database, term).await })
    }

    fn lease_state(&self) -> StoreFuture<LeaseState> {
        self.call(|store| async move { leases::state(&store.database).await })
    }

    fn reset_lease(&self, epoch: i64, renewed_at: Timestamp, by: Actor) -> StoreFuture<bool> {
        self.call(move |store| async move { leases::reset(&store.database, epoch, renewed_at, &by).await })
    }
}

impl ScheduleStore for SqlServerStore {
    fn open_attempts_before(&self, epoch: i64, limit: usize) -> StoreFuture<Vec<OpenAttempt>> {
        self.call(move |store| async move { read::open_attempts_before(&store.database, epoch, limit).await })
    }

    fn schedule_snapshot(&self, page_limit: usize) -> StoreFuture<ScheduleSnapshot> {
        self.call(move |store| async move { read::schedule_snapshot(&store.database, page_limit).await })
    }

    fn refresh_schedule(&self, request: RefreshRequest) -> StoreFuture<Refresh> {
        self.call(move |store| async move { read::refresh_schedule(&store.database, request).await })
    }

    fn backlog(&self) -> StoreFuture<Backlog> {
        self.call(|store| async move { read::backlog(&store.database).await })
    }

    fn purge(&self, term: Term, request: PurgeRequest) -> FencedFuture<Purged> {
        fenced(self.call(move |store| async move { purge::purge(&store.database, term, request).await }))
    }

    fn probe(&self, _: usize) -> StoreFuture<()> {
        self.call(|store| async move { read::probe(&store.database).await })
    }
}

impl IntentStore for SqlServerStore {
    fn find(&self, id: IntentId) -> StoreFuture<Option<StoredIntent>> {
        self.call(move |store| async move { read::find(&store.readers, id).await })
    }

    fn history(&self, id: IntentId) -> StoreFuture<Option<History>> {
        self.call(move |store| async move { read::history(&store.readers, id).await })
    }

    fn list(&self, query: ListQuery) -> StoreFuture<IntentPage> {
        self.call(move |store| async move { read::list(&store.readers, query).await })
    }

    fn status_counts(&self, query: ListQuery) -> StoreFuture<StatusCounts> {
        self.call(move |store| async move { status_counts::count(&store.readers, &query).await })
    }

    fn detail(&self, id: IntentId) -> StoreFuture<Option<IntentDetail>> {
        self.call(move |store| async move { console::detail(&store.readers, id).await })
    }

    fn payload(&self, id: IntentId) -> StoreFuture<Option<Bytes>> {
        self.call(move |store| async move { console::payload(&store.readers, id).await })
    }

    fn overview(&self) -> StoreFuture<Overview> {
        self.call(|store| async move { console::overview(&store.readers).await })
    }

    fn failures(&self, query: FailureQuery) -> StoreFuture<FailureReport> {
        self.call(move |store| async move { failures::report(&store.readers, query).await })
    }

    fn causes(&self, intents: Vec<IntentSeq>) -> StoreFuture<HashMap<IntentSeq, String>> {
        self.call(move |store| async move { failures::causes(&store.readers, &intents).await })
    }

    fn cancel(&self, id: IntentId, after_attempt: bool, by: Actor) -> StoreFuture<Cancellation> {
        self.call(move |store| async move { options::cancel(&store.readers, id, after_attempt, &by).await })
    }
}

impl EventStore for SqlServerStore {
    fn events(&self, query: EventQuery) -> StoreFuture<EventRead> {
        self.call(move |store| async move { events::read(&store.readers, query).await })
    }
}

impl TargetStore for SqlServerStore {
    fn target_health(&self) -> StoreFuture<Vec<TargetHealth>> {
        self.call(|store| async move { console::target_health(&store.readers).await })
    }

    fn targets(&self) -> StoreFuture<Vec<StoredTarget>> {
        self.call(|store| async move { targets::all(&store.readers).await })
    }

    fn target_activity(&self, target: TargetName, minutes: i64) -> StoreFuture<TargetActivity> {
        self.call(move |store| async move { targets::activity(&store.readers, target, minutes).await })
    }

    fn pause_target(&self, target: TargetName, reason: Option<PauseReason>, by: Actor) -> StoreFuture<TargetPause> {
        self.call(move |store| async move { targets::pause(&store.readers, target, reason, by).await })
    }

    fn resume_target(&self, target: TargetName, by: Actor) -> StoreFuture<()> {
        self.call(move |store| async move { targets::resume(&store.readers, &target, &by).await })
    }
}

impl FleetStore for SqlServerStore {
    fn record_instance(&self, report: InstanceReport) -> StoreFuture<()> {
        self.call(move |store| async move { fleet::record(&store.database, report).await })
    }

    fn forget_instance(&self, instance_id: String) -> StoreFuture<()> {
        self.call(move |store| async move { fleet::forget(&store.database, instance_id).await })
    }

    fn activity(&self, minutes: i64) -> StoreFuture<Activity> {
        self.call(move |store| async move { fleet::activity(&store.readers, minutes).await })
    }
}

impl WebhookStore for SqlServerStore {
    fn due_webhooks(&self, look: DueWebhooksQuery) -> StoreFuture<DueWebhooks> {
        self.call(move |store| async move { webhooks::due(&store.database, look).await })
    }

    fn start_webhooks(&self, term: Term, events: Vec<IntentSeq>) -> FencedFuture<Vec<OpenWebhookTry>> {
        fenced(
            self.call(
                move |store| async move { webhooks::begin(&store.database, &store.contracts, &term, &events).await },
            ),
        )
    }

    fn finish_webhooks(&self, term: Term, finished: Vec<Arc<FinishWebhookTry>>) -> FencedFuture<()> {
        fenced(self.call(move |store| async move { webhooks::finish(&store.database, &term, &finished).await }))
    }

    fn close_webhooks(&self, term: Term, under_way: Vec<IntentSeq>) -> FencedFuture<usize> {
        fenced(self.call(move |store| async move { webhooks::close(&store.database, &term, &under_way).await }))
    }

    fn redeliver_webhook(&self, id: IntentId, by: Actor) -> StoreFuture<Redelivery> {
        self.call(move |store| async move { webhooks::redeliver(&store.readers, &id, &by).await })
    }
}

impl JobStore for SqlServerStore {
    fn find_job(&self, by: JobLookup) -> StoreFuture<Option<FoundJob>> {
        self.call(move |store| async move { jobs::find(&store.readers, by).await })
    }

    fn list_jobs(&self, query: JobQuery) -> StoreFuture<JobPage> {
        self.call(move |store| async move { jobs::list(&store.readers, &query).await })
    }

    fn admits_jobs(&self, gateway: GatewayUrl) -> StoreFuture<bool> {
        self.call(move |store| async move { jobs::admits(&store.readers, &gateway).await })
    }
}

impl InboxStore for SqlServerStore {
    fn due_inbox(&self, limit: usize) -> StoreFuture<DueInbox> {
        self.call(move |store| async move { inbox::look(&store.database, limit).await })
    }

    fn process_inbox(
        &self,
        term: Term,
        processed: Vec<ProcessedInboxSubmission>,
    ) -> FencedFuture<Vec<Result<(), StoreError>>> {
        fenced(self.call(move |store| async move { inbox::process(&store.database, &term, &processed).await }))
    }

    fn reprocess(&self, which: Reprocess, by: Actor) -> StoreFuture<usize> {
        self.call(move |store| async move { inbox::reprocess(&store.readers, &which, &by).await })
    }

    fn find_submission(&self, id: InboxSubmissionId) -> StoreFuture<Option<(InboxSubmission, Bytes)>> {
        self.call(move |store| async move { inbox::find(&store.readers, id).await })
    }

    fn list_submissions(&self, query: InboxQuery) -> StoreFuture<InboxPage<InboxSubmission>> {
        self.call(move |store| async move { inbox::submissions(&store.readers, &query).await })
    }

    fn list_contacts(&self, query: InboxQuery) -> StoreFuture<InboxPage<Contact>> {
        self.call(move |store| async move { inbox::contacts(&store.readers, &query).await })
    }

    fn list_messages(&self, query: InboxQuery) -> StoreFuture<InboxPage<InboxMessage>> {
        self.call(move |store| async move { inbox::messages(&store.readers, &query).await })
    }
}

impl RedriveStore for SqlServerStore {
    fn redrive_source(&self, id: IntentId) -> StoreFuture<Option<RedriveSource>> {
        self.call(move |store| async move { redrives::source(&store.readers, id).await })
    }

    fn plan_redrive(&self, new: NewRedrive) -> StoreFuture<Planning> {
        self.call(move |store| async move { redrives::plan::run(&store.readers, new).await })
    }

    fn find_redrive(&self, id: RedriveId) -> StoreFuture<Option<Redrive>> {
        self.call(move |store| async move { redrives::find(&store.readers, id).await })
    }

    fn list_redrives(&self, after: Option<RedriveId>, limit: usize) -> StoreFuture<RedrivePage> {
        self.call(move |store| async move { redrives::list(&store.readers, after, limit).await })
    }

    fn change_redrive(&self, id: RedriveId, change: RedriveChange, by: Actor) -> StoreFuture<ChangedRedrive> {
        self.call(move |store| async move { redrives::change(&store.readers, id, change, &by).await })
    }

    fn running_redrives(&self) -> StoreFuture<Vec<RunningRedrive>> {
        self.call(|store| async move { redrives::running(&store.database).await })
    }

    fn work_redrive(&self, term: Term, work: RedriveWork) -> FencedFuture<RedriveWorked> {
        fenced(self.call(move |store| async move {
            redrives::work::run(&store.database, &store.contracts, &term, &work).await
        }))
    }

    fn tidy_redrives(&self, term: Term, keep_for: Option<Duration>) -> FencedFuture<bool> {
        fenced(self.call(move |store| async move { redrives::tidy(&store.database, &term, keep_for).await }))
    }
}

impl AuditStore for SqlServerStore {
    fn append_audit(&self, entry: NewAuditEntry) -> StoreFuture<()> {
        self.call(move |store| async move { audit::append_alone(&store.readers, entry).await })
    }

    fn list_audit(&self, query: AuditQuery) -> StoreFuture<AuditPage> {
        self.call(move |store| async move { audit::list(&store.readers, query).await })
    }

    fn audit_chain(&self, after: i64, limit: usize) -> StoreFuture<AuditChain> {
        self.call(move |store| async move { audit::chain(&store.readers, after, limit).await })
    }

    fn purge_audit(&self, term: Term, request: AuditPurge) -> FencedFuture<AuditPurged> {
        fenced(self.call(move |store| async move { audit::purge(&store.database, &term, &request).await }))
    }
}

#[cfg(test)]
mod tests;
