//! Reading single fields of somebody else's JSON object, whatever stands in the others.
//!
//! What nobody asks for is only skipped: half a surrogate pair, a number that no type can hold or a thousand
//! brackets in another field do not matter.

use std::collections::HashMap;
use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The fields of a JSON object, each as it is written; the last one of a name counts.
#[derive(Deserialize)]
#[serde(transparent)]
pub struct Object<'a>(#[serde(borrow)] HashMap<Lossy, &'a RawValue>);

impl<'a> Object<'a> {
    pub fn of(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(&Lossy(name.to_owned())).copied()
    }
}

/// A JSON string, also if it holds half of a surrogate pair, as programs write that cut texts without looking.
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

/// What a string says or how a number is written; `None` for anything else.
pub fn text_of(raw: &RawValue) -> Option<String> {
    match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str::<Lossy>(raw.get()).ok().map(|Lossy(text)| text),
        Some(b'-' | b'0'..=b'9') => Some(raw.get().to_owned()),
        _ => None,
    }
}
