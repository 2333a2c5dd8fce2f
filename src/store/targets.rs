//! Targets that the store knows, because they have a contract or are paused.

use crate::domain::intent::TargetName;
use crate::domain::time::Timestamp;

/// A target and whether it is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTarget {
    pub name: TargetName,
    /// Set while the target is paused, that is, while no attempt of it starts.
    pub paused_at: Option<Timestamp>,
}
