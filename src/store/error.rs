//! Why a call of a store failed, and the futures that calls return.

use std::future::Future;
use std::pin::Pin;

/// Why a call of the store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A queue in front of the store is full; nothing was tried.
    #[error("the queue in front of the store is full")]
    Overloaded,
    /// The database did not answer, or refused everything. Whether a write took effect may be unknown.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The database refused this item alone, which had no effect: something in it is not valid.
    #[error("the store holds something unexpected: {0}")]
    Unexpected(String),
}

impl StoreError {
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
