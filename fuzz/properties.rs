//! The properties that the parsers of untrusted input must have: one function for each fuzz target.
//!
//! Each function takes any bytes and panics if a property does not hold. libFuzzer chooses the bytes in `fuzz_targets`;
//! `tests/fuzz.rs` takes them from `seeds` and mutates them. Nothing here reads a clock or uses the network, and no
//! file is read except the key sets that `registry_api_clients` names.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use actix_web::ResponseError;
use actix_web::http::header::HttpDate;
use actix_web::web::Bytes;
use http::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use submission_manager::api::intents;
use submission_manager::api::{inbox, jobs};
use submission_manager::config::json_fields::LocatedError;
use submission_manager::config::registry::Registry;
use submission_manager::config::variables::Variables;
use submission_manager::domain::client::{Scope, Workspaces};
use submission_manager::domain::contract::{Contract, ContractSnapshot, GatewayType};
use submission_manager::domain::inbox::{
    Cause, Channel, Draft, Failure, FieldNames, InboxClient, PayloadFormat, draft,
};
use submission_manager::domain::intent::{IntentId, TargetName};
use submission_manager::domain::job::{JobCommand, SubmissionId};
use submission_manager::domain::outcome::{Contact, Outcome};
use submission_manager::domain::signature::Secret;
use submission_manager::domain::time::Timestamp;
use submission_manager::domain::trace::TraceContext;
use submission_manager::domain::webhook::{Round, TryOutcome, Verdict, decide};
use submission_manager::gateway::answer;
use submission_manager::http_client as outgoing;
use submission_manager::store::{InboxQuery, JobCursor, JobQuery, ListQuery, PageCursor};
use submission_manager::web::error::ApiError;
use submission_manager::web::query::Query;
use url::form_urlencoded;

/// A small limit, so that small inputs can be below and above it.
const MAX_PAYLOAD: usize = 256;

/// A secret. Inputs that contain it are skipped, because for them a repeated secret proves nothing.
const MARKER: &str = "5ec1e75ec1e75ec1e75ec1e75ec1e75ec1e75ec1e75ec1e75ec1e75ec1e75ec1";

/// The environment variables that registries may name. Their names are in the seeds.
static VARIABLES: LazyLock<Variables> = LazyLock::new(|| Variables::from_fn(|name| value_of(name).map(str::to_owned)));

fn value_of(variable: &str) -> Option<&'static str> {
    match variable {
        "SECRET" => Some("whsec_5ec1e75ec1e75ec1e75ec1e75ec1e75ec1e75ec1"),
        "SHORT" => Some("whsec_5ec1e75ec1e75ec1e75ec1e7"),
        "NOT_BASE64" => Some("whsec_5ec1e75ec1e75ec1e7!"),
        "TOKEN" => Some("Bearer 5ec1e75ec1e75ec1e7"),
        "LINES" => Some("5ec1e75ec1e75ec1e7\n5ec1e75ec1e75ec1e7"),
        "EMPTY" => Some(""),
        _ => None,
    }
}

/// A text that all non-empty values of these variables contain. It is long enough not to occur by chance, for example
/// in a host name in Punycode.
const PART_OF_SECRETS: &str = "5ec1e75ec1e75ec1e7";

