//! Decides how an intent continues or ends after an attempt. No other module makes this decision.
//!
//! The functions depend only on the stored contract, the number of the attempt, its outcome and the store's time. Their
//! `begins_at` is the moment from which the contract counts: [`Intent::begins_at`](super::intent::Intent::begins_at).

use std::time::Duration;

use super::contract::{Contract, Policy};
use super::intent::ExhaustedReason;
use super::outcome::Outcome;
use super::time::Timestamp;

/// What happens to an intent after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Accept,
    Reject { reason: String },
    Exhaust(ExhaustedReason),
    RetryAt(Timestamp),
}

/// When the retry of an attempt that finished at `finished_at` is due.
///
/// The delay is not part of any contract. A different timing, such as growing delays or jitter, belongs here.
fn retry_due(finished_at: Timestamp) -> Timestamp {
    const RETRY_DELAY: Duration = Duration::from_secs(5);
    finished_at + RETRY_DELAY
}

/// The moment from which an intent with the policy `deadline` can no longer be accepted; `None` for other policies.
pub fn deadline(contract: &Contract, begins_at: Timestamp) -> Option<Timestamp> {
    match contract.policy {
        Policy::Deadline { max_acceptance_seconds } => {
            Some(begins_at + Duration::from_secs(u64::from(max_acceptance_seconds.get())))
        }
        Policy::MaxAttempts { .. } | Policy::OneShot => None,
    }
}

/// Whether an attempt may start at `now`. The error says why the intent is exhausted.
///
/// This also checks the number of attempts, so that an intent that should already have ended, for example in a store that
/// was edited by hand, is ended rather than sent again.
pub fn may_start(
    contract: &Contract,
    begins_at: Timestamp,
    attempts_so_far: u32,
    now: Timestamp,
) -> Result<(), ExhaustedReason> {
    attempts_left(contract, attempts_so_far)?;
    match deadline(contract, begins_at) {
        Some(end) if now >= end => Err(ExhaustedReason::DeadlineExceeded),
        _ => Ok(()),
    }
}

/// Whether the number of attempts allows another one. The part of [`may_start`] that does not depend on the time, for a
/// store whose transaction alone knows the time.
pub fn attempts_left(contract: &Contract, attempts_so_far: u32) -> Result<(), ExhaustedReason> {
    match contract.policy {
        Policy::MaxAttempts { max_attempts } if attempts_so_far >= max_attempts.get() => {
            Err(ExhaustedReason::MaxAttempts)
        }
        Policy::OneShot if attempts_so_far >= 1 => Err(ExhaustedReason::OneShot),
        Policy::Deadline { .. } | Policy::MaxAttempts { .. } | Policy::OneShot => Ok(()),
    }
}

