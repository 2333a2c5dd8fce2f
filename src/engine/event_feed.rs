//! `EventFeed`: gives new events to all requests and streams of this instance that wait for them.
//!
//! One task reads the feed from the store and sends each event once to all subscribers. It reads while there are subscribers
//! only: when this instance has ended an intent, and at short intervals, because other instances end intents too. Subscribers
//! do not read the store while they wait, and sending never waits for them: one that falls too far behind is dropped, and can
//! go on from its position.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::broadcast::{self, Receiver, Sender};

use crate::platform::clock::monotonic;
use crate::store::client::StoreClient;
use crate::store::{Event, EventFilter, EventPage, EventPosition, EventQuery, EventRead, EventsAfter, StoreError};

/// How many events a subscriber may be behind. All subscribers share the events, which take about a kilobyte each.
const CAPACITY: usize = 2048;
/// How many events are read at once.
const PAGE: usize = 512;
/// The pause between two reads if this instance has ended no intent.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The shortest pause between two reads, so that busy instances read many events at once.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// The pause after a failed read.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// How long the task goes on to read after the last subscriber has left: requests that wait often come again.
const LINGER: Duration = Duration::from_secs(5);
/// How long a new subscriber waits for the task to start reading.
const START_LIMIT: Duration = Duration::from_secs(5);

/// An event on its way to the subscribers.
pub struct LiveEvent {
    pub event: Event,
    text: OnceLock<Arc<str>>,
}

impl LiveEvent {
    /// The event as text. Only the first subscriber makes the text.
    pub fn text(&self, make: impl FnOnce(&Event) -> Arc<str>) -> Arc<str> {
        Arc::clone(self.text.get_or_init(|| make(&self.event)))
    }
}

/// Gives new events to subscribers. Clones share everything.
#[derive(Clone)]
pub struct EventFeed(Arc<Shared>);

struct Shared {
    store: StoreClient,
    state: Mutex<State>,
    /// Notified when there is a subscriber.
    subscribed: Notify,
    /// Notified when the progress changes. It wakes waiting subscribers in the order in which they came, so that a
    /// simulation can repeat a run; a `watch` channel would wake them in a random order.
    progressed: Notify,
}

struct State {
    subscribers: usize,
    /// `None` once the feed is closed.
    events: Option<Sender<Arc<LiveEvent>>>,
    /// How far the task has come; `None` while it does not read.
    progress: Option<Progress>,
}

/// How far the task has come.
#[derive(Clone, Copy)]
struct Progress {
    /// A subscriber that subscribes now may not get events up to this position. They are in the store.
    reading: EventPosition,
    /// All events up to this position were sent.
    sent: EventPosition,
}

impl EventFeed {
    pub fn new(store: StoreClient) -> Self {
        let state = State { subscribers: 0, events: Some(broadcast::channel(CAPACITY).0), progress: None };
        let (subscribed, progressed) = (Notify::new(), Notify::new());
        Self(Arc::new(Shared { store, state: Mutex::new(state), subscribed, progressed }))
    }

    /// Ends all subscriptions for good, because the service stops.
    pub fn close(&self) {
        self.state().events = None;
    }

    /// Whether all subscriptions have ended for good.
    pub fn is_closed(&self) -> bool {
        self.state().events.is_none()
    }

    /// Subscribes to new events. `None` if the feed is closed or the store does not answer.
    pub async fn subscribe(&self) -> Option<Subscription> {
        let events = {
            let mut state = self.state();
            let events = state.events.as_ref()?.subscribe();
            state.subscribers += 1;
            events
        };
        let mut subscription = Subscription { feed: self.clone(), events, from: EventPosition::START };
        self.0.subscribed.notify_one();
        subscription.from = tokio::time::timeout(START_LIMIT, self.started()).await.ok()?.reading;
        Some(subscription)
    }

    /// Waits until the task reads, and returns how far it has come.
    async fn started(&self) -> Progress {
        loop {
            let progressed = self.0.progressed.notified();
            if let Some(progress) = self.state().progress {
                return progress;
            }
            progressed.await;
        }
    }

    fn set_progress(&self, progress: Option<Progress>) {
        self.state().progress = progress;
        self.0.progressed.notify_waiters();
    }