fn no_control(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// Asserts that a name is valid: trimmed, not empty, not too long, without control characters.
fn assert_name(name: &str) {
    assert_eq!(name, name.trim(), "a name is trimmed");
    assert!((1..=200).contains(&name.chars().count()), "a name has 1 to 200 characters: {name:?}");
    assert!(no_control(name), "a name has no control characters: {name:?}");
}

/// Asserts that a request was refused because of its content: with 400, or also 413 if `may_be_too_large`.
fn assert_refused(error: &ApiError, may_be_too_large: bool) {
    let status = error.status_code().as_u16();
    match error {
        ApiError::InvalidRequest(text) => assert!(status == 400 && !text.is_empty(), "{status} {text:?}"),
        ApiError::PayloadTooLarge { limit, .. } => {
            assert!(status == 413 && *limit == MAX_PAYLOAD && may_be_too_large, "{status} {limit}");
        }
        other => panic!("refused with {status}: {other}"),
    }
    assert_eq!(error.json()["error"]["message"], error.to_string());
}

/// Asserts that a payload is a slice of the body, so it was neither copied nor changed.
fn assert_slice_of(body: &Bytes, part: &Bytes) {
    let (body, part) = (body.as_ptr_range(), part.as_ptr_range());
    assert!(part.is_empty() || (body.start <= part.start && part.end <= body.end), "the payload is not the body's");
}

fn json_of(data: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(data).ok()
}

/// Checks the parser of the body of `POST /v1/intents`.
pub(crate) fn submission(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    match intents::parse_submission(&body, MAX_PAYLOAD) {
        Ok(submission) => {
            let intents::Submission { id, target, payload, not_before } = &submission;
            assert_name(id.as_str());
            assert_name(target.as_str());
            assert!(!id.is_reserved(), "the id of a job was taken: {id}");
            let kept = payload.bytes();
            assert_slice_of(&body, kept);
            assert!(kept.len() <= MAX_PAYLOAD);
            assert!(kept.is_empty() || serde_json::from_slice::<&RawValue>(kept).is_ok(), "the payload is not JSON");
            let again = json!({ "intentId": id, "submissionTarget": target, "notBefore": not_before });
            let mut again = again.to_string().into_bytes();
            if !kept.is_empty() {
                again.truncate(again.len() - 1);
                again.extend([b",\"payload\":", kept.as_ref(), b"}"].concat());
            }
            match intents::parse_submission(&again.into(), MAX_PAYLOAD) {
                Ok(same) => assert_eq!(same, submission),
                Err(error) => panic!("taken, and refused when it is sent again: {error}"),
            }
        }
        Err(error) => assert_refused(&error, data.len() > MAX_PAYLOAD),
    }
    // Serialized again, no field occurs twice. A repeated field is the only other reason to refuse it.
    if let Some(fields) = json_of(data).filter(is_submission) {
        match intents::parse_submission(&Value::Object(fields).to_string().into(), MAX_PAYLOAD) {
            Ok(_) | Err(ApiError::PayloadTooLarge { .. }) => {}
            Err(error) => panic!("nothing is wrong with it, and it is refused: {error}"),
        }
    }
}

/// Whether a submission should be accepted, decided without the code of the service.
fn is_submission(fields: &Map<String, Value>) -> bool {
    let known =
        fields.keys().all(|name| matches!(name.as_str(), "intentId" | "submissionTarget" | "payload" | "notBefore"));
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let id = text("intentId").and_then(|text| IntentId::parse(text).ok());
    let target = text("submissionTarget").and_then(|text| TargetName::parse(text).ok());
    known && id.is_some_and(|id| !id.is_reserved()) && target.is_some()
}

/// Checks the parser of the body of `POST /v1/jobs`.
pub(crate) fn job_command(data: &[u8]) {
    match jobs::command::parse(data) {
        Ok(command) => {
            let (profile, by) = (&command.execution_profile, &command.requested_by);
            let needed = [
                &command.tenant_id,
                &command.workspace_id,
                &command.job_id,
                &command.idempotency_key,
                &command.management_node_id,
                &profile.queue_name,
                &by.user_id,
            ];
            let optional = [&profile.qos, &profile.account, &command.payload_ref.artifact_bucket, &by.session_id];
            needed.into_iter().chain(optional.into_iter().flatten()).for_each(|name| assert_name(name));
            let uri = &command.payload_ref.input_uri;
            assert!(uri == uri.trim() && no_control(uri) && uri.chars().count() <= 8192, "{uri:?}");
            let scheme = uri.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
            assert!(scheme.is_some_and(|scheme| ["s3", "gs", "https"].contains(&scheme.as_str())), "{uri:?}");
            let url = url::Url::parse(uri).ok();
            assert!(url.is_some_and(|url| url.username().is_empty() && url.password().is_none()), "{uri:?}");
            assert_same_command(&command);
        }
        Err(error) => assert_refused(&error, false),
    }
    assert_no_uri_is_repeated(data);
}

/// Asserts that a command stays the same when it is submitted again, or forwarded to a node and read back.
fn assert_same_command(command: &JobCommand) {
    let id = SubmissionId::from_random([7; 16]);
    let forwarded = command.forwarded(id).ok().and_then(|bytes| JobCommand::of_forwarded(&bytes));
    let again = serde_json::to_vec(command).ok().and_then(|bytes| jobs::command::parse(&bytes).ok());
    for same in [forwarded, again] {
        let Some(same) = same else { panic!("a command that was taken cannot be read again") };
        assert!(same == *command && same.key() == command.key() && same.differences(command).is_empty());
    }
}

/// Asserts that no error repeats the input URI, which may be a signed URL.
fn assert_no_uri_is_repeated(data: &[u8]) {
    let Some(fields) = json_of(data) else { return };
    let mut document = Value::Object(fields);
    if document.to_string().contains(MARKER) {
        return;
    }
    for wrong in [format!("ftp://{MARKER}"), format!("https://{MARKER}\u{1}"), format!("https://{MARKER}:{MARKER}")] {
        let Some(uri) = document.pointer_mut("/payload_ref/input_uri").filter(|uri| uri.is_string()) else { return };
        *uri = wrong.into();
        match jobs::command::parse(document.to_string().as_bytes()) {
            Ok(_) => panic!("a wrong URI was taken"),
            Err(error) => assert!(!error.to_string().contains(MARKER), "{error}"),
        }
    }
}

/// A registry with inbox clients.
static INBOX: LazyLock<Registry> = LazyLock::new(|| {
    let clients = json!({ "clients": [
        { "clientSlug": "acme", "channels": ["form", "sms"] },
        { "clientSlug": "Ö & co", "channels": ["voice", "email"] },
    ]});
    targets_alone().with_inbox(&clients.to_string(), &VARIABLES).unwrap_or_else(|faults| panic!("{faults:?}"))
});

/// A registry that has only targets.
fn targets_alone() -> Registry {
    let target = json!({ "submissionTarget": "t", "gatewayType": "sms", "gatewayUrl": "http://x", "policy": "one_shot",
        "terminalOutcomes": ["invalid_request"] });
    let text = json!({ "targets": [target] }).to_string();
    Registry::parse(&text, &VARIABLES).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// Checks the parser of the body of `POST /v1/inbox/submissions`.
pub(crate) fn inbox_submission(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    match inbox::parse_submission(&body, &INBOX, MAX_PAYLOAD) {
        Ok(incoming) => {
            let client = INBOX.inbox.as_ref().and_then(|clients| clients.get(&incoming.client_slug));
            assert!(client.is_some_and(|client| client.fields(incoming.channel).is_some()), "an unknown channel");
            assert_slice_of(&body, &incoming.payload);
            assert!(incoming.payload.len() <= MAX_PAYLOAD);
            assert!(serde_json::from_slice::<&RawValue>(&incoming.payload).is_ok(), "the payload is not JSON");
            if let Some(url) = &incoming.source_url {
                assert!(url == url.trim() && !url.is_empty() && no_control(url) && url.chars().count() <= 2000);
            }
            let (slug, channel) = (&incoming.client_slug, incoming.channel.as_str());
            let again = json!({ "client_slug": slug, "channel": channel, "source_url": incoming.source_url });
            let mut again = again.to_string().into_bytes();
            again.truncate(again.len() - 1);
            again.extend([b",\"payload\":", incoming.payload.as_ref(), b"}"].concat());
            match inbox::parse_submission(&again.into(), &INBOX, MAX_PAYLOAD) {
                Ok(same) => assert!(same == incoming, "not the same when it is sent again"),
                Err(error) => panic!("taken, and refused when it is sent again: {error}"),
            }
        }
        Err(error) => assert_refused(&error, data.len() > MAX_PAYLOAD),
    }
}

/// Checks how the inbox parses a payload.
pub(crate) fn inbox_payload(data: &[u8]) {
    let default = FieldNames::default();
    let own = |name: &str| name.to_owned();
    let nested =
        FieldNames { email: own("a.b"), phone: own("From"), name: own("person.name.full"), message: own("data.text") };
    let cases = [(&default, "SE"), (&default, "US"), (&default, ""), (&nested, "IT")];
    let cases = cases.into_iter().flat_map(|case| PayloadFormat::ALL.map(|format| (case.0, case.1, format)));
    for (fields, country, format) in cases {
        let country = country.parse().ok();
        match draft(fields, country, format, data) {
            Ok(read) => {
                assert_draft(&read);
                assert_same_again(&read, |payload| draft(&default, country, PayloadFormat::Json, payload));
            }
            Err(failure) => {
                assert!(matches!(failure.cause, Cause::Unreadable | Cause::WrongType | Cause::NoContact));
                // The error is too short to contain a part of the payload.
                assert!(
                    !failure.text.is_empty() && failure.text.len() <= 120 && no_control(&failure.text),
                    "{failure}"
                );
            }
        }
    }
    assert_codes_are_kept(data);
}

/// Asserts that a phone number with a country code is read in the same way for clients of all countries.
fn assert_codes_are_kept(data: &[u8]) {
    let Some(fields) = json_of(data) else { return };
    let Some(phone) = fields.get("phone").and_then(Value::as_str).filter(|phone| phone.starts_with('+')) else {
        return;
    };
    let payload = json!({ "phone": phone }).to_string();
    let [anywhere, others @ ..] = ["", "SE", "US", "RU", "IT"].map(|country| {
        let read = draft(&FieldNames::default(), country.parse().ok(), PayloadFormat::Json, payload.as_bytes());
        read.ok().and_then(|draft| draft.phone)
    });
    others.iter().for_each(|other| assert_eq!(*other, anywhere, "{phone:?}"));
}

/// Asserts that the normalized values of a contact do not change when they are normalized again. Otherwise one person
/// could become two contacts.
fn assert_same_again(read: &Draft, again: impl Fn(&[u8]) -> Result<Draft, Failure>) {
    let again = |read: &Draft| {
        let payload = json!({ "email": read.email, "phone": read.phone, "name": read.name, "message": read.body });
        match again(payload.to_string().as_bytes()) {
            Ok(same) => same,
            Err(failure) => panic!("{read:?} cannot be read again: {failure}"),
        }
    };
    let second = again(read);
    assert_eq!((&second.email, &second.name, &second.body), (&read.email, &read.name, &read.body));
    // A text that is not a phone number is reduced to letters and digits. The result may be a number, and then does not
    // change any more.
    assert_eq!(again(&second), second);
}

fn assert_draft(draft: &Draft) {
    assert!(draft.email.is_some() || draft.phone.is_some(), "nobody: {draft:?}");
    if let Some(email) = &draft.email {
        let sides = email.rsplit_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
        assert!(sides && *email == email.to_lowercase() && email.chars().count() <= 320, "{email:?}");
        assert!(no_control(email) && !email.contains(char::is_whitespace), "{email:?}");
    }
    if let Some(phone) = &draft.phone {
        assert!(phone.chars().any(|c| c.is_ascii_digit()) && phone.chars().count() <= 40, "{phone:?}");
        assert!(phone.chars().all(|c| c.is_alphanumeric() || c == '+'), "{phone:?}");
    }
    if let Some(name) = &draft.name {
        assert_name(name);
    }
    assert!(!draft.body.contains('\0') && (draft.body.is_empty() || !draft.body.trim().is_empty()));
}

/// Checks the parser of query strings, alone and in the lists that use it.
pub(crate) fn query(data: &[u8]) {
    const KNOWN: [&str; 3] = ["q", "limit", "cursor"];
    let Ok(text) = std::str::from_utf8(data) else { return };
    let pairs: Vec<_> = form_urlencoded::parse(data).collect();
    let value = |name: &str| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_ref());
    match Query::parse(text, &KNOWN) {
        Ok(query) => {
            assert!(pairs.iter().all(|(name, _)| KNOWN.contains(&name.as_ref())), "an unknown name: {pairs:?}");
            for name in KNOWN {
                assert!(pairs.iter().filter(|(known, _)| known == name).count() <= 1, "{name} was given twice");
                let got = query.get(name, "", |text| Some(text.to_owned())).ok().flatten();
                assert_eq!(got.as_deref(), value(name).filter(|value| !value.is_empty()));
            }
        }
        Err(error) => assert_refused_in_one_line(&error),
    }
    match intents::list_query(text) {
        Ok(query) => assert_list_query(&query),
        Err(error) => assert_refused_in_one_line(&error),
    }
    match jobs::list_query(text) {
        Ok(query) => assert_job_query(&query),
        Err(error) => assert_refused_in_one_line(&error),
    }
    match inbox::inbox_query(text, &INBOX_PARAMETERS) {
        Ok(query) => assert_inbox_query(&query),
        Err(error) => assert_refused_in_one_line(&error),
    }
}

const INBOX_PARAMETERS: [&str; 5] = ["client_slug", "state", "contact_id", "limit", "cursor"];

fn assert_refused_in_one_line(error: &ApiError) {
    assert_refused(error, false);
    assert!(no_control(&error.to_string()), "{error}");
}

/// Encodes parameters as a client would.
fn encoded(parameters: &[(&str, Option<String>)]) -> String {
    let mut text = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            text.append_pair(name, value);
        }
    }
    text.finish()
}

