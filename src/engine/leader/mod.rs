//! `LeaderActor`: holds the lease and runs the children of a term.
//!
//! ```text
//!            acquired               prepared
//! Following ----------> Preparing ----------> Leading
//!     ^                     |                    |
//!     | lost: fenced, or    |                    |  a child died, the store is in doubt,
//!     | renewal failed      v                    v  or an orderly stop
//!     +<---------------------------------- Draining ----> (released) ----> Following or Stopped
//! ```
//!
//! State: where it stands in that picture. Receives `TermFailed` and `ChildStopped` from below and
//! `StopLeading` from the composition root; sends lease calls to the store. Children are made anew
//! for each term and die with it; the death of the scheduler or the executor is the end of the term, because only
//! a new term may close what a dead one left open. While preparing, leading or draining the lease is renewed;
//! one renewal that fails, is refused or is not answered while the lease is trusted ends the
//! term at once. It is not renewed while the scheduler or the executor is stuck. When the leader itself dies, its
//! trust is revoked and its children stop with it; a new leader waits for the lease to expire.

mod board;
mod children;
mod prepare;
mod progress;
mod settings;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorFutureExt, ArbiterHandle, AsyncContext, Context, Handler, Message, SpawnHandle};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::config::registry::CurrentRegistry;
use crate::config::variables::Variables;
use crate::domain::lease::{Lease, Term};
use crate::engine::lease_trust::{LeaseTrust, RemainingTrust};
use crate::engine::messages::{Child, ChildStopped, Stop, TermFailed};
use crate::engine::webhooks::sender::WebhookSender;
use crate::gateway::Gateway;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::supervision::Alive;
use crate::store::client::StoreClient;
use crate::store::{FencedError, InFlight};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Tracer;

pub use self::board::LeadershipBoard;
use self::children::Children;
use self::prepare::{Prepared, prepare};
pub use self::progress::Heartbeat;
use self::progress::{Progress, responds};
pub use self::settings::LeaderSettings;

/// Makes a gateway client on the thread that will use it.
pub type GatewayFactory = Arc<dyn Fn() -> Rc<dyn Gateway> + Send + Sync>;
/// The same for webhooks.
pub type WebhookSenderFactory = Arc<dyn Fn() -> Rc<dyn WebhookSender> + Send + Sync>;

/// How the world outside is reached.
#[derive(Clone)]
pub struct EngineDeps {
    pub gateway: GatewayFactory,
    /// How long an attempt may take, unless its target says otherwise.
    pub attempt_timeout: Duration,
    pub sender: WebhookSenderFactory,
    pub variables: Variables,
    pub registry: CurrentRegistry,
    pub tracer: Tracer,
}

/// What a leader needs; the same for every term and every leader of this process.
#[derive(Clone)]
pub struct LeaderDeps {
    pub store: StoreClient,
    pub metrics: Arc<Metrics>,
    pub board: LeadershipBoard,
    pub in_flight: InFlight,
    pub outside: EngineDeps,
    /// Where children run: the executor and webhooks have threads of their own.
    pub scheduler_arbiter: ArbiterHandle,
    pub executor_arbiter: ArbiterHandle,
    pub webhook_arbiter: ArbiterHandle,
    pub settings: LeaderSettings,
}

/// Stop for good: no new attempt, wait for those under way, give the lease back.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopLeading {
    pub done: oneshot::Sender<()>,
}

pub struct LeaderActor {
    deps: LeaderDeps,
    state: State,
    /// Terms given up in a row without a good one between; each makes the next wait longer.
    failures: u32,
    /// When the last term ended; its lease may have lasted longer.
    last_end: Option<Instant>,
    /// A question for the lease is under way, and may be answered with yes.
    asking: bool,
    /// Told when everything is over, once an orderly stop has been asked for.
    stopping: Option<oneshot::Sender<()>>,
    store_time: StoreTime,
    _alive: Alive,
}

enum State {
    Following,
    Preparing(LeadershipTerm),
    Leading(LeadershipTerm, Children),
    Draining(LeadershipTerm),
    Stopped,
}

