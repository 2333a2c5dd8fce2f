//! Readers of the event feed: each follows its cursor from one instance to the next, and must see every end of an intent
//! once, in the order of the commits.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use super::activities::Followed;
use super::checks::Promise;
use super::faults::Fault;
use super::fleet::{Fleet, PATIENCE};
use super::instance::Running;
use super::jobs::TENANT;
use super::rows::Row;
use super::store::pass;
use super::targets::TARGETS;
use super::world::World;
use crate::api::events;
use crate::api::events::cursor::FeedKind;
use crate::api::events::reader::{Feed, FeedReader};
use crate::domain::intent::IntentId;
use crate::domain::job::SubmissionId;
use crate::store::{EventFilter, EventsAfter};
use crate::web::error::ApiError;

/// A reader of the feed.
struct Reader {
    world: Arc<World>,
    followed: Followed,
    /// The `nextCursor` of the last page.
    cursor: Option<String>,
    /// How many of the ends that the world has seen are before the next event.
    position: usize,
    /// Events may have been deleted before the reader got them, so the next one may be any later one.
    skipped: bool,
}

/// A page: its events as JSON, the cursor after it, and whether it reaches the end of the feed.
struct Page {
    events: Vec<Arc<str>>,
    cursor: String,
    at_end: bool,
}

/// Follows the feed until everything has ended and was read.
pub(super) async fn follow(fleet: &Rc<Fleet>, followed: Followed, limit: usize, wait_seconds: u64) {
    let world = Arc::clone(&fleet.world);
    // A reader without a cursor starts at the oldest event that retention has left.
    let skipped = world.plan.faults.contains(&Fault::Retention);
    let mut reader = Reader { world: Arc::clone(&world), followed, cursor: None, position: 0, skipped };
    loop {
        let ended = world.state().all_ended;
        let feed = reader.feed();
        let page = fleet
            .request(PATIENCE, move |running| Box::pin(async move { page(&running, feed, limit, wait_seconds).await }));
        match page.await {
            Some(Ok(page)) => {
                world.log(format_args!("reader got {} events, then {}", page.events.len(), page.cursor));
                page.events.iter().for_each(|event| reader.got(event));
                reader.cursor = Some(page.cursor);
                if ended && page.at_end && page.events.is_empty() {
                    return reader.check_all_read();
                }
            }
            Some(Err(ApiError::CursorExpired)) => reader.expired(),
            Some(Err(error @ ApiError::InvalidRequest(_))) => {
                return world.check(Promise::FeedComplete, false, || format!("a cursor was refused: {error}"));
            }
            Some(Err(error)) => world.log(format_args!("reader: {}", error.code())),
            None => world.log(format_args!("reader: no answer")),
        }
        let pause = world.draw_millis(10, 1_000);
        pass(pause).await;
    }
}

/// Reads a page inside an instance, as the API does.
async fn page(running: &Running, feed: Feed, limit: usize, wait_seconds: u64) -> Result<Page, ApiError> {
    let mut reader = FeedReader::new(running.web.clone(), feed);
    let events = events::read(&mut reader, limit, Some(wait_seconds)).await?;
    let events = events.into_iter().map(|event| event.json).collect();
    Ok(Page { events, cursor: reader.cursor(), at_end: reader.is_at_end() })
}

impl Reader {
    fn feed(&self) -> Feed {
        let (kind, filter) = match self.followed {
            Followed::Intents => (FeedKind::Intents, EventFilter::Intents { target: None }),
            Followed::Target(target) => {
                (FeedKind::Intents, EventFilter::Intents { target: Some(TARGETS[target].parsed_name()) })
            }
            Followed::Jobs => (FeedKind::Jobs, EventFilter::Jobs { tenant: TENANT.to_owned(), workspaces: None }),
        };
        let after = self.cursor.as_ref().map_or(EventsAfter::Oldest, |cursor| kind.parse(cursor).unwrap());
        Feed { kind, filter, after }
    }

    /// Whether the reader wants the end of an intent.
    fn wants(&self, row: &Row) -> bool {
        let is_job = row.id.starts_with(IntentId::OF_JOBS);
        match self.followed {
            Followed::Intents => !is_job,
            Followed::Target(target) => {
                !is_job && self.world.contract(row.contract).target.as_str() == TARGETS[target].name
            }
            Followed::Jobs => is_job,
        }
    }

    /// The ends that the reader has still to get: their places in the order of the commits, ids and statuses.
    fn left(&self) -> Vec<(usize, String, String)> {
        let rows: Vec<Row> = {
            let state = self.world.state();
            let ended = state.ledgers.changes.ended.iter().skip(self.position);
            ended.map(|seq| state.ledgers.changes.rows[seq].clone()).collect()
        };
        let left = (self.position..).zip(rows).filter(|(_, row)| self.wants(row));
        left.map(|(place, row)| (place, row.id, row.status)).collect()
    }

    /// Checks that an event is the next one.
    fn got(&mut self, event: &str) {
        let json: Value = serde_json::from_str(event).unwrap();
        let (id, status) = match self.followed {
            Followed::Jobs => {
                let id = SubmissionId::parse(json["job"]["submission_id"].as_str().unwrap()).unwrap();
                (IntentId::of_job(id).to_string(), json["job"]["status"].as_str().unwrap())
            }
            _ => (json["intent"]["intentId"].as_str().unwrap().to_owned(), json["intent"]["status"].as_str().unwrap()),
        };
        let left = self.left();
        let is_it = |(_, other, ended_as): &(usize, String, String)| *other == id && ended_as == status;
        // After a deletion the id may have been used again, for the intent that ended last.
        let found = if self.skipped { left.iter().rposition(is_it) } else { left.iter().position(is_it) };
        let kept = found.is_some_and(|place| place == 0 || self.skipped);
        self.world.check(Promise::FeedComplete, kept, || {
            format!("a reader got the end of {id} as {status}, and the next ones are {:?}", left.iter().take(3))
        });
        if let Some(place) = found {
            (self.position, self.skipped) = (left[place].0 + 1, false);
        }
    }

    /// Starts again at the oldest event, because events after the cursor were deleted.
    fn expired(&mut self) {
        let possible = self.world.plan.faults.contains(&Fault::Retention);
        self.world.check(Promise::FeedComplete, possible, || format!("cursor {:?} has expired", self.cursor));
        (self.cursor, self.skipped) = (None, true);
    }

    /// Checks at the end that no event is missing. Events that retention deleted may be.
    fn check_all_read(&self) {
        let left = self.left();
        self.world.check(Promise::FeedComplete, left.is_empty() || self.skipped, || {
            format!("a reader has not got the ends of {left:?}")
        });
    }
}
