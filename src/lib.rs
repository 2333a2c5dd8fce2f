//! Submission Manager: durable submissions to HTTP gateways.

pub mod clock;
pub mod core;
pub mod metrics;
pub mod notices;
pub mod registry;
pub mod store;
pub mod supervise;
