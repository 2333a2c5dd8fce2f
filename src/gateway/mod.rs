//! The way out: one attempt becomes one HTTP call, and its answer a fact.
//!
//! [`Gateway`] is what the executor needs; [`client`] is the real one over [`crate::http_client`]. [`answer`] reads
//! bodies.

pub mod answer;
pub mod client;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::domain::attempt::OpenAttempt;
use crate::domain::outcome::Outcome;

pub use crate::http_client::LocalResourceError;

/// An attempt's outcome, once the gateway has answered or the time is up.
pub type Attempting = Pin<Box<dyn Future<Output = Result<Outcome, LocalResourceError>>>>;

/// Makes attempts. Whatever goes wrong is an `Outcome::Error` whose text tells an operator what happened; only
/// a shortage on this side is no outcome, because nothing was attempted.
pub trait Gateway {
    fn attempt(&self, attempt: &OpenAttempt, payload: Bytes, timeout: Duration) -> Attempting;
}
