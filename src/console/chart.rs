//! The bar chart of the overview, which shows how many intents completed in each minute of the last hour. A pure
//! function computes the coordinates of the SVG.

use crate::domain::intent::Status;
use crate::domain::time::Timestamp;
use crate::store::{CHART_MINUTES, EndedInMinute};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 120.0;
const LEFT: f64 = 20.0;
const TOP: f64 = 20.0;
const MINUTE_MICROS: i64 = 60_000_000;
/// The order in which the bars of a minute are stacked, from the bottom up.
const ORDER: [Status; 3] = [Status::Accepted, Status::Exhausted, Status::Rejected];

pub(super) struct Chart {
    pub bars: Vec<Bar>,
    /// The number of intents in the minute with the most.
    pub max: u64,
    /// The text alternative for screen readers.
    pub label: String,
}

/// One bar: the intents of one status in one minute.
pub(super) struct Bar {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
    pub class: &'static str,
    pub title: String,
}

/// The chart at the time `now`, or `None` if no intent completed in the last hour.
pub(super) fn of(now: Timestamp, ended: &[EndedInMinute]) -> Option<Chart> {
    let this_minute = now.micros().div_euclid(MINUTE_MICROS);
    let first = this_minute - CHART_MINUTES + 1;
    let in_minute = |minute: i64| ended.iter().filter(move |ended| ended.minute == minute);
    let max = (first..=this_minute).map(|minute| in_minute(minute).map(|ended| ended.intents).sum::<u64>()).max()?;
    if max == 0 {
        return None;
    }
    let column = WIDTH / CHART_MINUTES as f64;
    let mut bars = Vec::new();
    for (number, minute) in (first..=this_minute).enumerate() {
        let mut top = TOP + HEIGHT;
        for status in ORDER {
            let intents: u64 =
                in_minute(minute).filter(|ended| ended.status == status).map(|ended| ended.intents).sum();
            if intents == 0 {
                continue;
            }
            let height = (HEIGHT * intents as f64 / max as f64).max(1.0);
            top -= height;
            let start = Timestamp::from_micros(minute * MINUTE_MICROS);
            bars.push(Bar {
                x: round(LEFT + column * number as f64 + 1.0),
                y: round(top),
                width: round(column - 2.0),
                height: round(height),
                class: status.as_str(),
                title: format!("{intents} {} in the minute from {start}", status.as_str()),
            });
        }
    }
    let total = |status| ended.iter().filter(|ended| ended.status == status).map(|ended| ended.intents).sum::<u64>();
    let [accepted, exhausted, rejected] = ORDER.map(total);
    let label = format!("in the last hour {accepted} accepted, {rejected} rejected, {exhausted} exhausted");
    Some(Chart { bars, max, label })
}

fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_a_minute_are_stacked_and_the_highest_stack_fills_the_chart() {
        let now = Timestamp::from_micros(100 * MINUTE_MICROS + 5);
        let ended = |minute, status, intents| EndedInMinute { minute, status, intents };
        assert!(of(now, &[]).is_none());
        let chart = of(
            now,
            &[
                ended(100, Status::Accepted, 6),
                ended(100, Status::Rejected, 2),
                ended(41, Status::Exhausted, 4),
                ended(40, Status::Accepted, 99),
            ],
        )
        .unwrap();
        assert_eq!((chart.max, chart.bars.len()), (8, 3), "minutes more than an hour ago are left out");
        let [oldest, accepted, rejected] = &chart.bars[..] else { panic!("three") };
        assert_eq!((oldest.x, oldest.height), (LEFT + 1.0, HEIGHT / 2.0));
        assert_eq!(accepted.y + accepted.height, TOP + HEIGHT);
        assert_eq!((rejected.y, rejected.y + rejected.height), (TOP, accepted.y));
        assert!(accepted.x + accepted.width <= LEFT + WIDTH);
    }
}
