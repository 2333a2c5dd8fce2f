//! Why intents failed, in words that many of them share, so that failures can be counted, listed and redriven by cause.

use super::intent::State;
use super::outcome::{cause_of_error, cause_of_reason};
use super::redrive::FailedStatus;

/// The attempt that ended an intent, as it is stored: the rejection reason or the error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    pub reason: Option<String>,
    pub error: Option<String>,
}

/// Returns why an intent failed; `None` if it did not: see [`failure_cause`].
pub fn cause_of_failure(state: &State, ending: Option<&Ending>) -> Option<String> {
    match state {
        State::Pending | State::Accepted { .. } => None,
        State::Rejected { reason, .. } => Some(failure_cause(FailedStatus::Rejected, reason, ending)),
        State::Exhausted { reason, .. } => Some(failure_cause(FailedStatus::Exhausted, reason.as_str(), ending)),
    }
}

/// Returns why an intent failed with this status and this `rejectedReason` or `exhaustedReason`.
///
/// The cause of a rejected intent is the reason of the gateway. The cause of an exhausted intent is that of the attempt that
/// ended it. An intent that ended while it waited (its deadline passed, or it was cancelled) has no such attempt; its cause is
/// the `exhaustedReason`. Counts by minute use the same words.
pub fn failure_cause(status: FailedStatus, reason: &str, ending: Option<&Ending>) -> String {
    match (status, ending) {
        (FailedStatus::Exhausted, Some(Ending { reason: Some(reason), .. })) => cause_of_reason(reason),
        (FailedStatus::Exhausted, Some(Ending { error: Some(error), .. })) => cause_of_error(error),
        _ => cause_of_reason(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::intent::ExhaustedReason;
    use crate::domain::time::Timestamp;

    #[test]
    fn the_cause_is_what_ended_the_intent() {
        let at = Timestamp::from_micros(1);
        let exhausted = State::Exhausted { at, reason: ExhaustedReason::MaxAttempts };
        let error = |text: &str| Ending { reason: None, error: Some(text.to_owned()) };
        let refused = Ending { reason: Some("provider_failure".to_owned()), error: None };
        for (state, ending, cause) in [
            (State::Pending, None, None),
            (State::Accepted { at }, None, None),
            (State::Rejected { at, reason: "invalid_recipient".to_owned() }, None, Some("invalid_recipient")),
            (exhausted.clone(), Some(error("gateway answered HTTP 503: <html>")), Some("gateway answered HTTP 503")),
            (exhausted.clone(), Some(refused), Some("provider_failure")),
            (exhausted, None, Some("max_attempts")),
        ] {
            assert_eq!(cause_of_failure(&state, ending.as_ref()).as_deref(), cause, "{state:?}");
        }
    }
}
