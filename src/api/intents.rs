//! `/v1/intents`: submit an intent, get it with its history, list intents.

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::json::{CommonErrors, ErrorJson, HistoryJson, IntentListJson, SubmitRequest};
use super::wait;
use crate::domain::intent::{Intent, IntentId, Payload, Status, TargetName};
use crate::domain::intent_json::{IntentJson, StatusName};
use crate::domain::redrive::RedriveId;
use crate::domain::time::Timestamp;
use crate::store::{Examined, ListOrder, ListQuery, MAX_AHEAD, NewIntent, PageCursor, Submitted};
use crate::web::error::ApiError;
use crate::web::query::{Query, whole_number};
use crate::web::{ENVELOPE_BYTES, WebDeps, trace};

const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: usize = 200;
/// What a time must be, in error messages.
const TIME: &str = "a time such as 2026-11-16T09:00:00Z";

/// Submit an intent
///
/// Responds as soon as the intent is stored durably. The first attempt starts as soon as the limits of attempts in
/// progress allow. Submitting the same id, target, payload and `notBefore` again is safe and returns the existing intent.
#[utoipa::path(post, path = "/v1/intents", tag = "intents", operation_id = "submitIntent",
    security((), ("bearer" = ["intents:write"])),
    params(
        ("waitSeconds" = Option<u64>, Query, description = "Wait until the first attempt has finished, but at most \
            this many seconds; values above 30 count as 30"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context; forwarded to the gateway"),
    ),
    request_body = SubmitRequest,
    responses(
        (status = 200, description = "The intent, new or existing", body = IntentJson,
            headers(("Idempotent-Replayed" = String, description = "`true` if the intent already existed"))),
        (status = 400, description = "The request is invalid, or the target is not in the registry", body = ErrorJson),
        (status = 408, description = "The request body did not arrive in time", body = ErrorJson),
        (status = 409, description = "The id already exists with a different target, payload or `notBefore`", body = ErrorJson),
        (status = 413, description = "The payload is too large", body = ErrorJson),
        CommonErrors,
    ))]
pub async fn submit(
    request: HttpRequest,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    let query = Query::parse(request.query_string(), &["waitSeconds"])?;
    let wait_seconds = query.get("waitSeconds", "a whole number of seconds", whole_number)?;
    let (body, reservation) = deps.bodies.read(payload, deps.max_payload_bytes + ENVELOPE_BYTES).await?;
    let Submission { id, target, payload, not_before } = parse_submission(&body, deps.max_payload_bytes)?;

    // Watch before the intent exists, so that no notification is missed.
    let watch = wait_seconds.and_then(|_| deps.watchers.watch(&id));
    let submitted = match deps.registry.get().contract(&target) {
        Some(contract) => {
            let trace = trace::of_request(&request);
            let new = NewIntent { id, contract, payload, not_before, redrive: None, trace, job: None };
            deps.store.submit(new).await?
        }
        None => replay_for_unregistered_target(&deps, id, &target, &payload, not_before).await?,
    };
    drop(reservation);
    let (mut intent, replayed) = match submitted {
        Submitted::Created(intent) => (intent, false),
        Submitted::Existing(intent) => (intent, true),
        Submitted::Conflict(conflict) => {
            return Err(ApiError::IdempotencyConflict { conflict: Box::new(conflict) });
        }
        Submitted::TooFarAhead => return Err(too_far_ahead()),
        Submitted::AlreadyRedriven => return Err(ApiError::Internal),
    };
    if let (Some(seconds), Some(watch)) = (wait_seconds, watch) {
        intent = wait::for_first_attempt(&deps.store, &deps.watchers, intent, &watch, wait::limit(seconds)).await;
    }
    let mut response = HttpResponse::Ok();
    if replayed {
        response.insert_header(("Idempotent-Replayed", "true"));
    }
    Ok(response.json(IntentJson::from(&intent)))
}

/// The error of a submission whose `notBefore` is too late.
pub(super) fn too_far_ahead() -> ApiError {
    let days = MAX_AHEAD.as_secs() / (24 * 60 * 60);
    ApiError::InvalidRequest(format!("notBefore must be at most {days} days ahead"))
}

/// What a client submits.
#[derive(Debug, PartialEq, Eq)]
pub struct Submission {
    pub id: IntentId,
    pub target: TargetName,
    pub payload: Payload,
    pub not_before: Option<Timestamp>,
}

