//! Reading a JSON object field by field while collecting every fault with its place.
//!
//! A faulty field reads as `None`; whoever reads goes on, so that one run finds all faults.

use std::cell::RefCell;
use std::num::NonZeroU32;

use serde_json::{Map, Value};

use super::Fault;

#[derive(Default)]
pub struct Faults(RefCell<Vec<Fault>>);

impl Faults {
    pub fn add(&self, place: impl Into<String>, text: impl Into<String>) {
        self.0.borrow_mut().push(Fault { place: place.into(), text: text.into() });
    }

    pub fn into_result<T>(self, value: T) -> Result<T, Vec<Fault>> {
        let faults = self.0.into_inner();
        if faults.is_empty() { Ok(value) } else { Err(faults) }
    }
}

/// Parses a document whose top level is an object; the one fault if it is not.
pub fn parse_object(text: &str) -> Result<Map<String, Value>, Vec<Fault>> {
    let fault = |place: String, text: String| vec![Fault { place, text }];
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(fault(String::new(), format!("must be a JSON object, this is {}", kind(&other)))),
        Err(error) => {
            let text = error.to_string();
            let what = text.split_once(" at line ").map_or(text.as_str(), |(what, _)| what);
            Err(fault(format!("line {} column {}", error.line(), error.column()), format!("not valid JSON: {what}")))
        }
    }
}

/// One object of a registry file.
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    place: String,
    faults: &'a Faults,
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>, place: impl Into<String>, faults: &'a Faults) -> Self {
        Self { map, place: place.into(), faults, known: RefCell::default() }
    }

    pub fn place_of(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    pub fn fault(&self, name: &str, text: impl Into<String>) {
        self.faults.add(self.place_of(name), text);
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
        Some(Fields::new(map, self.place_of(name), self.faults))
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
