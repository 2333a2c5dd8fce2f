//! The actors of a term: they start when the term is prepared, and stop when it ends.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;

use super::{LeaderActor, LeaderDeps, LeadershipTerm};
use crate::domain::lease::Term;
use crate::engine::audit_retention::AuditRetentionActor;
use crate::engine::executor::{ExecutorActor, ExecutorDeps};
use crate::engine::inbox::{InboxActor, InboxDeps};
use crate::engine::messages::{Child, ChildStopped, Stop};
use crate::engine::redrive::{RedriveActor, RedriveDeps};
use crate::engine::retention::RetentionActor;
use crate::engine::scheduler::{SchedulerActor, SchedulerDeps};
use crate::engine::webhooks::{StopDelivering, WebhookActor, WebhookDeps};
use crate::platform::clock::StoreTime;
use crate::platform::supervision::{Death, alive};
use crate::store::ScheduleSnapshot;
use crate::store::client::StoreClient;

/// The actors of the current term.
///
/// Dropping it stops them and unsubscribes the term from the store. The executor has no stop message: only the
/// scheduler and the store hold its address, so it ends when both have dropped it.
pub(super) struct Children {
    pub scheduler: Addr<SchedulerActor>,
    pub webhooks: Addr<WebhookActor>,
    pub inbox: Addr<InboxActor>,
    pub redrives: Addr<RedriveActor>,
    retention: Option<Addr<RetentionActor>>,
    audit_retention: Option<Addr<AuditRetentionActor>>,
    store: StoreClient,
    term: Term,
    #[cfg(test)]
    pub executor: Addr<ExecutorActor>,
}

impl Drop for Children {
    fn drop(&mut self) {
        self.scheduler.do_send(Stop);
        self.webhooks.do_send(StopDelivering { patience: Duration::ZERO });
        self.inbox.do_send(Stop);
        self.redrives.do_send(Stop);
        if let Some(retention) = &self.retention {
            retention.do_send(Stop);
        }
        if let Some(retention) = &self.audit_retention {
            retention.do_send(Stop);
        }
        // Here and not in the scheduler, which may be dead.
        self.store.unsubscribe_term(&self.term);
    }
}

impl Children {
    /// Starts the actors of a prepared term.
    pub(super) fn start(
        deps: &LeaderDeps,
        leadership: &LeadershipTerm,
        store_time: &StoreTime,
        snapshot: ScheduleSnapshot,
        leader: Addr<LeaderActor>,
    ) -> Self {
        let term = leadership.term.clone();
        let (store, store_time) = (deps.store.clone(), store_time.clone());
        let limits = deps.settings.limits;
        let attempt_timeout = deps.engine.attempt_timeout;

        let (executor_alive, executor_death) = alive();
        let executor = {
            let (term, store, store_time) = (term.clone(), store.clone(), store_time.clone());
            let (trust, gateway) = (leadership.trust.clone(), Arc::clone(&deps.engine.gateway));
            let (registry, tracer) = (deps.engine.registry.clone(), deps.engine.tracer.clone());
            let leader = leader.clone().recipient();
            deps.executor_thread.start(move |_| {
                let gateway = gateway();
                let deps = ExecutorDeps {
                    term,
                    trust,
                    store,
                    store_time,
                    gateway,
                    registry,
                    tracer,
                    leader,
                    limits,
                    attempt_timeout,
                };
                ExecutorActor::new(deps, executor_alive)
            })
        };
        let (scheduler_alive, scheduler_death) = alive();
        let scheduler_deps = SchedulerDeps {
            term: term.clone(),
            trust: leadership.trust.clone(),
            store: store.clone(),
            store_time: store_time.clone(),
            executor: executor.clone(),
            in_flight: deps.in_flight.clone(),
            leader: leader.clone().recipient(),
            metrics: Arc::clone(&deps.metrics),
            registry: deps.engine.registry.clone(),
            limits,
            refresh_interval: deps.settings.refresh_interval,
            progress: leadership.progress.schedule.clone(),
            board: deps.board.clone(),
        };
        let scheduler =
            deps.scheduler_thread.start(move |_| SchedulerActor::new(scheduler_deps, snapshot, scheduler_alive));
        let retention = deps.settings.retention.map(|keep_for| {
            let (term, store, leader) = (term.clone(), store.clone(), leader.clone().recipient());
            let metrics = Arc::clone(&deps.metrics);
            deps.scheduler_thread.start(move |_| RetentionActor::new(term, store, leader, metrics, keep_for))
        });
        let audit_retention = deps.settings.audit_retention.map(|keep_for| {
            let (term, store, leader) = (term.clone(), store.clone(), leader.clone().recipient());
            deps.scheduler_thread.start(move |_| AuditRetentionActor::new(term, store, leader, keep_for))
        });
        let webhooks = start_webhooks(deps, leadership, &store_time, &leader);
        let inbox = start_inbox(deps, leadership, &leader);
        let redrives = start_redrives(deps, leadership, &scheduler, &leader);
        report_death(&leader, &term, Child::Executor, executor_death);
        report_death(&leader, &term, Child::Scheduler, scheduler_death);
        Self {
            scheduler,
            webhooks,
            inbox,
            redrives,
            retention,
            audit_retention,
            store,
            term,
            #[cfg(test)]
            executor,
        }
    }
}

