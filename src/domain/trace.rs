//! W3C trace context: parses and writes the `traceparent` header.
//!
//! An invalid `traceparent` is treated as absent, as the standard requires. The caller provides random ids.

use std::fmt;

/// The trace that a request belongs to: the client's `traceparent`, or a new one if the client sent none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    parent_id: u64,
    flags: u8,
}

/// The flag of a sampled trace.
pub const SAMPLED: u8 = 1;

impl TraceContext {
    /// `None` if an id is zero, which the standard does not allow.
    pub fn new(trace_id: u128, parent_id: u64, flags: u8) -> Option<Self> {
        (trace_id != 0 && parent_id != 0).then_some(Self { trace_id, parent_id, flags })
    }

    /// Parses `00-<32 hex digits>-<16>-<2>`. Of later versions it reads these fields and ignores the rest.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut fields = text.split('-');
        let version = hex(fields.next()?, 2)?;
        let trace_id = hex(fields.next()?, 32)?;
        let parent_id = u64::try_from(hex(fields.next()?, 16)?).ok()?;
        let flags = u8::try_from(hex(fields.next()?, 2)?).ok()?;
        let known = version < 0xff && (version > 0 || fields.next().is_none());
        Self::new(trace_id, parent_id, flags).filter(|_| known)
    }

    /// The 32 hex digits of the trace id.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// The 16 hex digits of the span id.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.parent_id)
    }

    /// Whether the client chose to record the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace with another span id.
    pub fn child(&self, parent_id: u64) -> Self {
        Self { parent_id: parent_id.max(1), ..*self }
    }
}

/// Parses hex digits of the given number. The standard allows lower case only.
fn hex(digits: &str, length: usize) -> Option<u128> {
    let fine = digits.len() == length && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    fine.then(|| u128::from_str_radix(digits, 16).ok())?
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_parsed_as_the_standard_requires() {
        let fine = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::parse(fine).unwrap();
        assert_eq!((context.to_string().as_str(), context.trace_id().as_str()), (fine, &fine[3..35]));
        assert_eq!((context.span_id().as_str(), context.is_sampled()), ("00f067aa0ba902b7", true));
        let unsampled = fine.replace("-01", "-00");
        assert!(!TraceContext::parse(&unsampled).unwrap().is_sampled());
        assert_eq!(context.child(7).to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01");
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-will-be-like";
        assert_eq!(TraceContext::parse(later), Some(context));
        for text in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
    }
}