/// Parses the body of a submission. The payload is a slice of the body, so it keeps the exact bytes of the client.
pub fn parse_submission(body: &web::Bytes, max_payload: usize) -> Result<Submission, ApiError> {
    let invalid = |text: String| ApiError::InvalidRequest(text);
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(invalid("the body must be a JSON object".to_owned()));
    }
    let request: SubmitRequest<'_> =
        serde_json::from_slice(body).map_err(|error| invalid(format!("the body is invalid: {error}")))?;
    let id = IntentId::parse(&request.intent_id).map_err(|error| invalid(format!("intentId {error}")))?;
    if id.is_reserved() {
        let prefix = IntentId::OF_JOBS;
        return Err(invalid(format!("intentId must not start with {prefix:?}, which is reserved for jobs")));
    }
    let target =
        TargetName::parse(&request.submission_target).map_err(|error| invalid(format!("submissionTarget {error}")))?;
    let payload = request.payload.map(|raw| raw.get().as_bytes()).unwrap_or_default();
    if payload.len() > max_payload {
        return Err(ApiError::PayloadTooLarge { what: "payload", limit: max_payload });
    }
    let parse_time = |text: String| Timestamp::parse(&text).ok_or_else(|| invalid(format!("notBefore must be {TIME}")));
    let not_before = request.not_before.map(parse_time).transpose()?;
    Ok(Submission { id, target, payload: Payload::new(body.slice_ref(payload)), not_before })
}

/// Handles a submission for a target that is not in the registry. New intents are refused, but an intent that was accepted
/// while the target was registered is still returned.
pub(super) async fn replay_for_unregistered_target(
    deps: &WebDeps,
    id: IntentId,
    target: &TargetName,
    payload: &Payload,
    not_before: Option<Timestamp>,
) -> Result<Submitted, ApiError> {
    match deps.store.find(id).await? {
        Some(found) => Ok(found.resubmitted(target, payload, not_before)),
        None => Err(ApiError::InvalidRequest(format!("submissionTarget {target:?} is not in the registry"))),
    }
}

/// Get an intent
#[utoipa::path(get, path = "/v1/intents/{intentId}", tag = "intents", operation_id = "getIntent",
    security((), ("bearer" = ["intents:read"])),
    params(("intentId" = String, Path, description = "The id of the intent, percent-encoded")),
    responses(
        (status = 200, body = IntentJson, description = "The intent"),
        (status = 404, body = ErrorJson, description = "No such intent"),
        CommonErrors,
    ))]
pub async fn get(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let id = parse_id(&path)?;
    let found = deps.store.find(id).await?.ok_or_else(|| no_such_intent(&path))?;
    Ok(HttpResponse::Ok().json(IntentJson::from(&found.intent)))
}

/// Get an intent with all its attempts
#[utoipa::path(get, path = "/v1/intents/{intentId}/history", tag = "intents", operation_id = "getIntentHistory",
    security((), ("bearer" = ["intents:read"])),
    params(("intentId" = String, Path, description = "The id of the intent, percent-encoded")),
    responses(
        (status = 200, body = HistoryJson, description = "The intent, its attempts in order, and its webhook if it has one"),
        (status = 404, body = ErrorJson, description = "No such intent"),
        CommonErrors,
    ))]
pub async fn history(path: web::Path<String>, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let id = parse_id(&path)?;
    let history = deps.store.history(id).await?.ok_or_else(|| no_such_intent(&path))?;
    Ok(HttpResponse::Ok().json(HistoryJson::from(&history)))
}

/// Parses the id of an intent. An invalid id, or the reserved id of a job, gets the same 404 as one that does not exist:
/// jobs are visible only to their tenant, through `/v1/jobs`.
pub fn parse_id(raw: &str) -> Result<IntentId, ApiError> {
    let id = IntentId::parse(raw).ok().filter(|id| !id.is_reserved());
    id.ok_or_else(|| no_such_intent(raw))
}

pub fn no_such_intent(id: &str) -> ApiError {
    ApiError::NotFound(format!("no such intent: {id:?}"))
}

/// List intents, newest first
#[utoipa::path(get, path = "/v1/intents", tag = "intents", operation_id = "listIntents",
    security((), ("bearer" = ["intents:read"])),
    params(
        ("q" = Option<String>, Query, description = "Text to search for. The list begins with the intents for which a gateway returned exactly this text as its message id, newest first; then come the intents whose id starts with this text, in order of their ids"),
        ("status" = Option<StatusName>, Query, description = "Only intents with this status"),
        ("submissionTarget" = Option<String>, Query, description = "Only intents of this target"),
        ("redriveId" = Option<String>, Query, description = "Only intents that this redrive created"),
        ("createdAfter" = Option<String>, Query, description = "Only intents created after this time, such as 2026-11-16T09:00:00Z"),
        ("createdBefore" = Option<String>, Query, description = "Only intents created before this time, such as 2026-11-16T09:00:00Z"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "Page size: 50 by default; values above 200 count as 200"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous page"),
    ),
    responses(
        (status = 200, body = IntentListJson, description = "A page of intents"),
        (status = 400, body = ErrorJson, description = "A parameter is invalid"),
        CommonErrors,
    ))]
