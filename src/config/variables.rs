//! Access to the environment variables that registry files refer to by name: secrets and values of HTTP headers.
//!
//! Values are looked up when they are needed and are not stored.

use std::sync::Arc;

type LookUp = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A source of environment variables: the process environment, or a function that the demo or a test provides.
#[derive(Clone)]
pub struct Variables(Arc<LookUp>);

impl Variables {
    /// The environment variables of this process.
    pub fn of_process() -> Self {
        Self::from_fn(|name| std::env::var(name).ok())
    }

    /// Variables whose values come from `look_up`; `None` means that a variable is not set.
    pub fn from_fn(look_up: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look_up))
    }

    /// The value of a variable, if it is set.
    pub fn get(&self, name: &str) -> Option<String> {
        (self.0)(name)
    }
}
