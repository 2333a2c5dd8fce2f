//! `InboxActor`: makes contacts and messages of what came into the inbox, for one term.
//!
//! State: none but its parts. Takes rows in order of when they are due, reads them, and gives the store
//! what each became, fenced; wakes up when something came in here, when a row is due again, and twice a
//! second for what other instances took in. Sends `TermFailed` to the leader if the term is over. A row that
//! fails is put off and holds up nobody, whatever is wrong with it; a store that fails is asked again, which
//! does no harm: a row becomes one message, however often it is given. When the actor dies, the leader
//! starts another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Recipient};

use crate::core::inbox::{self, Cause, Draft, Failure};
use crate::core::lease::Term;
use crate::core::time::Timestamp;
use crate::leader::TermFailed;
use crate::metrics::Metrics;
use crate::registry::{CurrentRegistry, InboxClients};
use crate::scheduler::Stop;
use crate::store::actor::{FencedError, FencedResult};
use crate::store::client::StoreClient;
use crate::store::{DueSubmission, FailedTry, ProcessedSubmission, StoreError};
use crate::supervise::Alive;
use crate::trust::Trust;

/// Rows in one go: 25 MiB of the largest payloads by default.
const BATCH: usize = 100;
/// How often the store is looked at without a reason.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct InboxParts {
    pub term: Term,
    pub trust: Trust,
    pub store: StoreClient,
    pub registry: CurrentRegistry,
    pub metrics: Arc<Metrics>,
    pub leader: Recipient<TermFailed>,
}

pub struct InboxActor {
    parts: InboxParts,
    _alive: Alive,
}

impl InboxActor {
    pub fn new(parts: InboxParts, alive: Alive) -> Self {
        Self { parts, _alive: alive }
    }
}

impl Actor for InboxActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let parts = self.parts.clone();
        ctx.spawn(wrap_future::<_, Self>(run(parts)).map(|(), _, ctx| ctx.stop()));
    }
}

impl Handler<Stop> for InboxActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

#[cfg(test)]
crate::supervise::crash_on_request!(InboxActor);

/// Processes what is due, round after round, until the term is over.
async fn run(parts: InboxParts) {
    loop {
        let wait = match round(&parts).await {
            Ok(Round::More) => continue,
            Ok(Round::Next(wait)) => wait.min(LOOK_INTERVAL),
            Err(FencedError::TermOver) => {
                return parts.leader.do_send(TermFailed::new(&parts.term, "inbox", &FencedError::TermOver));
            }
            Err(FencedError::Store(error)) => {
                log::warn!("inbox_look_failed store_error={error:?}");
                LOOK_INTERVAL
            }
        };
        let _either_is_a_reason_to_look = tokio::time::timeout(wait, parts.store.inbox_filled()).await;
    }
}

enum Round {
    /// There may be more that is due.
    More,
    /// Nothing is due before.
    Next(Duration),
}

async fn round(parts: &InboxParts) -> FencedResult<Round> {
    // Without the file nobody knows what rows mean; they wait for a leader who does.
    let registry = parts.registry.get();
    let Some(clients) = registry.inbox.as_ref().filter(|_| parts.trust.holds()) else {
        return Ok(Round::Next(LOOK_INTERVAL));
    };
    let look = parts.store.look_into_inbox(BATCH).await?;
    parts.metrics.inbox_backlog(&look.backlog);
    if look.due.is_empty() {
        return Ok(Round::Next(look.next.map_or(LOOK_INTERVAL, |at| at.since(look.now))));
    }
    let processed = look.due.iter().map(|row| process(parts, clients, row, look.now)).collect();
    let results = parts.store.process_inbox(&parts.term, processed).await?;
    let refused: Vec<_> = look.due.iter().zip(results).filter_map(|(row, result)| Some((row, result.err()?))).collect();
    if !refused.is_empty() {
        let failed = refused.iter().map(|(row, error)| refuse(parts, row, error, look.now)).collect();
        for (row, result) in refused.iter().zip(parts.store.process_inbox(&parts.term, failed).await?) {
            if let Err(error) = result {
                log::error!("inbox_row_stuck submission_id={} store_error={error:?}", row.0.id);
            }
        }
    }
    Ok(Round::More)
}

/// What a row becomes.
fn process(parts: &InboxParts, clients: &InboxClients, row: &DueSubmission, now: Timestamp) -> ProcessedSubmission {
    let result = match read(clients, row) {
        Ok(draft) => {
            parts.metrics.inbox_processed();
            Ok(draft)
        }
        Err(failure) => Err(put_off(parts, row, &failure, now)),
    };
    ProcessedSubmission { seq: row.seq, tries: row.tries, result }
}

fn read(clients: &InboxClients, row: &DueSubmission) -> Result<Draft, Failure> {
    let unknown = || {
        let text = format!("client {:?} has no channel {} in the registry", row.client_slug, row.channel.as_str());
        Failure::new(Cause::UnknownClient, text)
    };
    let client = clients.get(&row.client_slug).ok_or_else(unknown)?;
    let fields = client.fields(row.channel).ok_or_else(unknown)?;
    // What strangers send goes through code that is not ours; one row must not stop all others.
    catch_unwind(AssertUnwindSafe(|| inbox::draft(fields, client.country, &row.payload)))
        .unwrap_or_else(|_| Err(Failure::new(Cause::Unreadable, "reading the payload failed")))
}

fn refuse(parts: &InboxParts, row: &DueSubmission, error: &StoreError, now: Timestamp) -> ProcessedSubmission {
    let failure = Failure::new(Cause::Store, format!("the store did not take it: {error}"));
    ProcessedSubmission { seq: row.seq, tries: row.tries, result: Err(put_off(parts, row, &failure, now)) }
}

fn put_off(parts: &InboxParts, row: &DueSubmission, failure: &Failure, now: Timestamp) -> FailedTry {
    parts.metrics.inbox_failed(failure.cause);
    let tries = row.tries + 1;
    let next_try_at = inbox::next_try(tries, now);
    let event = if next_try_at.is_some() { "inbox_row_failed" } else { "inbox_row_parked" };
    log::warn!(
        "{event} submission_id={} client_slug={:?} channel={} tries={tries} cause={}",
        row.id,
        row.client_slug,
        row.channel.as_str(),
        failure.cause.as_str()
    );
    FailedTry { error: failure.text.replace(char::is_control, " "), next_try_at }
}
