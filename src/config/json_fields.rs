//! Reads a JSON object field by field and collects every error with its location.
//!
//! An invalid field reads as `None` and the caller continues, so that one run reports all errors of a document.

use std::cell::RefCell;
use std::fmt;
use std::num::NonZeroU32;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// One error in a document, with its location, such as `targets[2].maxAttempts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedError {
    /// Empty if the error is about the document as a whole.
    pub location: String,
    pub message: String,
}

impl fmt::Display for LocatedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location.as_str() {
            "" => f.write_str(&self.message),
            location => write!(f, "{location}: {}", self.message),
        }
    }
}

/// The errors found in a document so far. All [`Fields`] of the document add to the same list.
#[derive(Default)]
pub struct ErrorList(RefCell<Vec<LocatedError>>);

impl ErrorList {
    pub fn add(&self, location: impl Into<String>, message: impl Into<String>) {
        self.0.borrow_mut().push(LocatedError { location: location.into(), message: message.into() });
    }

    /// Returns `value` if no error was added, and all errors otherwise.
    pub fn into_result<T>(self, value: T) -> Result<T, Vec<LocatedError>> {
        let errors = self.0.into_inner();
        if errors.is_empty() { Ok(value) } else { Err(errors) }
    }
}

/// Parses a document whose top level is a JSON object. Fails with one error if it is anything else.
pub fn parse_object(text: &[u8]) -> Result<Map<String, Value>, Vec<LocatedError>> {
    let one_error = |location: String, message: String| vec![LocatedError { location, message }];
    match serde_json::from_slice(text).map(|UniqueFields(value)| value) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(one_error(String::new(), format!("must be a JSON object, not {}", kind(&other)))),
        Err(error) => {
            let text = error.to_string();
            let reason = text.split_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
            let location = format!("line {} column {}", error.line(), error.column());
            Err(one_error(location, format!("not valid JSON: {reason}")))
        }
    }
}

/// JSON in which no object has the same field twice. `serde_json` alone would silently keep only the last value.
struct UniqueFields(Value);

impl<'de> Deserialize<'de> for UniqueFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueFieldsVisitor).map(Self)
    }
}

struct UniqueFieldsVisitor;

