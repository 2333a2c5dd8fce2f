//! Submission Manager: durable submissions to HTTP gateways.

pub mod clock;
pub mod console;
pub mod core;
pub mod engine;
pub mod executor;
pub mod gateway;
pub mod http;
pub mod leader;
pub mod metrics;
pub mod notices;
pub mod registry;
pub mod retention;
pub mod scheduler;
pub mod store;
pub mod supervise;
pub mod trust;
