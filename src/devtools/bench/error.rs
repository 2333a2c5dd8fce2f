//! Errors of the benchmark: what failed, and the error that caused it.

use std::error::Error;

/// The result of a step of the benchmark. Errors of awc cannot be sent to another thread, so these cannot either.
pub(super) type BenchResult<T = ()> = Result<T, Box<dyn Error>>;

/// A step that failed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub(super) struct Failed {
    step: String,
    source: Box<dyn Error>,
}

/// Adds to an error which step failed.
pub(super) trait Step<T> {
    /// The error of this result becomes the source of a [`Failed`] with this text.
    fn step<W: Into<String>>(self, step: impl FnOnce() -> W) -> Result<T, Failed>;
}

impl<T, E: Into<Box<dyn Error>>> Step<T> for Result<T, E> {
    fn step<W: Into<String>>(self, step: impl FnOnce() -> W) -> Result<T, Failed> {
        self.map_err(|error| Failed { step: step().into(), source: error.into() })
    }
}
