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
//! State: its position in that picture. It receives `TermFailed` and `ChildStopped` from the children and `StopLeading` from
//! [`Engine`](crate::engine::Engine). It makes lease calls at the store and sends `Stop` and `StopDelivering` to the children.
//!
//! Every term has new children, which stop with it. The death of the scheduler or the executor ends the term, because only a
//! new term may close the attempts that they left open. While preparing, leading or draining, the leader renews the lease;
//! [`lease`] says when it stops doing so. When the leader itself dies, its trust is revoked and its children stop. The leader
//! that is started in its place waits for the lease to expire.

mod board;
mod children;
mod deps;
mod lease;
mod prepare;
mod progress;
mod settings;

use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::domain::lease::{Lease, Term};
use crate::engine::executor::{Closed, close_interrupted};
use crate::engine::lease_trust::LeaseTrust;
use crate::engine::messages::{Child, ChildStopped, Stop, TermFailed};
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::mutated;
use crate::platform::supervision::Alive;

pub use self::board::LeadershipBoard;
use self::children::Children;
pub use self::deps::{EngineDeps, GatewayFactory, LeaderDeps, WebhookSenderFactory};
use self::prepare::{Prepared, prepare};
pub use self::progress::Heartbeat;
use self::progress::Progress;
pub use self::settings::LeaderSettings;

/// How long the leader waits before it restarts a dead child, so that store calls of the dead one have ended by then.
const RESTART_PAUSE: Duration = Duration::from_secs(10);
/// How long the leader waits before it tries again to close attempts that the store refused to close: as long as before it
/// tries again to start an intent that the store refused to start.
const CLOSE_PAUSE: Duration = Duration::from_secs(30);

/// To the leader: stop for good. Start no new attempt, wait for those in flight, and release the lease.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopLeading {
    /// Notified when the leader has stopped.
    pub done: oneshot::Sender<()>,
}

/// Holds the lease and runs the children of a term.
pub struct LeaderActor {
    deps: LeaderDeps,
    state: State,
    /// Terms that failed in a row. Each makes the pause before the next request of the lease longer.
    failures: u32,
    /// When the last term ended. Its lease may have lasted longer.
    last_term_ended_at: Option<Instant>,
    /// A request for the lease is in flight and may still succeed.
    acquiring: bool,
    /// Set once an orderly stop was requested; notified when it is complete.
    stopping: Option<oneshot::Sender<()>>,
    store_time: StoreTime,
    _alive: Alive,
}

enum State {
    Following,
    Preparing(LeadershipTerm),
    Leading(LeadershipTerm, Box<Children>),
    Draining(LeadershipTerm),
    Stopped,
}

/// A term that this instance holds, from the acquired lease to the end. Dropping it revokes the trust in the lease.
struct LeadershipTerm {
    term: Term,
    trust: LeaseTrust,
    progress: Progress,
    started_at: Instant,
    renewals: SpawnHandle,
    /// The task that prepares the term. It is cancelled when the term ends, because it would renew the lease.
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
            last_term_ended_at: None,
            acquiring: false,
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

    fn start_term(&mut self, requested_at: Instant, lease: Lease, ctx: &mut Context<Self>) {
        self.store_time.observe(requested_at, lease.now);
        let Lease { term, expires_at, .. } = &lease;
        log::info!("leader_acquired {term} expires_at={expires_at}");
        self.deps.metrics.became_leader(term.epoch);
        let timing = self.deps.settings.timing;
        let renewals = ctx.run_interval(timing.renew_interval(), Self::renew);
        let trust = LeaseTrust::from(requested_at, timing.trusted_duration());
        let progress = Progress::new(
            self.deps.executor_thread.clone(),
            timing.trusted_duration(),
            self.deps.settings.refresh_interval,
        );
        let (term, schedule) = (term.clone(), progress.schedule.clone());
        self.deps.board.set(Some(lease));
        let leadership = LeadershipTerm {
            term: term.clone(),
            trust,
            progress,
            started_at: requested_at,
            renewals,
            preparation: None,
        };
        self.state = State::Preparing(leadership);
        self.watch_trust(term.clone(), ctx);
        self.prepare(term, schedule, ctx);
    }

    fn prepare(&mut self, term: Term, progress: Heartbeat, ctx: &mut Context<Self>) {
        let State::Preparing(leadership) = &mut self.state else { return };
        let (store, store_time) = (self.deps.store.clone(), self.store_time.clone());
        let duration = self.deps.settings.timing.duration();
        let prepare =
            wrap_future::<_, Self>(async move { prepare(&store, &term, &store_time, duration, &progress).await });
        let preparation = ctx.spawn(prepare.map(|result, actor, ctx| match result {
            Ok(prepared) => actor.lead(prepared, ctx),
            Err(failed) => actor.handle(failed, ctx),
        }));
        leadership.preparation = Some(preparation);
    }

