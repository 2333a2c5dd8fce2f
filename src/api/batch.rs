//! `POST /v1/intents/batch`: submit up to a thousand intents with one request, each with a result of its own.

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, ResponseError, web};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::intents::{Submission, parse_submission, replay_for_unregistered_target, too_far_ahead};
use super::json::{BatchItemJson, BatchResultsJson, CommonErrors, ErrorJson, SubmitRequest};
use crate::domain::intent::Payload;
use crate::domain::trace::TraceContext;
use crate::store::{NewIntent, StoreError, Submitted};
use crate::web::error::ApiError;
use crate::web::query::Query;
use crate::web::{WebDeps, trace};

/// The most submissions in one request. As many fit into one commit of the embedded store.
const MAX_ITEMS: usize = 1000;
/// The most bytes in one request: room for a thousand items of the usual few kilobytes, and a small part of a server's
/// memory.
const MAX_BYTES: usize = 8 * 1024 * 1024;

const NDJSON: &str = "application/x-ndjson";

/// Submit many intents
///
/// Takes 1 to 1,000 submissions as a JSON array or, with `Content-Type: application/x-ndjson`, as one JSON object for each line.
/// Responds when all of them are stored durably. Each item succeeds or fails alone; `results` has the order of the request.
/// Submitting the same items again is safe.
#[utoipa::path(post, path = "/v1/intents/batch", tag = "intents", operation_id = "submitIntentBatch",
    security((), ("bearer" = ["intents:write"])),
    params(("traceparent" = Option<String>, Header, description = "W3C trace context; forwarded to the gateways")),
    request_body(content((Vec<SubmitRequest> = "application/json"), (String = "application/x-ndjson"))),
    responses(
        (status = 200, description = "The result of each submission, in order", body = BatchResultsJson),
        (status = 400, description = "The body cannot be read, or does not have 1 to 1,000 submissions", body = ErrorJson),
        (status = 408, description = "The request body did not arrive in time", body = ErrorJson),
        (status = 413, description = "The body has more than 8 MiB", body = ErrorJson),
        CommonErrors,
    ))]
pub(super) async fn submit_batch(
    request: HttpRequest,
    payload: web::Payload,
    deps: web::Data<WebDeps>,
) -> Result<HttpResponse, ApiError> {
    Query::parse(request.query_string(), &[])?;
    let (body, reservation) = deps.bodies.read(payload, MAX_BYTES).await?;
    let submissions = parse_batch(&body, is_ndjson(&request), deps.max_payload_bytes)?;
    drop(body);
    let results = submit_all(&deps, submissions, trace::of_request(&request)).await?;
    drop(reservation);
    let results = results.iter().map(|result| match result {
        Ok((intent, replayed)) => BatchItemJson::stored(intent, *replayed),
        Err(error) => BatchItemJson::failed(error.status_code().as_u16(), error.json()),
    });
    Ok(HttpResponse::Ok().json(BatchResultsJson { results: results.collect() }))
}

fn is_ndjson(request: &HttpRequest) -> bool {
    let value = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(NDJSON))
}

type Parsed = Result<Submission, ApiError>;

/// Parses the body of a batch. A body that is no list of 1 to 1,000 items fails as a whole.
pub(super) fn parse_batch(body: &Bytes, ndjson: bool, max_payload: usize) -> Result<Vec<Parsed>, ApiError> {
    let items: Vec<&[u8]> = if ndjson {
        body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()).collect()
    } else {
        let items: Vec<&RawValue> = serde_json::from_slice(body).map_err(|error| {
            ApiError::InvalidRequest(format!("the body must be a JSON array of submissions: {error}"))
        })?;
        items.into_iter().map(|item| item.get().as_bytes()).collect()
    };
    if items.is_empty() || items.len() > MAX_ITEMS {
        let (count, most) = (items.len(), MAX_ITEMS);
        return Err(ApiError::InvalidRequest(format!("the body must have 1 to {most} submissions, not {count}")));
    }
    Ok(items.into_iter().map(|item| parse_item(&body.slice_ref(item), max_payload)).collect())
}

/// Parses one item. Its payload is copied, so that it does not keep the whole body in memory until its attempt has ended.
fn parse_item(item: &Bytes, max_payload: usize) -> Parsed {
    let submission = parse_submission(item, max_payload)?;
    let payload = Payload::new(Bytes::copy_from_slice(submission.payload.bytes()));
    Ok(Submission { payload, ..submission })
}

type ItemResult = Result<(crate::domain::intent::Intent, bool), ApiError>;

