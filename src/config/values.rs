//! Parsers for the values of settings: numbers and durations within bounds, switches, names, addresses.
//!
//! Every error says what is allowed. The caller adds the name of the setting.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use super::console_settings::TRACE_ID;
use super::settings::{AuthMode, Switch};
use crate::domain::contract::{GatewayUrl, http_url};
use crate::telemetry::logging::LogFormat;

const MILLISECOND: u128 = 1_000_000;
const SECOND: u128 = 1_000 * MILLISECOND;

/// Units of durations, longest first, in nanoseconds.
const UNITS: [(&str, u128); 5] =
    [("d", 86_400 * SECOND), ("h", 3_600 * SECOND), ("m", 60 * SECOND), ("s", SECOND), ("ms", MILLISECOND)];

/// A parser of whole numbers from `least` to `most`.
pub fn whole<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

/// A parser of durations from `least` to `most`, such as `250ms`, `15s`, `1m30s`, `0.5s` or `30d`.
pub fn duration(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let duration = parse_duration(text).filter(|duration| (least..=most).contains(duration));
        duration.ok_or_else(|| {
            let (least, most) = (duration_text(least), duration_text(most));
            format!("must be a duration from {least} to {most} with its unit (ms, s, m, h or d), such as 15s or 1m30s")
        })
    }
}

/// Parses numbers that are each followed by a unit, longer units first, such as `1m30s`. A number may have a fraction.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut nanos: u128 = 0;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len()));
        // `find` continues after the unit that was found last, so no unit occurs twice or after a shorter one.
        let (_, nanos_per_unit) = units.find(|(name, _)| *name == unit)?;
        nanos = nanos.checked_add(to_nanos(number, *nanos_per_unit)?)?;
        rest = tail;
    }
    (!text.is_empty()).then(|| u64::try_from(nanos).ok().map(Duration::from_nanos)).flatten()
}

/// Converts a number of units to nanoseconds. Only the first nine digits of a fraction count; further digits are parts of a
/// nanosecond for units up to a second, and negligible for longer units.
fn to_nanos(number: &str, nanos_per_unit: u128) -> Option<u128> {
    const MOST_DIGITS: usize = 9;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let fraction = fraction.get(..MOST_DIGITS).unwrap_or(fraction);
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole = whole.parse::<u64>().ok().map(u128::from)?.checked_mul(nanos_per_unit)?;
    // Parsing also rejects a second decimal point, and one without digits after it.
    let part = fraction.parse::<u64>().ok().map(u128::from)?.checked_mul(nanos_per_unit)? / scale;
    whole.checked_add(part)
}

/// Writes a duration in the longest unit that divides it: `90s`, but `2m`.
pub(super) fn duration_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let unit = UNITS.iter().find(|(_, nanos_per_unit)| nanos > 0 && nanos.is_multiple_of(*nanos_per_unit));
    unit.map_or_else(
        || format!("{}s", duration.as_secs_f64()),
        |(name, per_unit)| format!("{}{name}", nanos / per_unit),
    )
}

/// Parses an address and port to listen on, such as `127.0.0.1:8082`.
pub fn listen_address(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    port.map(|_| text.to_owned()).ok_or_else(|| "must be an address and a port, such as 127.0.0.1:8082".to_owned())
}

pub(super) fn auth_mode(text: &str) -> Result<AuthMode, String> {
    match text {
        "off" => Ok(AuthMode::Off),
        "required" => Ok(AuthMode::Required),
        _ => Err("must be off or required".to_owned()),
    }
}

pub(super) fn switch(text: &str) -> Result<Switch, String> {
    match text {
        "on" => Ok(Switch::On),
        "off" => Ok(Switch::Off),
        _ => Err("must be on or off".to_owned()),
    }
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("must be text or json".to_owned()),
    }
}

/// Parses origins that become part of a `Content-Security-Policy` header. Rejects characters that could end the directive.
pub(super) fn origins(text: &str) -> Result<String, String> {
    let fine = text.split_ascii_whitespace().all(|origin| {
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        host.is_some_and(|host| {
            !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.:*[]".contains(c))
        })
    });
    if fine { Ok(text.trim().to_owned()) } else { Err("must be origins such as https://portal.example".to_owned()) }
}

/// Parses the base URL of a trace collector.
pub(super) fn collector(text: &str) -> Result<GatewayUrl, String> {
    GatewayUrl::parse(text).map_err(|problem| format!("must be an http or https URL with a host; this value {problem}"))
}

