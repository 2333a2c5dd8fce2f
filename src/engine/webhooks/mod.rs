//! `WebhookActor`: delivers the events that are owed, for one term.
//!
//! State: which places are taken, which outcomes wait to be recorded, whether the store is being
//! asked. Receives `TryOver` from the tries under way, each a task of its own, and `StopDelivering` from the
//! leader; wakes up when events come to be owed, when one is due, and once a second for those that
//! other instances were asked for. Sends `TermFailed` to the leader if the term is over.
//!
//! A try is written down before it is made and recorded after it, both fenced. Whatever is open and not
//! under way here is closed as interrupted and tried again: when an actor begins, when an answer of
//! the store was lost, and once a minute. So a receiver may get an event twice, under one id, and
//! never not at all. When the actor dies, the leader starts another; attempts go on meanwhile.

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
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use self::sender::WebhookSender;
use self::slots::{IN_ALL, WebhookSlots};
use crate::config::variables::Variables;
use crate::domain::intent::IntentSeq;
use crate::domain::lease::Term;
use crate::domain::time::Timestamp;
use crate::domain::webhook::{TryOutcome, Verdict, decide};
use crate::engine::lease_trust::LeaseTrust;
use crate::engine::messages::TermFailed;
use crate::engine::one_at_a_time::OneAtATime;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::supervision::Alive;
use crate::store::FencedError;
use crate::store::client::StoreClient;
use crate::store::{DueWebhooksQuery, FinishWebhookTry, OpenWebhookTry};
use crate::telemetry::metrics::Metrics;

pub use self::request::WebhookRequest;

/// How often the store is looked at without a reason.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Between two tries to write to a store that fails.
const PAUSE: Duration = Duration::from_millis(500);
/// Between two calls of a try that could not be made for want of a local resource.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);
/// How often such a try calls before that is its outcome: half a minute of shortage uses up no try.
const SHORTAGE_CALLS: usize = 30;
/// How often it is looked whether anything is open that is not under way.
const TIDY_INTERVAL: Duration = Duration::from_secs(60);

/// Begin no further try; when this is answered, none is under way and all are recorded.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopDelivering {
    /// How long receivers still have to answer.
    pub patience: Duration,
}

/// A try has ended.
#[derive(Message)]
#[rtype(result = "()")]
struct TryOver {
    open: OpenWebhookTry,
    outcome: TryOutcome,
}

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

pub struct WebhookActor {
    deps: WebhookDeps,
    slots: WebhookSlots,
    /// Tries that are open in the store and known here: being made, or waiting to be recorded.
    under_way: HashSet<IntentSeq>,
    /// No other try is open in the store, as far as is known.
    clean: bool,
    /// The query for due events; it also counts as running during the pause after a failure.
    query: OneAtATime,
    timer: Option<SpawnHandle>,
    finished: Vec<Arc<FinishWebhookTry>>,
    /// The same for what is to be recorded.
    recording: bool,
    /// Set to true when tries under way are to be given up.
    give_up: watch::Sender<bool>,
    /// Told when nothing is under way any more, once it was asked for.
    stopping: Option<Vec<oneshot::Sender<()>>>,
    _alive: Alive,
}

/// What a look at the store came to.
enum Look {
    Closed(usize),
    Started { tries: Vec<OpenWebhookTry>, asked: Instant, now: Timestamp, next: Option<Timestamp> },
}

impl WebhookActor {
    pub fn new(deps: WebhookDeps, alive: Alive) -> Self {
        Self {
            deps,
            slots: WebhookSlots::default(),
            under_way: HashSet::new(),
            clean: false,
            query: OneAtATime::default(),
            timer: None,
            finished: Vec::new(),
            recording: false,
            give_up: watch::Sender::new(false),
            stopping: None,
            _alive: alive,
        }
    }

