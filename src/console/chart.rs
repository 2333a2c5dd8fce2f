//! Charts of pages: counts by slot of time, as stacked bars and lines. Pure functions compute the coordinates of the SVG. Every
//! chart has its values as a table too.

use askama::Template;
use url::form_urlencoded;

use super::when::Exactly;
use crate::domain::time::Timestamp;
use crate::store::minute_of;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 120.0;

/// The period of the charts of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    Hour,
    Day,
}

impl Range {
    pub(super) const ALL: [Self; 2] = [Self::Hour, Self::Day];

    /// The period that the query string of a page names, or else an hour.
    pub(super) fn of_query(text: &str) -> Self {
        let day = form_urlencoded::parse(text.as_bytes()).any(|(name, value)| name == "range" && value == "day");
        if day { Self::Day } else { Self::Hour }
    }

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Hour => "last hour",
            Self::Day => "last day",
        }
    }

    /// The address of a page with this period.
    pub(super) fn href(self, path: &str) -> String {
        match self {
            Self::Hour => path.to_owned(),
            Self::Day => format!("{path}?range=day"),
        }
    }

    pub(super) const fn minutes(self) -> i64 {
        match self {
            Self::Hour => 60,
            Self::Day => 24 * 60,
        }
    }

    /// How many minutes a slot of the charts has.
    const fn slot_minutes(self) -> i64 {
        match self {
            Self::Hour => 1,
            Self::Day => 15,
        }
    }

    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Hour => "per minute",
            Self::Day => "per 15 minutes",
        }
    }

    pub(super) const fn since(self) -> &'static str {
        match self {
            Self::Hour => "an hour ago",
            Self::Day => "a day ago",
        }
    }

    /// The slots of the period at the time `now`, the oldest first: the first minute of each, and the minute after it.
    pub(super) fn slots(self, now: Timestamp) -> impl Iterator<Item = (i64, i64)> {
        let minutes = self.slot_minutes();
        let last = minute_of(now).div_euclid(minutes);
        (0..self.minutes() / minutes).rev().map(move |back| {
            let start = (last - back) * minutes;
            (start, start + minutes)
        })
    }
}

