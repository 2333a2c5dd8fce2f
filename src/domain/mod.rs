//! What the service decides, as pure functions over types that cannot hold a wrong value.
//!
//! Nothing here is async, knows actix or SQL, writes a log line or asks what time it is: `now`
//! is always passed in. Whoever wants to know *why* an intent ended as it did reads [`policy`].

pub mod attempt;
pub mod client;
pub mod contract;
pub mod inbox;
pub mod intent;
pub mod intent_json;
pub mod job;
pub mod lease;
pub mod limits;
#[cfg(test)]
mod model;
pub mod node;
pub mod outcome;
pub mod policy;
pub mod raw_json;
pub mod schedule;
pub mod signature;
pub mod time;
pub mod trace;
mod uuid_id;
pub mod webhook;
