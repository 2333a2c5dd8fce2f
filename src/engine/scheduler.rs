//! `SchedulerActor`: decides which attempt is made next, for one term.
//!
//! State: the schedule (a bounded window on what waits), the cursor up to which it has seen the
//! store's changes, a timer for what is due next. Receives `IntentsWaiting` (look at the store
//! now), `SlotFree` (there is room) and `Stop`; sends `RunAttempts` to the executor
//! and `TermFailed` to the leader. Gives places to the store for new intents that nothing else is
//! due before: those are begun in the transaction that takes them in, and never come here. One look at the store at a time: a lane may only be judged complete
//! by a look that is later than every change already taken in. When it dies, the leader ends the
//! term and the next one builds the schedule anew.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle,
};
use tokio::time::Instant;

use crate::config::registry::{CurrentRegistry, Registry};
use crate::domain::lease::Term;
use crate::domain::schedule::{Ended, Lane, Limits, Schedule, Waiting};
use crate::domain::time::Timestamp;
use crate::engine::executor::{AttemptOver, Dispatch, ExecutorActor, InFlight, InFlightCount, Over, RunAttempts};
use crate::engine::leader::{Heartbeat, TermFailed};
use crate::engine::lease_trust::LeaseTrust;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::supervision::Alive;
use crate::store::actor::{AttemptsInDoubt, FencedError, IntentsWaiting, TermSubscriber};
use crate::store::client::StoreClient;
use crate::store::{ChangeCursor, Permit, Places, Refresh, RefreshRequest, ScheduleSnapshot, Slot, StartOnInsert};
use crate::telemetry::metrics::Metrics;

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

pub struct SchedulerDeps {
    pub term: Term,
    pub trust: LeaseTrust,
    pub store: StoreClient,
    pub store_time: StoreTime,
    pub executor: Addr<ExecutorActor>,
    pub in_flight: InFlight,
    pub leader: Recipient<TermFailed>,
    pub metrics: Arc<Metrics>,
    /// Whose limits hold for targets.
    pub registry: CurrentRegistry,
    pub limits: Limits,
    pub refresh_interval: Duration,
    /// Beats with every look at the store.
    pub progress: Heartbeat,
}

pub struct SchedulerActor {
    deps: SchedulerDeps,
    schedule: SharedSchedule,
    cursor: ChangeCursor,
    looking: bool,
    look_again: bool,
    due_timer: Option<SpawnHandle>,
    _alive: Alive,
}

/// Also seen by the store, which takes places for intents that need not wait.
#[derive(Clone)]
struct SharedSchedule {
    limited: Arc<Mutex<Limited>>,
    registry: CurrentRegistry,
}

/// A schedule, and the registry whose limits it knows.
struct Limited {
    schedule: Schedule,
    registry: Arc<Registry>,
}

impl SharedSchedule {
    fn new(mut schedule: Schedule, registry: CurrentRegistry) -> Self {
        let known = registry.get();
        schedule.limit_targets(known.all_limits());
        Self { limited: Arc::new(Mutex::new(Limited { schedule, registry: known })), registry }
    }

    /// With the limits of the registry in force: nothing starts under those of one that was replaced.
    fn lock(&self) -> ScheduleGuard<'_> {
        let mut limited = self.limited.lock().unwrap_or_else(PoisonError::into_inner);
        let registry = self.registry.get();
        if !Arc::ptr_eq(&registry, &limited.registry) {
            limited.schedule.limit_targets(registry.all_limits());
            limited.registry = registry;
        }
        ScheduleGuard(limited)
    }
}

/// The schedule alone.
struct ScheduleGuard<'a>(MutexGuard<'a, Limited>);

impl Deref for ScheduleGuard<'_> {
    type Target = Schedule;

    fn deref(&self) -> &Schedule {
        &self.0.schedule
    }
}

impl DerefMut for ScheduleGuard<'_> {
    fn deref_mut(&mut self) -> &mut Schedule {
        &mut self.0.schedule
    }
}

/// Places for attempts that are begun in the transaction that takes their intent in.
struct PlacesAtOnce {
    schedule: SharedSchedule,
    store_time: StoreTime,
    trust: LeaseTrust,
    in_flight: InFlight,
    scheduler: Recipient<SlotFree>,
}