/// Parses a URL without a path and returns its origin, such as `https://submissions.example`.
pub(super) fn base_url(text: &str) -> Result<String, String> {
    let url = http_url(text).and_then(|url| match (url.path(), url.query()) {
        ("/", None) => Ok(url),
        _ => Err("has more than a host and a port".to_owned()),
    });
    let expected = "must be a URL such as https://submissions.example";
    url.map(|url| url.origin().ascii_serialization()).map_err(|problem| format!("{expected}; this value {problem}"))
}

/// Parses the template of the address of a trace: an http or https URL that contains [`TRACE_ID`].
pub(super) fn trace_url(text: &str) -> Result<String, String> {
    let expected = format!("must be a URL with {TRACE_ID} in it, such as https://traces.example/trace/{TRACE_ID}");
    if !text.contains(TRACE_ID) {
        return Err(expected);
    }
    match http_url(&text.replace(TRACE_ID, &"0".repeat(32))) {
        Ok(_) => Ok(text.to_owned()),
        Err(problem) => Err(format!("{expected}; this value {problem}")),
    }
}

/// Parses the name of an instance or a lease.
pub(super) fn name(text: &str) -> Result<String, String> {
    let fine = !text.is_empty() && text.len() <= 200 && text.chars().all(|c| c.is_ascii_graphic());
    if fine { Ok(text.to_owned()) } else { Err("must be 1 to 200 visible ASCII characters without spaces".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_trace_names_its_id() {
        for (text, valid) in [
            ("https://traces.example/trace/{trace_id}", true),
            ("http://localhost:16686/search?id={trace_id}&x=1", true),
            ("https://traces.example/trace", false),
            ("javascript:alert('{trace_id}')", false),
            ("{trace_id}", false),
        ] {
            assert_eq!(trace_url(text).is_ok(), valid, "{text}");
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, micros) in [
            ("250ms", 250_000),
            ("15s", 15_000_000),
            ("2m", 120_000_000),
            ("1h", 3_600_000_000),
            ("30d", 2_592_000_000_000),
            ("1m30s", 90_000_000),
            ("1d2h3m4s5ms", 93_784_005_000),
            ("0.5s", 500_000),
            ("1.5h", 5_400_000_000),
            ("1m0.25s", 60_250_000),
            ("0.001s", 1_000),
            ("0.0000000009s", 0),
            ("0s", 0),
            ("007s", 7_000_000),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_micros(micros)), "{text}");
        }
        for text in [
            "",
            "15",
            "s",
            "-1s",
            "+1s",
            "15 s",
            "15S",
            "1.s",
            ".5s",
            ".",
            "1..5s",
            "1.5.5s",
            "1s1s",
            "30s1m",
            "1m30",
            "1ms1s",
            "1e3s",
            "1us",
            "\u{ff11}s",
            "99999999999999999999d",
            "584y",
            "18446744073709551615d",
            "1,5s",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn bounds_are_inclusive_and_named_in_errors() {
        let parser = duration(Duration::from_millis(10), Duration::from_secs(90));
        assert_eq!(parser("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(parser("1m30s"), Ok(Duration::from_secs(90)));
        for text in ["9ms", "1m30.001s", "0s", "x"] {
            assert!(parser(text).unwrap_err().starts_with("must be a duration from 10ms to 90s "), "{text}");
        }
        let parser = whole(2_u32, 1000);
        assert_eq!((parser("2"), parser("1000")), (Ok(2), Ok(1000)));
        for text in ["1", "1001", "-3", "4294967298", "18446744073709551618", "2.5", "", "x"] {
            assert_eq!(parser(text), Err("must be a whole number from 2 to 1000".to_owned()), "{text}");
        }
    }

    #[test]
    fn a_written_duration_parses_to_the_same_duration() {
        for text in ["250ms", "15s", "90s", "2m", "36500d", "0s"] {
            let parsed = parse_duration(text).unwrap();
            assert_eq!(parse_duration(&duration_text(parsed)), Some(parsed), "{text}");
        }
    }

    #[test]
    fn a_base_url_has_nothing_after_its_host_and_port() {
        for (text, expected) in [
            ("https://Submissions.example", Some("https://submissions.example")),
            ("https://submissions.example:443/", Some("https://submissions.example")),
            ("http://127.0.0.1:8082", Some("http://127.0.0.1:8082")),
            ("https://submissions.example/ui", None),
            ("https://submissions.example/?a", None),
            ("submissions.example", None),
            ("ftp://submissions.example", None),
        ] {
            assert_eq!(base_url(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_listen_address_needs_a_host_and_a_port() {
        for (text, fine) in [
            ("127.0.0.1:0", true),
            ("[::]:8082", true),
            ("localhost:80", true),
            (":80", false),
            ("x", false),
            ("x:y", false),
        ] {
            assert_eq!(listen_address(text).is_ok(), fine, "{text}");
        }
    }
}
