//! Inbox submissions: the clients of the inbox, how a raw payload becomes a message, and when processing is retried.
//!
//! The API stores payloads without reading them. This module reads them later; a payload that cannot be processed becomes a
//! [`Failure`] with a cause and a text.

mod payload;
mod people;

use std::fmt;
use std::time::Duration;

use phonenumber::country;

use self::payload::Document;
use self::people::NoAddress;
use super::time::Timestamp;
use super::uuid_id::uuid_id;

pub use self::payload::PayloadFormat;

uuid_id! {
    /// The id of an inbox submission: a random UUID, opaque to clients.
    InboxSubmissionId
}

/// How an inbox submission was sent.
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

/// The names of the fields in a payload. A name can be a path, with names joined by dots.
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
    /// The country of phone numbers that have no country code.
    pub country: Option<country::Id>,
    /// The environment variable that holds the secrets of signed hooks.
    pub hook_secret_env: Option<String>,
}

impl InboxClient {
    /// The field names of a channel; `None` if the client does not use the channel.
    pub fn fields(&self, channel: Channel) -> Option<&FieldNames> {
        self.channels.iter().find(|(known, _)| *known == channel).map(|(_, fields)| fields)
    }
}

/// The contact and the message that were read from an inbox submission. There is an email address, a phone number, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// In lower case and NFC, because contacts are compared by it.
    pub email: Option<String>,
    /// In E.164 if the number is valid.
    pub phone: Option<String>,
    pub name: Option<String>,
    pub body: String,
}

/// Why an inbox submission could not be processed.
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

/// The kind of a failure, as the metrics label it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The payload is not JSON, or not an object.
    Unreadable,
    /// A field is not a text.
    WrongType,
    /// There is neither an email address nor a phone number, or the email field does not contain exactly one address.
    NoContact,
    /// The client or its channel is no longer in the registry.
    UnknownClient,
    /// The store rejected the message.
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

/// Reads the contact and the message from a payload. Other fields are ignored.
pub fn draft(
    fields: &FieldNames,
    country: Option<country::Id>,
    format: PayloadFormat,
    payload: &[u8],
) -> Result<Draft, Failure> {
    let document = Document::parse(format, payload)?;
    let email = document.text(&fields.email)?.map(|text| people::email(&text)).transpose();
    let phone = document.text(&fields.phone)?.and_then(|text| people::phone(&text, country));
    let name = document.text(&fields.name)?.and_then(|text| people::name(&text));
    let body = document.text(&fields.message)?.unwrap_or_default();
    // An invalid email address is an error even if there is a phone number: the sender meant to give the address.
    let email = email.map_err(|error| {
        let problem = match error {
            NoAddress::Missing => "no email address",
            NoAddress::Several => "more than one email address",
        };
        Failure::new(Cause::NoContact, format!("{:?} holds {problem}", fields.email))
    })?;
    if email.is_none() && phone.is_none() {
        let text = format!("there is no {:?} and no usable {:?}", fields.email, fields.phone);
        return Err(Failure::new(Cause::NoContact, text));
    }
    Ok(Draft { email, phone, name, body: body.replace('\0', "\u{fffd}") })
}

/// The number of tries to process an inbox submission. After that it is parked until an operator retries it.
pub const MAX_TRIES: u32 = 8;

