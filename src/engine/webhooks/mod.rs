//! `WebhookActor`: delivers pending webhook events, for one term.
//!
//! State: which slots are taken, which outcomes wait to be recorded, and whether a query for due events runs. It receives
//! `TryFinished` from the tries in flight, each of which is a task of its own, and `StopDelivering` from the leader. It
//! sends `TermFailed` to the leader if the term is over. It queries the store when events became pending on this instance,
//! when an event becomes due, and once a second for events that other instances made pending.
//!
//! A try is recorded as open before its request is sent, and its outcome is recorded afterwards; both writes are fenced. A
//! try that is open in the store and not in flight here is closed as interrupted, and its event is tried again. The actor
//! looks for such tries when it starts, when an answer of the store was lost, and once a minute. Delivery is therefore at
//! least once; duplicates carry the same event id. When the actor dies, the leader starts another one, and attempts are not
//! affected.

mod request;
pub mod sender;
pub mod slots;

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, Recipient, ResponseFuture,
    SpawnHandle,
};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::sender::WebhookSender;
use self::slots::{MAX_TRIES, WebhookSlots};
use crate::config::variables::Variables;
use crate::domain::intent::IntentSeq;
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{TryOutcome, Verdict, decide};
use crate::engine::lease_trust::LeaseTrust;
use crate::engine::messages::TermFailed;
use crate::engine::one_at_a_time::OneAtATime;
use crate::http_client::one_line;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::mutated;
use crate::platform::supervision::Alive;
use crate::store::FencedError;
use crate::store::client::StoreClient;
use crate::store::{DueWebhooksQuery, FinishWebhookTry, OpenWebhookTry};
use crate::telemetry::metrics::Metrics;

pub use self::request::WebhookRequest;

/// How often the store is queried if nothing else causes a query.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a failed call of the store is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Pause before a request is sent again for which this machine had no file descriptor, port or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);
/// How often such a request is sent before the shortage is the outcome of the try. A shortage of up to half a minute uses up
/// no try.
const SHORTAGE_CALLS: usize = 30;
/// How often the actor closes tries that are open in the store and not in flight here.
const CLOSE_INTERVAL: Duration = Duration::from_secs(60);

/// To the webhook actor: start no further try. It answers when no try is in flight and all are recorded.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopDelivering {
    /// How long receivers may still take to answer before their tries are recorded as interrupted.
    pub patience: Duration,
}

/// From a task to its actor: a try has finished.
#[derive(Message)]
#[rtype(result = "()")]
struct TryFinished {
    open: OpenWebhookTry,
    outcome: TryOutcome,
}

/// What the webhook actor of a term needs.
pub struct WebhookDeps {
    pub term: Term,
    pub trust: LeaseTrust,
    pub store: StoreClient,
    pub store_time: StoreTime,
    pub sender: Rc<dyn WebhookSender>,
    pub variables: Variables,
    pub metrics: Arc<Metrics>,
    pub leader: Recipient<TermFailed>,
}

/// Delivers webhook events during one term.
pub struct WebhookActor {
    deps: WebhookDeps,
    slots: WebhookSlots,
    /// The events whose tries this actor started and has not recorded yet.
    under_way: HashSet<IntentSeq>,
    /// Whether the store may have open tries that are not in flight here. They are closed before the next try starts.
    must_close: bool,
    /// The query for due events; it also counts as running during the pause after a failure.
    query: OneAtATime,
    timer: Option<SpawnHandle>,
    /// Outcomes that wait to be recorded.
    finished: Vec<Arc<FinishWebhookTry>>,
    /// Whether outcomes are being recorded, or a failed write of them is about to be repeated.
    recording: bool,
    /// Cancels the tries in flight, also when the actor dies. It wakes them in the order in which they began.
    give_up: CancellationToken,
    _give_up_at_the_end: DropGuard,
    /// Set once a stop was requested; notified when no try is in flight any more.
    stopping: Option<Vec<oneshot::Sender<()>>>,
    _alive: Alive,
}

/// What a query of the store did.
enum QueryResult {
    /// It closed this many interrupted tries.
    Closed(usize),
    /// It recorded these tries as open. `next` is when the next event is due, if that is known.
    Started { tries: Vec<OpenWebhookTry>, requested_at: Instant, now: Timestamp, next: Option<Timestamp> },
}

