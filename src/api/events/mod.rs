//! `/v1/events`: how intents ended, in the order of commits, as pages and as a stream.
//!
//! [`reader`] reads a feed, [`cursor`] converts positions to cursors and back, and [`stream`] makes the responses of
//! streams. `src/api/jobs/events.rs` serves the same for the jobs of a tenant.

pub(crate) mod cursor;
pub(crate) mod reader;
pub(super) mod stream;

use actix_web::http::Method;
use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use self::cursor::FeedKind;
use self::reader::{Feed, FeedReader, SentEvent};
use self::stream::SentEventJson;
use super::json::{CommonErrors, ErrorJson};
use super::wait;
use crate::domain::client::Scope;
use crate::domain::event_json::EventJson;
use crate::domain::intent::TargetName;
use crate::domain::webhook::EVENT_TYPE;
use crate::store::{EventFilter, EventsAfter};
use crate::web::error::ApiError;
use crate::web::query::{Query, whole_number};
use crate::web::{WebDeps, auth};

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;
/// How many reads of the store one request may take to find the first event of its filter.
const MAX_READS: usize = 10;

/// A page of events.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = EventList)]
struct EventListJson<'a> {
    #[schema(value_type = Vec<EventJson>)]
    events: Vec<&'a RawValue>,
    /// Pass this as `after` to get the next events.
    #[schema(example = "e65c0b2f3c5d40")]
    next_cursor: String,
    /// `true` if there may be more events already: send the next request immediately. Absent at the end of the feed.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<bool>,
}

/// Read events
///
/// An event says that an intent has reached its final status; it is the same that a webhook would carry. The feed has the
/// events of all intents, with or without a webhook, in the order in which they were stored. A reader that always passes
/// `nextCursor` of the last response as `after` gets every event once, from any instance.
#[utoipa::path(get, path = "/v1/events", tag = "events", operation_id = "listEvents",
    security((), ("bearer" = ["intents:read"])),
    params(
        ("after" = Option<String>, Query, description = "`nextCursor` of the previous response, or `now` for the end of the feed; by default the oldest event that is kept"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 100 by default; values above 1,000 count as 1,000"),
        ("waitSeconds" = Option<u64>, Query, description = "If there are no events yet, wait for one, but at most this many seconds; values above 30 count as 30"),
        ("submissionTarget" = Option<String>, Query, description = "Only events of intents of this target"),
    ),
    responses(
        (status = 200, body = EventListJson, description = "The next events. The list may be empty although more events follow, if the filter excluded all that were examined; `nextCursor` advances in any case"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid, or the cursor is of another list or another store"),
        (status = 410, body = ErrorJson, description = "`cursor_expired`: events after the cursor were deleted"),
        CommonErrors,
    ))]
pub(super) async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = Query::parse(request.query_string(), &["after", "limit", "waitSeconds", "submissionTarget"])?;
    let feed = feed(&query, cursor_of(&query, FeedKind::Intents)?)?;
    let mut reader = FeedReader::new(deps.as_ref().clone(), feed);
    let events = read(&mut reader, page_limit(&query)?, wait_seconds(&query, "waitSeconds")?).await?;
    Ok(HttpResponse::Ok().json(EventListJson {
        events: raw(&events)?,
        next_cursor: reader.cursor(),
        more: more(&reader),
    }))
}

/// Follow events
///
/// The same events as server-sent events: `event` is the type of the event, `data` the event, and `id` the cursor after
/// it. The stream ends after an hour, and when the client reads too slowly, the token is no longer valid or the
/// instance stops. Then connect again with `Last-Event-ID`, as browsers do by themselves. While there are no events, a
/// comment is sent every 15 s; its `id` is a newer cursor.
#[utoipa::path(get, path = "/v1/events/stream", tag = "events", operation_id = "streamEvents",
    security((), ("bearer" = ["intents:read"])),
    params(
        ("after" = Option<String>, Query, description = "A cursor, or `now` for the end of the feed; by default the oldest event that is kept"),
        ("submissionTarget" = Option<String>, Query, description = "Only events of intents of this target"),
        ("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last event that the client got; it takes precedence over `after`"),
    ),
    responses(
        (status = 200, body = inline(SentEventJson), content_type = "text/event-stream", description = "Server-sent events, each with these fields"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid, or the cursor is of another list or another store"),
        (status = 410, body = ErrorJson, description = "`cursor_expired`: events after the cursor were deleted"),
        CommonErrors,
    ))]