pub async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    let page = deps.store.list(list_query(request.query_string())?).await?;
    let list = IntentListJson {
        intents: page.intents.iter().map(|intent: &Intent| intent.into()).collect(),
        next_cursor: page.next.as_ref().map(cursor_text),
    };
    Ok(HttpResponse::Ok().json(list))
}

/// Parses the query string of a list of intents. The console accepts the same parameters.
pub fn list_query(text: &str) -> Result<ListQuery, ApiError> {
    let known = ["q", "status", "submissionTarget", "redriveId", "createdAfter", "createdBefore", "limit", "cursor"];
    let query = Query::parse(text, &known)?;
    let prefix = query.get("q", "an id or its first characters", |text| Some(text.trim().to_owned()))?;
    let prefix = prefix.filter(|prefix| !prefix.is_empty());
    let behind = query.get("cursor", "the nextCursor of the previous page", parse_cursor)?;
    if behind.as_ref().is_some_and(|behind| matches!(behind, PageCursor::Newer { .. }) == prefix.is_some()) {
        let text = "this cursor belongs to a different list; cursors of lists with and without q cannot be mixed";
        return Err(ApiError::InvalidRequest(text.to_owned()));
    }
    Ok(ListQuery {
        redrive: query.get("redriveId", "the id of a redrive", RedriveId::parse)?,
        prefix,
        status: query.get("status", "pending, accepted, rejected or exhausted", Status::parse)?,
        target: query.get("submissionTarget", "the name of a target", |text| TargetName::parse(text).ok())?,
        created_after: query.get("createdAfter", TIME, Timestamp::parse)?,
        created_before: query.get("createdBefore", TIME, Timestamp::parse)?,
        examined: Examined::default(),
        order: ListOrder::NewestFirst,
        limit: page_limit(&query)?,
        after: behind,
    })
}

/// The page size of any list: the `limit` parameter, bounded by `MAX_PAGE`.
pub fn page_limit(query: &Query) -> Result<usize, ApiError> {
    let limit = query.get("limit", "a whole number of at least 1", |text| {
        whole_number(text).filter(|limit| *limit >= 1).map(|limit| usize::try_from(limit).unwrap_or(MAX_PAGE))
    })?;
    Ok(limit.unwrap_or(DEFAULT_PAGE).min(MAX_PAGE))
}

/// The text of a cursor, which is opaque to clients. Its first letter is the kind of cursor.
pub fn cursor_text(cursor: &PageCursor) -> String {
    let time_and_id = |created_at: &Timestamp, id: &IntentId| {
        format!("{:x}.{}", created_at.micros(), URL_SAFE_NO_PAD.encode(id.as_str()))
    };
    match cursor {
        PageCursor::Newer { created_at, id } => format!("t{}", time_and_id(created_at, id)),
        PageCursor::Message { created_at, id } => format!("m{}", time_and_id(created_at, id)),
        PageCursor::Id(id) => format!("i{}", URL_SAFE_NO_PAD.encode(id.as_str())),
    }
}

/// Parses the time in a cursor. `None` if the stores cannot hold that time.
pub fn cursor_time(micros: &str) -> Option<Timestamp> {
    let micros = i64::from_str_radix(micros, 16).ok().filter(|micros| *micros >= 0)?;
    Some(Timestamp::from_micros(micros)).filter(|time| *time <= Timestamp::LATEST)
}

