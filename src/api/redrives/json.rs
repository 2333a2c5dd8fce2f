//! The JSON types of redrives, and the parsing of requests.

use std::collections::{BTreeMap, HashSet};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::PlanOrder;
use crate::domain::intent::{IntentId, MAX_NAME_CHARS, TargetName};
use crate::domain::outcome::MAX_CAUSE_CHARS;
use crate::domain::redrive::{
    Conditions, FailedStatus, MAX_INTENT_IDS, RedriveFilter, RedriveGroup, RedriveRate, RedriveState,
};
use crate::domain::time::Timestamp;
use crate::store::{Redrive, RedriveOutcomes};
use crate::web::error::ApiError;

/// The longest note, in characters.
const MAX_NOTE_CHARS: usize = 1000;

/// Which intents to redrive.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanRequest {
    #[serde(deserialize_with = "from_object")]
    pub filter: FilterJson,
    /// Whether to include intents whose last attempt was interrupted or timed out. Their gateway may have accepted
    /// them, so it may process them twice.
    #[serde(default)]
    pub include_unknown_outcome: bool,
    /// A note for other operators, such as the number of an incident.
    #[serde(default)]
    #[schema(max_length = 1000)]
    pub note: Option<String>,
}

/// Reads a filter from a JSON object. serde would also accept an array, as the values of the fields in their order, so `[]`
/// would be the filter that chooses everything.
fn from_object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FilterJson, D::Error> {
    let raw = Box::<RawValue>::deserialize(deserializer)?;
    let found = match raw.get().bytes().next() {
        Some(b'{') => return serde_json::from_str(raw.get()).map_err(D::Error::custom),
        Some(b'[') => "array",
        Some(b'"') => "string",
        Some(b'n') => "null",
        Some(b't' | b'f') => "boolean",
        _ => "number",
    };
    Err(D::Error::custom(format!("invalid type: {found}, filter must be an object")))
}

/// Chooses the failed intents that meet all given conditions; `{}` chooses all failed intents. `intentIds` cannot be
/// combined with other conditions.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schema(as = RedriveFilter)]
pub struct FilterJson {
    /// Both by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<FailedStatusName>>)]
    status: Option<Statuses>,
    /// A target of the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "sms.realtime")]
    submission_target: Option<String>,
    /// The `rejectedReason` or `exhaustedReason`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "deadline_exceeded", max_length = 200)]
    reason: Option<String>,
    /// Why the intent failed, as the console lists it: the rejection reason or error of the attempt that ended the intent,
    /// without details such as the body of an answer, and at most 60 characters of it. The `exhaustedReason` if no attempt
    /// ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "gateway answered HTTP 503", max_length = 60)]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    created_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    created_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    completed_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    completed_before: Option<String>,
    /// Only these intents, if they have failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 1000)]
    intent_ids: Option<Vec<String>>,
}

/// One status, or a list of them.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Statuses {
    One(String),
    Many(Vec<String>),
}

/// The statuses of intents that can be redriven.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum FailedStatusName {
    Rejected,
    Exhausted,
}

/// How to start a redrive.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartRequest {
    /// How many intents to create in a second; 10 by default.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    rate_per_second: Option<serde_json::Number>,
}

fn invalid(text: impl Into<String>) -> ApiError {
    ApiError::InvalidRequest(text.into())
}

