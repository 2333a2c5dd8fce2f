//! `RedriveActor`: creates the new intents of running redrives, for one term.
//!
//! State: the running redrives, and when each may create its next intents. It receives `Stop` from the leader, and
//! sends `TermFailed` to the leader if the term is over. It creates the new intents of each redrive at the rate of the
//! redrive, a few in each fenced transaction. It creates only as many as could start immediately, so that they do not
//! delay new submissions. Once a minute it deletes the remaining rows of redrives that have ended.
//!
//! A store call that fails is repeated, which is harmless: the transaction that creates an intent also deletes it from the
//! redrive. When the actor dies, the leader starts another one.

use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Recipient};
use tokio::time::Instant;

use crate::config::registry::CurrentRegistry;
use crate::domain::intent::TargetName;
use crate::domain::lease::Term;
use crate::domain::redrive::RedriveRate;
use crate::engine::lease_trust::LeaseTrust;
use crate::engine::messages::{Stop, TermFailed};
use crate::engine::scheduler::{AdmissionOfRedrives, SchedulerActor};
use crate::platform::clock::monotonic;
use crate::platform::supervision::Alive;
use crate::store::client::StoreClient;
use crate::store::{FencedError, FencedResult, RedriveAdmission, RedriveWork, RunningRedrive};
use crate::telemetry::metrics::Metrics;

/// How often a redrive creates intents at most. At the highest rate it creates 100 each time.
const STEP: Duration = Duration::from_millis(100);
/// The shortest pause between two steps, also if a redrive is behind its rate. In this time the schedule learns of the
/// intents that the last step created.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// How often the store is queried for redrives that were started, paused or cancelled.
const QUERY_INTERVAL: Duration = Duration::from_millis(500);
/// The pause after a failed store call.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// How often the remaining rows of redrives that have ended are deleted.
const TIDY_INTERVAL: Duration = Duration::from_secs(60);

/// What the redrive actor of a term needs.
#[derive(Clone)]
pub(super) struct RedriveDeps {
    pub term: Term,
    pub trust: LeaseTrust,
    pub store: StoreClient,
    pub registry: CurrentRegistry,
    pub metrics: Arc<Metrics>,
    pub scheduler: Addr<SchedulerActor>,
    pub leader: Recipient<TermFailed>,
    /// How long redrives are kept after they ended; `None` keeps them.
    pub keep_for: Option<Duration>,
}

/// Runs redrives during one term.
pub(super) struct RedriveActor {
    deps: RedriveDeps,
    _alive: Alive,
}

impl RedriveActor {
    pub(super) fn new(deps: RedriveDeps, alive: Alive) -> Self {
        Self { deps, _alive: alive }
    }
}

impl Actor for RedriveActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let deps = self.deps.clone();
        ctx.spawn(wrap_future::<_, Self>(run(deps)).map(|(), _, ctx| ctx.stop()));
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        // Only the leader reports how many redrives run.
        self.deps.metrics.redrives_running.set(0);
    }
}

impl Handler<Stop> for RedriveActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

#[cfg(test)]
crate::platform::supervision::crash_on_request!(RedriveActor);

/// Runs redrives until the term is over.
async fn run(deps: RedriveDeps) {
    // The death of the scheduler ends the term.
    let Ok(admission) = deps.scheduler.send(AdmissionOfRedrives).await else { return };
    let now = monotonic();
    let mut work = Work { deps, admission, running: Vec::new(), next_query: now, next_tidy: now };
    loop {
        let until = match work.round().await {
            Ok(until) => until,
            Err(FencedError::TermOver) => {
                let term = &work.deps.term;
                return work.deps.leader.do_send(TermFailed::new(term, "redrive", &FencedError::TermOver));
            }
            Err(FencedError::Store(error)) => {
                log::warn!("redrive_failed store_error={error:?}");
                tokio::time::sleep(FAILURE_PAUSE).await;
                continue;
            }
        };
        if tokio::time::timeout_at(until, work.deps.store.redrives_changed()).await.is_ok() {
            work.next_query = monotonic();
        }
    }
}

