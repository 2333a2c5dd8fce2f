//! `WebhookActor`: delivers the events that are owed, for one term.
//!
//! State: which places are taken, which outcomes wait to be recorded, whether the store is being
//! asked. Receives `TryOver` from the tries under way, each a task of its own, and `StopDelivering` from the
//! leader; wakes up when events come to be owed, when one is due, and once a second for those that
//! other instances were asked for. Sends `TermFailed` to the leader if the term is over.
//!
//! A try is written down before it is made and recorded after it, both fenced. Whatever is open when
//! an actor begins, or when an answer of the store was lost, is closed as interrupted and tried
//! again, so a receiver may get an event twice, under one id, and never not at all. When the
//! actor dies, the leader starts another; attempts go on meanwhile.

pub mod courier;
mod letter;
mod places;
pub mod sink;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient, ResponseFuture,
    SpawnHandle,
};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use self::courier::Courier;
use self::places::{IN_ALL, Places};
use crate::clock::{StoreTime, monotonic};
use crate::core::lease::Term;
use crate::core::time::Timestamp;
use crate::core::webhook::{TryOutcome, Verdict, decide};
use crate::leader::TermFailed;
use crate::metrics::Metrics;
use crate::store::actor::{FencedError, FencedResult};
use crate::store::client::StoreClient;
use crate::store::{FinishTry, OpenTry, WebhookLook};
use crate::supervise::Alive;
use crate::trust::Trust;
use crate::variables::Variables;

pub use self::letter::Letter;

/// How often the store is looked at without a reason.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Between two tries to write to a store that fails.
const PAUSE: Duration = Duration::from_millis(500);

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
    open: OpenTry,
    outcome: TryOutcome,
}

pub struct WebhookParts {
    pub term: Term,
    pub trust: Trust,
    pub store: StoreClient,
    pub store_time: StoreTime,
    pub courier: Rc<dyn Courier>,
    pub variables: Variables,
    pub metrics: Arc<Metrics>,
    pub leader: Recipient<TermFailed>,
}

pub struct WebhookActor {
    parts: WebhookParts,
    places: Places,
    /// No try is open in the store but those under way here.
    clean: bool,
    asking: bool,
    ask_again: bool,
    timer: Option<SpawnHandle>,
    finished: Vec<Arc<FinishTry>>,
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
    Begun { begun: Vec<OpenTry>, asked: Instant, now: Timestamp, next: Option<Timestamp> },
}