/// When an inbox submission that has failed `tries` times is tried again; `None` if it is parked.
pub fn next_try(tries: u32, now: Timestamp) -> Option<Timestamp> {
    const SECONDS: [u64; 7] = [10, 30, 120, 600, 1800, 3600, 3600];
    let index = usize::try_from(tries.checked_sub(1)?).ok()?;
    SECONDS.get(index).map(|seconds| now + Duration::from_secs(*seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(payload: &str) -> Result<Draft, Failure> {
        draft(&FieldNames::default(), Some(country::SE), PayloadFormat::Json, payload.as_bytes())
    }

    #[test]
    fn payloads_become_contacts_and_messages() {
        let cases: [(&str, Option<&str>, Option<&str>, &str); 9] = [
            (r#"{"email":" Ann@Example.COM ","message":"Hi"}"#, Some("ann@example.com"), None, "Hi"),
            (r#"{"phone":"070-174 06 05","message":"Hi"}"#, None, Some("+46701740605"), "Hi"),
            (r#"{"phone":"+1 (650) 253-0000"}"#, None, Some("+16502530000"), ""),
            (r#"{"phone":46701740605}"#, None, Some("+46701740605"), ""),
            (r#"{"phone":"ext. 12-3"}"#, None, Some("ext123"), ""),
            (r#"{"email":"a@b","phone":"070-174 06 05"}"#, Some("a@b"), Some("+46701740605"), ""),
            (r#"{"email":" ","phone":"+46701740605"}"#, None, Some("+46701740605"), ""),
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
        // Other fields may contain anything.
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let odd = format!(r#"{{"x":{deep},"y":1e999,"z":"\ud83d","email":"\ufeffa@b\u200b","message":"cut \ud83d"}}"#);
        let draft = read(&odd).unwrap();
        assert_eq!((draft.email.as_deref(), draft.body.starts_with("cut \u{fffd}")), (Some("a@b"), true));
        assert_eq!(read(r#"{"email":"a@b","name":" Ann\n Lee "}"#).unwrap().name.as_deref(), Some("Ann  Lee"));
    }

    #[test]
    fn fields_can_have_other_names_and_paths() {
        let names = FieldNames {
            phone: "From".to_owned(),
            message: "data.text".to_owned(),
            email: "a.b".to_owned(),
            ..FieldNames::default()
        };
        let read = |payload: &str| draft(&names, None, PayloadFormat::Json, payload.as_bytes()).unwrap();
        let draft = read(r#"{"From":"+46701740605","data":{"text":"Hi"},"a.b":"x@y","a":{"b":"no@no"}}"#);
        assert_eq!((draft.body.as_str(), draft.email.as_deref()), ("Hi", Some("x@y")));
        assert_eq!(read(r#"{"a":{"b":"x@y"}}"#).email.as_deref(), Some("x@y"));
    }

    #[test]
    fn field_names_are_compared_in_nfc() {
        let names = FieldNames {
            phone: "te\u{301}l".to_owned(),
            message: "data.me\u{301}l".to_owned(),
            ..FieldNames::default()
        };
        for payload in [
            "{\"te\u{301}l\":\"+46701740605\",\"data\":{\"me\u{301}l\":\"x\"}}",
            "{\"t\u{e9}l\":\"+46701740605\",\"data\":{\"m\u{e9}l\":\"x\"}}",
        ] {
            let draft = draft(&names, None, PayloadFormat::Json, payload.as_bytes()).unwrap();
            assert_eq!((draft.phone.as_deref(), draft.body.as_str()), (Some("+46701740605"), "x"), "{payload}");
        }
    }

    #[test]
    fn form_encoded_payloads_are_read_like_json() {
        let names = FieldNames {
            phone: "From".to_owned(),
            message: "Body".to_owned(),
            name: "Caller.N\u{e4}me".to_owned(),
            ..FieldNames::default()
        };
        let read = |payload: &str| draft(&names, None, PayloadFormat::Form, payload.as_bytes());
        let full =
            read("ToCountry=SE&From=%2B46701740605&Body=Hi+there%21%0A%00%F0%9F%98%80&Caller.Na%CC%88me=Ann&x&=")
                .unwrap();
        assert_eq!((full.email, full.phone.as_deref()), (None, Some("+46701740605")));
        assert_eq!((full.name.as_deref(), full.body.as_str()), (Some("Ann"), "Hi there!\n\u{fffd}\u{1f600}"));
        let mail = read("email=Ann+%3Ca%40x.example%3E&Body=%FF%2").unwrap();
        assert_eq!((mail.email.as_deref(), mail.body.as_str()), (Some("a@x.example"), "\u{fffd}%2"));
        assert_eq!(
            read("From=1&From=%2B46701740605").unwrap().phone.as_deref(),
            Some("+46701740605"),
            "the last counts"
        );
        for payload in ["", "hello", "{\"From\":\"+46701740605\"}", "From=+&Body=x"] {
            assert_eq!(read(payload).unwrap_err().cause, Cause::NoContact, "{payload}");
        }
        for (content_type, format) in [
            ("application/x-www-form-urlencoded", PayloadFormat::Form),
            ("Application/X-WWW-Form-Urlencoded; charset=UTF-8", PayloadFormat::Form),
            ("application/json", PayloadFormat::Json),
            ("", PayloadFormat::Json),
        ] {
            assert_eq!(PayloadFormat::of_content_type(content_type), format, "{content_type}");
        }
        PayloadFormat::ALL.iter().for_each(|format| assert_eq!(PayloadFormat::parse(format.as_str()), Some(*format)));
    }

    #[test]
    fn a_payload_that_cannot_be_read_says_why() {
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
            (r#"{"email":"n/a","phone":"+46701740605"}"#, Cause::NoContact, "\"email\" holds no email address"),
            (r#"{"email":"a@b, c@d","phone":"+46701740605"}"#, Cause::NoContact, "more than one email address"),
            (r#"{"phone":"---"}"#, Cause::NoContact, "no usable \"phone\""),
            (r#"{"email":"a@b","message":{"x":1}}"#, Cause::WrongType, "\"message\" must be text, not an object"),
            (r#"{"email":["a@b"]}"#, Cause::WrongType, "\"email\" must be text, not a list"),
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
