//! `InboxActor`: turns inbox submissions into contacts and messages, for one term.
//!
//! State: only its dependencies. It receives `Stop` from the leader, and sends `TermFailed` to the leader if the term is
//! over. It takes due submissions in the order of their due times, parses them, and records the results in the store,
//! fenced by its term. It runs when a submission came in on this instance, when one becomes due again, and twice a second
//! for submissions that came in on other instances.
//!
//! A submission that cannot be processed is put off and delays no other. A store call that fails is repeated, which is
//! harmless: a submission becomes one message, however often its result is recorded. When the actor dies, the leader starts
//! another one.

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

/// Submissions that are processed together: at most 25 MiB of payloads with the default limit of a payload.
const BATCH: usize = 100;
/// How often the store is queried if nothing else causes a query.
const QUERY_INTERVAL: Duration = Duration::from_millis(500);

/// What the inbox actor of a term needs.
#[derive(Clone)]
pub(super) struct InboxDeps {
    pub term: Term,
    pub trust: LeaseTrust,
    pub store: StoreClient,
    pub registry: CurrentRegistry,
    pub metrics: Arc<Metrics>,
    pub leader: Recipient<TermFailed>,
}

/// Processes inbox submissions during one term.
pub(super) struct InboxActor {
    deps: InboxDeps,
    _alive: Alive,
}

impl InboxActor {
    pub(super) fn new(deps: InboxDeps, alive: Alive) -> Self {
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
        // Only the leader reports the backlog.
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

/// Processes due submissions until the term is over.
async fn run(deps: InboxDeps) {
    let mut stuck = Stuck::default();
    loop {
        let wait = match round(&deps, &mut stuck).await {
            Ok(Round::More) => continue,
            Ok(Round::Next(wait)) => wait.min(QUERY_INTERVAL),
            Err(FencedError::TermOver) => {
                return deps.leader.do_send(TermFailed::new(&deps.term, "inbox", &FencedError::TermOver));
            }
            Err(FencedError::Store(error)) => {
                log::warn!("inbox_look_failed store_error={error:?}");
                QUERY_INTERVAL
            }
        };
        let _both_are_reasons_to_query = tokio::time::timeout(wait, deps.store.inbox_filled()).await;
    }
}

enum Round {
    /// More submissions may be due.
    More,
    /// No submission is due before this pause has passed.
    Next(Duration),
}

/// Submissions for which the store refuses both the result and the error, and until when they are left out.
#[derive(Default)]
struct Stuck(HashMap<InboxSubmissionSeq, Instant>);

impl Stuck {
    /// How long such a submission is left out.
    const PAUSE: Duration = Duration::from_secs(60);
    /// How many of them are remembered.
    const MAX: usize = 10_000;

    fn add(&mut self, row: &DueInboxSubmission, error: &StoreError) {
        log::error!("inbox_row_stuck submission_id={} store_error={error:?}", row.id);
        if self.0.len() < Self::MAX {
            self.0.insert(row.seq, monotonic() + Self::PAUSE);
        }
    }

    fn forget_old(&mut self) {
        self.0.retain(|_, until| *until > monotonic());
    }
}

/// Processes one batch of due submissions.
async fn round(deps: &InboxDeps, stuck: &mut Stuck) -> FencedResult<Round> {
    // Without clients in the registry the fields of submissions are unknown. They wait for a leader that knows them.
    let registry = deps.registry.get();
    let Some(clients) = registry.inbox.as_ref().filter(|_| deps.trust.holds()) else {
        return Ok(Round::Next(QUERY_INTERVAL));
    };
    stuck.forget_old();
    let inbox = deps.store.due_inbox(BATCH + stuck.0.len()).await?;
    deps.metrics.inbox_backlog(inbox.backlog.oldest, inbox.backlog.parked);
    let due: Vec<_> = inbox.due.iter().filter(|row| !stuck.0.contains_key(&row.seq)).collect();
    if due.is_empty() {
        return Ok(Round::Next(inbox.next.map_or(QUERY_INTERVAL, |at| at.since(inbox.now))));
    }
    let parsed: Vec<_> = due.iter().map(|row| (*row, parse(clients, row))).collect();
    let refused = record(deps, &parsed, inbox.now).await?;
    let failed: Vec<_> = refused.iter().map(|(row, _)| (*row, Err(Failure::new(Cause::Store, REFUSED)))).collect();
    for (row, error) in record(deps, &failed, inbox.now).await? {
        stuck.add(row, &error);
    }
    Ok(Round::More)
}

/// The error of a submission whose result the store refused. The store's own error is only in the log, because it may repeat
/// parts of the payload.
const REFUSED: &str = "the store refused the result; see inbox_row_refused in the log of the service";

/// Records the results of submissions in the store, and counts those that it accepted. Returns those that it refused.
async fn record<'a>(
    deps: &InboxDeps,
    parsed: &[(&'a DueInboxSubmission, Result<Draft, Failure>)],
    now: Timestamp,
) -> FencedResult<Vec<(&'a DueInboxSubmission, StoreError)>> {
    if parsed.is_empty() {
        return Ok(Vec::new());
    }
    let processed = parsed.iter().map(|(row, result)| {
        let result = result.clone().map_err(|failure| FailedInboxTry {
            error: failure.text.replace(char::is_control, " "),
            next_try_at: inbox::next_try(row.tries + 1, now),
        });
        ProcessedInboxSubmission { seq: row.seq, tries: row.tries, result }
    });
    let results = deps.store.process_inbox(deps.term.clone(), processed.collect()).await?;
    let mut refused = Vec::new();
    for ((row, result), answer) in parsed.iter().zip(results) {
        match (answer, result) {
            (Ok(()), Ok(_)) => deps.metrics.inbox_processed(),
            (Ok(()), Err(failure)) => report_failure(deps, row, failure),
            (Err(error), _) => {
                log::error!("inbox_row_refused submission_id={} store_error={error:?}", row.id);
                refused.push((*row, error));
            }
        }
    }
    Ok(refused)
}

/// Parses a submission by the fields that the registry names for its client and channel.
fn parse(clients: &InboxClients, row: &DueInboxSubmission) -> Result<Draft, Failure> {
    let unknown = || {
        let text = format!("client {:?} has no channel {} in the registry", row.client_slug, row.channel.as_str());
        Failure::new(Cause::UnknownClient, text)
    };
    let client = clients.get(&row.client_slug).ok_or_else(unknown)?;
    let fields = client.fields(row.channel).ok_or_else(unknown)?;
    // A payload is untrusted input for third-party parsers. A panic on one submission must not stop the others.
    catch_unwind(AssertUnwindSafe(|| inbox::draft(fields, client.country, row.format, &row.payload)))
        .unwrap_or_else(|_| Err(Failure::new(Cause::Unreadable, "the payload could not be parsed")))
}

/// Counts and logs a submission that could not be processed.
fn report_failure(deps: &InboxDeps, row: &DueInboxSubmission, failure: &Failure) {
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