/// Asserts that a query stays the same when it is encoded and parsed again.
fn assert_same_page<T: std::fmt::Debug>(query: &T, limit: usize, again: Result<T, ApiError>) {
    assert!((1..=200).contains(&limit), "{limit} on a page");
    match again {
        Ok(same) => assert_eq!(format!("{same:?}"), format!("{query:?}")),
        Err(error) => panic!("{query:?} is refused when it is asked for again: {error}"),
    }
}

fn assert_list_query(query: &ListQuery) {
    assert!(query.prefix.as_ref().is_none_or(|prefix| !prefix.is_empty() && prefix == prefix.trim()));
    query.target.iter().for_each(|target| assert_name(target.as_str()));
    // Stores hold the years 1 to 9999.
    for moment in [query.created_after, query.created_before].into_iter().flatten() {
        let text = moment.to_string();
        assert!(Timestamp::parse(&text) == Some(moment) && !text.starts_with("0000"), "no store knows {text}");
    }
    let again = encoded(&[
        ("q", query.prefix.clone()),
        ("status", query.status.map(|status| status.as_str().to_owned())),
        ("submissionTarget", query.target.as_ref().map(ToString::to_string)),
        ("createdAfter", query.created_after.map(|moment| moment.to_string())),
        ("createdBefore", query.created_before.map(|moment| moment.to_string())),
        ("limit", Some(query.limit.to_string())),
        ("cursor", query.after.as_ref().map(intents::cursor_text)),
    ]);
    assert_same_page(query, query.limit, intents::list_query(&again));
}

