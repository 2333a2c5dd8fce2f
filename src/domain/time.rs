//! Points in time as the store knows them: microseconds since 1970, UTC.
//!
//! Microseconds because that is the finest step that every store keeps. Never reads a clock.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

/// A moment of the store's time. Only the stores and `clock.rs` make one from a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses RFC 3339 with any offset. Finer steps than a microsecond are cut off; of moments outside of the years
    /// 1 to 9999 in UTC not every store knows.
    pub fn parse(text: &str) -> Option<Self> {
        const KNOWN: std::ops::Range<i64> = -62_135_596_800_000_000..253_402_300_800_000_000;
        let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        let micros = i64::try_from(moment.unix_timestamp_nanos().div_euclid(1_000)).ok()?;
        KNOWN.contains(&micros).then_some(Self(micros))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with microseconds, as every answer and log line shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
        let text = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000)
            .ok()
            .and_then(|moment| moment.format(&layout).ok());
        match text {
            Some(text) => f.write_str(&text),
            None => write!(f, "{}us", self.0),
        }
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_and_reads_rfc_3339() {
        let moment = Timestamp::from_micros(1_790_000_000_000_001);
        assert_eq!(moment.to_string(), "2026-09-21T14:13:20.000001Z");
        assert_eq!(Timestamp::parse(&moment.to_string()), Some(moment));
        assert_eq!(Timestamp::parse("2026-09-21T16:13:20.0000019+02:00"), Some(moment));
        assert_eq!(Timestamp::parse("1969-12-31T23:59:59.999999Z"), Some(Timestamp::from_micros(-1)));
        for text in ["yesterday", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00"] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        let end = Timestamp::from_micros(i64::MAX);
        assert_eq!(end + Duration::MAX, end);
        assert_eq!(Timestamp::from_micros(0).since(end), Duration::ZERO);
    }
}
