//! Log lines as JSON objects, made from the text of the event.
//!
//! The text of an event is its name and then `key=value` pairs: `leader_acquired holder_id=a lease_epoch=3`. A value may be
//! quoted as Rust's `{:?}` does it. The object has the same fields, after `time` and `level`. Lines of libraries have no
//! event name; their text is in `message`, and `target` says which module wrote it.

use log::Level;
use serde_json::Value;

/// Keys whose values are always whole numbers. Other values are strings even if they consist of digits, because a field whose
/// type changes from line to line cannot be indexed.
const NUMBERS: [&str; 22] = [
    "api_clients",
    "attempt",
    "by_seconds",
    "connections",
    "console_users",
    "contract_id",
    "count",
    "http_status",
    "inbox_clients",
    "intent_seq",
    "interrupted_attempts",
    "lanes",
    "lease_epoch",
    "limit",
    "migrations_run",
    "nodes",
    "targets",
    "tried",
    "tries",
    "try",
    "wanted_connections",
    "writes",
];

/// Makes the object of a log line.
pub(super) fn object(time: &str, level: Level, module: &str, text: &str) -> String {
    let mut object = Object::default();
    object.push("time", &Value::from(time));
    object.push("level", &Value::from(level.as_str()));
    match parse(text) {
        Some((event, fields)) => {
            object.push("event", &Value::from(event));
            fields.into_iter().for_each(|(key, raw)| object.push(key, &value(key, raw)));
        }
        None => {
            object.push("target", &Value::from(module));
            object.push("message", &Value::from(text));
        }
    }
    object.finish()
}

/// Writes an object with its keys in the order in which they are added. Of two values with one key it keeps the first.
#[derive(Default)]
struct Object<'a> {
    keys: Vec<&'a str>,
    text: String,
}

impl<'a> Object<'a> {
    fn push(&mut self, key: &'a str, value: &Value) {
        if !self.keys.contains(&key) {
            self.text.push(if self.keys.is_empty() { '{' } else { ',' });
            self.text.push_str(&format!("{}:{value}", Value::from(key)));
            self.keys.push(key);
        }
    }

    fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

/// The name of an event and its fields with their values as they were written; `None` if the text is not an event.
fn parse(text: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let (event, mut rest) = text.split_once(' ').unwrap_or((text, ""));
    if !is_name(event) {
        return None;
    }
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let (key, tail) = rest.split_once('=').filter(|(key, _)| is_name(key))?;
        let end = value_end(tail);
        fields.push((key, &tail[..end]));
        rest = tail[end..].trim_start_matches(' ');
    }
    Some((event, fields))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Where a value ends: at the first space outside quotation marks that is followed by another key, or with the text.
fn value_end(text: &str) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b' ' if !quoted => {
                let next = text[position + 1..].split_once('=');
                if next.is_some_and(|(key, _)| is_name(key)) {
                    return position;
                }
            }
            _ => {}
        }
    }
    text.len()
}

fn value(key: &str, raw: &str) -> Value {
    if raw == "None" {
        return Value::Null;
    }
    let inner = raw.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(raw);
    if NUMBERS.contains(&key)
        && let Ok(number) = inner.parse::<i64>()
    {
        return Value::from(number);
    }
    let quoted = inner.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    Value::from(quoted.map_or_else(|| inner.to_owned(), unescaped))
}

/// Undoes the escapes that `{:?}` writes. Anything else stays as it is.
fn unescaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('\\') {
        result.push_str(&rest[..position]);
        let (character, length) = escape(&rest[position..]).unwrap_or(('\\', 1));
        result.push(character);
        rest = &rest[position + length..];
    }
    result.push_str(rest);
    result
}

