//! Inbound submissions: what a client of the inbox has, what a raw row becomes, and when to try again.
//!
//! Pure. Intake keeps what came; only here is it read, and whatever cannot be read is a cause and a text.

use std::fmt;
use std::time::Duration;

use phonenumber::{Mode, country};
use serde_json::value::RawValue;

use super::raw_json::{Object, text_of};
use super::time::Timestamp;

/// How something came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    Form,
    Sms,
    Voice,
    Email,
}

impl Channel {
    pub const ALL: [Self; 4] = [Self::Form, Self::Sms, Self::Voice, Self::Email];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Form => "form",
            Self::Sms => "sms",
            Self::Voice => "voice",
            Self::Email => "email",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|channel| channel.as_str() == text)
    }
}

/// Where in a payload things stand: a name, or names joined by dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldNames {
    pub email: String,
    pub phone: String,
    pub name: String,
    pub message: String,
}

impl Default for FieldNames {
    fn default() -> Self {
        let own = |name: &str| name.to_owned();
        Self { email: own("email"), phone: own("phone"), name: own("name"), message: own("message") }
    }
}

/// A client of the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxClient {
    pub slug: String,
    /// Its channels, each with its field names.
    pub channels: Vec<(Channel, FieldNames)>,
    /// Where numbers without a country code are from.
    pub country: Option<country::Id>,
    /// The variable that holds the secrets of signed hooks.
    pub hook_secret_env: Option<String>,
}

impl InboxClient {
    pub fn fields(&self, channel: Channel) -> Option<&FieldNames> {
        self.channels.iter().find(|(known, _)| *known == channel).map(|(_, fields)| fields)
    }
}

/// What a raw row becomes: somebody, and what they said. There is an email or a phone, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Trimmed and in lower case: what contacts are told apart by.
    pub email: Option<String>,
    /// E.164 where it can be.
    pub phone: Option<String>,
    pub name: Option<String>,
    pub body: String,
}

/// Why a row could not be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub cause: Cause,
    pub text: String,
}

impl Failure {
    pub fn new(cause: Cause, text: impl Into<String>) -> Self {
        Self { cause, text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The label of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Not JSON, or not an object.
    Unreadable,
    /// A field holds what it cannot.
    WrongType,
    /// Neither an email nor a phone.
    NoContact,
    /// The client or its channel is not in the registry any more.
    UnknownClient,
    /// The store said no to it.
    Store,
}

impl Cause {
    pub const ALL: [Self; 5] = [Self::Unreadable, Self::WrongType, Self::NoContact, Self::UnknownClient, Self::Store];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::WrongType => "wrong_type",
            Self::NoContact => "no_contact",
            Self::UnknownClient => "unknown_client",
            Self::Store => "store",
        }
    }
}

/// Longest of what is kept of a person, in characters.
const MAX_EMAIL_CHARS: usize = 320;
const MAX_PHONE_CHARS: usize = 40;
const MAX_NAME_CHARS: usize = 200;

/// Reads a payload: the fields that matter, whatever else is in it.
pub fn draft(fields: &FieldNames, country: Option<country::Id>, payload: &[u8]) -> Result<Draft, Failure> {
    let raw: &RawValue = serde_json::from_slice(payload)
        .map_err(|error| Failure::new(Cause::Unreadable, format!("the payload is not JSON: {error}")))?;
    let document =
        Object::of(raw).ok_or_else(|| Failure::new(Cause::Unreadable, "the payload is not a JSON object"))?;
    let email = text(&document, &fields.email)?;
    let phone = text(&document, &fields.phone)?.and_then(|text| phone(&text, country));
    let name = text(&document, &fields.name)?;
    let body = text(&document, &fields.message)?.unwrap_or_default();
    let valid = email.as_deref().and_then(self::email);
    if valid.is_none() && phone.is_none() {
        let missing = match email {
            Some(_) => format!("{:?} holds no email address", fields.email),
            None => format!("there is no {:?}", fields.email),
        };
        return Err(Failure::new(Cause::NoContact, format!("{missing} and no usable {:?}", fields.phone)));
    }
    let name = name.map(|name| one_line(&name, MAX_NAME_CHARS)).filter(|name| !name.is_empty());
    Ok(Draft { email: valid, phone, name, body: body.replace('\0', "\u{fffd}") })
}

