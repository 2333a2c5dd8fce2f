//! The event log of a run: one line for each thing that happened, with its virtual time.
//!
//! Two runs of a seed are compared by the hash of their logs, so everything that a run does must show in it.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

/// What happened in one run.
#[derive(Default)]
pub(super) struct EventLog {
    text: String,
    events: usize,
}

impl EventLog {
    /// Adds an event. `micros` is the virtual time since the start of the run.
    pub(super) fn add(&mut self, micros: u128, what: fmt::Arguments<'_>) {
        self.events += 1;
        // Writing to a string cannot fail.
        let _ignored = writeln!(self.text, "{:3}.{:06} {what}", micros / 1_000_000, micros % 1_000_000);
    }

    pub(super) fn events(&self) -> usize {
        self.events
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The hash by which runs are compared.
    pub(super) fn hash(&self) -> String {
        let hash = Sha256::digest(self.text.as_bytes());
        hash.iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }
}
