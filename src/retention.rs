//! `RetentionActor`: deletes old terminal intents, for one term, if retention is configured.
//!
//! State: none but its settings. Small batches with pauses, so that submissions never wait long
//! for one. Stops with its term; when it dies, old intents stay until the next term.

use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Recipient};

use crate::core::lease::Term;
use crate::leader::TermFailed;
use crate::scheduler::Stop;
use crate::store::Purged;
use crate::store::actor::FencedError;
use crate::store::client::StoreClient;

/// Intents deleted in one transaction.
const BATCH: usize = 200;
/// Between two batches while there is more to delete.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two looks when there was nothing left.
const REST: Duration = Duration::from_secs(60);

pub struct RetentionActor {
    pub term: Term,
    pub store: StoreClient,
    pub leader: Recipient<TermFailed>,
    pub keep_for: Duration,
}

impl RetentionActor {
    fn purge(&mut self, ctx: &mut Context<Self>) {
        let (store, term, keep_for) = (self.store.clone(), self.term.clone(), self.keep_for);
        let purge = wrap_future::<_, Self>(async move { store.purge(&term, keep_for, BATCH).await });
        ctx.spawn(purge.map(|result, actor, ctx| {
            let pause = match result {
                Ok(Purged::Fenced) => {
                    actor.leader.do_send(TermFailed::new(&actor.term, "purge", &FencedError::TermOver));
                    return ctx.stop();
                }
                Ok(Purged::Deleted { intents, more }) => {
                    if intents > 0 {
                        log::info!("intents_purged count={intents}");
                    }
                    if more { PAUSE } else { REST }
                }
                Err(error) => {
                    log::warn!("purge_failed store_error={error:?}");
                    REST
                }
            };
            ctx.run_later(pause, Self::purge);
        }));
    }
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