fn assert_job_query(query: &JobQuery) {
    let workspaces = query.workspaces.iter().flatten();
    [&query.tenant, &query.job_id].into_iter().flatten().chain(workspaces).for_each(|name| assert_name(name));
    let again = encoded(&[
        ("tenant_id", query.tenant.clone()),
        ("workspace_id", query.workspaces.as_ref().map(|names| names.concat())),
        ("job_id", query.job_id.clone()),
        ("status", query.status.map(|status| status.as_str().to_owned())),
        ("limit", Some(query.limit.to_string())),
        ("cursor", query.after.as_ref().map(jobs::cursor_text)),
    ]);
    assert_same_page(query, query.limit, jobs::list_query(&again));
}

fn assert_inbox_query(query: &InboxQuery) {
    query.client_slug.iter().for_each(|slug| assert_name(slug));
    let again = encoded(&[
        ("client_slug", query.client_slug.clone()),
        ("state", query.state.map(|state| state.as_str().to_owned())),
        ("contact_id", query.contact_id.map(|id| id.to_string())),
        ("limit", Some(query.limit.to_string())),
        ("cursor", query.after.map(inbox::cursor_text)),
    ]);
    assert_same_page(query, query.limit, inbox::inbox_query(&again, &INBOX_PARAMETERS));
}

/// Checks the parser of the header `traceparent`.
pub(crate) fn traceparent(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(context) = TraceContext::parse(text) else { return };
    let (written, said) = (context.to_string(), text.trim());
    assert_eq!(TraceContext::parse(&written), Some(context));
    assert!(written.len() == 55 && written.is_ascii() && written.starts_with("00-"), "{written}");
    // The fields are the same for every version; version 00 has nothing else.
    assert_eq!(written[2..], said[2..55], "{said:?}");
    assert!(said.len() == 55 || (!said.starts_with("00") && said.as_bytes()[55] == b'-'), "{said:?}");
    assert!(!said.starts_with("ff") && written[3..35] == context.trace_id() && written[36..52] == context.span_id());
    assert!(context.trace_id().bytes().any(|digit| digit != b'0') && context.span_id().bytes().any(|b| b != b'0'));
    let child = context.child(u64::from(data.len() > 60));
    assert_eq!((child.trace_id(), child.is_sampled()), (context.trace_id(), context.is_sampled()));
    assert_eq!(TraceContext::parse(&child.to_string()), Some(child));
}