impl WebhookActor {
    pub fn new(deps: WebhookDeps, alive: Alive) -> Self {
        let give_up = CancellationToken::new();
        Self {
            deps,
            slots: WebhookSlots::default(),
            under_way: HashSet::new(),
            must_close: !mutated!(TriesNotClosed),
            query: OneAtATime::default(),
            timer: None,
            finished: Vec::new(),
            recording: false,
            _give_up_at_the_end: give_up.clone().drop_guard(),
            give_up,
            stopping: None,
            _alive: alive,
        }
    }

    /// Starts tries of due events, as far as slots are free. If a query is running, another one follows it.
    fn query_due(&mut self, ctx: &mut Context<Self>) {
        let query = self.slots.query();
        let nothing_to_do =
            self.stopping.is_some() || !self.deps.trust.holds() || (!self.must_close && query.is_none());
        if (nothing_to_do && !self.query.is_running()) || !self.query.request() {
            return;
        }
        let (store, term) = (self.deps.store.clone(), self.deps.term.clone());
        let under_way = self.under_way.iter().copied().collect();
        let query = query.filter(|_| !self.must_close);
        let run = async move {
            match query {
                Some(query) => start_due(&store, &term, query).await,
                None => {
                    store.close_webhooks(term, under_way).await.map(QueryResult::Closed).map_err(QueryError::in_doubt)
                }
            }
        };
        ctx.spawn(wrap_future::<_, Self>(run).map(|result, actor, ctx| match result {
            Ok(result) => actor.query_finished(result, ctx),
            Err(QueryError { error: FencedError::TermOver, .. }) => actor.term_over(ctx),
            Err(QueryError { error: FencedError::Store(error), in_doubt }) => {
                log::warn!("webhooks_not_begun store_error={error:?}");
                // Some tries may have been recorded as open although the call failed.
                actor.must_close |= in_doubt;
                actor.after_pause(ctx, |actor, ctx| {
                    actor.query.finish();
                    actor.query_due(ctx);
                    actor.stop_if_idle(ctx);
                });
            }
        }));
    }

    fn query_finished(&mut self, result: QueryResult, ctx: &mut Context<Self>) {
        match result {
            QueryResult::Closed(closed) => {
                if closed > 0 {
                    log::warn!("webhooks_interrupted count={closed}");
                }
                self.must_close = false;
                self.query.repeat();
            }
            QueryResult::Started { tries, requested_at, now, next } => {
                self.deps.store_time.observe(requested_at, now);
                self.wake_at(now, next, ctx);
                tries.into_iter().for_each(|open| self.start(open, ctx));
            }
        }
        if self.query.finish() {
            self.query_due(ctx);
        }
        self.stop_if_idle(ctx);
    }

    /// Calls `go_on` after a pause, or without one if the actor is stopping.
    fn after_pause(&self, ctx: &mut Context<Self>, go_on: fn(&mut Self, &mut Context<Self>)) {
        let pause = if self.stopping.is_some() { Duration::ZERO } else { RETRY_PAUSE };
        ctx.run_later(pause, go_on);
    }

    /// Sets the timer for the next due event, if it comes before the next regular query.
    fn wake_at(&mut self, now: Timestamp, next: Option<Timestamp>, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let pause = next.map(|due| due.since(now)).filter(|pause| *pause < QUERY_INTERVAL);
        self.timer = pause.map(|pause| ctx.run_later(pause, |actor, ctx| actor.query_due(ctx)));
    }

    /// Makes a try that is recorded as open.
    fn start(&mut self, open: OpenWebhookTry, ctx: &mut Context<Self>) {
        self.slots.take(open.receiver);
        self.under_way.insert(open.intent.seq);
        self.deps.metrics.webhooks_inflight.inc();
        let webhook_request = request::build(&open, &self.deps.variables, self.deps.store_time.now());
        if let Err(error) = &webhook_request {
            log::warn!("webhook_not_sent intent_id={:?} error={error:?}", open.intent.id);
        }
        let give_up = self.give_up.clone();
        let trust = self.deps.trust.clone();
        let trusted = trust.holds() && self.stopping.is_none();
        let sender = Rc::clone(&self.deps.sender);
        let task = TryTask { open: Some(open), outcome: TryOutcome::Interrupted, actor: ctx.address() };
        actix::spawn(async move {
            let outcome = match webhook_request {
                _ if !trusted => TryOutcome::Interrupted,
                Err(error) => TryOutcome::Error(error),
                Ok(webhook_request) => tokio::select! {
                    biased;
                    outcome = deliver(&*sender, &webhook_request, &trust) => outcome,
                    () = give_up.cancelled() => TryOutcome::Interrupted,
                },
            };
            task.finish(outcome);
        });
    }

