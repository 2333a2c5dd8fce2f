//! Calls gateways: one attempt is one HTTP request, whose response becomes an [`Outcome`].
//!
//! The executor uses the trait [`Gateway`]; [`client`] implements it with [`crate::http_client`], and [`answer`] parses
//! response bodies.

pub mod answer;
pub mod client;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::domain::attempt::OpenAttempt;
use crate::domain::outcome::Outcome;

pub use crate::http_client::LocalResourceError;

/// The future outcome of an attempt. It completes when the gateway has responded or the timeout has passed.
pub type Attempting = Pin<Box<dyn Future<Output = Result<Outcome, LocalResourceError>>>>;

/// Makes attempts.
pub trait Gateway {
    /// Sends the payload of an intent to its gateway. Every failure is an [`Outcome::Error`] whose text says what happened,
    /// except that [`LocalResourceError`] means that nothing was attempted because this machine ran out of a resource.
    fn attempt(&self, attempt: &OpenAttempt, payload: Bytes, timeout: Duration) -> Attempting;
}