/// Checks the parser of gateway answers. The input is a line with the HTTP status, then the body.
pub(crate) fn gateway_answer(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let status = parts.next().and_then(|line| std::str::from_utf8(line).ok()).and_then(|line| line.parse().ok());
    let (status, body) = (status.unwrap_or(200), parts.next().unwrap_or_default());
    // The meaning of the body, decided without the code of the service; `None` if this parser is stricter.
    let fields = json_of(body).filter(|_| (200..=299).contains(&status));
    let text = |name: &str| {
        let text = match fields.as_ref()?.get(name)? {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return None,
        };
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let status_is = |expected: &str| {
        assert!((200..=299).contains(&status), "not by HTTP {status}");
        if fields.is_none() {
            let body = String::from_utf8_lossy(body);
            let body = body.trim_start_matches('\u{feff}').trim_start();
            let object = body.starts_with('{') && serde_json::from_str::<&RawValue>(body).is_ok();
            return assert!(object, "{expected} by something that is not one JSON object");
        }
        // Control characters around the value may count as blanks.
        let said = text("status").map(|said| said.replace(char::is_control, " "));
        assert_eq!(said.as_deref().map(str::trim), Some(expected));
    };
    let outcome = answer::read(status, body);
    match &outcome {
        Outcome::Accepted { .. } => status_is("accepted"),
        Outcome::Rejected { reason, .. } => {
            status_is("rejected");
            assert_kept_text(reason);
            let said = fields.as_ref().and_then(|fields| fields.get("reason")).and_then(Value::as_str);
            assert!(said.is_none_or(|said| said.chars().count() >= reason.chars().count()), "{reason:?}");
        }
        Outcome::Error { text: error, retry_after, .. } => {
            // A sentence and twice 200 characters of the answer. In an unknown status each character may take up to ten
            // when it is escaped.
            let most = if error.contains("unknown status") { 200 * 10 + 100 } else { 2 * 200 + 100 };
            assert!(!error.is_empty() && error.chars().count() <= most, "{} characters", error.chars().count());
            assert!(no_control(error) && retry_after.is_none(), "{error:?}");
            assert_ne!(text("status").as_deref(), Some("accepted"), "accepted, and taken for an error: {error}");
        }
    }
    outcome.gateway_message_id().into_iter().for_each(assert_kept_text);
    assert!(outcome.searchable_message_id().is_none_or(|id| id.chars().count() <= 200));
    assert!(outcome.contact() == Contact::Answered && outcome.cause().chars().count() <= 60);
    assert!(outcome.error_text().is_none_or(|text| Contact::of_text(text) == Contact::Answered), "{outcome:?}");
}

/// Asserts that a text of a gateway is trimmed, not empty and without control characters, because it is stored and
/// shown.
fn assert_kept_text(text: &str) {
    assert!(!text.is_empty() && text == text.trim() && no_control(text), "{text:?}");
}

/// Checks the parser of `Retry-After`. The input is that header and `Date`, a line each.
pub(crate) fn retry_after(data: &[u8]) {
    let mut lines = data.splitn(2, |byte| *byte == b'\n');
    let mut headers = HeaderMap::new();
    for (name, line) in [(RETRY_AFTER, lines.next()), (DATE, lines.next())] {
        if let Some(value) = line.and_then(|line| HeaderValue::from_bytes(line).ok()) {
            headers.insert(name, value);
        }
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let (wish, date) = (text(RETRY_AFTER), text(DATE));
    let span = outgoing::retry_after(&headers);
    match (wish, wish.and_then(|wish| wish.parse::<u64>().ok())) {
        (None, _) => assert_eq!(span, None),
        (Some(_), Some(seconds)) => assert_eq!(span, Some(Duration::from_secs(seconds))),
        (Some(wish), None) => {
            let moment = |text: &str| text.parse::<HttpDate>().ok().map(SystemTime::from);
            let expected = moment(wish).zip(date.and_then(moment)).map(|(until, from)| until.duration_since(from).ok());
            assert_eq!(span, expected.flatten(), "from {date:?} to {wish:?}");
            assert!(span.is_none_or(|span| span < Duration::from_secs(10_000 * 366 * 86_400)), "{span:?}");
        }
    }
    let now = Timestamp::from_micros(1_790_000_000_000_000);
    let outcome = TryOutcome::Answered { status: 503, retry_after: span, remark: None };
    match decide(&outcome, Round { pending_since: now, tries: 1 }, now, 0.0) {
        Verdict::RetryAt(moment) => {
            let wait = moment.since(now);
            let asked = span.unwrap_or_default().min(Duration::from_secs(6 * 3600));
            assert!(wait >= asked && wait <= Duration::from_secs(6 * 3600), "{wait:?} for {span:?}");
        }
        other => panic!("{other:?} after the first try"),
    }
}

/// Asserts that a refused registry file has errors, and that they contain no secret.
fn assert_faults(data: &[u8], faults: &[LocatedError]) {
    assert!(!faults.is_empty(), "refused without a fault");
    for fault in faults {
        assert!(!fault.message.trim().is_empty(), "a fault that says nothing: {fault:?}");
        let repeated = fault.to_string().contains(PART_OF_SECRETS);
        assert!(!repeated || holds(data, PART_OF_SECRETS), "a fault with a secret in it: {fault}");
    }
}

/// Whether these bytes contain the text, literally or with JSON escapes.
fn holds(data: &[u8], text: &str) -> bool {
    let plain = String::from_utf8_lossy(data).contains(text);
    plain || json_of(data).is_some_and(|fields| Value::Object(fields).to_string().contains(text))
}

/// Asserts that a contract is valid, and that it is the same after it was stored as JSON and read back.
fn assert_snapshot(snapshot: &ContractSnapshot) {
    let contract = snapshot.contract.as_ref();
    assert_name(contract.target.as_str());
    let url = contract.gateway_url.as_str();
    assert!(url.starts_with("http://") || url.starts_with("https://"), "{url}");
    assert!(!url.ends_with('/') && !url.contains(['?', '#']) && no_control(url), "{url}");
    let reasons: Vec<_> = contract.terminal_outcomes.names().collect();
    assert!(!reasons.is_empty() && reasons.iter().all(|name| contract.gateway_type.known_reasons().contains(name)));
    match serde_json::from_str::<Contract>(&snapshot.json) {
        Ok(same) => assert_eq!(same, *contract),
        Err(error) => panic!("the snapshot of {contract:?} cannot be read: {error}"),
    }
    let again = ContractSnapshot::of(contract.clone()).map(|again| again.json);
    assert_eq!(again.ok().as_ref(), Some(&snapshot.json));
}

/// Checks the parser of `submission_targets.json`.
pub(crate) fn registry_targets(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Registry::parse(text, &VARIABLES) {
        Ok(registry) => {
            let snapshots: Vec<_> = registry.contracts().collect();
            assert!(!snapshots.is_empty() && registry.summary() == format!("targets={}", snapshots.len()));
            for snapshot in &snapshots {
                assert_snapshot(snapshot);
                let contract = &snapshot.contract;
                assert!(GatewayType::OF_TARGETS.contains(&contract.gateway_type));
                assert!(registry.contract(&contract.target).is_some_and(|found| found.contract == *contract));
                assert!(!snapshot.json.contains(PART_OF_SECRETS) || holds(data, PART_OF_SECRETS), "a stored secret");
                if let Some(webhook) = &contract.webhook {
                    assert!(webhook.headers_env.values().all(|name| value_of(name).is_some()), "{webhook:?}");
                    let secret = |name: &String| value_of(name).is_some_and(|text| Secret::parse_list(text).is_ok());
                    assert!(webhook.secret_env.as_ref().is_none_or(secret), "{webhook:?}");
                }
            }
            assert_rates(data, &registry);
            assert_snapshots_are_a_registry(&snapshots.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        }
        Err(faults) => assert_faults(data, &faults),
    }
    assert_no_credential_is_repeated(data);
}

/// Asserts that stored contracts form a valid registry, because both have the same field names.
fn assert_snapshots_are_a_registry(snapshots: &[&ContractSnapshot]) {
    let targets: Vec<_> = snapshots.iter().map(|snapshot| snapshot.json.as_ref()).collect();
    let text = format!(r#"{{"allowUnsignedWebhooks":true,"targets":[{}]}}"#, targets.join(","));
    match Registry::parse(&text, &VARIABLES) {
        Ok(again) => {
            let same = |one: &&ContractSnapshot| again.contract(&one.contract.target).map(|two| two.json.clone());
            assert!(snapshots.iter().all(|snapshot| same(snapshot).as_ref() == Some(&snapshot.json)), "{text}");
        }
        Err(faults) => panic!("snapshots are no registry: {faults:?}: {text}"),
    }
}

/// Asserts that the rate of a target is the one in the file, as exactly as an interval in nanoseconds can be.
fn assert_rates(data: &[u8], registry: &Registry) {
    for target in json_of(data).as_ref().and_then(|top| top.get("targets")?.as_array()).into_iter().flatten() {
        let name = target["submissionTarget"].as_str().and_then(|name| TargetName::parse(name).ok());
        let limits = name.map(|name| registry.limits(&name)).unwrap_or_default();
        assert_eq!(limits.max_in_flight.map(|most| u64::from(most.get())), target["maxInFlight"].as_u64());
        assert_eq!(limits.rate.is_some(), target["ratePerSecond"].is_number());
        if let (Some(rate), Some(written)) = (limits.rate, target["ratePerSecond"].as_f64()) {
            let error = (rate.as_per_second() - written).abs() / written;
            assert!(error <= 1e-4, "{written} became {}", rate.as_per_second());
        }
    }
}

/// Asserts that no error repeats a password in a URL, the value of a header, or a secret in a wrong place.
fn assert_no_credential_is_repeated(data: &[u8]) {
    let Some(fields) = json_of(data).filter(|_| !holds(data, PART_OF_SECRETS)) else { return };
    let mut document = Value::Object(fields);
    let url = format!("https://user:{MARKER}@x");
    let mut changed = false;
    for target in document.get_mut("targets").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(target) = target else { continue };
        target.insert("gatewayUrl".to_owned(), url.clone().into());
        changed = true;
        if let Some(Value::Object(webhook)) = target.get_mut("webhook") {
            webhook.insert("url".to_owned(), url.clone().into());
            webhook.insert("secret".to_owned(), MARKER.into());
            if let Some(Value::Object(headers)) = webhook.get_mut("headers") {
                headers.values_mut().for_each(|value| *value = format!("{MARKER}\n").into());
            }
        }
    }
    match Registry::parse(&document.to_string(), &VARIABLES) {
        Ok(_) => assert!(!changed, "a password in a URL was taken"),
        Err(faults) => {
            let repeated = faults.iter().find(|fault| fault.to_string().contains(MARKER));
            assert!(repeated.is_none(), "a fault with a secret in it: {repeated:?}");
        }
    }
}

/// A file with one API client.
fn api_clients() -> String {
    let client = json!({ "clientId": "c", "tokenSha256": "00".repeat(32), "scopes": ["admin"] });
    json!({ "clients": [client] }).to_string()
}

/// Checks the parser of `management_nodes.json`.
pub(crate) fn registry_nodes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match targets_alone().with_jobs(text, &api_clients()) {
        Ok(registry) => {
            assert!(registry.takes_jobs());
            let snapshots: Vec<_> = registry.contracts().collect();
            let of_nodes = snapshots.iter().filter(|snapshot| snapshot.contract.gateway_type == GatewayType::Node);
            assert_eq!(of_nodes.clone().count() + 1, snapshots.len());
            assert!(of_nodes.clone().count() > 0, "no nodes");
            for snapshot in of_nodes {
                assert_snapshot(snapshot);
                let id = snapshot.contract.target.as_str().strip_prefix("node:");
                let Some(node) = id.and_then(|id| registry.node(id)) else { panic!("{snapshot:?} is no node's") };
                assert_name(&node.id);
                assert_name(&node.owner);
                assert!(node.is_open_to(&node.owner) && node.contract.contract == snapshot.contract);
                let names: HashSet<_> = node.queues.iter().map(|queue| queue.name.as_str()).collect();
                assert!(!names.is_empty() && names.len() == node.queues.len(), "{names:?}");
                names.into_iter().for_each(assert_name);
            }
        }
        Err(faults) => assert_faults(data, &faults),
    }
}

/// Checks the parser of `api_clients.json`. Key sets are read from the working directory only.
pub(crate) fn registry_api_clients(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let document = json_of(data);
    let file = document.as_ref().and_then(|top| top.get("jwt")?.get("jwksFile")?.as_str());
    if file.is_some_and(|file| file.contains(['/', '\\'])) {
        return;
    }
    let parse = |text: &str| targets_alone().with_jobs(NODES, text).map(|registry| registry.identities);
    match parse(text) {
        Ok(Some(identities)) => {
            let mut clients = Vec::new();
            let (mut ids, mut hashes) = (HashSet::new(), HashSet::new());
            for known in &identities.tokens {
                let client = known.client.as_ref();
                assert!(ids.insert(client.id.clone()) && hashes.insert(known.sha256), "{client:?} is there twice");
                assert_name(&client.id);
                client.tenants.keys().for_each(|id| assert_name(id));
                assert!(!client.scopes.is_empty() && client.scopes.iter().all(|scope| client.may(*scope)));
                assert!(!client.tenants.is_empty() || !client.scopes.iter().any(|scope| scope.needs_tenants()));
                clients.push(client_json(known.sha256, client));
            }
            assert!(!clients.is_empty() || identities.jwt.is_some(), "nobody may call");
            if clients.is_empty() {
                return;
            }
            let Ok(Some(again)) = parse(&json!({ "clients": clients }).to_string()) else { panic!("{clients:?}") };
            let same = again.tokens.iter().zip(&identities.tokens);
            let same = same.filter(|(one, two)| one.sha256 == two.sha256 && one.client == two.client);
            assert_eq!(same.count(), identities.len());
        }
        Ok(None) => panic!("read, and nobody is known"),
        Err(faults) => assert_faults(data, &faults),
    }
    if let Some(document) = document.filter(|_| !holds(data, PART_OF_SECRETS)) {
        assert_no_token_is_repeated(document, parse);
    }
}

/// A file with one management node.
const NODES: &str = r#"{"nodes":[{"managementNodeId":"n","ownerTenantId":"t","state":"active","gatewayUrl":"http://x",
    "policy":"one_shot","terminalOutcomes":["invalid_request"],
    "queues":[{"queueName":"q","maxCpu":1,"maxMemoryMib":1,"maxWalltimeSeconds":1}]}]}"#;

