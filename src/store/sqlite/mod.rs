//! The embedded store: one SQLite file, shared safely by all instances on one machine.
//!
//! One connection writes, one transaction at a time, `synchronous=FULL`: what was answered is on
//! disk. A few others read, never waiting for the writer (WAL); one copies the log into the file. Each call runs on a blocking
//! thread. Several processes may use the file: `BEGIN IMMEDIATE` puts their writes in one order.

pub mod backup;
mod checkpoint;
mod connection;
mod inbox;
mod insight;
pub mod integrity;
mod jobs;
mod leases;
mod messages;
mod migrate;
mod numbers;
mod purge;
mod read;
mod schedule;
mod tally;
mod targets;
mod webhooks;
mod write;

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

use self::checkpoint::Checkpointer;
use self::jobs::Reach;
use self::write::ContractCache;
use super::error::fenced;
use super::{
    Backlog, BatchResults, Contact, DueInbox, DueWebhooks, DueWebhooksQuery, FencedFuture, FinishWebhookTry, FoundJob,
    History, InboxMessage, InboxPage, InboxQuery, InboxStore, InboxSubmission, IntentDetail, IntentPage, IntentStore,
    JobLookup, JobPage, JobQuery, JobStore, LeaseState, LeaseStore, ListQuery, OpenAttempt, OpenWebhookTry, Overview,
    PROBE_BUDGET, ProcessedInboxSubmission, PurgeRequest, Purged, Redelivery, Refresh, RefreshRequest, Reprocess,
    ScheduleSnapshot, ScheduleStore, StoreError, StoreFuture, StoredIntent, StoredTarget, TargetHealth, TargetStore,
    WebhookStore, WriteBatch, WriteStore,
};
use crate::domain::contract::GatewayUrl;
use crate::domain::inbox::InboxSubmissionId;
use crate::domain::intent::{IntentId, IntentSeq, TargetName};
use crate::domain::lease::{Lease, Term};
use crate::domain::time::Timestamp;
use crate::platform::clock::{WallClock, monotonic};

/// Connections for what clients read. More would only wait for the same two or four cores.
const READERS: usize = 4;
/// Connections for what the leader and readiness checks read: clients cannot hold those up.
const RESERVED_READERS: usize = 2;
/// How long a call may take, whoever it has to wait for, before it gives up with 503.
const BUDGET: Duration = Duration::from_secs(5);

pub struct SqliteStore {
    file: Arc<DatabaseFile>,
    clock: WallClock,
    writer: Arc<Mutex<Writer>>,
    readers: Arc<Readers>,
    reserved: Arc<Readers>,
    checkpointer: Arc<Checkpointer>,
}

struct Writer {
    connection: Connection,
    contracts: ContractCache,
    /// How long a commit takes, averaged over the last few.
    commit_time: Duration,
}

struct Readers {
    permits: Arc<Semaphore>,
    idle: std::sync::Mutex<Vec<Connection>>,
}

