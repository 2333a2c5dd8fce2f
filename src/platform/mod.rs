//! Access to the clocks, the limit of open files, and supervision of actors.
//!
//! Code in this folder is independent of what the service does.

pub mod clock;
pub mod descriptors;
pub mod supervision;
