//! Points in time of the store: microseconds since 1970 in UTC, which is the finest resolution that every store keeps.
//!
//! Nothing here reads a clock.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

/// A moment of the store's time. Only the stores and `platform::clock` read one from a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest moment that every store can hold: 0001-01-01T00:00:00Z.
    pub const EARLIEST: Self = Self(-62_135_596_800_000_000);
    /// The latest moment that every store can hold: 9999-12-31T23:59:59.999999Z.
    pub const LATEST: Self = Self(253_402_300_799_999_999);

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

    /// Parses RFC 3339 with any offset. Digits below a microsecond are cut off. Returns `None` for moments before
    /// [`Self::EARLIEST`] or after [`Self::LATEST`].
    pub fn parse(text: &str) -> Option<Self> {
        let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        let micros = i64::try_from(moment.unix_timestamp_nanos().div_euclid(1_000)).ok()?;
        (Self::EARLIEST..=Self::LATEST).contains(&Self(micros)).then_some(Self(micros))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    /// Writes RFC 3339 in UTC with microseconds, as in API responses and log lines.
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
    fn writes_and_parses_rfc_3339() {
        let moment = Timestamp::from_micros(1_790_000_000_000_001);
        assert_eq!(moment.to_string(), "2026-09-21T14:13:20.000001Z");
        assert_eq!(Timestamp::parse(&moment.to_string()), Some(moment));
        assert_eq!(Timestamp::parse("2026-09-21T16:13:20.0000019+02:00"), Some(moment));
        assert_eq!(Timestamp::parse("1969-12-31T23:59:59.999999Z"), Some(Timestamp::from_micros(-1)));
        assert_eq!(Timestamp::EARLIEST.to_string(), "0001-01-01T00:00:00.000000Z");
        assert_eq!(Timestamp::LATEST.to_string(), "9999-12-31T23:59:59.999999Z");
        for bound in [Timestamp::EARLIEST, Timestamp::LATEST] {
            assert_eq!(Timestamp::parse(&bound.to_string()), Some(bound));
        }
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
