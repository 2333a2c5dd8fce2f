//! Copies everything from one store into another, empty one: a SQLite file or a SQL Server into a store of any kind.
//!
//! - The copy holds the lease of both stores, so no instance leads meanwhile. It keeps the lease of an unfinished target, and
//!   that of the source after the copy, so that an instance that is started there by mistake sends nothing.
//! - It inserts rows in the order of their keys, each batch in one transaction that checks the lease. So the number of rows
//!   in a target's table says where an interrupted copy continues.
//! - The holder id of both leases contains the id of the copy. A copy continues only if both stores still have it: if an
//!   instance has led in between, its lease has replaced that of the copy.
//! - At the end it reads both stores again, and compares the number and the hash of the rows of every table.
//! - The lease of the target gets an epoch above all epochs of the source, so the next term closes the attempts that were
//!   open in the source.

mod digest;
pub(in crate::store) mod side;
pub(in crate::store) mod tables;
#[cfg(test)]
pub(in crate::store) mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use self::digest::Digest;
use self::side::{CopySide, HoldUntil, LEASE_NAME};
use self::tables::{Row, TABLES, Table};
use super::StoreError;
use super::selection::{StoreChoice, StoreOpenError};
use crate::platform::clock::monotonic;
use crate::telemetry::metrics::Metrics;

/// How long the source's lease lasts if the copy dies. Then an instance can lead again.
const SOURCE_LEASE: Duration = Duration::from_secs(60);
/// How often the source's lease is renewed. A batch takes much less than the rest of the lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// Why a store was not copied, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("{0} is the source and the target; name two stores")]
    SameStore(String),
    #[error("there is no store {}; name an existing one with --from", .0.display())]
    NoSource(PathBuf),
    #[error(
        "a SQL Server cannot be copied into a SQLite file, because the numbers of jobs differ; name a SQL Server with --to"
    )]
    Unsupported,
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    #[error("{store} failed; run the same command again to continue")]
    Store { store: String, source: StoreError },
    #[error(
        "{store} is in use: {holder} holds its lease; stop all instances that use it, wait until the lease has expired, and \
         run the command again"
    )]
    InUse { store: String, holder: String },
    #[error(
        "{store} is not empty: {table} has {rows} rows; name an empty database or a file that does not exist with --to"
    )]
    NotEmpty { store: String, table: &'static str, rows: u64 },
    #[error(
        "{target} has a part of another copy, or {from} was used since that copy began; empty {target} (drop the database or \
         delete the file), stop all instances that use {from}, and run the command again"
    )]
    OtherCopy { from: String, target: String },
    #[error("{store} was taken over by an instance or by another copy; stop that one and run the command again")]
    LeaseLost { store: String },
    #[error(
        "{table} differs after the copy: {from} in the source, {target} in the target; something wrote to one of them \
         meanwhile: stop it, empty the target, and run the command again"
    )]
    Differs { table: &'static str, from: Box<Digest>, target: Box<Digest> },
}

/// How far a copy has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many rows of a table are in the target.
    Copied {
        table: &'static str,
        rows: u64,
        of: u64,
    },
    Verifying {
        table: &'static str,
    },
    /// The table has the same rows in both stores.
    Verified {
        table: &'static str,
        digest: Digest,
    },
}

/// One store of a copy.
struct Side {
    name: String,
    store: Arc<dyn CopySide>,
}

impl Side {
    fn of(choice: &StoreChoice, store: Arc<dyn CopySide>) -> Self {
        Self { name: choice.name(), store }
    }