/// Reads the JSON object of a body.
pub fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(invalid("the body must be a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| invalid(format!("the body is invalid: {error}")))
}

/// Reads the JSON object of a body that may be absent. A body of white space is not absent.
pub fn optional_object<'a, T: Deserialize<'a> + Default>(body: &'a [u8]) -> Result<T, ApiError> {
    if body.is_empty() { Ok(T::default()) } else { object(body) }
}

/// Parses the body of a plan.
pub fn parse_plan(body: &[u8]) -> Result<PlanOrder, ApiError> {
    let request: PlanRequest = object(body)?;
    let note = request.note.map(|note| note.trim().to_owned()).filter(|note| !note.is_empty());
    if note.as_ref().is_some_and(|note| note.chars().count() > MAX_NOTE_CHARS || note.chars().any(char::is_control)) {
        return Err(invalid(format!("note must have at most {MAX_NOTE_CHARS} characters and no control characters")));
    }
    Ok(PlanOrder { filter: parse_filter(request.filter)?, include_unknown: request.include_unknown_outcome, note })
}

fn parse_filter(filter: FilterJson) -> Result<RedriveFilter, ApiError> {
    let FilterJson { status, submission_target, reason, intent_ids, .. } = &filter;
    let times = [&filter.created_after, &filter.created_before, &filter.completed_after, &filter.completed_before];
    if let Some(ids) = intent_ids {
        let alone = status.is_none() && submission_target.is_none() && reason.is_none() && filter.cause.is_none();
        if !alone || times.into_iter().any(Option::is_some) {
            return Err(invalid("filter.intentIds cannot be combined with other conditions; leave them out"));
        }
        return parse_ids(ids).map(RedriveFilter::Ids);
    }
    let statuses = match status {
        None => Vec::new(),
        Some(Statuses::One(status)) => vec![parse_status(status)?],
        Some(Statuses::Many(list)) if list.is_empty() => {
            return Err(invalid("filter.status must not be empty; leave it out for both"));
        }
        Some(Statuses::Many(list)) => list.iter().map(|status| parse_status(status)).collect::<Result<_, _>>()?,
    };
    let target = submission_target
        .as_deref()
        .map(|target| TargetName::parse(target).map_err(|error| invalid(format!("filter.submissionTarget {error}"))));
    if reason.as_ref().is_some_and(|reason| reason.is_empty() || reason.chars().count() > MAX_NAME_CHARS) {
        return Err(invalid(format!("filter.reason must have 1 to {MAX_NAME_CHARS} characters")));
    }
    if filter.cause.as_ref().is_some_and(|cause| cause.is_empty() || cause.chars().count() > MAX_CAUSE_CHARS) {
        return Err(invalid(format!("filter.cause must have 1 to {MAX_CAUSE_CHARS} characters")));
    }
    let names = ["createdAfter", "createdBefore", "completedAfter", "completedBefore"];
    let mut moments = [None; 4];
    for ((text, name), moment) in times.into_iter().zip(names).zip(&mut moments) {
        let expected = || invalid(format!("filter.{name} must be a time such as 2026-11-16T09:00:00Z"));
        *moment = text.as_deref().map(|text| Timestamp::parse(text).ok_or_else(expected)).transpose()?;
    }
    let [created_after, created_before, completed_after, completed_before] = moments;
    Ok(RedriveFilter::Matching(Conditions {
        statuses,
        target: target.transpose()?,
        reason: filter.reason,
        cause: filter.cause,
        created_after,
        created_before,
        completed_after,
        completed_before,
    }))
}

fn parse_status(text: &str) -> Result<FailedStatus, ApiError> {
    FailedStatus::parse(text).ok_or_else(|| {
        invalid(format!(
            "filter.status must be rejected or exhausted, not {text:?}; only failed intents can be redriven"
        ))
    })
}

fn parse_ids(ids: &[String]) -> Result<Vec<IntentId>, ApiError> {
    if ids.is_empty() || ids.len() > MAX_INTENT_IDS {
        return Err(invalid(format!("filter.intentIds must have 1 to {MAX_INTENT_IDS} ids, not {}", ids.len())));
    }
    let mut seen = HashSet::new();
    let mut parsed = Vec::with_capacity(ids.len());
    for (place, text) in ids.iter().enumerate() {
        let id = IntentId::parse(text).map_err(|error| invalid(format!("filter.intentIds[{place}] {error}")))?;
        if id.is_reserved() {
            return Err(invalid(format!("filter.intentIds[{place}] is the id of a job; jobs cannot be redriven")));
        }
        if seen.insert(id.clone()) {
            parsed.push(id);
        }
    }
    Ok(parsed)
}

/// The filter as a redrive shows it.
pub fn filter_text(filter: &RedriveFilter) -> Result<String, ApiError> {
    let text = |moment: &Option<Timestamp>| moment.map(|moment| moment.to_string());
    let shown = match filter {
        RedriveFilter::Ids(ids) => {
            FilterJson { intent_ids: Some(ids.iter().map(ToString::to_string).collect()), ..FilterJson::default() }
        }
        RedriveFilter::Matching(conditions) => FilterJson {
            status: (!conditions.statuses.is_empty())
                .then(|| Statuses::Many(conditions.statuses.iter().map(|status| status.as_str().to_owned()).collect())),
            submission_target: conditions.target.as_ref().map(ToString::to_string),
            reason: conditions.reason.clone(),
            cause: conditions.cause.clone(),
            created_after: text(&conditions.created_after),
            created_before: text(&conditions.created_before),
            completed_after: text(&conditions.completed_after),
            completed_before: text(&conditions.completed_before),
            intent_ids: None,
        },
    };
    serde_json::to_string(&shown).map_err(|_| ApiError::Internal)
}

/// Parses the body of a start, which may be empty.
pub fn parse_start(body: &[u8]) -> Result<RedriveRate, ApiError> {
    let request: StartRequest = optional_object(body)?;
    let Some(number) = request.rate_per_second else { return Ok(RedriveRate::DEFAULT) };
    let rate = number.as_u64().and_then(|rate| u32::try_from(rate).ok()).and_then(RedriveRate::new);
    rate.ok_or_else(|| {
        invalid(format!("ratePerSecond must be a whole number from 1 to {}, not {number}", RedriveRate::MAX))
    })
}

/// A redrive: its plan, its state and its progress.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Redrive)]
pub struct RedriveJson<'a> {
    #[schema(example = "0b1f7f7e-3c55-4a39-9a52-0f3b6f6a9a11")]
    redrive_id: String,
    #[schema(value_type = RedriveStateName)]
    state: &'static str,
    #[schema(value_type = String, format = DateTime)]
    planned_at: Timestamp,
    /// Absent until the redrive is started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    /// When it was completed or cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    #[schema(value_type = FilterJson)]
    filter: Option<Box<RawValue>>,
    include_unknown_outcome: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    /// Absent until the redrive is started.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_second: Option<u32>,
    /// How many intents the plan has.
    count: u64,
    /// How many new intents were created so far.
    created: u64,
    /// How many intents of the plan were skipped because they were deleted or redriven separately, or because their
    /// target left the registry.
    skipped: u64,
    /// How many intents are still to be redriven.
    remaining: u64,
    outcomes: OutcomesJson,
    /// The intents of the plan by target, status and reason.
    #[schema(value_type = Vec<GroupJson>)]
    groups: &'a [RedriveGroup],
    /// How many failed intents that match the filter are not in the plan, by reason: `already_redriven`,
    /// `target_not_in_registry` and `outcome_unknown`.
    excluded: &'a BTreeMap<String, u64>,
    /// Up to ten ids of the plan, in the order in which they are redriven.
    sample: &'a [String],
}

