//! Access to the clocks, random bytes, the limit of open files, the threads and supervision of actors, and errors with their
//! causes.
//!
//! Code in this folder is independent of what the service does.

pub mod actor_thread;
pub mod clock;
pub mod descriptors;
pub mod errors;
#[cfg(test)]
pub mod mutation;
pub mod random;
pub mod supervision;

/// Whether one of these deliberate bugs is switched on; see `mutation.rs`. It is always false outside tests.
#[cfg(test)]
macro_rules! mutated {
    ($($mutation:ident),+) => {
        crate::platform::mutation::is_active(&[$(crate::platform::mutation::Mutation::$mutation),+])
    };
}

#[cfg(not(test))]
macro_rules! mutated {
    ($($mutation:ident),+) => {
        false
    };
}

pub(crate) use mutated;
