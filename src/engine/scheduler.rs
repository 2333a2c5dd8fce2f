//! `SchedulerActor`: decides which attempt starts next, for one term.
//!
//! State: the schedule (a bounded window on the waiting intents), the cursor up to which it has read the store's changes, and
//! a timer for the next due attempt.
//!
//! Messages that it receives:
//! - `IntentsWaiting` from the store actor and the store client: read the changes now.
//! - `AttemptsInDoubt` from the store actor: attempts may have been started on insert without reaching the executor.
//! - `SlotFree` from the slots that it gave out: a slot was released, so the timer and the pages may be out of date.
//! - `Stop` from the leader.
//!
//! Messages that it sends: `RunAttempts` and, through released slots, `FillSlots` to the executor; `TermFailed` to the leader.
//! It also gives slots to the store for intents that are started in the transaction that inserts them; those intents never
//! wait here.
//!
//! It reads from the store one refresh at a time, because a lane may be judged complete only by a refresh that is later than
//! every change already merged. When it dies, the leader ends the term, and the next term reads a new schedule.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, MessageResult, Recipient,
    SpawnHandle,
};
use tokio::time::Instant;

use crate::config::registry::{CurrentRegistry, Registry};
use crate::domain::lease::Term;
use crate::domain::schedule::{Lane, Limits, Schedule, Waiting};
use crate::domain::time::Timestamp;
use crate::engine::executor::ExecutorActor;
use crate::engine::leader::{Heartbeat, LeadershipBoard};
use crate::engine::lease_trust::LeaseTrust;
use crate::engine::messages::{AttemptSource, DueAttempt, FillSlots, RunAttempts, Stop, TermFailed};
use crate::engine::one_at_a_time::OneAtATime;
use crate::platform::clock::{StoreTime, monotonic};
use crate::platform::mutated;
use crate::platform::supervision::Alive;
use crate::store::client::StoreClient;
use crate::store::messages::{AttemptsInDoubt, IntentsWaiting};
use crate::store::{
    AttemptEnd, ChangeCursor, InFlight, InFlightGuard, RedriveAdmission, Refresh, RefreshRequest, ScheduleSnapshot,
    SlotGuard, SlotSource, StartOnInsert,
};
use crate::store::{FencedError, TermSubscriber};
use crate::telemetry::metrics::Metrics;

/// Changes that one refresh reads at most. If there are more, the next refresh follows immediately.
const MAX_CHANGES: usize = 2048;
/// Overdue intents that one transaction exhausts at most.
const MAX_EXPIRED: usize = 256;
/// How often the whole backlog is counted. Counting scans an index.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// What the scheduler of a term needs.
pub(super) struct SchedulerDeps {
    pub term: Term,
    pub trust: LeaseTrust,
    pub store: StoreClient,
    pub store_time: StoreTime,
    pub executor: Addr<ExecutorActor>,
    pub in_flight: InFlight,
    pub leader: Recipient<TermFailed>,
    pub metrics: Arc<Metrics>,
    /// Has the limits of targets.
    pub registry: CurrentRegistry,
    pub limits: Limits,
    pub refresh_interval: Duration,
    /// Beats with every refresh from the store.
    pub progress: Heartbeat,
    /// Shows which gateways are on hold.
    pub board: LeadershipBoard,
}

/// Decides which attempt starts next during one term.
pub(super) struct SchedulerActor {
    deps: SchedulerDeps,
    schedule: SharedSchedule,
    cursor: ChangeCursor,
    refreshing: OneAtATime,
    /// Made on the first use, because it needs the actor's address.
    due_slots: Option<Arc<DueSlots>>,
    due_timer: Option<SpawnHandle>,
    _alive: Alive,
}

/// The schedule of the term, with the limits of the current registry. The scheduler, the executor (through [`DueSlots`]) and
/// the store (through [`InsertSlots`]) use it.
#[derive(Clone)]
struct SharedSchedule {
    limited: Arc<Mutex<LimitedSchedule>>,
    registry: CurrentRegistry,
}

/// A schedule, and the registry whose limits it applies.
struct LimitedSchedule {
    schedule: Schedule,
    registry: Arc<Registry>,
}