impl Places for PlacesAtOnce {
    fn take(&self, lane: &Arc<Lane>, now: Timestamp) -> Option<Permit> {
        let under_way = {
            let mut schedule = self.schedule.lock();
            if !self.trust.holds() || !schedule.take_on_insert(lane, now) {
                return None;
            }
            // Counted while the schedule is locked: whoever closes it sees all that were given out.
            self.in_flight.enter()
        };
        let slot = SlotAtOnce {
            lane: Arc::clone(lane),
            schedule: self.schedule.clone(),
            store_time: self.store_time.clone(),
            scheduler: self.scheduler.clone(),
            ended: Ended::NOT_CALLED,
        };
        Some(Permit { slot: Box::new(slot), under_way: Box::new(under_way) })
    }
}

struct SlotAtOnce {
    lane: Arc<Lane>,
    schedule: SharedSchedule,
    store_time: StoreTime,
    scheduler: Recipient<SlotFree>,
    ended: Ended,
}

impl Slot for SlotAtOnce {
    fn ended(&mut self, ended: Ended) {
        self.ended = ended;
    }
}

impl Drop for SlotAtOnce {
    fn drop(&mut self) {
        if self.schedule.lock().release_on_insert(&self.lane, self.ended, self.store_time.now()) {
            self.scheduler.do_send(SlotFree);
        }
    }
}

/// What is due next, for the executor to take when it has a slot free.
struct DueNext {
    schedule: SharedSchedule,
    store_time: StoreTime,
    in_flight: InFlight,
    scheduler: Recipient<SlotFree>,
}

impl Dispatch for DueNext {
    fn next(&self, over: Vec<AttemptOver>) -> Vec<(Waiting, InFlightCount)> {
        let due = {
            let mut schedule = self.schedule.lock();
            let now = self.store_time.now();
            for AttemptOver { waiting, how } in over {
                schedule.over(&waiting, how.ended(), now);
                match how {
                    // What is postponed shows in the store as waiting again.
                    Over::Called(_) | Over::NotBegun | Over::Postponed { .. } => {}
                    Over::NotBefore(due) => schedule.merge(Waiting { due, ..waiting }),
                    Over::Paused => {
                        // Until a look at the store says otherwise.
                        schedule.pause_target(&waiting.lane.target);
                        schedule.merge(waiting);
                    }
                }
            }
            // Counted while the schedule is locked: a stop sees either the intent or the attempt.
            let due = schedule.take_due(now).into_iter();
            due.map(|waiting| (waiting, self.in_flight.enter())).collect()
        };
        // Its timer, and what it holds in memory, may no longer be right.
        self.scheduler.do_send(SlotFree);
        due
    }
}

/// A place among the attempts in flight is free, and something may wait for it.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
struct SlotFree;