/// A lease held and renewed. Dropping it ends all trust in it.
struct LeadershipTerm {
    term: Term,
    trust: LeaseTrust,
    progress: Progress,
    began: Instant,
    renewals: SpawnHandle,
    /// What makes it ready; it must not go on, and renew, once the term has ended.
    preparation: Option<SpawnHandle>,
}

impl Drop for LeadershipTerm {
    fn drop(&mut self) {
        self.trust.revoke();
    }
}

impl LeaderActor {
    pub fn new(deps: LeaderDeps, alive: Alive) -> Self {
        Self {
            deps,
            state: State::Following,
            failures: 0,
            last_end: None,
            asking: false,
            stopping: None,
            store_time: StoreTime::unset(),
            _alive: alive,
        }
    }

    fn leadership(&self) -> Option<&LeadershipTerm> {
        match &self.state {
            State::Preparing(leadership) | State::Leading(leadership, _) | State::Draining(leadership) => {
                Some(leadership)
            }
            State::Following | State::Stopped => None,
        }
    }

    fn term(&self) -> Option<&Term> {
        self.leadership().map(|leadership| &leadership.term)
    }

    fn is_term(&self, term: &Term) -> bool {
        self.term() == Some(term)
    }

    fn seeks_lease(&self) -> bool {
        matches!(self.state, State::Following) && self.stopping.is_none()
    }

    /// Asks for the lease, unless the executor is stuck: then it is left to others.
    fn acquire(&mut self, ctx: &mut Context<Self>) {
        let executor = self.deps.executor_arbiter.clone();
        let ready = wrap_future::<_, Self>(async move { responds(&executor).await });
        ctx.spawn(ready.map(|responds, actor, ctx| {
            if !responds {
                log::error!("executor_thread_died next=\"restart this instance\"");
            } else if actor.seeks_lease() {
                actor.ask(ctx);
            }
        }));
    }

    fn ask(&mut self, ctx: &mut Context<Self>) {
        self.asking = true;
        let LeaderDeps { store, settings, .. } = self.deps.clone();
        let asked = monotonic();
        let acquire = wrap_future::<_, Self>(async move {
            store.acquire_lease(settings.lease_name, settings.holder_id, settings.timing.duration()).await
        });
        ctx.spawn(acquire.map(move |result, actor, ctx| {
            actor.asking = false;
            match (result, actor.stopping.take()) {
                (Ok(Some(lease)), Some(done)) => actor.give_back(lease.term, done, ctx),
                (Ok(None) | Err(_), Some(done)) => actor.stop(done, ctx),
                (Ok(Some(lease)), None) => actor.begin_term(asked, lease, ctx),
                (Ok(None), None) => actor.refused(ctx),
                (Err(error), None) => {
                    let holder_id = &actor.deps.settings.holder_id;
                    log::warn!("leader_acquire_failed holder_id={holder_id} store_error={error:?}");
                    actor.acquire_later(ctx);
                }
            }
        }));
    }

    /// Somebody holds the lease. Unless that may be an earlier term of this instance, whatever went
    /// wrong here before is over.
    fn refused(&mut self, ctx: &mut Context<Self>) {
        let lasts = self.deps.settings.timing.duration();
        if self.last_end.is_none_or(|end| monotonic().duration_since(end) > lasts) {
            self.failures = 0;
        }
        self.acquire_later(ctx);
    }

    /// Jitter keeps instances that started together from asking together for ever; downwards, so
    /// that a lease given back is taken, prepared for and used within the interval.
    fn acquire_later(&self, ctx: &mut Context<Self>) {
        const LONGEST: Duration = Duration::from_secs(30);
        let interval = self.deps.settings.acquire_interval;
        let grown = interval.saturating_mul(1 << self.failures.min(5)).min(LONGEST.max(interval));
        let jittered = grown.mul_f64(0.5 + 0.4 * fastrand::f64());
        ctx.run_later(jittered, Self::acquire);
    }

