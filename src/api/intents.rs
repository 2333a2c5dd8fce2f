//! `/v1/intents`: submit, look up, list.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::json::{ErrorJson, HistoryJson, IntentListJson, Refused, SubmitRequest};
use super::wait::{self, MAX_WAIT_SECONDS};
use crate::domain::client::Scope;
use crate::domain::intent::{Intent, IntentId, Payload, Status, TargetName};
use crate::domain::intent_json::{IntentJson, StatusName};
use crate::domain::time::Timestamp;
use crate::store::{Conflict, ListQuery, NewIntent, PageCursor, Submitted};
use crate::web::body;
use crate::web::error::ApiError;
use crate::web::query::{Query, whole_number};
use crate::web::{ENVELOPE_BYTES, WebDeps, auth, trace};

const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: usize = 200;

/// Submit an intent
///
/// Answers as soon as the intent is durable; the first attempt is made at once. Submitting the
/// same id, target and payload again is safe and returns the existing intent.
#[utoipa::path(post, path = "/v1/intents", tag = "intents", operation_id = "submitIntent",
    security((), ("bearer" = ["intents:write"])),
    params(
        ("waitSeconds" = Option<u64>, Query, description = "Answer after the first attempt has finished, \
            but at the latest after so many seconds; above 30 counts as 30"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context; passed on to the gateway"),
    ),
    request_body = SubmitRequest,
    responses(
        (status = 200, description = "The intent, new or existing", body = IntentJson,
            headers(("Idempotent-Replayed" = String, description = "true when the intent existed"))),
        (status = 400, description = "The request is not right, or the target unknown", body = ErrorJson),
        (status = 408, description = "The body did not arrive in time", body = ErrorJson),
        (status = 409, description = "The id exists with another target or payload", body = ErrorJson),
        (status = 413, description = "The payload is too large", body = ErrorJson),
        Refused,
    ))]
pub async fn submit(
    request: HttpRequest,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    auth::allow(&request, &deps, Scope::IntentsWrite)?;
    let query = Query::parse(request.query_string(), &["waitSeconds"])?;
    let patience = query.get("waitSeconds", "a whole number of seconds", whole_number)?;
    let (body, room) = body::read(payload, deps.max_payload_bytes + ENVELOPE_BYTES).await?;
    let (id, target, payload) = parse_submission(&body, deps.max_payload_bytes)?;

    // Before the intent exists, so that no notice can come too early.
    let watch = patience.and_then(|_| deps.watchers.watch(&id));
    let submitted = match deps.registry.get().contract(&target) {
        Some(contract) => {
            let trace = trace::given(&request);
            deps.store.submit(NewIntent { id, contract, payload, trace, job: None }).await?
        }
        None => replay_of_retired_target(&deps, id, &target, &payload).await?,
    };
    drop(room);
    let (mut intent, replayed) = match submitted {
        Submitted::Created(intent) => (intent, false),
        Submitted::Existing(intent) => (intent, true),
        Submitted::Conflict(conflict) => return Err(conflicting(conflict)),
    };
    if let (Some(seconds), Some(watch)) = (patience, watch) {
        let patience = Duration::from_secs(seconds.min(MAX_WAIT_SECONDS));
        intent = wait::for_first_attempt(&deps, intent, &watch, patience).await;
    }
    let mut response = HttpResponse::Ok();
    if replayed {
        response.insert_header(("Idempotent-Replayed", "true"));
    }
    Ok(response.json(IntentJson::from(&intent)))
}

/// What a body asks for. The payload is a slice of the body.
pub fn parse_submission(body: &web::Bytes, max_payload: usize) -> Result<(IntentId, TargetName, Payload), ApiError> {
    let invalid = |text: String| ApiError::InvalidRequest(text);
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(invalid("the body must be a JSON object".to_owned()));
    }
    let request: SubmitRequest<'_> =
        serde_json::from_slice(body).map_err(|error| invalid(format!("the body is not as expected: {error}")))?;
    let id = IntentId::parse(&request.intent_id).map_err(|fault| invalid(format!("intentId {fault}")))?;
    if id.is_reserved() {
        return Err(invalid(format!("intentId must not begin with {:?}, which is for jobs", IntentId::OF_JOBS)));
    }
    let target =
        TargetName::parse(&request.submission_target).map_err(|fault| invalid(format!("submissionTarget {fault}")))?;
    let payload = request.payload.map(|raw| raw.get().as_bytes()).unwrap_or_default();
    if payload.len() > max_payload {
        return Err(ApiError::PayloadTooLarge { what: "payload", limit: max_payload });
    }
    Ok((id, target, Payload::new(body.slice_ref(payload))))
}