/// The states of a redrive.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum RedriveStateName {
    Planned,
    Running,
    Paused,
    Completed,
    Cancelled,
}

/// The number of new intents with each status.
#[derive(Serialize, ToSchema)]
#[schema(as = RedriveOutcomes)]
pub struct OutcomesJson {
    pending: u64,
    accepted: u64,
    rejected: u64,
    exhausted: u64,
}

impl From<RedriveOutcomes> for OutcomesJson {
    fn from(outcomes: RedriveOutcomes) -> Self {
        let RedriveOutcomes { pending, accepted, rejected, exhausted } = outcomes;
        Self { pending, accepted, rejected, exhausted }
    }
}

/// How many intents of a plan share target, status and reason.
#[derive(ToSchema)]
#[schema(as = RedriveGroup, rename_all = "camelCase")]
#[expect(dead_code, reason = "describes the domain's type in the OpenAPI document")]
pub struct GroupJson {
    submission_target: String,
    #[schema(value_type = FailedStatusName)]
    status: String,
    reason: String,
    count: u64,
}

impl<'a> From<&'a Redrive> for RedriveJson<'a> {
    fn from(redrive: &'a Redrive) -> Self {
        let state: RedriveState = redrive.state;
        Self {
            redrive_id: redrive.id.to_string(),
            state: state.as_str(),
            planned_at: redrive.planned_at,
            started_at: redrive.started_at,
            ended_at: redrive.ended_at,
            filter: RawValue::from_string(redrive.filter.clone()).ok(),
            include_unknown_outcome: redrive.include_unknown,
            note: redrive.note.as_deref(),
            rate_per_second: redrive.rate.map(RedriveRate::per_second),
            count: redrive.count,
            created: redrive.created,
            skipped: redrive.skipped,
            remaining: redrive.remaining(),
            outcomes: redrive.outcomes.into(),
            groups: &redrive.plan.groups,
            excluded: &redrive.plan.excluded,
            sample: &redrive.plan.sample,
        }
    }
}