    fn begin_term(&mut self, asked: Instant, lease: Lease, ctx: &mut Context<Self>) {
        self.store_time.observe(asked, lease.now);
        let Lease { term, expires_at, .. } = &lease;
        log::info!("leader_acquired {term} expires_at={expires_at}");
        self.deps.metrics.became_leader(term.epoch);
        let timing = self.deps.settings.timing;
        let renewals = ctx.run_interval(timing.renew_interval(), Self::renew);
        let trust = LeaseTrust::from(asked, timing.trusted_duration());
        let progress = Progress::new(
            self.deps.executor_arbiter.clone(),
            timing.trusted_duration(),
            self.deps.settings.refresh_interval,
        );
        let (term, work) = (term.clone(), progress.work.clone());
        self.deps.board.show(Some(lease));
        let leadership =
            LeadershipTerm { term: term.clone(), trust, progress, began: asked, renewals, preparation: None };
        self.state = State::Preparing(leadership);
        self.watch_trust(term.clone(), ctx);
        self.prepare(term, work, ctx);
    }

    fn prepare(&mut self, term: Term, work: Heartbeat, ctx: &mut Context<Self>) {
        let State::Preparing(leadership) = &mut self.state else { return };
        let (store, store_time) = (self.deps.store.clone(), self.store_time.clone());
        let duration = self.deps.settings.timing.duration();
        let prepare = wrap_future::<_, Self>(async move { prepare(&store, &term, &store_time, duration, &work).await });
        let preparation = ctx.spawn(prepare.map(|result, actor, ctx| match result {
            Ok(prepared) => actor.lead(prepared, ctx),
            Err(failed) => actor.handle(failed, ctx),
        }));
        leadership.preparation = Some(preparation);
    }

    /// The term is prepared and was still held after that: start its children.
    fn lead(&mut self, Prepared { asked, lease, snapshot, closed }: Prepared, ctx: &mut Context<Self>) {
        if !matches!(&self.state, State::Preparing(leadership) if leadership.term == lease.term) {
            return; // Ended meanwhile, or told to stop.
        }
        let State::Preparing(leadership) = std::mem::replace(&mut self.state, State::Following) else { return };
        leadership.trust.extend(asked, self.deps.settings.timing.trusted_duration());
        log::info!("leader_ready {} interrupted_attempts={closed} lanes={}", leadership.term, snapshot.lanes.len());
        self.deps.board.show(Some(lease));
        let children = Children::start(&self.deps, &leadership, &self.store_time, snapshot, ctx.address());
        self.state = State::Leading(leadership, children);
    }

    /// Starts a child again whose death is no reason to end the term.
    fn restart(&mut self, child: Child, term: &Term, ctx: &mut Context<Self>) {
        if let State::Leading(leadership, children) = &mut self.state
            && leadership.term == *term
        {
            children.restart(child, &self.deps, leadership, &self.store_time, &ctx.address());
        }
    }

    fn renew(&mut self, ctx: &mut Context<Self>) {
        let Some(leadership) = self.leadership() else { return };
        if let Some(stuck) = leadership.progress.stuck(matches!(self.state, State::Draining(_))) {
            let failed = TermFailed::lost(&leadership.term, stuck);
            return self.renew_failed(failed, ctx);
        }
        leadership.progress.ask();
        let term = leadership.term.clone();
        let (store, asked) = (self.deps.store.clone(), monotonic());
        let timing = self.deps.settings.timing;
        let asked_for = term.clone();
        let renew = wrap_future::<_, Self>(async move { store.renew_lease(asked_for, timing.duration()).await });
        ctx.spawn(renew.map(move |result, actor, ctx| match result {
            Ok(lease) => actor.renewed(asked, lease),
            Err(FencedError::TermOver) => {
                actor.renew_failed(TermFailed::new(&term, "renew", &FencedError::TermOver), ctx);
            }
            Err(FencedError::Store(error)) => {
                let store_error = Some(error.to_string());
                actor.renew_failed(TermFailed { store_error, ..TermFailed::lost(&term, "renew failed") }, ctx);
            }
        }));
    }

