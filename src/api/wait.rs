//! `waitSeconds`: delays the response to a submission until the first attempt has finished, or the time is up.
//!
//! On the leader, a watcher reports the outcome as soon as it is durable. On a follower there is no such notification, so
//! the loop also polls the store.

use std::time::Duration;

use crate::domain::intent::Intent;
use crate::platform::clock::monotonic;
use crate::store::client::StoreClient;
use crate::store::watchers::{IntentWatchers, Watch};

const MAX_WAIT_SECONDS: u64 = 30;

/// The time between two polls of the store. It starts small, because most attempts are quick, and doubles up to the maximum.
const FIRST_POLL: Duration = Duration::from_millis(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The longest wait of a client that asks for this many seconds.
pub(super) fn limit(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(MAX_WAIT_SECONDS))
}

/// Waits until the first attempt of the intent has finished, but at most for `limit`. Returns the intent as it is then.
pub(crate) async fn for_first_attempt(
    store: &StoreClient,
    watchers: &IntentWatchers,
    mut intent: Intent,
    watch: &Watch,
    limit: Duration,
) -> Intent {
    let end = monotonic() + limit;
    let mut interval = FIRST_POLL;
    while !intent.first_attempt_finished() && monotonic() < end && !watchers.is_closed() {
        let next_poll = (monotonic() + interval).min(end);
        // Read the store after a notification and after a timeout alike.
        let _notified_or_timed_out = tokio::time::timeout_at(next_poll, watch.changed()).await;
        match store.find_if_idle(intent.id.clone()).await {
            Ok(Some(found)) => intent = found.intent,
            // Retention has deleted the intent; return it as it was last seen.
            Ok(None) => break,
            // The intent is already durable, so a failed read must not turn the response into an error.
            Err(error) => log::debug!("wait_look_failed intent_id={:?} store_error={error:?}", intent.id),
        }
        interval = (interval * 2).min(MAX_POLL_INTERVAL);
    }
    intent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_longer_than_thirty_seconds() {
        for (asked, waits) in [(0, 0), (1, 1), (30, 30), (31, 30), (u64::MAX, 30)] {
            assert_eq!(limit(asked), Duration::from_secs(waits));
        }
    }
}