    /// Records all waiting outcomes in one call.
    fn record(&mut self, ctx: &mut Context<Self>) {
        if self.recording || self.finished.is_empty() {
            return;
        }
        self.recording = true;
        let finished = std::mem::take(&mut self.finished);
        let (store, term, batch) = (self.deps.store.clone(), self.deps.term.clone(), finished.clone());
        let record = wrap_future::<_, Self>(async move { store.finish_webhooks(term, batch).await });
        ctx.spawn(record.map(move |result, actor, ctx| {
            match result {
                Ok(()) => {
                    actor.recording = false;
                    finished.iter().for_each(|finish| actor.recorded(finish));
                    actor.record(ctx);
                    actor.query_due(ctx);
                }
                Err(FencedError::TermOver) => return actor.term_over(ctx),
                Err(FencedError::Store(error)) => {
                    log::warn!("webhooks_not_recorded count={} store_error={error:?}", finished.len());
                    actor.not_recorded(finished, ctx);
                }
            }
            actor.stop_if_idle(ctx);
        }));
    }

    /// Repeats a failed recording, which is harmless. While the actor stops, it gives up instead, and the next term closes the
    /// tries as interrupted.
    fn not_recorded(&mut self, finished: Vec<Arc<FinishWebhookTry>>, ctx: &mut Context<Self>) {
        self.finished.extend(finished);
        if self.stopping.is_some() {
            self.recording = false;
            let not_recorded = std::mem::take(&mut self.finished);
            return not_recorded.iter().for_each(|finish| self.release_slot(finish));
        }
        self.after_pause(ctx, |actor, ctx| {
            actor.recording = false;
            actor.record(ctx);
            actor.stop_if_idle(ctx);
        });
    }

    fn recorded(&mut self, finish: &FinishWebhookTry) {
        self.release_slot(finish);
        let FinishWebhookTry { open, finished_at, outcome, verdict } = finish;
        self.deps.metrics.webhook_tried(*verdict, finished_at.since(open.started_at));
        let level = if *verdict == Verdict::Failed { log::Level::Warn } else { log::Level::Debug };
        log::log!(
            level,
            "webhook_tried intent_id={:?} try={} http_status={:?} error={:?} verdict={verdict:?}",
            open.intent.id,
            open.number,
            outcome.http_status(),
            outcome.error()
        );
    }

    fn release_slot(&mut self, finish: &FinishWebhookTry) {
        self.under_way.remove(&finish.open.intent.seq);
        self.slots.release(finish.open.receiver, !matches!(finish.verdict, Verdict::Delivered));
        self.deps.metrics.webhooks_inflight.dec();
    }

    fn term_over(&mut self, ctx: &mut Context<Self>) {
        self.deps.leader.do_send(TermFailed::new(&self.deps.term, "webhooks", &FencedError::TermOver));
        self.stop(ctx);
    }

    fn stop_if_idle(&mut self, ctx: &mut Context<Self>) {
        let idle = self.slots.taken() == 0 && !self.query.is_running() && !self.recording;
        if self.stopping.is_some() && idle {
            self.stop(ctx);
        }
    }

    fn stop(&mut self, ctx: &mut Context<Self>) {
        self.give_up.cancel();
        for done in self.stopping.replace(Vec::new()).unwrap_or_default() {
            let _nobody_may_wait = done.send(());
        }
        ctx.stop();
    }

    /// Queries whenever events may have become pending on this instance.
    fn query_when_pending(&mut self, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        ctx.spawn(wrap_future::<_, Self>(async move { store.pending_webhooks().await }).map(|(), actor, ctx| {
            actor.query_due(ctx);
            actor.query_when_pending(ctx);
        }));
    }
}

