//! Clients that cancel intents, and what the answers promise.

use std::rc::Rc;

use super::checks::Promise;
use super::fleet::{Fleet, PATIENCE};
use super::rows::Row;
use super::store::pass;
use super::world::World;
use crate::api;
use crate::domain::actor::fixtures::somebody;
use crate::domain::intent::{ExhaustedReason, Intent, IntentId};
use crate::store::Cancellation;

/// A cancel that was confirmed.
pub(super) struct Confirmed {
    /// The number of attempts that had started by then: no further one may.
    attempts: u32,
    /// Whether the intent ended at once (200), or ends after its attempt (202).
    ended: bool,
}

/// Cancels an intent, and tries again if there is no answer, no such intent yet, or an attempt in progress.
pub(super) async fn cancel(fleet: &Rc<Fleet>, id: &str, after_attempt: bool, tries: usize) {
    let world = &fleet.world;
    for _ in 0..tries {
        let asked = IntentId::parse(id).unwrap();
        let answer = fleet.request(PATIENCE, move |running| {
            Box::pin(async move { api::cancel::cancel(&running.web, asked, after_attempt, somebody()).await })
        });
        match answer.await {
            Some(Ok(Cancellation::NotFound | Cancellation::AttemptInProgress(_))) => {}
            Some(Ok(cancellation)) => return world.told_cancelled(&cancellation),
            Some(Err(error)) => world.log(format_args!("cancel of {id}: {}", error.kind())),
            None => world.log(format_args!("cancel of {id}: no answer")),
        }
        let pause = world.draw_millis(50, 1_500);
        pass(pause).await;
    }
}

impl World {
    /// Records the answer to a client that cancelled an intent.
    fn told_cancelled(&self, cancellation: &Cancellation) {
        let (intent, ended) = match cancellation {
            Cancellation::Cancelled(intent) | Cancellation::CancelledBefore(intent) => (intent, true),
            Cancellation::AfterAttempt(intent) => (intent, false),
            _ => return,
        };
        let Intent { seq, attempt_count: attempts, .. } = intent;
        self.log(format_args!("told that {:?} is cancelled, ended {ended}, {attempts} attempts", intent.id));
        let sent = self.state().ledgers.calls.range((seq.0, attempts + 1)..(seq.0 + 1, 0)).next().is_some();
        let cancelled = intent.state.exhausted_reason() == Some(ExhaustedReason::Cancelled);
        self.check(Promise::CancelIsFinal, !sent && cancelled == ended, || {
            format!("a client was told that {intent:?} is cancelled; a later attempt was sent: {sent}")
        });
        self.state().ledgers.cancelled.entry(seq.0).or_insert(Confirmed { attempts: *attempts, ended });
    }

    /// Checks that no attempt starts after a confirmed cancel.
    pub(super) fn check_start_after_cancel(&self, row: &Row) {
        let cancelled = self.state().ledgers.cancelled.contains_key(&row.seq);
        self.check(Promise::CancelIsFinal, !cancelled, || format!("{row:?} was started, and is cancelled"));
    }

    /// Checks that a call is not of an attempt after a confirmed cancel.
    pub(super) fn check_call_after_cancel(&self, seq: i64, number: u32) {
        let allowed = self.state().ledgers.cancelled.get(&seq).map(|confirmed| confirmed.attempts);
        self.check(Promise::CancelIsFinal, allowed.is_none_or(|allowed| number <= allowed), || {
            format!("attempt {number} of intent {seq} was sent, and the intent is cancelled after {allowed:?} attempts")
        });
    }

    /// Checks how a cancelled intent has ended.
    pub(super) fn check_cancelled(&self, row: &Row) {
        let kept = self.state().ledgers.cancelled.get(&row.seq).is_none_or(|confirmed| {
            let cancelled = row.reason.as_deref() == Some(ExhaustedReason::Cancelled.as_str());
            row.attempts <= confirmed.attempts && row.is_terminal() && (cancelled || !confirmed.ended)
        });
        self.check(Promise::CancelIsFinal, kept, || format!("{row:?} was cancelled"));
    }
}
