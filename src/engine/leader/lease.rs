//! How the leader acquires the lease and renews it, and how long it trusts it.
//!
//! A renewal extends the trust from the moment at which it was requested. One renewal that fails, is refused or is not
//! answered in time ends the term. The leader does not renew while the scheduler or the executor is stuck, so that another
//! instance can take over.

use std::time::Duration;

use actix::fut::wrap_future;
use actix::{ActorFutureExt, AsyncContext, Context, Handler};
use tokio::time::Instant;

use super::progress::responds;
use super::{LeaderActor, LeaderDeps, State};
use crate::domain::lease::{Lease, Term};
use crate::engine::lease_trust::RemainingTrust;
use crate::engine::messages::TermFailed;
use crate::platform::clock::monotonic;
use crate::platform::errors::full_text;
use crate::platform::mutated;
use crate::store::FencedError;

/// A term that lasted this long resets the count of terms that failed in a row.
const STABLE_TERM: Duration = Duration::from_secs(60);

impl LeaderActor {
    /// Requests the lease once the executor's thread responds. While that thread is stuck, the lease is left to other
    /// instances.
    pub(super) fn acquire(&mut self, ctx: &mut Context<Self>) {
        let executor = self.deps.executor_thread.clone();
        let responds = wrap_future::<_, Self>(async move { responds(&executor).await });
        ctx.spawn(responds.map(|responds, actor, ctx| {
            if !responds {
                log::error!("executor_thread_died next=\"restart this instance\"");
            } else if actor.wants_lease() {
                actor.request_lease(ctx);
            }
        }));
    }

    fn wants_lease(&self) -> bool {
        matches!(self.state, State::Following) && self.stopping.is_none()
    }

    fn request_lease(&mut self, ctx: &mut Context<Self>) {
        self.acquiring = true;
        let LeaderDeps { store, settings, .. } = self.deps.clone();
        let requested_at = monotonic();
        let acquire = wrap_future::<_, Self>(async move {
            store.acquire_lease(settings.lease_name, settings.holder_id, settings.timing.duration()).await
        });
        ctx.spawn(acquire.map(move |result, actor, ctx| {
            actor.acquiring = false;
            match (result, actor.stopping.take()) {
                (Ok(Some(lease)), Some(done)) => actor.release_and_stop(lease.term, done, ctx),
                (Ok(None) | Err(_), Some(done)) => actor.stop(done, ctx),
                (Ok(Some(lease)), None) => actor.start_term(requested_at, lease, ctx),
                (Ok(None), None) => actor.lease_is_held(ctx),
                (Err(error), None) => {
                    let holder_id = &actor.deps.settings.holder_id;
                    log::warn!("leader_acquire_failed holder_id={holder_id} store_error={error:?}");
                    actor.acquire_later(ctx);
                }
            }
        }));
    }

    /// Tries again later, because the lease is held. If the holder cannot be an earlier term of this instance, another
    /// instance leads, and the failures of this one no longer count.
    fn lease_is_held(&mut self, ctx: &mut Context<Self>) {
        let duration = self.deps.settings.timing.duration();
        if self.last_term_ended_at.is_none_or(|end| monotonic().duration_since(end) > duration) {
            self.failures = 0;
        }
        self.acquire_later(ctx);
    }

    /// Tries again after the acquire interval, which doubles with each failed term. Jitter keeps instances that started
    /// together from requesting the lease together for ever. It only shortens the pause, so that a released lease is
    /// acquired and in use within the interval.
    pub(super) fn acquire_later(&self, ctx: &mut Context<Self>) {
        const MAX_PAUSE: Duration = Duration::from_secs(30);
        let interval = self.deps.settings.acquire_interval;
        let pause = interval.saturating_mul(1 << self.failures.min(5)).min(MAX_PAUSE.max(interval));
        ctx.run_later(pause.mul_f64(0.5 + 0.4 * fastrand::f64()), Self::acquire);
    }

    /// Renews the lease, unless the term makes no progress.
    pub(super) fn renew(&mut self, ctx: &mut Context<Self>) {
        let Some(leadership) = self.leadership() else { return };
        if let Some(why) = leadership.progress.stuck(matches!(self.state, State::Draining(_))) {
            let failed = TermFailed::lost(&leadership.term, why);
            return self.renew_failed(failed, ctx);
        }
        leadership.progress.ping_executor();
        let term = leadership.term.clone();
        let (store, requested_at) = (self.deps.store.clone(), monotonic());
        let duration = self.deps.settings.timing.duration();
        let renewed_term = term.clone();
        let renew = wrap_future::<_, Self>(async move { store.renew_lease(renewed_term, duration).await });
        ctx.spawn(renew.map(move |result, actor, ctx| match result {
            Ok(lease) => actor.renewed(requested_at, lease),
            Err(FencedError::TermOver) => {
                actor.renew_failed(TermFailed::new(&term, "renew", &FencedError::TermOver), ctx);
            }
            Err(FencedError::Store(error)) => {
                let store_error = Some(full_text(&error));
                actor.renew_failed(TermFailed { store_error, ..TermFailed::lost(&term, "renew failed") }, ctx);
            }
        }));
    }

    fn renew_failed(&mut self, failed: TermFailed, ctx: &mut Context<Self>) {
        if self.is_term(&failed.term) {
            let fields = self.lease_fields(failed.store_error.as_deref());
            log::warn!("leader_renew_failed {}{fields} why={:?}", failed.term, failed.why);
            self.handle(failed, ctx);
        }
    }

    fn renewed(&mut self, requested_at: Instant, lease: Lease) {
        if !self.is_term(&lease.term) {
            return;
        }
        log::debug!("leader_renewed {} expires_at={}", lease.term, lease.expires_at);
        self.store_time.observe(requested_at, lease.now);
        let requested_at = if mutated!(TrustFromAnswer) { monotonic() } else { requested_at };
        if let Some(leadership) = self.leadership() {
            leadership.trust.extend(requested_at, self.deps.settings.timing.trusted_duration());
            if monotonic().duration_since(leadership.started_at) > STABLE_TERM {
                self.failures = 0;
            }
        }
        self.deps.board.set(Some(lease));
    }

    /// Ends the term when its trust runs out, even if the store has not answered a renewal by then.
    pub(super) fn watch_trust(&mut self, term: Term, ctx: &mut Context<Self>) {
        let Some(leadership) = self.leadership().filter(|leadership| leadership.term == term) else { return };
        match leadership.trust.remaining() {
            RemainingTrust::For(duration) => {
                ctx.run_later(duration, |actor, ctx| actor.watch_trust(term, ctx));
            }
            // The term is in doubt and already being drained.
            RemainingTrust::Revoked => {}
            RemainingTrust::RanOut => {
                self.renew_failed(TermFailed::lost(&term, "no renewal was answered in time"), ctx);
            }
        }
    }

    /// The fields at the end of every log line about a lease.
    pub(super) fn lease_fields(&self, store_error: Option<&str>) -> String {
        let expires_at = self.deps.board.lease().map(|lease| format!(" expires_at={}", lease.expires_at));
        let store_error = store_error.map(|error| format!(" store_error={error:?}"));
        format!("{}{}", expires_at.unwrap_or_default(), store_error.unwrap_or_default())
    }
}