/// The character for which the escape at the beginning of a text stands, and the length of the escape.
fn escape(text: &str) -> Option<(char, usize)> {
    let simple = |character| Some((character, 2));
    match text.as_bytes().get(1)? {
        b'n' => simple('\n'),
        b'r' => simple('\r'),
        b't' => simple('\t'),
        b'0' => simple('\0'),
        b'"' => simple('"'),
        b'\'' => simple('\''),
        b'\\' => simple('\\'),
        b'u' => {
            let digits = text.strip_prefix("\\u{")?.split_once('}')?.0;
            let character = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
            Some((character, "\\u{}".len() + digits.len()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Fields that every object has. No event may use them as keys.
    const RESERVED: [&str; 3] = ["time", "level", "event"];

    fn read(text: &str) -> Value {
        serde_json::from_str(&object("2026-01-02T03:04:05Z", Level::Info, "some::module", text)).unwrap()
    }

    /// The fields of an event, without time and level.
    fn fields(text: &str) -> Value {
        let mut read = read(text);
        let object = read.as_object_mut().unwrap();
        assert_eq!(object.remove("time"), Some(json!("2026-01-02T03:04:05Z")));
        assert_eq!(object.remove("level"), Some(json!("INFO")));
        read
    }

    #[test]
    fn an_event_has_the_same_fields_as_its_text() {
        for (text, expected) in [
            ("stopped", json!({ "event": "stopped" })),
            (
                "leader_acquired holder_id=17 lease_epoch=3 expires_at=2026-01-02T03:04:05Z",
                json!({ "event": "leader_acquired", "holder_id": "17", "lease_epoch": 3,
                    "expires_at": "2026-01-02T03:04:05Z" }),
            ),
            (
                "stopping next=\"finish \\\"open\\\" a=b\\nand\\u{7f} c\" count=2",
                json!({ "event": "stopping", "next": "finish \"open\" a=b\nand\u{7f} c", "count": 2 }),
            ),
            (
                "finished decision=Reject { reason: \"a b=c\" } intent_id=\"x\"",
                json!({ "event": "finished", "decision": "Reject { reason: \"a b=c\" }", "intent_id": "x" }),
            ),
            (
                "tried http_status=Some(500) error=Some(\"no answer\") verdict=RetryAt(5)",
                json!({ "event": "tried", "http_status": 500, "error": "no answer", "verdict": "RetryAt(5)" }),
            ),
            (
                "tried http_status=None trace_id= x=1",
                json!({ "event": "tried", "http_status": null, "trace_id": "", "x": "1" }),
            ),
            (
                "failed error=a long, unquoted text with x = y store_error=\"z\"",
                json!({ "event": "failed", "error": "a long, unquoted text with x = y", "store_error": "z" }),
            ),
            ("twice a=1 a=2", json!({ "event": "twice", "a": "1" })),
            ("odd a=\"\\q\\x\\u{d800}\\\\n\"", json!({ "event": "odd", "a": "\\q\\x\\u{d800}\\n" })),
            ("open a=\"x b=y", json!({ "event": "open", "a": "\"x b=y" })),
        ] {
            assert_eq!(fields(text), expected, "{text}");
        }
    }

    #[test]
    fn other_text_is_a_message() {
        for text in ["Starting 2 workers", "", "a sentence of a library", "tcp: error=\"x\"", "event a=1\nx"] {
            let expected = json!({ "target": "some::module", "message": text });
            let found = fields(text);
            assert!(found == expected || found["event"] == "event", "{text}: {found}");
        }
    }

    proptest! {
        #[test]
        fn quoted_values_come_back_unchanged(first in any::<String>(), second in any::<String>()) {
            let found = fields(&format!("event a={first:?} count=5 b={second:?}"));
            prop_assert_eq!(found, json!({ "event": "event", "a": first, "count": 5, "b": second }));
        }

        #[test]
        fn every_text_makes_one_line_of_json(text in any::<String>()) {
            let line = object("now", Level::Error, "m", &text);
            prop_assert!(!line.contains('\n'));
            prop_assert!(serde_json::from_str::<Value>(&line).is_ok());
        }
    }

    /// The text literals of all log lines in a source file.
    fn log_lines(source: &str) -> Vec<String> {
        let levels = ["error!(", "warn!(", "info!(", "debug!(", "log!("];
        let calls =
            source.split("log::").skip(1).filter_map(|call| levels.iter().find_map(|level| call.strip_prefix(level)));
        let literal = |call: &str| {
            let start = call.find('"')? + 1;
            let mut escaped = false;
            let length = call[start..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })?;
            Some(call[start..start + length].replace("\\\"", "\""))
        };
        calls.filter_map(literal).collect()
    }

    fn sources(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("json_lines.rs") {
                found.push(std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// Keeps what this module relies on: every log line of the service is the name of an event and `key=value` pairs.
    #[test]
    fn every_log_line_of_the_service_is_an_event() {
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
        let lines: Vec<_> = files.iter().flat_map(|source| log_lines(source)).collect();
        assert!(lines.len() > 50, "found only {}", lines.len());
        for line in &lines {
            // A placeholder without a key stands for an event or for several fields.
            let mut words = Vec::new();
            let text = line.replace("{}{", "{} {");
            for (number, part) in text.split('"').enumerate() {
                if number % 2 == 0 {
                    words.extend(part.split_whitespace());
                }
            }
            let event = words.first().unwrap_or_else(|| panic!("{line}"));
            let known_part: String = event.split('{').map(|part| part.split('}').next_back().unwrap()).collect();
            assert!(is_name(&known_part) || event.starts_with('{'), "not an event: {line}");
            for field in &words[1..] {
                let key = field.split_once('=').map(|(key, _)| key);
                assert!(key.is_some_and(is_name) || field.starts_with('{'), "{field} is not key=value in {line}");
                assert!(key.is_none_or(|key| !RESERVED.contains(&key)), "{field} is reserved, in {line}");
            }
        }
    }
}
