//! `SchedulerActor`: decides which attempt is made next, for one term.
//!
//! State: the schedule (a bounded window on what waits), the cursor up to which it has seen the
//! store's changes, a timer for what is due next. Receives `IntentsArrived` (look at the store
//! now), `AttemptOver` (a slot is free) and `Stop`; sends `RunAttempt` to the executor and
//! `TermFailed` to the leader. One look at the store at a time: a lane may only be judged complete
//! by a look that is later than every change already taken in. When it dies, the leader ends the
//! term and the next one builds the schedule anew.

use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle,
};
use tokio::time::Instant;

use crate::clock::{StoreTime, monotonic};
use crate::core::lease::Term;
use crate::core::schedule::{Limits, Schedule, Waiting};
use crate::executor::{AttemptOver, ExecutorActor, InFlight, Next, RunAttempt};
use crate::leader::{Heartbeat, TermFailed};
use crate::metrics::Metrics;
use crate::store::actor::{FencedError, IntentsArrived};
use crate::store::client::StoreClient;
use crate::store::{Build, ChangeCursor, Refresh, RefreshRequest};
use crate::supervise::Alive;

/// Changes taken in at one look; more are taken in by the next, at once.
const CHANGES: usize = 2048;
/// Overdue intents exhausted in one transaction.
const EXPIRE: usize = 256;
/// How often the whole backlog is counted, which costs a scan of an index.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Start no further attempt. When this is answered, none will be.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
pub struct Stop;

pub struct SchedulerParts {
    pub term: Term,
    pub store: StoreClient,
    pub store_time: StoreTime,
    pub executor: Addr<ExecutorActor>,
    pub in_flight: InFlight,
    pub leader: Recipient<TermFailed>,
    pub metrics: Arc<Metrics>,
    pub limits: Limits,
    pub refresh_interval: Duration,
    /// Beats with every look at the store.
    pub progress: Heartbeat,
}

pub struct SchedulerActor {
    parts: SchedulerParts,
    schedule: Schedule,
    cursor: ChangeCursor,
    looking: bool,
    look_again: bool,
    due_timer: Option<SpawnHandle>,
    _alive: Alive,
}

impl SchedulerActor {
    /// Starts from a first look at the store, made within the term.
    pub fn new(parts: SchedulerParts, build: Build, alive: Alive) -> Self {
        let mut schedule = Schedule::new(parts.limits);
        build.lanes.iter().for_each(|lane| schedule.merge_page(lane));
        Self {
            parts,
            schedule,
            cursor: build.cursor,
            looking: false,
            look_again: false,
            due_timer: None,
            _alive: alive,
        }
    }

    /// Looks at the store, or makes sure that it is looked at again after the look under way.
    fn look(&mut self, ctx: &mut Context<Self>) {
        if self.looking {
            self.look_again = true;
            return;
        }
        self.looking = true;
        self.look_again = false;
        let request =
            RefreshRequest { cursor: self.cursor.clone(), limit: CHANGES, pages: self.schedule.wanted_pages() };
        let asked = monotonic();
        let store = self.parts.store.clone();
        let look = wrap_future::<_, Self>(async move { store.refresh_schedule(request).await });
        ctx.spawn(look.map(move |result, actor, ctx| {
            actor.looking = false;
            match result {
                Ok(refresh) => actor.take_in(asked, refresh, ctx),
                Err(error) => actor.fail_term("refresh", &error.into()),
            }
        }));
    }

    fn take_in(&mut self, asked: Instant, refresh: Refresh, ctx: &mut Context<Self>) {
        self.parts.progress.beat();
        self.parts.store_time.observe(asked, refresh.now);
        self.cursor = refresh.cursor;
        refresh.pages.iter().for_each(|page| self.schedule.merge_page(page));
        refresh.changed.iter().for_each(|waiting| self.schedule.merge(*waiting));
        self.start_due(ctx);
        if refresh.overdue {
            self.expire(ctx);
        }
        if refresh.more || self.look_again || !self.schedule.wanted_pages().is_empty() {
            self.look(ctx);
        }
    }

    /// Hands what is due to the executor and sets the timer for what is due next.
    fn start_due(&mut self, ctx: &mut Context<Self>) {
        let now = self.parts.store_time.now();
        for waiting in self.schedule.take_due(now) {
            // Past the mailbox's bound: the schedule's slots are the bound.
            let (report_to, count) = (ctx.address().recipient(), self.parts.in_flight.enter());
            self.parts.executor.do_send(RunAttempt { waiting, report_to, count });
        }
        if let Some(timer) = self.due_timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(span) = self.schedule.next_due_in(now) {
            self.due_timer = Some(ctx.run_later(span, |actor, ctx| actor.start_due(ctx)));
        }
        self.parts.metrics.schedule_held.set(i64::try_from(self.schedule.held()).unwrap_or(i64::MAX));
    }

    fn expire(&mut self, ctx: &mut Context<Self>) {
        let (store, term) = (self.parts.store.clone(), self.parts.term.clone());
        let expire = wrap_future::<_, Self>(async move { store.expire_overdue(&term, EXPIRE).await });
        ctx.spawn(expire.map(|result, actor, ctx| match result {
            Ok(expired) if expired >= EXPIRE => actor.look(ctx),
            Ok(_) => {}
            Err(error) => actor.fail_term("expire", &error),
        }));
    }

    fn count(&mut self, ctx: &mut Context<Self>) {
        let store = self.parts.store.clone();
        ctx.spawn(wrap_future::<_, Self>(async move { store.backlog().await }).map(|result, actor, _| {
            // A count that fails changes nothing; the next look at the store will say what is wrong.
            if let Ok(backlog) = result {
                actor.parts.metrics.queue_depth.set(i64::try_from(backlog.waiting).unwrap_or(i64::MAX));
            }
        }));
    }

    fn fail_term(&self, during: &str, error: &FencedError) {
        self.parts.leader.do_send(TermFailed::new(&self.parts.term, during, error));
    }
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.parts.store.watch_arrivals(ctx.address().recipient());
        ctx.run_interval(self.parts.refresh_interval, |actor, ctx| actor.look(ctx));
        ctx.run_interval(COUNT_INTERVAL, Self::count);
        self.count(ctx);
        self.start_due(ctx);
        self.look(ctx);
    }
}

impl Handler<IntentsArrived> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: IntentsArrived, ctx: &mut Self::Context) {
        self.look(ctx);
    }
}

impl Handler<AttemptOver> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, AttemptOver { waiting, next }: AttemptOver, ctx: &mut Self::Context) {
        self.schedule.over(waiting);
        if let Next::NotBefore(due) = next {
            self.schedule.merge(Waiting { due, ..waiting });
        }
        self.start_due(ctx);
        if next == Next::Retry || (!self.looking && !self.schedule.wanted_pages().is_empty()) {
            self.look(ctx);
        }
    }
}

impl Handler<Stop> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

#[cfg(test)]
crate::supervise::crash_on_request!(SchedulerActor);