    /// Starts the children of a term that is prepared and still held the lease afterwards.
    fn lead(&mut self, Prepared { requested_at, lease, snapshot, closed }: Prepared, ctx: &mut Context<Self>) {
        if !matches!(&self.state, State::Preparing(leadership) if leadership.term == lease.term) {
            return; // The term ended meanwhile, or the leader was told to stop.
        }
        let State::Preparing(leadership) = std::mem::replace(&mut self.state, State::Following) else { return };
        leadership.trust.extend(requested_at, self.deps.settings.timing.trusted_duration());
        let Closed { closed, refused } = closed;
        log::info!("leader_ready {} interrupted_attempts={closed} lanes={}", leadership.term, snapshot.lanes.len());
        if refused > 0 {
            self.close_later(leadership.term.clone(), ctx);
        }
        self.deps.board.set(Some(lease));
        let children = Children::start(&self.deps, &leadership, &self.store_time, snapshot, ctx.address());
        self.state = State::Leading(leadership, Box::new(children));
    }

    /// Tries again later to close attempts of earlier terms that the store refused to close. Their intents wait meanwhile.
    fn close_later(&self, term: Term, ctx: &mut Context<Self>) {
        ctx.run_later(CLOSE_PAUSE, |actor, ctx| {
            if !matches!(&actor.state, State::Leading(leadership, _) if leadership.term == term) {
                return;
            }
            let (store, store_time) = (actor.deps.store.clone(), actor.store_time.clone());
            let close = wrap_future::<_, Self>(async move {
                (close_interrupted(&store, &term, &store_time, &Heartbeat::start()).await, term)
            });
            ctx.spawn(close.map(|(result, term), actor, ctx| match result {
                Ok(Closed { refused: 0, .. }) => {}
                Ok(_) => actor.close_later(term, ctx),
                Err(error) => actor.handle(TermFailed::new(&term, "close interrupted attempts", &error), ctx),
            }));
        });
    }

    /// Restarts a child whose death does not end the term.
    fn restart(&mut self, child: Child, term: &Term, ctx: &mut Context<Self>) {
        if let State::Leading(leadership, children) = &mut self.state
            && leadership.term == *term
        {
            children.restart(child, &self.deps, leadership, &self.store_time, &ctx.address());
        }
    }

    /// Ends the term: revokes the trust and stops the children. Attempts in flight continue, and their outcomes are
    /// recorded if the lease in the database lasts that long.
    fn end_term(&mut self, why: &str, store_error: Option<&str>, ctx: &mut Context<Self>) {
        let ended = std::mem::replace(&mut self.state, State::Following);
        if let State::Preparing(leadership) | State::Leading(leadership, _) | State::Draining(leadership) = &ended {
            ctx.cancel_future(leadership.renewals);
            leadership.preparation.map(|preparation| ctx.cancel_future(preparation));
            self.last_term_ended_at = Some(monotonic());
            let level = if self.stopping.is_some() { log::Level::Info } else { log::Level::Warn };
            log::log!(level, "leader_lost {}{} why={why:?}", leadership.term, self.lease_fields(store_error));
            self.deps.metrics.became_follower();
            self.deps.board.set(None);
        }
        match self.stopping.take() {
            Some(done) => self.stop(done, ctx),
            None => self.acquire_later(ctx),
        }
    }

    /// Starts no further attempt, waits for those in flight while it renews the lease, and then releases the lease.
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
                // Until the scheduler has answered, it may still start attempts. A dead one cannot.
                let _answered_or_dead = children.scheduler.send(Stop).await;
                children.stop_webhooks(in_flight.idle()).await;
            }
            if !mutated!(ReleasedInFlight) {
                in_flight.idle().await;
            }
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

    /// Stops for good, once no attempt is in flight. Attempts of a lost term may still be in flight, and their outcomes may
    /// still be recorded.
    fn stop(&mut self, done: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        self.state = State::Stopped;
        let in_flight = self.deps.in_flight.clone();
        ctx.spawn(wrap_future::<_, Self>(async move {
            in_flight.idle().await;
            let _nobody_may_wait = done.send(());
        }));
    }

    /// Releases a lease that was acquired after an orderly stop was requested.
    fn release_and_stop(&mut self, term: Term, done: oneshot::Sender<()>, ctx: &mut Context<Self>) {
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

impl Actor for LeaderActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // A leader that died may have left its lease there.
        self.deps.board.set(None);
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
            // Counted once for each term, even if several of its calls failed.
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
                // The new child closes what the dead one left open. Attempts are not affected.
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
            State::Following if self.acquiring => self.stopping = Some(done),
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

/// Makes a child of the current term panic. It has no effect if this instance does not lead.
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "()")]
pub struct CrashChild(pub Child);

#[cfg(test)]
impl Handler<CrashChild> for LeaderActor {
    type Result = ();

    fn handle(&mut self, CrashChild(child): CrashChild, _: &mut Self::Context) {
        let State::Leading(_, children) = &self.state else { return };
        match child {
            Child::Scheduler => children.scheduler.do_send(crate::platform::supervision::Crash),
            Child::Webhooks => children.webhooks.do_send(crate::platform::supervision::Crash),
            Child::Inbox => children.inbox.do_send(crate::platform::supervision::Crash),
            Child::Redrives => children.redrives.do_send(crate::platform::supervision::Crash),
            Child::Executor => children.executor.do_send(crate::platform::supervision::Crash),
        }
    }
}