impl<'de> Visitor<'de> for UniqueFieldsVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(UniqueFields(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            let UniqueFields(value) = object.next_value()?;
            if map.contains_key(&name) {
                return Err(serde::de::Error::custom(format!("duplicate field {name:?}")));
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

/// The fields of one object in a document. Each method reads one field and adds an error to the list if it is invalid.
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    location: String,
    errors: &'a ErrorList,
    /// The names of the fields that were read so far.
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>, location: impl Into<String>, errors: &'a ErrorList) -> Self {
        Self { map, location: location.into(), errors, known: RefCell::default() }
    }

    /// The location of a field of this object within the document.
    pub fn location_of(&self, name: &str) -> String {
        if self.location.is_empty() { name.to_owned() } else { format!("{}.{name}", self.location) }
    }

    /// Adds an error about a field of this object.
    pub fn error_at(&self, name: &str, message: impl Into<String>) {
        self.errors.add(self.location_of(name), message);
    }

    /// Whether the field is present, valid or not.
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    fn get(&self, name: &'static str) -> Option<&'a Value> {
        self.mark_known(name);
        self.map.get(name)
    }

    /// A required field. `hint` tells the reader of the error what to write.
    fn required(&self, name: &'static str, hint: &str) -> Option<&'a Value> {
        let value = self.get(name);
        if value.is_none() {
            self.error_at(name, format!("is missing; {hint}"));
        }
        value
    }

    fn wrong_type(&self, name: &str, expected: &str, value: &Value) {
        self.error_at(name, format!("must be {expected}, not {}", kind(value)));
    }

    /// A required string.
    pub fn text(&self, name: &'static str, hint: &str) -> Option<&'a str> {
        let value = self.required(name, hint)?;
        let text = value.as_str();
        if text.is_none() {
            self.wrong_type(name, "a string", value);
        }
        text
    }

    /// A required list.
    pub fn list(&self, name: &'static str, hint: &str) -> Option<&'a Vec<Value>> {
        let value = self.required(name, hint)?;
        let list = value.as_array();
        if list.is_none() {
            self.wrong_type(name, "a list", value);
        }
        list
    }

    /// An optional boolean; false if the field is absent.
    pub fn flag(&self, name: &'static str) -> bool {
        let Some(value) = self.get(name) else { return false };
        if !value.is_boolean() {
            self.wrong_type(name, "true or false", value);
        }
        value.as_bool().unwrap_or(false)
    }

    /// An optional object.
    pub fn object(&self, name: &'static str) -> Option<Fields<'a>> {
        let value = self.get(name)?;
        let Value::Object(map) = value else {
            self.wrong_type(name, "an object", value);
            return None;
        };
        Some(Fields::new(map, self.location_of(name), self.errors))
    }

    /// An optional object whose values are all strings, as pairs of name and value.
    pub fn texts(&self, name: &'static str) -> Vec<(&'a str, &'a str)> {
        let Some(object) = self.object(name) else { return Vec::new() };
        let text = |(name, value): (&'a String, &'a Value)| {
            if !value.is_string() {
                object.wrong_type(name, "a string", value);
            }
            Some((name.as_str(), value.as_str()?))
        };
        object.map.iter().filter_map(text).collect()
    }

    /// An optional string.
    pub fn optional_text(&self, name: &'static str) -> Option<&'a str> {
        self.get(name).and_then(|_| self.text(name, ""))
    }

    /// A required object.
    pub fn required_object(&self, name: &'static str, hint: &str) -> Option<Fields<'a>> {
        self.required(name, hint)?;
        self.object(name)
    }

    /// The objects of a required list, each with its index. An empty list is an error.
    pub fn objects(&self, name: &'static str, hint: &str) -> Vec<(usize, Fields<'a>)> {
        let Some(list) = self.list(name, hint) else { return Vec::new() };
        if list.is_empty() {
            self.error_at(name, format!("must not be empty; {hint}"));
        }
        let object = |(index, value): (usize, &'a Value)| {
            let location = format!("{}[{index}]", self.location_of(name));
            let Value::Object(map) = value else {
                self.errors.add(location, format!("must be an object, not {}", kind(value)));
                return None;
            };
            Some((index, Fields::new(map, location, self.errors)))
        };
        list.iter().enumerate().filter_map(object).collect()
    }

    /// The strings of an optional list. Blank and duplicate strings are errors.
    pub fn names(&self, name: &'static str) -> Vec<&'a str> {
        if self.get(name).is_none() {
            return Vec::new();
        }
        let mut names = Vec::new();
        for (index, value) in self.list(name, "").into_iter().flatten().enumerate() {
            let location = format!("{name}[{index}]");
            match value.as_str().map(str::trim) {
                None => self.error_at(&location, format!("must be a string, not {}", kind(value))),
                Some("") => self.error_at(&location, "must not be blank"),
                Some(text) if names.contains(&text) => self.error_at(&location, format!("duplicate value {text:?}")),
                Some(text) => names.push(text),
            }
        }
        names
    }

    /// Whether the field is present and null, which some clients send for an absent field.
    pub fn is_null(&self, name: &'static str) -> bool {
        self.get(name).is_some_and(Value::is_null)
    }

    /// Marks a field as known without reading it, so that [`Self::reject_unknown_fields`] accepts it.
    pub fn mark_known(&self, name: &'static str) {
        let mut known = self.known.borrow_mut();
        if !known.contains(&name) {
            known.push(name);
        }
    }

    /// A required whole number from 1 to `u32::MAX`.
    pub fn positive(&self, name: &'static str, hint: &str) -> Option<NonZeroU32> {
        let value = self.required(name, hint)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok()).and_then(NonZeroU32::new);
        if number.is_none() {
            self.error_at(name, format!("must be a whole number from 1 to {}, not {value}", u32::MAX));
        }
        number
    }

    /// An optional whole number from 1 to `u32::MAX`.
    pub fn optional_positive(&self, name: &'static str) -> Option<NonZeroU32> {
        self.get(name).and_then(|_| self.positive(name, ""))
    }

    /// An optional number, whole or not.
    pub fn optional_number(&self, name: &'static str) -> Option<f64> {
        let value = self.get(name)?;
        let number = value.as_f64();
        if number.is_none() {
            self.wrong_type(name, "a number", value);
        }
        number
    }

    /// Adds an error for every field that was neither read nor marked as known. Call it after all fields are read.
    pub fn reject_unknown_fields(&self) {
        let known = self.known.borrow();
        for name in self.map.keys().filter(|name| !known.contains(&name.as_str())) {
            self.error_at(name, format!("unknown field; known fields are {}", known.join(", ")));
        }
    }
}

/// The JSON type of a value, for error messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
