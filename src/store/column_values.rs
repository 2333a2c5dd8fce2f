//! Converts domain types to and from column values that all stores share.

use crate::domain::intent::{ExhaustedReason, State, Status};
use crate::domain::outcome::Outcome;
use crate::domain::policy::Decision;
use crate::domain::time::Timestamp;
use crate::store::FinishAttempt;

/// The columns of an intent after a finished attempt.
pub(super) struct StateColumns<'a> {
    pub status: &'static str,
    pub next_attempt_at: Option<Timestamp>,
    pub completed_at: Option<Timestamp>,
    pub rejected_reason: Option<&'a str>,
    pub exhausted_reason: Option<&'static str>,
}

impl<'a> From<&'a FinishAttempt> for StateColumns<'a> {
    fn from(finish: &'a FinishAttempt) -> Self {
        let ended = |status: Status| Self {
            status: status.as_str(),
            next_attempt_at: None,
            completed_at: Some(finish.finished_at),
            rejected_reason: None,
            exhausted_reason: None,
        };
        match &finish.decision {
            Decision::Accept => ended(Status::Accepted),
            Decision::Reject { reason } => Self { rejected_reason: Some(reason), ..ended(Status::Rejected) },
            Decision::Exhaust(reason) => Self { exhausted_reason: Some(reason.as_str()), ..ended(Status::Exhausted) },
            Decision::RetryAt(due) => {
                Self { next_attempt_at: Some(*due), completed_at: None, ..ended(Status::Pending) }
            }
        }
    }
}

/// Reads the state of an intent from its columns; `None` if they contradict each other.
pub(super) fn parse_state(
    status: &str,
    completed_at: Option<Timestamp>,
    rejected_reason: Option<String>,
    exhausted_reason: Option<&str>,
) -> Option<State> {
    match (Status::parse(status)?, completed_at) {
        (Status::Pending, None) => Some(State::Pending),
        (Status::Accepted, Some(at)) => Some(State::Accepted { at }),
        (Status::Rejected, Some(at)) => Some(State::Rejected { at, reason: rejected_reason? }),
        (Status::Exhausted, Some(at)) => {
            Some(State::Exhausted { at, reason: ExhaustedReason::parse(exhausted_reason?)? })
        }
        _ => None,
    }
}

/// Reads the outcome of an attempt from the columns of its audit row; `None` if they contradict each other.
pub(super) fn parse_outcome(
    status: Option<&str>,
    reason: Option<String>,
    error: Option<String>,
    gateway_message_id: Option<String>,
) -> Option<Outcome> {
    match status {
        Some("accepted") => Some(Outcome::Accepted { gateway_message_id }),
        Some("rejected") => Some(Outcome::Rejected { reason: reason?, gateway_message_id }),
        Some(_) => None,
        None => Some(Outcome::stored_error(error?)),
    }
}
