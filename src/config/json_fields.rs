//! Reading a JSON object field by field while collecting every fault with its place.
//!
//! A faulty field reads as `None`; whoever reads goes on, so that one run finds all faults.

use std::cell::RefCell;
use std::fmt;
use std::num::NonZeroU32;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// One thing wrong with a document, with its place in it (`targets[2].maxAttempts`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedError {
    pub place: String,
    pub text: String,
}

impl fmt::Display for LocatedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() { f.write_str(&self.text) } else { write!(f, "{}: {}", self.place, self.text) }
    }
}

#[derive(Default)]
pub struct ErrorList(RefCell<Vec<LocatedError>>);

impl ErrorList {
    pub fn add(&self, place: impl Into<String>, text: impl Into<String>) {
        self.0.borrow_mut().push(LocatedError { place: place.into(), text: text.into() });
    }

    pub fn into_result<T>(self, value: T) -> Result<T, Vec<LocatedError>> {
        let errors = self.0.into_inner();
        if errors.is_empty() { Ok(value) } else { Err(errors) }
    }
}

/// Parses a document whose top level is an object; the one fault if it is not.
pub fn parse_object(text: &[u8]) -> Result<Map<String, Value>, Vec<LocatedError>> {
    let fault = |place: String, text: String| vec![LocatedError { place, text }];
    match serde_json::from_slice(text).map(|Unrepeated(value)| value) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(fault(String::new(), format!("must be a JSON object, this is {}", kind(&other)))),
        Err(error) => {
            let text = error.to_string();
            let what = text.split_once(" at line ").map_or(text.as_str(), |(what, _)| what);
            Err(fault(format!("line {} column {}", error.line(), error.column()), format!("not valid JSON: {what}")))
        }
    }
}

/// JSON in which no object names a field twice: one of the two would be lost without a word.
struct Unrepeated(Value);

impl<'de> Deserialize<'de> for Unrepeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnrepeatedVisitor).map(Self)
    }
}

struct UnrepeatedVisitor;