/// One kind of value of a chart.
pub(super) struct Series {
    /// The style of its bars or line.
    pub class: &'static str,
    pub label: &'static str,
    pub kind: SeriesKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SeriesKind {
    /// Bars that are stacked on those of the series before.
    Bars,
    Line,
}

/// The values of one slot of time.
pub(super) struct Slot {
    pub start: Timestamp,
    /// One for each series; `None` if the value is not known.
    pub values: Vec<Option<u64>>,
    /// Where the slot leads.
    pub href: Option<String>,
}

/// A chart, displayed as HTML.
#[derive(Template)]
#[template(path = "console/chart.html")]
pub(super) struct Chart {
    pub title: &'static str,
    pub unit: &'static str,
    /// The text at the left end of the time axis.
    pub since: &'static str,
    pub legend: Vec<(&'static str, &'static str)>,
    pub bars: Vec<Bar>,
    pub lines: Vec<Line>,
    pub columns: Vec<Column>,
    /// The largest sum of bars, or value of a line.
    pub max: u64,
    pub rows: Vec<Row>,
}

pub(super) struct Bar {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
    pub class: &'static str,
}

pub(super) struct Line {
    pub class: &'static str,
    pub points: String,
}

/// The area of a slot, which shows its values when the pointer is over it.
pub(super) struct Column {
    pub x: f64,
    pub width: f64,
    pub title: String,
    pub href: Option<String>,
}

/// A slot as a row of the table.
pub(super) struct Row {
    pub start: Exactly,
    pub href: Option<String>,
    pub values: Vec<String>,
}

/// The chart of these slots, or `None` if all values are zero or unknown.
pub(super) fn draw(
    title: &'static str,
    unit: &'static str,
    since: &'static str,
    series: &[Series],
    slots: &[Slot],
) -> Option<Chart> {
    let of_kind = |slot: &Slot, kind| -> Vec<u64> {
        let values = series.iter().zip(&slot.values).filter(|(series, _)| series.kind == kind);
        values.filter_map(|(_, value)| *value).collect()
    };
    let highest = |slot: &Slot| {
        let bars: u64 = of_kind(slot, SeriesKind::Bars).iter().sum();
        of_kind(slot, SeriesKind::Line).into_iter().max().unwrap_or(0).max(bars)
    };
    let max = slots.iter().map(highest).max().filter(|max| *max > 0)?;
    let width = WIDTH / slots.len() as f64;
    let height_of = |value: u64| HEIGHT * value as f64 / max as f64;
    let mut bars = Vec::new();
    let mut points = vec![Vec::new(); series.len()];
    for (number, slot) in slots.iter().enumerate() {
        let x = width * number as f64;
        let mut top = HEIGHT;
        for ((place, series), value) in series.iter().enumerate().zip(&slot.values) {
            let Some(value) = *value else { continue };
            match series.kind {
                // Across the slot, so that a single value is visible too.
                SeriesKind::Line => {
                    let y = round((HEIGHT - height_of(value)).max(1.0));
                    points[place].push(format!("{},{y} {},{y}", round(x), round(x + width)));
                }
                SeriesKind::Bars if value > 0 => {
                    let height = height_of(value).max(1.5);
                    top -= height;
                    let (x, bar_width) = (round(x + width * 0.1), round(width * 0.8));
                    bars.push(Bar { x, y: round(top), width: bar_width, height: round(height), class: series.class });
                }
                SeriesKind::Bars => {}
            }
        }
    }
    let values_of = |slot: &Slot| -> Vec<String> {
        slot.values.iter().map(|value| value.map_or("unknown".to_owned(), |value| value.to_string())).collect()
    };
    let columns = slots.iter().enumerate().map(|(number, slot)| {
        let texts = series.iter().zip(values_of(slot)).map(|(series, value)| format!("{value} {}", series.label));
        Column {
            x: round(width * number as f64),
            width: round(width),
            title: format!("{} UTC: {}", time_of_day(slot.start), texts.collect::<Vec<_>>().join(", ")),
            href: slot.href.clone(),
        }
    });
    let lines = series.iter().zip(points).filter(|(series, _)| series.kind == SeriesKind::Line);
    Some(Chart {
        title,
        unit,
        since,
        legend: series.iter().map(|series| (series.class, series.label)).collect(),
        columns: columns.collect(),
        lines: lines.map(|(series, points)| Line { class: series.class, points: points.join(" ") }).collect(),
        bars,
        max,
        rows: slots
            .iter()
            .rev()
            .filter(|slot| slot.values.iter().any(|value| value.is_some_and(|value| value > 0)))
            .map(|slot| Row { start: Exactly(slot.start), href: slot.href.clone(), values: values_of(slot) })
            .collect(),
    })
}

/// The time of day of a moment in UTC, such as `09:30`.
fn time_of_day(at: Timestamp) -> String {
    at.to_string().chars().skip(11).take(5).collect()
}

/// A small chart of counts in slices of a period, without axes.
pub(super) struct Spark {
    pub bars: Vec<SparkBar>,
    /// The text alternative.
    pub label: String,
}

pub(super) struct SparkBar {
    pub x: usize,
    pub y: f64,
    pub height: f64,
}

impl Spark {
    /// The drawing is 24 high, and a column of it 8 wide.
    pub(super) fn of(counts: &[u64]) -> Self {
        const SPARK_HEIGHT: f64 = 24.0;
        let max = counts.iter().copied().max().unwrap_or(0).max(1);
        let bar = |(place, count): (usize, &u64)| {
            // A line marks slices without any.
            let height = if *count == 0 { 1.0 } else { (SPARK_HEIGHT * *count as f64 / max as f64).max(3.0) };
            SparkBar { x: place * 8, y: round(SPARK_HEIGHT - height), height: round(height) }
        };
        let texts: Vec<_> = counts.iter().map(u64::to_string).collect();
        Self {
            bars: counts.iter().enumerate().map(bar).collect(),
            label: format!("oldest first: {}", texts.join(", ")),
        }
    }
}

fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERIES: [Series; 3] = [
        Series { class: "accepted", label: "accepted", kind: SeriesKind::Bars },
        Series { class: "rejected", label: "rejected", kind: SeriesKind::Bars },
        Series { class: "submitted", label: "submitted", kind: SeriesKind::Line },
    ];

    fn slot(minute: i64, values: [Option<u64>; 3]) -> Slot {
        Slot { start: Timestamp::from_micros(minute * 60_000_000), values: values.into(), href: None }
    }

    #[test]
    fn bars_of_a_slot_are_stacked_and_the_highest_value_fills_the_chart() {
        let draw = |slots: &[Slot]| draw("t", "per minute", "an hour ago", &SERIES, slots);
        assert!(draw(&[slot(0, [Some(0), None, Some(0)])]).is_none());
        let chart =
            draw(&[slot(0, [Some(6), Some(2), Some(4)]), slot(1, [Some(0), Some(0), None]), slot(2, [Some(4); 3])])
                .unwrap();
        assert_eq!((chart.max, chart.bars.len(), chart.rows.len()), (8, 4, 2), "empty slots are not in the table");
        let [accepted, rejected, ..] = &chart.bars[..] else { panic!("four") };
        assert_eq!(accepted.y + accepted.height, HEIGHT);
        assert_eq!((rejected.y, rejected.y + rejected.height), (0.0, accepted.y));
        let y = HEIGHT / 2.0;
        assert_eq!(chart.lines[0].points, format!("0,{y} 320,{y} 640,{y} 960,{y}"), "no point if unknown");
        assert_eq!(chart.columns[0].title, "00:00 UTC: 6 accepted, 2 rejected, 4 submitted");
        let html = chart.to_string();
        assert!(html.contains("<table") && html.contains("role=\"group\""), "{html}");
    }
}