/// A page of redrives.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RedriveList)]
pub struct RedriveListJson<'a> {
    pub redrives: Vec<RedriveJson<'a>>,
    /// Pass this as `cursor` to get the next page; null on the last page.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_invalid_plans_say_what_is_wrong() {
        let many = serde_json::json!({ "filter": { "intentIds": vec!["a"; 1001] } }).to_string();
        let long = serde_json::json!({ "filter": {}, "note": "x".repeat(1001) }).to_string();
        for (body, expected) in [
            ("", "must be a JSON object"),
            ("[]", "must be a JSON object"),
            ("{}", "missing field `filter`"),
            (r#"{"filter":null}"#, "invalid type: null"),
            (r#"{"filter":[]}"#, "invalid type: array, filter must be an object"),
            (r#"{"filter":[null,null]}"#, "invalid type: array, filter must be an object"),
            (r#"{"filter":{},"includeUnknown":true}"#, "unknown field `includeUnknown`"),
            (r#"{"filter":{"target":"a"}}"#, "unknown field `target`"),
            (r#"{"filter":{"status":"accepted"}}"#, "filter.status must be rejected or exhausted, not \"accepted\""),
            (r#"{"filter":{"status":["exhausted","pending"]}}"#, "not \"pending\""),
            (r#"{"filter":{"status":[]}}"#, "filter.status must not be empty"),
            (r#"{"filter":{"submissionTarget":" "}}"#, "filter.submissionTarget must not be empty"),
            (r#"{"filter":{"reason":""}}"#, "filter.reason must have 1 to 200"),
            (r#"{"filter":{"completedAfter":"today"}}"#, "filter.completedAfter must be a time such as"),
            (r#"{"filter":{"intentIds":[]}}"#, "must have 1 to 1000 ids, not 0"),
            (&many, "must have 1 to 1000 ids, not 1001"),
            (r#"{"filter":{"intentIds":["a",""]}}"#, "filter.intentIds[1] must not be empty"),
            (r#"{"filter":{"intentIds":["sm-job:x"]}}"#, "filter.intentIds[0] is the id of a job"),
            (r#"{"filter":{"intentIds":["a"],"reason":"x"}}"#, "cannot be combined"),
            (r#"{"filter":{"intentIds":["a"],"createdAfter":"2026-01-01T00:00:00Z"}}"#, "cannot be combined"),
            (&long, "note must have at most 1000"),
            (r#"{"filter":{},"note":"a\u0000b"}"#, "no control characters"),
        ] {
            let Err(error) = parse_plan(body.as_bytes()) else { panic!("accepted: {body}") };
            assert!(matches!(error, ApiError::InvalidRequest(_)), "{body}");
            assert!(error.to_string().contains(expected), "{body}: {error}");
        }
    }

    #[test]
    fn a_filter_is_shown_as_it_was_read() {
        for (sent, shown) in [
            ("{}", "{}"),
            (r#"{"status":"exhausted"}"#, r#"{"status":["exhausted"]}"#),
            (r#"{"intentIds":["b"," a ","b"]}"#, r#"{"intentIds":["b","a"]}"#),
            (
                r#"{"reason":"one_shot","submissionTarget":"t","createdBefore":"2026-11-18T01:00:00+01:00"}"#,
                r#"{"submissionTarget":"t","reason":"one_shot","createdBefore":"2026-11-18T00:00:00.000000Z"}"#,
            ),
        ] {
            let order = parse_plan(format!(r#"{{"filter":{sent},"note":" "}}"#).as_bytes()).unwrap();
            assert_eq!(filter_text(&order.filter).unwrap(), shown);
            assert_eq!((order.note, order.include_unknown), (None, false));
            let again = parse_plan(format!(r#"{{"filter":{shown}}}"#).as_bytes()).unwrap();
            assert_eq!(again.filter, order.filter);
        }
    }

    #[test]
    fn rates_are_checked() {
        for (body, rate) in [
            ("", Some(10)),
            (" {} ", Some(10)),
            (r#"{"ratePerSecond":1}"#, Some(1)),
            (r#"{"ratePerSecond":1000}"#, Some(1000)),
            (r#"{"ratePerSecond":0}"#, None),
            (r#"{"ratePerSecond":1001}"#, None),
            (r#"{"ratePerSecond":-1}"#, None),
            (r#"{"ratePerSecond":1.5}"#, None),
            (r#"{"ratePerSecond":"10"}"#, None),
            (r#"{"rate":10}"#, None),
            ("10", None),
            ("\n", None),
        ] {
            let parsed = parse_start(body.as_bytes());
            assert_eq!(parsed.as_ref().ok().map(|rate| rate.per_second()), rate, "{body}");
            assert!(parsed.is_ok() || matches!(parsed, Err(ApiError::InvalidRequest(_))), "{body}");
        }
    }
}