    /// Reads the feed for the subscribers. Never returns.
    pub async fn run(self) {
        loop {
            while self.state().subscribers == 0 {
                self.0.subscribed.notified().await;
            }
            let end = self.read(EventsAfter::Now).await;
            match end {
                Ok(EventRead::Page(page)) => self.follow(page.next).await,
                Ok(EventRead::Expired | EventRead::Ahead) => {}
                Err(error) => {
                    log::warn!("event_feed_failed store_error={error:?}");
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
            }
        }
    }

    /// Sends all events after a position, until there are no subscribers any more.
    async fn follow(&self, mut position: EventPosition) {
        self.set_progress(Some(Progress { reading: position, sent: position }));
        let (mut last_subscriber, mut more, mut failed) = (monotonic(), false, false);
        loop {
            if !more {
                let _ended_or_timed_out = tokio::time::timeout(POLL_INTERVAL, self.0.store.intents_ended()).await;
            }
            if self.state().subscribers > 0 {
                last_subscriber = monotonic();
            } else if monotonic().duration_since(last_subscriber) >= LINGER && self.stop_following() {
                return;
            }
            match self.read(EventsAfter::Position(position)).await {
                Ok(EventRead::Page(page)) => {
                    (position, more, failed) = (page.next, !page.at_end, false);
                    self.send(page);
                    tokio::time::sleep(MIN_PAUSE).await;
                }
                Ok(EventRead::Expired | EventRead::Ahead) => {
                    log::warn!(
                        "event_feed_restarted why=\"events were deleted before they were read, or the store was restored\""
                    );
                    self.restart();
                    return;
                }
                Err(error) => {
                    if !std::mem::replace(&mut failed, true) {
                        log::warn!("event_feed_failed store_error={error:?}");
                    }
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
            }
        }
    }

    async fn read(&self, after: EventsAfter) -> Result<EventRead, StoreError> {
        self.0.store.events(EventQuery { after, filter: EventFilter::All, limit: PAGE, examine: PAGE }).await
    }

    /// Sends a page to all subscribers. Its end is announced first: a later subscriber reads the page from the store.
    fn send(&self, EventPage { events, next, .. }: EventPage) {
        let sent = self.state().progress.map_or(next, |progress| progress.sent);
        if !events.is_empty() {
            self.set_progress(Some(Progress { reading: next, sent }));
            let sender = self.state().events.clone();
            for event in events {
                // Without subscribers nobody needs it.
                let _subscribers = sender.as_ref().map(|sender| {
                    sender.send(Arc::new(LiveEvent { event, text: OnceLock::new() })).unwrap_or_default()
                });
            }
        }
        self.set_progress(Some(Progress { reading: next, sent: next }));
    }

    /// Stops reading if there is no subscriber. Returns whether that is so.
    fn stop_following(&self) -> bool {
        let mut state = self.state();
        if state.subscribers == 0 {
            state.progress = None;
        }
        state.subscribers == 0
    }

    /// Ends all subscriptions. New ones start at the end of the feed.
    fn restart(&self) {
        let mut state = self.state();
        state.events = state.events.as_ref().map(|_| broadcast::channel(CAPACITY).0);
        state.progress = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The new events for one subscriber. Dropping it ends the subscription.
pub struct Subscription {
    feed: EventFeed,
    events: Receiver<Arc<LiveEvent>>,
    from: EventPosition,
}

/// Why a subscription has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The subscriber was too slow.
    TooSlow,
    /// The service stops, or the feed starts anew.
    Closed,
}

impl Subscription {
    /// The position after which all events are received. Some before it are received too.
    pub fn from(&self) -> EventPosition {
        self.from
    }

    /// Waits for the next event.
    pub async fn next(&mut self) -> Result<Arc<LiveEvent>, Ended> {
        self.events.recv().await.map_err(|error| match error {
            broadcast::error::RecvError::Lagged(_) => Ended::TooSlow,
            broadcast::error::RecvError::Closed => Ended::Closed,
        })
    }

    /// Returns the next event if there is one already.
    pub fn try_next(&mut self) -> Option<Arc<LiveEvent>> {
        self.events.try_recv().ok()
    }

    /// The position up to which this subscriber has received everything, if it has received all that was sent.
    pub fn caught_up(&self) -> Option<EventPosition> {
        let sent = self.feed.state().progress.map(|progress| progress.sent);
        // The progress of a feed that has started anew says nothing about this subscription.
        sent.filter(|_| self.events.is_empty() && !self.events.is_closed())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.feed.state().subscribers -= 1;
    }
}
