//! The embedded store: one SQLite file that all instances on one machine can share.
//!
//! One connection writes, one transaction at a time and with `synchronous=FULL`, so that an answered write is on disk. A
//! few connections read and never wait for the writer (WAL mode). One connection copies the write-ahead log into the file.
//! Each call runs on a blocking thread. If several processes use the file, `BEGIN IMMEDIATE` orders their writes.

mod attempts;
mod audit;
pub mod backup;
mod checkpoint;
mod connection;
mod console;
mod copy;
mod events;
mod failures;
mod filters;
mod fleet;
mod inbox;
#[cfg(test)]
pub mod inline;
pub mod integrity;
mod jobs;
mod leases;
mod messages;
mod migrate;
mod minute_counts;
mod numbers;
mod options;
mod purge;
mod read;
mod redrives;
mod schedule;
mod status_counts;
mod targets;
mod webhooks;
mod write;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

pub use connection::OpenError;
pub(in crate::store) use copy::SqliteCopySide;

use self::checkpoint::Checkpointer;
use self::jobs::Reach;
use self::write::ContractCache;
use super::error::fenced;
use super::{
    Activity, AuditChain, AuditPage, AuditPurge, AuditPurged, AuditQuery, AuditStore, Backlog, BatchResults,
    Cancellation, ChangedRedrive, Contact, DueInbox, DueWebhooks, DueWebhooksQuery, EventQuery, EventRead, EventStore,
    FailureQuery, FailureReport, FencedFuture, FinishWebhookTry, FleetStore, FoundJob, History, InboxMessage,
    InboxPage, InboxQuery, InboxStore, InboxSubmission, InstanceReport, IntentDetail, IntentPage, IntentStore,
    JobLookup, JobPage, JobQuery, JobStore, LeaseState, LeaseStore, ListQuery, NewRedrive, OpenAttempt, OpenWebhookTry,
    Overview, PROBE_BUDGET, Planning, ProcessedInboxSubmission, PurgeRequest, Purged, Redelivery, Redrive, RedrivePage,
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
use crate::platform::clock::{WallClock, monotonic};
use crate::platform::errors::Described;

/// Connections for reads of clients. More would not help, because they wait for the same few cores.
const READERS: usize = 4;
/// Connections for reads of the leader and of readiness checks, so that clients cannot delay those.
const RESERVED_READERS: usize = 2;
/// How long a call may take, including all waiting, before it fails.
const BUDGET: Duration = Duration::from_secs(5);

/// A store in a SQLite file.
#[derive(Clone)]
pub struct SqliteStore {
    file: Arc<DatabaseFile>,
    clock: WallClock,
    writer: Arc<Mutex<Writer>>,
    readers: Arc<Readers>,
    reserved: Arc<Readers>,
    checkpointer: Arc<Checkpointer>,
    /// All calls are made by the caller's thread on the writer's connection; see [`inline`].
    #[cfg(test)]
    inline: bool,
}

struct Writer {
    connection: Connection,
    contracts: ContractCache,
    /// The moving average of the duration of a commit.
    commit_time: Duration,
}

/// A pool of connections for reading.
struct Readers {
    available: Arc<Semaphore>,
    idle: std::sync::Mutex<Vec<Connection>>,
}

/// A connection for reading. Dropping it returns it to the pool, also when its work panics or its caller stops waiting.
struct Reader {
    readers: Arc<Readers>,
    connection: Option<Connection>,
    /// Released after the connection is back in the pool.
    _taken: OwnedSemaphorePermit,
}

impl Reader {
    fn connection(&mut self) -> Result<&mut Connection, rusqlite::Error> {
        self.connection.as_mut().ok_or(rusqlite::Error::InvalidQuery)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.idle().extend(self.connection.take());
    }
}

impl SqliteStore {
    /// Opens the file, which must have been migrated.
    pub fn open(path: &Path, clock: WallClock) -> Result<Self, OpenError> {
        let connection = connection::open_existing(path)?;
        migrate::require_current(&connection, path)?;
        let writer = Arc::new(Mutex::new(Writer {
            connection,
            contracts: ContractCache::default(),
            commit_time: Duration::ZERO,
        }));
        Ok(Self {
            file: Arc::new(DatabaseFile::of(path)),
            clock,
            writer: Arc::clone(&writer),
            readers: Readers::open(path, READERS)?,
            reserved: Readers::open(path, RESERVED_READERS)?,
            checkpointer: Checkpointer::open(path, writer)?,
            #[cfg(test)]
            inline: false,
        })
    }

    /// Checks whether the file, which does not exist, could be created at start. It leaves nothing on the disk.
    pub fn could_be_made(path: &Path) -> Result<(), OpenError> {
        let own = connection::directory_of(path);
        // The directory of the file may be missing, but not the parent of that: see `make_directory`.
        let directory = if own.exists() { own } else { connection::directory_of(own) };
        if !directory.is_dir() {
            let what = format!("there is no directory {}", own.display());
            return Err(OpenError::new(path, what, connection::NO_DIRECTORY));
        }
        let remedy = "make it writable, or set SM_STORE to another path";
        let refused =
            |error| OpenError::new(path, format!("cannot write to {} ({error})", directory.display()), remedy);
        tempfile::tempfile_in(directory).map(drop).map_err(refused)
    }

    /// Creates the directory of a new store, if its parent directory exists.
    pub fn make_directory(path: &Path) -> Result<(), OpenError> {
        connection::make_directory(path)
    }

    /// Creates the file if it does not exist, and brings its schema up to date. Returns how many migrations were run.
    pub fn migrate(path: &Path) -> Result<usize, OpenError> {
        migrate::run(path)
    }

    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> StoreFuture<T> {
        self.write_with(0, monotonic() + BUDGET, work)
    }

    /// Makes a write with this many payload bytes. It fails if it cannot start before `give_up_at`, because this process makes
    /// other writes or another process holds the lock.
    fn write_with<T: Send + 'static>(
        &self,
        payload_bytes: usize,
        give_up_at: Instant,
        work: impl FnOnce(&mut Writer, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> StoreFuture<T> {
        let (writer, clock, file) = (Arc::clone(&self.writer), self.clock.clone(), Arc::clone(&self.file));
        let checkpointer = Arc::clone(&self.checkpointer);
        #[cfg(test)]
        if self.inline {
            return inline::write(writer, clock, give_up_at, work);
        }
        Box::pin(async move {
            let late = |_| StoreError::unavailable("other writes took too long");
            let mut writer = tokio::time::timeout_at(give_up_at, writer.lock_owned()).await.map_err(late)?;
            let done = blocking(move || {
                file.check()?;
                writer.connection.busy_timeout(give_up_at.saturating_duration_since(monotonic()))?;
                work(&mut writer, &clock)
            });
            let done = done.await?;
            checkpointer.committed(payload_bytes);
            Ok(done)
        })
    }

    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> StoreFuture<T> {
        self.read_with(&self.readers, work)
    }

    fn read_reserved<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> StoreFuture<T> {
        self.read_with(&self.reserved, work)
    }

    fn read_with<T: Send + 'static>(
        &self,
        readers: &Arc<Readers>,
        work: impl FnOnce(&mut Connection, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> StoreFuture<T> {
        let (readers, clock, file) = (Arc::clone(readers), self.clock.clone(), Arc::clone(&self.file));
        #[cfg(test)]
        if self.inline {
            return inline::read(Arc::clone(&self.writer), clock, work);
        }
        Box::pin(async move {
            let mut reader = readers.take().await?;
            blocking(move || {
                file.check()?;
                work(reader.connection()?, &clock)
            })
            .await
        })
    }
}

/// The file that was opened. If it is removed or replaced, writes to it would be lost, so the store then refuses every call.
struct DatabaseFile {
    path: PathBuf,
    opened: Option<(u64, u64)>,
}

impl DatabaseFile {
    fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), opened: identity(path) }
    }

    fn check(&self) -> Result<(), rusqlite::Error> {
        if identity(&self.path) == self.opened {
            return Ok(());
        }
        let gone = "the database file was removed or replaced; put it back, or restart this instance";
        Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
            Some(gone.to_owned()),
        ))
    }
}

