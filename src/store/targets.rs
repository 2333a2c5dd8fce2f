//! Targets that the store knows, because they have a contract or are paused.

use crate::domain::intent::TargetName;
use crate::domain::time::Timestamp;

/// A target and whether it is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTarget {
    pub name: TargetName,
    /// Set while the target is paused, that is, while no attempt of it starts.
    pub pause: Option<TargetPause>,
}

/// Since when a target is paused, by whom and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPause {
    pub at: Timestamp,
    /// The label of the actor; `None` if an older version paused the target.
    pub by: Option<String>,
    pub reason: Option<String>,
}
