//! `RetentionActor`: deletes old terminal intents, for one term, if retention is configured.
//!
//! State: how far the present pass over old intents has come, and how many one transaction may examine. Transactions
//! are short and take turns with the commits of submissions; after each one the actor waits for twice as long as that one
//! took, so purging never takes more than a third of the store's time. Stops with its term; when it dies, old intents stay until the next term.

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

/// Intents that one transaction examines at least: below that, overhead would be most of it.
const FEWEST: usize = 16;
/// And at most: as many as a batch of submissions may have.
const MOST: usize = 512;
/// How long one transaction should take at most. An embedded store ends sooner by itself; a server is asked for fewer
/// intents when it takes longer.
const SLICE: Duration = Duration::from_millis(20);
/// The shortest pause between two transactions.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
/// Between two passes: what becomes old enough meanwhile is deleted by the next one.
const REST: Duration = Duration::from_secs(5);
/// After a failure: the store may need its strength for other things.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(60);

pub struct RetentionActor {
    term: Term,
    store: StoreClient,
    leader: Recipient<TermFailed>,
    metrics: Arc<Metrics>,
    keep_for: Duration,
    after: Option<PurgeCursor>,
    limit: usize,
    /// Deleted in the present pass.
    deleted: usize,
}

impl RetentionActor {
    pub fn new(
        term: Term,
        store: StoreClient,
        leader: Recipient<TermFailed>,
        metrics: Arc<Metrics>,
        keep_for: Duration,
    ) -> Self {
        Self { term, store, leader, metrics, keep_for, after: None, limit: FEWEST, deleted: 0 }
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
                    REST_AFTER_FAILURE
                }
            };
            ctx.run_later(pause, Self::purge);
        }));
    }

    /// Takes note of a transaction; how long to wait before the next one.
    fn purged(&mut self, Purged { intents, next, took }: Purged) -> Duration {
        self.deleted += intents;
        self.metrics.intents_purged.inc_by(u64::try_from(intents).unwrap_or(u64::MAX));
        self.limit = next_limit(self.limit, took);
        self.after = next;
        if next.is_some() {
            return (took * 2).max(LEAST_PAUSE);
        }
        if self.deleted > 0 {
            log::info!("intents_purged count={}", std::mem::take(&mut self.deleted));
        }
        REST
    }
}

/// Half as many if the last transaction took too long, twice as many if it took less than half of what it may.
fn next_limit(limit: usize, took: Duration) -> usize {
    let next = if took > SLICE {
        limit / 2
    } else if took < SLICE / 2 {
        limit * 2
    } else {
        limit
    };
    next.clamp(FEWEST, MOST)
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
        assert_eq!(after(FEWEST, &[1, 1, 1]), FEWEST * 8);
        assert_eq!(after(FEWEST, &[1; 20]), MOST, "bounded above");
        assert_eq!(after(MOST, &[30]), MOST / 2);
        assert_eq!(after(MOST, &[300; 20]), FEWEST, "bounded below");
        assert_eq!(after(100, &[15, 15]), 100, "what fits stays");
    }
}
