//! `InboxActor`: makes contacts and messages of what came into the inbox, for one term.
//!
//! State: none but its parts. Takes rows in order of when they are due, reads them, and gives the store
//! what each became, fenced; wakes up when something came in here, when a row is due again, and twice a
//! second for what other instances took in. Sends `TermFailed` to the leader if the term is over. A row that
//! fails is put off and holds up nobody, whatever is wrong with it; a store that fails is asked again, which
//! does no harm: a row becomes one message, however often it is given. When the actor dies, the leader
//! starts another.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Recipient};
use tokio::time::Instant;

use crate::config::registry::{CurrentRegistry, InboxClients};
use crate::domain::inbox::{self, Cause, Draft, Failure, MAX_TRIES};
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::engine::lease_trust::LeaseTrust;
use crate::engine::messages::{Stop, TermFailed};
use crate::platform::clock::monotonic;
use crate::platform::supervision::Alive;
use crate::store::client::StoreClient;
use crate::store::{DueInboxSubmission, FailedInboxTry, InboxSubmissionSeq, ProcessedInboxSubmission, StoreError};
use crate::store::{FencedError, FencedResult};
use crate::telemetry::metrics::Metrics;

/// Rows in one go: 25 MiB of the largest payloads by default.
const BATCH: usize = 100;
/// How often the store is looked at without a reason.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct InboxDeps {
    pub term: Term,
    pub trust: LeaseTrust,
    pub store: StoreClient,
    pub registry: CurrentRegistry,
    pub metrics: Arc<Metrics>,
    pub leader: Recipient<TermFailed>,
}

pub struct InboxActor {
    deps: InboxDeps,
    _alive: Alive,
}

impl InboxActor {
    pub fn new(deps: InboxDeps, alive: Alive) -> Self {
        Self { deps, _alive: alive }
    }
}

impl Actor for InboxActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let deps = self.deps.clone();
        ctx.spawn(wrap_future::<_, Self>(run(deps)).map(|(), _, ctx| ctx.stop()));
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        // Only a leader knows.
        self.deps.metrics.inbox_backlog(None, 0);
    }
}

impl Handler<Stop> for InboxActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(InboxActor);

/// Processes what is due, round after round, until the term is over.
async fn run(deps: InboxDeps) {
    let mut stuck = Stuck::default();
    loop {
        let wait = match round(&deps, &mut stuck).await {
            Ok(Round::More) => continue,
            Ok(Round::Next(wait)) => wait.min(LOOK_INTERVAL),
            Err(FencedError::TermOver) => {
                return deps.leader.do_send(TermFailed::new(&deps.term, "inbox", &FencedError::TermOver));
            }
            Err(FencedError::Store(error)) => {
                log::warn!("inbox_look_failed store_error={error:?}");
                LOOK_INTERVAL
            }
        };
        let _either_is_a_reason_to_look = tokio::time::timeout(wait, deps.store.inbox_filled()).await;
    }
}

enum Round {
    /// There may be more that is due.
    More,
    /// Nothing is due before.
    Next(Duration),
}

/// Rows that the store neither takes nor puts off, and until when they are left alone.
#[derive(Default)]
struct Stuck(HashMap<InboxSubmissionSeq, Instant>);

impl Stuck {
    /// How long such a row is left alone, and how many are remembered.
    const PAUSE: Duration = Duration::from_secs(60);
    const MOST: usize = 10_000;

    fn add(&mut self, row: &DueInboxSubmission, error: &StoreError) {
        log::error!("inbox_row_stuck submission_id={} store_error={error:?}", row.id);
        if self.0.len() < Self::MOST {
            self.0.insert(row.seq, monotonic() + Self::PAUSE);
        }
    }

    fn forget_old(&mut self) {
        self.0.retain(|_, until| *until > monotonic());
    }
}