impl SharedSchedule {
    fn new(mut schedule: Schedule, registry: CurrentRegistry) -> Self {
        let current = registry.get();
        schedule.limit_targets(current.all_limits());
        Self { limited: Arc::new(Mutex::new(LimitedSchedule { schedule, registry: current })), registry }
    }

    /// Locks the schedule. If the registry was replaced since the last time, the schedule gets its limits first.
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

/// A locked schedule.
struct ScheduleGuard<'a>(MutexGuard<'a, LimitedSchedule>);

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
            // Counted while the schedule is locked, so that closing the schedule sees every slot that was given out.
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

/// Asks for the admission of redriven intents, which depends on the schedule of the term.
#[derive(Message)]
#[rtype(result = "Arc<dyn RedriveAdmission>")]
pub(super) struct AdmissionOfRedrives;

/// Admits as many redriven intents as could start at once.
struct FreeSlots {
    schedule: SharedSchedule,
    store_time: StoreTime,
}

impl RedriveAdmission for FreeSlots {
    fn room(&self, lane: &Lane) -> usize {
        self.schedule.lock().room_for_redriven(lane, self.store_time.now())
    }
}

/// Gives out the slots of attempts that are due, and takes them back.
///
/// The executor fills released slots itself, without a message to the scheduler in between. One `FillSlots` message covers all
/// slots that are released before it is handled.
struct DueSlots {
    schedule: SharedSchedule,
    store_time: StoreTime,
    in_flight: InFlight,
    scheduler: Recipient<SlotFree>,
    executor: Recipient<FillSlots>,
    released: Mutex<Vec<(Waiting, AttemptEnd)>>,
}

impl DueSlots {
    /// Makes attempts of intents that the schedule gave out. The caller keeps the schedule locked, so that an orderly stop
    /// sees either the waiting intent or the attempt in flight.
    fn attempts(self: &Arc<Self>, due: Vec<Waiting>) -> Vec<DueAttempt> {
        let attempt = |waiting: Waiting| {
            let (slots, released) = (Arc::clone(self), waiting.clone());
            let slot = SlotGuard::new(move |end| slots.release(released, end));
            DueAttempt { waiting, slot, in_flight: self.in_flight.enter() }
        };
        due.into_iter().map(attempt).collect()
    }