/// Sends a request to its receiver. If this machine lacks a resource, nothing was sent, and the request is sent again later.
async fn deliver(sender: &dyn WebhookSender, webhook_request: &WebhookRequest, trust: &LeaseTrust) -> TryOutcome {
    for call in 1.. {
        match sender.deliver(webhook_request).await {
            Ok(outcome) => return outcome,
            Err(error) if call == SHORTAGE_CALLS => {
                return TryOutcome::Error(format!("not sent: {}", one_line(&error)));
            }
            Err(_) => tokio::time::sleep(SHORTAGE_PAUSE).await,
        }
        if !trust.holds() {
            break;
        }
    }
    TryOutcome::Interrupted
}

/// Why a query of the store failed.
struct QueryError {
    error: FencedError,
    /// Whether the call may have changed something although it failed.
    in_doubt: bool,
}

impl QueryError {
    fn in_doubt(error: FencedError) -> Self {
        Self { error, in_doubt: true }
    }
}

/// Records tries of due events as open.
async fn start_due(store: &StoreClient, term: &Term, query: DueWebhooksQuery) -> Result<QueryResult, QueryError> {
    let requested_at = monotonic();
    let due = store.due_webhooks(query).await;
    let due = due.map_err(|error| QueryError { error: error.into(), in_doubt: false })?;
    let events: Vec<_> = due.due.iter().map(|event| event.seq).collect();
    let tries = match events.is_empty() {
        true => Vec::new(),
        false => store.start_webhooks(term.clone(), events).await.map_err(QueryError::in_doubt)?,
    };
    Ok(QueryResult::Started { tries, requested_at, now: due.now, next: due.next })
}

/// A try in flight. Dropping it sends `TryFinished` to the actor, so the actor is also notified when the task panics.
struct TryTask {
    open: Option<OpenWebhookTry>,
    outcome: TryOutcome,
    actor: Addr<WebhookActor>,
}

impl TryTask {
    fn finish(mut self, outcome: TryOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for TryTask {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let outcome = std::mem::replace(&mut self.outcome, TryOutcome::Interrupted);
            // `do_send` ignores the bound of the mailbox; the number of slots bounds it.
            self.actor.do_send(TryFinished { open, outcome });
        }
    }
}

impl Drop for WebhookActor {
    fn drop(&mut self) {
        // The tries in flight are not counted any more.
        let taken = i64::try_from(self.slots.taken()).unwrap_or(i64::MAX);
        self.deps.metrics.webhooks_inflight.sub(taken);
    }
}

impl Actor for WebhookActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(2 * MAX_TRIES);
        ctx.run_interval(QUERY_INTERVAL, |actor, ctx| actor.query_due(ctx));
        ctx.run_interval(CLOSE_INTERVAL, |actor, _| actor.must_close = !mutated!(TriesNotClosed));
        self.query_when_pending(ctx);
        self.query_due(ctx);
    }
}

impl Handler<TryFinished> for WebhookActor {
    type Result = ();

    fn handle(&mut self, TryFinished { open, outcome }: TryFinished, ctx: &mut Self::Context) {
        let finished_at = self.deps.store_time.now().max(open.started_at);
        let interrupted_is_delivered = mutated!(InterruptedIsDelivered) && outcome == TryOutcome::Interrupted;
        let verdict = decide(&outcome, open.round, finished_at, fastrand::f64());
        let verdict = if interrupted_is_delivered { Verdict::Delivered } else { verdict };
        self.finished.push(Arc::new(FinishWebhookTry { open, finished_at, outcome, verdict }));
        self.record(ctx);
    }
}

impl Handler<StopDelivering> for WebhookActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, StopDelivering { patience }: StopDelivering, ctx: &mut Self::Context) -> Self::Result {
        let (done, stopped) = oneshot::channel();
        self.stopping.get_or_insert_default().push(done);
        let give_up = self.give_up.clone();
        ctx.spawn(wrap_future::<_, Self>(async move {
            tokio::time::sleep(patience).await;
            give_up.cancel();
        }));
        self.stop_if_idle(ctx);
        Box::pin(async move {
            let _a_dead_actor_has_stopped_too = stopped.await;
        })
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(WebhookActor);