/// A connection that reads, returned to the others when dropped: also when its work panics, or nobody waits for it any more.
struct Reader {
    readers: Arc<Readers>,
    connection: Option<Connection>,
    /// Released after the connection is back.
    _permit: OwnedSemaphorePermit,
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
        })
    }

    /// Whether the file, which does not exist, could be made at start; leaves nothing behind.
    pub fn could_be_made(path: &Path) -> Result<(), OpenError> {
        let own = connection::directory_of(path);
        // Its directory may be missing, that one's may not: see `make_directory`.
        let directory = if own.exists() { own } else { connection::directory_of(own) };
        if !directory.is_dir() {
            let what = format!("there is no directory {}", own.display());
            return Err(OpenError::new(path, what, connection::NO_DIRECTORY));
        }
        let remedy = "make it writable, or name another file with SM_STORE";
        let refused =
            |error| OpenError::new(path, format!("cannot write to {} ({error})", directory.display()), remedy);
        tempfile::tempfile_in(directory).map(drop).map_err(refused)
    }

    /// Makes the directory of a new store, if that is the only one missing.
    pub fn make_directory(path: &Path) -> Result<(), OpenError> {
        connection::make_directory(path)
    }

    /// Creates the file if there is none and brings its schema up to date. Returns how many
    /// migrations were run.
    pub fn migrate(path: &Path) -> Result<usize, OpenError> {
        migrate::run(path)
    }

    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> StoreFuture<T> {
        self.write_with(0, monotonic() + BUDGET, work)
    }

    /// Writes that bring so many bytes of payload with them. Given up at that moment, if the write cannot begin before:
    /// others of this process may be writing, or another process may hold the lock.
    fn write_with<T: Send + 'static>(
        &self,
        payload: usize,
        give_up_at: Instant,
        work: impl FnOnce(&mut Writer, &WallClock) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> StoreFuture<T> {
        let (writer, clock, file) = (Arc::clone(&self.writer), self.clock.clone(), Arc::clone(&self.file));
        let checkpointer = Arc::clone(&self.checkpointer);
        Box::pin(async move {
            let late = |_| StoreError::Unavailable("other writes took too long".to_owned());
            let mut writer = tokio::time::timeout_at(give_up_at, writer.lock_owned()).await.map_err(late)?;
            let done = blocking(move || {
                file.check()?;
                writer.connection.busy_timeout(give_up_at.saturating_duration_since(monotonic()))?;
                work(&mut writer, &clock)
            });
            let done = done.await?;
            checkpointer.committed(payload);
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

/// Which file it was that was opened. What is written to one that was removed or replaced would be
/// lost with it, so such a store is not used any more.
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
        let gone = "the database file was removed or replaced; bring it back, or start again";
        Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
            Some(gone.to_owned()),
        ))
    }
}

