//! Why a call of a store failed, and the futures that calls return.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::platform::errors::{BoxError, full_text};

/// Why a call of the store failed. `full_text` shows it with its cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A queue in front of the store is full; nothing was tried.
    #[error("the queue in front of the store is full")]
    Overloaded,
    /// The database did not answer, or refused everything. Whether a write took effect may be unknown.
    #[error("the store is unavailable")]
    Unavailable(#[source] Cause),
    /// The database refused this item alone, which had no effect: something in it is not valid.
    #[error("the store holds something unexpected")]
    Unexpected(#[source] Cause),
}

/// What made a call of the store fail: an error of the driver, or a text. Clones share it, because one failed commit
/// fails many calls. `Debug` writes the full text, as log lines show it.
#[derive(Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&full_text(self), f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Errors of drivers cannot be compared, so causes with the same text are equal.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        full_text(self) == full_text(other)
    }
}

impl Eq for Cause {}

impl StoreError {
    /// The database did not answer, or refused everything, because of `cause`: an error or a text.
    pub fn unavailable(cause: impl Into<BoxError>) -> Self {
        Self::Unavailable(Cause(cause.into().into()))
    }

    /// The database refused one item because of `cause`: an error or a text.
    pub fn unexpected(cause: impl Into<BoxError>) -> Self {
        Self::Unexpected(Cause(cause.into().into()))
    }

    /// The error without its text, as metrics name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::Unavailable(_) => "unavailable",
            Self::Unexpected(_) => "unexpected",
        }
    }
}

/// Why a call that needs the lease did not take effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FencedError {
    /// The caller's term does not hold the lease any more. Nothing was changed.
    #[error("the term is over")]
    TermOver,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of every call that is fenced by a term.
pub type FencedResult<T> = Result<T, FencedError>;

/// What a store returns; the call starts when it is polled.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// What a store returns for a call that is fenced by a term.
pub type FencedFuture<T> = Pin<Box<dyn Future<Output = FencedResult<T>> + Send>>;

/// Fences a call of a store that answers `None` when the term does not hold the lease.
pub(super) fn fenced<T: Send + 'static>(call: StoreFuture<Option<T>>) -> FencedFuture<T> {
    Box::pin(async move { call.await?.ok_or(FencedError::TermOver) })
}

/// An error that may be an error of the store.
pub trait StoreFailure: From<StoreError> + Send + 'static {
    /// The store's error, unless the call was refused for another reason.
    fn store_error(&self) -> Option<&StoreError>;
}

impl StoreFailure for StoreError {
    fn store_error(&self) -> Option<&StoreError> {
        Some(self)
    }
}

impl StoreFailure for FencedError {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::TermOver => None,
            Self::Store(error) => Some(error),
        }
    }
}
