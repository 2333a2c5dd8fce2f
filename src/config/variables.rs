//! The environment variables that registry files name: secrets and the values of headers.
//!
//! Looked up when they are needed and kept nowhere. A function, so that the demo and the tests can
//! bring their own.

use std::sync::Arc;

type LookUp = dyn Fn(&str) -> Option<String> + Send + Sync;

#[derive(Clone)]
pub struct Variables(Arc<LookUp>);

impl Variables {
    /// Those of the process.
    pub fn of_process() -> Self {
        Self::from_fn(|name| std::env::var(name).ok())
    }

    pub fn from_fn(look_up: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look_up))
    }

    pub fn get(&self, name: &str) -> Option<String> {
        (self.0)(name)
    }
}
