//! Durations, contracts, limits and statuses as text for pages. All functions are pure.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::domain::contract::{Contract, Policy};
use crate::domain::intent::{ExhaustedReason, IntentId, State, TargetName};
use crate::domain::limits::TargetLimits;
use crate::domain::time::Timestamp;
use crate::store::{IntentDetail, TargetHealth, WebhookHistory};
use crate::web::WebDeps;

/// A duration in its two largest units, such as `1 h 5 min`.
pub(super) fn duration_text(duration: Duration) -> String {
    let (micros, seconds) = (duration.as_micros(), duration.as_secs());
    match seconds {
        _ if micros < 1000 => format!("{micros} µs"),
        0 => format!("{} ms", duration.as_millis()),
        1..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => two_units(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => two_units(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two_units(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

fn two_units(large: u64, unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 { format!("{large} {unit}") } else { format!("{large} {unit} {small} {small_unit}") }
}

/// A moment in UTC, without the fraction of its second.
pub(super) fn utc(at: Timestamp) -> String {
    let text = at.to_string();
    format!("{} UTC", text.get(..19).unwrap_or(&text).replace('T', " "))
}

/// A number with commas between thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The policy of a contract in a few words.
pub(super) fn contract(contract: &Contract) -> String {
    match contract.policy {
        Policy::Deadline { max_acceptance_seconds } => {
            let limit = duration_text(Duration::from_secs(max_acceptance_seconds.get().into()));
            format!("must be accepted within {limit}")
        }
        Policy::MaxAttempts { max_attempts } if max_attempts.get() == 1 => "one attempt".to_owned(),
        Policy::MaxAttempts { max_attempts } => format!("up to {max_attempts} attempts"),
        Policy::OneShot => "one attempt, never repeated".to_owned(),
    }
}

/// The limits that a target has of its own; empty if it has none.
pub(super) fn limits(limits: TargetLimits) -> String {
    let in_flight = limits.max_in_flight.map(|max| format!("{max} attempts at the same time"));
    let rate = limits.rate.map(|rate| format!("{} attempts per second", rate.as_per_second()));
    let timeout = limits.attempt_timeout.map(|timeout| format!("{} s per attempt", timeout.as_secs()));
    let all: Vec<_> = [in_flight, rate, timeout].into_iter().flatten().collect();
    if all.is_empty() { String::new() } else { format!("at most {}", all.join(", ")) }
}

/// The number of recent attempts of a target by outcome, such as `3 accepted, 1 rejected`.
pub(super) fn health(health: &TargetHealth) -> String {
    let errors = if health.errors == 1 { "error" } else { "errors" };
    let counts = [(health.accepted, "accepted"), (health.rejected, "rejected"), (health.errors, errors)];
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// What is encoded in a segment of a path: everything but the characters that RFC 3986 calls unreserved.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The path of the page of an intent.
pub(super) fn intent_href(id: &IntentId) -> String {
    href_of(id.as_str())
}

/// The path of the page of a target.
pub(super) fn target_href(target: &TargetName) -> String {
    format!("/ui/targets/{}", utf8_percent_encode(target.as_str(), SEGMENT))
}

/// The path of the page of the intent with this id.
pub(super) fn href_of(id: &str) -> String {
    format!("/ui/intents/{}", utf8_percent_encode(id, SEGMENT))
}

/// A cause of failures in words: exhausted reasons are put into words, and reasons of gateways and errors stay as they are.
pub(super) fn cause_words(cause: &str) -> &str {
    match ExhaustedReason::parse(cause) {
        Some(ExhaustedReason::DeadlineExceeded) => "the deadline passed",
        Some(ExhaustedReason::MaxAttempts) => "no attempts left",
        Some(ExhaustedReason::OneShot) => "its only attempt failed",
        Some(ExhaustedReason::Cancelled) => "cancelled",
        None if cause.is_empty() => "ended while it waited",
        None => cause,
    }
}

/// The targets of the registry, for suggestions.
pub(super) fn known_targets(deps: &WebDeps) -> Vec<String> {
    // A registry may have ten thousand targets.
    const MAX_SUGGESTIONS: usize = 500;
    let mut targets: Vec<_> = deps.registry.get().contracts().map(|c| c.contract.target.to_string()).collect();
    targets.sort();
    targets.truncate(MAX_SUGGESTIONS);
    targets
}

/// The status of an intent in one sentence.
pub(super) fn status_sentence(detail: &IntentDetail) -> String {
    let intent = &detail.history.intent;
    let count = intent.attempt_count;
    let attempts = if count == 1 { "1 attempt".to_owned() } else { format!("{count} attempts") };
    match &intent.state {
        State::Accepted { .. } => format!("Accepted by the gateway on attempt {count}."),
        State::Rejected { reason, .. } => format!("Rejected by the gateway on attempt {count}: {reason}"),
        State::Exhausted { reason, .. } => match reason {
            ExhaustedReason::DeadlineExceeded if count == 0 => {
                "Exhausted: the deadline passed before the first attempt.".to_owned()
            }
            ExhaustedReason::DeadlineExceeded => format!("Exhausted after {attempts}: the deadline passed."),
            ExhaustedReason::MaxAttempts => format!("Exhausted after {attempts}: the contract allows no more."),
            ExhaustedReason::OneShot => "Exhausted after the one attempt that the contract allows.".to_owned(),
            ExhaustedReason::Cancelled if count == 0 => "Cancelled before the first attempt.".to_owned(),
            ExhaustedReason::Cancelled => format!("Cancelled after {attempts}."),
        },
        State::Pending => match (detail.open_since, detail.next_attempt_at) {
            (Some(since), _) => {
                format!("Attempt {count} has been in progress for {}.", duration_text(detail.now.since(since)))
            }
            (None, _) if detail.paused_at.is_some() => {
                let paused_for =
                    detail.paused_at.map(|since| duration_text(detail.now.since(since))).unwrap_or_default();
                format!("Waiting for attempt {}: its target has been paused for {paused_for}.", count + 1)
            }
            (None, Some(due)) if due > detail.now => {
                format!("Waiting for attempt {}, due in {}.", count + 1, duration_text(due.since(detail.now)))
            }
            (None, _) => format!(
                "Waiting for attempt {}: it is due, and starts as soon as the limits of attempts in progress allow.",
                count + 1
            ),
        },
    }
}

/// What happened in the attempt that ended an exhausted intent. `None` if no attempt ended it.
pub(super) fn why_exhausted(detail: &IntentDetail) -> Option<String> {
    let history = &detail.history;
    history.intent.state.exhausted_reason()?;
    let last = history.attempts.last().filter(|last| Some(last.finished_at) == history.intent.state.completed_at())?;
    let reason = last.outcome.reason().or(last.outcome.error_text()).unwrap_or("no reason");
    Some(format!("Attempt {} ended with {}: {reason}.", last.attempt_number, last.outcome.kind()))
}

/// Why an intent is still pending after an attempt. `None` if it has ended, or no attempt has finished.
pub(super) fn why_pending(detail: &IntentDetail) -> Option<String> {
    let history = &detail.history;
    let last = history.attempts.last().filter(|_| !history.intent.state.is_terminal())?;
    let reason = last.outcome.reason().or(last.outcome.error_text()).unwrap_or("no reason");
    let rule = match detail.contract.policy {
        Policy::Deadline { max_acceptance_seconds } => {
            let end = history.intent.created_at + Duration::from_secs(max_acceptance_seconds.get().into());
            format!("The contract allows attempts for another {}", duration_text(end.since(detail.now)))
        }
        Policy::MaxAttempts { max_attempts } => {
            let left = max_attempts.get().saturating_sub(history.intent.attempt_count);
            let attempts = if left == 1 { "attempt" } else { "attempts" };
            format!("The contract allows {left} more {attempts}")
        }
        Policy::OneShot => "The contract allows no further attempt".to_owned(),
    };
    Some(format!("Attempt {} ended with {}: {reason}. {rule}.", last.attempt_number, last.outcome.kind()))
}

/// The status of a webhook event in one sentence.
pub(super) fn webhook_sentence(detail: &IntentDetail, webhook: &WebhookHistory) -> String {
    use crate::domain::webhook::EventStatus;
    let tries = webhook.tries.len();
    match (webhook.status, webhook.next_try_at) {
        (EventStatus::Delivered, _) => format!("Delivered on try {tries}."),
        (EventStatus::Failed, _) => format!("Failed after {tries} tries."),
        (EventStatus::Pending, None) => format!("Pending: try {} is in progress.", tries + 1),
        (EventStatus::Pending, Some(due)) if due > detail.now => {
            format!("Pending: try {} is due in {}.", tries + 1, duration_text(due.since(detail.now)))
        }
        (EventStatus::Pending, Some(_)) => format!("Pending: try {} is due now.", tries + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_show_their_two_largest_units() {
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
            assert_eq!(duration_text(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn numbers_have_commas_between_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (10_000, "10,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn the_path_of_an_intent_encodes_every_special_character() {
        let id = IntentId::parse("order-1.x_y~z/b?c=<é>").unwrap();
        assert_eq!(intent_href(&id), "/ui/intents/order-1.x_y~z%2Fb%3Fc%3D%3C%C3%A9%3E");
    }
}