/// How long receivers may still take to answer once no attempt is in flight. It is short, because no instance starts
/// attempts during that time, and the event is sent again anyway.
const WEBHOOK_GRACE: Duration = Duration::from_millis(200);
/// How long recording the interrupted tries may then take. The next term closes those that are not recorded.
const WEBHOOK_RECORDING: Duration = Duration::from_secs(2);

impl Children {
    /// Stops the inbox, redrive and webhook actors. Webhook tries in flight may end by themselves until all attempts have finished,
    /// and for [`WEBHOOK_GRACE`] after that.
    pub(super) async fn stop_webhooks(&self, attempts_finished: impl Future<Output = ()>) {
        self.inbox.do_send(Stop);
        self.redrives.do_send(Stop);
        let stop = |patience| self.webhooks.send(StopDelivering { patience });
        let grace_is_over = async {
            attempts_finished.await;
            tokio::time::sleep(WEBHOOK_GRACE).await;
        };
        tokio::select! {
            biased;
            _stopped_or_dead = stop(Duration::MAX) => {}
            () = grace_is_over => {
                let _stopped_or_timed_out = tokio::time::timeout(WEBHOOK_RECORDING, stop(Duration::ZERO)).await;
            }
        }
    }

    /// Starts a new actor in place of a dead one.
    pub(super) fn restart(
        &mut self,
        child: Child,
        deps: &LeaderDeps,
        leadership: &LeadershipTerm,
        store_time: &StoreTime,
        leader: &Addr<LeaderActor>,
    ) {
        match child {
            Child::Inbox => self.inbox = start_inbox(deps, leadership, leader),
            Child::Redrives => self.redrives = start_redrives(deps, leadership, &self.scheduler, leader),
            Child::Webhooks => self.webhooks = start_webhooks(deps, leadership, store_time, leader),
            // Their death ended the term.
            Child::Scheduler | Child::Executor => {}
        }
    }
}

fn start_webhooks(
    deps: &LeaderDeps,
    leadership: &LeadershipTerm,
    store_time: &StoreTime,
    leader: &Addr<LeaderActor>,
) -> Addr<WebhookActor> {
    let (alive, death) = alive();
    report_death(leader, &leadership.term, Child::Webhooks, death);
    let (term, trust, store_time) = (leadership.term.clone(), leadership.trust.clone(), store_time.clone());
    let (store, metrics) = (deps.store.clone(), Arc::clone(&deps.metrics));
    let (engine, leader) = (deps.engine.clone(), leader.clone().recipient());
    deps.webhook_thread.start(move |_| {
        let (sender, variables) = ((engine.sender)(), engine.variables);
        WebhookActor::new(WebhookDeps { term, trust, store, store_time, sender, variables, metrics, leader }, alive)
    })
}

fn start_inbox(deps: &LeaderDeps, leadership: &LeadershipTerm, leader: &Addr<LeaderActor>) -> Addr<InboxActor> {
    let (alive, death) = alive();
    report_death(leader, &leadership.term, Child::Inbox, death);
    let inbox = InboxDeps {
        term: leadership.term.clone(),
        trust: leadership.trust.clone(),
        store: deps.store.clone(),
        registry: deps.engine.registry.clone(),
        metrics: Arc::clone(&deps.metrics),
        leader: leader.clone().recipient(),
    };
    deps.webhook_thread.start(move |_| InboxActor::new(inbox, alive))
}

fn start_redrives(
    deps: &LeaderDeps,
    leadership: &LeadershipTerm,
    scheduler: &Addr<SchedulerActor>,
    leader: &Addr<LeaderActor>,
) -> Addr<RedriveActor> {
    let (alive, death) = alive();
    report_death(leader, &leadership.term, Child::Redrives, death);
    let redrives = RedriveDeps {
        term: leadership.term.clone(),
        trust: leadership.trust.clone(),
        store: deps.store.clone(),
        registry: deps.engine.registry.clone(),
        metrics: Arc::clone(&deps.metrics),
        scheduler: scheduler.clone(),
        leader: leader.clone().recipient(),
        keep_for: deps.settings.retention,
    };
    deps.webhook_thread.start(move |_| RedriveActor::new(redrives, alive))
}

/// Reports the death of a child to the leader.
fn report_death(leader: &Addr<LeaderActor>, term: &Term, child: Child, death: Death) {
    let (leader, term) = (leader.clone(), term.clone());
    actix::spawn(async move {
        death.comes().await;
        leader.do_send(ChildStopped { term, child });
    });
}
