//! What an intent is and how it goes on or ends: pure functions, and types that cannot hold an invalid value.
//!
//! Nothing here is async, uses actix or SQL, logs, or reads a clock; the current time is always an argument. [`policy`]
//! decides whether an intent is accepted, rejected, retried or exhausted.

pub mod actor;
pub mod attempt;
pub mod audit;
pub mod audit_chain;
pub mod client;
pub mod contract;
pub mod event_json;
pub mod failure;
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
pub mod pause;
pub mod policy;
pub mod raw_json;
pub mod redrive;
pub mod role;
pub mod schedule;
pub mod signature;
pub mod time;
pub mod trace;
mod uuid_id;
pub mod webhook;
