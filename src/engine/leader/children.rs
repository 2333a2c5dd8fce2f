//! The actors of a term: started when it is prepared, stopped when it ends.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr};

use super::{LeaderActor, LeaderDeps, LeadershipTerm};
use crate::domain::lease::Term;
use crate::engine::executor::{ExecutorActor, ExecutorDeps};
use crate::engine::inbox::{InboxActor, InboxDeps};
use crate::engine::messages::{Child, ChildStopped, Stop};
use crate::engine::retention::RetentionActor;
use crate::engine::scheduler::{SchedulerActor, SchedulerDeps};
use crate::engine::webhooks::{StopDelivering, WebhookActor, WebhookDeps};
use crate::platform::clock::StoreTime;
use crate::platform::supervision::{Death, alive};
use crate::store::ScheduleSnapshot;
use crate::store::client::StoreClient;

/// Dropping this stops the scheduler, without whom nothing begins, and lets the store forget both;
/// nobody else knows the executor, so that ends with it.
pub struct Children {
    pub scheduler: Addr<SchedulerActor>,
    pub webhooks: Addr<WebhookActor>,
    pub inbox: Addr<InboxActor>,
    retention: Option<Addr<RetentionActor>>,
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
        if let Some(retention) = &self.retention {
            retention.do_send(Stop);
        }
        // Also when the scheduler is dead.
        self.store.unsubscribe_term(&self.term);
    }
}

impl Children {
    pub fn start(
        deps: &LeaderDeps,
        leadership: &LeadershipTerm,
        store_time: &StoreTime,
        snapshot: ScheduleSnapshot,
        leader: Addr<LeaderActor>,
    ) -> Self {
        let term = leadership.term.clone();
        let (store, store_time) = (deps.store.clone(), store_time.clone());
        let limits = deps.settings.limits;
        let attempt_timeout = deps.outside.attempt_timeout;

        let (executor_alive, executor_death) = alive();
        let executor = {
            let (term, store, store_time) = (term.clone(), store.clone(), store_time.clone());
            let (trust, gateway) = (leadership.trust.clone(), Arc::clone(&deps.outside.gateway));
            let (registry, tracer) = (deps.outside.registry.clone(), deps.outside.tracer.clone());
            let leader = leader.clone().recipient();
            ExecutorActor::start_in_arbiter(&deps.executor_arbiter, move |_| {
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
        let scheduler_parts = SchedulerDeps {
            term: term.clone(),
            trust: leadership.trust.clone(),
            store: store.clone(),
            store_time: store_time.clone(),
            executor: executor.clone(),
            in_flight: deps.in_flight.clone(),
            leader: leader.clone().recipient(),
            metrics: Arc::clone(&deps.metrics),
            registry: deps.outside.registry.clone(),
            limits,
            refresh_interval: deps.settings.refresh_interval,
            progress: leadership.progress.work.clone(),
        };
        let scheduler = SchedulerActor::start_in_arbiter(&deps.scheduler_arbiter, move |_| {
            SchedulerActor::new(scheduler_parts, snapshot, scheduler_alive)
        });
        let retention = deps.settings.retention.map(|keep_for| {
            let (term, store, leader) = (term.clone(), store.clone(), leader.clone().recipient());
            let metrics = Arc::clone(&deps.metrics);
            RetentionActor::start_in_arbiter(&deps.scheduler_arbiter, move |_| {
                RetentionActor::new(term, store, leader, metrics, keep_for)
            })
        });
        let webhooks = start_webhooks(deps, leadership, &store_time, &leader);
        let inbox = start_inbox(deps, leadership, &leader);
        tell_of_death(&leader, &term, Child::Executor, executor_death);
        tell_of_death(&leader, &term, Child::Scheduler, scheduler_death);
        Self {
            scheduler,
            webhooks,
            inbox,
            retention,
            store,
            term,
            #[cfg(test)]
            executor,
        }
    }
}

/// How long receivers still have to answer when nothing else is under way: nobody executes meanwhile,
/// and they get the event again.
const WEBHOOK_GRACE: Duration = Duration::from_millis(200);
/// How long it may then take to record what was cut off; the next term closes what was not.
const WEBHOOK_RECORDING: Duration = Duration::from_secs(2);

impl Children {
    /// Begins no further try of a webhook, and waits for those under way while attempts are, and
    /// hardly longer.
    pub async fn stop_webhooks(&self, attempts_are_over: impl Future<Output = ()>) {
        self.inbox.do_send(Stop);
        let stop = |patience| self.webhooks.send(StopDelivering { patience });
        let hurry = async {
            attempts_are_over.await;
            tokio::time::sleep(WEBHOOK_GRACE).await;
        };
        tokio::select! {
            _stopped_or_dead = stop(Duration::MAX) => {}
            () = hurry => {
                let _or_not = tokio::time::timeout(WEBHOOK_RECORDING, stop(Duration::ZERO)).await;
            }
        }
    }

    pub fn restart(
        &mut self,
        child: Child,
        deps: &LeaderDeps,
        leadership: &LeadershipTerm,
        store_time: &StoreTime,
        leader: &Addr<LeaderActor>,
    ) {
        match child {
            Child::Inbox => self.inbox = start_inbox(deps, leadership, leader),
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
    tell_of_death(leader, &leadership.term, Child::Webhooks, death);
    let (term, trust, store_time) = (leadership.term.clone(), leadership.trust.clone(), store_time.clone());
    let (store, metrics) = (deps.store.clone(), Arc::clone(&deps.metrics));
    let (outside, leader) = (deps.outside.clone(), leader.clone().recipient());
    WebhookActor::start_in_arbiter(&deps.webhook_arbiter, move |_| {
        let (sender, variables) = ((outside.sender)(), outside.variables);
        WebhookActor::new(WebhookDeps { term, trust, store, store_time, sender, variables, metrics, leader }, alive)
    })
}

fn start_inbox(deps: &LeaderDeps, leadership: &LeadershipTerm, leader: &Addr<LeaderActor>) -> Addr<InboxActor> {
    let (alive, death) = alive();
    tell_of_death(leader, &leadership.term, Child::Inbox, death);
    let inbox = InboxDeps {
        term: leadership.term.clone(),
        trust: leadership.trust.clone(),
        store: deps.store.clone(),
        registry: deps.outside.registry.clone(),
        metrics: Arc::clone(&deps.metrics),
        leader: leader.clone().recipient(),
    };
    InboxActor::start_in_arbiter(&deps.webhook_arbiter, move |_| InboxActor::new(inbox, alive))
}

/// Tells the leader when a child of a term is gone.
fn tell_of_death(leader: &Addr<LeaderActor>, term: &Term, child: Child, death: Death) {
    let (leader, term) = (leader.clone(), term.clone());
    actix::spawn(async move {
        death.comes().await;
        leader.do_send(ChildStopped { term, child });
    });
}