/// A target that left the registry takes no new intents, but those it had are still answered for.
async fn replay_of_retired_target(
    deps: &WebDeps,
    id: IntentId,
    target: &TargetName,
    payload: &Payload,
) -> Result<Submitted, ApiError> {
    match deps.store.find(id).await? {
        Some(found) => Ok(found.resubmitted(target, payload)),
        None => Err(ApiError::InvalidRequest(format!("submissionTarget {target:?} is not in the registry"))),
    }
}

fn conflicting(conflict: Conflict) -> ApiError {
    ApiError::IdempotencyConflict { conflict: Box::new(conflict) }
}

/// Look up an intent
#[utoipa::path(get, path = "/v1/intents/{intentId}", tag = "intents", operation_id = "getIntent",
    security((), ("bearer" = ["intents:read"])),
    params(("intentId" = String, Path, description = "Percent-encoded where a URL needs it")),
    responses(
        (status = 200, body = IntentJson, description = "The intent"),
        (status = 404, body = ErrorJson, description = "No such intent"),
        Refused,
    ))]
pub async fn get(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    auth::allow(&request, &deps, Scope::IntentsRead)?;
    let id = known_id(&path)?;
    let found = deps.store.find(id).await?.ok_or_else(|| no_such_intent(&path))?;
    Ok(HttpResponse::Ok().json(IntentJson::from(&found.intent)))
}

/// An intent with every attempt
#[utoipa::path(get, path = "/v1/intents/{intentId}/history", tag = "intents", operation_id = "getIntentHistory",
    security((), ("bearer" = ["intents:read"])),
    params(("intentId" = String, Path, description = "Percent-encoded where a URL needs it")),
    responses(
        (status = 200, body = HistoryJson, description = "The intent and its attempts in order"),
        (status = 404, body = ErrorJson, description = "No such intent"),
        Refused,
    ))]
pub async fn history(
    request: HttpRequest,
    path: web::Path<String>,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    auth::allow(&request, &deps, Scope::IntentsRead)?;
    let id = known_id(&path)?;
    let history = deps.store.history(id).await?.ok_or_else(|| no_such_intent(&path))?;
    Ok(HttpResponse::Ok().json(HistoryJson::from(&history)))
}

/// An id that could not have been submitted here cannot exist here either: a job's is its tenant's.
pub fn known_id(raw: &str) -> Result<IntentId, ApiError> {
    let id = IntentId::parse(raw).ok().filter(|id| !id.is_reserved());
    id.ok_or_else(|| no_such_intent(raw))
}

pub fn no_such_intent(id: &str) -> ApiError {
    ApiError::NotFound(format!("there is no intent {id:?}"))
}

/// List intents, newest first
#[utoipa::path(get, path = "/v1/intents", tag = "intents", operation_id = "listIntents",
    security((), ("bearer" = ["intents:read"])),
    params(
        ("q" = Option<String>, Query, description = "Only those that a gateway gave exactly this id, newest first, and then those whose own id begins with it, in the order of ids; each once"),
        ("status" = Option<StatusName>, Query, description = "Only these"),
        ("submissionTarget" = Option<String>, Query, description = "Only of this target"),
        ("createdAfter" = Option<String>, Query, description = "Only created after this moment, such as 2026-11-16T09:00:00Z"),
        ("createdBefore" = Option<String>, Query, description = "Only created before this moment, such as 2026-11-16T09:00:00Z"),
        ("limit" = Option<u64>, Query, minimum = 1, description = "How many on a page: 50, or up to 200"),
        ("cursor" = Option<String>, Query, description = "nextCursor of the page before"),
    ),
    responses(
        (status = 200, body = IntentListJson, description = "A page of intents"),
        (status = 400, body = ErrorJson, description = "A parameter is not right"),
        Refused,
    ))]
pub async fn list(request: HttpRequest, deps: web::Data<WebDeps>) -> Result<HttpResponse, ApiError> {
    auth::allow(&request, &deps, Scope::IntentsRead)?;
    let page = deps.store.list(list_query(request.query_string())?).await?;
    let list = IntentListJson {
        intents: page.intents.iter().map(|intent: &Intent| intent.into()).collect(),
        next_cursor: page.next.as_ref().map(cursor_text),
    };
    Ok(HttpResponse::Ok().json(list))
}

