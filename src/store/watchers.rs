//! In-process notice that an intent changed, for requests that wait (`waitSeconds`).
//!
//! A courtesy, not a truth: a notice says "look again", and whoever waits looks at the store. On a
//! follower no notice comes, so waiters look again by themselves now and then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::domain::intent::IntentId;

/// Requests that may wait at once; further ones are answered without waiting.
pub const MAX_WAITERS: usize = 10_000;

#[derive(Clone, Default)]
pub struct IntentWatchers {
    watched: Arc<Mutex<HashMap<IntentId, Waited>>>,
    closed: Arc<AtomicBool>,
}

struct Waited {
    changed: Arc<Notify>,
    waiters: usize,
}

impl IntentWatchers {
    /// Begins to watch an intent; `None` if too many are being watched.
    pub fn watch(&self, id: &IntentId) -> Option<Watch> {
        let mut watched = self.lock();
        if watched.len() >= MAX_WAITERS {
            return None;
        }
        let entry =
            watched.entry(id.clone()).or_insert_with(|| Waited { changed: Arc::new(Notify::new()), waiters: 0 });
        entry.waiters += 1;
        Some(Watch { notices: self.clone(), id: id.clone(), changed: Arc::clone(&entry.changed) })
    }

    pub fn publish(&self, id: &IntentId) {
        if let Some(waited) = self.lock().get(id) {
            waited.changed.notify_waiters();
            // For one who is between looking and waiting.
            waited.changed.notify_one();
        }
    }

    /// Ends all waiting, now and from now on: the service stops.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.lock().values().for_each(|waited| waited.changed.notify_waiters());
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IntentId, Waited>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Watch {
    notices: IntentWatchers,
    id: IntentId,
    changed: Arc<Notify>,
}

impl Watch {
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.notices.lock();
        if let Some(entry) = watched.get_mut(&self.id) {
            entry.waiters -= 1;
            if entry.waiters == 0 {
                watched.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_notice_reaches_every_watcher_and_nothing_is_left_behind() {
        let notices = IntentWatchers::default();
        let id = IntentId::parse("a").unwrap();
        let (first, second) = (notices.watch(&id).unwrap(), notices.watch(&id).unwrap());
        let both = async { tokio::join!(first.changed(), second.changed()) };
        tokio::join!(both, async { notices.publish(&id) });
        drop((first, second));
        assert!(notices.lock().is_empty());
    }

    #[tokio::test]
    async fn a_notice_between_looking_and_waiting_is_not_missed() {
        let notices = IntentWatchers::default();
        let id = IntentId::parse("a").unwrap();
        let watch = notices.watch(&id).unwrap();
        notices.publish(&id);
        watch.changed().await;
    }
}
