//! Parses and validates the command that submits a job. The error lists everything that is wrong, each with its field.

use url::Url;

use crate::config::json_fields::{ErrorList, Fields, LocatedError, parse_object};
use crate::domain::intent::checked_name;
use crate::domain::job::{ExecutionProfile, JobCommand, PayloadRef, RequestedBy, ResourceShape};
use crate::web::error::ApiError;

/// The maximum length of an input URI. It is large because signed URLs are long.
const MAX_URI_CHARS: usize = 8 * 1024;
const SCHEMES: [&str; 3] = ["s3", "gs", "https"];

/// Parses the body of a job submission.
pub fn parse(body: &[u8]) -> Result<JobCommand, ApiError> {
    read(body).map_err(|errors| {
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        ApiError::InvalidRequest(texts.join("; "))
    })
}

fn read(body: &[u8]) -> Result<JobCommand, Vec<LocatedError>> {
    let document = parse_object(body)?;
    let errors = ErrorList::default();
    let command = command(&Fields::new(&document, "", &errors));
    // `command` is `None` only if an error was collected.
    errors.into_result(command)?.ok_or_else(Vec::new)
}

fn command(top: &Fields<'_>) -> Option<JobCommand> {
    let tenant_id = name(top, "tenant_id");
    let workspace_id = name(top, "workspace_id");
    let job_id = name(top, "job_id");
    let idempotency_key = name(top, "idempotency_key");
    let management_node_id = name(top, "management_node_id");
    let execution_profile = object(top, "execution_profile", "with queue_name", |fields| {
        let (queue_name, qos, account) =
            (name(fields, "queue_name"), optional(fields, "qos"), optional(fields, "account"));
        Some(ExecutionProfile { queue_name: queue_name?, qos, account })
    });
    let resource_shape = object(top, "resource_shape", "with cpu, memory_mib and walltime_seconds", |fields| {
        let number = |field| fields.positive(field, "write a positive whole number");
        let (cpu, memory_mib, walltime_seconds) = (number("cpu"), number("memory_mib"), number("walltime_seconds"));
        Some(ResourceShape { cpu: cpu?, memory_mib: memory_mib?, walltime_seconds: walltime_seconds? })
    });
    let payload_ref = object(top, "payload_ref", "with input_uri", |fields| {
        let (input_uri, artifact_bucket) = (input_uri(fields), optional(fields, "artifact_bucket"));
        Some(PayloadRef { input_uri: input_uri?, artifact_bucket })
    });
    let requested_by = object(top, "requested_by", "with user_id", |fields| {
        let (user_id, session_id) = (name(fields, "user_id"), optional(fields, "session_id"));
        Some(RequestedBy { user_id: user_id?, session_id })
    });
    top.reject_unknown_fields();
    Some(JobCommand {
        tenant_id: tenant_id?,
        workspace_id: workspace_id?,
        job_id: job_id?,
        idempotency_key: idempotency_key?,
        management_node_id: management_node_id?,
        execution_profile: execution_profile?,
        resource_shape: resource_shape?,
        payload_ref: payload_ref?,
        requested_by: requested_by?,
    })
}