fn client_json(sha256: [u8; 32], client: &submission_manager::domain::client::ApiClient) -> Value {
    let tenants = client.tenants.iter().map(|(id, workspaces)| {
        let names = match workspaces {
            Workspaces::All => vec![Workspaces::ALL],
            Workspaces::Only(names) => names.iter().map(String::as_str).collect(),
        };
        json!({ "tenantId": id, "workspaceIds": names })
    });
    let mut json = json!({
        "clientId": client.id,
        "tokenSha256": sha256.map(|byte| format!("{byte:02x}")).concat(),
        "scopes": client.scopes.iter().copied().map(Scope::as_str).collect::<Vec<_>>(),
    });
    if !client.tenants.is_empty() {
        json["tenants"] = tenants.collect();
    }
    json
}

/// Asserts that no error repeats a token hash, or a token that was written instead of its hash or beside it.
fn assert_no_token_is_repeated<T>(document: Map<String, Value>, parse: impl Fn(&str) -> Result<T, Vec<LocatedError>>) {
    let mut document = Value::Object(document);
    for hash in [MARKER.to_owned(), format!("token {MARKER}")] {
        let clients = document.get_mut("clients").and_then(Value::as_array_mut);
        for client in clients.into_iter().flatten().filter_map(Value::as_object_mut) {
            client.insert("tokenSha256".to_owned(), hash.clone().into());
            client.insert("token".to_owned(), MARKER.into());
        }
        let faults = parse(&document.to_string()).err().unwrap_or_default();
        let repeated = faults.iter().find(|fault| fault.to_string().contains(MARKER));
        assert!(repeated.is_none(), "a fault with a token in it: {repeated:?}");
    }
}