/// Stores all valid submissions together; returns the result of each item, with whether its intent existed before.
async fn submit_all(
    deps: &WebDeps,
    submissions: Vec<Parsed>,
    trace: Option<TraceContext>,
) -> Result<Vec<ItemResult>, ApiError> {
    let registry = deps.registry.get();
    let (mut new, mut results) = (Vec::with_capacity(submissions.len()), Vec::with_capacity(submissions.len()));
    for submission in submissions {
        // `None` stands for the next result of the store.
        results.push(match submission {
            Err(error) => Some(Err(error)),
            Ok(Submission { id, target, payload, not_before }) => match registry.contract(&target) {
                Some(contract) => {
                    new.push(NewIntent { id, contract, payload, not_before, redrive: None, trace, job: None });
                    None
                }
                None => {
                    let replayed = replay_for_unregistered_target(deps, id, &target, &payload, not_before).await;
                    Some(replayed.and_then(item_result))
                }
            },
        });
    }
    let mut stored = deps.store.submit_all(new).await?.into_iter();
    let next = |result: Option<ItemResult>| {
        let lost = || Err(StoreError::unavailable("an item of a batch has no result"));
        result.unwrap_or_else(|| stored.next().unwrap_or_else(lost).map_err(ApiError::from).and_then(item_result))
    };
    Ok(results.into_iter().map(next).collect())
}

fn item_result(submitted: Submitted) -> ItemResult {
    match submitted {
        Submitted::Created(intent) => Ok((intent, false)),
        Submitted::Existing(intent) => Ok((intent, true)),
        Submitted::Conflict(conflict) => Err(ApiError::IdempotencyConflict { conflict: Box::new(conflict) }),
        Submitted::TooFarAhead => Err(too_far_ahead()),
        Submitted::AlreadyRedriven => Err(ApiError::Internal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str, ndjson: bool) -> Result<Vec<Parsed>, ApiError> {
        parse_batch(&Bytes::copy_from_slice(body.as_bytes()), ndjson, 64)
    }

    #[test]
    fn both_forms_keep_the_bytes_of_every_payload() {
        let array = r#" [ {"intentId":"a","submissionTarget":"t","payload": { "b" : 1.0e0 } },
            {"submissionTarget":"t","intentId":"b"}] "#;
        let lines = "{\"intentId\":\"a\",\"submissionTarget\":\"t\",\"payload\": { \"b\" : 1.0e0 } }\r\n\n\
            {\"submissionTarget\":\"t\",\"intentId\":\"b\"}";
        for (body, ndjson) in [(array, false), (lines, true)] {
            let items: Vec<_> = parse(body, ndjson).unwrap().into_iter().map(Result::unwrap).collect();
            let read: Vec<_> = items.iter().map(|item| (item.id.as_str(), item.payload.bytes().as_ref())).collect();
            assert_eq!(read, [("a", r#"{ "b" : 1.0e0 }"#.as_bytes()), ("b", b"".as_slice())], "{body}");
        }
    }

    #[test]
    fn an_item_fails_alone_and_an_unreadable_body_as_a_whole() {
        let good = r#"{"intentId":"a","submissionTarget":"t"}"#;
        let large = format!(r#"{{"intentId":"a","submissionTarget":"t","payload":"{}"}}"#, "x".repeat(63));
        for bad in ["[]", "7", r#"{"intentId":"a"}"#, "[[]]", &large] {
            let items = parse(&format!("[{good},{bad},{good}]"), false).unwrap();
            assert_eq!(items.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true], "{bad}");
        }
        for (body, ndjson) in [("", false), ("{}", false), ("[", false), ("[]", false), ("", true), (" \n\n", true)] {
            assert!(matches!(parse(body, ndjson), Err(ApiError::InvalidRequest(_))), "{body:?}");
        }
        let half = format!("{good}\n{}", &good[..20]);
        assert_eq!(parse(&half, true).unwrap().iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false]);
        let invalid =
            Bytes::from([good.as_bytes(), b"\n{\"intentId\":\"\xff\",\"submissionTarget\":\"t\"}\n"].concat());
        let items = parse_batch(&invalid, true, 64).unwrap();
        assert_eq!(items.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false]);
        for (count, fits) in [(1000, true), (1001, false)] {
            assert_eq!(parse(&vec![good; count].join("\n"), true).is_ok(), fits);
            assert_eq!(parse(&format!("[{}]", vec![good; count].join(",")), false).is_ok(), fits);
        }
    }
}
