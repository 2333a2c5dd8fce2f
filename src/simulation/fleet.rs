//! The fleet of one run: starts instances, causes the incidents of the plan, and then waits until everything has ended.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::task::JoinHandle;

use super::activities::{self, Activity};
use super::checks::Promise;
use super::clients;
use super::faults::Fault;
use super::instance::{self, Host, Running};
use super::plan::{Incident, Panicking};
use super::store::pass;
use super::targets::{TARGETS, registry};
use super::world::{Strain, World};
use crate::domain::actor::fixtures::somebody;
use crate::engine::leader::CrashChild;
use crate::platform::supervision::Crash;

/// After the faults have stopped, everything must end within this time. An instance whose terms failed waits for up to
/// 30 seconds before it tries to acquire the lease again, and a lease lasts for 15. To that, ten retries of five
/// seconds are added.
const SETTLING: Duration = Duration::from_secs(120);
/// How long clients and operators wait for an answer before they try again.
pub(super) const PATIENCE: Duration = Duration::from_secs(6);
/// How often a run checks memory and whether everything has ended.
const LOOK: Duration = Duration::from_millis(250);

/// The instances of a run.
pub(super) struct Fleet {
    pub(super) world: Arc<World>,
    hosts: RefCell<Vec<Option<Host>>>,
}

impl Fleet {
    /// Runs the plan of the world to its end.
    pub(super) async fn run(world: &Arc<World>) {
        let plan = &world.plan;
        let fleet = Rc::new(Self { world: Arc::clone(world), hosts: RefCell::new(vec![None; plan.instances]) });
        for number in 0..plan.instances {
            drop(tokio::task::spawn_local(Rc::clone(&fleet).keep_running(number)));
        }
        let clients: Vec<JoinHandle<()>> = plan
            .submissions
            .iter()
            .map(|submissions| tokio::task::spawn_local(clients::run(Rc::clone(&fleet), submissions.clone())))
            .collect();
        let (mut clients, mut readers) = (clients, Vec::new());
        for (at, activity) in &plan.activities {
            let is_reader = matches!(activity, Activity::Read { .. });
            let task = tokio::task::spawn_local(activities::run(Rc::clone(&fleet), *at, activity.clone()));
            if is_reader { readers.push(task) } else { clients.push(task) }
        }
        for (at, incident) in &plan.incidents {
            drop(tokio::task::spawn_local(Rc::clone(&fleet).cause(*at, incident.clone())));
        }
        while world.elapsed() < plan.active && !world.is_violated() {
            pass(LOOK).await;
            fleet.check_memory();
        }
        fleet.settle(&clients, &readers).await;
        world.check_end();
    }

    /// An instance, if it is up.
    pub(super) fn host(&self, number: usize) -> Option<Host> {
        self.hosts.borrow()[number].clone()
    }