/// Checks the parser of `inbox_clients.json`.
pub(crate) fn registry_inbox_clients(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let parse = |text: &str| targets_alone().with_inbox(text, &VARIABLES).map(|registry| registry.inbox);
    match parse(text) {
        Ok(Some(clients)) => {
            assert!(!clients.is_empty());
            for (slug, client) in &clients {
                assert_name(slug);
                assert!(*slug == client.slug && slug.chars().count() <= 100, "{slug:?}");
                assert_inbox_client(client);
            }
            let entries: Vec<_> = clients.values().map(|client| inbox_client_json(client)).collect();
            match parse(&json!({ "clients": entries }).to_string()) {
                Ok(again) => assert_eq!(again, Some(clients)),
                Err(faults) => panic!("{clients:?} cannot be read again: {faults:?}"),
            }
        }
        Ok(None) => panic!("read, and there are no clients"),
        Err(faults) => assert_faults(data, &faults),
    }
}

fn assert_inbox_client(client: &InboxClient) {
    let channels: HashSet<_> = client.channels.iter().map(|(channel, _)| *channel).collect();
    assert!(!channels.is_empty() && channels.len() == client.channels.len(), "{client:?}");
    let secret = |name: &String| value_of(name).is_some_and(|text| Secret::parse_list(text).is_ok());
    assert!(client.hook_secret_env.as_ref().is_none_or(secret), "{client:?}");
    for (_, fields) in &client.channels {
        // An address is found in every field that may be configured for it.
        let payload = json!({ fields.email.as_str(): "Ann@example.com" }).to_string();
        match draft(fields, client.country, PayloadFormat::Json, payload.as_bytes()) {
            Ok(draft) => assert_eq!(draft.email.as_deref(), Some("ann@example.com")),
            Err(failure) => panic!("{fields:?}: {failure}"),
        }
    }
}