/// The text at a name, or at names joined by dots; `None` if there is none, or it is blank or null.
fn text(document: &Object<'_>, name: &str) -> Result<Option<String>, Failure> {
    let Some(raw) = document.get(name).or_else(|| at_path(document, name)) else { return Ok(None) };
    if let Some(text) = text_of(raw) {
        return Ok(Some(text).filter(|text| !text.trim().is_empty()));
    }
    let kind = match raw.get().as_bytes().first() {
        Some(b'n') => return Ok(None),
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        _ => "true or false",
    };
    Err(Failure::new(Cause::WrongType, format!("{name:?} must be text, this is {kind}")))
}

fn at_path<'a>(document: &Object<'a>, path: &str) -> Option<&'a RawValue> {
    let (first, rest) = path.split_once('.')?;
    let inner = Object::of(document.get(first)?)?;
    inner.get(rest).or_else(|| at_path(&inner, rest))
}

/// An address as contacts are told apart by it; `None` if it is not one.
fn email(text: &str) -> Option<String> {
    // Marks that nobody sees come along when an address is copied.
    let invisible = |c: char| {
        c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}' | '\u{feff}')
    };
    let address = text.trim_matches(invisible).to_lowercase();
    let (local, domain) = address.rsplit_once('@')?;
    let fine = !local.is_empty()
        && !domain.is_empty()
        && address.chars().count() <= MAX_EMAIL_CHARS
        && !address.chars().any(|c| c.is_whitespace() || c.is_control());
    fine.then_some(address)
}

/// E.164 if it is a number, else what was written without what only separates; `None` without digits. The country is
/// where a number belongs that brings no code of its own.
fn phone(text: &str, country: Option<country::Id>) -> Option<String> {
    const PLUS: [char; 2] = ['+', '\u{ff0b}'];
    let first = text.chars().find(|c| c.is_numeric() || PLUS.contains(c));
    let country = country.filter(|_| first.is_none_or(|c| !PLUS.contains(&c)));
    if let Ok(number) = phonenumber::parse(country, text.trim())
        && number.is_valid()
    {
        return Some(number.format().mode(Mode::E164).to_string());
    }
    let kept: String = text.chars().filter(|c| c.is_alphanumeric() || *c == '+').take(MAX_PHONE_CHARS).collect();
    kept.chars().any(|c| c.is_ascii_digit()).then_some(kept)
}

/// The beginning of a text on one line.
fn one_line(text: &str, most: usize) -> String {
    let text = text.replace(char::is_control, " ");
    let kept: String = text.trim().chars().take(most).collect();
    kept.trim_end().to_owned()
}

/// Tries in all; then a row waits for a person.
pub const MAX_TRIES: u32 = 8;

