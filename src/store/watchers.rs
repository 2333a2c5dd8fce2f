//! Tells requests that wait for an intent (`waitSeconds`) that the intent has changed in this process.
//!
//! A notification carries no data: the waiting request reads the intent from the store again. Changes that other instances
//! make cause no notification here, so waiting requests also read the store from time to time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::domain::intent::IntentId;

/// Intents that may be watched at the same time. Requests for further ones are answered without waiting.
pub const MAX_WAITERS: usize = 10_000;

/// The intents that requests of this process watch. Clones share them.
#[derive(Clone, Default)]
pub struct IntentWatchers {
    watched: Arc<Mutex<HashMap<IntentId, WatchedIntent>>>,
    closed: Arc<AtomicBool>,
}

struct WatchedIntent {
    changed: Arc<Notify>,
    watchers: usize,
}

impl IntentWatchers {
    /// Starts to watch an intent; `None` if too many are being watched.
    pub fn watch(&self, id: &IntentId) -> Option<Watch> {
        let mut watched = self.lock();
        if watched.len() >= MAX_WAITERS {
            return None;
        }
        let entry = watched
            .entry(id.clone())
            .or_insert_with(|| WatchedIntent { changed: Arc::new(Notify::new()), watchers: 0 });
        entry.watchers += 1;
        Some(Watch { all: self.clone(), id: id.clone(), changed: Arc::clone(&entry.changed) })
    }

    /// Notifies the watchers of an intent that it has changed.
    pub fn publish(&self, id: &IntentId) {
        if let Some(watched) = self.lock().get(id) {
            watched.changed.notify_waiters();
            // For a watcher that has read the store and does not wait yet.
            watched.changed.notify_one();
        }
    }

    /// Ends all waiting for good, because the service stops.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.lock().values().for_each(|watched| watched.changed.notify_waiters());
    }

    /// Whether all waiting has ended for good.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, WatchedIntent>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One watcher of an intent. Dropping it ends the watch.
pub struct Watch {
    all: IntentWatchers,
    id: IntentId,
    changed: Arc<Notify>,
}

impl Watch {
    /// Resolves when the intent has changed, or all waiting ends.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.all.lock();
        if let Some(entry) = watched.get_mut(&self.id) {
            entry.watchers -= 1;
            if entry.watchers == 0 {
                watched.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_notification_reaches_every_watcher_and_ended_watches_are_removed() {
        let watchers = IntentWatchers::default();
        let id = IntentId::parse("a").unwrap();
        let (first, second) = (watchers.watch(&id).unwrap(), watchers.watch(&id).unwrap());
        let both = async { tokio::join!(first.changed(), second.changed()) };
        tokio::join!(both, async { watchers.publish(&id) });
        drop((first, second));
        assert!(watchers.lock().is_empty());
    }

    #[tokio::test]
    async fn a_notification_between_reading_and_waiting_is_not_missed() {
        let watchers = IntentWatchers::default();
        let id = IntentId::parse("a").unwrap();
        let watch = watchers.watch(&id).unwrap();
        watchers.publish(&id);
        watch.changed().await;
    }
}
