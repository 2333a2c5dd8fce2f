//! `RetentionActor`: deletes old terminal intents, for one term, if retention is configured.
//!
//! State: how far the current pass over old intents has come, and how many intents one transaction may examine. It receives
//! `Stop` from the leader, and sends `TermFailed` to the leader if the term is over. Transactions are short, and commits of
//! submissions run between them. After each transaction the actor waits for twice as long as it took, so purging never takes
//! more than a third of the store's time. When the actor dies, old intents stay until the next term.

use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Recipient};

use crate::domain::lease::Term;
use crate::engine::messages::{Stop, TermFailed};
use crate::store::FencedError;
use crate::store::client::StoreClient;
use crate::store::{PurgeCursor, PurgeRequest, Purged};
use crate::telemetry::metrics::Metrics;

/// The smallest limit of a transaction, in intents. Below it most of the time would be overhead.
const MIN_LIMIT: usize = 16;
/// The largest limit of a transaction, in intents: as many as one batch of new intents has at most.
const MAX_LIMIT: usize = 512;
/// How long one transaction should take at most. SQLite ends its transaction sooner by itself. SQL Server gets a smaller
/// limit when a transaction took longer.
const MAX_DURATION: Duration = Duration::from_millis(20);
/// The shortest pause between two transactions.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// The pause between two passes. Intents that become old enough meanwhile are deleted by the next pass.
const PASS_PAUSE: Duration = Duration::from_secs(5);
/// The pause after a failure, because the store may be overloaded.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);

/// Deletes old terminal intents during one term.
pub(super) struct RetentionActor {
    term: Term,
    store: StoreClient,
    leader: Recipient<TermFailed>,
    metrics: Arc<Metrics>,
    keep_for: Duration,
    after: Option<PurgeCursor>,
    limit: usize,
    /// How many intents the current pass has deleted.
    deleted: usize,
}

impl RetentionActor {
    pub(super) fn new(
        term: Term,
        store: StoreClient,
        leader: Recipient<TermFailed>,
        metrics: Arc<Metrics>,
        keep_for: Duration,
    ) -> Self {
        Self { term, store, leader, metrics, keep_for, after: None, limit: MIN_LIMIT, deleted: 0 }
    }

    fn purge(&mut self, ctx: &mut Context<Self>) {
        let (store, term) = (self.store.clone(), self.term.clone());
        let request = PurgeRequest { older_than: self.keep_for, after: self.after, limit: self.limit };
        let purge = wrap_future::<_, Self>(async move { store.purge(term, request).await });
        ctx.spawn(purge.map(|result, actor, ctx| {
            let pause = match result {
                Err(FencedError::TermOver) => {
                    actor.leader.do_send(TermFailed::new(&actor.term, "purge", &FencedError::TermOver));
                    return ctx.stop();
                }
                Ok(purged) => actor.purged(purged),
                Err(FencedError::Store(error)) => {
                    log::warn!("purge_failed store_error={error:?}");
                    FAILURE_PAUSE
                }
            };
            ctx.run_later(pause, Self::purge);
        }));
    }

    /// Updates the pass after a transaction, and returns how long to wait before the next one.
    fn purged(&mut self, Purged { intents, next, took }: Purged) -> Duration {
        self.deleted += intents;
        self.metrics.intents_purged.inc_by(u64::try_from(intents).unwrap_or(u64::MAX));
        self.limit = next_limit(self.limit, took);
        self.after = next;
        if next.is_some() {
            return (took * 2).max(MIN_PAUSE);
        }
        if self.deleted > 0 {
            log::info!("intents_purged count={}", std::mem::take(&mut self.deleted));
        }
        PASS_PAUSE
    }
}

/// Halves the limit if the last transaction took too long, and doubles it if the transaction took less than half of
/// [`MAX_DURATION`].
fn next_limit(limit: usize, took: Duration) -> usize {
    let next = if took > MAX_DURATION {
        limit / 2
    } else if took < MAX_DURATION / 2 {
        limit * 2
    } else {
        limit
    };
    next.clamp(MIN_LIMIT, MAX_LIMIT)
}

impl Actor for RetentionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.purge(ctx);
    }
}

impl Handler<Stop> for RetentionActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_transaction_follows_how_long_it_takes() {
        let after = |limit, took: &[u64]| {
            took.iter().fold(limit, |limit, millis| next_limit(limit, Duration::from_millis(*millis)))
        };
        assert_eq!(after(MIN_LIMIT, &[1, 1, 1]), MIN_LIMIT * 8);
        assert_eq!(after(MIN_LIMIT, &[1; 20]), MAX_LIMIT, "bounded above");
        assert_eq!(after(MAX_LIMIT, &[30]), MAX_LIMIT / 2);
        assert_eq!(after(MAX_LIMIT, &[300; 20]), MIN_LIMIT, "bounded below");
        assert_eq!(after(100, &[15, 15]), 100, "a limit that fits stays");
    }
}