/// Returns the device and inode numbers of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl Readers {
    fn open(path: &Path, count: usize) -> Result<Arc<Self>, OpenError> {
        let idle = (0..count).map(|_| connection::open_reader(path)).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(Self { available: Arc::new(Semaphore::new(count)), idle: std::sync::Mutex::new(idle) }))
    }

    async fn take(self: &Arc<Self>) -> Result<Reader, StoreError> {
        let taken = Arc::clone(&self.available).acquire_owned().await;
        let taken = taken.map_err(|_| StoreError::unavailable("the store is closing"))?;
        Ok(Reader { readers: Arc::clone(self), connection: self.idle().pop(), _taken: taken })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` on a thread where it may block. A panic in it is an error of this call alone.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, rusqlite::Error> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(connection::store_error),
        Err(panic) => Err(StoreError::unavailable(Described::new("a database call panicked", panic))),
    }
}

impl WriteStore for SqliteStore {
    fn commit(&self, batch: WriteBatch) -> StoreFuture<BatchResults> {
        let received: usize = batch.received.iter().map(|new| new.payload.len()).sum();
        let payload_bytes = batch.submits.iter().map(|new| new.payload.bytes().len()).sum::<usize>() + received;
        let give_up_at = batch.give_up_at.unwrap_or_else(|| monotonic() + BUDGET);
        let commit = move |writer: &mut Writer, clock: &WallClock| {
            let started = monotonic();
            let results = write::commit(&mut writer.connection, &mut writer.contracts, clock, &batch);
            writer.commit_time = (writer.commit_time * 7 + monotonic().duration_since(started)) / 8;
            results
        };
        self.write_with(payload_bytes, give_up_at, commit)
    }

    fn budget(&self) -> Duration {
        BUDGET
    }
}

impl LeaseStore for SqliteStore {
    fn acquire_lease(&self, name: Arc<str>, holder: Arc<str>, duration: Duration) -> StoreFuture<Option<Lease>> {
        self.write(move |writer, clock| leases::acquire(&mut writer.connection, clock, name, holder, duration))
    }

    fn renew_lease(&self, term: Term, duration: Duration) -> FencedFuture<Lease> {
        fenced(self.write(move |writer, clock| leases::renew(&mut writer.connection, clock, term, duration)))
    }

    fn release_lease(&self, term: Term) -> StoreFuture<()> {
        self.write(move |writer, clock| leases::release(&mut writer.connection, clock, &term))
    }

    fn lease_state(&self) -> StoreFuture<LeaseState> {
        self.read_reserved(leases::state)
    }

    fn reset_lease(&self, epoch: i64, renewed_at: Timestamp, by: Actor) -> StoreFuture<bool> {
        self.write(move |writer, clock| leases::reset(&mut writer.connection, clock, epoch, renewed_at, &by))
    }
}

impl ScheduleStore for SqliteStore {
    fn open_attempts_before(&self, epoch: i64, limit: usize) -> StoreFuture<Vec<OpenAttempt>> {
        self.read_reserved(move |connection, _| schedule::open_attempts_before(connection, epoch, limit))
    }

    fn schedule_snapshot(&self, page_limit: usize) -> StoreFuture<ScheduleSnapshot> {
        self.read_reserved(move |connection, clock| schedule::snapshot(connection, clock, page_limit))
    }

    fn refresh_schedule(&self, request: RefreshRequest) -> StoreFuture<Refresh> {
        self.read_reserved(move |connection, clock| schedule::refresh(connection, clock, request))
    }

    fn backlog(&self) -> StoreFuture<Backlog> {
        self.read_reserved(schedule::backlog)
    }

    fn purge(&self, term: Term, request: PurgeRequest) -> FencedFuture<Purged> {
        let purge = move |writer: &mut Writer, clock: &WallClock| {
            let time_limit = purge::time_limit(writer.commit_time);
            purge::run(&mut writer.connection, clock, &term, &request, time_limit)
        };
        let (purging, checkpointer) = (fenced(self.write(purge)), Arc::clone(&self.checkpointer));
        Box::pin(async move {
            let purged = purging.await?;
            checkpointer.wrote(purged.intents * purge::PAGES_EACH);
            Ok(purged)
        })
    }

    fn probe(&self, bytes: usize) -> StoreFuture<()> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.write_with(0, monotonic() + PROBE_BUDGET, move |writer, clock| {
            let (transaction, _) = connection::begin_transaction(&mut writer.connection, clock)?;
            let probe = "INSERT INTO submission_probes (only_row, filler) VALUES (1, zeroblob(?1))
                ON CONFLICT (only_row) DO UPDATE SET filler = excluded.filler";
            transaction.prepare_cached(probe)?.execute([bytes])?;
            transaction.commit()
        })
    }
}

impl IntentStore for SqliteStore {
    fn find(&self, id: IntentId) -> StoreFuture<Option<StoredIntent>> {
        self.read(move |connection, _| read::find(connection, &id))
    }

    fn history(&self, id: IntentId) -> StoreFuture<Option<History>> {
        self.read(move |connection, _| read::history(connection, &id))
    }

    fn list(&self, query: ListQuery) -> StoreFuture<IntentPage> {
        self.read(move |connection, _| read::list(connection, &query))
    }

    fn status_counts(&self, query: ListQuery) -> StoreFuture<StatusCounts> {
        self.read(move |connection, _| status_counts::count(connection, &query))
    }

    fn detail(&self, id: IntentId) -> StoreFuture<Option<IntentDetail>> {
        self.read(move |connection, clock| console::detail(connection, clock, &id))
    }

    fn payload(&self, id: IntentId) -> StoreFuture<Option<Bytes>> {
        self.read(move |connection, _| console::payload(connection, &id))
    }

    fn overview(&self) -> StoreFuture<Overview> {
        self.read(console::overview)
    }

    fn failures(&self, query: FailureQuery) -> StoreFuture<FailureReport> {
        self.read(move |connection, clock| failures::report(connection, clock, &query))
    }

    fn causes(&self, intents: Vec<IntentSeq>) -> StoreFuture<HashMap<IntentSeq, String>> {
        self.read(move |connection, _| failures::causes(connection, &intents))
    }

    fn cancel(&self, id: IntentId, after_attempt: bool, by: Actor) -> StoreFuture<Cancellation> {
        self.write(move |writer, clock| attempts::cancel(&mut writer.connection, clock, &id, after_attempt, &by))
    }
}

impl EventStore for SqliteStore {
    fn events(&self, query: EventQuery) -> StoreFuture<EventRead> {
        self.read(move |connection, _| events::read(connection, &query))
    }
}

impl TargetStore for SqliteStore {
    fn target_health(&self) -> StoreFuture<Vec<TargetHealth>> {
        self.read(console::target_health)
    }

    fn targets(&self) -> StoreFuture<Vec<StoredTarget>> {
        self.read(|connection, _| targets::all(connection))
    }

    fn target_activity(&self, target: TargetName, minutes: i64) -> StoreFuture<TargetActivity> {
        self.read(move |connection, clock| targets::activity(connection, clock, &target, minutes))
    }

    fn pause_target(&self, target: TargetName, reason: Option<PauseReason>, by: Actor) -> StoreFuture<TargetPause> {
        self.write(move |writer, clock| targets::pause(&mut writer.connection, clock, &target, reason.as_ref(), &by))
    }

    fn resume_target(&self, target: TargetName, by: Actor) -> StoreFuture<()> {
        self.write(move |writer, clock| targets::resume(&mut writer.connection, clock, &target, &by))
    }
}

impl FleetStore for SqliteStore {
    fn record_instance(&self, report: InstanceReport) -> StoreFuture<()> {
        self.write(move |writer, clock| fleet::record(&mut writer.connection, clock, &report))
    }

    fn forget_instance(&self, instance_id: String) -> StoreFuture<()> {
        self.write(move |writer, _| fleet::forget(&writer.connection, &instance_id))
    }

    fn activity(&self, minutes: i64) -> StoreFuture<Activity> {
        self.read(move |connection, clock| fleet::activity(connection, clock, minutes))
    }
}

impl WebhookStore for SqliteStore {
    fn due_webhooks(&self, query: DueWebhooksQuery) -> StoreFuture<DueWebhooks> {
        self.read_reserved(move |connection, clock| webhooks::due(connection, clock, &query))
    }

    fn start_webhooks(&self, term: Term, events: Vec<IntentSeq>) -> FencedFuture<Vec<OpenWebhookTry>> {
        fenced(self.write(move |writer, clock| webhooks::start(writer, clock, &term, &events)))
    }

    fn finish_webhooks(&self, term: Term, finished: Vec<Arc<FinishWebhookTry>>) -> FencedFuture<()> {
        fenced(self.write(move |writer, clock| webhooks::finish(&mut writer.connection, clock, &term, &finished)))
    }

    fn close_webhooks(&self, term: Term, under_way: Vec<IntentSeq>) -> FencedFuture<usize> {
        fenced(self.write(move |writer, clock| webhooks::close(&mut writer.connection, clock, &term, &under_way)))
    }

    fn redeliver_webhook(&self, id: IntentId, by: Actor) -> StoreFuture<Redelivery> {
        self.write(move |writer, clock| webhooks::redeliver(&mut writer.connection, clock, &id, &by))
    }
}

impl JobStore for SqliteStore {
    fn find_job(&self, by: JobLookup) -> StoreFuture<Option<FoundJob>> {
        self.read(move |connection, _| jobs::find(connection, by))
    }

    fn list_jobs(&self, query: JobQuery) -> StoreFuture<JobPage> {
        self.read(move |connection, _| jobs::list(connection, &query))
    }

    fn admits_jobs(&self, gateway: GatewayUrl) -> StoreFuture<bool> {
        let url = gateway.clone();
        let reach = self.read(move |connection, clock| jobs::reach(connection, clock, &url));
        let probe = self.write(move |writer, clock| jobs::take_probe(&mut writer.connection, clock, &gateway));
        Box::pin(async move {
            match reach.await? {
                Reach::Answers => Ok(true),
                Reach::Gone => Ok(false),
                Reach::GoneForLong => probe.await,
            }
        })
    }
}

impl InboxStore for SqliteStore {
    fn due_inbox(&self, limit: usize) -> StoreFuture<DueInbox> {
        self.read_reserved(move |connection, clock| inbox::due(connection, clock, limit))
    }

    fn process_inbox(
        &self,
        term: Term,
        processed: Vec<ProcessedInboxSubmission>,
    ) -> FencedFuture<Vec<Result<(), StoreError>>> {
        fenced(self.write(move |writer, clock| inbox::process(&mut writer.connection, clock, &term, &processed)))
    }

    fn reprocess(&self, which: Reprocess, by: Actor) -> StoreFuture<usize> {
        self.write(move |writer, clock| inbox::reprocess(&mut writer.connection, clock, &which, &by))
    }

    fn find_submission(&self, id: InboxSubmissionId) -> StoreFuture<Option<(InboxSubmission, Bytes)>> {
        self.read(move |connection, _| inbox::find(connection, id))
    }

    fn list_submissions(&self, query: InboxQuery) -> StoreFuture<InboxPage<InboxSubmission>> {
        self.read(move |connection, _| inbox::submissions(connection, &query))
    }

    fn list_contacts(&self, query: InboxQuery) -> StoreFuture<InboxPage<Contact>> {
        self.read(move |connection, _| inbox::contacts(connection, &query))
    }

    fn list_messages(&self, query: InboxQuery) -> StoreFuture<InboxPage<InboxMessage>> {
        self.read(move |connection, _| inbox::messages(connection, &query))
    }
}

impl RedriveStore for SqliteStore {
    fn redrive_source(&self, id: IntentId) -> StoreFuture<Option<RedriveSource>> {
        self.read(move |connection, _| redrives::source(connection, &id))
    }

    fn plan_redrive(&self, new: NewRedrive) -> StoreFuture<Planning> {
        Box::pin(redrives::plan::run(self.clone(), new))
    }

    fn find_redrive(&self, id: RedriveId) -> StoreFuture<Option<Redrive>> {
        self.read(move |connection, clock| redrives::find(connection, clock, id))
    }

    fn list_redrives(&self, after: Option<RedriveId>, limit: usize) -> StoreFuture<RedrivePage> {
        self.read(move |connection, clock| redrives::list(connection, clock, after, limit))
    }

    fn change_redrive(&self, id: RedriveId, change: RedriveChange, by: Actor) -> StoreFuture<ChangedRedrive> {
        self.write(move |writer, clock| redrives::change(&mut writer.connection, clock, id, change, &by))
    }

    fn running_redrives(&self) -> StoreFuture<Vec<RunningRedrive>> {
        self.read_reserved(|connection, _| redrives::running(connection))
    }

    fn work_redrive(&self, term: Term, work: RedriveWork) -> FencedFuture<RedriveWorked> {
        let step = self.write(move |writer, clock| redrives::work::run(writer, clock, &term, &work));
        let (step, checkpointer) = (fenced(step), Arc::clone(&self.checkpointer));
        Box::pin(async move {
            let step = step.await?;
            checkpointer.committed(step.payload_bytes);
            Ok(step.worked)
        })
    }

    fn tidy_redrives(&self, term: Term, keep_for: Option<Duration>) -> FencedFuture<bool> {
        fenced(self.write(move |writer, clock| redrives::tidy(&mut writer.connection, clock, &term, keep_for)))
    }
}

impl AuditStore for SqliteStore {
    fn append_audit(&self, entry: NewAuditEntry) -> StoreFuture<()> {
        self.write(move |writer, clock| audit::append_alone(&mut writer.connection, clock, &entry))
    }

    fn list_audit(&self, query: AuditQuery) -> StoreFuture<AuditPage> {
        self.read(move |connection, _| audit::list(connection, &query))
    }

    fn audit_chain(&self, after: i64, limit: usize) -> StoreFuture<AuditChain> {
        self.read(move |connection, _| audit::chain(connection, after, limit))
    }

    fn purge_audit(&self, term: Term, request: AuditPurge) -> FencedFuture<AuditPurged> {
        fenced(self.write(move |writer, clock| audit::purge(&mut writer.connection, clock, &term, &request)))
    }
}

/// Returns the path of a value `sqlite:<path>` of `SM_STORE`; `None` for other values.
pub fn path_of(store: &str) -> Option<PathBuf> {
    store.strip_prefix("sqlite:").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// How many prepared statements each connection keeps. The store has about sixty.
const PREPARED_STATEMENTS: Option<NonZeroUsize> = NonZeroUsize::new(96);

#[cfg(test)]
mod tests;