    /// Makes a request at an instance that is drawn. `None` if it is down or does not answer in time.
    pub(super) async fn request<T: 'static>(
        &self,
        patience: Duration,
        request: impl FnOnce(Rc<Running>) -> LocalBoxFuture<'static, T> + 'static,
    ) -> Option<T> {
        let host = self.host(self.world.draw(self.world.plan.instances))?;
        tokio::time::timeout(patience, host.ask(request)).await.ok().flatten()
    }

    /// Starts an instance, and starts it again whenever it has ended.
    async fn keep_running(self: Rc<Self>, number: usize) {
        for incarnation in 0.. {
            let (host, ended) = instance::start(&self.world, number, incarnation);
            self.world.log(format_args!("i{number} starts"));
            self.hosts.borrow_mut()[number] = Some(host);
            let down = ended.await;
            self.hosts.borrow_mut()[number] = None;
            self.world.log(format_args!("i{number} is down"));
            pass(down).await;
        }
    }

    /// Causes an incident at its time.
    async fn cause(self: Rc<Self>, at: Duration, incident: Incident) {
        pass(at).await;
        let world = &self.world;
        if world.is_settling() {
            return;
        }
        world.log(format_args!("{incident:?}"));
        match incident {
            Incident::Crash { instance, down } => self.at(instance, Fault::Crash, |host| host.gate.end(down)),
            Incident::Stop { instance, down } => self.at(instance, Fault::Stop, |host| {
                let gate = host.gate.clone();
                host.tell(move |running| {
                    // A process stops once, however many signals it gets.
                    if !running.stopping.replace(true) {
                        drop(tokio::task::spawn_local(async move {
                            running.engine.stop_leading().await;
                            gate.end(down);
                        }));
                    }
                });
            }),
            Incident::Panic { instance, actor } => {
                self.at(instance, Fault::Panic, |host| host.tell(move |running| panic_in(&running, actor)));
            }
            Incident::Reload { instance, version } => self.at(instance, Fault::Reload, |host| {
                host.tell(move |running| running.registry.replace(registry(version)));
            }),
            Incident::Freeze { instance, duration } => {
                let Some(host) = self.host(instance) else { return };
                world.count(Fault::Freeze);
                host.gate.freeze();
                pass(duration).await;
                host.gate.thaw();
                world.log(format_args!("i{instance} thaws"));
            }
            Incident::NextCall { calls, mishap } => world.state().next_calls.push((calls, mishap)),
            Incident::Strain { delay, duration } => {
                let Some(instance) = world.leader() else { return };
                world.count(Fault::LostRenewal);
                let end = world.elapsed() + duration;
                world.state().strain = Some(Strain { instance, delay, end, renewals: 0 });
            }
            Incident::ClockJump { micros } => {
                world.count(Fault::ClockJump);
                world.jump(micros);
            }
            Incident::Pause { target, duration } => {
                world.count(Fault::Pause);
                let name = TARGETS[target].parsed_name();
                let _since = world.calls.pause_target(name.clone(), None, somebody()).await.unwrap();
                pass(duration).await;
                world.calls.resume_target(name, somebody()).await.unwrap();
                world.log(format_args!("{} resumes", TARGETS[target].name));
            }
        }
    }

    /// Causes a fault in an instance, if it is up.
    fn at(&self, number: usize, fault: Fault, happen: impl FnOnce(&Host)) {
        if let Some(host) = self.host(number) {
            self.world.count(fault);
            happen(&host);
        }
    }

    /// Checks the memory of every schedule.
    fn check_memory(&self) {
        let lanes = 2 * TARGETS.len() + 1;
        let most = i64::try_from(self.world.plan.limits.capacity + 8 * lanes).unwrap();
        for host in self.hosts.borrow().iter().flatten() {
            let held = host.metrics.schedule_held.get();
            self.world.check(Promise::BoundedMemory, held <= most, || format!("a schedule holds {held} intents"));
        }
    }

    /// Stops all faults, and waits until everything has ended.
    async fn settle(&self, clients: &[JoinHandle<()>], readers: &[JoinHandle<()>]) {
        let world = &self.world;
        world.state().settling = true;
        world.log(format_args!("faults stop"));
        for host in self.hosts.borrow().iter().flatten() {
            host.gate.thaw();
        }
        for target in &TARGETS {
            world.calls.resume_target(target.parsed_name(), somebody()).await.unwrap();
        }
        let end = world.elapsed() + SETTLING;
        while !world.is_violated() {
            let busy = clients.iter().any(|client| !client.is_finished());
            if !busy {
                world.resume_redrives().await;
            }
            self.redeliver().await;
            let all_ended = !busy && !world.has_unfinished();
            world.state().all_ended = all_ended;
            if all_ended && readers.iter().all(JoinHandle::is_finished) {
                return;
            }
            world.check(Promise::EverythingEnds, world.elapsed() < end, || {
                let unfinished = world.unfinished();
                format!("{SETTLING:?} after the faults have stopped, these have not ended: {unfinished:?}")
            });
            pass(LOOK).await;
        }
    }

    /// Makes events that wait for a later try due now, as an operator can.
    async fn redeliver(&self) {
        for id in self.world.events_that_wait() {
            let _result = self.world.calls.redeliver_webhook(id, somebody()).await.unwrap();
        }
    }
}

fn panic_in(running: &Rc<Running>, actor: Panicking) {
    let engine = &running.engine;
    match actor {
        Panicking::Store => engine.store.actor().do_send(Crash),
        Panicking::Leader => engine.leader().do_send(Crash),
        Panicking::Child(child) => engine.leader().do_send(CrashChild(child)),
    }
}