    fn renew_failed(&mut self, failed: TermFailed, ctx: &mut Context<Self>) {
        if self.is_term(&failed.term) {
            let fields = self.lease_fields(failed.store_error.as_deref());
            log::warn!("leader_renew_failed {}{fields} why={:?}", failed.term, failed.why);
            self.handle(failed, ctx);
        }
    }

    /// The fields that every line about a lease ends with.
    fn lease_fields(&self, store_error: Option<&str>) -> String {
        let expires_at = self.deps.board.lease().map(|lease| format!(" expires_at={}", lease.expires_at));
        let store_error = store_error.map(|error| format!(" store_error={error:?}"));
        format!("{}{}", expires_at.unwrap_or_default(), store_error.unwrap_or_default())
    }

    fn renewed(&mut self, asked: Instant, lease: Lease) {
        if !self.is_term(&lease.term) {
            return;
        }
        log::debug!("leader_renewed {} expires_at={}", lease.term, lease.expires_at);
        self.store_time.observe(asked, lease.now);
        if let Some(leadership) = self.leadership() {
            leadership.trust.extend(asked, self.deps.settings.timing.trusted_duration());
            if monotonic().duration_since(leadership.began) > GOOD_TERM {
                self.failures = 0;
            }
        }
        self.deps.board.show(Some(lease));
    }

    /// Ends the term when its trust runs out, however long the store takes to say anything.
    fn watch_trust(&mut self, term: Term, ctx: &mut Context<Self>) {
        let Some(leadership) = self.leadership().filter(|leadership| leadership.term == term) else { return };
        match leadership.trust.left() {
            RemainingTrust::For(span) => {
                ctx.run_later(span, |actor, ctx| actor.watch_trust(term, ctx));
            }
            // In doubt and being drained, which ends by itself.
            RemainingTrust::Revoked => {}
            RemainingTrust::RanOut => {
                self.renew_failed(TermFailed::lost(&term, "no renewal was answered in time"), ctx);
            }
        }
    }

    /// The term is over: revokes trust and stops children. What is under way goes on by itself,
    /// and is recorded if the lease in the database lasts that long.
    fn end_term(&mut self, why: &str, store_error: Option<&str>, ctx: &mut Context<Self>) {
        let ended = std::mem::replace(&mut self.state, State::Following);
        if let State::Preparing(leadership) | State::Leading(leadership, _) | State::Draining(leadership) = &ended {
            ctx.cancel_future(leadership.renewals);
            leadership.preparation.map(|preparation| ctx.cancel_future(preparation));
            self.last_end = Some(monotonic());
            let level = if self.stopping.is_some() { log::Level::Info } else { log::Level::Warn };
            log::log!(level, "leader_lost {}{} why={why:?}", leadership.term, self.lease_fields(store_error));
            self.deps.metrics.became_follower();
            self.deps.board.show(None);
        }
        match self.stopping.take() {
            Some(done) => self.stop(done, ctx),
            None => self.acquire_later(ctx),
        }
    }

    /// Begins nothing more, waits for the attempts under way while renewing the lease, then gives
    /// the lease back.
    fn drain(&mut self, why: String, ctx: &mut Context<Self>) {
        let (leadership, children) = match std::mem::replace(&mut self.state, State::Following) {
            State::Preparing(mut leadership) => {
                leadership.preparation.take().map(|preparation| ctx.cancel_future(preparation));
                (leadership, None)
            }
            State::Leading(leadership, children) => (leadership, Some(children)),
            other => {
                self.state = other;
                return;
            }
        };
        let term = leadership.term.clone();
        log::info!("leader_draining {term} why={why:?}");
        self.state = State::Draining(leadership);
        let (in_flight, store) = (self.deps.in_flight.clone(), self.deps.store.clone());
        let drain = wrap_future::<_, Self>(async move {
            if let Some(children) = &children {
                // Until it has answered it may still hand out attempts. A dead one cannot.
                let _answered_or_dead = children.scheduler.send(Stop).await;
                children.stop_webhooks(in_flight.idle()).await;
            }
            in_flight.idle().await;
            (store.release_lease(term.clone()).await, term)
        });
        ctx.spawn(drain.map(move |(released, term), actor, ctx| {
            if let Err(error) = released {
                log::warn!("leader_release_failed {term} store_error={error:?}");
            }
            if actor.is_term(&term) {
                actor.end_term(&why, None, ctx);
            }
        }));
    }