/// The number of the file system and that of the file in it.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl Readers {
    fn open(path: &Path, count: usize) -> Result<Arc<Self>, OpenError> {
        let idle = (0..count).map(|_| connection::open_reader(path)).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(Self { permits: Arc::new(Semaphore::new(count)), idle: std::sync::Mutex::new(idle) }))
    }

    async fn take(self: &Arc<Self>) -> Result<Reader, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::Unavailable("the store is closing".to_owned()))?;
        Ok(Reader { readers: Arc::clone(self), connection: self.idle().pop(), _permit: permit })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` where it may block; a panic in it is an error of this call, not of the process.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, rusqlite::Error> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| connection::store_error(&error)),
        Err(panic) => Err(StoreError::Unavailable(format!("a database call died: {panic}"))),
    }
}

impl WriteStore for SqliteStore {
    fn commit(&self, batch: WriteBatch) -> StoreFuture<BatchResults> {
        let received: usize = batch.received.iter().map(|new| new.payload.len()).sum();
        let payload = batch.submits.iter().map(|new| new.payload.bytes().len()).sum::<usize>() + received;
        let give_up_at = batch.give_up_at.unwrap_or_else(|| monotonic() + BUDGET);
        let commit = move |writer: &mut Writer, clock: &WallClock| {
            let started = monotonic();
            let receipt = write::commit(&mut writer.connection, &mut writer.contracts, clock, &batch);
            writer.commit_time = (writer.commit_time * 7 + monotonic().duration_since(started)) / 8;
            receipt
        };
        self.write_with(payload, give_up_at, commit)
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

    fn reset_lease(&self, epoch: i64, renewed_at: Timestamp) -> StoreFuture<bool> {
        self.write(move |writer, clock| leases::reset(&mut writer.connection, clock, epoch, renewed_at))
    }
}

impl ScheduleStore for SqliteStore {
    fn open_attempts_before(&self, epoch: i64, limit: usize) -> StoreFuture<Vec<OpenAttempt>> {
        self.read_reserved(move |connection, _| schedule::open_attempts_before(connection, epoch, limit))
    }

    fn schedule_snapshot(&self, page_limit: usize) -> StoreFuture<ScheduleSnapshot> {
        self.read_reserved(move |connection, clock| schedule::build(connection, clock, page_limit))
    }

    fn refresh_schedule(&self, request: RefreshRequest) -> StoreFuture<Refresh> {
        self.read_reserved(move |connection, clock| schedule::refresh(connection, clock, request))
    }

    fn backlog(&self) -> StoreFuture<Backlog> {
        self.read_reserved(schedule::backlog)
    }

    fn purge(&self, term: Term, request: PurgeRequest) -> FencedFuture<Purged> {
        let purge = move |writer: &mut Writer, clock: &WallClock| {
            let slice = purge::slice(writer.commit_time);
            purge::run(&mut writer.connection, clock, &term, &request, slice)
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
            let (transaction, _) = connection::begin(&mut writer.connection, clock)?;
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

    fn detail(&self, id: IntentId) -> StoreFuture<Option<IntentDetail>> {
        self.read(move |connection, clock| insight::detail(connection, clock, &id))
    }

    fn payload(&self, id: IntentId) -> StoreFuture<Option<Bytes>> {
        self.read(move |connection, _| insight::payload(connection, &id))
    }

    fn overview(&self) -> StoreFuture<Overview> {
        self.read(insight::overview)
    }
}

impl TargetStore for SqliteStore {
    fn target_health(&self) -> StoreFuture<Vec<TargetHealth>> {
        self.read(insight::target_health)
    }

    fn targets(&self) -> StoreFuture<Vec<StoredTarget>> {
        self.read(|connection, _| targets::all(connection))
    }

    fn pause_target(&self, target: TargetName) -> StoreFuture<Timestamp> {
        self.write(move |writer, clock| targets::pause(&mut writer.connection, clock, &target))
    }

    fn resume_target(&self, target: TargetName) -> StoreFuture<()> {
        self.write(move |writer, _| targets::resume(&writer.connection, &target))
    }
}

impl WebhookStore for SqliteStore {
    fn due_webhooks(&self, look: DueWebhooksQuery) -> StoreFuture<DueWebhooks> {
        self.read_reserved(move |connection, clock| webhooks::due(connection, clock, &look))
    }

    fn start_webhooks(&self, term: Term, events: Vec<IntentSeq>) -> FencedFuture<Vec<OpenWebhookTry>> {
        fenced(self.write(move |writer, clock| webhooks::begin(writer, clock, &term, &events)))
    }

    fn finish_webhooks(&self, term: Term, finished: Vec<Arc<FinishWebhookTry>>) -> FencedFuture<()> {
        fenced(self.write(move |writer, clock| webhooks::finish(&mut writer.connection, clock, &term, &finished)))
    }

    fn close_webhooks(&self, term: Term, under_way: Vec<IntentSeq>) -> FencedFuture<usize> {
        fenced(self.write(move |writer, clock| webhooks::close(&mut writer.connection, clock, &term, &under_way)))
    }

    fn redeliver_webhook(&self, id: IntentId) -> StoreFuture<Redelivery> {
        self.write(move |writer, clock| webhooks::redeliver(&mut writer.connection, clock, &id))
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
        let look = self.read(move |connection, clock| jobs::reach(connection, clock, &url));
        let probe = self.write(move |writer, clock| jobs::take_probe(&mut writer.connection, clock, &gateway));
        Box::pin(async move {
            match look.await? {
                Reach::Answers => Ok(true),
                Reach::Gone => Ok(false),
                Reach::GoneForLong => probe.await,
            }
        })
    }
}

impl InboxStore for SqliteStore {
    fn due_inbox(&self, limit: usize) -> StoreFuture<DueInbox> {
        self.read_reserved(move |connection, clock| inbox::look(connection, clock, limit))
    }

    fn process_inbox(
        &self,
        term: Term,
        processed: Vec<ProcessedInboxSubmission>,
    ) -> FencedFuture<Vec<Result<(), StoreError>>> {
        fenced(self.write(move |writer, clock| inbox::process(&mut writer.connection, clock, &term, &processed)))
    }

    fn reprocess(&self, which: Reprocess) -> StoreFuture<usize> {
        self.write(move |writer, clock| inbox::reprocess(&mut writer.connection, clock, &which))
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

/// `SM_STORE=sqlite:<path>`: the path, if that is what it is.
pub fn path_of(store: &str) -> Option<PathBuf> {
    store.strip_prefix("sqlite:").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Statements kept prepared per connection; the store has about sixty.
const PREPARED: Option<NonZeroUsize> = NonZeroUsize::new(96);

#[cfg(test)]
mod tests;
