//! Submission Manager: durable submissions to HTTP gateways.

pub mod core;
pub mod registry;