fn inbox_client_json(client: &InboxClient) -> Value {
    let names = |fields: &FieldNames| {
        let FieldNames { email, phone, name, message } = fields;
        json!({ "email": email, "phone": phone, "name": name, "message": message })
    };
    let fields = client.channels.iter().map(|(channel, fields)| (channel.as_str().to_owned(), names(fields)));
    let mut json = json!({
        "clientSlug": client.slug,
        "channels": client.channels.iter().map(|(channel, _)| Channel::as_str(*channel)).collect::<Vec<_>>(),
        "fieldsByChannel": fields.collect::<Map<_, _>>(),
    });
    if let Some(country) = client.country {
        json["country"] = country.as_ref().into();
    }
    if let Some(name) = &client.hook_secret_env {
        json["hookSecretEnv"] = name.as_str().into();
    }
    json
}

/// Checks the cursors of all lists: the input as a cursor that a client sends, and as the position that a cursor
/// encodes.
pub(crate) fn cursors(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        for q in ["", "q=a&"] {
            taken_back(
                text,
                |cursor| intents::list_query(&format!("{q}{cursor}")),
                |query| {
                    let behind = query.after.as_ref();
                    assert!(
                        behind.is_none_or(|behind| matches!(behind, PageCursor::Newer { .. }) == q.is_empty()),
                        "of another list"
                    );
                    behind.map(intents::cursor_text)
                },
            );
        }
        taken_back(text, jobs::list_query, |query| query.after.as_ref().map(jobs::cursor_text));
        taken_back(text, inbox_list, |query| query.after.map(inbox::cursor_text));
    }
    let (number, rest) = data.split_at(data.len().min(8));
    // Cursors hold times up to the end of the year 9998.
    let number = number.iter().fold(0_i64, |number, byte| number << 8 | i64::from(*byte)) & i64::MAX;
    let moment = Timestamp::from_micros(number % 253_370_764_800_000_000);
    if let Some(id) =
        std::str::from_utf8(rest).ok().and_then(|id| IntentId::parse(id).ok()).filter(|id| !id.is_reserved())
    {
        let newer = PageCursor::Newer { created_at: moment, id: id.clone() };
        let made = |behind: &PageCursor| encoded(&[("cursor", Some(intents::cursor_text(behind)))]);
        assert_eq!(intents::list_query(&made(&newer)).ok().and_then(|query| query.after), Some(newer));
        for behind in [PageCursor::Message { created_at: moment, id: id.clone() }, PageCursor::Id(id)] {
            let list = intents::list_query(&format!("q=a&{}", made(&behind)));
            assert_eq!(list.ok().and_then(|query| query.after), Some(behind));
        }
    }
    let mut random = [0; 16];
    random.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
    let place = JobCursor { accepted_at: moment, id: SubmissionId::from_random(random) };
    let list = jobs::list_query(&encoded(&[("cursor", Some(jobs::cursor_text(&place)))]));
    assert_eq!(list.ok().and_then(|query| query.after), Some(place));
    let list = inbox_list(&encoded(&[("cursor", Some(inbox::cursor_text(number)))]));
    assert_eq!(list.ok().and_then(|query| query.after), Some(number));
}

fn inbox_list(text: &str) -> Result<InboxQuery, ApiError> {
    inbox::inbox_query(text, &INBOX_PARAMETERS)
}

/// Asserts that a cursor which a list accepts is exactly the text that encodes its position.
fn taken_back<T>(
    text: &str,
    list: impl FnOnce(&str) -> Result<T, ApiError>,
    cursor: impl FnOnce(&T) -> Option<String>,
) {
    match list(&encoded(&[("cursor", Some(text.to_owned()))])) {
        Ok(query) => assert_eq!(cursor(&query).unwrap_or_default(), text),
        Err(error) => assert_refused_in_one_line(&error),
    }
}