    fn failed(&self) -> impl FnOnce(StoreError) -> CopyError + use<'_> {
        |source| CopyError::Store { store: self.name.clone(), source }
    }

    /// The id of the copy that holds the lease, or had it last. Fails if an instance holds the lease.
    async fn copy_id(&self) -> Result<Option<LastCopy>, CopyError> {
        let Some(lease) = self.store.last_lease().await.map_err(self.failed())? else { return Ok(None) };
        if lease.name != LEASE_NAME {
            return match lease.held {
                true => Err(CopyError::InUse { store: self.name.clone(), holder: lease.holder }),
                false => Ok(None),
            };
        }
        let id = lease.holder.split(' ').nth(1).unwrap_or_default().to_owned();
        Ok(Some(LastCopy { id, unfinished: lease.held }))
    }

    async fn take(&self, holder: &Arc<str>, epoch: i64, until: HoldUntil) -> Result<i64, CopyError> {
        let taken = self.store.take_lease(Arc::clone(holder), epoch, until).await.map_err(self.failed())?;
        taken.ok_or_else(|| CopyError::LeaseLost { store: self.name.clone() })
    }

    async fn hold(&self, holder: &Arc<str>, until: HoldUntil) -> Result<(), CopyError> {
        let held = self.store.hold_lease(Arc::clone(holder), until).await.map_err(self.failed())?;
        self.still(held)
    }

    fn still(&self, held: bool) -> Result<(), CopyError> {
        if held { Ok(()) } else { Err(CopyError::LeaseLost { store: self.name.clone() }) }
    }

    /// Fails if a table has rows. The tables with exactly one row are not looked at.
    async fn require_empty(&self) -> Result<(), CopyError> {
        for table in TABLES.iter().filter(|table| !table.has_one_row()) {
            let rows = self.store.count(table).await.map_err(self.failed())?;
            if rows > 0 {
                return Err(CopyError::NotEmpty { store: self.name.clone(), table: table.name, rows });
            }
        }
        Ok(())
    }
}

/// The copy that a store was part of last.
struct LastCopy {
    id: String,
    /// Whether the lease is still held, as a target's is until its copy is verified.
    unfinished: bool,
}

/// Copies `from` into `to`, or continues an interrupted copy. The schema of the target is created or migrated first.
pub async fn run(
    from: &StoreChoice,
    to: &StoreChoice,
    metrics: &Arc<Metrics>,
    progress: impl FnMut(Progress),
) -> Result<(), CopyError> {
    if from.name() == to.name() {
        return Err(CopyError::SameStore(from.name()));
    }
    match (from, to) {
        (StoreChoice::Sqlite(path), _) if !path.exists() => return Err(CopyError::NoSource(path.clone())),
        (StoreChoice::SqlServer(_), StoreChoice::Sqlite(_)) => return Err(CopyError::Unsupported),
        _ => {}
    }
    let source = Side::of(from, from.copy_side(Arc::clone(metrics)).await?);
    let of_source = source.copy_id().await?;
    to.migrate(Arc::clone(metrics)).await?;
    let target = Side::of(to, to.copy_side(Arc::clone(metrics)).await?);
    let id = match (of_source, target.copy_id().await?) {
        (Some(source), Some(target)) if target.unfinished && source.id == target.id => target.id,
        (_, Some(LastCopy { unfinished: true, .. })) => {
            return Err(CopyError::OtherCopy { from: source.name, target: target.name });
        }
        _ => {
            target.require_empty().await?;
            random_id()
        }
    };
    // A later run replaces the lease of an earlier one, so that an earlier one that is still alive cannot write any more.
    let holder: Arc<str> = format!("copy {id} {}", random_id()).into();
    let epoch = source.take(&holder, 0, HoldUntil::After(SOURCE_LEASE)).await?;
    let mut copy = Copy { source, target, holder, renewed: monotonic(), progress };
    let copied = copy.all(epoch).await;
    let until = if copied.is_ok() { HoldUntil::Forever } else { HoldUntil::Now };
    let held = copy.source.hold(&copy.holder, until).await;
    copied.and(held)
}

fn random_id() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// A copy under way.
struct Copy<P> {
    source: Side,
    target: Side,
    holder: Arc<str>,
    /// When the source's lease was renewed.
    renewed: Instant,
    progress: P,
}

