//! Targets as the store knows them: by their contracts, and by being paused.

use crate::domain::intent::TargetName;
use crate::domain::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTarget {
    pub name: TargetName,
    /// Set while attempts of it do not begin.
    pub paused_at: Option<Timestamp>,
}
