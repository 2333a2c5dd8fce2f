//! Metrics, logging and trace spans.
//!
//! Code here records what other code does. It makes no decisions, and its failures never delay the work that it records.

mod json_lines;
pub mod logging;
pub mod metrics;
pub mod spans;
mod target_metrics;