    /// Attempts of a term that was lost may still be under way, and their outcome be recorded.
    fn stop(&mut self, done: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        self.state = State::Stopped;
        let in_flight = self.deps.in_flight.clone();
        ctx.spawn(wrap_future::<_, Self>(async move {
            in_flight.idle().await;
            let _nobody_may_wait = done.send(());
        }));
    }

    /// The lease came after it was decided to stop.
    fn give_back(&mut self, term: Term, done: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        let release = wrap_future::<_, Self>(async move { (store.release_lease(term.clone()).await, term) });
        ctx.spawn(release.map(|(released, term), actor, ctx| {
            if let Err(error) = released {
                log::warn!("leader_release_failed {term} store_error={error:?}");
            }
            actor.stop(done, ctx);
        }));
    }
}

/// Before a dead webhook actor is followed by another: longer than a call of it may be under way.
const RESTART_PAUSE: Duration = Duration::from_secs(10);

/// A term that lasted this long clears the record of those that failed before.
const GOOD_TERM: Duration = Duration::from_secs(60);

impl Actor for LeaderActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // A leader that died may have left its mark.
        self.deps.board.show(None);
        self.deps.metrics.leader.set(0);
        self.acquire(ctx);
    }
}

impl Handler<TermFailed> for LeaderActor {
    type Result = ();

    fn handle(&mut self, failed: TermFailed, ctx: &mut Self::Context) {
        let TermFailed { term, lost, why, store_error } = failed;
        if !self.is_term(&term) {
            return;
        }
        if let State::Preparing(leadership) | State::Leading(leadership, _) = &self.state {
            // Once a term, however many of its writes met the same trouble.
            self.failures += 1;
            if !lost {
                leadership.trust.revoke();
                return self.drain(why, ctx);
            }
        }
        if lost {
            self.end_term(&why, store_error.as_deref(), ctx);
        }
    }
}

impl Handler<ChildStopped> for LeaderActor {
    type Result = ();

    fn handle(&mut self, ChildStopped { term, child }: ChildStopped, ctx: &mut Self::Context) {
        if matches!(&self.state, State::Leading(leadership, _) if leadership.term == term) {
            log::error!("child_died child={child} {term}");
            if child.is_restarted() {
                // The next one closes what this one left open; attempts are not affected.
                ctx.run_later(RESTART_PAUSE, move |actor, ctx| actor.restart(child, &term, ctx));
                return;
            }
            self.handle(TermFailed::in_doubt(&term, format!("the {child} died")), ctx);
        }
    }
}

impl Handler<StopLeading> for LeaderActor {
    type Result = ();

    fn handle(&mut self, StopLeading { done }: StopLeading, ctx: &mut Self::Context) {
        match self.state {
            State::Following if self.asking => self.stopping = Some(done),
            State::Following | State::Stopped => self.stop(done, ctx),
            State::Preparing(_) | State::Leading(..) | State::Draining(_) => {
                self.stopping = Some(done);
                self.drain("orderly stop".to_owned(), ctx);
            }
        }
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(LeaderActor);

/// Makes a child of the present term panic.
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "()")]
pub struct CrashChild(pub Child);

#[cfg(test)]
impl Handler<CrashChild> for LeaderActor {
    type Result = ();

    fn handle(&mut self, CrashChild(child): CrashChild, _: &mut Self::Context) {
        let State::Leading(_, children) = &self.state else { panic!("not leading") };
        match child {
            Child::Scheduler => children.scheduler.do_send(crate::platform::supervision::Crash),
            Child::Webhooks => children.webhooks.do_send(crate::platform::supervision::Crash),
            Child::Inbox => children.inbox.do_send(crate::platform::supervision::Crash),
            Child::Executor => children.executor.do_send(crate::platform::supervision::Crash),
        }
    }
}