impl WebhookActor {
    pub fn new(parts: WebhookParts, alive: Alive) -> Self {
        Self {
            parts,
            places: Places::default(),
            clean: false,
            asking: false,
            ask_again: false,
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
        if self.asking {
            self.ask_again = true;
            return;
        }
        if self.stopping.is_some() || !self.parts.trust.holds() {
            return;
        }
        // What is open may only be closed while nothing is under way here.
        let look = if self.clean { self.places.look() } else { None };
        if look.is_none() && (self.clean || self.places.taken() > 0) {
            return;
        }
        self.asking = true;
        self.ask_again = false;
        let (store, term) = (self.parts.store.clone(), self.parts.term.clone());
        let ask = async move {
            match look {
                Some(look) => begin_due(&store, &term, look).await,
                None => store.close_webhooks(&term).await.map(Look::Closed),
            }
        };
        ctx.spawn(wrap_future::<_, Self>(ask).map(|result, actor, ctx| {
            actor.asking = false;
            match result {
                Ok(Look::Closed(closed)) => {
                    if closed > 0 {
                        log::warn!("webhooks_interrupted count={closed}");
                    }
                    actor.clean = true;
                    actor.ask_again = true;
                }
                Ok(Look::Begun { begun, asked, now, next }) => {
                    actor.parts.store_time.observe(asked, now);
                    actor.wake_at(now, next, ctx);
                    begun.into_iter().for_each(|open| actor.start(open, ctx));
                }
                Err(FencedError::TermOver) => return actor.term_over("webhooks", ctx),
                Err(FencedError::Store(error)) => {
                    log::warn!("webhooks_not_begun store_error={error:?}");
                    // Some may have been written down as begun all the same.
                    actor.clean = false;
                    ctx.run_later(PAUSE, Self::look);
                }
            }
            if actor.ask_again {
                actor.look(ctx);
            }
            actor.end_if_idle(ctx);
        }));
    }

    fn wake_at(&mut self, now: Timestamp, next: Option<Timestamp>, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let span = next.map(|due| due.since(now)).filter(|span| *span < LOOK_INTERVAL);
        self.timer = span.map(|span| ctx.run_later(span, |actor, ctx| actor.look(ctx)));
    }

    /// Makes a try that was written down.
    fn start(&mut self, open: OpenTry, ctx: &mut Context<Self>) {
        self.places.take(open.receiver);
        self.parts.metrics.webhooks_inflight.inc();
        let over = ctx.address();
        let letter = letter::write(&open, &self.parts.variables, self.parts.store_time.now());
        let mut give_up = self.give_up.subscribe();
        let trusted = self.parts.trust.holds() && self.stopping.is_none();
        let courier = Rc::clone(&self.parts.courier);
        actix::spawn(async move {
            let outcome = match letter {
                _ if !trusted => TryOutcome::Interrupted,
                Err(what) => TryOutcome::Error(what),
                Ok(letter) => tokio::select! {
                    outcome = courier.deliver(letter) => outcome,
                    _ = give_up.wait_for(|given_up| *given_up) => TryOutcome::Interrupted,
                },
            };
            // Past the mailbox's bound: the places are the bound.
            over.do_send(TryOver { open, outcome });
        });
    }

    /// Records all outcomes that wait, together.
    fn record(&mut self, ctx: &mut Context<Self>) {
        if self.recording || self.finished.is_empty() {
            return;
        }
        self.recording = true;
        let finished = std::mem::take(&mut self.finished);
        let (store, term, batch) = (self.parts.store.clone(), self.parts.term.clone(), finished.clone());
        let record = wrap_future::<_, Self>(async move { store.finish_webhooks(&term, batch).await });
        ctx.spawn(record.map(move |result, actor, ctx| {
            actor.recording = false;
            match result {
                Ok(()) => {
                    finished.iter().for_each(|finish| actor.recorded(finish));
                    actor.record(ctx);
                    actor.look(ctx);
                }
                Err(FencedError::TermOver) => return actor.term_over("webhooks", ctx),
                // It can be repeated without harm. Nobody waits for that while the service stops:
                // the next term closes what is open.
                Err(FencedError::Store(error)) => {
                    log::warn!("webhooks_not_recorded count={} store_error={error:?}", finished.len());
                    if actor.stopping.is_some() {
                        finished.iter().for_each(|finish| actor.give_back(finish));
                    } else {
                        actor.finished.extend(finished);
                        ctx.run_later(PAUSE, Self::record);
                    }
                }
            }
            actor.end_if_idle(ctx);
        }));
    }

    fn recorded(&mut self, finish: &FinishTry) {
        self.give_back(finish);
        let FinishTry { open, finished_at, outcome, verdict } = finish;
        self.parts.metrics.webhook_tried(*verdict, finished_at.since(open.started_at));
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

    fn give_back(&mut self, finish: &FinishTry) {
        self.places.give_back(finish.open.receiver, !matches!(finish.verdict, Verdict::Delivered));
        self.parts.metrics.webhooks_inflight.dec();
    }

    fn term_over(&mut self, during: &str, ctx: &mut Context<Self>) {
        self.parts.leader.do_send(TermFailed::new(&self.parts.term, during, &FencedError::TermOver));
        self.end(ctx);
    }

    fn end_if_idle(&mut self, ctx: &mut Context<Self>) {
        let idle = self.places.taken() == 0 && !self.asking && !self.recording;
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
        let store = self.parts.store.clone();
        ctx.spawn(wrap_future::<_, Self>(async move { store.webhooks_owed().await }).map(|(), actor, ctx| {
            actor.look(ctx);
            actor.listen(ctx);
        }));
    }
}

/// Writes down tries of what is due.
async fn begin_due(store: &StoreClient, term: &Term, look: WebhookLook) -> FencedResult<Look> {
    let asked = monotonic();
    let due = store.due_webhooks(look).await?;
    let events: Vec<_> = due.due.iter().map(|event| event.seq).collect();
    let begun = if events.is_empty() { Vec::new() } else { store.begin_webhooks(term, events).await? };
    Ok(Look::Begun { begun, asked, now: due.now, next: due.next })
}

impl Actor for WebhookActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(2 * IN_ALL);
        ctx.run_interval(LOOK_INTERVAL, |actor, ctx| actor.look(ctx));
        self.listen(ctx);
        self.look(ctx);
    }
}

impl Handler<TryOver> for WebhookActor {
    type Result = ();

    fn handle(&mut self, TryOver { open, outcome }: TryOver, ctx: &mut Self::Context) {
        let finished_at = self.parts.store_time.now().max(open.started_at);
        let verdict = decide(&outcome, open.round, finished_at, fastrand::f64());
        self.finished.push(Arc::new(FinishTry { open, finished_at, outcome, verdict }));
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
crate::supervise::crash_on_request!(WebhookActor);
