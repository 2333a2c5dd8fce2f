//! `AuditRetentionActor`: deletes old entries of the audit log, for one term, if `SM_AUDIT_RETENTION` is set.
//!
//! It has no state but its settings. It receives `Stop` from the leader, and sends `TermFailed` to the leader if the term is
//! over. When the actor dies, old entries stay until the next term.

use std::time::Duration;

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Recipient};

use crate::domain::lease::Term;
use crate::engine::messages::{Stop, TermFailed};
use crate::store::client::StoreClient;
use crate::store::{AuditPurge, AuditPurged, FencedError};

/// Entries that one transaction deletes at most: it checks and deletes them in a few milliseconds.
const LIMIT: usize = 500;
/// Entries are deleted when their day in UTC has passed too.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The pause between two transactions.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause when nothing is left to delete.
const PASS_PAUSE: Duration = Duration::from_secs(60 * 60);
/// The pause after a failure, because the store may be overloaded.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);

/// Deletes old entries of the audit log during one term.
pub(super) struct AuditRetentionActor {
    term: Term,
    store: StoreClient,
    leader: Recipient<TermFailed>,
    keep_for: Duration,
}

impl AuditRetentionActor {
    pub(super) fn new(term: Term, store: StoreClient, leader: Recipient<TermFailed>, keep_for: Duration) -> Self {
        Self { term, store, leader, keep_for }
    }

    fn purge(&mut self, ctx: &mut Context<Self>) {
        let (store, term) = (self.store.clone(), self.term.clone());
        let request = AuditPurge { keep_for: self.keep_for, period: DAY, limit: LIMIT };
        let purge = wrap_future::<_, Self>(async move { store.purge_audit(term, request).await });
        ctx.spawn(purge.map(|result, actor, ctx| {
            let pause = match result {
                Ok(AuditPurged::Deleted(0)) => PASS_PAUSE,
                Ok(AuditPurged::Deleted(entries)) => {
                    log::info!("audit_entries_purged count={entries}");
                    PAUSE
                }
                Ok(AuditPurged::Broken(broken)) => {
                    let next = "run 'submission-manager audit verify'; entries were changed or removed, and none is deleted \
                                while their hashes do not match";
                    log::error!("audit_chain_broken entry={} what={:?} next={next:?}", broken.id, broken.what);
                    PASS_PAUSE
                }
                Err(FencedError::TermOver) => {
                    actor.leader.do_send(TermFailed::new(&actor.term, "purge_audit", &FencedError::TermOver));
                    return ctx.stop();
                }
                Err(FencedError::Store(error)) => {
                    log::warn!("audit_purge_failed store_error={error:?}");
                    FAILURE_PAUSE
                }
            };
            ctx.run_later(pause, Self::purge);
        }));
    }
}

impl Actor for AuditRetentionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.purge(ctx);
    }
}

impl Handler<Stop> for AuditRetentionActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        ctx.stop();
    }
}
