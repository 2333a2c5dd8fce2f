//! What can be seen from outside: metrics, log lines and trace spans.
//!
//! Code here records what others did. It never decides anything, and its failures never hold up the work it describes.

pub mod logging;
pub mod metrics;
pub mod spans;