/// When a row that has failed so often is tried again; `None` if it is parked.
pub fn next_try(tries: u32, now: Timestamp) -> Option<Timestamp> {
    const SECONDS: [u64; 7] = [10, 30, 120, 600, 1800, 3600, 3600];
    let index = usize::try_from(tries.checked_sub(1)?).ok()?;
    SECONDS.get(index).map(|seconds| now + Duration::from_secs(*seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(payload: &str) -> Result<Draft, Failure> {
        draft(&FieldNames::default(), Some(country::SE), payload.as_bytes())
    }

    #[test]
    fn payloads_become_people_and_what_they_said() {
        let cases: [(&str, Option<&str>, Option<&str>, &str); 9] = [
            (r#"{"email":" Ann@Example.COM ","message":"Hi"}"#, Some("ann@example.com"), None, "Hi"),
            (r#"{"phone":"070-174 06 05","message":"Hi"}"#, None, Some("+46701740605"), "Hi"),
            (r#"{"phone":"+1 (650) 253-0000"}"#, None, Some("+16502530000"), ""),
            (r#"{"phone":46701740605}"#, None, Some("+46701740605"), ""),
            (r#"{"phone":"ext. 12-3"}"#, None, Some("ext123"), ""),
            (r#"{"email":"a@b","phone":"070-174 06 05"}"#, Some("a@b"), Some("+46701740605"), ""),
            (r#"{"email":"n/a","phone":"+46701740605"}"#, None, Some("+46701740605"), ""),
            (
                r#"{"email":"a@b","phone":null,"message":"a\nb\u0000c \u202ed 😀"}"#,
                Some("a@b"),
                None,
                "a\nb\u{fffd}c \u{202e}d 😀",
            ),
            (r#"{"email":"a@b","message":12}"#, Some("a@b"), None, "12"),
        ];
        for (payload, email, phone, body) in cases {
            let draft = read(payload).unwrap();
            assert_eq!((draft.email.as_deref(), draft.phone.as_deref(), draft.body.as_str()), (email, phone, body));
        }
        // What nobody asks for may be anything.
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let odd = format!(r#"{{"x":{deep},"y":1e999,"z":"\ud83d","email":"\ufeffa@b\u200b","message":"cut \ud83d"}}"#);
        let draft = read(&odd).unwrap();
        assert_eq!((draft.email.as_deref(), draft.body.starts_with("cut \u{fffd}")), (Some("a@b"), true));
        assert_eq!(read(r#"{"email":"a@b","name":" Ann\n Lee "}"#).unwrap().name.as_deref(), Some("Ann  Lee"));
    }

    #[test]
    fn fields_may_stand_elsewhere() {
        let names = FieldNames {
            phone: "From".to_owned(),
            message: "data.text".to_owned(),
            email: "a.b".to_owned(),
            ..FieldNames::default()
        };
        let read = |payload: &str| draft(&names, None, payload.as_bytes()).unwrap();
        let draft = read(r#"{"From":"+46701740605","data":{"text":"Hi"},"a.b":"x@y","a":{"b":"no@no"}}"#);
        assert_eq!((draft.body.as_str(), draft.email.as_deref()), ("Hi", Some("x@y")));
        assert_eq!(read(r#"{"a":{"b":"x@y"}}"#).email.as_deref(), Some("x@y"));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for (payload, cause, text) in [
            ("", Cause::Unreadable, "not JSON"),
            ("hello", Cause::Unreadable, "not JSON"),
            (deep.as_str(), Cause::Unreadable, "not a JSON object"),
            ("[1]", Cause::Unreadable, "not a JSON object"),
            ("null", Cause::Unreadable, "not a JSON object"),
            ("{}", Cause::NoContact, "there is no \"email\" and no usable \"phone\""),
            (r#"{"email":"nobody"}"#, Cause::NoContact, "holds no email address"),
            (r#"{"email":"a b@c"}"#, Cause::NoContact, "holds no email address"),
            (r#"{"phone":"---"}"#, Cause::NoContact, "no usable \"phone\""),
            (r#"{"email":"a@b","message":{"x":1}}"#, Cause::WrongType, "\"message\" must be text, this is an object"),
            (r#"{"email":["a@b"]}"#, Cause::WrongType, "\"email\" must be text, this is a list"),
        ] {
            let failure = read(payload).unwrap_err();
            assert_eq!(failure.cause, cause, "{failure}");
            assert!(failure.text.contains(text), "{failure}");
        }
    }

    #[test]
    fn eight_tries_with_growing_delays_up_to_an_hour() {
        let now = Timestamp::from_micros(0);
        let delays: Vec<_> = (1..MAX_TRIES).map(|tries| next_try(tries, now).unwrap().since(now)).collect();
        assert!(delays.is_sorted() && delays.last() == Some(&Duration::from_secs(3600)));
        assert_eq!(next_try(MAX_TRIES, now), None);
    }
}