    /// Begins what is due, as far as there are places; or makes sure that this is done again after
    /// the look under way.
    fn look(&mut self, ctx: &mut Context<Self>) {
        let look = self.slots.look();
        let nothing_to_do = self.stopping.is_some() || !self.deps.trust.holds() || (self.clean && look.is_none());
        if (nothing_to_do && !self.query.is_running()) || !self.query.request() {
            return;
        }
        let (store, term) = (self.deps.store.clone(), self.deps.term.clone());
        let under_way = self.under_way.iter().copied().collect();
        let ask = {
            let look = look.filter(|_| self.clean);
            async move {
                match look {
                    Some(look) => begin_due(&store, &term, look).await,
                    None => store.close_webhooks(term, under_way).await.map(Look::Closed).map_err(NotLooked::in_doubt),
                }
            }
        };
        ctx.spawn(wrap_future::<_, Self>(ask).map(|result, actor, ctx| match result {
            Ok(look) => actor.looked(look, ctx),
            Err(NotLooked { error: FencedError::TermOver, .. }) => actor.term_over(ctx),
            Err(NotLooked { error: FencedError::Store(error), in_doubt }) => {
                log::warn!("webhooks_not_begun store_error={error:?}");
                // Some may have been written down as begun all the same.
                actor.clean &= !in_doubt;
                actor.after_pause(ctx, |actor, ctx| {
                    actor.query.finish();
                    actor.look(ctx);
                    actor.end_if_idle(ctx);
                });
            }
        }));
    }

    fn looked(&mut self, look: Look, ctx: &mut Context<Self>) {
        match look {
            Look::Closed(closed) => {
                if closed > 0 {
                    log::warn!("webhooks_interrupted count={closed}");
                }
                self.clean = true;
                self.query.repeat();
            }
            Look::Started { tries, asked, now, next } => {
                self.deps.store_time.observe(asked, now);
                self.wake_at(now, next, ctx);
                tries.into_iter().for_each(|open| self.start(open, ctx));
            }
        }
        if self.query.finish() {
            self.look(ctx);
        }
        self.end_if_idle(ctx);
    }

    /// Goes on after a pause, or at once if it is to stop.
    fn after_pause(&self, ctx: &mut Context<Self>, go_on: fn(&mut Self, &mut Context<Self>)) {
        let pause = if self.stopping.is_some() { Duration::ZERO } else { PAUSE };
        ctx.run_later(pause, go_on);
    }

    fn wake_at(&mut self, now: Timestamp, next: Option<Timestamp>, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let span = next.map(|due| due.since(now)).filter(|span| *span < LOOK_INTERVAL);
        self.timer = span.map(|span| ctx.run_later(span, |actor, ctx| actor.look(ctx)));
    }

    /// Makes a try that was written down.
    fn start(&mut self, open: OpenWebhookTry, ctx: &mut Context<Self>) {
        self.slots.take(open.receiver);
        self.under_way.insert(open.intent.seq);
        self.deps.metrics.webhooks_inflight.inc();
        let webhook_request = request::write(&open, &self.deps.variables, self.deps.store_time.now());
        if let Err(what) = &webhook_request {
            log::warn!("webhook_not_sent intent_id={:?} error={what:?}", open.intent.id);
        }
        let mut give_up = self.give_up.subscribe();
        let trust = self.deps.trust.clone();
        let trusted = trust.holds() && self.stopping.is_none();
        let sender = Rc::clone(&self.deps.sender);
        let task = Task { open: Some(open), outcome: TryOutcome::Interrupted, actor: ctx.address() };
        actix::spawn(async move {
            let outcome = match webhook_request {
                _ if !trusted => TryOutcome::Interrupted,
                Err(what) => TryOutcome::Error(what),
                Ok(webhook_request) => tokio::select! {
                    outcome = deliver(&*sender, &webhook_request, &trust) => outcome,
                    _ = give_up.wait_for(|given_up| *given_up) => TryOutcome::Interrupted,
                },
            };
            task.ended(outcome);
        });
    }

