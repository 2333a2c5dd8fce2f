//! Reads the times that operators type into filters: `10m`, `today`, `09:30`, `2026-11-16 09:30`, or RFC 3339.

use std::time::Duration;

use crate::domain::time::Timestamp;

/// The accepted forms of a time, for error messages.
pub(super) const EXPECTED: &str =
    "a time such as 10m (ten minutes ago), today, 09:30, 2026-11-16 09:30 or 2026-11-16T09:30:00Z";

/// The time zone of the operator's browser, which the script of the page sends; UTC without scripting.
#[derive(Clone, Copy, Default)]
pub(super) struct Zone {
    minutes_east: i32,
}

impl Zone {
    /// Parses what `Date.getTimezoneOffset` returns in browsers: minutes west of UTC.
    pub(super) fn of_browser(text: &str) -> Self {
        const DAY: i32 = 24 * 60;
        let west = text.parse().ok().filter(|west| (-DAY + 1..DAY).contains(west));
        Self { minutes_east: -west.unwrap_or(0) }
    }

    /// The offset as RFC 3339 has it.
    fn suffix(self) -> String {
        let (sign, minutes) = if self.minutes_east < 0 { ('-', -self.minutes_east) } else { ('+', self.minutes_east) };
        format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }

    /// The date at a moment, such as `2026-11-16`.
    fn date(self, at: Timestamp) -> String {
        let local = Timestamp::from_micros(at.micros().saturating_add(i64::from(self.minutes_east) * 60_000_000));
        local.to_string().chars().take(10).collect()
    }
}

/// The moment that a text means at the moment `now`.
pub(super) fn parse(text: &str, now: Timestamp, zone: Zone) -> Option<Timestamp> {
    let text = text.trim();
    if let Some(moment) = Timestamp::parse(text) {
        return Some(moment);
    }
    match text.to_ascii_lowercase().as_str() {
        "now" => return Some(now),
        "today" => return midnight(&zone.date(now), zone),
        "yesterday" => return midnight(&zone.date(now - Duration::from_secs(86_400)), zone),
        _ => {}
    }
    if let Some(duration) = relative(text) {
        return Some(now - duration);
    }
    let (text, zone) = match text.strip_suffix("UTC").or(text.strip_suffix('Z')) {
        Some(rest) => (rest.trim_end(), Zone::default()),
        None => (text, zone),
    };
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date.to_owned(), time.trim()),
        None if text.contains(':') => (zone.date(now), text),
        None => (text.to_owned(), "00:00"),
    };
    let time = match time.split(':').count() {
        2 => format!("{time}:00"),
        _ => time.to_owned(),
    };
    // One digit for the hour is enough.
    let time = if time.find(':') == Some(1) { format!("0{time}") } else { time };
    Timestamp::parse(&format!("{date}T{time}{}", zone.suffix()))
}

fn midnight(date: &str, zone: Zone) -> Option<Timestamp> {
    Timestamp::parse(&format!("{date}T00:00:00{}", zone.suffix()))
}

/// A duration such as `10m`, `2 h` or `3d ago`.
fn relative(text: &str) -> Option<Duration> {
    let text = text.strip_suffix("ago").unwrap_or(text).trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let seconds = match unit.trim() {
        "s" | "sec" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(number.checked_mul(seconds).filter(|all| *all < 100 * 365 * 86_400)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_operators_type_them() {
        let now = Timestamp::parse("2026-11-16T00:30:00Z").unwrap();
        let stockholm = Zone::of_browser("-60");
        let new_york = Zone::of_browser("300");
        for (text, zone, moment) in [
            ("10m", stockholm, "2026-11-16T00:20:00Z"),
            (" 2 h ago", stockholm, "2026-11-15T22:30:00Z"),
            ("1d", Zone::default(), "2026-11-15T00:30:00Z"),
            ("now", Zone::default(), "2026-11-16T00:30:00Z"),
            ("today", Zone::default(), "2026-11-16T00:00:00Z"),
            ("today", stockholm, "2026-11-15T23:00:00Z"),
            ("today", new_york, "2026-11-15T05:00:00Z"),
            ("Yesterday", new_york, "2026-11-14T05:00:00Z"),
            ("09:30", stockholm, "2026-11-16T08:30:00Z"),
            ("9:30", Zone::default(), "2026-11-16T09:30:00Z"),
            ("09:30 UTC", stockholm, "2026-11-16T09:30:00Z"),
            ("2026-11-01", new_york, "2026-11-01T05:00:00Z"),
            ("2026-11-01 10:15", stockholm, "2026-11-01T09:15:00Z"),
            ("2026-11-01T10:15:30", stockholm, "2026-11-01T09:15:30Z"),
            ("2026-11-01T10:15:30Z", stockholm, "2026-11-01T10:15:30Z"),
            ("2026-11-01T10:15:30+01:00", new_york, "2026-11-01T09:15:30Z"),
        ] {
            assert_eq!(parse(text, now, zone), Timestamp::parse(moment), "{text}");
        }
        for text in ["", "soon", "10", "10x", "25:00", "2026-13-01", "99999999999999999999d", "m", ":", "é"] {
            assert_eq!(parse(text, now, Zone::default()), None, "{text}");
        }
        assert_eq!(Zone::of_browser("99999").suffix(), "+00:00");
        assert_eq!(Zone::of_browser("210").suffix(), "-03:30");
    }
}
