//! Cancelling an intent: what the store answers.

use crate::domain::intent::Intent;

/// What became of a request to cancel an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// The intent waited for an attempt, and this request ended it.
    Cancelled(Intent),
    /// An earlier request ended the intent.
    CancelledBefore(Intent),
    /// Its attempt goes on. If that does not end the intent, the intent ends as cancelled.
    AfterAttempt(Intent),
    /// Its attempt is in progress, and the request was not to wait for it. Nothing was done.
    AttemptInProgress(Intent),
    /// The intent has ended for another reason.
    AlreadyTerminal(Intent),
    NotFound,
}

impl Cancellation {
    /// What becomes of an intent that does not wait for an attempt: `after_attempt` says whether the request may wait for the
    /// one in progress.
    pub(super) fn of_other(intent: Intent, after_attempt: bool) -> Self {
        use crate::domain::intent::ExhaustedReason::Cancelled;
        match intent.state.exhausted_reason() {
            Some(Cancelled) => Self::CancelledBefore(intent),
            _ if intent.state.is_terminal() => Self::AlreadyTerminal(intent),
            _ if after_attempt => Self::AfterAttempt(intent),
            _ => Self::AttemptInProgress(intent),
        }
    }
}
