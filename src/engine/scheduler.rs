//! `SchedulerActor`: decides which attempt starts next, for one term.
//!
//! State: the schedule (a bounded window on the waiting intents), the cursor up to which it has read the store's changes, and
//! a timer for the next due attempt. It receives `IntentsWaiting` (read the changes now) and `AttemptsInDoubt` from the store
//! actor, `SlotFree` (a slot may be filled) from the slots that it gave out, and `Stop` from the leader. It sends `RunAttempts`
//! to the executor and `TermFailed` to the leader. It also gives slots to the store for intents that are started in the
//! transaction that inserts them; those never wait here.
//!
//! It reads from the store one refresh at a time, because a lane may be judged complete only by a refresh that is later than
//! every change already merged. When it dies, the leader ends the term, and the next term builds a new schedule.

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
use crate::domain::schedule::{Lane, Limits, Schedule, Waiting};
use crate::domain::time::Timestamp;
use crate::engine::executor::ExecutorActor;
use crate::engine::leader::Heartbeat;
use crate::engine::lease_trust::LeaseTrust;
use crate::engine::messages::{AttemptSource, DueAttempt, FillSlots, RunAttempts, Stop, TermFailed};
use crate::engine::one_at_a_time::OneAtATime;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::supervision::Alive;
use crate::store::client::StoreClient;
use crate::store::messages::{AttemptsInDoubt, IntentsWaiting};
use crate::store::{
    AttemptEnd, ChangeCursor, InFlight, InFlightGuard, Refresh, RefreshRequest, ScheduleSnapshot, SlotGuard,
    SlotSource, StartOnInsert,
};
use crate::store::{FencedError, TermSubscriber};
use crate::telemetry::metrics::Metrics;

/// Changes taken in at one look; more are taken in by the next, at once.
const CHANGES: usize = 2048;
/// Overdue intents exhausted in one transaction.
const EXPIRE: usize = 256;
/// How often the whole backlog is counted, which costs a scan of an index.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

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
    refresh: OneAtATime,
    /// Made when the first attempt is due.
    due_slots: Option<Arc<DueSlots>>,
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

/// Gives out slots for intents that are started in the transaction that inserts them.
struct InsertSlots {
    schedule: SharedSchedule,
    store_time: StoreTime,
    trust: LeaseTrust,
    in_flight: InFlight,
    scheduler: Recipient<SlotFree>,
}

impl SlotSource for InsertSlots {
    fn take(&self, lane: &Arc<Lane>, now: Timestamp) -> Option<(SlotGuard, InFlightGuard)> {
        let in_flight = {
            let mut schedule = self.schedule.lock();
            if !self.trust.holds() || !schedule.take_on_insert(lane, now) {
                return None;
            }
            // Counted while the schedule is locked: whoever closes it sees all slots that were given out.
            self.in_flight.enter()
        };
        let (schedule, store_time) = (self.schedule.clone(), self.store_time.clone());
        let (scheduler, lane) = (self.scheduler.clone(), Arc::clone(lane));
        let slot = SlotGuard::new(move |end| {
            if schedule.lock().release_on_insert(&lane, end.for_schedule(), store_time.now()) {
                scheduler.do_send(SlotFree);
            }
        });
        Some((slot, in_flight))
    }
}

/// Gives out the slots of attempts that are due, and takes them back.
///
/// Slots that are released in one turn of the executor's loop are filled together, by one message to the executor. So an
/// attempt that waits for a slot does not wait for the scheduler too.
struct DueSlots {
    schedule: SharedSchedule,
    store_time: StoreTime,
    in_flight: InFlight,
    scheduler: Recipient<SlotFree>,
    executor: Recipient<FillSlots>,
    released: Mutex<Vec<(Waiting, AttemptEnd)>>,
}

impl DueSlots {
    /// Makes attempts of what the schedule gave out. Called while the schedule is locked, so that an orderly stop sees either
    /// the waiting intent or the attempt in flight.
    fn attempts(self: &Arc<Self>, due: Vec<Waiting>) -> Vec<DueAttempt> {
        let attempt = |waiting: Waiting| {
            let (slots, released) = (Arc::clone(self), waiting.clone());
            let slot = SlotGuard::new(move |end| slots.release(released, end));
            DueAttempt { waiting, slot, in_flight: self.in_flight.enter() }
        };
        due.into_iter().map(attempt).collect()
    }