impl<P: FnMut(Progress)> Copy<P> {
    /// Copies and verifies all tables. `epoch` is that of the source's lease.
    async fn all(&mut self, epoch: i64) -> Result<(), CopyError> {
        self.target.take(&self.holder, epoch, HoldUntil::Forever).await?;
        for table in &TABLES {
            self.table(table).await?;
        }
        for table in &TABLES {
            self.verify(table).await?;
        }
        let counters = self.source.store.counters().await.map_err(self.source.failed())?;
        self.target.store.advance_counters(counters).await.map_err(self.target.failed())?;
        self.target.hold(&self.holder, HoldUntil::Now).await
    }

    async fn table(&mut self, table: &'static Table) -> Result<(), CopyError> {
        let of = self.source.store.count(table).await.map_err(self.source.failed())?;
        let mut rows = match table.has_one_row() {
            true => 0,
            false => self.target.store.count(table).await.map_err(self.target.failed())?,
        };
        let after = match rows.checked_sub(1) {
            None => None,
            // None if the target has more rows than the source. Verification then finds that they differ.
            Some(last) => match self.source.store.key_at(table, last).await.map_err(self.source.failed())? {
                None => return Ok(()),
                key => key,
            },
        };
        let mut batch = self.read(table, after).await?;
        while let Some(last) = batch.last() {
            let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
            let after = last.get(..table.key).unwrap_or_default().to_vec();
            let written = self.target.store.write(Arc::clone(&self.holder), table, Arc::new(batch));
            // The next batch is read while this one is written.
            let next = async {
                if table.has_one_row() { Ok(Vec::new()) } else { self.source.store.read(table, Some(after)).await }
            };
            let (written, next) = tokio::join!(written, next);
            self.target.still(written.map_err(self.target.failed())?)?;
            batch = next.map_err(self.source.failed())?;
            rows += count;
            (self.progress)(Progress::Copied { table: table.name, rows, of });
            self.renew().await?;
        }
        Ok(())
    }

    async fn read(&self, table: &'static Table, after: Option<Row>) -> Result<Vec<Row>, CopyError> {
        self.source.store.read(table, after).await.map_err(self.source.failed())
    }

    async fn verify(&mut self, table: &'static Table) -> Result<(), CopyError> {
        let (mut sides, mut digests) = ([None, None], [Digest::default(), Digest::default()]);
        let mut ended = [false, false];
        while ended != [true, true] {
            (self.progress)(Progress::Verifying { table: table.name });
            let [after_source, after_target] = sides;
            let (of_source, of_target) = tokio::join!(
                next_rows(&self.source, table, after_source, ended[0]),
                next_rows(&self.target, table, after_target, ended[1])
            );
            let batches = [of_source?, of_target?];
            for ((batch, digest), ended) in batches.iter().zip(&mut digests).zip(&mut ended) {
                batch.iter().for_each(|row| digest.add(row));
                *ended = batch.is_empty() || table.has_one_row();
            }
            sides = batches.map(|batch| batch.last().map(|row| row.get(..table.key).unwrap_or_default().to_vec()));
            self.renew().await?;
        }
        let [from, target] = digests;
        if from != target {
            return Err(CopyError::Differs { table: table.name, from: Box::new(from), target: Box::new(target) });
        }
        (self.progress)(Progress::Verified { table: table.name, digest: from });
        Ok(())
    }

    async fn renew(&mut self) -> Result<(), CopyError> {
        if monotonic().duration_since(self.renewed) >= RENEW_INTERVAL {
            self.source.hold(&self.holder, HoldUntil::After(SOURCE_LEASE)).await?;
            self.renewed = monotonic();
        }
        Ok(())
    }
}

/// The next rows of a side that is being verified; none if it has ended.
async fn next_rows(side: &Side, table: &'static Table, after: Option<Row>, ended: bool) -> Result<Vec<Row>, CopyError> {
    if ended { Ok(Vec::new()) } else { side.store.read(table, after).await.map_err(side.failed()) }
}