    /// Records all outcomes that wait, together.
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
                    actor.look(ctx);
                }
                Err(FencedError::TermOver) => return actor.term_over(ctx),
                Err(FencedError::Store(error)) => {
                    log::warn!("webhooks_not_recorded count={} store_error={error:?}", finished.len());
                    actor.not_recorded(finished, ctx);
                }
            }
            actor.end_if_idle(ctx);
        }));
    }

    /// It can be repeated without harm. Nobody waits for that while the service stops: the next
    /// term closes what is open.
    fn not_recorded(&mut self, finished: Vec<Arc<FinishWebhookTry>>, ctx: &mut Context<Self>) {
        self.finished.extend(finished);
        if self.stopping.is_some() {
            self.recording = false;
            let lost = std::mem::take(&mut self.finished);
            return lost.iter().for_each(|finish| self.give_back(finish));
        }
        self.after_pause(ctx, |actor, ctx| {
            actor.recording = false;
            actor.record(ctx);
            actor.end_if_idle(ctx);
        });
    }

    fn recorded(&mut self, finish: &FinishWebhookTry) {
        self.give_back(finish);
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

    fn give_back(&mut self, finish: &FinishWebhookTry) {
        self.under_way.remove(&finish.open.intent.seq);
        self.slots.give_back(finish.open.receiver, !matches!(finish.verdict, Verdict::Delivered));
        self.deps.metrics.webhooks_inflight.dec();
    }

    fn term_over(&mut self, ctx: &mut Context<Self>) {
        self.deps.leader.do_send(TermFailed::new(&self.deps.term, "webhooks", &FencedError::TermOver));
        self.end(ctx);
    }

    fn end_if_idle(&mut self, ctx: &mut Context<Self>) {
        let idle = self.slots.taken() == 0 && !self.query.is_running() && !self.recording;
        if self.stopping.is_some() && idle {
            self.end(ctx);
        }
    }

    fn end(&mut self, ctx: &mut Context<Self>) {
        self.give_up.send_replace(true);
        let told = self.stopping.replace(Vec::new()).unwrap_or_default();
        for done in told {
            let _nobody_may_wait = done.send(());
        }
        ctx.stop();
    }

    /// Looks whenever this instance has made events come to be owed.
    fn listen(&mut self, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        ctx.spawn(wrap_future::<_, Self>(async move { store.pending_webhooks().await }).map(|(), actor, ctx| {
            actor.look(ctx);
            actor.listen(ctx);
        }));
    }
}

/// Delivers a letter. A shortage on this side is no try: it calls again until that is over.
async fn deliver(sender: &dyn WebhookSender, webhook_request: &WebhookRequest, trust: &LeaseTrust) -> TryOutcome {
    for call in 1.. {
        match sender.deliver(webhook_request).await {
            Ok(outcome) => return outcome,
            Err(error) if call == SHORTAGE_CALLS => return TryOutcome::Error(format!("not sent: {error}")),
            Err(_) => tokio::time::sleep(SHORTAGE_PAUSE).await,
        }
        if !trust.holds() {
            break;
        }
    }
    TryOutcome::Interrupted
}

/// Why the store was asked in vain, and whether it may have written something down all the same.
struct NotLooked {
    error: FencedError,
    in_doubt: bool,
}

impl NotLooked {
    fn in_doubt(error: FencedError) -> Self {
        Self { error, in_doubt: true }
    }
}

/// Writes down tries of what is due.
async fn begin_due(store: &StoreClient, term: &Term, look: DueWebhooksQuery) -> Result<Look, NotLooked> {
    let asked = monotonic();
    let due = store.due_webhooks(look).await;
    let due = due.map_err(|error| NotLooked { error: error.into(), in_doubt: false })?;
    let events: Vec<_> = due.due.iter().map(|event| event.seq).collect();
    let tries = match events.is_empty() {
        true => Vec::new(),
        false => store.start_webhooks(term.clone(), events).await.map_err(NotLooked::in_doubt)?,
    };
    Ok(Look::Started { tries, asked, now: due.now, next: due.next })
}

/// A try under way. However it ends, also by a panic, the actor is told.
struct Task {
    open: Option<OpenWebhookTry>,
    outcome: TryOutcome,
    actor: Addr<WebhookActor>,
}

impl Task {
    fn ended(mut self, outcome: TryOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let outcome = std::mem::replace(&mut self.outcome, TryOutcome::Interrupted);
            // Past the mailbox's bound: the places are the bound.
            self.actor.do_send(TryOver { open, outcome });
        }
    }
}

impl Drop for WebhookActor {
    fn drop(&mut self) {
        // What is under way is not counted by anybody any more.
        let left = i64::try_from(self.slots.taken()).unwrap_or(i64::MAX);
        self.deps.metrics.webhooks_inflight.sub(left);
    }
}

impl Actor for WebhookActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(2 * IN_ALL);
        ctx.run_interval(LOOK_INTERVAL, |actor, ctx| actor.look(ctx));
        ctx.run_interval(TIDY_INTERVAL, |actor, _| actor.clean = false);
        self.listen(ctx);
        self.look(ctx);
    }
}

impl Handler<TryOver> for WebhookActor {
    type Result = ();

    fn handle(&mut self, TryOver { open, outcome }: TryOver, ctx: &mut Self::Context) {
        let finished_at = self.deps.store_time.now().max(open.started_at);
        let verdict = decide(&outcome, open.round, finished_at, fastrand::f64());
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
            give_up.send_replace(true);
        }));
        self.end_if_idle(ctx);
        Box::pin(async move {
            let _dead_is_stopped_too = stopped.await;
        })
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(WebhookActor);