    fn release(self: Arc<Self>, waiting: Waiting, end: AttemptEnd) {
        let first = {
            let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
            released.push((waiting, end));
            released.len() == 1
        };
        if first {
            let executor = self.executor.clone();
            executor.do_send(FillSlots { source: self });
        }
    }

    /// Tells the schedule how an attempt ended.
    fn take_back(schedule: &mut Schedule, waiting: Waiting, end: AttemptEnd, now: Timestamp) {
        schedule.finish(&waiting, end.for_schedule(), now);
        match end {
            // A postponed attempt shows in the store as waiting again.
            AttemptEnd::Called(_) | AttemptEnd::NotStarted | AttemptEnd::Postponed { .. } => {}
            AttemptEnd::NotBefore(due) => schedule.merge(Waiting { due, ..waiting }),
            AttemptEnd::Paused => {
                // Until the next refresh from the store says otherwise.
                schedule.pause_target(&waiting.lane.target);
                schedule.merge(waiting);
            }
        }
    }
}

impl AttemptSource for DueSlots {
    fn next(self: Arc<Self>) -> Vec<DueAttempt> {
        let released = std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner));
        let due = {
            let mut schedule = self.schedule.lock();
            let now = self.store_time.now();
            for (waiting, end) in released {
                Self::take_back(&mut schedule, waiting, end, now);
            }
            let due = schedule.take_due(now);
            self.attempts(due)
        };
        // The scheduler's timer and its pages may no longer be right.
        self.scheduler.do_send(SlotFree);
        due
    }
}

/// A slot is free, and an attempt may wait for it.
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
            refresh: OneAtATime::default(),
            due_slots: None,
            due_timer: None,
            _alive: alive,
        }
    }

    /// Looks at the store, or makes sure that it is looked at again after the look under way.
    fn look(&mut self, ctx: &mut Context<Self>) {
        if !self.refresh.request() {
            return;
        }
        let pages = self.schedule.lock().wanted_pages();
        let request = RefreshRequest { cursor: self.cursor.clone(), limit: CHANGES, pages };
        let asked = monotonic();
        let store = self.deps.store.clone();
        let look = wrap_future::<_, Self>(async move { store.refresh_schedule(request).await });
        ctx.spawn(look.map(move |result, actor, ctx| {
            let again = actor.refresh.finish();
            match result {
                Ok(refresh) => actor.take_in(asked, refresh, again, ctx),
                Err(error) => actor.fail_term("refresh", &error.into()),
            }
        }));
    }

    fn take_in(&mut self, asked: Instant, refresh: Refresh, again: bool, ctx: &mut Context<Self>) {
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
        if refresh.more || again || self.wants_pages() {
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
        let slots = self.due_slots.get_or_insert_with(|| {
            Arc::new(DueSlots {
                schedule: self.schedule.clone(),
                store_time: self.deps.store_time.clone(),
                in_flight: self.deps.in_flight.clone(),
                scheduler: ctx.address().recipient(),
                executor: self.deps.executor.clone().recipient(),
                released: Mutex::default(),
            })
        });
        let (due, next_due_in) = {
            let mut schedule = self.schedule.lock();
            let due = slots.attempts(schedule.take_due(now));
            metrics.schedule_held.set(i64::try_from(schedule.held()).unwrap_or(i64::MAX));
            metrics.held_gateways.set(i64::try_from(schedule.gateways_on_hold(now)).unwrap_or(i64::MAX));
            (due, schedule.next_due_in(now))
        };
        if !due.is_empty() {
            // `do_send` ignores the bound of the mailbox; the slots of the schedule bound it.
            self.deps.executor.do_send(RunAttempts { due });
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
        let slots = InsertSlots {
            schedule: self.schedule.clone(),
            store_time: self.deps.store_time.clone(),
            trust: self.deps.trust.clone(),
            in_flight: self.deps.in_flight.clone(),
            scheduler: ctx.address().recipient(),
        };
        self.deps.store.subscribe_term(TermSubscriber {
            in_doubt: ctx.address().recipient(),
            waiting: ctx.address().recipient(),
            start_on_insert: StartOnInsert { term: self.deps.term.clone(), slots: Arc::new(slots) },
            started: self.deps.executor.clone().recipient(),
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
        let why = "first attempts may have started that nobody makes";
        self.deps.leader.do_send(TermFailed::in_doubt(&self.deps.term, why));
    }
}

impl Handler<SlotFree> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: SlotFree, ctx: &mut Self::Context) {
        self.start_due(ctx);
        if !self.refresh.is_running() && self.wants_pages() {
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
