//! The timeline of an intent, which shows attempts and the waiting times between them, to scale. A pure function
//! computes the coordinates of the SVG.

use super::wording::duration_text;
use crate::domain::time::Timestamp;
use crate::store::IntentDetail;

/// The drawing is 1000 wide, with a margin on both sides.
const LEFT: f64 = 20.0;
const WIDTH: f64 = 960.0;
/// The minimum width of an attempt, so that one of a millisecond is visible among waits of minutes.
const MIN_WIDTH: f64 = 4.0;

/// How far apart the numbers of attempts are at least, in percent of the width.
const MARK_DISTANCE: f64 = 4.0;

pub(super) struct Timeline {
    pub bars: Vec<Bar>,
    pub waits: Vec<Wait>,
    /// The numbers of attempts, as far as there is room for them.
    pub marks: Vec<Mark>,
    /// The x coordinate of the next attempt.
    pub due: Option<f64>,
    /// The duration that the timeline covers.
    pub duration: String,
    /// The text alternative for screen readers.
    pub label: String,
}

/// One attempt.
pub(super) struct Bar {
    pub x: f64,
    pub width: f64,
    pub class: &'static str,
    pub title: String,
}

/// The number of an attempt. It is drawn on its own, because the drawing of the bars is stretched.
pub(super) struct Mark {
    /// The middle of its bar, in percent of the width.
    pub x: f64,
    pub number: u32,
}

/// A time between two attempts.
pub(super) struct Wait {
    pub from: f64,
    pub to: f64,
}

/// The timeline of an intent, from its submission to its completion. While it is pending, the timeline ends at the next
/// attempt or now, whichever is later.
pub(super) fn of(detail: &IntentDetail) -> Timeline {
    let history = &detail.history;
    let start = history.intent.created_at;
    let last_end = history.attempts.last().map(|attempt| attempt.finished_at);
    let mut end = history.intent.state.completed_at().or(last_end).unwrap_or(start);
    if !history.intent.state.is_terminal() {
        end = end.max(detail.now).max(detail.next_attempt_at.unwrap_or(start));
    }
    let whole = end.since(start).as_secs_f64().max(1e-6);
    let x_of = |time: Timestamp| LEFT + WIDTH * (time.since(start).as_secs_f64() / whole).min(1.0);
    let bar = |from: Timestamp, to: Timestamp, class, title| {
        let width = (x_of(to) - x_of(from)).max(MIN_WIDTH);
        Bar { x: round(x_of(from).min(LEFT + WIDTH - width)), width: round(width), class, title }
    };
    let mut bars: Vec<_> = history
        .attempts
        .iter()
        .map(|attempt| {
            let kind = attempt.outcome.kind();
            let duration = duration_text(attempt.finished_at.since(attempt.started_at));
            let title = format!("attempt {}: {kind}, duration {duration}", attempt.attempt_number);
            bar(attempt.started_at, attempt.finished_at, kind, title)
        })
        .collect();
    let mut busy: Vec<_> = history.attempts.iter().map(|attempt| (attempt.started_at, attempt.finished_at)).collect();
    if let Some(since) = detail.open_since {
        let title = format!("attempt {}: in progress", history.intent.attempt_count);
        bars.push(bar(since, detail.now.max(since), "open", title));
        busy.push((since, end));
    }
    let mut waits = Vec::new();
    let mut free = start;
    for (from, to) in busy.into_iter().chain([(end, end)]) {
        if from > free {
            waits.push(Wait { from: round(x_of(free)), to: round(x_of(from)) });
        }
        free = to;
    }
    let titles: Vec<_> = bars.iter().map(|bar| bar.title.as_str()).collect();
    let description = if titles.is_empty() { "no attempt yet".to_owned() } else { titles.join("; ") };
    let duration = duration_text(end.since(start));
    Timeline {
        due: detail.next_attempt_at.map(|due| round(x_of(due))),
        label: format!("{duration} since submission: {description}"),
        duration,
        marks: marks(&bars, history.attempts.first().map_or(1, |first| first.attempt_number)),
        bars,
        waits,
    }
}

