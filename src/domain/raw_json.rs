//! Reads single fields of a JSON object from outside, and skips the others without parsing them.
//!
//! Half a surrogate pair, a number that no type can hold, or a thousand nested brackets in another field do no harm.

use std::collections::HashMap;
use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The fields of a JSON object as raw JSON. If a field occurs several times, the last one counts.
#[derive(Deserialize)]
#[serde(transparent)]
pub struct Object<'a>(#[serde(borrow)] HashMap<Lossy, &'a RawValue>);

impl<'a> Object<'a> {
    /// `None` if the value is not an object.
    pub fn of(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(&Lossy(name.to_owned())).copied()
    }
}

/// A JSON string that may contain half of a surrogate pair, which programs write when they cut a text in the middle of a
/// character. Replacement characters take its place.
#[derive(PartialEq, Eq, Hash)]
pub struct Lossy(pub String);

impl<'de> Deserialize<'de> for Lossy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Lossy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Lossy, E> {
                Ok(Lossy(String::from_utf8_lossy(bytes).into_owned()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Lossy, E> {
                Ok(Lossy(text.to_owned()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// The content of a string, or a number as it is written; `None` for anything else.
pub fn text_of(raw: &RawValue) -> Option<String> {
    match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str::<Lossy>(raw.get()).ok().map(|Lossy(text)| text),
        Some(b'-' | b'0'..=b'9') => Some(raw.get().to_owned()),
        _ => None,
    }
}