pub(super) async fn stream(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let query = Query::parse(request.query_string(), &["after", "submissionTarget"])?;
    let feed = feed(&query, start_of_stream(&request, &query, FeedKind::Intents)?)?;
    let reader = FeedReader::new(deps.as_ref().clone(), feed);
    let (is_head, checked) = (*request.method() == Method::HEAD, deps.clone());
    let is_allowed = move || auth::authorize(&request, &checked, Scope::IntentsRead).is_ok();
    stream::respond(&deps, is_head, reader, EVENT_TYPE, is_allowed).await
}

fn feed(query: &Query, after: EventsAfter) -> Result<Feed, ApiError> {
    let target = query.get("submissionTarget", "the name of a target", |text| TargetName::parse(text).ok())?;
    Ok(Feed { kind: FeedKind::Intents, filter: EventFilter::Intents { target }, after })
}

/// Where a reader starts: the parameter `after`.
pub(super) fn cursor_of(query: &Query, kind: FeedKind) -> Result<EventsAfter, ApiError> {
    Ok(query.get("after", kind.expected(), |text| kind.parse(text))?.unwrap_or(EventsAfter::Oldest))
}

/// Where a stream starts: the header `Last-Event-ID`, or else the parameter `after`. When a browser reconnects, it
/// sends a new header but the old parameter.
pub(super) fn start_of_stream(request: &HttpRequest, query: &Query, kind: FeedKind) -> Result<EventsAfter, ApiError> {
    let last = request.headers().get("Last-Event-ID").map(|value| value.to_str().unwrap_or("�"));
    match last.filter(|text| !text.is_empty()) {
        Some(text) => kind.parse(text).ok_or_else(|| {
            ApiError::InvalidRequest(format!("Last-Event-ID must be {}, not {text:?}", kind.expected()))
        }),
        None => cursor_of(query, kind),
    }
}

/// The page size: the parameter `limit`.
pub(super) fn page_limit(query: &Query) -> Result<usize, ApiError> {
    let limit = query.get("limit", "a whole number of at least 1", |text| {
        whole_number(text).filter(|limit| *limit >= 1).map(|limit| usize::try_from(limit).unwrap_or(MAX_PAGE))
    })?;
    Ok(limit.unwrap_or(DEFAULT_PAGE).min(MAX_PAGE))
}

/// How long to wait for an event: the parameter with this name.
pub(super) fn wait_seconds(query: &Query, name: &str) -> Result<Option<u64>, ApiError> {
    query.get(name, "a whole number of seconds", whole_number)
}

/// Reads a page; if it is empty, waits for the next event.
pub(crate) async fn read(
    reader: &mut FeedReader,
    limit: usize,
    wait_seconds: Option<u64>,
) -> Result<Vec<SentEvent>, ApiError> {
    for _ in 0..MAX_READS {
        let events = reader.page(limit).await?;
        if !events.is_empty() {
            return Ok(events);
        }
        if reader.is_at_end() {
            break;
        }
    }
    match wait_seconds.filter(|seconds| *seconds > 0 && reader.is_at_end()) {
        Some(seconds) => Ok(reader.wait(limit, wait::limit(seconds)).await),
        None => Ok(Vec::new()),
    }
}

/// The value of `more` in a page: `true` if there may be more events already, else absent.
pub(super) fn more(reader: &FeedReader) -> Option<bool> {
    (!reader.is_at_end()).then_some(true)
}

/// The events as JSON for a list.
pub(super) fn raw(events: &[SentEvent]) -> Result<Vec<&RawValue>, ApiError> {
    events.iter().map(|event| serde_json::from_str(&event.json).map_err(|_| ApiError::Internal)).collect()
}