/// The numbers of the attempts that these bars show, which begin with `first`. One that would be too near to the one before it
/// is left out.
fn marks(bars: &[Bar], first: u32) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::new();
    for (number, bar) in (first..).zip(bars) {
        let x = round((bar.x + bar.width / 2.0) / 10.0);
        if marks.last().is_none_or(|last| x - last.x >= MARK_DISTANCE) {
            marks.push(Mark { x, number });
        }
    }
    marks
}

fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::domain::contract::fixtures::max_attempts;
    use crate::domain::intent::{Intent, IntentId, IntentSeq, State};
    use crate::domain::outcome::Outcome;
    use crate::store::{Attempt, History};

    const CREATED: Timestamp = Timestamp::from_micros(1_000_000);

    fn at(seconds: u64) -> Timestamp {
        CREATED + Duration::from_secs(seconds)
    }

    /// An intent with attempts that lasted from and to these seconds.
    fn detail(attempts: &[(u64, u64)], state: State, next_attempt_at: Option<Timestamp>) -> IntentDetail {
        let contract = max_attempts(9);
        let attempts = (1..).zip(attempts).map(|(attempt_number, (from, to))| Attempt {
            attempt_number,
            lease_epoch: 1,
            started_at: at(*from),
            finished_at: at(*to),
            outcome: Outcome::error("gateway answered HTTP 500"),
        });
        let attempts: Vec<_> = attempts.collect();
        let intent = Intent {
            seq: IntentSeq(1),
            id: IntentId::parse("a").unwrap(),
            target: contract.target.clone(),
            created_at: CREATED,
            not_before: None,
            redrive_of: None,
            state,
            attempt_count: u32::try_from(attempts.len()).unwrap(),
            attempt_open: false,
        };
        let history = History { intent, attempts, webhook: None, redriven_as: None };
        IntentDetail {
            now: at(20),
            history,
            contract,
            next_attempt_at,
            open_since: None,
            paused_at: None,
            trace: None,
            holders: BTreeMap::new(),
        }
    }

    #[test]
    fn attempts_and_waits_are_drawn_to_scale() {
        let drawn = of(&detail(&[(0, 10), (15, 20)], State::Accepted { at: at(20) }, None));
        let bars: Vec<_> = drawn.bars.iter().map(|bar| (bar.x, bar.width)).collect();
        assert_eq!(bars, [(LEFT, WIDTH / 2.0), (LEFT + WIDTH * 0.75, WIDTH / 4.0)]);
        let waits: Vec<_> = drawn.waits.iter().map(|wait| (wait.from, wait.to)).collect();
        assert_eq!(waits, [(LEFT + WIDTH / 2.0, LEFT + WIDTH * 0.75)]);
        let marks: Vec<_> = drawn.marks.iter().map(|mark| (mark.x, mark.number)).collect();
        assert_eq!(marks, [(26.0, 1), (86.0, 2)]);
        let crowded = of(&detail(&[(0, 1), (2, 3), (99, 100)], State::Accepted { at: at(100) }, None));
        assert_eq!(crowded.marks.iter().map(|mark| mark.number).collect::<Vec<_>>(), [1, 3]);
        assert!(drawn.label.contains("attempt 2: error, duration 5"), "{}", drawn.label);
        // While it waits, the drawing ends where the next attempt is due.
        let drawn = of(&detail(&[(0, 10)], State::Pending, Some(at(40))));
        assert_eq!((drawn.bars[0].width, drawn.due), (WIDTH / 4.0, Some(LEFT + WIDTH)));
        assert_eq!((drawn.waits[0].from, drawn.waits[0].to), (LEFT + WIDTH / 4.0, LEFT + WIDTH));
        // What is too short to be seen is drawn a little wider, and stays within the drawing.
        let drawn = of(&detail(&[(0, 0), (1000, 1000)], State::Accepted { at: at(1000) }, None));
        assert_eq!((drawn.bars[0].width, drawn.bars[1].x), (MIN_WIDTH, LEFT + WIDTH - MIN_WIDTH));
    }
}
