//! The store of an instance: passes each call to the shared database, and delays it or makes it fail if a fault
//! happens.
//!
//! Each call that was sent is a task outside the instance, because a real database executes what it has received even
//! if the caller is frozen or dead. The call takes effect in one moment of virtual time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::faults::Fault;
use super::instance::Gate;
use super::mutated_store;
use super::plan::{Calls, Mishap};
use super::world::{Strain, World};
use crate::store::faulty::{Call, Intercept};
use crate::store::sqlite::inline::{self, CommitFault};
use crate::store::{BatchResults, Store, StoreError, StoreFailure, StoreFuture, WriteBatch, WriteStore};

/// The store of one instance.
#[derive(Clone)]
pub(super) struct SimulatedStore {
    world: Arc<World>,
    instance: usize,
    gate: Gate,
}

/// What happens to one call.
#[derive(Default)]
struct CallPlan {
    /// How long it takes until it takes effect.
    before: Duration,
    /// How long its answer takes.
    after: Duration,
    fails: Fails,
    /// If the instance dies before the call takes effect, the call is lost.
    lost_in_crash: bool,
    /// The instance dies when it has sent the call.
    crash: bool,
    /// The instance dies when the call has taken effect.
    crash_after: bool,
    /// The instance freezes while it waits for the answer.
    freeze: bool,
}

impl CallPlan {
    /// The call takes long, before it takes effect or afterwards.
    fn be_slow(&mut self, world: &World) {
        let slow = world.draw_millis(100, 8_000);
        if world.draw(2) == 0 { self.before = slow } else { self.after = slow }
    }
}

/// How a call fails, if it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fails {
    #[default]
    No,
    Before,
    After,
    Commit(CommitFault),
}

impl SimulatedStore {
    pub(super) fn new(world: &Arc<World>, instance: usize, gate: &Gate) -> Self {
        Self { world: Arc::clone(world), instance, gate: gate.clone() }
    }

    /// Draws what happens to a call.
    fn plan(&self, call: &'static str) -> CallPlan {
        let world = &self.world;
        let usual = u64::try_from(world.plan.store_delay.as_millis()).unwrap_or(0);
        let usual = || if usual == 0 { Duration::ZERO } else { world.draw_millis(0, usual) };
        let mut plan = CallPlan { before: usual(), after: usual(), ..CallPlan::default() };
        if world.strikes(Fault::SlowStore) {
            plan.be_slow(world);
        }
        let is_commit = matches!(call, "commit" | "submit");
        if is_commit && world.strikes(Fault::FailCommit) {
            plan.fails = Fails::Commit(CommitFault::AtCommit);
        } else if is_commit && world.strikes(Fault::BadItem) {
            plan.fails = Fails::Commit(CommitFault::Item(world.draw(3)));
        } else if call == "renew_lease" && world.strikes(Fault::LostRenewal) {
            let lease = u64::try_from(world.plan.timing.duration().as_millis()).unwrap_or(u64::MAX);
            plan.after = if world.draw(2) == 0 { Duration::from_secs(60) } else { world.draw_millis(0, lease) };
            plan.fails = [Fails::No, Fails::Before, Fails::After][world.draw(3)];
        } else if world.plan.only_commits_fail && !is_commit {
            // In this run only commits fail.
        } else if world.strikes(Fault::FailBefore) {
            plan.fails = Fails::Before;
        } else if world.strikes(Fault::LostAnswer) {
            plan.fails = Fails::After;
        }
        self.strain(call, &mut plan);
        match world.mishap_of(Calls::of_store(call)) {
            None => {}
            Some(Mishap::Crash { lost }) => (plan.crash, plan.lost_in_crash) = (true, lost),
            Some(Mishap::CrashAfter) => plan.crash_after = true,
            Some(Mishap::Freeze) => plan.freeze = true,
            Some(Mishap::FailBefore) => plan.fails = Fails::Before,
            Some(Mishap::LostAnswer) => plan.fails = Fails::After,
            Some(Mishap::Slow) => plan.be_slow(world),
        }
        plan
    }

    /// Delays a call of an instance under strain, or loses it.
    fn strain(&self, call: &'static str, plan: &mut CallPlan) {
        let elapsed = self.world.elapsed();
        let mut state = self.world.state();
        let settling = state.settling;
        let under_strain = |strain: &&mut Strain| !settling && strain.instance == self.instance && elapsed < strain.end;
        let Some(strain) = state.strain.as_mut().filter(under_strain) else { return };
        match call {
            "commit" | "submit" => plan.after += strain.delay,
            "renew_lease" => {
                strain.renewals += 1;
                match strain.renewals {
                    1 => plan.after += strain.delay,
                    _ => (plan.fails, plan.after) = (Fails::Before, Duration::from_secs(60)),
                }
            }
            _ => {}
        }
    }

