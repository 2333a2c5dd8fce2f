//! `waitSeconds`: answer when the first attempt is over, or when patience is.
//!
//! On the leader a notice comes the moment the outcome is durable. On a follower none comes, so
//! the store is looked at now and then; both ways run through the same loop.

use std::time::Duration;

use crate::domain::intent::Intent;
use crate::platform::clock::monotonic;
use crate::store::watchers::Watch;
use crate::web::WebDeps;

pub const MAX_WAIT_SECONDS: u64 = 30;

/// Between two looks at the store: quick at first, as most attempts are.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The intent as it is when its first attempt has finished, or after `patience`.
pub async fn for_first_attempt(deps: &WebDeps, mut intent: Intent, watch: &Watch, patience: Duration) -> Intent {
    let end = monotonic() + patience;
    let mut pause = FIRST_LOOK;
    while !intent.first_attempt_finished() && monotonic() < end && !deps.watchers.is_closed() {
        let look = (monotonic() + pause).min(end);
        let _either_is_a_reason_to_look = tokio::time::timeout_at(look, watch.changed()).await;
        match deps.store.find_if_idle(intent.id.clone()).await {
            Ok(Some(found)) => intent = found.intent,
            // Deleted by retention meanwhile; what was true when it was answered stays so.
            Ok(None) => break,
            // The intent is durable; a store that fails now is no reason to say otherwise.
            Err(error) => log::debug!("wait_look_failed intent_id={:?} store_error={error:?}", intent.id),
        }
        pause = (pause * 2).min(LOOK_INTERVAL);
    }
    intent
}
