//! The way out: one attempt becomes one HTTP call, and its answer a fact.
//!
//! [`Gateway`] is what the executor needs; [`client`] is the real one over awc. [`answer`] reads
//! bodies, [`standin`] plays gateways for the demo and the tests.

pub mod answer;
pub mod client;
pub mod standin;

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;

use crate::core::outcome::Outcome;
use crate::store::OpenAttempt;

/// Makes attempts. Always ends with an outcome: whatever goes wrong is an `Outcome::Error` whose
/// text tells an operator what happened.
pub trait Gateway {
    fn attempt(&self, attempt: &OpenAttempt, payload: Bytes) -> Pin<Box<dyn Future<Output = Outcome>>>;
}