    fn die(&self, call: &'static str) {
        self.world.log(format_args!("i{} crashes in {call}", self.instance));
        let down = self.world.draw_millis(10, 4_000);
        self.gate.end(down);
    }

    /// Freezes the instance while it waits for an answer.
    fn freeze(&self, call: &'static str) {
        let lease = u64::try_from(self.world.plan.timing.duration().as_millis()).unwrap_or(u64::MAX);
        let duration = self.world.draw_millis(50, lease * 2);
        self.world.log(format_args!("i{} freezes in {call} for {duration:?}", self.instance));
        self.gate.freeze();
        let gate = self.gate.clone();
        drop(tokio::spawn(async move {
            pass(duration).await;
            gate.thaw();
        }));
    }

    /// Makes a call that the instance has sent.
    async fn make<T: Send + 'static, E: StoreFailure>(
        self,
        call: &'static str,
        plan: CallPlan,
        run: impl FnOnce(&dyn Store) -> Call<T, E> + Send + 'static,
    ) -> Option<Result<T, E>> {
        pass(plan.before).await;
        if plan.lost_in_crash && self.gate.is_closed() {
            return None;
        }
        let unavailable = |why: &str| Err(StoreError::unavailable(why).into());
        let result = if plan.fails == Fails::Before {
            mutated_store::advance_position(&self.world, call);
            unavailable("told to fail")
        } else {
            let fault = if let Fails::Commit(fault) = plan.fails { fault } else { CommitFault::None };
            self.world.before_call(call);
            let remembered = mutated_store::remembered_position(&self.world, call);
            inline::set_fault(fault);
            let result = run(&*self.world.calls).await;
            inline::set_fault(CommitFault::None);
            if plan.fails == Fails::After || plan.crash_after || self.gate.is_closed() {
                mutated_store::forget_position(&self.world, &remembered);
            }
            self.world.after_call(call);
            if plan.fails == Fails::After { unavailable("told to lose the answer") } else { result }
        };
        let failed =
            result.as_ref().err().map_or("ok", |error| error.store_error().map_or("term over", StoreError::kind));
        self.world.log(format_args!("i{} {call} {failed} {:?}", self.instance, plan.fails));
        if plan.crash_after && !self.gate.is_closed() {
            self.die(call);
        }
        pass(plan.after).await;
        Some(result)
    }
}

/// Lets virtual time pass.
pub(super) async fn pass(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

impl Intercept for SimulatedStore {
    fn intercept<T: Send + 'static, E: StoreFailure>(
        &self,
        call: &'static str,
        run: impl FnOnce(&dyn Store) -> Call<T, E> + Send + 'static,
    ) -> Call<T, E> {
        let this = self.clone();
        Box::pin(async move {
            if this.gate.is_closed() {
                return std::future::pending().await;
            }
            let plan = this.plan(call);
            let (answer, answered) = oneshot::channel();
            let (crash, freeze) = (plan.crash, plan.freeze);
            let made = this.clone().make(call, plan, run);
            tokio::spawn(async move {
                if let Some(result) = made.await {
                    let _caller_may_be_gone = answer.send(result);
                }
            });
            if crash {
                this.die(call);
            } else if freeze {
                this.freeze(call);
            }
            match answered.await {
                Ok(result) => result,
                Err(_lost) => std::future::pending().await,
            }
        })
    }
}

impl WriteStore for SimulatedStore {
    fn commit(&self, batch: WriteBatch) -> StoreFuture<BatchResults> {
        let (world, term) = (Arc::clone(&self.world), batch.fenced.as_ref().map(|writes| writes.term.clone()));
        let (own, gate) = (Arc::clone(&self.world), self.gate.clone());
        let call = if batch.submits.is_empty() { "commit" } else { "submit" };
        self.intercept(call, move |_| {
            Box::pin(async move {
                let results = mutated_store::commit(&own, &gate, batch).await;
                if let (Some(term), Ok(BatchResults { fenced: Ok(_), .. })) = (term, &results) {
                    world.check_fence(&term);
                }
                results
            })
        })
    }

    fn budget(&self) -> Duration {
        self.world.calls.budget()
    }

    fn max_submits(&self) -> usize {
        self.world.calls.max_submits()
    }
}
