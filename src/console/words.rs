//! Spans, contracts and outcomes in words. Pure.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::domain::contract::{Contract, Policy};
use crate::domain::intent::{ExhaustedReason, IntentId, State};
use crate::domain::limits::TargetLimits;
use crate::store::{IntentDetail, TargetHealth, WebhookHistory};

/// A span as a person would say it: the two largest units.
pub fn span(span: Duration) -> String {
    let (micros, seconds) = (span.as_micros(), span.as_secs());
    match seconds {
        _ if micros < 1000 => format!("{micros} µs"),
        0 => format!("{} ms", span.as_millis()),
        1..10 => format!("{:.1} s", span.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

fn two(large: u64, unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 { format!("{large} {unit}") } else { format!("{large} {unit} {small} {small_unit}") }
}

pub fn contract(contract: &Contract) -> String {
    match contract.policy {
        Policy::Deadline { max_acceptance_seconds } => {
            let limit = span(Duration::from_secs(max_acceptance_seconds.get().into()));
            format!("accepted within {limit}, or not at all")
        }
        Policy::MaxAttempts { max_attempts } if max_attempts.get() == 1 => "one attempt".to_owned(),
        Policy::MaxAttempts { max_attempts } => format!("up to {max_attempts} attempts"),
        Policy::OneShot => "one attempt and no more".to_owned(),
    }
}

/// The bounds that a target has of its own; nothing if it has none.
pub fn limits(limits: TargetLimits) -> String {
    let start_on_insert = limits.max_in_flight.map(|most| format!("{most} at once"));
    let rate = limits.rate.map(|rate| format!("{} a second", rate.as_per_second()));
    let timeout = limits.attempt_timeout.map(|timeout| format!("{} s each", timeout.as_secs()));
    let all: Vec<_> = [start_on_insert, rate, timeout].into_iter().flatten().collect();
    if all.is_empty() { String::new() } else { format!("at most {}", all.join(", ")) }
}

/// What became of a target's recent attempts.
pub fn health(health: &TargetHealth) -> String {
    let counts = [(health.accepted, "accepted"), (health.rejected, "rejected"), (health.errors, "errors")];
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// Where the page of an intent is.
pub fn intent_href(id: &IntentId) -> String {
    format!("/ui/intents/{}", utf8_percent_encode(id.as_str(), NON_ALPHANUMERIC))
}

/// What became of an intent, in one sentence.
pub fn sentence(detail: &IntentDetail) -> String {
    let intent = &detail.history.intent;
    let count = intent.attempt_count;
    let attempts = if count == 1 { "1 attempt".to_owned() } else { format!("{count} attempts") };
    match &intent.state {
        State::Accepted { .. } => format!("Accepted by the gateway on attempt {count}."),
        State::Rejected { reason, .. } => format!("Rejected by the gateway on attempt {count}: {reason}"),
        State::Exhausted { reason, .. } => match reason {
            ExhaustedReason::DeadlineExceeded if count == 0 => {
                "Gave up: its deadline passed before an attempt.".to_owned()
            }
            ExhaustedReason::DeadlineExceeded => format!("Gave up after {attempts}: its deadline passed."),
            ExhaustedReason::MaxAttempts => format!("Gave up after {attempts}: the contract allows no more."),
            ExhaustedReason::OneShot => "Gave up after the one attempt that the contract allows.".to_owned(),
        },
        State::Pending => match (detail.open_since, detail.next_attempt_at) {
            (Some(since), _) => {
                format!("Attempt {count} has been under way for {}.", span(detail.now.since(since)))
            }
            (None, _) if detail.paused_at.is_some() => {
                let since = detail.paused_at.map(|since| span(detail.now.since(since))).unwrap_or_default();
                format!("Waiting for attempt {}: its target has been paused for {since}.", count + 1)
            }
            (None, Some(due)) if due > detail.now => {
                format!("Waiting for attempt {}, due in {}.", count + 1, span(due.since(detail.now)))
            }
            (None, _) => format!("Waiting for attempt {}, which is due and waits for a free place.", count + 1),
        },
    }
}

/// Why it is not over, if it is not.
pub fn why(detail: &IntentDetail) -> Option<String> {
    let history = &detail.history;
    let last = history.attempts.last().filter(|_| !history.intent.state.is_terminal())?;
    let said = last.outcome.reason().or(last.outcome.error_text()).unwrap_or("no reason");
    let rule = match detail.contract.policy {
        Policy::Deadline { max_acceptance_seconds } => {
            let end = history.intent.created_at + Duration::from_secs(max_acceptance_seconds.get().into());
            format!("the contract allows further attempts for another {}", span(end.since(detail.now)))
        }
        Policy::MaxAttempts { max_attempts } => {
            let left = max_attempts.get().saturating_sub(history.intent.attempt_count);
            format!("the contract allows {left} more")
        }
        Policy::OneShot => "the contract allows no other".to_owned(),
    };
    Some(format!("Attempt {} ended with {}: {said}; {rule}.", last.attempt_number, last.outcome.kind()))
}

/// What became of an event, in one sentence.
pub fn webhook(detail: &IntentDetail, webhook: &WebhookHistory) -> String {
    use crate::domain::webhook::EventStatus;
    let tries = webhook.tries.len();
    match (webhook.status, webhook.next_try_at) {
        (EventStatus::Delivered, _) => format!("Delivered on try {tries}."),
        (EventStatus::Failed, _) => format!("Given up after {tries} tries."),
        (EventStatus::Pending, None) => format!("Try {} is under way.", tries + 1),
        (EventStatus::Pending, Some(due)) if due > detail.now => {
            format!("Owed: try {} is due in {}.", tries + 1, span(due.since(detail.now)))
        }
        (EventStatus::Pending, Some(_)) => format!("Owed: try {} is due now.", tries + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_as_people_say_them() {
        for (micros, text) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_500, "1 ms"),
            (999_999, "999 ms"),
            (2_340_000, "2.3 s"),
            (45_900_000, "45 s"),
            (60_000_000, "1 min"),
            (3_599_000_000, "59 min 59 s"),
            (3_600_000_000, "1 h"),
            (90_000_000_000, "1 d 1 h"),
        ] {
            assert_eq!(span(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn hrefs_hold_any_id() {
        let id = IntentId::parse("a/b?c=<é>").unwrap();
        assert_eq!(intent_href(&id), "/ui/intents/a%2Fb%3Fc%3D%3C%C3%A9%3E");
    }
}
