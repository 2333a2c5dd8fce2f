//! The timeline of an intent, to scale: where attempts and waits stand in a drawing. Pure.

use super::words::span;
use crate::domain::time::Timestamp;
use crate::store::IntentDetail;

/// The drawing is 1000 wide, with a margin on both sides.
const LEFT: f64 = 20.0;
const WIDTH: f64 = 960.0;
/// An attempt of a millisecond among waits of minutes still has to be seen.
const THINNEST: f64 = 4.0;

pub struct Timeline {
    pub bars: Vec<Bar>,
    pub waits: Vec<Wait>,
    /// Where the next attempt is due.
    pub due: Option<f64>,
    pub span: String,
    /// The same in words, for who does not see it.
    pub label: String,
}

pub struct Bar {
    pub x: f64,
    pub width: f64,
    pub class: &'static str,
    pub title: String,
}

pub struct Wait {
    pub from: f64,
    pub to: f64,
}

pub fn of(detail: &IntentDetail) -> Timeline {
    let history = &detail.history;
    let start = history.intent.created_at;
    let last_end = history.attempts.last().map(|attempt| attempt.finished_at);
    let mut end = history.intent.state.completed_at().or(last_end).unwrap_or(start);
    if !history.intent.state.is_terminal() {
        end = end.max(detail.now).max(detail.next_attempt_at.unwrap_or(start));
    }
    let whole = end.since(start).as_secs_f64().max(1e-6);
    let place = |moment: Timestamp| LEFT + WIDTH * (moment.since(start).as_secs_f64() / whole).min(1.0);
    let bar = |from: Timestamp, to: Timestamp, class, title| {
        let width = (place(to) - place(from)).max(THINNEST);
        Bar { x: round(place(from).min(LEFT + WIDTH - width)), width: round(width), class, title }
    };
    let mut bars: Vec<_> = history
        .attempts
        .iter()
        .map(|attempt| {
            let kind = attempt.outcome.kind();
            let took = span(attempt.finished_at.since(attempt.started_at));
            let title = format!("attempt {}: {kind}, took {took}", attempt.attempt_number);
            bar(attempt.started_at, attempt.finished_at, kind, title)
        })
        .collect();
    let mut busy: Vec<_> = history.attempts.iter().map(|attempt| (attempt.started_at, attempt.finished_at)).collect();
    if let Some(since) = detail.open_since {
        let title = format!("attempt {}: under way", history.intent.attempt_count);
        bars.push(bar(since, detail.now.max(since), "open", title));
        busy.push((since, end));
    }
    let mut waits = Vec::new();
    let mut free = start;
    for (from, to) in busy.into_iter().chain([(end, end)]) {
        if from > free {
            waits.push(Wait { from: round(place(free)), to: round(place(from)) });
        }
        free = to;
    }
    let titles: Vec<_> = bars.iter().map(|bar| bar.title.as_str()).collect();
    let told = if titles.is_empty() { "no attempt yet".to_owned() } else { titles.join("; ") };
    Timeline {
        due: detail.next_attempt_at.map(|due| round(place(due))),
        span: span(end.since(start)),
        label: format!("{} from submission on: {told}", span(end.since(start))),
        bars,
        waits,
    }
}

fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
