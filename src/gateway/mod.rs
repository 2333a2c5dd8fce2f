//! The way out: one attempt becomes one HTTP call, and its answer a fact.
//!
//! [`Gateway`] is what the executor needs; [`client`] is the real one over [`crate::outgoing`]. [`answer`] reads
//! bodies, [`standin`] plays gateways for the demo and the tests.

pub mod answer;
pub mod client;
pub mod standin;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::core::outcome::Outcome;
use crate::store::OpenAttempt;

pub use crate::outgoing::LocalResourceError;

/// An attempt's outcome, once the gateway has answered or the time is up.
pub type Attempting = Pin<Box<dyn Future<Output = Result<Outcome, LocalResourceError>>>>;

/// Makes attempts. Whatever goes wrong is an `Outcome::Error` whose text tells an operator what happened; only
/// a shortage on this side is no outcome, because nothing was attempted.
pub trait Gateway {
    fn attempt(&self, attempt: &OpenAttempt, payload: Bytes, timeout: Duration) -> Attempting;
}
