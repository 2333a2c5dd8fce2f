//! `FeedReader`: reads a feed for one client. It reads pages of the store until it has caught up, then new events as
//! they happen.
//!
//! A reader that has caught up subscribes to the new events, which a task of this instance reads for all readers.
//! Events from before the subscription are in the store, so the reader then reads the store once more, and skips events
//! that it gets twice.

use std::sync::Arc;
use std::time::Duration;

use super::cursor::FeedKind;
use crate::api::jobs::events::JobEventJson;
use crate::domain::event_json::EventJson;
use crate::domain::job::SubmissionId;
use crate::engine::event_feed::{Ended, LiveEvent, Subscription};
use crate::platform::clock::monotonic;
use crate::store::{Event, EventFilter, EventPosition, EventQuery, EventRead, EventSubject, EventsAfter, StoreError};
use crate::web::WebDeps;
use crate::web::error::ApiError;

/// How many events a reader with a filter examines at once, so that no read takes long, however rare its events are.
const EXAMINE: usize = 2000;

/// Which events a reader wants, and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feed {
    pub kind: FeedKind,
    pub filter: EventFilter,
    pub after: EventsAfter,
}

/// An event for a client.
pub(crate) struct SentEvent {
    /// The cursor after this event.
    pub cursor: String,
    /// The event as JSON.
    pub json: Arc<str>,
}

/// Why a reader gets no more events.
pub(crate) enum ReadError {
    Api(ApiError),
    /// The client reads too slowly.
    TooSlow,
    /// The service stops.
    Closed,
}

impl From<Ended> for ReadError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::TooSlow => Self::TooSlow,
            Ended::Closed => Self::Closed,
        }
    }
}

/// A reader of a feed.
pub(crate) struct FeedReader {
    deps: WebDeps,
    feed: Feed,
    /// Set by the first read.
    position: Option<EventPosition>,
    /// The last event that the reader got, if it is of a job.
    last_job: Option<(EventPosition, SubmissionId)>,
    /// Whether the last page reached the end of the feed.
    at_end: bool,
    live: Option<Subscription>,
}

impl FeedReader {
    pub(crate) fn new(deps: WebDeps, feed: Feed) -> Self {
        Self { deps, feed, position: None, last_job: None, at_end: false, live: None }
    }

    /// Whether the last page reached the end of the feed.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// Reads a page of at most `limit` events from the store. It may be empty although there are more events, if the filter
    /// leaves out all that were examined.
    pub(crate) async fn page(&mut self, limit: usize) -> Result<Vec<SentEvent>, ApiError> {
        let after = self.position.map_or(self.feed.after, EventsAfter::Position);
        let filter = self.feed.filter.clone();
        let is_rare = !matches!(filter, EventFilter::All | EventFilter::Intents { target: None });
        let examine = if is_rare { EXAMINE.max(limit) } else { limit };
        let page = match self.deps.store.events(EventQuery { after, filter, limit, examine }).await? {
            EventRead::Page(page) => page,
            EventRead::Expired => return Err(ApiError::CursorExpired),
            EventRead::Ahead => {
                let text = "this cursor is later than everything in the store: it belongs to another store, or the store was \
                            restored from an earlier backup; omit the parameter after to start at the oldest event";
                return Err(ApiError::InvalidRequest(text.to_owned()));
            }
        };
        let events = page.events.iter().map(|event| self.sent(event, json_of(event))).collect();
        (self.position, self.at_end) = (Some(page.next), page.at_end);
        Ok(events)
    }

    /// Returns the next events: at most `limit`, and none if the filter excludes all that were examined. At the end of
    /// the feed it waits for new ones. Dropping the future loses no event.
    pub(crate) async fn next(&mut self, limit: usize) -> Result<Vec<SentEvent>, ReadError> {
        if self.deps.events.is_closed() {
            return Err(ReadError::Closed);
        }
        if self.at_end && self.live.is_none() {
            let unavailable = || match self.deps.events.is_closed() {
                true => ReadError::Closed,
                false => ReadError::Api(StoreError::unavailable("the event feed cannot be read").into()),
            };
            self.live = Some(self.deps.events.subscribe().await.ok_or_else(unavailable)?);
        }
        match &self.live {
            Some(live) if self.position >= Some(live.from()) => self.new_events(limit).await,
            _ => self.page(limit).await.map_err(ReadError::Api),
        }
    }

    /// Waits up to `duration` for new events. Returns none if none came in that time, or if the feed has ended.
    pub(crate) async fn wait(&mut self, limit: usize, duration: Duration) -> Vec<SentEvent> {
        let end = monotonic() + duration;
        loop {
            match tokio::time::timeout_at(end, self.next(limit)).await {
                Ok(Ok(events)) if events.is_empty() => {}
                Ok(Ok(events)) => return events,
                // The client keeps its cursor and asks again.
                Ok(Err(_)) | Err(_) => return Vec::new(),
            }
        }
    }

    /// Waits for an event that the filter includes, and returns it with all others that have arrived by then.
    async fn new_events(&mut self, limit: usize) -> Result<Vec<SentEvent>, ReadError> {
        let mut events = Vec::new();
        while let Some(live) = &mut self.live
            && events.len() < limit
        {
            let next = match live.try_next() {
                Some(next) => next,
                None if events.is_empty() => live.next().await?,
                None => break,
            };
            events.extend(self.new_event(&next));
        }
        Ok(events)
    }

    /// Moves the position to after this event. Returns the event if it is new and the filter includes it.
    fn new_event(&mut self, live: &LiveEvent) -> Option<SentEvent> {
        let event = &live.event;
        if Some(event.position) <= self.position {
            return None;
        }
        self.position = Some(event.position);
        self.feed.filter.includes(event).then(|| self.sent(event, live.text(json_of)))
    }

    fn sent(&mut self, event: &Event, json: Arc<str>) -> SentEvent {
        if let EventSubject::Job(job) = &event.subject {
            self.last_job = Some((event.position, job.id));
        }
        SentEvent { cursor: self.feed.kind.cursor(event.position, self.last_job), json }
    }

    /// The cursor from which the reader continues: after all events that it has returned or that its filter has
    /// excluded.
    pub(crate) fn cursor(&mut self) -> String {
        let caught_up =
            self.live.as_ref().filter(|live| self.position >= Some(live.from())).and_then(|live| live.caught_up());
        self.position = self.position.max(caught_up);
        self.feed.kind.cursor(self.position.unwrap_or(EventPosition::START), self.last_job)
    }
}

fn json_of(event: &Event) -> Arc<str> {
    let json = match &event.subject {
        EventSubject::Intent(intent) => serde_json::to_string(&EventJson::from(intent)),
        EventSubject::Job(job) => serde_json::to_string(&JobEventJson::from(&**job)),
    };
    // Both types always have a JSON form.
    json.unwrap_or_default().into()
}
