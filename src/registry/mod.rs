//! Registry files: contracts as data, read into types of `core` that cannot be wrong.
//!
//! A file with any fault is not used at all, and every fault of it is reported at once with its
//! place and what to write instead. Stored snapshots never change, whatever happens here.

mod fields;
mod targets;
mod webhook;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use crate::core::contract::ContractSnapshot;
use crate::core::intent::TargetName;
use crate::variables::Variables;

/// One thing wrong with a file, with its place in it (`targets[2].maxAttempts`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub place: String,
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() { f.write_str(&self.text) } else { write!(f, "{}: {}", self.place, self.text) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("cannot read {}: {source}; name the file with --registry or SM_REGISTRY", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} has {} to mend:{}", path.display(), counted(faults.len()), lines(faults))]
    Faulty { path: PathBuf, faults: Vec<Fault> },
}

fn counted(faults: usize) -> String {
    if faults == 1 { "1 fault".to_owned() } else { format!("{faults} faults") }
}

fn lines(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}

/// The contracts in force.
#[derive(Debug)]
pub struct Registry {
    targets: HashMap<TargetName, Arc<ContractSnapshot>>,
}

impl Registry {
    pub fn load(path: &Path, variables: &Variables) -> Result<Self, RegistryError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| RegistryError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text, variables).map_err(|faults| RegistryError::Faulty { path: path.to_owned(), faults })
    }

    /// Reads a registry; all of its faults if there is any, among them variables that are not set.
    pub fn parse(text: &str, variables: &Variables) -> Result<Self, Vec<Fault>> {
        targets::parse(text, variables).map(|targets| Self { targets })
    }

    pub fn contract(&self, target: &TargetName) -> Option<Arc<ContractSnapshot>> {
        self.targets.get(target).cloned()
    }

    /// All contracts, in no particular order.
    pub fn contracts(&self) -> impl Iterator<Item = Arc<ContractSnapshot>> {
        self.targets.values().cloned()
    }

    pub fn len(&self) -> usize {
        self.targets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }
}

/// The registry that requests see; replaced as a whole when the file is reloaded.
#[derive(Clone)]
pub struct CurrentRegistry(Arc<RwLock<Arc<Registry>>>);

impl CurrentRegistry {
    pub fn new(registry: Registry) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(registry))))
    }

    pub fn get(&self) -> Arc<Registry> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the file at `path` into use for new intents; on any fault the old registry stays.
    pub fn reload(&self, path: &Path, variables: &Variables) -> Result<usize, RegistryError> {
        let registry = Registry::load(path, variables)?;
        let targets = registry.len();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(registry);
        Ok(targets)
    }
}
