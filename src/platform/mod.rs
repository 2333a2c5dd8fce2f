//! What the process needs of its surroundings: clocks, the limit of open files, supervision of actors.
//!
//! Nothing here knows what an intent is.

pub mod clock;
pub mod descriptors;
pub mod supervision;
