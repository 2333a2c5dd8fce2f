//! Why a target is paused, in the words of the operator who paused it.

use std::fmt;

/// The longest reason, in characters.
pub const MAX_REASON_CHARS: usize = 500;

/// What an operator wrote when pausing a target: at most [`MAX_REASON_CHARS`] characters, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseReason(String);

/// A reason is too long or has a control character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reason must have at most {MAX_REASON_CHARS} characters and no control characters")]
pub struct InvalidReason;

impl PauseReason {
    /// Parses a reason; `None` for one that is blank.
    pub fn parse(text: &str) -> Result<Option<Self>, InvalidReason> {
        let text = text.trim();
        if text.chars().count() > MAX_REASON_CHARS || text.chars().any(char::is_control) {
            return Err(InvalidReason);
        }
        Ok((!text.is_empty()).then(|| Self(text.to_owned())))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PauseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_of_bounded_length() {
        let longest = "é".repeat(MAX_REASON_CHARS);
        let reason = |text: &str| PauseReason::parse(text).map(|reason| reason.map(|reason| reason.to_string()));
        assert_eq!(reason(" maintenance until 9 "), Ok(Some("maintenance until 9".to_owned())));
        assert_eq!((reason(""), reason(" \n ")), (Ok(None), Ok(None)));
        assert_eq!(reason(&longest), Ok(Some(longest.clone())));
        assert_eq!(
            (reason(&format!("{longest}e")), reason("a\nb"), reason("a\0")),
            (Err(InvalidReason), Err(InvalidReason), Err(InvalidReason))
        );
    }
}