fn object<T>(
    fields: &Fields<'_>,
    field: &'static str,
    hint: &str,
    read: impl FnOnce(&Fields<'_>) -> Option<T>,
) -> Option<T> {
    let object = fields.required_object(field, &format!("write an object {hint}"))?;
    let value = read(&object);
    object.reject_unknown_fields();
    value
}

fn name(fields: &Fields<'_>, field: &'static str) -> Option<String> {
    checked(fields, field, fields.text(field, "write a string")?)
}

/// An optional string. `null` counts as absent.
fn optional(fields: &Fields<'_>, field: &'static str) -> Option<String> {
    if fields.is_null(field) {
        return None;
    }
    checked(fields, field, fields.optional_text(field)?)
}

fn checked(fields: &Fields<'_>, field: &'static str, raw: &str) -> Option<String> {
    checked_name(raw).map_err(|error| fields.error_at(field, error.to_string())).ok().map(|name| name.to_string())
}

fn input_uri(fields: &Fields<'_>) -> Option<String> {
    const NAME: &str = "input_uri";
    let raw = fields.text(NAME, "write an s3, gs or https URI")?.trim();
    // The errors do not repeat the URI, because it may be signed or contain a password.
    if raw.chars().count() > MAX_URI_CHARS {
        fields.error_at(NAME, format!("must have at most {MAX_URI_CHARS} characters"));
    } else if raw.chars().any(char::is_control) {
        fields.error_at(NAME, "must not contain control characters");
    } else {
        match Url::parse(raw).ok().filter(|url| is_input(raw, url)) {
            None => fields.error_at(NAME, "must be an s3, gs or https URI with a bucket or host"),
            Some(url) if has_credentials(raw, &url) => {
                fields.error_at(
                    NAME,
                    "must not contain a user name or password; give the node its own access, or sign the URI",
                );
            }
            Some(_) => {}
        }
    }
    Some(raw.to_owned())
}

/// Whether the URI names an object that a node can read. The scheme may be in upper or lower case; `raw` must have `//`
/// after it, because the URL parser also accepts other forms.
fn is_input(raw: &str, url: &Url) -> bool {
    let written = raw.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(url.scheme()));
    written && SCHEMES.contains(&url.scheme()) && url.host_str().is_some_and(|host| !host.is_empty())
}

