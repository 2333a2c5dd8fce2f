//! Reads single fields from the payload of an inbox submission, and ignores the others.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use url::form_urlencoded;

use super::people::nfc;
use super::{Cause, Failure};
use crate::domain::raw_json::{self, Lossy};

/// The format of a payload. The payload is stored byte for byte, and this says how to parse it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PayloadFormat {
    #[default]
    Json,
    /// `application/x-www-form-urlencoded`, which many providers use for hooks.
    Form,
}

impl PayloadFormat {
    pub const ALL: [Self; 2] = [Self::Json, Self::Form];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Form => "form",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == text)
    }

    /// The format of a body with this content type: form if it says so, else JSON.
    pub fn of_content_type(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") { Self::Form } else { Self::Json }
    }
}

/// A parsed payload. If a field occurs several times, the last one counts.
pub(super) enum Document<'a> {
    Json(Object<'a>),
    Form(HashMap<String, String>),
}

impl<'a> Document<'a> {
    pub(super) fn parse(format: PayloadFormat, payload: &'a [u8]) -> Result<Self, Failure> {
        match format {
            PayloadFormat::Json => {
                let unreadable = |error| Failure::new(Cause::Unreadable, format!("the payload is not JSON: {error}"));
                let raw: &RawValue = serde_json::from_slice(payload).map_err(unreadable)?;
                let object = Object::of(raw);
                object
                    .map(Self::Json)
                    .ok_or_else(|| Failure::new(Cause::Unreadable, "the payload is not a JSON object"))
            }
            PayloadFormat::Form => {
                let fields = form_urlencoded::parse(payload);
                Ok(Self::Form(fields.map(|(name, value)| (nfc(&name).into_owned(), value.into_owned())).collect()))
            }
        }
    }

    /// The text of a field. In JSON, the name can also be a path of names joined by dots. `None` if the field is absent,
    /// blank or null.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Failure> {
        let text = match self {
            Self::Json(object) => match object.get(name).or_else(|| at_path(object, name)) {
                Some(raw) => text_of(raw, name)?,
                None => None,
            },
            Self::Form(fields) => fields.get(nfc(name).as_ref()).cloned(),
        };
        Ok(text.filter(|text| !text.trim().is_empty()))
    }
}

/// The fields of a JSON object, whose values are not parsed before they are used.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Object<'a>(#[serde(borrow)] HashMap<FieldName, &'a RawValue>);

impl<'a> Object<'a> {
    fn of(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(&FieldName::of(name)).copied()
    }
}

/// The name of a field, in NFC.
#[derive(PartialEq, Eq, Hash)]
struct FieldName(String);

impl FieldName {
    fn of(name: &str) -> Self {
        Self(nfc(name).into_owned())
    }
}

impl<'de> Deserialize<'de> for FieldName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Lossy::deserialize(deserializer).map(|Lossy(name)| Self::of(&name))
    }
}

/// The text of a JSON value; `None` if it is null.
fn text_of(raw: &RawValue, name: &str) -> Result<Option<String>, Failure> {
    if let Some(text) = raw_json::text_of(raw) {
        return Ok(Some(text));
    }
    let kind = match raw.get().as_bytes().first() {
        Some(b'n') => return Ok(None),
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        _ => "true or false",
    };
    Err(Failure::new(Cause::WrongType, format!("{name:?} must be text, not {kind}")))
}

/// The value at a path of names joined by dots.
fn at_path<'a>(document: &Object<'a>, path: &str) -> Option<&'a RawValue> {
    let (first, rest) = path.split_once('.')?;
    let inner = Object::of(document.get(first)?)?;
    inner.get(rest).or_else(|| at_path(&inner, rest))
}