/// The running redrives, and the times of the next query and the next deletion of rows.
struct Work {
    deps: RedriveDeps,
    admission: Arc<dyn RedriveAdmission>,
    running: Vec<Paced>,
    next_query: Instant,
    next_tidy: Instant,
}

/// A running redrive, and the time of its next step.
struct Paced {
    redrive: RunningRedrive,
    next_at: Instant,
}

impl Work {
    /// Does what is due, and returns when something will be due again.
    async fn round(&mut self) -> FencedResult<Instant> {
        if !self.deps.trust.holds() {
            return Ok(monotonic() + QUERY_INTERVAL);
        }
        if self.next_query <= monotonic() {
            self.query().await?;
            self.next_query = monotonic() + QUERY_INTERVAL;
        }
        for place in 0..self.running.len() {
            if self.running.get(place).is_some_and(|paced| paced.next_at <= monotonic()) {
                self.step(place).await?;
            }
        }
        if self.next_tidy <= monotonic() {
            let more = self.deps.store.tidy_redrives(self.deps.term.clone(), self.deps.keep_for).await?;
            self.next_tidy = monotonic() + if more { STEP } else { TIDY_INTERVAL };
        }
        let next = self.running.iter().map(|paced| paced.next_at).min();
        Ok(next.into_iter().chain([self.next_query, self.next_tidy]).min().unwrap_or(self.next_query))
    }

    /// Reads which redrives run.
    async fn query(&mut self) -> FencedResult<()> {
        let running = self.deps.store.running_redrives().await?;
        self.deps.metrics.redrives_running.set(i64::try_from(running.len()).unwrap_or(i64::MAX));
        let known = std::mem::take(&mut self.running);
        self.running = running
            .into_iter()
            .map(|redrive| match known.iter().find(|known| known.redrive.seq == redrive.seq) {
                // Keep the old count: if the answer to a step was lost, the next step counts the intents that it
                // created.
                Some(known) => Paced { redrive: known.redrive.clone(), next_at: known.next_at },
                None => Paced { redrive, next_at: monotonic() },
            })
            .collect();
        Ok(())
    }

    /// Creates the next intents of a redrive.
    async fn step(&mut self, place: usize) -> FencedResult<()> {
        let Some(Paced { redrive, next_at }) = self.running.get_mut(place) else { return Ok(()) };
        let registry = self.deps.registry.get();
        let contract = |target: &String| TargetName::parse(target).ok().and_then(|target| registry.contract(&target));
        let work = RedriveWork {
            seq: redrive.seq,
            id: redrive.id,
            limit: step_limit(redrive.rate),
            contracts: redrive.targets.iter().map(contract).collect(),
            admission: Arc::clone(&self.admission),
        };
        let worked = self.deps.store.work_redrive(self.deps.term.clone(), work).await?;
        let now = monotonic();
        let Some(created) = worked.created else {
            *next_at = now + STEP;
            return Ok(());
        };
        self.deps.metrics.intents_redriven(created.saturating_sub(redrive.created));
        redrive.created = created;
        let paced = (*next_at).max(now - STEP) + redrive.rate.duration_of(worked.now_created);
        *next_at = paced.max(now + SHORTEST_PAUSE);
        if worked.completed {
            log::info!("redrive_completed redrive_id={} created={created}", redrive.id);
            self.next_query = now;
            *next_at = now + QUERY_INTERVAL;
        }
        Ok(())
    }
}

/// How many intents one step creates at this rate.
fn step_limit(rate: RedriveRate) -> usize {
    let steps = u32::try_from(Duration::from_secs(1).as_millis() / STEP.as_millis()).unwrap_or(1);
    usize::try_from(rate.per_second() / steps).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_small_and_keep_the_rate() {
        for (rate, expected) in [(1, 1), (10, 1), (19, 1), (100, 10), (1000, 100)] {
            assert_eq!(step_limit(RedriveRate::new(rate).unwrap()), expected, "{rate}");
        }
    }
}