async fn round(deps: &InboxDeps, stuck: &mut Stuck) -> FencedResult<Round> {
    // Without the file nobody knows what rows mean; they wait for a leader who does.
    let registry = deps.registry.get();
    let Some(clients) = registry.inbox.as_ref().filter(|_| deps.trust.holds()) else {
        return Ok(Round::Next(LOOK_INTERVAL));
    };
    stuck.forget_old();
    let look = deps.store.due_inbox(BATCH + stuck.0.len()).await?;
    deps.metrics.inbox_backlog(look.backlog.oldest, look.backlog.parked);
    let due: Vec<_> = look.due.iter().filter(|row| !stuck.0.contains_key(&row.seq)).collect();
    if due.is_empty() {
        return Ok(Round::Next(look.next.map_or(LOOK_INTERVAL, |at| at.since(look.now))));
    }
    let read: Vec<_> = due.iter().map(|row| (*row, read(clients, row))).collect();
    let refused = record(deps, &read, look.now).await?;
    let again: Vec<_> = refused.iter().map(|(row, _)| (*row, Err(Failure::new(Cause::Store, REFUSED)))).collect();
    for (row, error) in record(deps, &again, look.now).await? {
        stuck.add(row, &error);
    }
    Ok(Round::More)
}

/// What a row says that the store does not take. Why stands in the log: it may repeat what is in the row.
const REFUSED: &str = "the store did not take it; the log of the service says why";

/// Gives the store what rows became, and counts what it took; those that it refused.
async fn record<'a>(
    deps: &InboxDeps,
    read: &[(&'a DueInboxSubmission, Result<Draft, Failure>)],
    now: Timestamp,
) -> FencedResult<Vec<(&'a DueInboxSubmission, StoreError)>> {
    if read.is_empty() {
        return Ok(Vec::new());
    }
    let processed = read.iter().map(|(row, result)| {
        let result = result.clone().map_err(|failure| FailedInboxTry {
            error: failure.text.replace(char::is_control, " "),
            next_try_at: inbox::next_try(row.tries + 1, now),
        });
        ProcessedInboxSubmission { seq: row.seq, tries: row.tries, result }
    });
    let results = deps.store.process_inbox(deps.term.clone(), processed.collect()).await?;
    let mut refused = Vec::new();
    for ((row, result), answer) in read.iter().zip(results) {
        match (answer, result) {
            (Ok(()), Ok(_)) => deps.metrics.inbox_processed(),
            (Ok(()), Err(failure)) => note_failure(deps, row, failure),
            (Err(error), _) => {
                log::error!("inbox_row_refused submission_id={} store_error={error:?}", row.id);
                refused.push((*row, error));
            }
        }
    }
    Ok(refused)
}

fn read(clients: &InboxClients, row: &DueInboxSubmission) -> Result<Draft, Failure> {
    let unknown = || {
        let text = format!("client {:?} has no channel {} in the registry", row.client_slug, row.channel.as_str());
        Failure::new(Cause::UnknownClient, text)
    };
    let client = clients.get(&row.client_slug).ok_or_else(unknown)?;
    let fields = client.fields(row.channel).ok_or_else(unknown)?;
    // What strangers send goes through code that is not ours; one row must not stop all others.
    catch_unwind(AssertUnwindSafe(|| inbox::draft(fields, client.country, row.format, &row.payload)))
        .unwrap_or_else(|_| Err(Failure::new(Cause::Unreadable, "reading the payload failed")))
}

fn note_failure(deps: &InboxDeps, row: &DueInboxSubmission, failure: &Failure) {
    deps.metrics.inbox_failed(failure.cause);
    let tries = row.tries + 1;
    let event = if tries < MAX_TRIES { "inbox_row_failed" } else { "inbox_row_parked" };
    log::warn!(
        "{event} submission_id={} client_slug={:?} channel={} tries={tries} cause={}",
        row.id,
        row.client_slug,
        row.channel.as_str(),
        failure.cause.as_str()
    );
}