/// Parses a cursor. Accepts only text that [`cursor_text`] produces.
pub fn parse_cursor(text: &str) -> Option<PageCursor> {
    let id_of = |encoded: &str| {
        let id = URL_SAFE_NO_PAD.decode(encoded).ok()?;
        IntentId::parse(std::str::from_utf8(&id).ok()?).ok().filter(|id| !id.is_reserved())
    };
    let time_and_id = |rest: &str| {
        let (micros, id) = rest.split_once('.')?;
        Some((cursor_time(micros)?, id_of(id)?))
    };
    let cursor = if let Some(rest) = text.strip_prefix('t') {
        let (created_at, id) = time_and_id(rest)?;
        PageCursor::Newer { created_at, id }
    } else if let Some(rest) = text.strip_prefix('m') {
        let (created_at, id) = time_and_id(rest)?;
        PageCursor::Message { created_at, id }
    } else {
        PageCursor::Id(id_of(text.strip_prefix('i')?)?)
    };
    (cursor_text(&cursor) == text).then_some(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_keeps_the_bytes_of_the_request() {
        let parse = |text: &'static str| parse_submission(&web::Bytes::from_static(text.as_bytes()), 64);
        for (body, payload) in [
            (r#"{"intentId":"a","submissionTarget":"t"}"#, ""),
            (r#"{"intentId":"a","submissionTarget":"t","payload":null}"#, "null"),
            (
                r#" {"payload": { "b" : 1.0e0,"a":"\u00e9" } ,"submissionTarget":"t","intentId":"a"} "#,
                r#"{ "b" : 1.0e0,"a":"\u00e9" }"#,
            ),
            (r#"{"intentId":"a","submissionTarget":"t","payload":"x"}"#, "\"x\""),
        ] {
            let parsed = parse(body).unwrap();
            let bytes = parsed.payload.bytes().as_ref();
            assert_eq!((parsed.id.as_str(), parsed.target.as_str(), bytes), ("a", "t", payload.as_bytes()));
        }
    }

    #[test]
    fn errors_of_invalid_submissions_say_what_is_wrong() {
        for (body, expected) in [
            ("", "must be a JSON object"),
            ("{", "EOF"),
            (r#"{"intentId":"a","submissionTarget":"t"} x"#, "trailing characters"),
            (r#"{"submissionTarget":"t"}"#, "missing field `intentId`"),
            (r#"{"intentId":"a"}"#, "missing field `submissionTarget`"),
            (r#"{"intentId":7,"submissionTarget":"t"}"#, "invalid type: integer"),
            (r#"{"intentId":null,"submissionTarget":"t"}"#, "invalid type: null"),
            (r#"{"intentId":" ","submissionTarget":"t"}"#, "intentId must not be empty"),
            (r#"{"intentId":"a","submissionTarget":"\u0000"}"#, "submissionTarget must not contain control"),
            (r#"{"intentId":"a","submissionTarget":"t","payLoad":1}"#, "unknown field `payLoad`"),
            (r#"{"intentId":"a","intentId":"b","submissionTarget":"t"}"#, "duplicate field `intentId`"),
            (r#"{"intentId":"a","submissionTarget":"t","payload":{"a":}}"#, "expected value"),
            (r#"["a","t",1]"#, "must be a JSON object"),
        ] {
            let error = parse_submission(&web::Bytes::copy_from_slice(body.as_bytes()), 64).unwrap_err();
            assert!(matches!(error, ApiError::InvalidRequest(_)), "{body}");
            assert!(error.to_string().contains(expected), "{body}: {error}");
        }
        let large = format!(r#"{{"intentId":"a","submissionTarget":"t","payload":"{}"}}"#, "x".repeat(63));
        let error = parse_submission(&web::Bytes::from(large), 64).unwrap_err();
        assert!(matches!(error, ApiError::PayloadTooLarge { limit: 64, .. }));
        assert!(parse_submission(&web::Bytes::from_static(b"{\"intentId\":\"\xff\"}"), 64).is_err());
    }

    #[test]
    fn only_cursors_of_this_service_are_accepted() {
        let id = IntentId::parse("é/ order").unwrap();
        let newer = PageCursor::Newer { created_at: Timestamp::from_micros(4711), id: id.clone() };
        let message = PageCursor::Message { created_at: Timestamp::from_micros(4711), id: id.clone() };
        for cursor in [newer, message, PageCursor::Id(id)] {
            assert_eq!(parse_cursor(&cursor_text(&cursor)), Some(cursor));
        }
        for text in [
            "",
            "t",
            "t1",
            "4711",
            "t-1.YQ",
            "t+1.YQ",
            "t01.YQ",
            "tFF.YQ",
            "mFF.YQ",
            "m1",
            "tffffffffffffffff.YQ",
            "t1.YQ ",
            "i",
            "i!",
            "iIA",
            "i_w",
            "iYR",
            "ic20tam9iOmE",
        ] {
            assert_eq!(parse_cursor(text), None, "{text:?}");
        }
    }

    #[test]
    fn list_parameters_are_checked() {
        let query =
            list_query("status=&limit=999&submissionTarget=a%20b&createdAfter=2026-01-01T00%3A00%3A00Z").unwrap();
        assert_eq!((query.status, query.limit), (None, MAX_PAGE));
        assert_eq!(query.target.unwrap().as_str(), "a b");
        assert!(query.created_after.is_some());
        assert_eq!(list_query("limit=99999999999999999999999").unwrap().limit, MAX_PAGE);
        for text in [
            "limit=-99999999999999999999999",
            "q=a&cursor=t1.YQ",
            "cursor=iYQ",
            "cursor=m1.YQ",
            "status=done",
            "limit=0",
            "limit=x",
            "cursor=1",
            "createdAfter=today",
            "stauts=x",
            "limit=1&limit=2",
        ] {
            assert!(matches!(list_query(text), Err(ApiError::InvalidRequest(_))), "{text}");
        }
    }
}
