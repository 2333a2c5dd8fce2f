//! Tenants that submit jobs, and what the answers promise.

use std::rc::Rc;

use super::checks::Promise;
use super::fleet::{Fleet, PATIENCE};
use super::store::pass;
use super::world::World;
use crate::api::jobs::submit::{Accepted, accept_command};
use crate::domain::client::{ApiClient, Scope, Workspaces};
use crate::domain::intent::IntentId;
use crate::domain::job::{JobCommand, SubmissionId, fixtures};
use crate::domain::trace::TraceContext;
use crate::web::error::ApiError;

/// The tenant of all jobs.
pub(super) const TENANT: &str = "acme";

/// A job that was confirmed to a tenant.
pub(super) struct Confirmed {
    id: SubmissionId,
    variant: usize,
    /// Whether a tenant was told that its request created the job.
    created: bool,
}

fn command(key: usize, variant: usize) -> JobCommand {
    JobCommand { job_id: format!("job-{variant}"), ..fixtures::command(TENANT, "w1", &format!("key-{key}")) }
}

fn tenant() -> ApiClient {
    ApiClient {
        id: "tenant".to_owned(),
        scopes: [Scope::JobsSubmit].into(),
        tenants: [(TENANT.to_owned(), Workspaces::All)].into(),
    }
}

/// Submits a job, and tries again if there is no answer or the service is unavailable.
pub(super) async fn submit(fleet: &Rc<Fleet>, key: usize, variant: usize, tries: usize) {
    let world = &fleet.world;
    for _ in 0..tries {
        let trace = TraceContext::new(u128::from(world.draw_number()) + 1, 1, 0).unwrap();
        let answer = fleet.request(PATIENCE, move |running| {
            Box::pin(async move {
                let registry = running.registry.get();
                accept_command(&running.web, &registry, &tenant(), &command(key, variant), trace).await
            })
        });
        match answer.await {
            Some(Ok(Accepted { job, replayed })) => return world.told_job(key, variant, job.id, !replayed),
            Some(Err(ApiError::JobConflict { id, .. })) => return world.told_other_job(key, variant, id),
            Some(Err(error)) => world.log(format_args!("job {key}: {}", error.code())),
            None => world.log(format_args!("job {key}: no answer")),
        }
        let pause = world.draw_millis(50, 1_500);
        pass(pause).await;
    }
}

impl World {
    /// Records that a job was confirmed to a tenant.
    fn told_job(&self, key: usize, variant: usize, id: SubmissionId, created: bool) {
        self.log(format_args!("job {key}: {id}, created {created}"));
        let name = IntentId::of_job(id);
        let existed = self.state().ledgers.changes.rows.values().any(|row| row.id == name.as_str());
        self.check(Promise::OneKeyOneJob, existed, || format!("{id} was confirmed and was never stored"));
        if !self.is_stored(id) {
            return;
        }
        self.forget_deleted_job(key);
        let kept = {
            let mut state = self.state();
            let known = state.ledgers.jobs.entry(key).or_insert(Confirmed { id, variant, created: false });
            let created_twice = known.created && created;
            known.created |= created;
            known.id == id && known.variant == variant && !created_twice
        };
        self.check(Promise::OneKeyOneJob, kept, || {
            format!("job {key} was confirmed as {id}, and as another one before")
        });
    }

    /// Records that a tenant was told that its key belongs to another command.
    fn told_other_job(&self, key: usize, variant: usize, id: SubmissionId) {
        self.log(format_args!("job {key}: conflict with {id}"));
        self.forget_deleted_job(key);
        let kept = self.state().ledgers.jobs.get(&key).is_none_or(|known| known.id == id && known.variant != variant);
        self.check(Promise::OneKeyOneJob, kept || !self.is_stored(id), || {
            format!("job {key} conflicts with {id}, and that is not its job")
        });
    }

    /// Forgets the job of a key if retention has deleted it: its key may be used again.
    fn forget_deleted_job(&self, key: usize) {
        let known = self.state().ledgers.jobs.get(&key).map(|known| known.id);
        if known.is_some_and(|id| !self.is_stored(id)) {
            self.state().ledgers.jobs.remove(&key);
        }
    }

    /// Whether the intent of a job is stored.
    fn is_stored(&self, id: SubmissionId) -> bool {
        let sql = "SELECT 1 FROM submission_intents WHERE intent_id = ?1";
        let id = IntentId::of_job(id);
        self.store.inspect(|connection| connection.prepare_cached(sql)?.exists([id.as_str()])).unwrap()
    }
}
