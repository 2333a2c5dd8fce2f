//! Errors that keep what caused them, and one line of text that shows the error with its causes.

use std::error::Error;

/// Any error that can be sent to another thread. A text can be converted into one with `into`.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What failed, as a text, and the error that caused it. Its own text is only the first; [`full_text`] shows both.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Described {
    what: String,
    source: BoxError,
}

impl Described {
    /// A failure described by `what`, such as `cannot connect to the gateway`.
    pub fn new(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self { what: what.into(), source: source.into() }
    }
}

/// Adds to an error what failed.
pub trait Context<T> {
    /// The error of this result becomes the source of a [`Described`] that is described by `what`.
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T, Described>;
}

impl<T, E: Into<BoxError>> Context<T> for Result<T, E> {
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T, Described> {
        self.map_err(|source| Described::new(what(), source))
    }
}

/// The texts of an error and of its causes, separated by colons, such as `cannot open a.json: permission denied`. A cause is
/// left out if the line already contains its text, because some libraries write their causes themselves.
pub fn full_text(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_error_shows_every_cause_once() {
        let missing = || std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let read: Result<(), _> = Err(missing());
        let failure = Described::new("cannot start", read.context(|| "cannot read a.json").unwrap_err());
        assert_eq!(failure.to_string(), "cannot start");
        assert_eq!(full_text(&failure), "cannot start: cannot read a.json: no such file");
        // A library that repeats its cause.
        assert_eq!(full_text(&Described::new("cannot start (no such file)", missing())), "cannot start (no such file)");
        let text: BoxError = "no cause".into();
        assert_eq!(full_text(text.as_ref()), "no cause");
    }
}