impl SchedulerActor {
    /// Starts from a first look at the store, made within the term.
    pub fn new(deps: SchedulerDeps, snapshot: ScheduleSnapshot, alive: Alive) -> Self {
        let mut schedule = Schedule::new(deps.limits);
        schedule.pause_targets(snapshot.paused);
        snapshot.lanes.iter().for_each(|lane| schedule.merge_page(lane));
        Self {
            schedule: SharedSchedule::new(schedule, deps.registry.clone()),
            deps,
            cursor: snapshot.cursor,
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
        let pages = self.schedule.lock().wanted_pages();
        let request = RefreshRequest { cursor: self.cursor.clone(), limit: CHANGES, pages };
        let asked = monotonic();
        let store = self.deps.store.clone();
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
        self.deps.progress.beat();
        self.deps.store_time.observe(asked, refresh.now);
        self.cursor = refresh.cursor;
        {
            let mut schedule = self.schedule.lock();
            self.deps.metrics.paused_targets.set(i64::try_from(refresh.paused.len()).unwrap_or(i64::MAX));
            schedule.pause_targets(refresh.paused);
            refresh.pages.iter().for_each(|page| schedule.merge_page(page));
            refresh.changed.into_iter().for_each(|waiting| schedule.merge(waiting));
        }
        self.start_due(ctx);
        if refresh.overdue {
            self.expire(ctx);
        }
        if refresh.more || self.look_again || self.wants_pages() {
            self.look(ctx);
        }
    }

    fn wants_pages(&self) -> bool {
        !self.schedule.lock().wanted_pages().is_empty()
    }

    /// Hands what is due to the executor and sets the timer for what is due next.
    fn start_due(&mut self, ctx: &mut Context<Self>) {
        let now = self.deps.store_time.now();
        let metrics = &self.deps.metrics;
        let (due, next_due_in) = {
            let mut schedule = self.schedule.lock();
            let due = schedule.take_due(now);
            metrics.schedule_held.set(i64::try_from(schedule.held()).unwrap_or(i64::MAX));
            metrics.held_gateways.set(i64::try_from(schedule.gateways_on_hold(now)).unwrap_or(i64::MAX));
            (due, schedule.next_due_in(now))
        };
        if !due.is_empty() {
            // Past the mailbox's bound: the schedule's slots are the bound.
            let due = due.into_iter().map(|waiting| (waiting, self.deps.in_flight.enter())).collect();
            let dispatch = Arc::new(DueNext {
                schedule: self.schedule.clone(),
                store_time: self.deps.store_time.clone(),
                in_flight: self.deps.in_flight.clone(),
                scheduler: ctx.address().recipient(),
            });
            self.deps.executor.do_send(RunAttempts { due, dispatch });
        }
        if let Some(timer) = self.due_timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(span) = next_due_in {
            self.due_timer = Some(ctx.run_later(span, |actor, ctx| actor.start_due(ctx)));
        }
    }

    fn expire(&mut self, ctx: &mut Context<Self>) {
        let (store, term) = (self.deps.store.clone(), self.deps.term.clone());
        let expire = wrap_future::<_, Self>(async move { store.expire_overdue(&term, EXPIRE).await });
        ctx.spawn(expire.map(|result, actor, ctx| match result {
            Ok(expired) => {
                actor.schedule.lock().forget_ended(expired.iter().copied());
                actor.start_due(ctx);
                if expired.len() >= EXPIRE {
                    actor.look(ctx);
                }
            }
            Err(error) => actor.fail_term("expire", &error),
        }));
    }

    fn count(&mut self, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        ctx.spawn(wrap_future::<_, Self>(async move { store.backlog().await }).map(|result, actor, _| {
            // A count that fails changes nothing; the next look at the store will say what is wrong.
            if let Ok(backlog) = result {
                actor.deps.metrics.show_backlog(backlog.waiting, backlog.webhooks, backlog.oldest_webhook);
            }
        }));
    }

    fn fail_term(&self, during: &str, error: &FencedError) {
        self.deps.leader.do_send(TermFailed::new(&self.deps.term, during, error));
    }
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let places = PlacesAtOnce {
            schedule: self.schedule.clone(),
            store_time: self.deps.store_time.clone(),
            trust: self.deps.trust.clone(),
            in_flight: self.deps.in_flight.clone(),
            scheduler: ctx.address().recipient(),
        };
        self.deps.store.subscribe_term(TermSubscriber {
            doubt: ctx.address().recipient(),
            arrivals: ctx.address().recipient(),
            start_on_insert: StartOnInsert { term: self.deps.term.clone(), places: Arc::new(places) },
            begun: self.deps.executor.clone().recipient(),
        });
        ctx.run_interval(self.deps.refresh_interval, |actor, ctx| actor.look(ctx));
        ctx.run_interval(COUNT_INTERVAL, Self::count);
        self.count(ctx);
        self.start_due(ctx);
        self.look(ctx);
    }
}

impl Handler<IntentsWaiting> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: IntentsWaiting, ctx: &mut Self::Context) {
        self.look(ctx);
    }
}

impl Handler<AttemptsInDoubt> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: AttemptsInDoubt, _: &mut Self::Context) {
        let why = "new intents may have been begun, and nobody knows";
        self.deps.leader.do_send(TermFailed::in_doubt(&self.deps.term, why));
    }
}

impl Handler<SlotFree> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: SlotFree, ctx: &mut Self::Context) {
        self.start_due(ctx);
        if !self.looking && self.wants_pages() {
            self.look(ctx);
        }
    }
}

impl Handler<Stop> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        self.schedule.lock().close();
        ctx.stop();
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(SchedulerActor);