/// Whether the URI has a user name or password. Looks at `raw` too, because the URL parser drops empty ones.
fn has_credentials(raw: &str, url: &Url) -> bool {
    let after_scheme = raw.split_once("://").map_or(raw, |(_, rest)| rest);
    let authority = after_scheme.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    authority.contains('@') || !url.username().is_empty() || url.password().is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A command with all fields.
    fn sample() -> Value {
        json!({
            "tenant_id": "acme", "workspace_id": "w1", "job_id": "job-1001", "idempotency_key": "job-1001-1",
            "management_node_id": "node-a",
            "execution_profile": { "queue_name": "short", "qos": "normal", "account": "research" },
            "resource_shape": { "cpu": 4, "memory_mib": 8192, "walltime_seconds": 600 },
            "payload_ref": { "input_uri": "s3://acme-jobs/1001/input.json", "artifact_bucket": "acme-artifacts" },
            "requested_by": { "user_id": "user-7", "session_id": "session-3" },
        })
    }

    fn errors(command: &Value) -> Vec<String> {
        read(command.to_string().as_bytes()).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    /// Every field of a command that is not an object: its path, whether it is required, and whether it is a number.
    const LEAVES: [(&str, bool, bool); 15] = [
        ("/tenant_id", true, false),
        ("/workspace_id", true, false),
        ("/job_id", true, false),
        ("/idempotency_key", true, false),
        ("/management_node_id", true, false),
        ("/execution_profile/queue_name", true, false),
        ("/execution_profile/qos", false, false),
        ("/execution_profile/account", false, false),
        ("/resource_shape/cpu", true, true),
        ("/resource_shape/memory_mib", true, true),
        ("/resource_shape/walltime_seconds", true, true),
        ("/payload_ref/input_uri", true, false),
        ("/payload_ref/artifact_bucket", false, false),
        ("/requested_by/user_id", true, false),
        ("/requested_by/session_id", false, false),
    ];

    fn with(path: &str, value: Value) -> Value {
        let mut command = sample();
        *command.pointer_mut(path).unwrap() = value;
        command
    }

    fn without(path: &str) -> Value {
        let mut command = sample();
        let (parent, field) = path.rsplit_once('/').unwrap();
        command.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(field).unwrap();
        command
    }

    #[test]
    fn every_missing_or_invalid_field_is_named() {
        assert!(errors(&sample()).is_empty());
        for (path, required, number) in LEAVES {
            let location = path[1..].replace('/', ".");
            let names_it = |errors: &[String]| errors.len() == 1 && errors[0].starts_with(&format!("{location}: "));
            let missing = errors(&without(path));
            assert_eq!(names_it(&missing), required, "{location} missing: {missing:?}");
            let null = errors(&with(path, Value::Null));
            assert_eq!(names_it(&null), required, "{location} null: {null:?}");
            let wrong: &[Value] = if number {
                &[json!(0), json!(-1), json!(1.5), json!("4"), json!(4294967296_u64), json!(true)]
            } else {
                &[json!(7), json!(""), json!("  "), json!("a\u{0}b"), json!(["x"]), json!({})]
            };
            for value in wrong {
                let found = errors(&with(path, value.clone()));
                assert!(names_it(&found), "{location} = {value}: {found:?}");
            }
            if !number && path != "/payload_ref/input_uri" {
                assert!(names_it(&errors(&with(path, json!("x".repeat(201))))), "{location} too long");
                assert!(errors(&with(path, json!("x".repeat(200)))).is_empty(), "{location} long");
            }
        }
        for object in ["/execution_profile", "/resource_shape", "/payload_ref", "/requested_by"] {
            for found in
                [errors(&without(object)), errors(&with(object, json!([]))), errors(&with(object, Value::Null))]
            {
                assert!(found.len() == 1 && found[0].starts_with(&object[1..]), "{found:?}");
            }
            let unknown = errors(&with(object, json!({ "colour": 1 })));
            assert!(unknown.iter().any(|error| error.starts_with(&format!("{}.colour: unknown field", &object[1..]))));
        }
        let mut unknown = sample();
        unknown["colour"] = 1.into();
        assert!(errors(&unknown)[0].starts_with("colour: unknown field"), "{:?}", errors(&unknown));
    }

    #[test]
    fn input_uris_must_be_readable_by_nodes_and_have_no_credentials() {
        for (uri, valid) in [
            ("s3://bucket/key", true),
            ("gs://bucket/a%20b", true),
            ("https://store.example/x?X-Amz-Signature=abc&y=1", true),
            ("S3://bucket/key", true),
            ("Gs://bucket/key", true),
            ("HTTPS://store.example/x", true),
            ("s3://bucket/a@b", true),
            ("https://store.example/?to=a@b", true),
            ("https://user:secret@store.example/x", false),
            ("https://user@store.example/x", false),
            ("https://:secret@store.example/x", false),
            ("https://@store.example/x", false),
            ("https:///user:secret@store.example/x", false),
            ("s3://key:secret@bucket/x", false),
            ("gs://@bucket/x", false),
            ("http://store.example/x", false),
            ("file:///etc/passwd", false),
            ("s3:///key", false),
            ("https:h/x", false),
            ("https:\\\\h\\x", false),
            ("https://", false),
            ("bucket/key", false),
            ("ftp://x/y", false),
        ] {
            assert_eq!(errors(&with("/payload_ref/input_uri", uri.into())).is_empty(), valid, "{uri}");
        }
        let found = errors(&with("/payload_ref/input_uri", "https://user:secret@x/y".into()));
        assert!(found[0].starts_with("payload_ref.input_uri: must not contain a user name or password"), "{found:?}");
        assert!(!found[0].contains("secret"), "{found:?}");
        let long = format!("https://x/{}", "y".repeat(MAX_URI_CHARS));
        let found = errors(&with("/payload_ref/input_uri", long.into()));
        assert_eq!(found, ["payload_ref.input_uri: must have at most 8192 characters"]);
    }

    #[test]
    fn bodies_that_are_not_a_json_object_are_refused() {
        for (text, expected) in [
            ("", "line 1 column 0: not valid JSON"),
            ("[]", "must be a JSON object"),
            ("{\"tenant_id\":\"a\"} x", "trailing characters"),
            ("{\"tenant_id\":\"a\",\"tenant_id\":\"b\"}", "duplicate field \"tenant_id\""),
            ("{\"requested_by\":{\"user_id\":\"a\",\"user_id\":\"b\"}}", "duplicate field \"user_id\""),
            ("\u{feff}{}", "not valid JSON"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(parse(b"{\"tenant_id\":\"\xff\"}").is_err());
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
