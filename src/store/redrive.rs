//! Redrives: new intents that repeat intents which failed.

use crate::domain::intent::IntentId;
use crate::domain::redrive::RedriveId;

/// How a new intent is connected with the intent that it repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedriveLink {
    /// The intent that is repeated.
    pub of: IntentId,
    /// The redrive in bulk that creates the new intent; `None` if it was asked for alone.
    pub redrive: Option<RedriveId>,
    /// The id of the first intent of the chain, which gateways get as `Idempotency-Key`.
    pub gateway_key: IntentId,
}