/// Decides about an intent whose attempt number `attempt` finished with `outcome` at `finished_at`.
pub fn decide(
    contract: &Contract,
    begins_at: Timestamp,
    attempt: u32,
    outcome: &Outcome,
    finished_at: Timestamp,
) -> Decision {
    let end = deadline(contract, begins_at);
    match outcome {
        Outcome::Accepted { .. } if end.is_some_and(|end| finished_at >= end) => {
            Decision::Exhaust(ExhaustedReason::DeadlineExceeded)
        }
        Outcome::Accepted { .. } => Decision::Accept,
        Outcome::Rejected { reason, .. } if contract.terminal_outcomes.contains(reason) => {
            Decision::Reject { reason: reason.clone() }
        }
        Outcome::Rejected { .. } | Outcome::Error { .. } => {
            let due = retry_due(finished_at);
            match may_start(contract, begins_at, attempt, due) {
                Ok(()) => Decision::RetryAt(due),
                Err(reason) => Decision::Exhaust(reason),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::contract::fixtures::{deadline as deadline_of, max_attempts, one_shot};
    use super::*;

    const CREATED: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn after(millis: u64) -> Timestamp {
        CREATED + Duration::from_millis(millis)
    }

    fn accepted() -> Outcome {
        Outcome::Accepted { gateway_message_id: None }
    }

    fn rejected(reason: &str) -> Outcome {
        Outcome::Rejected { reason: reason.to_owned(), gateway_message_id: None }
    }

    fn reject(reason: &str) -> Decision {
        Decision::Reject { reason: reason.to_owned() }
    }

    #[test]
    fn every_rule_decides_as_specified() {
        use Decision::{Accept, Exhaust, RetryAt};
        use ExhaustedReason::{DeadlineExceeded, MaxAttempts, OneShot};
        let just_before = Timestamp::from_micros(after(30_000).micros() - 1);
        let cases = [
            ("accepted on the first attempt", one_shot(), 1, accepted(), after(10), Accept),
            ("accepted on the last attempt", max_attempts(3), 3, accepted(), after(10), Accept),
            ("accepted strictly before the deadline", deadline_of(30), 4, accepted(), just_before, Accept),
            ("accepted at the deadline", deadline_of(30), 4, accepted(), after(30_000), Exhaust(DeadlineExceeded)),
            ("accepted after the deadline", deadline_of(30), 1, accepted(), after(30_001), Exhaust(DeadlineExceeded)),
            ("terminal", one_shot(), 1, rejected("invalid_recipient"), after(10), reject("invalid_recipient")),
            (
                "terminal, even after the deadline",
                deadline_of(30),
                1,
                rejected("invalid_recipient"),
                after(40_000),
                reject("invalid_recipient"),
            ),
            (
                "terminal on the last attempt",
                max_attempts(2),
                2,
                rejected("invalid_recipient"),
                after(10),
                reject("invalid_recipient"),
            ),
            (
                "known but not terminal",
                max_attempts(2),
                1,
                rejected("duplicate_reference"),
                after(10),
                RetryAt(after(5_010)),
            ),
            ("unknown reason", max_attempts(2), 1, rejected("moon_phase"), after(10), RetryAt(after(5_010))),
            (
                "reasons are compared exactly",
                max_attempts(1),
                1,
                rejected("Invalid_Recipient"),
                after(10),
                Exhaust(MaxAttempts),
            ),
            ("error", max_attempts(2), 1, Outcome::error("x"), after(10), RetryAt(after(5_010))),
            ("limit reached", max_attempts(2), 2, Outcome::error("x"), after(10), Exhaust(MaxAttempts)),
            ("one shot", one_shot(), 1, Outcome::error("x"), after(10), Exhaust(OneShot)),
            ("one shot, not terminal", one_shot(), 1, rejected("provider_failure"), after(10), Exhaust(OneShot)),
            ("one shot, interrupted", one_shot(), 1, Outcome::interrupted(), after(10), Exhaust(OneShot)),
            (
                "retry due before the deadline",
                deadline_of(30),
                9,
                Outcome::error("x"),
                after(24_999),
                RetryAt(after(29_999)),
            ),
            (
                "retry due at the deadline",
                deadline_of(30),
                9,
                Outcome::error("x"),
                after(25_000),
                Exhaust(DeadlineExceeded),
            ),
        ];
        for (name, contract, attempt, outcome, finished_at, expected) in cases {
            assert_eq!(decide(&contract, CREATED, attempt, &outcome, finished_at), expected, "{name}");
        }
    }

    #[test]
    fn no_attempt_starts_at_or_after_the_deadline() {
        let contract = deadline_of(1);
        assert_eq!(may_start(&contract, CREATED, 0, after(999)), Ok(()));
        assert_eq!(may_start(&contract, CREATED, 0, after(1_000)), Err(ExhaustedReason::DeadlineExceeded));
        assert_eq!(may_start(&one_shot(), CREATED, 1, after(0)), Err(ExhaustedReason::OneShot));
        assert_eq!(may_start(&max_attempts(2), CREATED, 1, after(0)), Ok(()));
        assert_eq!(may_start(&max_attempts(2), CREATED, 2, after(0)), Err(ExhaustedReason::MaxAttempts));
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            1 => Just(accepted()),
            1 => Just(rejected("invalid_recipient")),
            4 => Just(rejected("provider_failure")),
            4 => Just(Outcome::error("timed out")),
        ]
    }

    fn any_contract() -> impl Strategy<Value = Contract> {
        prop_oneof![(1_u32..120).prop_map(deadline_of), (1_u32..8).prop_map(max_attempts), Just(one_shot())]
    }

    proptest! {
        /// Runs an intent through a random history as the service would, and compares every decision with the specification.
        #[test]
        fn histories_agree_with_the_model(
            contract in any_contract(),
            steps in prop::collection::vec((any_outcome(), 0_u64..20_000, 0_u64..3_000), 1..40),
        ) {
            let end = deadline(&contract, CREATED);
            let (mut count, mut due, mut ended) = (0_u32, CREATED, None);
            for (outcome, duration, lateness) in steps {
                let start = due + Duration::from_millis(lateness);
                if let Err(reason) = may_start(&contract, CREATED, count, start) {
                    prop_assert_eq!(reason, ExhaustedReason::DeadlineExceeded);
                    prop_assert!(start >= end.unwrap());
                    ended = Some(Decision::Exhaust(reason));
                    break;
                }
                count += 1;
                let finished = start + Duration::from_millis(duration);
                let decision = decide(&contract, CREATED, count, &outcome, finished);
                let late = end.is_some_and(|end| finished >= end);
                match (&outcome, &decision) {
                    (Outcome::Accepted { .. }, Decision::Accept) => prop_assert!(!late),
                    (Outcome::Accepted { .. }, _) => prop_assert!(late),
                    (Outcome::Rejected { reason, .. }, Decision::Reject { reason: shown }) => {
                        prop_assert_eq!(reason, shown);
                        prop_assert_eq!(reason.as_str(), "invalid_recipient");
                    }
                    (_, Decision::RetryAt(next)) => {
                        prop_assert_eq!(next.since(finished), Duration::from_secs(5));
                        prop_assert!(end.is_none_or(|end| *next < end));
                        prop_assert!(outcome.reason() != Some("invalid_recipient"));
                    }
                    (_, Decision::Exhaust(_)) => {}
                    (fact, other) => prop_assert!(false, "{fact:?} became {other:?}"),
                }
                match decision {
                    Decision::RetryAt(next) => due = next,
                    terminal => { ended = Some(terminal); break; }
                }
            }
            match (&contract.policy, ended) {
                (Policy::OneShot, ended) => { prop_assert_eq!(count, 1); prop_assert!(ended.is_some()); }
                (Policy::MaxAttempts { max_attempts }, Some(Decision::Exhaust(reason))) => {
                    prop_assert_eq!(reason, ExhaustedReason::MaxAttempts);
                    prop_assert_eq!(count, max_attempts.get());
                }
                (Policy::MaxAttempts { max_attempts }, _) => prop_assert!(count <= max_attempts.get()),
                (Policy::Deadline { .. }, Some(Decision::Exhaust(reason))) => {
                    prop_assert_eq!(reason, ExhaustedReason::DeadlineExceeded);
                }
                (Policy::Deadline { .. }, _) => {}
            }
        }
    }
}