/// Also what the console is asked for.
pub fn list_query(text: &str) -> Result<ListQuery, ApiError> {
    const MOMENT: &str = "a time such as 2026-11-16T09:00:00Z";
    let known = ["q", "status", "submissionTarget", "createdAfter", "createdBefore", "limit", "cursor"];
    let query = Query::parse(text, &known)?;
    let prefix = query.get("q", "an id or how it begins", |text| Some(text.trim().to_owned()))?;
    let prefix = prefix.filter(|prefix| !prefix.is_empty());
    let behind = query.get("cursor", "the nextCursor of a page before", cursor_of)?;
    if behind.as_ref().is_some_and(|behind| matches!(behind, PageCursor::Newer { .. }) == prefix.is_some()) {
        return Err(ApiError::InvalidRequest("cursor is of another list: with q, or without".to_owned()));
    }
    Ok(ListQuery {
        prefix,
        status: query.get("status", "pending, accepted, rejected or exhausted", Status::parse)?,
        target: query.get("submissionTarget", "the name of a target", |text| TargetName::parse(text).ok())?,
        created_after: query.get("createdAfter", MOMENT, Timestamp::parse)?,
        created_before: query.get("createdBefore", MOMENT, Timestamp::parse)?,
        limit: page_limit(&query)?,
        after: behind,
    })
}

/// How many on a page of any list.
pub fn page_limit(query: &Query) -> Result<usize, ApiError> {
    let limit = query.get("limit", "a whole number from 1 on", |text| {
        whole_number(text).filter(|limit| *limit >= 1).map(|limit| usize::try_from(limit).unwrap_or(MAX_PAGE))
    })?;
    Ok(limit.unwrap_or(DEFAULT_PAGE).min(MAX_PAGE))
}

/// A cursor is opaque to clients; its letter says of which kind it is.
pub fn cursor_text(behind: &PageCursor) -> String {
    let moment_and_id = |created_at: &Timestamp, id: &IntentId| {
        format!("{:x}.{}", created_at.micros(), URL_SAFE_NO_PAD.encode(id.as_str()))
    };
    match behind {
        PageCursor::Newer { created_at, id } => format!("t{}", moment_and_id(created_at, id)),
        PageCursor::Message { created_at, id } => format!("m{}", moment_and_id(created_at, id)),
        PageCursor::Id(id) => format!("i{}", URL_SAFE_NO_PAD.encode(id.as_str())),
    }
}

/// A moment in a cursor, if it is one that a store can hold.
pub fn moment_of(micros: &str) -> Option<Timestamp> {
    const YEAR_9999: i64 = 253_370_764_800_000_000;
    let micros = i64::from_str_radix(micros, 16).ok().filter(|micros| (0..YEAR_9999).contains(micros))?;
    Some(Timestamp::from_micros(micros))
}

/// Taken back only as it was given.
fn cursor_of(text: &str) -> Option<PageCursor> {
    let id_of = |encoded: &str| {
        let id = URL_SAFE_NO_PAD.decode(encoded).ok()?;
        IntentId::parse(std::str::from_utf8(&id).ok()?).ok().filter(|id| !id.is_reserved())
    };
    let moment_and_id = |rest: &str| {
        let (micros, id) = rest.split_once('.')?;
        Some((moment_of(micros)?, id_of(id)?))
    };
    let behind = if let Some(rest) = text.strip_prefix('t') {
        let (created_at, id) = moment_and_id(rest)?;
        PageCursor::Newer { created_at, id }
    } else if let Some(rest) = text.strip_prefix('m') {
        let (created_at, id) = moment_and_id(rest)?;
        PageCursor::Message { created_at, id }
    } else {
        PageCursor::Id(id_of(text.strip_prefix('i')?)?)
    };
    (cursor_text(&behind) == text).then_some(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_bytes_are_those_of_the_request() {
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
            let (id, target, kept) = parse(body).unwrap();
            assert_eq!((id.as_str(), target.as_str(), kept.bytes().as_ref()), ("a", "t", payload.as_bytes()));
        }
    }

    #[test]
    fn bad_submissions_say_what_is_wrong() {
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
    fn cursors_are_taken_back_only_as_they_were_given() {
        let id = IntentId::parse("é/ order").unwrap();
        let newer = PageCursor::Newer { created_at: Timestamp::from_micros(4711), id: id.clone() };
        let message = PageCursor::Message { created_at: Timestamp::from_micros(4711), id: id.clone() };
        for behind in [newer, message, PageCursor::Id(id)] {
            assert_eq!(cursor_of(&cursor_text(&behind)), Some(behind));
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
            assert_eq!(cursor_of(text), None, "{text:?}");
        }
    }

    #[test]
    fn list_parameters() {
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