    fn release(self: Arc<Self>, waiting: Waiting, end: AttemptEnd) {
        if mutated!(SlotLost) && matches!(end, AttemptEnd::NotStarted) {
            return;
        }
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
            // A postponed attempt waits again in the store, and the next refresh reads it.
            AttemptEnd::Called(_) | AttemptEnd::NotStarted | AttemptEnd::Postponed { .. } => {}
            AttemptEnd::NotBefore(due) => schedule.merge(Waiting { due, ..waiting }),
            AttemptEnd::HeldBack(until) => schedule.hold_back(waiting, until),
            AttemptEnd::Paused => {
                // The next refresh from the store replaces the list of paused targets.
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
    /// Starts from a snapshot that was read within the term.
    pub(super) fn new(deps: SchedulerDeps, snapshot: ScheduleSnapshot, alive: Alive) -> Self {
        let mut schedule = Schedule::new(deps.limits);
        schedule.pause_targets(snapshot.paused);
        snapshot.lanes.iter().for_each(|lane| schedule.merge_page(lane));
        Self {
            schedule: SharedSchedule::new(schedule, deps.registry.clone()),
            deps,
            cursor: snapshot.cursor,
            refreshing: OneAtATime::default(),
            due_slots: None,
            due_timer: None,
            _alive: alive,
        }
    }

    /// Reads changes and wanted pages from the store. If a refresh is running, another one follows it.
    fn refresh(&mut self, ctx: &mut Context<Self>) {
        if !self.refreshing.request() {
            return;
        }
        let pages = self.schedule.lock().wanted_pages();
        let request = RefreshRequest { cursor: self.cursor.clone(), limit: MAX_CHANGES, pages };
        let requested_at = monotonic();
        let store = self.deps.store.clone();
        let refresh = wrap_future::<_, Self>(async move { store.refresh_schedule(request).await });
        ctx.spawn(refresh.map(move |result, actor, ctx| {
            let again = actor.refreshing.finish();
            match result {
                Ok(refresh) => actor.apply_refresh(requested_at, refresh, again, ctx),
                Err(error) => actor.fail_term("refresh", &error.into()),
            }
        }));
    }

    fn apply_refresh(&mut self, requested_at: Instant, refresh: Refresh, again: bool, ctx: &mut Context<Self>) {
        self.deps.progress.beat();
        self.deps.store_time.observe(requested_at, refresh.now);
        self.cursor = refresh.cursor;
        if mutated!(CursorSkips) {
            self.cursor.last_modified_at = self.deps.store_time.now();
        }
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
            self.refresh(ctx);
        }
    }

    fn wants_pages(&self) -> bool {
        !self.schedule.lock().wanted_pages().is_empty()
    }

    /// Sends due attempts to the executor, and sets the timer for the attempt that is due next.
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
            let holds = schedule.gateways_on_hold(now);
            metrics.held_gateways.set(i64::try_from(holds.len()).unwrap_or(i64::MAX));
            self.deps.board.set_holds(holds);
            (due, schedule.next_due_in(now))
        };
        if !due.is_empty() {
            // `do_send` ignores the bound of the mailbox; the slots of the schedule bound it.
            self.deps.executor.do_send(RunAttempts { due });
        }
        if let Some(timer) = self.due_timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(pause) = next_due_in {
            self.due_timer = Some(ctx.run_later(pause, |actor, ctx| actor.start_due(ctx)));
        }
    }

    /// Exhausts waiting intents whose deadline has passed.
    fn expire(&mut self, ctx: &mut Context<Self>) {
        let (store, term) = (self.deps.store.clone(), self.deps.term.clone());
        let expire = wrap_future::<_, Self>(async move { store.expire_overdue(&term, MAX_EXPIRED).await });
        ctx.spawn(expire.map(|result, actor, ctx| match result {
            Ok(expired) => {
                actor.schedule.lock().forget_ended(expired.iter().copied());
                actor.start_due(ctx);
                if expired.len() >= MAX_EXPIRED {
                    actor.refresh(ctx);
                }
            }
            Err(error) => actor.fail_term("expire", &error),
        }));
    }

    /// Counts the backlog for the metrics.
    fn count_backlog(&mut self, ctx: &mut Context<Self>) {
        let store = self.deps.store.clone();
        ctx.spawn(wrap_future::<_, Self>(async move { store.backlog().await }).map(|result, actor, _| {
            // A failed count changes nothing. If the store does not answer, the next refresh reports it.
            if let Ok(backlog) = result {
                let metrics = &actor.deps.metrics;
                metrics.show_backlog(backlog.all_waiting(), backlog.webhooks, backlog.oldest_webhook);
                metrics.show_waiting(&backlog.waiting);
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
        ctx.run_interval(self.deps.refresh_interval, |actor, ctx| actor.refresh(ctx));
        ctx.run_interval(COUNT_INTERVAL, Self::count_backlog);
        self.count_backlog(ctx);
        self.start_due(ctx);
        self.refresh(ctx);
    }
}

impl Handler<IntentsWaiting> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: IntentsWaiting, ctx: &mut Self::Context) {
        self.refresh(ctx);
    }
}

impl Handler<AttemptsInDoubt> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: AttemptsInDoubt, _: &mut Self::Context) {
        let why = "first attempts may have been started on insert without reaching the executor";
        self.deps.leader.do_send(TermFailed::in_doubt(&self.deps.term, why));
    }
}

impl Handler<SlotFree> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: SlotFree, ctx: &mut Self::Context) {
        self.start_due(ctx);
        if !self.refreshing.is_running() && self.wants_pages() {
            self.refresh(ctx);
        }
    }
}

impl Handler<AdmissionOfRedrives> for SchedulerActor {
    type Result = MessageResult<AdmissionOfRedrives>;

    fn handle(&mut self, _: AdmissionOfRedrives, _: &mut Self::Context) -> Self::Result {
        let (schedule, store_time) = (self.schedule.clone(), self.deps.store_time.clone());
        let slots: Arc<dyn RedriveAdmission> = Arc::new(FreeSlots { schedule, store_time });
        MessageResult(slots)
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