impl<'de> Visitor<'de> for UnrepeatedVisitor {
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
        while let Some(Unrepeated(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            let Unrepeated(value) = object.next_value()?;
            if map.contains_key(&name) {
                return Err(serde::de::Error::custom(format!("{name:?} is named twice")));
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

/// One object of a document.
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    place: String,
    errors: &'a ErrorList,
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>, place: impl Into<String>, errors: &'a ErrorList) -> Self {
        Self { map, place: place.into(), errors, known: RefCell::default() }
    }

    pub fn place_of(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    pub fn fault(&self, name: &str, text: impl Into<String>) {
        self.errors.add(self.place_of(name), text);
    }

    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    fn get(&self, name: &'static str) -> Option<&'a Value> {
        self.mention(name);
        self.map.get(name)
    }

    /// A field that must be there; `hint` says what to write.
    fn required(&self, name: &'static str, hint: &str) -> Option<&'a Value> {
        let value = self.get(name);
        if value.is_none() {
            self.fault(name, format!("is missing; {hint}"));
        }
        value
    }

    fn wrong(&self, name: &str, hint: &str, value: &Value) {
        self.fault(name, format!("must be {hint}, this is {}", kind(value)));
    }

    pub fn text(&self, name: &'static str, hint: &str) -> Option<&'a str> {
        let value = self.required(name, hint)?;
        let text = value.as_str();
        if text.is_none() {
            self.wrong(name, "a string", value);
        }
        text
    }

    pub fn list(&self, name: &'static str, hint: &str) -> Option<&'a Vec<Value>> {
        let value = self.required(name, hint)?;
        let list = value.as_array();
        if list.is_none() {
            self.wrong(name, "a list", value);
        }
        list
    }

    /// A field that need not be there; false if it is not.
    pub fn flag(&self, name: &'static str) -> bool {
        let Some(value) = self.get(name) else { return false };
        if !value.is_boolean() {
            self.wrong(name, "true or false", value);
        }
        value.as_bool().unwrap_or(false)
    }

    /// An object that need not be there.
    pub fn object(&self, name: &'static str) -> Option<Fields<'a>> {
        let value = self.get(name)?;
        let Value::Object(map) = value else {
            self.wrong(name, "an object", value);
            return None;
        };
        Some(Fields::new(map, self.place_of(name), self.errors))
    }

    /// An object that need not be there, and holds nothing but strings.
    pub fn texts(&self, name: &'static str) -> Vec<(&'a str, &'a str)> {
        let Some(object) = self.object(name) else { return Vec::new() };
        let text = |(name, value): (&'a String, &'a Value)| {
            if !value.is_string() {
                object.wrong(name, "a string", value);
            }
            Some((name.as_str(), value.as_str()?))
        };
        object.map.iter().filter_map(text).collect()
    }

    /// A string that need not be there.
    pub fn optional_text(&self, name: &'static str) -> Option<&'a str> {
        self.get(name).and_then(|_| self.text(name, ""))
    }

    /// An object that must be there.
    pub fn required_object(&self, name: &'static str, hint: &str) -> Option<Fields<'a>> {
        self.required(name, hint)?;
        self.object(name)
    }

    /// Every object of a list that must be there and not be empty, with its index.
    pub fn objects(&self, name: &'static str, hint: &str) -> Vec<(usize, Fields<'a>)> {
        let Some(list) = self.list(name, hint) else { return Vec::new() };
        if list.is_empty() {
            self.fault(name, format!("must not be empty; {hint}"));
        }
        let object = |(index, value): (usize, &'a Value)| {
            let place = format!("{}[{index}]", self.place_of(name));
            let Value::Object(map) = value else {
                self.errors.add(place, format!("must be an object, this is {}", kind(value)));
                return None;
            };
            Some((index, Fields::new(map, place, self.errors)))
        };
        list.iter().enumerate().filter_map(object).collect()
    }

    /// The strings of a list that need not be there: not blank, none twice.
    pub fn names(&self, name: &'static str) -> Vec<&'a str> {
        if self.get(name).is_none() {
            return Vec::new();
        }
        let mut names = Vec::new();
        for (index, value) in self.list(name, "").into_iter().flatten().enumerate() {
            let place = format!("{name}[{index}]");
            match value.as_str().map(str::trim) {
                None => self.fault(&place, format!("must be a string, this is {}", kind(value))),
                Some("") => self.fault(&place, "must not be blank"),
                Some(text) if names.contains(&text) => self.fault(&place, format!("repeats {text:?}")),
                Some(text) => names.push(text),
            }
        }
        names
    }

    /// Whether a field is there and null, which some writers mean by absent.
    pub fn is_null(&self, name: &'static str) -> bool {
        self.get(name).is_some_and(Value::is_null)
    }

    /// A field that is read elsewhere, or only looked for.
    pub fn mention(&self, name: &'static str) {
        let mut known = self.known.borrow_mut();
        if !known.contains(&name) {
            known.push(name);
        }
    }

    pub fn positive(&self, name: &'static str, hint: &str) -> Option<NonZeroU32> {
        let value = self.required(name, hint)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok()).and_then(NonZeroU32::new);
        if number.is_none() {
            self.fault(name, format!("must be a whole number from 1 to {}, this is {value}", u32::MAX));
        }
        number
    }

    /// The same where it need not be there.
    pub fn optional_positive(&self, name: &'static str) -> Option<NonZeroU32> {
        self.get(name).and_then(|_| self.positive(name, ""))
    }

    /// A number that need not be there.
    pub fn optional_number(&self, name: &'static str) -> Option<f64> {
        let value = self.get(name)?;
        let number = value.as_f64();
        if number.is_none() {
            self.wrong(name, "a number", value);
        }
        number
    }

    /// To be called last: reports every field that nobody asked for.
    pub fn no_others(&self) {
        let known = self.known.borrow();
        for name in self.map.keys().filter(|name| !known.contains(&name.as_str())) {
            self.fault(name, format!("is not a field here; known are {}", known.join(", ")));
        }
    }
}

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
